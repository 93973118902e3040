"""Topics with schemas, read by columns from the embedded broker, without Spark."""

import dataclasses
import datetime as dt
import logging
import pickle
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
import pytest
from driven_query import data_source
from google.protobuf import source_context_pb2
from pyspark.sql.types import ArrayType, IntegerType, MapType, StructType

from geminga import Client, schema
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.client.admin import admin
from geminga.errors import CorruptPayload, IncompatibleSchema, InvalidConfiguration
from geminga.schema import AvroSchema, JsonSchema, KeyValueEncodingType, KeyValueSchema, StringSchema
from geminga.spark.datasource import PulsarDataSource, PulsarReader
from geminga.spark.releases import arrow_schema


@dataclass
class Part:
    x: int
    words: list[str] = dataclasses.field(default_factory=list)


@dataclass
class Reading:
    id: int
    name: str | None = None
    part: Part | None = None
    marks: dict[str, float] | None = None


@dataclass
class Later(Reading):
    place: str = "Oslo"
    more: Part = dataclasses.field(default_factory=lambda: Part(7, ["w"]))


Later.__name__ = "Reading"
FIRST = [Reading(1, "a", Part(5, ["u", "v"]), {"k": 0.5}), Reading(2)]


def columns(asked: str) -> StructType:
    """``name type``, separated by commas; Spark's own parser needs a session."""
    found = StructType()
    for each in asked.split(", "):
        name, kind, *no_null = each.split(" ")
        known: Any = {"WORDS": WORDS, "PART": PART_OF_TEXT}.get(kind, kind.lower())
        found.add(name, known, not no_null)
    return found


WORDS = StructType().add("words", ArrayType(StructType().add("x", "string").fields[0].dataType))
PART_OF_TEXT = StructType().add("x", "string")
NUMBER = IntegerType()


@dataclass
class Source:
    """Reads a topic's rows as Spark would."""

    broker: EmbeddedBroker
    topic: str

    def source(self, **options: Any) -> PulsarDataSource:
        given = {"service.url": self.broker.service_url, "topic": self.topic, "valueSchema": "TOPIC"}
        return data_source(given | options)

    def table(self, asked: StructType | str | None = None, **options: Any) -> pa.Table:
        source = self.source(**options)
        wanted = columns(asked) if isinstance(asked, str) else asked or source.schema()
        reader = pickle.loads(pickle.dumps(source.reader(wanted)))
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        for batch in batches:
            batch.validate(full=True)
        return pa.Table.from_batches(batches, schema=arrow_schema(wanted))

    def rows(self, asked: StructType | str | None = None, **options: Any) -> list[dict[str, Any]]:
        """Without the message's own columns."""
        found: list[dict[str, Any]] = self.table(asked, **options).to_pylist()
        return [{name: row[name] for name in row if not name.startswith("__")} for row in found]


@pytest.fixture
def source(pulsar_broker, pulsar_topic):
    return Source(pulsar_broker, pulsar_topic)


def publish(client: Client, topic: str, codec: Any, values: list[Any], **options: Any) -> None:
    with client.create_producer(topic, schema=codec, **options) as producer:
        for value in values:
            producer.send_async(value, None)
        producer.flush()


def plain(value: Any) -> dict[str, Any]:
    row = dataclasses.asdict(value)
    return {**row, "marks": None if row["marks"] is None else list(row["marks"].items())}


@pytest.mark.parametrize("codec", [AvroSchema, JsonSchema])
def test_each_message_is_read_with_its_version(source, pulsar_client, codec):
    newer = Later(3, "c", None, None, "Bergen", Part(1, []))
    for values in (FIRST, [newer], FIRST):
        publish(pulsar_client, source.topic, codec(type(values[0])), values)
    assert source.source().schema().names[:6] == ["id", "name", "part", "marks", "place", "more"]
    by_default = {"place": "Oslo", "more": {"x": 7, "words": ["w"]}}
    old = [{**plain(value), **by_default} for value in FIRST]
    assert source.rows() == [*old, plain(newer), *old]
    assert source.rows(columns="more,ID") == [
        {"more": row["more"], "id": row["id"]} for row in [*old, plain(newer), *old]
    ]
    # The user's schema decides the columns; perhaps only an older version has a column.
    assert source.rows("id DOUBLE, part WORDS") == [
        {"id": float(row["id"]), "part": row["part"] and {"words": row["part"]["words"]}}
        for row in [*old, plain(newer), *old]
    ]


def test_interleaved_versions_keep_their_order(source, pulsar_client):
    with (
        pulsar_client.create_producer(
            source.topic, schema=AvroSchema(Reading), batching_enabled=False
        ) as old,
        pulsar_client.create_producer(source.topic, schema=AvroSchema(Later), batching_enabled=False) as new,
    ):
        for number in range(50):
            (new if number % 3 else old).send((Later if number % 3 else Reading)(number, str(number)))
    assert [row["id"] for row in source.rows()] == list(range(50))
    assert [row["name"] for row in source.rows()] == [str(number) for number in range(50)]


