"""Frames as payloads: which definition a frame's columns have, and its rows in that format."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from geminga.errors import IncompatibleSchema
from geminga.spark.payloads.nodes import Field, Node

_NODES: dict[DataType, Node] = {
    BinaryType(): Node("bytes"),
    BooleanType(): Node("boolean"),
    ByteType(): Node("int8"),
    ShortType(): Node("int16"),
    IntegerType(): Node("int"),
    LongType(): Node("long"),
    FloatType(): Node("float"),
    DoubleType(): Node("double"),
    StringType(): Node("string"),
    NullType(): Node("null"),
    DateType(): Node("int", "date"),
    TimestampType(): Node("long", "timestamp-micros"),
    TimestampNTZType(): Node("long", "local-timestamp-micros"),
}


def node_of_type(kind: DataType) -> Node:
    """The node whose values Spark has as ``kind``. Raises `IncompatibleSchema` for a type that has none."""
    if isinstance(kind, StructType):
        return Node(
            "record", fields=tuple(Field(field.name, node_of_type(field.dataType)) for field in kind.fields)
        )
    if isinstance(kind, ArrayType):
        return Node("array", branches=(node_of_type(kind.elementType),))
    if isinstance(kind, MapType) and kind.keyType == StringType():
        return Node("map", branches=(node_of_type(kind.valueType),))
    if isinstance(kind, DecimalType):
        return Node("bytes", "decimal", precision=kind.precision, scale=kind.scale)
    if kind not in _NODES:
        raise IncompatibleSchema(f"no schema has a form for {kind.simpleString()}")
    return _NODES[kind]
