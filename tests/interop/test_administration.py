"""`geminga.Admin` against Apache Pulsar: the checks of ``tests/suites``, as ours passes them."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import geminga

sys.path.insert(0, str(Path(__file__).parents[1] / "suites"))
suite: Any = importlib.import_module("administration")

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def admin(apache_pulsar):
    with geminga.Admin(apache_pulsar.admin_url, operation_timeout_seconds=60) as one:
        yield one


@pytest.mark.parametrize("check", suite.CHECKS)
def test_each_administration_check_passes_on_apache_pulsar(admin, apache_pulsar, check):
    suite.CHECKS[check](admin, apache_pulsar)