def test_merge_schema_keeps_removed_fields(source, pulsar_client):
    """The newest version says what the columns are; mergeSchema keeps those of all."""
    publish(pulsar_client, source.topic, AvroSchema(Later), [Later(1)])
    publish(pulsar_client, source.topic, AvroSchema(Reading), [Reading(2)])
    assert "place" not in source.source().schema().names
    merged = source.source(mergeSchema=True).schema().names
    assert merged[:6] == ["id", "name", "part", "marks", "place", "more"]
    assert [row["place"] for row in source.rows(mergeSchema=True)] == ["Oslo", None]
    assert [row["place"] for row in source.rows("place STRING")] == ["Oslo", None]
    with pytest.raises(InvalidConfiguration, match=r"has a field 'plaec'.*'place'"):
        source.rows("plaec STRING")


@pytest.mark.parametrize("encoding", list(KeyValueEncodingType))
def test_keys_and_values_of_pairs_are_columns(source, pulsar_client, encoding):
    codec = KeyValueSchema(StringSchema(), AvroSchema(Reading), encoding)
    publish(pulsar_client, source.topic, codec, [("k", FIRST[0]), ("gone", None)])
    assert source.rows(columns="key,value") == [
        {"key": "k", "value": plain(FIRST[0])}, {"key": "gone", "value": None},
    ]  # fmt: skip
    later = KeyValueSchema(StringSchema(), AvroSchema(Later), encoding)
    publish(pulsar_client, source.topic, later, [("k", Later(3))])
    assert [row["value"] and row["value"]["place"] for row in source.rows(columns="value")] == [
        "Oslo", None, "Oslo",
    ]  # fmt: skip


def test_primitive_values_are_the_column_value(source, pulsar_client):
    publish(pulsar_client, source.topic, schema.Int64Schema(), [5, -1])
    assert source.source().schema()["value"].dataType.simpleString() == "bigint"
    assert source.rows(columns="value,__partition") == [{"value": 5}, {"value": -1}]


def test_the_columns_of_protobuf_messages_are_left_to_from_protobuf(source, pulsar_client):
    message = source_context_pb2.SourceContext(file_name="a")
    publish(pulsar_client, source.topic, schema.ProtobufNativeSchema(type(message)), [message])
    with pytest.raises(IncompatibleSchema, match="from_protobuf"):
        source.rows()
    assert source.rows(valueSchema="BYTES", columns="value") == [{"value": message.SerializeToString()}]


# --- unreadable messages ---
def spoilt(client: Client, topic: str, codec: Any) -> None:
    """Two good messages, one without a schema, a null, another good one."""
    publish(client, topic, codec(Reading), FIRST)
    with client.create_producer(topic, schema=schema.BytesSchema(), batching_enabled=False) as producer:
        producer.send(b"garbage")
        producer.send(None)
    publish(client, topic, codec(Reading), FIRST[:1])


@pytest.mark.parametrize("codec", [AvroSchema, JsonSchema])
def test_each_mode_handles_malformed_messages(source, pulsar_client, codec, caplog):
    spoilt(pulsar_client, source.topic, codec)
    with pytest.raises(CorruptPayload, match=rf"{source.topic}: the message \d+:\d+:-1 can't be read"):
        source.rows()
    good = [plain(value) for value in (*FIRST, FIRST[0])]
    nothing = dict.fromkeys(good[0])
    kept = source.rows(mode="PERMISSIVE")
    expected = [(row, None) for row in good[:2]]
    expected += [(nothing, b"garbage"), (nothing, None), (good[2], None)]
    assert kept == [{**row, "_corrupt_record": raw} for row, raw in expected]
    asked = "id LONG, bad STRING, __key STRING"
    found = source.rows(asked, mode="PERMISSIVE", columnNameOfCorruptRecord="bad")
    assert [(row["id"], row["bad"]) for row in found][2] == (None, "garbage")
    with caplog.at_level(logging.WARNING):
        assert source.rows(mode="DROPMALFORMED") == [*good[:2], nothing, good[2]]
    assert "(1 of 5 messages are left out)" in caplog.text


def test_a_topic_without_a_schema_needs_a_given_one(source, pulsar_client):
    publish(
        pulsar_client, source.topic, schema.BytesSchema(), [b'{"id": 1, "at": "2024-01-01T00:00:00Z"}', b"{}"]
    )
    with pytest.raises(IncompatibleSchema, match=r"has no schema: valueSchema=TOPIC.*valueSchema=JSON"):
        source.rows()
    with pytest.raises(IncompatibleSchema, match="has no schema"):
        source.rows("id INTEGER")
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    rows = source.rows("id INTEGER, at TIMESTAMP", valueSchema="JSON")
    assert rows == [{"id": 1, "at": moment}, {"id": None, "at": None}]
    with pytest.raises(
        CorruptPayload, match="its 39 bytes are no JSON object that the requested columns hold"
    ):
        source.rows("id BOOLEAN", valueSchema="JSON")
    with pytest.raises(IncompatibleSchema, match=r"'marks': no schema can represent map<int,int>"):
        source.source(valueSchema="JSON").reader(StructType().add("marks", MapType(NUMBER, NUMBER)))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("id INTEGER", "field id is written as bigint and can't be read as int"),
        ("part PART", r"field part\.x is written as bigint and can't be read as string"),
        ("id LONG, __topic INTEGER", "column '__topic' can be read as string"),
        ("id LONG, _corrupt_record INTEGER", "'_corrupt_record' can be read as binary or string"),
        ("id LONG, __what STRING", "no version of the topic's schema has a field '__what'"),
    ],
)
def test_impossible_columns_are_refused(source, pulsar_client, asked, message):
    publish(pulsar_client, source.topic, AvroSchema(Reading), FIRST)
    with pytest.raises((IncompatibleSchema, InvalidConfiguration), match=message):
        source.source().reader(columns(asked))


