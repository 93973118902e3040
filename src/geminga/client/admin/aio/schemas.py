"""Schemas of topics."""

import json
import struct
from collections.abc import Mapping
from typing import Any

from geminga.client.admin.aio.calls import AdminSection
from geminga.client.admin.aio.topics import Topic
from geminga.client.admin.exchange import topic_path
from geminga.client.admin.types import Compatibility, SchemaVersion, SchemaVersions
from geminga.config import check_int
from geminga.errors import AdminNotFound, AdminServerError, InvalidConfiguration
from geminga.schema_info import SchemaInfo, SchemaType

Described = Any
"""A `SchemaInfo`, a `geminga.schema.Schema`, or a class that has a `JsonSchema`."""


class Schemas(AdminSection):
    """Schemas of topics, which may be registered before the topic exists.

    A schema argument is a schema (``JsonSchema(Job)``, ...), a dataclass or a similar class, or a
    `SchemaInfo`.
    """

    async def get(self, topic: Topic, version: int | None = None) -> SchemaVersion | None:
        """Return a version, the newest by default; None if the topic has none."""
        suffix = "" if version is None else f"/{check_int('version', version, 0)}"
        try:
            return await self._calls.get(SchemaVersion, f"{_path(topic)}/schema{suffix}")
        except AdminNotFound:
            return None

    async def versions(self, topic: Topic) -> SchemaVersions:
        """Return all versions, oldest first."""
        try:
            found = await self._calls.call("GET", f"{_path(topic)}/schemas")
        except AdminNotFound:
            return []
        return [_version(one) for one in (found or {}).get("getSchemaResponses", ())]

    async def upload(self, topic: Topic, schema: Described) -> int:
        """Register a schema and return its version. Raises `AdminConflict` if it is incompatible."""
        found = await self._calls.call("POST", f"{_path(topic)}/schema", schema_json(schema))
        return _number(found)

    async def delete(self, topic: Topic, *, force: bool = False) -> None:
        """Delete all versions for good. ``force``: numbering restarts too, so messages written with the old
        versions are then decoded with new schemas."""
        await self._calls.call("DELETE", f"{_path(topic)}/schema", query={"force": force})

    async def check(self, topic: Topic, schema: Described) -> Compatibility:
        """Return whether a schema is compatible with the registered ones."""
        try:
            found = await self._calls.call("POST", f"{_path(topic)}/compatibility", schema_json(schema))
        except AdminServerError as error:
            if "Incompatible schema" not in str(error):
                raise
            # Apache Pulsar fails if the schema types differ.
            return Compatibility(compatible=False)
        return Compatibility(
            compatible=bool(found["compatibility"]), strategy=str(found["schemaCompatibilityStrategy"])
        )


def _path(topic: Topic) -> str:
    return f"schemas/{topic_path(topic).partition('/')[2]}"


def _version(found: Mapping[str, Any]) -> SchemaVersion:
    return SchemaVersion(
        version=int(found.get("version", 0)),
        type=str(found.get("type", "")),
        data=str(found.get("data", "")),
        timestamp=int(found.get("timestamp", 0)),
        properties=found.get("properties") or {},
    )


def _number(found: Any) -> int:
    """Return the version in an answer, which Pulsar nests."""
    while isinstance(found, Mapping):
        found = found.get("version")
    return int(found)


def schema_json(schema: Described) -> dict[str, Any]:
    """Return ``{"type", "schema", "properties"}``. Raises `InvalidConfiguration`."""
    if not isinstance(schema, SchemaInfo):
        from geminga.client.options.arguments import checked_schema

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
