"""Consumers under signals: handlers that raise, receive, acknowledge and close, at every instruction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from interrupting import Interruption, Raised, interruptions, raise_it

from geminga import ConsumerBatchReceivePolicy, ConsumerType, InitialPosition
from geminga.client.admin import admin
from geminga.errors import AlreadyClosed, Timeout


@pytest.fixture
def filled(pulsar_client: Any, pulsar_topic: str) -> Iterator[Any]:
    """A producer of a topic that has a subscription."""
    pulsar_client.subscribe(pulsar_topic, "s", ConsumerType.Shared).close()
    with pulsar_client.create_producer(pulsar_topic, max_pending_messages=0) as producer:
        yield producer


def backlog(broker: Any, topic: str) -> int:
    path = topic.replace("://", "/")
    return int(admin(broker.admin_url, "GET", f"{path}/stats")["subscriptions"]["s"]["msgBacklog"])


def subscribe(client: Any, topic: str, **options: Any) -> Any:
    return client.subscribe(
        topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest, **options
    )


def test_a_handler_that_raises_out_of_acknowledge_leaves_the_others_to_be_sent(
    pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str, filled: Any
) -> None:
    consumer = subscribe(pulsar_client, pulsar_topic, ack_grouping_time_ms=1)
    for interruption in interruptions(raise_it):
        filled.send(b"x")
        message = consumer.receive(30_000)
        with contextlib.suppress(Raised):
            interruption(lambda m=message: consumer.acknowledge(m))
        if interruption.happened:
            consumer.acknowledge(message)  # an exception leaves the outcome unknown: acknowledge again
    consumer.close()
    assert backlog(pulsar_broker, pulsar_topic) == 0


def test_an_acknowledgement_is_sent_without_a_push_after_any_error_of_a_handler(
    pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str, filled: Any
) -> None:
    consumer = subscribe(pulsar_client, pulsar_topic, ack_grouping_time_ms=1)
    inbox = consumer._consumer.inbox

    async def nothing() -> None:
        return None

    for interruption in interruptions(raise_it):
        filled.send(b"x")
        message = consumer.receive(30_000)
        with contextlib.suppress(Raised):
            interruption(lambda m=message: consumer.acknowledge(m))
        for _ in range(2000):
            if not len(inbox):
                break
            pulsar_client.runtime.call(nothing())
        assert not len(inbox)
    consumer.close()


@pytest.mark.parametrize("tracked", [True, False])
def test_a_handler_that_raises_out_of_receive_costs_no_message_of_others(
    pulsar_client: Any, pulsar_topic: str, filled: Any, tracked: bool
) -> None:
    """The next consumer receives the message of the interrupted call; this one receives all others."""
    options = {"unacked_messages_timeout_ms": 60_000} if tracked else {}
    consumer = subscribe(pulsar_client, pulsar_topic, receiver_queue_size=3, **options)
    sent, received = 0, []
    for interruption in interruptions(raise_it, every=2):
        filled.send(b"%d" % sent)
        sent += 1
        with contextlib.suppress(Raised, Timeout):
            message = interruption(lambda: consumer.receive(30_000))
            received.append(message.data())
            consumer.acknowledge(message)
    with contextlib.suppress(Timeout):
        while True:
            message = consumer.receive(200)
            received.append(message.data())
            consumer.acknowledge(message)
    consumer.close()
    assert len(received) > sent // 2
    again = subscribe(pulsar_client, pulsar_topic)
    received += [again.receive(30_000).data() for _ in range(sent - len(received))]
    assert sorted(map(int, received)) == list(range(sent))


TAKES = {
    "receive": lambda consumer: [consumer.receive(30_000)],
    "batch_receive": lambda consumer: consumer.batch_receive(),
    "receive_table": lambda consumer: (
        consumer.receive_table(10, timeout_millis=30_000).column("value").to_pylist()
    ),
}


@pytest.mark.filterwarnings("ignore:coroutine 'collect_entries' was never awaited")  # interrupted before
@pytest.mark.parametrize("how", TAKES)
@pytest.mark.parametrize("tracked", [True, False])
def test_the_message_of_an_interrupted_receive_is_returned_by_the_next(
    pulsar_client: Any, pulsar_topic: str, filled: Any, tracked: bool, how: str
) -> None:
    """Wherever CPython runs a handler that raises, the same consumer gets the message without delay."""
    options = {"unacked_messages_timeout_ms": 600_000} if tracked else {}
    consumer = subscribe(
        pulsar_client,
        pulsar_topic,
        receiver_queue_size=3,
        batch_receive_policy=ConsumerBatchReceivePolicy(2, 0, 5000),
        **options,
    )
    take = TAKES[how]
    for _ in range(2):
        filled.send(b"what is imported at first use")
    taken = 0
    while taken < 2:
        taken += len(take(consumer))
    for interruption in interruptions(raise_it, strict=True):
        for content in (b"a", b"b"):
            filled.send(content)
        received: list[Any] = []
        with contextlib.suppress(Raised):
            received += interruption(lambda: take(consumer))
        assert bool(received) is not interruption.happened
        while len(received) < 2:
            received += take(consumer) if how != "batch_receive" else [consumer.receive(30_000)]
        assert [each if isinstance(each, bytes) else each.data() for each in received] == [b"a", b"b"]
    consumer.close()


@pytest.mark.parametrize("receipts", [True, False])
def test_a_handler_may_receive_and_acknowledge(
    pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str, filled: Any, receipts: bool
) -> None:
    consumer = subscribe(pulsar_client, pulsar_topic, ack_receipt_enabled=receipts)

    def act() -> None:
        consumer.acknowledge(consumer.receive(30_000))

    for interruption in interruptions(act, every=5):
        filled.send(b"a")
        filled.send(b"b")

        def both(interrupted: Interruption = interruption) -> None:
            interrupted(lambda: consumer.acknowledge(consumer.receive(30_000)))

        both()
    while backlog(pulsar_broker, pulsar_topic):  # acknowledgements leave in groups, after a while
        with contextlib.suppress(Timeout):
            consumer.acknowledge(consumer.receive(100))
    consumer.close()
    assert backlog(pulsar_broker, pulsar_topic) == 0


def test_a_handler_may_close(pulsar_broker: Any, pulsar_topic: str, filled: Any) -> None:
    for steps in range(0, 150, 6):
        with pulsar_broker.client() as client:
            consumer = subscribe(client, pulsar_topic)
            interruption = Interruption(steps, client.close)
            with contextlib.suppress(AlreadyClosed, Timeout):
                interruption(lambda c=consumer: c.receive(50))
            with contextlib.suppress(AlreadyClosed):
                consumer.receive(10)
                pytest.fail("it is closed") if interruption.happened else None
