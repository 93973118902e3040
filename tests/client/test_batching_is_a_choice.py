"""Batching is off in the synchronous API unless asked for, and on in asyncio, as with pulsar-client.

A consumer gets an entry whole: keys of one batch go where its first key goes, and Shared consumers share by
batch.
"""

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import geminga
import geminga.asyncio
from geminga.client.handles import consumer_handle

KEYS = 20


@pytest.fixture(autouse=True)
def no_warning_was_logged(monkeypatch):
    monkeypatch.setattr(consumer_handle, "_warned_about_keys", set())


def drained(*consumers: Any, count: int) -> Iterator[tuple[int, Any]]:
    """Receive ``count`` messages over all consumers, each with its consumer's number; then expect no more."""
    left, quiet = count, 0
    while left or quiet < len(consumers):
        for number, consumer in enumerate(consumers):
            with contextlib.suppress(geminga.Timeout):
                while True:
                    message = consumer.receive(20 if left else 300)
                    assert left, "more than was sent"
                    left -= 1
                    yield number, message
            quiet += not left


def publish_keys(client: Any, topic: str, *, table: bool = False, **options: Any) -> None:
    """As programs do it: without waiting, each key five times."""
    producer = client.create_producer(topic, block_if_queue_full=True, **options)
    if table:
        numbers = range(5 * KEYS)
        producer.send_table(
            pa.table({"value": [b"%d" % n for n in numbers], "key": [f"key-{n % KEYS}" for n in numbers]})
        )
        return
    for number in range(5 * KEYS):
        producer.send_async(b"%d" % number, None, partition_key=f"key-{number % KEYS}")
    producer.flush()


def consumers_of_keys(client: Any, topic: str, **options: Any) -> dict[str, set[int]]:
    """Return the one of three Key_Shared consumers that received each key."""
    consumers = [
        client.subscribe(topic, "s", consumer_type=geminga.ConsumerType.KeyShared, consumer_name=f"c{n}")
        for n in range(3)
    ]
    publish_keys(client, topic, **options)
    found: dict[str, set[int]] = defaultdict(set)
    for number, message in drained(*consumers, count=5 * KEYS):
        found[message.partition_key()].add(number)
        consumers[number].acknowledge(message)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batching_enabled": True, "batching_type": geminga.BatchingType.KeyBased},
        {"table": True, "batching_type": geminga.BatchingType.KeyBased},
    ],
    ids=["default", "key-based", "table, key-based"],
)
def test_each_key_goes_to_one_key_shared_consumer(pulsar_client, pulsar_topic, options, caplog):
    with caplog.at_level(logging.INFO, "geminga"):
        found = consumers_of_keys(pulsar_client, pulsar_topic, **options)
    assert len(found) == KEYS
    assert all(len(consumers) == 1 for consumers in found.values())
    assert not [record for record in caplog.records if "KeyBased" in record.getMessage()]


def test_keys_that_share_batches_on_key_shared_are_logged_once(pulsar_client, pulsar_topic, caplog):
    with caplog.at_level(logging.INFO, "geminga"):
        consumers_of_keys(pulsar_client, pulsar_topic, batching_enabled=True)
        publish_keys(pulsar_client, pulsar_topic, batching_enabled=True, producer_name="second")
    advice = [
        record for record in caplog.records if "batching_type=BatchingType.KeyBased" in record.getMessage()
    ]
    (warning,) = advice
    assert warning.levelno == logging.WARNING
    assert pulsar_topic in warning.getMessage()


def test_a_batch_whose_messages_cannot_be_read_is_no_reason_to_stop(pulsar_client, pulsar_topic, caplog):
    """Comparing keys parses metadata that the client has not parsed before."""
    consumer = pulsar_client.subscribe(pulsar_topic, "s", consumer_type=geminga.ConsumerType.KeyShared)
    with pulsar_client.create_producer(pulsar_topic) as producer:
        # payload_size 1, and then a field that is no protobuf.
        single = bytes([0x18, 1, 0x0A, 0x7F])
        message = len(single).to_bytes(4, "big") + single + b"x"
        from geminga.client.publish.columnar_producer import ReadyBatch

        producer.publish_encoded(
            [
                ReadyBatch(
                    partition=0, body=message * 2, count=2, sequence_id=0, highest_sequence_id=1,
                    uncompressed_size=2 * len(message),
                )
            ]
        )  # fmt: skip
        producer.send(b"after", partition_key="k")
    while consumer.receive(30_000).data() != b"after":
        pass


def test_shared_consumers_share_messages(pulsar_client, pulsar_topic):
    consumers = [
        pulsar_client.subscribe(
            pulsar_topic, "s", consumer_type=geminga.ConsumerType.Shared, receiver_queue_size=5
        )
        for _ in range(2)
    ]
    producer = pulsar_client.create_producer(pulsar_topic)
    for number in range(10):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    counts = Counter(number for number, _ in drained(*consumers, count=10))
    assert min(counts[0], counts[1]) > 0


def test_asyncio_sends_in_batches_by_default(pulsar_broker, pulsar_topic):
    async def publish(**options: Any) -> list[int]:
        async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
            producer = await client.create_producer(pulsar_topic, **options)
            ids = await asyncio.gather(*(producer.send(b"x", partition_key="k") for _ in range(5)))
        return [message_id.batch_index() for message_id in ids]

    assert asyncio.run(publish()) == [0, 1, 2, 3, 4]
    assert set(asyncio.run(publish(batching_enabled=False))) == {-1}


async def test_flush_of_asyncio_sends_a_batch_that_waits(pulsar_broker, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(pulsar_topic, batching_max_publish_delay_ms=600_000)
        tasks = [asyncio.create_task(producer.send(b"x")) for _ in range(2)]
        done, _ = await asyncio.wait(tasks, timeout=0.5)
        assert not done
        await producer.flush()
        assert all(task.done() for task in tasks)
        first, second = (task.result() for task in tasks)
    assert (first.ledger_id, first.entry_id) == (second.ledger_id, second.entry_id)
    assert [first.batch_index, second.batch_index] == [0, 1]
