"""Schemas in the JSON form of admin REST."""

from __future__ import annotations

import json
import struct
from typing import Any

from geminga.errors import InvalidConfiguration
from geminga.schema_info import SchemaInfo, SchemaType

Described = Any
"""A `SchemaInfo`, a `geminga.schema.Schema`, or a class that has a `JsonSchema`."""


def schema_json(schema: Described) -> dict[str, Any]:
    """Return ``{"type", "schema", "properties"}``. Raises `InvalidConfiguration`."""
    if not isinstance(schema, SchemaInfo):
        from geminga.client.arguments import checked_schema

        schema = checked_schema(schema).schema_info()
    if schema.type < SchemaType.STRING:
        raise InvalidConfiguration(
            f"a topic needs no schema of type {schema.schema_type().name}; allowed: one that describes values"
        )
    kind = schema.schema_type()
    data = _key_value(schema.data) if kind is SchemaType.KEY_VALUE else schema.schema()
    return {"type": kind.name, "schema": data, "properties": dict(schema.properties)}


def _key_value(data: bytes) -> str:
    """Return the JSON of the protocol's two definitions, each preceded by its length."""
    parts, position = [], 0
    try:
        for _ in range(2):
            (size,) = struct.unpack_from(">i", data, position)
            text = data[position + 4 : position + 4 + max(0, size)].decode()
            position += 4 + max(0, size)
            try:
                parts.append(json.loads(text))
            except ValueError:
                parts.append(text)
    except (struct.error, UnicodeDecodeError):
        raise InvalidConfiguration(
            "the data of a KEY_VALUE schema are two definitions with lengths"
        ) from None
    return json.dumps({"key": parts[0], "value": parts[1]})
