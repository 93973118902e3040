"""The at-least-once writers without Spark around them."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, MapType, StringType, StructType, TimestampType

from geminga import MessageId
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.errors import InvalidConfiguration, InvalidMessage, MessageTooBig
from geminga.spark.options import write_options
from geminga.spark.sink.exactly_once import ExactlyOnceWriter
from geminga.spark.sink.frames import TABLE_ROWS, OutgoingFrame, by_topic
from geminga.spark.sink.writing import PulsarStreamWriter, PulsarWriter, stream_writer

VALUE = StructType().add("value", BinaryType())


def options(broker: EmbeddedBroker, **given: str) -> Any:
    return write_options({"service.url": broker.service_url, **given})


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    for size in sizes:
        yield pa.record_batch({"value": pa.array([b"v"] * size, pa.binary())})


def test_small_batches_are_combined():
    frame = OutgoingFrame(write_options({"service.url": "pulsar://nowhere:1", "topic": "t"}), VALUE)
    assert [t.num_rows for t in frame.tables(batches(1, 0, 2, 3))] == [6]
    assert [t.num_rows for t in frame.tables(batches(TABLE_ROWS - 1, 5, 7))] == [TABLE_ROWS + 4, 7]
    assert list(frame.tables(batches(0))) == []


def test_rows_are_split_by_topic():
    table = pa.table({"value": ["1", "2", "3"], "topic": ["a", "b", "a"]})
    found = {topic: part.column("value").to_pylist() for topic, part in by_topic(table, None)}
    assert found == {"persistent://public/default/a": ["1", "3"], "persistent://public/default/b": ["2"]}
    assert [topic for topic, _ in by_topic(table, "x")] == ["x"]
    with pytest.raises(InvalidMessage, match="a row has no __topic"):
        list(by_topic(pa.table({"value": ["1"], "topic": pa.array([None], pa.string())}), None))
    with pytest.raises(InvalidMessage, match="column __topic: topic name 'a/b' has 2 parts"):
        list(by_topic(pa.table({"value": ["1"], "topic": ["a/b"]}), None))
    many = [f"t{number}" for number in range(1001)]
    with pytest.raises(InvalidMessage, match="name 1001 topics"):
        list(by_topic(pa.table({"value": many, "topic": many}), None))


@pytest.mark.parametrize("writer", [PulsarWriter, PulsarStreamWriter])
def test_everything_is_published_before_the_task_ends(writer, pulsar_broker, pulsar_client, pulsar_topic):
    schema = (
        StructType().add("value", StringType()).add("__key", BinaryType()).add("__eventTime", TimestampType())
        .add("__messageProperties", MapType(StringType(), StringType()))
    )  # fmt: skip
    batch = pa.record_batch(
        {
            "value": pa.array(["a", None]),
            "__key": pa.array([b"k", None], pa.binary()),
            "__eventTime": pa.array([1_600_000_000_123_456, None], pa.timestamp("us", tz="UTC")),
            "__messageProperties": pa.array([[("p", "q")], None], pa.map_(pa.string(), pa.string())),
        }
    )
    writer(options(pulsar_broker, topic=pulsar_topic, compression="LZ4"), schema).write(iter([batch]))
    reader = pulsar_client.create_reader(pulsar_topic, MessageId.earliest)
    messages = [reader.read_next(30_000) for _ in range(2)]
    by_value = {message.data(): message for message in messages}
    first = by_value[b"a"]
    assert (first.partition_key(), first.event_timestamp()) == ("k", 1_600_000_000_123)
    assert first.properties() == {"p": "q"}
    assert by_value[b""].properties() == {}
    reader.close()


def test_a_task_without_rows_does_not_connect():
    nowhere = write_options({"service.url": "pulsar://127.0.0.1:1", "topic": "t"})
    PulsarWriter(nowhere, VALUE).write(batches(0))


def test_a_message_that_is_too_big_fails_the_task(pulsar_broker, pulsar_topic):
    batch = pa.record_batch({"value": pa.array([b"x" * (6 << 20)], pa.binary())})
    with pytest.raises(MessageTooBig) as caught:
        PulsarWriter(options(pulsar_broker, topic=pulsar_topic), VALUE).write(iter([batch]))
    assert caught.value.__notes__[0].startswith(f"{pulsar_topic}: the sink makes no chunks")


def test_options_choose_the_writer(pulsar_broker):
    assert isinstance(stream_writer(options(pulsar_broker, topic="t"), VALUE), PulsarStreamWriter)
    exact = options(pulsar_broker, topic="t", exactlyOnce="true", checkpointLocation="/tmp/c")
    assert isinstance(stream_writer(exact, VALUE), ExactlyOnceWriter)
    with pytest.raises(InvalidConfiguration, match="no column 'value'"):
        PulsarWriter(options(pulsar_broker, topic="t"), StructType().add("__key", StringType()))
