"""Schemas learnt from the topic: every kind, made from nothing but its description."""

import datetime as dt
import json
from functools import partial

import pytest
import received
from recorded import java_payloads

from geminga import schema
from geminga.errors import CorruptPayload, IncompatibleSchema
from geminga.schema import KeyValue, KeyValueSchema, schema_of

pytest.importorskip("fastavro")


class Point(schema.Record):
    x = schema.Integer(required=True)
    name = schema.String()


def timestamp():
    from google.protobuf.timestamp_pb2 import Timestamp

    return Timestamp(seconds=5)


def protobuf():
    return schema.ProtobufNativeSchema(type(timestamp()))


UTC = dt.UTC
KINDS = [
    (schema.StringSchema(), "text", "text"),
    (schema.JsonSchema(Point), Point(x=1), {"x": 1, "name": None}),
    (schema.AvroSchema(Point), Point(x=1, name="n"), {"x": 1, "name": "n"}),
    (schema.Int16Schema(), 5, 5),
    (schema.BooleanSchema(), True, True),
    (schema.InstantSchema(), dt.datetime(2024, 1, 1, tzinfo=UTC), dt.datetime(2024, 1, 1, tzinfo=UTC)),
    (schema.LocalDateSchema(), dt.date(2024, 1, 1), dt.date(2024, 1, 1)),
    (KeyValueSchema(schema.StringSchema(), schema.JsonSchema(Point)), ("k", Point(x=2)),
     KeyValue("k", {"x": 2, "name": None})),
]  # fmt: skip


Received = partial(received.Received, version="\x00" * 8)


class Topic:
    def __init__(self, info):
        self.info = info

    def schema_of_message(self, topic, version):
        return self.info


@pytest.mark.parametrize(("codec", "value", "plain"), KINDS, ids=lambda value: str(value)[:30])
def test_messages_of_any_schema_are_read(codec, value, plain):
    payload = codec.encode(value)
    assert schema_of(codec.schema_info()).decode(payload) == plain
    reader = schema.AutoConsumeSchema()
    reader.attach_client(Topic(codec.schema_info()))
    assert reader.decode_message(Received(payload)) == plain
    assert reader.decode_message(Received(payload, version="")) == payload
    assert reader.told_to_topic() is None
    assert reader.wire_schema() is None


def test_protobuf_messages_get_their_class_from_the_topic():
    made = schema_of(protobuf().schema_info())
    decoded = made.decode(timestamp().SerializeToString())
    assert (decoded.seconds, decoded.DESCRIPTOR.full_name) == (5, "google.protobuf.Timestamp")


def moment(text):
    return dt.datetime(1970, 1, 1, tzinfo=UTC) + dt.timedelta(milliseconds=int(text))


VALUES = {
    **dict.fromkeys(("boolean", "int8", "int16", "int32", "int64", "float", "double"), json.loads),
    "string": str,
    "bytes": bytes.fromhex,
    **dict.fromkeys(("date", "timestamp"), moment),
    "time": lambda text: moment(text).time(),
    **dict.fromkeys(("instant", "local_date_time"), dt.datetime.fromisoformat),
    "local_date": dt.date.fromisoformat,
    "local_time": dt.time.fromisoformat,
    "key_value_json_avro_inline": lambda _: ({"x": 3, "y": "why"}, {"x": 3, "y": "why"}),
}
POJO = {
    "text": "grüß", "number": 7, "big": 1 << 40, "items": ["a", "b"], "counts": {"k": 1}, "color": "BLUE",
}  # fmt: skip


@pytest.mark.parametrize("java", java_payloads(), ids=lambda java: f"{java.case} {java.value}")
def test_payloads_of_java_are_read_by_their_definitions_and_written_alike(java):
    made = schema_of(java.info)
    value = made.decode(java.payload)
    if java.case in VALUES:
        assert value == VALUES[java.case](java.value)
    elif java.value == "pojo":
        assert {name: value[name] for name in POJO} == POJO
        assert value["inner"]["x"] == 3
    is_json = java.case in ("json_pojo", "key_value_json_avro_inline")  # with white space of its own
    # java.sql.Time may hold a day, too; a time of day is written without.
    has_day = java.case == "time" and not 0 <= int(java.value) < 86_400_000
    assert is_json or has_day or made.encode(value) == java.payload
    told = made.schema_info()
    assert told.type == java.info.type
    # Definitions of Avro are printed otherwise; ours of texts and bytes are those of pulsar-client.
    otherwise = "avro" in java.case or java.case in ("string", "bytes")
    assert otherwise or told.data == java.info.data
    if told.type >= schema.SchemaType.DATE:
        assert told.name == java.info.name


def test_tombstones_are_none():
    reader = schema.AutoConsumeSchema()
    for codec in (schema.Int16Schema(), schema.JsonSchema(Point), schema.AvroSchema(Point), protobuf()):
        fresh = schema.AutoConsumeSchema()
        fresh.attach_client(Topic(codec.schema_info()))
        assert fresh.decode_message(Received(b"", null=True)) is None
    reader.attach_client(Topic(KINDS[-1][0].schema_info()))
    assert reader.decode_message(Received(b"", null=True)) == (None, None)


@pytest.mark.parametrize(
    "info",
    [
        schema.SchemaInfo(type=3),
        schema.SchemaInfo(type=99),
        schema.SchemaInfo(type=4, data=b"{"),
        schema.SchemaInfo(type=4, data=b"{}"),
        schema.SchemaInfo(type=20, data=b"{}"),
        schema.SchemaInfo(type=20, data=b'{"fileDescriptorSet": "####", "rootMessageTypeName": "x"}'),
        schema.SchemaInfo(type=15, data=b""),
    ],
)
def test_unusable_definitions_are_refused(info):
    with pytest.raises(IncompatibleSchema):
        schema_of(info)


def test_the_reading_schema_refuses_to_encode():
    with pytest.raises(TypeError, match="AutoProduceBytesSchema"):
        schema.AutoConsumeSchema().encode(b"x")


def test_encoded_payloads_are_checked():
    auto = schema.AutoProduceBytesSchema()
    assert auto.needs_topic
    assert type(auto.for_topic(None)) is schema.BytesSchema
    for codec, value, _ in KINDS:
        payload = codec.encode(value)
        bound = auto.for_topic(codec.schema_info())
        assert bound.schema_info() == codec.schema_info()
        assert bound.encode(payload) == payload
        assert bound.decode(payload) == payload
        with pytest.raises(TypeError):
            bound.encode("text")
        with pytest.raises(CorruptPayload):
            bound.encode(b"\xff\xfe\xfd")
    assert auto.encode(b"\xff") == b"\xff"
    assert "Int16Schema" in str(auto.for_topic(schema.Int16Schema().schema_info()))


def test_json_without_a_record_class_uses_dicts():
    codec = schema_of(schema.SchemaInfo(type=2, name="JSON", data=b"{}", properties=(("a", "b"),)))
    assert codec.decode(codec.encode({"x": [1, None]})) == {"x": [1, None]}
    assert codec.schema_info() == schema.SchemaInfo(type=2, name="JSON", data=b"{}", properties=(("a", "b"),))
    with pytest.raises(CorruptPayload, match="no JSON"):
        codec.decode(b"{")


def test_a_topic_without_a_schema_has_bytes():
    assert type(schema_of(None)) is schema.BytesSchema
