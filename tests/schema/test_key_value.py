"""Pairs, judged by what Java's classes printed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from received import Received
from recorded import java_payloads

from geminga import schema
from geminga.errors import CorruptPayload, IncompatibleSchema, InvalidConfiguration, InvalidMessage
from geminga.producer.message import KeyedContent, OutgoingMessage
from geminga.schema import KeyValue, KeyValueEncodingType, KeyValueSchema
from geminga.schema.key_value import encoding_of, parts_of, split_pair
from tests.schema.test_generic import Topic

INLINE, SEPARATED = KeyValueEncodingType.INLINE, KeyValueEncodingType.SEPARATED


def java(case):
    (found,) = [each for each in java_payloads() if each.case == case]
    return found


def described(info):
    return info.type, info.name, info.data, dict(info.properties)


def pair(encoding):
    return KeyValueSchema(schema.StringSchema(), schema.Int32Schema(), encoding)


@pytest.mark.parametrize(
    ("case", "encoding", "value"),
    [
        ("key_value_inline", INLINE, ("k", 7)),
        ("key_value_inline_null_key", INLINE, (None, 7)),
        ("key_value_inline_null_value", INLINE, ("k", None)),
        ("key_value_separated", SEPARATED, ("k", 7)),
    ],
)
def test_payloads_equal_those_of_java(case, encoding, value):
    expected, codec = java(case), pair(encoding)
    assert codec.encode(value) == expected.payload
    assert described(codec.schema_info()) == described(expected.info)
    if encoding is INLINE:
        assert codec.decode(expected.payload) == KeyValue(*value)


def test_bytes_have_no_definition_but_a_type():
    expected = java("key_value_bytes")
    codec = KeyValueSchema(schema.BytesSchema(), schema.BytesSchema())
    assert codec.encode((b"\x01", b"\x02\x03")) == expected.payload
    assert described(codec.schema_info()) == described(expected.info)


def test_javas_definitions_are_split_into_key_and_value():
    for case, encoding in (("key_value_json_avro", SEPARATED), ("key_value_json_avro_inline", INLINE)):
        info = java(case).info
        key, value = parts_of(info)
        assert (key.type, value.type, encoding_of(info)) == (2, 4, encoding)
        assert json.loads(key.data)["name"] == json.loads(value.data)["name"] == "Inner"


def test_separated_keys_are_partition_keys():
    codec = pair(SEPARATED)
    content = codec.encode_message(KeyValue("grüß", 7))
    assert content == KeyedContent(b"\x00\x00\x00\x07", "grüß".encode())
    message = OutgoingMessage(content.payload)
    content.give_key(message)
    assert message.partition_key_b64
    assert codec.decode_message(Received(content.payload, message.partition_key)) == ("grüß", 7)
    assert codec.decode_message(Received(content.payload, "plain", base64=False)) == ("plain", 7)
    assert codec.decode_message(Received(content.payload)) == (None, 7)
    assert codec.encode_message(("k", None)) == KeyedContent(None, b"k")
    assert codec.decode_message(Received(key="aw==", null=True)) == ("k", None)
    assert codec.decode(b"\x00\x00\x00\x07") == (None, 7)
    with pytest.raises(InvalidMessage, match="partition_key"):
        content.give_key(OutgoingMessage(b"", partition_key="another"))
    with pytest.raises(TypeError, match="cannot be None"):
        codec.encode_message((None, 7))
    with pytest.raises(CorruptPayload, match="no base64"):
        codec.decode_message(Received(content.payload, "###"))


def test_inline_keys_are_in_the_payload():
    codec = pair(INLINE)
    assert codec.encode_message(("k", 7)) == codec.encode(("k", 7))
    assert codec.decode_message(Received(codec.encode(("k", 7)))) == KeyValue("k", 7)
    assert codec.decode_message(Received(null=True)) == (None, None)
    assert codec.encode_message((None, None)) == b"\xff" * 8


def test_each_part_is_read_with_its_writers_schema():
    pytest.importorskip("fastavro")

    class Old(schema.Record):
        x = schema.Integer(required=True)

    class New(schema.Record):
        x = schema.Long(required=True)
        y = schema.String(default="none", required_default=True)

    for encoding in KeyValueEncodingType:
        writer = KeyValueSchema(schema.AvroSchema(Old), schema.AvroSchema(Old), encoding)
        reader = KeyValueSchema(schema.AvroSchema(New), schema.AvroSchema(Old), encoding)
        reader.attach_client(Topic(writer.schema_info()))
        content = writer.encode_message((Old(x=1), Old(x=2)))
        if encoding is SEPARATED:
            message = OutgoingMessage(content.payload)
            content.give_key(message)
            received = Received(content.payload, message.partition_key, version="\x00" * 8)
        else:
            received = Received(content, version="\x00" * 8)
        decoded = reader.decode_message(received)
        assert decoded == KeyValue(New(x=1, y="none"), Old(x=2))


@given(st.binary(max_size=30))
def test_any_bytes_are_decoded_as_a_pair_or_refused(data):
    try:
        key, value = split_pair(data)
    except CorruptPayload:
        return
    parts = [b"\xff" * 4 if part is None else len(part).to_bytes(4, "big") + part for part in (key, value)]
    assert b"".join(parts) == data


def test_wrong_values_and_definitions_are_refused():
    for value in ("kv", ["k", 7], ("k",), None, ("k", 7, 8)):
        with pytest.raises(TypeError, match="takes a KeyValue"):
            pair(INLINE).encode(value)
    with pytest.raises(TypeError, match="takes a str"):
        pair(INLINE).encode((1, 7))
    for arguments in ((str, schema.Int32Schema()), (schema.StringSchema(), None)):
        with pytest.raises(InvalidConfiguration):
            KeyValueSchema(*arguments)
    with pytest.raises(InvalidConfiguration, match="encoding"):
        KeyValueSchema(schema.StringSchema(), schema.Int32Schema(), "INLINE")
    good = pair(INLINE).schema_info()
    bad = [
        schema.SchemaInfo(type=1),
        schema.SchemaInfo(type=15, data=b"\x00", properties=good.properties),
        schema.SchemaInfo(type=15, data=good.data),
        schema.SchemaInfo(type=15, data=good.data, properties=(("key.schema.type", "NO SUCH TYPE"),)),
    ]
    for info in bad:
        with pytest.raises(IncompatibleSchema, match="no pair"):
            parts_of(info)
    with pytest.raises(IncompatibleSchema, match="unknown encoding"):
        encoding_of(schema.SchemaInfo(type=15, properties=(("kv.encoding.type", "OTHER"),)))


def test_str_names_both_schemas_and_the_encoding():
    assert str(pair(SEPARATED)) == "KeyValueSchema(StringSchema, Int32Schema, SEPARATED)"
