"""The list of Apache Pulsar's REST paths is that of the release that the tests run against."""

import shutil
from pathlib import Path

import pytest

from tests.support.modules import module_at

pytestmark = [pytest.mark.interop, pytest.mark.long]

TOOL = Path(__file__).parents[2] / "tools/apache_routes.py"


@pytest.mark.skipif(shutil.which("javap") is None, reason="javap comes with a JDK, not with a JRE")
def test_the_list_of_routes_equals_the_annotations_of_apache_pulsars_classes(pulsar_home):
    tool = module_at("apache_routes", TOOL)
    assert tool.read(pulsar_home) == tool.ROUTES.read_text().splitlines()
