"""Schemas: conversion of values to payloads, and the schema registered on the topic.

The names are those of ``pulsar.schema``: `BytesSchema`, `StringSchema`, `JsonSchema` and `AvroSchema` over
`Record` classes, `ProtobufNativeSchema`, and the field types of records. Additions, which Java's schemas of
the same names read and write: numbers, booleans, dates and times, pairs (`KeyValueSchema`), and the two that
take the topic's own schema (`AutoConsumeSchema`, `AutoProduceBytesSchema`).

Type checkers read the names in ``__init__.pyi``.
"""

import importlib

_HOMES = {
    "avro": ("AvroSchema",),
    "definition": (
        "Array", "Boolean", "Bytes", "CustomEnum", "Double", "Field", "Float", "Integer", "Long", "Map",
        "Null", "Record", "String",
    ),
    "generic": ("AutoConsumeSchema", "AutoProduceBytesSchema", "schema_of"),
    "key_value": ("KeyValue", "KeyValueEncodingType", "KeyValueSchema"),
    "primitives": (
        "BooleanSchema", "DoubleSchema", "FloatSchema",
        "Int8Schema", "Int16Schema", "Int32Schema", "Int64Schema",
    ),
    "protobuf": ("ProtobufNativeSchema",),
    "schema": ("BytesSchema", "JsonSchema", "Schema", "SchemaInfo", "SchemaType", "StringSchema"),
    "times": (
        "DateSchema", "InstantSchema", "LocalDateSchema", "LocalDateTimeSchema", "LocalTimeSchema",
        "TimeSchema", "TimestampSchema",
    ),
}  # fmt: skip
"""Module of each name; modules are imported at first use, as some of them import much."""

_SUBMODULES = frozenset({"definition", "schema", "schema_avro", "schema_protobuf"})
"""Modules that ``pulsar-client`` users access as attributes of this package."""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
