"""The loops over tables as they run where numba is not installed."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import patch

import geminga.wire

NAMES = ("columnar_kernels", "columnar_encoding_kernels")


def _import_without_numba() -> dict[str, ModuleType]:
    compiled = {name: importlib.import_module(f"geminga.wire.{name}") for name in NAMES}
    with patch.dict(sys.modules, {"numba": None}):
        for name in NAMES:
            del sys.modules[f"geminga.wire.{name}"]
        plain = {name: importlib.import_module(f"geminga.wire.{name}") for name in NAMES}
    for name, module in compiled.items():
        setattr(geminga.wire, name, module)
    return plain


MODULES = _import_without_numba()


@contextmanager
def without_numba() -> Iterator[None]:
    """Have `geminga.wire.columnar` use the loops without a compiler."""
    with patch.multiple(geminga.wire, **MODULES):
        yield
