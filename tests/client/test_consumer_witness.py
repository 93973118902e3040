"""The official client publishes, our consumers read: what it can vary, we must understand."""

import random
from typing import Any

import pytest

import geminga
from geminga import InitialPosition, MessageId

pulsar = pytest.importorskip("pulsar", reason="needs the official client: pip install pulsar-client")
pytestmark = pytest.mark.witness

EARLIEST = InitialPosition.Earliest
COMPRESSIONS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]


@pytest.fixture
def official(pulsar_broker):
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(pulsar_broker.service_url, operation_timeout_seconds=10, logger=logger)
    yield client
    client.close()


def payloads(count: int) -> list[bytes]:
    source = random.Random(5)
    return [bytes(source.choices(b"abcdef", k=source.choice([0, 1, 100, 3000]))) for _ in range(count)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("batched", [True, False])
def test_every_compression(official, pulsar_client, pulsar_topic, compression, batched):
    consumer = pulsar_client.subscribe(pulsar_topic, "s", initial_position=EARLIEST)
    tables = pulsar_client.subscribe(pulsar_topic, "t", initial_position=EARLIEST)
    values = payloads(60)
    producer = official.create_producer(
        pulsar_topic, compression_type=getattr(pulsar.CompressionType, compression),
        batching_enabled=batched, batching_max_messages=25,
    )  # fmt: skip
    for number, value in enumerate(values):
        producer.send_async(
            value, None, properties={"n": str(number), "ü": "ß"}, partition_key=f"key {number % 4}",
            event_timestamp=1_700_000_000_000 + number, ordering_key=f"o{number}",
        )  # fmt: skip
    producer.flush()
    for number, value in enumerate(values):
        message = consumer.receive(30_000)
        assert message.data() == value
        assert message.properties() == {"n": str(number), "ü": "ß"}
        assert message.partition_key() == f"key {number % 4}"
        assert message.ordering_key() == f"o{number}"
        assert message.event_timestamp() == 1_700_000_000_000 + number
        assert message.producer_name() == producer.producer_name()
        assert (message.message_id().batch_index >= 0) is batched
        consumer.acknowledge(message)
    rows: list[Any] = []
    while len(rows) < 60:
        table = tables.receive_table(timeout_millis=30_000)
        rows += table.to_pylist()
        tables.acknowledge_table(table)
    assert [row["value"] for row in rows] == values
    assert [row["key"] for row in rows] == [f"key {n % 4}" for n in range(60)]
    assert dict(rows[7]["properties"]) == {"n": "7", "ü": "ß"}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_chunks(official, pulsar_client, pulsar_topic, compression):
    consumer = pulsar_client.subscribe(pulsar_topic, "s", initial_position=EARLIEST)
    value = random.Random(1).randbytes(12 * 1024 * 1024)
    producer = official.create_producer(
        pulsar_topic, chunking_enabled=True, batching_enabled=False,
        compression_type=getattr(pulsar.CompressionType, compression),
    )  # fmt: skip
    producer.send(value)
    message = consumer.receive(30_000)
    assert message.data() == value
    assert message.message_id().first_chunk is not None
    consumer.acknowledge(message)


def test_key_based_batches_and_null_values(official, pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", geminga.ConsumerType.KeyShared, initial_position=EARLIEST
    )
    producer = official.create_producer(
        pulsar_topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_messages=30,
    )
    for number in range(30):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 3}")
    producer.flush()
    seen: dict[str, list[int]] = {}
    for _ in range(30):
        message = consumer.receive(30_000)
        seen.setdefault(message.partition_key(), []).append(int(message.data()))
        consumer.acknowledge(message)
    assert seen == {f"k{k}": list(range(k, 30, 3)) for k in range(3)}


def test_message_ids_travel_between_the_clients(official, pulsar_client, pulsar_topic):
    producer = official.create_producer(pulsar_topic, batching_enabled=True, batching_max_messages=10)
    for number in range(20):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    theirs = official.subscribe(pulsar_topic, "theirs", initial_position=pulsar.InitialPosition.Earliest)
    ours = pulsar_client.create_reader(pulsar_topic, MessageId.earliest)
    for _ in range(20):
        our_id, their_id = ours.read_next(30_000).message_id(), theirs.receive(30_000).message_id()
        assert str(our_id) == str(their_id)
        assert MessageId.deserialize(their_id.serialize()) == our_id
        assert pulsar.MessageId.deserialize(our_id.serialize()) == their_id
    middle = MessageId.deserialize(their_id.serialize())
    reader = pulsar_client.create_reader(pulsar_topic, middle, start_message_id_inclusive=True)
    assert reader.read_next(30_000).data() == b"19"


def test_both_clients_share_a_subscription(official, pulsar_client, pulsar_topic):
    ours = pulsar_client.subscribe(pulsar_topic, "s", geminga.ConsumerType.Shared, receiver_queue_size=5)
    theirs = official.subscribe(pulsar_topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=5)
    producer = official.create_producer(pulsar_topic)
    for number in range(40):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    seen: list[bytes] = []
    mine = 0
    while len(seen) < 40:
        for consumer, timeout in ((ours, geminga.Timeout), (theirs, pulsar.Timeout)):
            try:
                message = consumer.receive(100)
            except timeout:
                continue
            seen.append(message.data())
            mine += consumer is ours
            consumer.acknowledge(message)
    assert sorted(seen, key=int) == [b"%d" % number for number in range(40)]
    assert 0 < mine < 40
