"""From one Arrow type to another: names, aliases, defaults, widening."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StructType

from geminga.errors import IncompatibleSchema
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.payloads.definitions import definition_of
from geminga.spark.payloads.fitting import fit
from geminga.spark.payloads.nodes import SchemaNode
from geminga.spark.payloads.rows import Columns, version_reader
from geminga.spark.payloads.types import columns_of, spark_type
from geminga.spark.payloads.writing import PayloadWriter
from geminga.spark.releases import arrow_type


def node(*fields: dict[str, Any]) -> SchemaNode:
    definition = {"type": "record", "name": "R", "fields": list(fields)}
    return definition_of(SchemaInfo(type=int(SchemaType.AVRO), data=json.dumps(definition).encode())).root


def test_defaults_of_every_type_fill_missing_fields():
    part = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int", "default": 3}]}
    reader = node(
        {"name": "number", "type": "double", "default": 3},
        {"name": "text", "type": ["string", "null"], "default": "t"},
        {"name": "nothing", "type": ["null", "string"], "default": None},
        {"name": "missing", "type": "string"},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "list", "type": {"type": "array", "items": "int"}, "default": [1]},
        {"name": "map", "type": {"type": "map", "values": "int"}, "default": {"a": 1}},
        {"name": "part", "type": part, "default": {}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1000},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "default": "\u0001\u0000",
        },
    )
    kind = arrow_type(spark_type(reader))
    found = fit(pa.array([{}, {}], pa.struct([])), kind, reader)
    found.validate(full=True)
    assert found.to_pylist() == [
        {
            "number": 3.0, "text": "t", "nothing": None, "missing": None, "raw": b"\xff", "list": [1],
            "map": [("a", 1)], "part": {"x": 3}, "day": dt.date(1970, 1, 2),
            "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "price": Decimal("2.56"),
        }
    ] * 2  # fmt: skip


def test_an_invalid_default_is_refused():
    reader = node({"name": "x", "type": "int", "default": "three"})
    with pytest.raises(IncompatibleSchema, match="the default 'three' of the field 'x' is no int32"):
        fit(pa.array([{}], pa.struct([])), arrow_type(spark_type(reader)), reader)


def test_aliases_apply_in_nested_records():
    part = {"type": "record", "name": "P", "fields": [{"name": "new", "type": "long", "aliases": ["old"]}]}
    reader = node({"name": "parts", "type": {"type": "array", "items": part}})
    written = pa.array(
        [{"parts": [{"old": 1}, None]}, {"parts": None}, None],
        pa.struct([("parts", pa.list_(pa.struct([("old", pa.int32())])))]),
    )
    kind = arrow_type(spark_type(reader))
    expected = [{"parts": [{"new": 1}, None]}, {"parts": None}, None]
    assert fit(written, kind, reader).to_pylist() == expected
    assert fit(written.slice(1), kind, reader).to_pylist() == expected[1:]


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_aliases_apply_through_unions_and_arrays(kind):
    """Through unions and arrays, for a reader that asks for the new names alone."""

    def of(*names: dict[str, Any]) -> SchemaInfo:
        part = {"type": "record", "name": "P", "fields": [{"type": ["null", "long"], **n} for n in names]}
        parts = ["null", {"type": "array", "items": ["null", part]}]
        definition = {"type": "record", "name": "R", "fields": [{"name": "parts", "type": parts}]}
        return SchemaInfo(type=int(kind), data=json.dumps(definition).encode())

    old, new = of({"name": "old"}, {"name": "more"}), of({"name": "new", "aliases": ["old"]})
    wanted = columns_of(definition_of(new))
    frame = StructType().add("parts", ArrayType(StructType().add("old", "long").add("more", "long")))
    given = pa.array([[{"old": 5, "more": 6}, None], None], arrow_type(frame["parts"].dataType))
    payloads = PayloadWriter(old, frame).write([given], 2)
    found, damaged = version_reader(old, new, Columns(wanted, arrow_type(wanted))).read(payloads, None)
    assert not damaged.any()
    assert found.to_pylist() == [{"parts": [{"new": 5}, None]}, {"parts": None}]


def test_unsupported_definitions_are_refused():
    deep: Any = "int"
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    loop = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    for definition in (deep, loop, {"type": "what"}, 5, [], {"type": "record", "name": "N"}):
        info = SchemaInfo(type=int(SchemaType.AVRO), data=json.dumps(definition).encode())
        with pytest.raises(IncompatibleSchema, match=r"the AVRO schema .* can't be read"):
            definition_of(info)
    for data in (b"", b"\xff", json.dumps(loop).encode()[:-1]):
        with pytest.raises(IncompatibleSchema):
            definition_of(SchemaInfo(type=int(SchemaType.AVRO), data=data))


def test_a_definition_that_expands_to_a_huge_tree_is_refused():
    kind: Any = "int"
    for level in range(50):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{level - 1}" if level else "int"}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    chain: Any = [{"type": "record", "name": "R0", "fields": []}]
    for level in range(1, 2000):
        field = {"name": "a", "type": f"R{level - 1}"}
        chain.append({"type": "record", "name": f"R{level}", "fields": [field]})
    for definition in (kind, chain):
        info = SchemaInfo(type=int(SchemaType.AVRO), data=json.dumps(definition).encode())
        with pytest.raises(IncompatibleSchema, match="deeper than 64 or has more than 20000 types"):
            definition_of(info)
