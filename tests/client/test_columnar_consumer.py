"""Receiving and acknowledging Arrow tables."""

import threading
from typing import Any

import cramjam
import pytest
from insides import group_of
from published import backlog
from waiting import eventually, never

import geminga
import geminga.asyncio
from geminga import CompressionType, ConsumerType, InitialPosition
from geminga.client.admin import admin
from geminga.errors import InvalidConfiguration, Timeout
from geminga.wire.message_runs import MessageRun

pa = pytest.importorskip("pyarrow")


def publish(client: Any, topic: str, count: int, start: int = 0, **options: Any) -> list[bytes]:
    values = [b"%d" % number for number in range(start, start + count)]
    if options.get("batching_enabled"):  # one batch, however slow the machine is
        options = {"batching_max_publish_delay_ms": 60_000, **options}
    with client.create_producer(topic, **options) as producer:
        for number, value in enumerate(values):
            producer.send_async(value, None, partition_key=f"k{number % 3}", event_timestamp=1000 + number)
        producer.flush()
    return values


def collect(consumer: Any, count: int, **options: Any) -> Any:
    tables = []
    while sum(table.num_rows for table in tables) < count:
        tables.append(consumer.receive_table(timeout_millis=30_000, **options))
    return pa.concat_tables([table.unify_dictionaries() for table in tables]), tables


@pytest.mark.parametrize("compression", list(CompressionType))
@pytest.mark.parametrize("batched", [True, False])
def test_tables(pulsar_broker, pulsar_client, pulsar_topic, compression, batched):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    values = publish(pulsar_client, pulsar_topic, 300, compression_type=compression, batching_enabled=batched)
    table, parts = collect(consumer, 300)
    assert table.column("value").to_pylist() == values
    assert table.column("key").to_pylist() == [f"k{n % 3}" for n in range(300)]
    assert set(table.column("topic").to_pylist()) == {pulsar_topic}
    for part in parts:
        consumer.acknowledge_table(part)
    eventually(lambda: backlog(pulsar_broker, pulsar_topic) == 0)


