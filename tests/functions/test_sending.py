"""Limit of messages in flight, and their memory."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import eventually, eventually_async

from geminga.functions import FunctionRunner, Output, sending
from geminga.functions.sending import AtLeastOnce, PendingResults


def _settling(flows: list[Any], max_pending: int = 1000) -> PendingResults:
    handles = {number: SimpleNamespace(consumer=SimpleNamespace(flow=f)) for number, f in enumerate(flows)}
    consumer: Any = SimpleNamespace(group=SimpleNamespace(handles=handles), closed=False)
    settings = SimpleNamespace(guarantee="ATLEAST_ONCE", max_pending=max_pending)
    return PendingResults(SimpleNamespace(settings=settings), consumer)


async def test_larger_messages_lower_the_number_in_flight(monkeypatch):
    monkeypatch.setattr(sending, "PENDING_BYTES_MAX", 1_000_000)

    one, other = (SimpleNamespace(received_messages=0, received_bytes=0) for _ in range(2))
    settling = _settling([one, other])
    assert settling.most == 1000
    one.received_messages, one.received_bytes = 10, 100
    assert settling.most == 1000
    other.received_messages, other.received_bytes = 100, 4_000_000
    first = settling.most
    assert 1_000_000 / 40_000 < first < 1000
    for _ in range(50):
        other.received_messages += 1
        other.received_bytes += 100_000
        assert settling.most <= first
    assert settling.most == 10
    for _ in range(50):
        settling.note_results(2, 200_000)
    assert settling.most == 5
    settling.note_results(1, 50_000_000)
    assert settling.most == 1  # never none
    one.received_messages = one.received_bytes = 0  # a topic is no more read, or opened again
    assert settling.most == 1


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_large_messages_wait_for_memory(place, kind, monkeypatch):
    monkeypatch.setattr(sending, "PENDING_BYTES_MAX", 1_000_000)
    leave = threading.Event()

    def plain(value: bytes) -> bytes:
        leave.wait(60)
        return value[:5]

    async def on_the_loop(value: bytes) -> bytes:
        await eventually_async(lambda: leave.is_set())
        return value[:5]

    place.send(*(f"{n:05}" + "x" * 100_000 for n in range(60)))
    with FunctionRunner(place.settings(plain if kind == "plain" else on_the_loop)) as runner:
        eventually(lambda: runner.metrics.received > 0)
        assert not runner.wait(0.2)
        assert runner.metrics.received <= 10
        leave.set()
        assert place.values(60) == [f"{n:05}" for n in range(60)]


def test_open_producers_of_chosen_topics_are_limited(place, monkeypatch):
    monkeypatch.setattr(sending, "PRODUCERS_MAX", 3)
    counts: list[int] = []

    def route(value: str) -> Output:
        return Output(value, topic=f"{place.topic}-{int(value) % 7}")

    class Watched(AtLeastOnce):
        async def _producer(self, topic: str, compression: Any) -> Any:
            found = await super()._producer(topic, compression)
            counts.append(len(self._producers))
            return found

    monkeypatch.setattr("geminga.functions.runner.AtLeastOnce", Watched)
    with FunctionRunner(place.settings(route, output=None)):
        place.send(*range(70))
        for n in range(7):
            assert place.values(10, f"-{n}") == [str(m) for m in range(n, 70, 7)]
    assert max(counts) == 3


@pytest.mark.parametrize("queue", [7, 1000])
def test_results_with_options_keep_their_order(place, monkeypatch, queue):
    def mixed(value: str) -> Any:
        return Output(value, properties={"a": "b"}) if int(value) % 3 == 0 else value

    arguments = sending.producer_arguments
    monkeypatch.setattr(
        sending, "producer_arguments", lambda *given: {**arguments(*given), "max_pending_messages": queue}
    )
    place.send(*range(600))
    with FunctionRunner(place.settings(mixed)):
        assert place.values(600) == [str(n) for n in range(600)]
