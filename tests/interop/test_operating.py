"""The command line against Apache Pulsar: the checks of ``tests/suites``."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "suites"))
suite: Any = importlib.import_module("operating")


pytestmark = pytest.mark.interop


@pytest.mark.parametrize("check", suite.CHECKS)
def test_each_operating_check_passes_on_apache_pulsar(apache_pulsar, tmp_path, check):
    run = suite.runner(suite.environment_of(apache_pulsar, tmp_path))
    found = suite.CHECKS[check]
    more = [tmp_path] if "folder" in inspect.signature(found).parameters else []
    found(run, apache_pulsar, *more)
