"""Avro payloads and definitions, compared with pulsar-client's where that is installed."""

import enum
import sys

import pytest

from geminga import schema
from geminga.errors import OperationNotSupported

pytest.importorskip("fastavro")


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def records(module):
    class Inner(module.Record):
        x = module.Integer(required=True)

    class Outer(module.Record):
        text = module.String()
        color = Color
        inner = Inner()
        items = module.Array(module.String())
        table = module.Map(Inner())

    return Inner, Outer


Inner, Outer = records(schema)


def value(inner, outer):
    return outer(text="grüß", color=Color.BLUE, inner=inner(x=1), items=["a"], table={"k": inner(x=2)})


def test_round_trip():
    codec = schema.AvroSchema(Outer)
    record = value(Inner, Outer)
    assert codec.decode(codec.encode(record)) == record
    with pytest.raises(TypeError, match="takes a Outer"):
        codec.encode({"text": "x"})


def test_bytes_are_pulsar_clients():
    theirs = pytest.importorskip("pulsar.schema")
    their_inner, their_outer = records(theirs)
    ours_codec, their_codec = schema.AvroSchema(Outer), theirs.AvroSchema(their_outer)
    assert ours_codec.encode(value(Inner, Outer)) == their_codec.encode(value(their_inner, their_outer))
    assert ours_codec.schema_info().data.decode() == their_codec.schema_info().schema()
    assert ours_codec.schema_info().type == 4


def test_over_a_definition():
    definition = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    codec = schema.AvroSchema(None, definition)
    assert codec.decode(codec.encode({"x": 5})) == {"x": 5}
    with pytest.raises(TypeError, match="takes a dict"):
        codec.encode([1])
    with pytest.raises(TypeError, match="record class or a schema definition"):
        schema.AvroSchema(None)


class Written:
    """A message of another schema version."""

    def __init__(self, data, version="\x00" * 7 + "\x01"):
        self._data, self._version = data, version

    def data(self):
        return self._data

    def topic_name(self):
        return "t"

    def schema_version(self):
        return self._version


def test_a_message_is_read_with_the_schema_it_was_written_with():
    class Old(schema.Record):
        x = schema.Integer()

    class New(schema.Record):
        y = schema.String(default="none", required_default=True)
        x = schema.Integer()

    old, new = schema.AvroSchema(Old), schema.AvroSchema(New)
    message = Written(old.encode(Old(x=7)))
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


def test_an_unknown_writer_schema_falls_back_to_ours(caplog):
    codec = schema.AvroSchema(Inner)

    class Client:
        def schema_of_message(self, topic, version):
            return None

    codec.attach_client(Client())
    assert codec.decode_message(Written(codec.encode(Inner(x=3)))) == Inner(x=3)
    assert "cannot be used" in caplog.text
    assert schema.AvroSchema(Inner).decode_message(Written(codec.encode(Inner(x=4)))) == Inner(x=4)


def test_without_fastavro(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(OperationNotSupported, match=r"geminga\[avro\]"):
        schema.AvroSchema(Inner)
