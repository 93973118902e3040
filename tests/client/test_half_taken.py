"""Partly acknowledged batches, and topics without storage: each message is delivered once."""

import asyncio
import datetime as dt
import time
from typing import Any

import pytest
from insides import queue_of
from waiting import eventually, eventually_async, never

import geminga.asyncio
from geminga import ConsumerBatchReceivePolicy, ConsumerDeadLetterPolicy, ConsumerType
from geminga.client.publish.dead_letter_publisher import DeadLetterPublisher
from geminga.errors import InvalidConfiguration, Timeout

SHARED: dict[str, Any] = {"consumer_type": ConsumerType.Shared}


@pytest.fixture
def open_with_batch(pulsar_client, pulsar_topic):
    """A consumer for which ten messages wait as one batch."""

    def make(**settings: Any) -> Any:
        consumer = pulsar_client.subscribe(pulsar_topic, "s", **SHARED, **settings)
        send_batch(pulsar_client, pulsar_topic, [b"%d" % number for number in range(10)])
        return consumer

    return make


def send_batch(client: Any, topic: str, values: list[bytes]) -> None:
    with client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000) as producer:
        producer.send_many(values, callback=lambda _: None)
        producer.flush()


def rest(consumer: Any, count: int, millis: int = 400, *, acknowledge: bool = False) -> list[bytes]:
    """Return the given number of messages, and later ones after a while."""
    found: list[bytes] = []
    try:
        while True:
            message = consumer.receive(30_000 if len(found) < count else millis)
            found.append(message.data())
            if acknowledge:
                consumer.acknowledge(message)
    except Timeout:
        return found


def until_waiting(consumer: Any, count: int) -> None:
    """Wait until the given number of messages is queued."""
    eventually(lambda: len(queue_of(consumer)) >= count)


def values(first: int, end: int = 10) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_queued_messages_of_a_refused_batch_are_received_once(open_with_batch):
    consumer = open_with_batch(negative_ack_redelivery_delay_ms=100)
    consumer.negative_acknowledge(consumer.receive(30_000))
    until_waiting(consumer, 10)
    assert rest(consumer, 10, acknowledge=True) == values(0)


def test_a_failed_table_puts_back_exactly_its_messages(open_with_batch):
    pytest.importorskip("pyarrow")
    consumer = open_with_batch()
    taken = [consumer.receive(30_000).data() for _ in range(3)]
    with pytest.raises(InvalidConfiguration):
        consumer.receive_table(columns=["nothing"], timeout_millis=30_000)
    assert taken + rest(consumer, 7) == values(0)


def test_a_table_that_failed_starts_no_acknowledgement_timeout(open_with_batch):
    pytest.importorskip("pyarrow")
    consumer = open_with_batch(unacked_messages_timeout_ms=1000)
    with pytest.raises(InvalidConfiguration):
        consumer.receive_table(columns=["nothing"], timeout_millis=30_000)
    eventually(lambda: len(queue_of(consumer).entries) == 1)
    never(lambda: len(queue_of(consumer).entries) != 1, 2.3)  # it waits, and is not redelivered
    assert rest(consumer, 10, acknowledge=True) == values(0)


