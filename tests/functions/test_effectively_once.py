"""Effectively-once processing with the sequence ids that a broker remembers or forgets."""

import logging
from typing import Any

import pytest
from waiting import eventually

from geminga.asyncio import Client
from geminga.errors import PulsarException
from geminga.functions import FunctionRunner, effectively_once
from tests.functions.place import Place


@pytest.mark.parametrize("known", [-1, 5])
def test_a_broker_that_forgot_a_producers_ids_is_handled(place, monkeypatch, caplog, known):
    """Brokers forget producers after hours of absence: this does not mean that deduplication is off."""
    caplog.set_level(logging.WARNING, "geminga.functions")
    monkeypatch.setattr(effectively_once, "IDLE_SECONDS", 0.05)
    opened = Client.create_producer
    forgets: list[str] = []

    async def open_anew(self: Any, topic: str, *arguments: Any, **options: Any) -> Any:
        producer = await opened(self, topic, *arguments, **options)
        if topic.endswith("-out") and forgets:
            forgets.pop()
            producer.last_sequence_id = lambda: known
        return producer

    monkeypatch.setattr(Client, "create_producer", open_anew)
    with FunctionRunner(place.settings(lambda value: value, guarantee="EFFECTIVELY_ONCE")) as runner:
        producer = place.client.create_producer(place.topic)
        for number in range(5):
            producer.send(b"%d" % number)
            eventually(lambda number=number: runner.metrics.published == number + 1)
            if number == 2:
                forgets.append("now")
                eventually(lambda: not _producers(place))
        assert place.values(5) == [str(n) for n in range(5)]
    assert not forgets
    assert ("has lost results" in caplog.text) == (known >= 0)


@pytest.mark.parametrize(("size", "limit"), [(300_000, 200_000), (60_000, 40_000)])
def test_results_behind_one_that_the_broker_refuses_do_not_hide_it(place, size, limit):
    large = "9".rjust(size)

    def grown(value: str) -> str:
        return large if value == "50" else value

    settings = place.settings(grown, guarantee="EFFECTIVELY_ONCE")
    place.client.create_producer(place.topic + "-out").close()
    place.admin("POST", place.topic + "-out", "deduplicationEnabled", True)
    place.admin("POST", place.topic + "-out", "maxMessageSize", limit)
    place.send(*range(5000))
    with (
        pytest.raises(PulsarException, match="exceeds the topic's limit"),
        FunctionRunner(settings) as runner,
    ):
        runner.wait(60)
    place.admin("DELETE", place.topic + "-out", "maxMessageSize")
    with FunctionRunner(settings):
        values = place.values(5000)
    assert values == [large if n == 50 else str(n) for n in range(5000)]


def _producers(place: Place) -> list[Any]:
    return place.admin("GET", place.topic + "-out", "stats")["publishers"]
