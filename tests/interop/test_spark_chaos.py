"""The scripted faults of ``tests/spark/chaos``, against a real Apache Pulsar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from geminga.testing.apache_pulsar import ApachePulsar

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))
sys.path.insert(0, str(Path(__file__).parents[1] / "spark/chaos"))
from chaos import Play, Scenario, World
from local_session import local_session
from scenarios import on_apache_pulsar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="module")
def world(spark: SparkSession, pulsar_home: Path, apache_pulsar: ApachePulsar) -> Iterator[World]:
    with World.open(spark, apache_pulsar) as world:
        yield world


@pytest.mark.rotating(2)
@pytest.mark.parametrize("scenario", on_apache_pulsar(), ids=lambda scenario: scenario.name)
def test_rows_are_complete_and_single_after_faults(world: World, scenario: Scenario, tmp_path: Path) -> None:
    Play(world, scenario, tmp_path).run()