def test_nulls_in_not_null_columns_are_errors(source, pulsar_client):
    publish(pulsar_client, source.topic, AvroSchema(Reading), FIRST)
    assert source.rows("id LONG NOT NULL") == [{"id": 1}, {"id": 2}]
    with pytest.raises(CorruptPayload, match=r"'name' is NOT NULL .* 1 messages have no value"):
        source.rows("name STRING NOT NULL")


# --- several topics, several versions ---
@dataclass
class Narrow:
    id: Annotated[int, schema.Integer()]
    other: str = ""


@dataclass
class Clash:
    id: str


def test_schemas_of_several_topics_are_merged(source, pulsar_client):
    second, third = f"{source.topic}-2", f"{source.topic}-3"
    publish(pulsar_client, source.topic, AvroSchema(Narrow), [Narrow(1, "o")])
    publish(pulsar_client, second, JsonSchema(Reading), FIRST[:1])
    both = {"topics": f"{source.topic},{second}"}
    given = {"service.url": source.broker.service_url, "valueSchema": "TOPIC"}
    merged = PulsarDataSource({**given, **both}).schema()
    assert merged.simpleString().startswith("struct<id:bigint,other:string,name:string,part:struct<")
    reader = PulsarDataSource({**given, **both}).reader(merged)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(row["id"], row["other"], row["name"]) for row in rows] == [(1, "o", None), (1, None, "a")]
    publish(pulsar_client, third, AvroSchema(Clash), [Clash("x")])
    with pytest.raises(IncompatibleSchema, match=r"no common columns: field id is int in one and string"):
        PulsarDataSource({**given, "topics": f"{source.topic},{third}"}).schema()
    publish(pulsar_client, f"{source.topic}-4", schema.BytesSchema(), [b"x"])
    with pytest.raises(IncompatibleSchema, match=f"{source.topic}-4 has no schema"):
        PulsarDataSource({**given, "topics": f"{source.topic},{source.topic}-4"}).schema()


def test_a_version_registered_during_a_query_is_read_or_fails_it(source, pulsar_client, caplog):
    publish(pulsar_client, source.topic, AvroSchema(Reading), FIRST)
    wanted = source.source().schema()
    tolerant = source.source().reader(wanted)
    strict = source.source(schemaEvolutionMode="failOnNewColumns").reader(wanted)
    publish(pulsar_client, source.topic, AvroSchema(Later), [Later(9)])
    assert isinstance(tolerant, PulsarReader)
    assert isinstance(strict, PulsarReader)
    with caplog.at_level(logging.WARNING):
        found = [row for part in tolerant.partitions() for b in tolerant.read(part) for row in b.to_pylist()]
    assert [row["id"] for row in found] == [1, 2, 9]
    assert "schema version 1 has place, more, more.x, more.words" in caplog.text
    with pytest.raises(CorruptPayload, match="start the query again"):
        list(strict.read(strict.partitions()[0]))
    assert [row["place"] for row in source.rows(schemaEvolutionMode="failOnNewColumns")] == ["Oslo"] * 3


def test_a_version_of_another_type_is_malformed(source, pulsar_client):
    """Not every topic keeps its versions compatible."""
    publish(pulsar_client, source.topic, AvroSchema(Clash), [Clash("x")])
    namespace = "namespaces/public/default/schemaCompatibilityStrategy"
    admin(source.broker.admin_url, "PUT", namespace, "ALWAYS_COMPATIBLE")
    try:
        publish(pulsar_client, source.topic, AvroSchema(Reading), FIRST[1:])
    finally:
        admin(source.broker.admin_url, "PUT", namespace, "FULL")
    with pytest.raises(CorruptPayload, match="field id is written as string and can't be read as bigint"):
        source.rows()
    assert [row["id"] for row in source.rows(mode="PERMISSIVE")] == [None, 2]
    assert [row["id"] for row in source.rows(mode="DROPMALFORMED")] == [2]


def test_options_that_need_a_schema_are_refused_without_one(source):
    with pytest.raises(InvalidConfiguration, match="option mode requires payloads with a schema"):
        source.rows(valueSchema="BYTES", mode="PERMISSIVE")
