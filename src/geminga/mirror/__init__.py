"""Mirrors: topics of one cluster kept in another, between Geminga's brokers and Apache Pulsar, either way.

`Mirror` (``geminga mirror`` at a terminal) copies entries as they are, remembers nothing by itself (what the
target has says how far it is), and takes schemas and subscriptions along. See docs/moving-to-a-cluster.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geminga.client.cluster import Cluster as Cluster
    from geminga.mirror.mirror import Mirror as Mirror
    from geminga.mirror.pairing import MirrorRefused as MirrorRefused
    from geminga.mirror.settings import MirrorSettings as MirrorSettings
    from geminga.mirror.status import MirrorStatus as MirrorStatus

_HOMES = {
    "Cluster": "geminga.client.cluster", "Mirror": "geminga.mirror.mirror",
    "MirrorRefused": "geminga.mirror.pairing", "MirrorSettings": "geminga.mirror.settings",
    "MirrorStatus": "geminga.mirror.status",
}  # fmt: skip

__all__ = ["Cluster", "Mirror", "MirrorRefused", "MirrorSettings", "MirrorStatus"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
