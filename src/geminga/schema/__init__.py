"""Schemas: how values become payloads, and what the topic is told about them.

The names are those of ``pulsar.schema``: `BytesSchema`, `StringSchema`, `JsonSchema` and `AvroSchema` over
`Record` classes, `ProtobufNativeSchema`, and the field types of records. The schemas of numbers and booleans
are additions; Java's schemas of the same names read what they write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.schema.definition import (
    Array,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    Long,
    Map,
    Null,
    Record,
    String,
)
from geminga.schema.primitives import (
    BooleanSchema,
    DoubleSchema,
    FloatSchema,
    Int8Schema,
    Int16Schema,
    Int32Schema,
    Int64Schema,
)
from geminga.schema.schema import (
    BytesSchema,
    JsonSchema,
    Schema,
    SchemaInfo,
    SchemaType,
    StringSchema,
)

if TYPE_CHECKING:
    from geminga.schema.avro import AvroSchema
    from geminga.schema.protobuf import ProtobufNativeSchema

__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "BooleanSchema",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "DoubleSchema",
    "Field",
    "Float",
    "FloatSchema",
    "Int8Schema",
    "Int16Schema",
    "Int32Schema",
    "Int64Schema",
    "Integer",
    "JsonSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "String",
    "StringSchema",
]


def __getattr__(name: str) -> object:
    """The schemas whose modules import much are loaded when they are first used."""
    if name == "AvroSchema":
        from geminga.schema.avro import AvroSchema

        return AvroSchema
    if name == "ProtobufNativeSchema":
        from geminga.schema.protobuf import ProtobufNativeSchema

        return ProtobufNativeSchema
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
