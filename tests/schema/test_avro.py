"""Avro payloads and definitions: values, writers' schemas, and Java's payloads."""

import sys

import pytest
from received import Received
from record_classes import Color, records, value_of
from recorded import java_payloads

from geminga import errors, schema
from geminga.errors import OperationNotSupported
from geminga.schema import versions

pytest.importorskip("fastavro")


RECORDS = records(schema)
Inner, Everything = RECORDS["Inner"], RECORDS["Everything"]


def test_records_are_encoded_and_decoded():
    codec = schema.AvroSchema(Everything)
    record = value_of(RECORDS, "Everything")
    assert codec.decode(codec.encode(record)) == record
    with pytest.raises(TypeError, match="takes a Everything"):
        codec.encode({"text": "x"})


def test_a_schema_made_from_a_definition_uses_dicts():
    definition = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    codec = schema.AvroSchema(None, definition)
    assert codec.decode(codec.encode({"x": 5})) == {"x": 5}
    with pytest.raises(ValueError, match="takes a dict"):
        codec.encode([1])
    with pytest.raises(TypeError, match="record class or a schema definition"):
        schema.AvroSchema(None)


def of_version(data, version="\x00" * 7 + "\x01"):
    """A message of another schema version."""
    return Received(data, version=version)


def test_a_message_is_read_with_its_writers_schema():
    class Old(schema.Record):
        x = schema.Integer()

    class New(schema.Record):
        y = schema.String(default="none", required_default=True)
        x = schema.Integer()

    old, new = schema.AvroSchema(Old), schema.AvroSchema(New)
    message = of_version(old.encode(Old(x=7)))
    asked = []

    class Client:
        def schema_of_message(self, topic, version):
            asked.append((topic, version))
            return old.schema_info()

    new.attach_client(Client())
    for _ in range(3):
        decoded = new.decode_message(message)
        assert (decoded.x, decoded.y) == (7, "none")
    assert asked == [("t", message.schema_version())]


class Topic:
    """A client that knows these versions of a topic's schema."""

    def __init__(self, *versions):
        self.versions = versions

    def schema_of_message(self, topic, version):
        number = int.from_bytes(version.encode("latin-1"), "big")
        return self.versions[number] if number < len(self.versions) else None


def version(number):
    return number.to_bytes(8, "big").decode("latin-1")


def test_a_message_is_not_read_with_a_guessed_schema():
    codec = schema.AvroSchema(Inner)
    payload = codec.encode(Inner(x=3))
    codec.attach_client(Topic(codec.schema_info(), schema.StringSchema().schema_info()))
    assert codec.decode_message(of_version(payload, version(0))) == Inner(x=3)
    with pytest.raises(errors.IncompatibleSchema, match="t has no schema version 2"):
        codec.decode_message(of_version(payload, version(2)))
    with pytest.raises(errors.IncompatibleSchema, match="type 1"):
        codec.decode_message(of_version(payload, version(1)))
    # A message without a version, or read without a client, was written with this very schema.
    assert codec.decode_message(of_version(payload, "")) == Inner(x=3)
    assert schema.AvroSchema(Inner).decode_message(of_version(payload)) == Inner(x=3)


def test_attaching_another_client_clears_the_cached_versions():
    class Wide(schema.Record):
        x = schema.Long(required=True)

    codec, wide = schema.AvroSchema(Wide), schema.AvroSchema(Inner)
    codec.attach_client(Topic(codec.schema_info()))
    assert codec.decode_message(of_version(codec.encode(Wide(x=1 << 40)), version(0))).x == 1 << 40
    codec.attach_client(Topic(wide.schema_info()))
    assert codec.decode_message(of_version(wide.encode(Inner(x=5)), version(0))).x == 5


def test_readers_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(versions, "VERSIONS_MAX", 3)
    codec = schema.AvroSchema(Inner)
    codec.attach_client(Topic(*[codec.schema_info()] * 10))
    for number in range(10):
        assert codec.decode_message(of_version(codec.encode(Inner(x=number)), version(number))).x == number
    assert len(codec._readers) == 3


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([("x", "int")], [("x", "string")]),
        ([], [("x", "int")]),
        ([("x", {"type": "record", "name": "A", "fields": []})],
         [("x", {"type": "record", "name": "B", "fields": []})]),
    ],
)  # fmt: skip
def test_an_incompatible_writer_schema_is_an_error(written, read):
    def of(fields):
        named = [{"name": name, "type": kind} for name, kind in fields]
        return schema.AvroSchema(None, {"type": "record", "name": "R", "fields": named})

    writer, reader = of(written), of(read)
    reader.attach_client(Topic(writer.schema_info()))
    value = {"x": {}} if written and isinstance(written[0][1], dict) else {"x": 1}
    with pytest.raises(errors.IncompatibleSchema):
        reader.decode_message(of_version(writer.encode(value), version(0)))


def test_names_of_writer_and_reader_may_differ():
    node = {
        "type": "record", "name": "Node", "namespace": "org.example",
        "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "org.example.Node"]}],
    }  # fmt: skip
    other = {
        "type": "record", "name": "Link",
        "fields": [{"name": "v", "type": "long"}, {"name": "next", "type": ["null", "Link"]}],
    }  # fmt: skip
    writer, reader = schema.AvroSchema(None, node), schema.AvroSchema(None, other)
    reader.attach_client(Topic(writer.schema_info()))
    value = {"v": 1, "next": {"v": 2, "next": None}}
    assert reader.decode_message(of_version(writer.encode(value), version(0))) == value


def test_damaged_payloads_and_definitions_are_refused():
    codec = schema.AvroSchema(Everything)
    payload = codec.encode(value_of(RECORDS, "Everything"))
    for size in range(len(payload)):
        with pytest.raises(errors.CorruptPayload):
            codec.decode(payload[:size])
    with pytest.raises(errors.CorruptPayload, match="ends at byte"):
        codec.decode(payload + b"\x00")
    for definition in ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "no"}]}, {"x": 1}):
        with pytest.raises(ValueError, match="Avro definition is not valid"):
            schema.AvroSchema(None, definition)
    broken = schema.SchemaInfo(type=4, name="", data=b"{")
    codec.attach_client(Topic(broken))
    with pytest.raises(errors.IncompatibleSchema, match="cannot be used"):
        codec.decode_message(of_version(payload, version(0)))


def test_a_record_class_reads_javas_payloads():
    class Inner(schema.Record):
        x = schema.Integer(required=True)
        y = schema.String()

    class Picked(schema.Record):
        text = schema.String()
        number = schema.Long()
        inner = Inner()
        color = Color

    codec = schema.AvroSchema(Picked)
    for java in java_payloads():
        if java.case in ("avro_pojo", "avro_pojo_strict"):
            codec.attach_client(Topic(java.info))
            picked = codec.decode_message(of_version(java.payload, version(0)))
            assert (picked.text, picked.number, picked.inner.x) == ("grüß", 7, 3)
            assert picked.color is Color.BLUE


def test_a_missing_fastavro_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(OperationNotSupported, match=r"geminga\[avro\]"):
        schema.AvroSchema(Inner)
