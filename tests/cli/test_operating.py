"""The command line against our broker: the checks of ``tests/suites``."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "suites"))
suite: Any = importlib.import_module("operating")


@pytest.mark.parametrize("check", suite.CHECKS)
def test_each_check_of_the_suite_passes(broker, tmp_path, check):
    run = suite.runner(suite.environment_of(broker, tmp_path))
    found = suite.CHECKS[check]
    more = [tmp_path] if "folder" in inspect.signature(found).parameters else []
    found(run, broker, *more)
