"""Schemas learnt from the topic: every kind, made from nothing but its description."""

import datetime as dt
import json
from functools import partial
from pathlib import Path

import pytest
import received

from geminga import schema
from geminga.errors import CorruptPayload, IncompatibleSchema
from geminga.schema import KeyValue, KeyValueSchema, schema_of

pytest.importorskip("fastavro")

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "vectors" / "schemas.jsonl").read_text().splitlines()
]


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


def test_payloads_are_read_by_javas_definitions():
    seen = set()
    for vector in VECTORS:
        info = schema.SchemaInfo(
            type=vector["type"], name=vector["name"], data=bytes.fromhex(vector["data"]),
            properties=tuple(vector["properties"].items()),
        )  # fmt: skip
        made = schema_of(info)
        payload = bytes.fromhex(vector["payload"])
        value = made.decode(payload)
        seen.add(vector["case"])
        if vector["case"] == "json_pojo":
            assert (value["text"], value["color"]) == ("grüß", "BLUE")
        if vector["case"] == "key_value_json_avro_inline":
            assert value == ({"x": 3, "y": "why"}, {"x": 3, "y": "why"})
        if vector["case"] not in ("time", "json_pojo", "key_value_json_avro_inline"):
            assert made.encode(value) == payload
    assert len(seen) > 20


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
