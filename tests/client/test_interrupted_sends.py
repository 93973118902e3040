"""Producers under signals: handlers that raise, send, wait and close, at every instruction of a send."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from interrupting import Interruption, Raised, interruptions, raise_it

import geminga
from geminga import errors
from geminga.errors import Result
from geminga.wire.proto import pulsar_wire_pb2 as pb


@pytest.fixture(params=[True, False], ids=["batched", "alone"])
def producer(request: pytest.FixtureRequest, broker: Any) -> Iterator[Any]:
    with geminga.Client(broker.url) as client:
        yield client.create_producer("t", batching_enabled=request.param, batching_max_publish_delay_ms=1)


class Outcomes:
    """Callbacks, each of which notes that it was called."""

    def __init__(self) -> None:
        self.calls: dict[int, list[Any]] = {}
        self._lock = threading.Lock()

    def callback(self, number: int) -> Callable[[Any, Any], None]:
        def note(result: Any, message_id: Any) -> None:
            with self._lock:
                self.calls.setdefault(number, []).append(result)

        return note


def used_permits(producer: Any) -> int:
    state = producer._publisher.state
    return int(state.partitions[0].backlog.own.used)


KINDS: dict[str, dict[str, Any]] = {"plain": {}, "keyed": {"partition_key": "k"}}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_handler_that_raises_loses_no_callback_and_no_permit(producer: Any, kind: str) -> None:
    outcomes, returned = Outcomes(), []
    for number, interruption in enumerate(interruptions(raise_it)):
        try:
            interruption(lambda n=number: producer.send_async(b"x", outcomes.callback(n), **KINDS[kind]))
        except Raised:
            continue
        returned.append(number)
    producer.flush()
    assert number > 20
    assert all(results == [Result.Ok] for results in outcomes.calls.values())
    # A send that raised has an unknown outcome; every send that returned has called its callback.
    assert set(returned) <= set(outcomes.calls)
    producer.send(b"and it goes on")
    assert used_permits(producer) == 0
    assert producer.statistics().pending_messages == 0


def test_a_send_queued_before_a_handler_raised_needs_no_later_send(producer: Any) -> None:
    """No later send could wake the loop by chance."""
    outcomes = Outcomes()
    for number, interruption in enumerate(interruptions(raise_it)):
        try:
            interruption(lambda n=number: producer.send_async(b"x", outcomes.callback(n)))
        except Raised:
            handed = len(producer._publisher.submit_queue.pairs)
            deadline = threading.Event()
            for _ in range(500):
                if not producer._publisher.submit_queue.pairs:
                    break
                deadline.wait(0.01)
            assert not producer._publisher.submit_queue.pairs, f"{handed} lie there, and nobody was told"
    producer.flush()
    assert all(results == [Result.Ok] for results in outcomes.calls.values())


@pytest.mark.parametrize("nested", ["send_async", "send", "flush"])
@pytest.mark.parametrize("outer", ["send_async", "send"])
def test_a_handler_may_send_and_wait(producer: Any, outer: str, nested: str) -> None:
    outcomes = Outcomes()
    sent = 0

    def act() -> None:
        nonlocal sent
        if nested == "send_async":
            producer.send_async(b"nested", outcomes.callback(-sent))
        elif nested == "send":
            assert producer.send(b"nested") is not None
        else:
            producer.flush()
        sent += 1

    for number, interruption in enumerate(interruptions(act, every=1 if outer == "send_async" else 7), 1):
        if outer == "send_async":
            interruption(lambda n=number: producer.send_async(b"x", outcomes.callback(n)))
        else:
            assert interruption(lambda: producer.send(b"x")) is not None
    producer.flush()
    assert sent > 10
    assert all(results == [Result.Ok] for results in outcomes.calls.values())
    expected = (number if outer == "send_async" else 0) + (sent if nested == "send_async" else 0)
    assert len(outcomes.calls) == expected


@pytest.mark.parametrize("closing", ["producer", "client"])
def test_a_handler_may_close(broker: Any, closing: str) -> None:
    """A SIGTERM handler closes: every accepted send has its outcome when close returns."""
    outcomes, steps, happened = Outcomes(), 0, True
    while happened:
        happened = _close_on_top_of_a_send(broker, closing, outcomes, steps)
        assert all(results == [Result.Ok] for n, results in outcomes.calls.items() if n % 4)
        assert all(len(results) == 1 for results in outcomes.calls.values())
        assert len([n for n in outcomes.calls if n % 4]) == 3 * (steps // 5 + 1)
        steps += 5
    assert steps > 20


def _close_on_top_of_a_send(broker: Any, closing: str, outcomes: Outcomes, steps: int) -> bool:
    """Send four times, close after ``steps`` steps of the fourth; return whether the close happened."""
    first = steps // 5 * 4
    with geminga.Client(broker.url) as client:
        producer = client.create_producer("t", batching_enabled=True)
        for number in (1, 2, 3):
            producer.send_async(b"before", outcomes.callback(first + number))
        interruption = Interruption(steps, producer.close if closing == "producer" else client.close)
        with contextlib.suppress(errors.AlreadyClosed):
            interruption(lambda: producer.send_async(b"x", outcomes.callback(first)))
        return interruption.happened


def test_a_handler_that_raises_out_of_a_wait_for_permits_leaves_no_gap(broker: Any) -> None:
    held: list[Any] = []
    answer = broker.on_send

    async def let_go() -> None:
        broker.answers[pb.BaseCommand.SEND] = answer
        while held:
            answer(*held.pop(0))

    with geminga.Client(broker.url) as client:
        producer = client.create_producer("t", max_pending_messages=1, block_if_queue_full=True)
        for steps in range(0, 200, 9):
            broker.answers[pb.BaseCommand.SEND] = lambda peer, frame: held.append((peer, frame))
            producer.send_async(b"first", None)
            letting_go = threading.Timer(0.02, lambda: broker.run(let_go(), 60))
            letting_go.start()
            with contextlib.suppress(Raised):
                Interruption(steps, raise_it)(lambda: producer.send_async(b"second", None))
            letting_go.join()
            broker.run(let_go(), 60)
            producer.flush()
            assert used_permits(producer) == 0
            assert len(producer._publisher._wait_queue) == 0
