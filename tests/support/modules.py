"""Loading of modules that are no part of a package: tools, settings of the docs, and files of other tests."""

import importlib.util
import sys
from pathlib import Path
from typing import Any


def module_at(name: str, path: Path) -> Any:
    """Load the module in a file, with each call again, and make it known under ``name``."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
