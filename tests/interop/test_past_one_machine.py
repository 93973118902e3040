"""A Spark cluster, an object store and a broker as processes; the page is docs/past-one-machine.md."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.support import spark_cluster
from tests.support.modules import module_at

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def script() -> ModuleType:
    return module_at("past_one_machine", ROOT / "tools/past_one_machine.py")


@pytest.mark.rotating(2, group="whole pipelines")
@pytest.mark.usefixtures("package_cache")
def test_rows_are_complete_and_single_after_a_worker_dies(tmp_path):
    found = script().run(tmp_path, rows=12_000)
    assert found["is_equal"], found
    assert found["written"] == 12_000
    assert 0 < found["written_at_kill"] < 12_000, "the worker died when all was done"


@pytest.mark.long
def test_rows_are_complete_and_single_with_two_apache_brokers(tmp_path, pulsar_home):
    found = script().run(tmp_path, rows=12_000, apache_pulsar=pulsar_home)
    assert found["is_equal"], found
    assert found["written"] == 12_000
    assert 0 < found["written_at_kill"] < 12_000, "the worker died when all was done"


def test_the_page_names_the_tested_packages():
    page = (ROOT / "docs/past-one-machine.md").read_text()
    assert spark_cluster.S3A_PACKAGES in page
    assert spark_cluster.S3A_EXCLUDES in page
