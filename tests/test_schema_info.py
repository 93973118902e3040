"""SchemaInfo of Geminga's schemas, compared with pulsar-client's."""

from typing import Any

import pytest

from geminga import schema
from geminga.schema_info import SchemaInfo, SchemaType


def descriptions(module: Any) -> list[tuple[object, ...]]:
    class Flight(module.Record):
        tail = module.String(required=True)

    codecs = [
        module.BytesSchema(), module.StringSchema(), module.JsonSchema(Flight), module.AvroSchema(Flight)
    ]  # fmt: skip
    infos = [codec.schema_info() for codec in codecs]
    return [(info.name(), int(info.schema_type()), info.schema_type().name, info.schema()) for info in infos]


def test_as_pulsar_clients():
    pytest.importorskip("fastavro")
    assert descriptions(schema) == descriptions(pytest.importorskip("pulsar.schema"))


def test_name_and_data_are_there_as_they_are():
    info = SchemaInfo(type=2, name="JSON", data=b"{}")
    assert (info.name, info.name(), info.data, info.schema()) == ("JSON", "JSON", b"{}", "{}")
    assert info == SchemaInfo(type=2, name="JSON", data=b"{}")
    assert info.schema_type() is SchemaType.JSON


def test_what_is_no_text_survives():
    info = SchemaInfo(type=15, data=b"\x00\xff")
    assert info.schema().encode("utf-8", "surrogateescape") == b"\x00\xff"


def test_a_type_that_is_newer_than_ours():
    with pytest.raises(ValueError, match="99"):
        SchemaInfo(type=99).schema_type()
