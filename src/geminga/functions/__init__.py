"""Functions: a callable that is called for every message of its input topics; results go to another topic.

`run`, `FunctionRunner` and ``geminga function run`` run Pulsar Functions and any other callable, without a
cluster of function workers. The interfaces have ``pulsar-client``'s names:
`geminga.functions.context`, `geminga.functions.function`, `geminga.functions.serde`.

Modules are imported at first use; type checkers read the names in ``__init__.pyi``.
"""

import importlib

_HOMES = {
    "Context": "context", "Function": "function", "FunctionRunner": "runner", "run": "runner",
    "Output": "output", "IdentitySerDe": "serde", "PickleSerDe": "serde", "SerDe": "serde",
    "FunctionSettings": "settings", "from_config": "settings",
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"geminga.functions.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
