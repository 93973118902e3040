"""Frames with a schema into topics of the embedded broker: registration, versions, delivery times."""

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from doubles import raising
from driven_query import data_source
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from geminga import Client, ConsumerType, InitialPosition
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.client.admin import admin
from geminga.errors import IncompatibleSchema, InvalidConfiguration, InvalidMessage
from geminga.schema import AutoConsumeSchema, AvroSchema, JsonSchema, KeyValueSchema, StringSchema
from geminga.spark.datasource import PulsarDataSource
from geminga.spark.sink.staging import Staging

FLIGHT = StructType().add("tail", StringType()).add("delay", IntegerType()).add("__key", StringType())
ROWS = {"tail": ["a", "b"], "delay": pa.array([5, None], pa.int32()), "__key": ["k", None]}


@pytest.fixture(scope="module", autouse=True)
def deduplicated(pulsar_broker):
    admin(pulsar_broker.admin_url, "POST", "namespaces/public/default/deduplication", True)


@dataclass
class Sink:
    broker: EmbeddedBroker
    topic: str

    def source(self, **options: Any) -> PulsarDataSource:
        return data_source({"service.url": self.broker.service_url, "topic": self.topic, **options})

    def write(self, schema: StructType, rows: dict[str, Any], **options: Any) -> None:
        writer: Any = self.source(**options).writer(schema, False)
        writer.commit([writer.write(iter([pa.record_batch(rows)]))])

    def rows(self, client: Client, count: int) -> list[Any]:
        with client.subscribe(
            self.topic, "s", schema=AutoConsumeSchema(), initial_position=InitialPosition.Earliest
        ) as consumer:
            found = [consumer.receive(30_000) for _ in range(count)]
        return [(message.value(), message.partition_key(), message.int_schema_version()) for message in found]


@pytest.fixture
def sink(pulsar_broker, pulsar_topic):
    return Sink(pulsar_broker, pulsar_topic)


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("partitions", [0, 2])
def test_frames_register_a_schema_and_are_written(sink, pulsar_client, kind, once, partitions, tmp_path):
    if partitions:
        admin(sink.broker.admin_url, "PUT", sink.topic.replace("://", "/") + "/partitions", partitions)
    given = {"valueSchema": kind, "recordName": "Flight", "recordNamespace": "air"}
    if once:
        given.update(exactlyOnce="true", stagingLocation=str(tmp_path))
    sink.write(FLIGHT, ROWS, **given)
    info = pulsar_client.get_schema_info(sink.topic)
    assert (info.schema_type().name, '"air"' in info.schema()) == (kind, True)
    found = sorted(sink.rows(pulsar_client, 2), key=lambda row: row[0]["tail"])
    assert found == [({"tail": "a", "delay": 5}, "k", 0), ({"tail": "b", "delay": None}, "", 0)]


def test_a_frame_with_an_incompatible_schema_is_refused(sink, tmp_path):
    sink.write(FLIGHT, ROWS, valueSchema="AVRO")
    clash = StructType().add("tail", LongType())
    for once in ({}, {"exactlyOnce": "true", "stagingLocation": str(tmp_path)}):
        with pytest.raises(IncompatibleSchema) as caught:
            sink.write(clash, {"tail": [1]}, valueSchema="AVRO", **once)
        assert sink.topic in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert len(sink.source(valueSchema="TOPIC").schema().names) == 2 + 6


def test_frames_are_written_with_the_topics_schema(sink, pulsar_client):
    with pytest.raises(IncompatibleSchema, match="has no schema, which valueSchema=TOPIC requires"):
        sink.write(FLIGHT, ROWS, valueSchema="TOPIC")

    @dataclass
    class Flight:
        tail: str | None
        delay: int | None
        gate: str = "A1"

    pulsar_client.create_producer(sink.topic, schema=JsonSchema(Flight)).close()
    sink.write(FLIGHT, ROWS, valueSchema="TOPIC")
    assert sorted(row[0]["gate"] for row in sink.rows(pulsar_client, 2)) == ["A1", "A1"]
    with pytest.raises(IncompatibleSchema, match=r"valueSchema=TOPIC: .* no field for the column 'more'"):
        sink.write(
            StructType().add("tail", "string").add("delay", "long").add("more", "long"),
            {},
            valueSchema="TOPIC",
        )
    with pytest.raises(InvalidConfiguration, match="set the option topic"):
        PulsarDataSource({"service.url": sink.broker.service_url, "valueschema": "TOPIC"}).writer(
            FLIGHT, False
        )
    pair = KeyValueSchema(StringSchema(), AvroSchema(Flight))
    pulsar_client.create_producer(f"{sink.topic}-pair", schema=pair).close()
    with pytest.raises(IncompatibleSchema, match="of type KEY_VALUE, which frames can't be written as"):
        sink.write(FLIGHT, ROWS, valueSchema="TOPIC", topic=f"{sink.topic}-pair")


def test_staged_rows_keep_the_version_they_were_encoded_with(sink, pulsar_client, tmp_path, monkeypatch):
    """The driver dies before it has published what it decided, and starts again with another column."""
    given = {"valueSchema": "AVRO", "exactlyOnce": "true", "checkpointLocation": str(tmp_path)}
    old: Any = sink.source(**given).streamWriter(FLIGHT, False)
    with monkeypatch.context() as patched:
        patched.setattr(Staging, "staged", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            old.commit([old.write(iter([pa.record_batch(ROWS)]))], 0)
    wider = StructType([*FLIGHT.fields]).add("gate", "string")
    gates = pa.record_batch({**ROWS, "gate": ["A1", "A2"]})
    for epoch in range(2):
        new: Any = sink.source(**given).streamWriter(wider, False)
        new.commit([new.write(iter([gates]))], epoch)
    found = sorted(sink.rows(pulsar_client, 4), key=lambda row: (row[2], row[0]["tail"]))
    assert found == [
        ({"tail": "a", "delay": 5}, "k", 0), ({"tail": "b", "delay": None}, "", 0),
        ({"tail": "a", "delay": 5, "gate": "A1"}, "k", 1),
        ({"tail": "b", "delay": None, "gate": "A2"}, "", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("once", [False, True])
def test_delivery_times_are_respected(sink, pulsar_client, once, tmp_path):
    schema = StructType().add("value", "string").add("__deliverAt", "long")
    given = {"exactlyOnce": "true", "stagingLocation": str(tmp_path)} if once else {}
    # The first write initialises everything that takes long, before times are measured.
    sink.write(schema, {"value": ["first"], "__deliverAt": pa.array([None], pa.int64())}, **given)
    soon = int(time.time() * 1000) + 3000
    rows = {
        "value": ["later", "now", "past", "later too"],
        "__deliverAt": pa.array([soon, None, 1, soon], pa.int64()),
    }
    with pulsar_client.subscribe(sink.topic, "s", ConsumerType.Shared) as consumer:
        sink.write(schema, rows, **given)
        found = [(consumer.receive(30_000).data(), time.time() * 1000) for _ in range(4)]
        assert sorted(data for data, _ in found) == [b"later", b"later too", b"now", b"past"]
        assert all(at >= soon - 10 for data, at in found if data.startswith(b"later"))
        # On a busy machine the first two may arrive when all are due.
        assert found[1][1] >= soon or sorted(data for data, _ in found[:2]) == [b"now", b"past"]
    with pytest.raises(InvalidMessage, match="deliver_at -1 ms lies before 1970"):
        sink.write(schema, {"value": ["x"], "__deliverAt": pa.array([-1], pa.int64())}, **given)