def test_chosen_columns_and_rows(pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    publish(pulsar_client, pulsar_topic, 100, batching_enabled=False)
    table = consumer.receive_table(max_rows=10, timeout_millis=30_000, columns=["value", "key"])
    assert table.column_names == ["value", "key"]
    assert 1 <= table.num_rows <= 10
    consumer.acknowledge_table(table)
    rest, _ = collect(consumer, 100 - table.num_rows, max_rows=7)
    assert table.num_rows + rest.num_rows == 100


def test_only_the_acknowledged_rows_are_done(pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    values = publish(pulsar_client, pulsar_topic, 20, batching_enabled=False)
    table, _ = collect(consumer, 20)
    consumer.acknowledge_table(table.slice(0, 12))
    consumer.close()
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    table, _ = collect(consumer, 8)
    assert table.column("value").to_pylist() == values[12:]
    with pytest.raises(InvalidConfiguration, match="ledger_id"):
        consumer.acknowledge_table(table.select(["value"]))


def test_parts_of_a_batch_complete_it(pulsar_broker, pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    publish(pulsar_client, pulsar_topic, 10)
    table, _ = collect(consumer, 10)
    consumer.acknowledge_table(table.slice(0, 4))
    never(lambda: backlog(pulsar_broker, pulsar_topic) == 0, 0.2)
    consumer.acknowledge_table(table.slice(4))
    eventually(lambda: backlog(pulsar_broker, pulsar_topic) == 0)


def test_rows_and_tables_mixed(pulsar_broker, pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    values = publish(pulsar_client, pulsar_topic, 30)
    first = [consumer.receive(30_000) for _ in range(4)]
    table, parts = collect(consumer, 26)
    assert [m.data() for m in first] + table.column("value").to_pylist() == values
    more = publish(pulsar_client, pulsar_topic, 6, start=30)
    messages = [consumer.receive(30_000) for _ in range(6)]
    assert [m.data() for m in messages] == more
    for message in [*first, *messages]:
        consumer.acknowledge(message)
    for part in parts:
        consumer.acknowledge_table(part)
    eventually(lambda: backlog(pulsar_broker, pulsar_topic) == 0)


def test_partitions(pulsar_broker, pulsar_client, pulsar_topic):
    admin(pulsar_broker.admin_url, "PUT", pulsar_topic.replace("://", "/") + "/partitions", 3)
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    values = publish(pulsar_client, pulsar_topic, 60)
    table, parts = collect(consumer, 60)
    assert sorted(table.column("value").to_pylist()) == sorted(values)
    for part in parts:
        consumer.acknowledge_table(part.slice(0))
    consumer.close()
    again = pulsar_client.subscribe(pulsar_topic, "s")
    with pytest.raises(Timeout):
        again.receive_table(timeout_millis=200)


def test_chunked_messages(pulsar_broker, pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    payload = bytes(range(256)) * 500
    with pulsar_client.create_producer(
        pulsar_topic, chunking_enabled=True, batching_enabled=False, chunk_max_message_size=20_000,
        compression_type=CompressionType.ZSTD,
    ) as producer:  # fmt: skip
        producer.send(payload)
    (table,) = collect(consumer, 1)[1]
    assert table.column("value").to_pylist() == [payload]
    consumer.acknowledge_table(table)
    eventually(lambda: backlog(pulsar_broker, pulsar_topic) == 0)


def test_empty_and_timeout(pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    with pytest.raises(Timeout):
        consumer.receive_table(timeout_millis=50)
    with pytest.raises(InvalidConfiguration, match="max_rows"):
        consumer.receive_table(max_rows=0)


def test_a_damaged_entry_is_left_out(pulsar_client, pulsar_topic, monkeypatch):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    group_of(consumer).receive_whole_entries()
    handle = next(iter(group_of(consumer).handles.values()))
    original = handle.consumer.receive

    def damage(received: Any, now: float, now_ms: int) -> None:
        for frame in received.frames() if isinstance(received, MessageRun) else [received]:
            if frame.entry_id == 1:
                broken = bytearray(frame.entry)
                broken[-1] ^= 1
                frame.entry = bytes(broken)
            original(frame, now, now_ms)

    monkeypatch.setattr(handle.consumer, "receive", damage)
    publish(pulsar_client, pulsar_topic, 3, batching_enabled=False)
    table, _ = collect(consumer, 2)
    assert table.column("value").to_pylist() == [b"0", b"2"]


def test_a_consumer_acknowledges_part_of_a_batch_that_another_received(
    pulsar_broker, pulsar_client, pulsar_topic
):
    """Another process received the table, and another consumer acknowledges a part of it: messages outside
    that part stay unacknowledged."""
    consumer = pulsar_client.subscribe(pulsar_topic, "s", ConsumerType.Shared)
    values = publish(pulsar_client, pulsar_topic, 10, batching_enabled=True)
    table, _ = collect(consumer, 10)
    assert table.column("batch_size").to_pylist() == [10] * 10
    other = pulsar_client.subscribe(pulsar_topic, "s", ConsumerType.Shared, receiver_queue_size=0)
    with pytest.raises(InvalidConfiguration, match="batch_size"):
        other.acknowledge_table(table.slice(3).drop_columns(["batch_size"]))
    other.acknowledge_table(table.slice(0, 3))
    other.close()
    consumer.close()
    assert backlog(pulsar_broker, pulsar_topic) > 0
    again = pulsar_client.subscribe(pulsar_topic, "s", ConsumerType.Shared)
    assert {again.receive(30_000).data() for _ in range(7)} == set(values[3:])
    again.acknowledge_table(table)
    eventually(lambda: backlog(pulsar_broker, pulsar_topic) == 0)


def test_rows_redelivered_too_often_go_to_the_dead_letter_topic(pulsar_broker, pulsar_client, pulsar_topic):
    """The rows of a table without those that were acknowledged."""
    dead = pulsar_client.subscribe(f"{pulsar_topic}-s-DLQ", "d")
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", ConsumerType.Shared, dead_letter_policy=geminga.ConsumerDeadLetterPolicy(1)
    )
    values = publish(pulsar_client, pulsar_topic, 5, batching_enabled=True)
    table = consumer.receive_table(5, timeout_millis=30_000)
    consumer.acknowledge_table(table.slice(0, 2))
    consumer.redeliver_unacknowledged_messages()
    assert consumer.receive_table(5, timeout_millis=30_000).column("value").to_pylist() == values[2:]
    consumer.redeliver_unacknowledged_messages()
    letters = [dead.receive(30_000) for _ in range(3)]
    assert [letter.data() for letter in letters] == values[2:]
    assert {letter.properties()["REAL_TOPIC"] for letter in letters} == {pulsar_topic}
    with pytest.raises(Timeout):
        consumer.receive_table(5, timeout_millis=50)
    eventually(lambda: backlog(pulsar_broker, pulsar_topic) == 0)


@pytest.mark.parametrize("table", [False, True])
def test_messages_that_a_broken_codec_cannot_read_are_redelivered(monkeypatch, table):
    refused = threading.Event()

    def refuse(data: bytes, size: int) -> bytes:
        refused.set()
        raise cramjam.DecompressionError("buffer isn't large enough to hold decompressed data")

    def received(broker: geminga.EmbeddedBroker, timeout_millis: int) -> int:
        with broker.client() as client:
            consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
            try:
                if table:  # without rows, unless the entry was refused before this call
                    return int(consumer.receive_table(timeout_millis=timeout_millis).num_rows)
                return len([consumer.receive(timeout_millis) for _ in range(3)])
            except Timeout:
                return 0

    with geminga.embedded() as broker:
        with broker.client() as client:
            producer = client.create_producer(
                "t", compression_type=CompressionType.LZ4, batching_enabled=True,
                batching_max_publish_delay_ms=60_000,
            )  # fmt: skip
            for _ in range(3):
                producer.send_async(b"x" * 100, None)
            producer.flush()
        with monkeypatch.context() as broken:
            broken.setattr("geminga.wire.compression._DECOMPRESSORS", (refuse,) * 5)
            while not refused.is_set():
                assert received(broker, 50) == 0
        assert received(broker, 30_000) == 3


ODD = {b"1", b"3", b"5", b"7", b"9"}


def with_pandas(table: pa.Table) -> Any:
    frame = pytest.importorskip("pandas") and table.to_pandas()
    return pa.Table.from_pandas(frame[frame["value"].map(lambda value: int(value) % 2 == 1)])


def with_polars(table: pa.Table) -> Any:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(table)
    return frame.filter(polars.col("value").cast(polars.String).cast(polars.Int64) % 2 == 1).to_arrow()


def with_duckdb(table: pa.Table) -> Any:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("messages", table)
    return connection.sql("SELECT * FROM messages WHERE decode(value)::INT % 2 = 1").to_arrow_table()


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "alone"])
@pytest.mark.parametrize("odd_of", [with_pandas, with_polars, with_duckdb])
def test_filtered_rows_of_a_frame_are_acknowledged(pulsar_client, pulsar_topic, odd_of, batched):
    options: Any = {"initial_position": InitialPosition.Earliest, "batch_index_ack_enabled": True}
    consumer = pulsar_client.subscribe(pulsar_topic, "s", ConsumerType.Shared, **options)
    with pulsar_client.create_producer(pulsar_topic, batching_enabled=batched) as producer:
        producer.send_many([b"%d" % number for number in range(10)])
    rows, tables = 0, []
    while rows < 10:
        tables.append(consumer.receive_table(timeout_millis=60_000))
        rows += tables[-1].num_rows
    odd = odd_of(pa.concat_tables(tables))
    assert set(odd["value"].to_pylist()) == ODD
    consumer.acknowledge_table(odd)
    consumer.close()
    again = pulsar_client.subscribe(pulsar_topic, "s", ConsumerType.Shared, **options)
    left = {again.receive(60_000).data() for _ in range(5)}
    assert left == {b"%d" % number for number in range(10)} - ODD
