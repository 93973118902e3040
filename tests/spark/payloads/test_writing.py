"""Frames as payloads, read back by fastavro, by `json` and by our own readers."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import source_context_pb2
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from geminga.errors import IncompatibleSchema, InvalidMessage
from geminga.schema import ProtobufNativeSchema
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.payloads.avro import AvroReader
from geminga.spark.payloads.json_text import JsonReader
from geminga.spark.payloads.writing import PayloadWriter, avro_definition, frame_schema
from geminga.spark.releases import arrow_schema

PART = StructType().add("x", "integer").add("words", ArrayType(StringType()))
SCHEMA = (
    StructType()
    .add("id", "long", False)
    .add("name", "string")
    .add("raw", BinaryType())
    .add("part", PART)
    .add("parts", ArrayType(PART, False), False)
    .add("marks", MapType(StringType(), StructType().add("y", "double")))
    .add("ok", "boolean")
    .add("share", "float")
    .add("price", DecimalType(10, 2))
    .add("at", TimestampType())
    .add("day", DateType())
)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=dt.UTC)
ROWS: list[dict[str, Any]] = [
    {
        "id": -(1 << 63), "name": 'ä"\\\n\x01', "raw": b"\x00\xff",
        "part": {"x": -1, "words": ["a", None, ""]},
        "parts": [{"x": None, "words": None}, {"x": 2, "words": []}], "marks": {'k"': {"y": 0.1}, "l": None},
        "ok": True, "share": 0.5, "price": Decimal("-12.50"), "at": NOON, "day": dt.date(1969, 1, 1),
    },
    {**dict.fromkeys(SCHEMA.names), "id": (1 << 63) - 1, "parts": []},
    {**dict.fromkeys(SCHEMA.names), "id": 300, "parts": [{"x": 5, "words": ["w"]}], "marks": {}, "name": ""},
]  # fmt: skip


def frame(rows: list[dict[str, Any]], schema: StructType = SCHEMA) -> list[pa.Array]:
    """A slice, as the record batches of a task are."""
    kind = arrow_schema(schema)
    batch = pa.RecordBatch.from_pylist([rows[0], *rows, rows[0]], schema=kind)
    return list(batch.slice(1, len(rows)).columns)


def written(kind: str, columns: list[pa.Array], schema: StructType = SCHEMA) -> list[bytes]:
    writer = PayloadWriter(frame_schema(schema, kind, "topLevelRecord", ""), schema)
    payloads = writer.write(columns, len(columns[0]))
    payloads.validate(full=True)
    return payloads.to_pylist()


def test_written_json_is_read_by_python():
    full, empty, third = (json.loads(payload) for payload in written("JSON", frame(ROWS)))
    first = ROWS[0]
    assert full == {
        **first, "raw": "AP8=", "price": -12.5, "at": int(NOON.timestamp() * 1e6), "day": -365,
    }  # fmt: skip
    assert (empty, third) == (ROWS[1], ROWS[2])


def test_nan_and_infinity_are_written_as_text():
    schema = StructType().add("x", "double")
    odd = pa.array([float("nan"), float("inf"), float("-inf"), 1e300, -0.0, None])
    payloads = written("JSON", [odd], schema)
    assert payloads[:3] == [b'{"x":"NaN"}', b'{"x":"Infinity"}', b'{"x":"-Infinity"}']
    assert [json.loads(payload)["x"] for payload in payloads[3:]] == [1e300, -0.0, None]


def topic_schema(kind: SchemaType, *fields: dict[str, Any]) -> SchemaInfo:
    definition = {"type": "record", "name": "R", "fields": list(fields)}
    return SchemaInfo(type=int(kind), data=json.dumps(definition).encode())


COLOUR = {"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}
FIELDS: list[dict[str, Any]] = [
    {"name": "count", "type": "long"},
    {"name": "colour", "type": COLOUR, "default": "RED"},
    {"name": "note", "type": ["string", "null"], "default": "none"},
    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
    {"name": "three", "type": ["null", {"type": "fixed", "name": "F", "size": 3}], "default": None},
]


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_a_frame_is_written_with_the_topics_schema(kind):
    info = topic_schema(kind, *FIELDS)
    schema = StructType().add("AT", TimestampType()).add("count", IntegerType())
    writer = PayloadWriter(info, schema)
    early = dt.datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=dt.UTC)
    payloads = writer.write(
        [pa.array([early, None], pa.timestamp("us", "UTC")), pa.array([1, 2], pa.int32())], 2
    )
    reader = (AvroReader if kind == SchemaType.AVRO else JsonReader)(writer.definition.root)
    found, damaged = reader.read(payloads)
    assert not damaged.any()
    same = {"colour": "RED", "note": "none", "three": None}
    moment = dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)
    assert found.to_pylist() == [{"count": 1, "at": moment, **same}, {"count": 2, "at": None, **same}]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            StructType().add("colour", "string"),
            "requires the field 'count', and the frame has no such column",
        ),
        (StructType().add("count", "string"), "field count is written as string and can't be read as bigint"),
        (
            StructType().add("count", "long").add("more", "long"),
            "has no field for the column 'more'; it has count,",
        ),
    ],
)
def test_frames_incompatible_with_the_topics_schema_are_refused(schema, message):
    with pytest.raises(IncompatibleSchema, match=message):
        PayloadWriter(topic_schema(SchemaType.AVRO, *FIELDS), schema)


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("count", pa.array([1, None]), "1 rows have no value for the field 'count'"),
        ("colour", pa.array(["RED", "PINK"]), "'colour': 'PINK' is none of RED, BLUE"),
    ],
)
def test_values_that_do_not_fit_the_topics_schema_are_refused(kind, name, values, message):
    schema = StructType().add("count", LongType())
    columns = [values]
    if name != "count":
        schema.add(name, StringType())
        columns = [pa.array([1, 2]), values]
    with pytest.raises(InvalidMessage, match=message):
        PayloadWriter(topic_schema(kind, *FIELDS), schema).write(columns, 2)


def test_types_without_a_schema_type_are_refused():
    with pytest.raises(IncompatibleSchema, match="column 'a b' can't be a field"):
        avro_definition(StructType().add("a b", "long"), "R")
    with pytest.raises(IncompatibleSchema, match=r"'m': no schema can represent map<int,int>; .*map_entries"):
        avro_definition(StructType().add("m", MapType(IntegerType(), IntegerType())), "R")
    for kind, advice in ((VariantType(), "to_json"), (DayTimeIntervalType(), "use STRING, with a cast")):
        with pytest.raises(IncompatibleSchema, match=f"column 'x': no schema .*{advice}"):
            avro_definition(StructType().add("x", kind), "R")
    array = SchemaInfo(type=int(SchemaType.AVRO), data=b'{"type": "array", "items": "int"}')
    message = ProtobufNativeSchema(source_context_pb2.SourceContext).schema_info()
    for info, why in (
        (array, "which frames can't be written as"),
        (message, "of its package spark-protobuf"),
    ):
        with pytest.raises(IncompatibleSchema, match=why):
            PayloadWriter(info, StructType().add("value", ArrayType(IntegerType())))
