"""Every scripted fault, against our broker: what was given is found, and nothing else. See `chaos`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chaos import GemingaBroker, Play, Scenario, World
from scenarios import all_scenarios

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    broker = GemingaBroker.start(tmp_path_factory.mktemp("broker"))
    try:
        with World.open(spark, broker) as world:
            yield world
    finally:
        broker.stop()


@pytest.mark.rotating(2)
@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda scenario: scenario.name)
def test_nothing_is_lost_or_doubled(world: World, scenario: Scenario, tmp_path: Path) -> None:
    Play(world, scenario, tmp_path).run()


def test_there_are_more_than_a_hundred_scenarios() -> None:
    assert len(all_scenarios()) > 100
