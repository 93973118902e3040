"""Our client against a real Apache Pulsar 4.0.4, with pulsar-client as the witness in both directions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

import geminga
from geminga.testing.apache_pulsar import ApachePulsar

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

COMPRESSIONS = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")
Topic = Callable[[str], str]


@pytest.fixture(scope="module")
def ours(apache_pulsar: ApachePulsar) -> Iterator[geminga.Client]:
    with geminga.Client(apache_pulsar.service_url) as client:
        yield client


@pytest.fixture(scope="module")
def witness(apache_pulsar: ApachePulsar) -> Iterator[Any]:
    client = pulsar.Client(apache_pulsar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    yield client
    client.close()


def _receive(consumer: Any, count: int) -> list[bytes]:
    received = []
    for _ in range(count):
        message = consumer.receive(20_000)
        received.append(bytes(message.data()))
        consumer.acknowledge(message)
    return received


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("batching", [True, False])
def test_the_witness_reads_what_we_publish(
    ours: geminga.Client, witness: Any, topic: Topic, compression: str, batching: bool
) -> None:
    name = topic("publish")
    consumer = witness.subscribe(name, "witness", initial_position=pulsar.InitialPosition.Earliest)
    producer = ours.create_producer(
        name, compression_type=geminga.CompressionType[compression], batching_enabled=batching
    )
    sent = [f"message {i} ".encode() * (1 + i % 7) for i in range(250)]
    results: list[Any] = []
    for i, content in enumerate(sent):
        producer.send_async(
            content,
            lambda result, message_id: results.append((result, message_id)),
            properties={"index": str(i)},
            partition_key=f"key-{i % 5}",
            event_timestamp=1_700_000_000_000 + i,
        )
    producer.flush()
    assert [r for r, _ in results] == [geminga.Result.Ok] * len(sent)
    for i, content in enumerate(sent):
        message = consumer.receive(20_000)
        assert message.data() == content
        assert message.properties() == {"index": str(i)}
        assert message.partition_key() == f"key-{i % 5}"
        assert message.event_timestamp() == 1_700_000_000_000 + i
        consumer.acknowledge(message)
    producer.close()
    consumer.close()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_we_read_what_the_witness_publishes(
    ours: geminga.Client, witness: Any, topic: Topic, compression: str
) -> None:
    name = topic("receive")
    consumer = ours.subscribe(name, "ours", initial_position=geminga.InitialPosition.Earliest)
    producer = witness.create_producer(
        name, compression_type=getattr(pulsar.CompressionType, compression), batching_enabled=True
    )
    sent = [f"message {i}".encode() for i in range(300)]
    for i, content in enumerate(sent):
        producer.send_async(content, lambda *_: None, properties={"i": str(i)}, partition_key=f"k{i}")
    producer.flush()
    for i, content in enumerate(sent):
        message = consumer.receive(20_000)
        assert message.data() == content
        assert message.properties() == {"i": str(i)}
        assert message.partition_key() == f"k{i}"
        consumer.acknowledge(message)
    consumer.close()
    producer.close()


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_subscription_types(ours: geminga.Client, topic: Topic, kind: str) -> None:
    name = topic("types")
    consumers = [
        ours.subscribe(name, "s", consumer_type=geminga.ConsumerType[kind], consumer_name=f"c{i}")
        for i in range(1 if kind == "Exclusive" else 2)
    ]
    with ours.create_producer(name) as producer:
        for i in range(100):
            producer.send(f"{i}".encode(), partition_key=f"k{i % 10}")
    received: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(received) < 100 and time.monotonic() < deadline:
        for consumer in consumers:
            try:
                message = consumer.receive(50)
            except geminga.Timeout:
                continue
            received.append(bytes(message.data()))
            consumer.acknowledge(message)
    assert sorted(received, key=int) == [f"{i}".encode() for i in range(100)]
    for consumer in consumers:
        consumer.close()


def test_acknowledged_messages_stay_acknowledged(ours: geminga.Client, topic: Topic) -> None:
    name = topic("acks")
    consumer = ours.subscribe(name, "s", initial_position=geminga.InitialPosition.Earliest)
    with ours.create_producer(name) as producer:
        for i in range(20):
            producer.send(f"{i}".encode())
    messages = [consumer.receive(10_000) for _ in range(20)]
    consumer.acknowledge_cumulative(messages[9])
    for index in (11, 13):
        consumer.acknowledge(messages[index])
    consumer.close()
    again = ours.subscribe(name, "s")
    left = _receive(again, 8)
    assert left == [f"{i}".encode() for i in range(10, 20) if i not in (11, 13)]
    again.close()


def test_partitioned_topics_and_keys(
    ours: geminga.Client, witness: Any, apache_pulsar: ApachePulsar, topic: Topic
) -> None:
    """Every key lands on the partition where pulsar-client puts it."""
    name = topic("partitioned")
    made = apache_pulsar.tool("pulsar-admin", "topics", "create-partitioned-topic", "-p", "4", name)
    assert made.returncode == 0, made.stderr
    assert len(ours.get_topic_partitions(name)) == 4
    places: dict[str, set[int]] = {}
    for library, client in (("ours", ours), ("witness", witness)):
        producer = client.create_producer(name)
        for i in range(40):
            message_id = producer.send(library.encode(), partition_key=f"key-{i}")
            partition = message_id.partition() if callable(message_id.partition) else message_id.partition
            places.setdefault(f"key-{i}", set()).add(partition)
        producer.close()
    assert {len(where) for where in places.values()} == {1}
    consumer = ours.subscribe(name, "all", initial_position=geminga.InitialPosition.Earliest)
    assert sorted(_receive(consumer, 80)) == [b"ours"] * 40 + [b"witness"] * 40
    consumer.close()


def test_reader_and_seek(ours: geminga.Client, topic: Topic) -> None:
    name = topic("reader")
    with ours.create_producer(name) as producer:
        ids = [producer.send(f"{i}".encode()) for i in range(10)]
    reader = ours.create_reader(name, geminga.MessageId.earliest)
    assert [bytes(reader.read_next(10_000).data()) for _ in range(10)] == [f"{i}".encode() for i in range(10)]
    assert not reader.has_message_available()
    reader.seek(ids[4])
    assert bytes(reader.read_next(10_000).data()) in (b"4", b"5")
    reader.close()
    reader = ours.create_reader(name, ids[6])
    assert bytes(reader.read_next(10_000).data()) == b"7"
    reader.close()


def test_negative_acknowledgement_comes_back(ours: geminga.Client, topic: Topic) -> None:
    name = topic("nack")
    consumer = ours.subscribe(
        name, "s", consumer_type=geminga.ConsumerType.Shared, negative_ack_redelivery_delay_ms=200
    )
    with ours.create_producer(name) as producer:
        producer.send(b"again")
    first = consumer.receive(10_000)
    consumer.negative_acknowledge(first)
    second = consumer.receive(10_000)
    assert second.data() == b"again"
    assert second.redelivery_count() == 1
    consumer.acknowledge(second)
    consumer.close()


def test_columns(ours: geminga.Client, witness: Any, topic: Topic) -> None:
    import pyarrow as pa

    name = topic("columns")
    consumer = ours.subscribe(name, "columns", initial_position=geminga.InitialPosition.Earliest)
    other = witness.subscribe(name, "witness", initial_position=pulsar.InitialPosition.Earliest)
    values = [f"row {i}".encode() for i in range(5_000)]
    table = pa.table(
        {"value": pa.array(values, pa.binary()), "key": pa.array([f"k{i % 17}" for i in range(5_000)])}
    )
    with ours.create_producer(name, compression_type=geminga.CompressionType.ZSTD) as producer:
        producer.send_table(table)
    seen = 0
    while seen < len(values):
        part = consumer.receive_table(timeout_millis=20_000)
        assert part.column("value").to_pylist() == values[seen : seen + part.num_rows]
        consumer.acknowledge_table(part)
        seen += part.num_rows
    for i, value in enumerate(values):
        message = other.receive(20_000)
        assert (message.data(), message.partition_key()) == (value, f"k{i % 17}")
        other.acknowledge(message)
    consumer.close()
    other.close()


def test_errors_have_the_names_of_the_broker(ours: geminga.Client, topic: Topic) -> None:
    name = topic("busy")
    holder = ours.subscribe(name, "s")
    with pytest.raises(geminga.exceptions.ConsumerBusy):
        ours.subscribe(name, "s")
    holder.close()
    with pytest.raises(geminga.exceptions.PulsarException):
        ours.create_producer("persistent://no-such-tenant/nowhere/t")


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.05)


class _Parts:
    """What a consumer hears of its part."""

    def __init__(self) -> None:
        self.heard: list[bool] = []

    def became_active(self, consumer: Any, partition: int) -> None:
        self.heard.append(True)

    def became_inactive(self, consumer: Any, partition: int) -> None:
        self.heard.append(False)


def test_failover_goes_by_priority_and_is_told(ours: geminga.Client, topic: Topic) -> None:
    """The level with the smaller number is active, whoever came first."""
    name, low, high = topic("failover"), _Parts(), _Parts()
    options: Any = {"initial_position": geminga.InitialPosition.Earliest}
    second = ours.subscribe(
        name, "s", geminga.ConsumerType.Failover, consumer_name="b", priority_level=1,
        event_listener=low, **options,
    )  # fmt: skip
    _eventually(lambda: low.heard[-1:] == [True])
    first = ours.subscribe(
        name, "s", geminga.ConsumerType.Failover, consumer_name="a", priority_level=0,
        event_listener=high, **options,
    )  # fmt: skip
    _eventually(lambda: high.heard[-1:] == [True] and low.heard[-1:] == [False])
    with ours.create_producer(name) as producer:
        for number in range(4):
            producer.send(b"%d" % number)
    assert _receive(first, 2) == [b"0", b"1"]
    first.close()
    _eventually(lambda: low.heard[-1:] == [True])
    assert _receive(second, 2) == [b"2", b"3"]
    second.close()


def test_statistics_of_a_consumer(ours: geminga.Client, topic: Topic) -> None:
    consumer = ours.subscribe(
        topic("statistics"), "s", geminga.ConsumerType.Shared, receiver_queue_size=10,
        broker_consumer_stats_cache_time_ms=0,
    )  # fmt: skip
    with ours.create_producer(consumer.topic()) as producer:
        for number in range(5):
            producer.send(b"%d" % number)
    consumer.acknowledge([consumer.receive(20_000) for _ in range(2)])
    # The broker counts a message as soon as it sends it: it may still be on its way to the queue.
    _eventually(lambda: consumer.stats().unacknowledged_messages == 3)
    _eventually(lambda: consumer.stats().waiting_messages == 3)
    stats = consumer.stats()
    assert not stats.blocked
    assert stats.available_permits > 0
    consumer.close()
