"""Spark's columns and Apache Pulsar's registry: what official clients write is read by columns, and back."""

import json
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from geminga import Client
from geminga.errors import IncompatibleSchema
from geminga.spark.datasource import PulsarDataSource
from geminga.testing.apache_pulsar import ApachePulsar

pulsar = pytest.importorskip("pulsar")
import pulsar.schema as official  # noqa: E402

pytestmark = pytest.mark.interop


class Part(official.Record):
    x = official.Integer(required=True)
    words = official.Array(official.String())


class Reading(official.Record):
    id = official.Long(required=True)
    name = official.String()
    part = Part()
    marks = official.Map(official.Double())


class Later(official.Record):
    id = official.Long(required=True)
    name = official.String()
    part = Part()
    marks = official.Map(official.Double())
    place = official.String(default="Oslo", required=True, required_default=True)


Later.__name__ = "Reading"


@pytest.fixture(scope="module")
def client(apache_pulsar):
    with Client(apache_pulsar.service_url) as found:
        yield found


def source(broker: ApachePulsar, topic: str, **options: Any) -> PulsarDataSource:
    given = {"service.url": broker.service_url, "topic": topic, "valueSchema": "TOPIC", **options}
    return PulsarDataSource({name.lower(): str(value) for name, value in given.items()})


def rows(broker: ApachePulsar, topic: str, **options: Any) -> list[dict[str, Any]]:
    found = source(broker, topic, **options)
    reader = found.reader(found.schema())
    read = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return [{name: row[name] for name in row if not name.startswith("__")} for row in read]


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
def test_values_written_by_pulsar_client_are_read_as_columns(apache_pulsar, topic, kind):
    name = topic("spark-schema")
    codec = getattr(official, kind)
    outside = pulsar.Client(apache_pulsar.service_url)
    try:
        producer = outside.create_producer(name, schema=codec(Reading))
        producer.send(Reading(id=1, name="ä", part=Part(x=5, words=["a", "b"]), marks={"k": 0.5}))
        # It writes no null for a record.
        producer.send(Reading(id=2, part=Part(x=6)))
        later = outside.create_producer(name, schema=codec(Later))
        later.send(Later(id=3, part=Part(x=6), place="Bergen"))
    finally:
        outside.close()
    first, second, third = rows(apache_pulsar, name)
    assert (first["id"], first["name"], first["part"]) == (1, "ä", {"x": 5, "words": ["a", "b"]})
    assert dict(first["marks"]) == {"k": 0.5}
    assert (second["id"], second["name"], second["part"]) == (2, None, {"x": 6, "words": None})
    assert [row["place"] for row in (first, second, third)] == ["Oslo", "Oslo", "Bergen"]


RECORD = {
    "type": "record", "name": "Reading",
    "fields": [{"name": "x", "type": "int"}, {"name": "text", "type": ["null", "string"], "default": None}],
}  # fmt: skip


@pytest.fixture
def tool(apache_pulsar, tool_of):
    return partial(tool_of(apache_pulsar), "pulsar-client")


@pytest.mark.parametrize("encoding", ["inline", "separated"])
def test_key_value_pairs_written_by_java_are_read_as_columns(apache_pulsar, topic, tool, tmp_path, encoding):
    name = topic("spark-pairs")
    path = tmp_path / "message"
    path.write_bytes(b'{"x": 5, "text": "t"}')
    tool(
        "produce", name, "-ks", "string", "-vs", f"json:{json.dumps(RECORD)}", "-kvet", encoding,
        "-kvk", "the key", "-f", str(path),
    )  # fmt: skip
    assert rows(apache_pulsar, name) == [{"key": "the key", "value": {"x": 5, "text": "t"}}]


FRAME = (
    StructType()
    .add("id", "long")
    .add("part", StructType().add("x", "integer").add("words", ArrayType(StringType())))
    .add("marks", MapType(StringType(), StringType()))
)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_data_frames_are_read_by_java_and_pulsar_client(apache_pulsar, client, topic, tool, kind):
    name = topic("spark-frame")
    outside = pulsar.Client(apache_pulsar.service_url)
    try:
        outside.subscribe(name, "java").close()
        consumer = outside.subscribe(name, "s")
        writer: Any = source(apache_pulsar, name, valueSchema=kind).writer(FRAME, False)
        row = {"id": 7, "part": {"x": 5, "words": ["a"]}, "marks": {"k": "v"}}
        schema = pa.schema(
            [
                ("id", pa.int64()),
                ("part", pa.struct([("x", pa.int32()), ("words", pa.list_(pa.string()))])),
                ("marks", pa.map_(pa.string(), pa.string())),
            ]
        )
        writer.write(iter([pa.RecordBatch.from_pylist([{**row, "marks": [("k", "v")]}], schema)]))
        payload = consumer.receive(60_000).data()
        if kind == "AVRO":
            info = client.get_schema_info(name)
            read = official.AvroSchema(None, json.loads(info.data)).decode(payload)
        else:
            read = json.loads(payload)
        assert read == row
    finally:
        outside.close()
    assert "id=7" in tool("consume", name, "-s", "java", "-n", "1", "-st", "auto_consume", "-p", "Earliest")
    clash = StructType().add("id", "string")
    wrong: Any = source(apache_pulsar, name, valueSchema=kind).writer(clash, False)
    with pytest.raises(IncompatibleSchema) as caught:
        wrong.write(iter([pa.record_batch({"id": ["x"]})]))
    assert any(name in note for note in caught.value.__notes__)
    again: Any = source(apache_pulsar, name, valueSchema="TOPIC").writer(
        StructType().add("id", "long"), False
    )
    again.write(iter([pa.record_batch({"id": [8]})]))
    assert [row["id"] for row in rows(apache_pulsar, name)] == [7, 8]