async def test_a_message_that_was_put_back_and_taken_again_may_be_late(pulsar_broker, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(
            pulsar_topic, "s", unacked_messages_timeout_ms=1000,
            batch_receive_policy=ConsumerBatchReceivePolicy(10, -1, -1), **SHARED,
        )  # fmt: skip
        producer = await client.create_producer(pulsar_topic, batching_enabled=False)
        await producer.send(b"x")
        await eventually_async(lambda: len(consumer.queue) == 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.batch_receive(), 0.01)
        assert (await consumer.receive(30_000)).redelivery_count() == 0
        assert (await consumer.receive(30_000)).redelivery_count() == 1


@pytest.fixture
def fleeting(pulsar_topic):
    return f"non-{pulsar_topic}"


def test_an_ack_does_not_cover_a_later_message_of_the_same_id(pulsar_client, fleeting):
    consumer = pulsar_client.subscribe(fleeting, "s", batch_index_ack_enabled=True)
    for start in range(0, 12, 4):
        send_batch(pulsar_client, fleeting, values(start, start + 4))
        for number in range(start, start + 4):
            message = consumer.receive(30_000)
            assert message.data() == b"%d" % number
            if number % 4 == start // 4:
                consumer.acknowledge(message)
        time.sleep(0.15)
    for number in range(3):
        send_batch(pulsar_client, fleeting, values(number, number + 1))
        message = consumer.receive(30_000)
        assert message.data() == b"%d" % number
        consumer.acknowledge_cumulative(message)
        time.sleep(0.15)


def test_non_persistent_messages_stay_queued_after_refusals(pulsar_client, fleeting):
    consumer = pulsar_client.subscribe(fleeting, "s", negative_ack_redelivery_delay_ms=50)
    send_batch(pulsar_client, fleeting, values(0))
    send_batch(pulsar_client, fleeting, values(0))
    consumer.negative_acknowledge(consumer.receive(30_000))
    time.sleep(0.2)
    consumer.redeliver_unacknowledged_messages()
    assert rest(consumer, 19, 200) == values(1) + values(0)


def test_tables_tell_batches_of_the_same_id_apart(pulsar_client, fleeting):
    pytest.importorskip("pyarrow")
    consumer = pulsar_client.subscribe(fleeting, "s")
    send_batch(pulsar_client, fleeting, values(0))
    send_batch(pulsar_client, fleeting, values(0))
    assert consumer.receive(30_000).data() == b"0"
    until_waiting(consumer, 19)
    table = consumer.receive_table(timeout_millis=30_000)
    assert table.column("value").to_pylist() == values(1) + values(0)


def test_a_dead_letter_that_cannot_be_made_gives_its_permits_back(pulsar_client, pulsar_topic, monkeypatch):
    publish = DeadLetterPublisher.publish
    refused: list[Any] = []

    async def fail_at_first(self: Any, *arguments: Any) -> None:
        if len(refused) < 2:
            refused.append(arguments)
            raise ValueError("nobody thought of this")
        await publish(self, *arguments)

    monkeypatch.setattr(DeadLetterPublisher, "publish", fail_at_first)
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", **SHARED, receiver_queue_size=2, negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=ConsumerDeadLetterPolicy(max_redeliver_count=1),
    )  # fmt: skip
    with pulsar_client.create_producer(pulsar_topic) as producer:
        for value in (b"a", b"b"):
            producer.send(value)
        for _ in range(4):
            consumer.negative_acknowledge(consumer.receive(30_000))
        eventually(lambda: len(refused) >= 2)
        producer.send(b"c")
    assert consumer.receive(30_000).data() == b"c"


@pytest.mark.parametrize("told", [False, True], ids=["whole", "by index"])
def test_moving_the_subscription_back_redelivers_the_acknowledged_half_too(
    open_with_batch, pulsar_admin, pulsar_topic, told
):
    consumer = open_with_batch(batch_index_ack_enabled=told, ack_receipt_enabled=True)
    held = [consumer.receive(30_000) for _ in range(6)]
    consumer.acknowledge(held[:4])
    pulsar_admin.subscriptions.reset_to_time(pulsar_topic, "s", dt.timedelta(minutes=1))
    again: list[Any] = []
    while [message.data() for message in again[-10:]] != values(0):
        # Queued messages may be received before the broker's notice of the reset arrives.
        assert len(again) < 14, [message.data() for message in again]
        again.append(consumer.receive(30_000))
    again = again[-10:]
    consumer.acknowledge(again[4:])
    consumer.redeliver_unacknowledged_messages()
    assert rest(consumer, 4, 1000) == values(0, 4), (
        "what was acknowledged before the reset counts for nothing"
    )
