"""Mirrors: continuous copies of topics to another cluster, between Geminga's brokers and Apache Pulsar,
either way.

`Mirror` (``geminga mirror`` at a terminal) copies entries unchanged, with schemas and subscriptions. It has
no storage: its progress is read from the target. See docs/moving-to-a-cluster.md.

Modules are imported at first use; type checkers read the names in ``__init__.pyi``.
"""

import importlib

_HOMES = {
    "Cluster": "geminga.client.cluster", "Mirror": "geminga.mirror.mirror",
    "MirrorRefused": "geminga.mirror.pairing", "MirrorSettings": "geminga.mirror.settings",
    "MirrorStatus": "geminga.mirror.status",
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
