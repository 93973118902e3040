"""Mirrors: continuous copies of topics to another cluster, between Geminga's brokers and Apache Pulsar,
either way.

`Mirror` (``geminga mirror`` at a terminal) copies entries unchanged, with schemas and subscriptions. It has
no storage: its progress is read from the target. See docs/moving-to-a-cluster.md.
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
