"""Every scripted fault, against our broker: what was given is found, and nothing else. See `chaos`."""

import pytest
from chaos import GemingaBroker, Play, World
from scenarios import all_scenarios

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def world(spark, tmp_path_factory):
    with GemingaBroker(tmp_path_factory.mktemp("broker")) as broker:
        broker.wait_ready()
        with World.open(spark, broker) as world:
            yield world


@pytest.mark.rotating(1)
@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda scenario: scenario.name)
def test_nothing_is_lost_or_doubled(world, scenario, tmp_path):
    Play(world, scenario, tmp_path).run()


def test_there_are_more_than_a_hundred_scenarios():
    assert len(all_scenarios()) > 100
