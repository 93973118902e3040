"""Schemas: how values become payloads, and what the topic is told about them.

The names are those of ``pulsar.schema``: `BytesSchema`, `StringSchema`, `JsonSchema` over `Record`
classes, and the field types of records.
"""

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
from geminga.schema.schema import (
    AvroSchema,
    BytesSchema,
    JsonSchema,
    ProtobufNativeSchema,
    Schema,
    SchemaInfo,
    SchemaType,
    StringSchema,
)

__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
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
