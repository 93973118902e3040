"""The scripted faults of ``tests/spark/chaos``, against a real Apache Pulsar."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))
sys.path.insert(0, str(Path(__file__).parents[1] / "spark/chaos"))
from chaos import Play, World
from local_session import local_session
from scenarios import on_apache_pulsar

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="module")
def world(spark, pulsar_home, apache_pulsar):
    with World.open(spark, apache_pulsar) as world:
        yield world


@pytest.mark.rotating(1)
@pytest.mark.parametrize("scenario", on_apache_pulsar(), ids=lambda scenario: scenario.name)
def test_rows_are_complete_and_single_after_faults(world, scenario, tmp_path):
    Play(world, scenario, tmp_path).run()
