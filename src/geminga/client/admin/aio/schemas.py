"""Schemas of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geminga.client.admin.aio.calls import AdminSection
from geminga.client.admin.aio.topics import Topic
from geminga.client.admin.exchange import topic_path
from geminga.client.admin.schema_json import Described, schema_json
from geminga.client.admin.types import Compatibility, SchemaVersion, SchemaVersions
from geminga.config import check_int
from geminga.errors import AdminNotFound, AdminServerError


class Schemas(AdminSection):
    """Schemas of topics, which a topic may have before it exists.

    Where one is given, it is a schema (``JsonSchema(Job)``, ...), a dataclass or another such class, or a
    `SchemaInfo`.
    """

    async def get(self, topic: Topic, version: int | None = None) -> SchemaVersion | None:
        """A version, the newest by default; None when the topic has none."""
        suffix = "" if version is None else f"/{check_int('version', version, 0)}"
        try:
            return await self._calls.get(SchemaVersion, f"{_path(topic)}/schema{suffix}")
        except AdminNotFound:
            return None

    async def versions(self, topic: Topic) -> SchemaVersions:
        """All versions, the oldest first."""
        try:
            found = await self._calls.call("GET", f"{_path(topic)}/schemas")
        except AdminNotFound:
            return []
        return [_version(one) for one in (found or {}).get("getSchemaResponses", ())]

    async def upload(self, topic: Topic, schema: Described) -> int:
        """Register a schema; the version that it is. Raises `AdminConflict` where it may not follow."""
        found = await self._calls.call("POST", f"{_path(topic)}/schema", schema_json(schema))
        return _number(found)

    async def delete(self, topic: Topic, *, force: bool = False) -> None:
        """All versions, with no way back to them. ``force``: their numbers, too, which then begin anew, so
        that messages written with the old ones are read by what comes."""
        await self._calls.call("DELETE", f"{_path(topic)}/schema", query={"force": force})

    async def check(self, topic: Topic, schema: Described) -> Compatibility:
        """Whether a schema may follow those there are."""
        try:
            found = await self._calls.call("POST", f"{_path(topic)}/compatibility", schema_json(schema))
        except AdminServerError as error:
            if "Incompatible schema" not in str(error):
                raise
            # Apache Pulsar fails where the kinds of schema differ.
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
    """The version in an answer; Pulsar nests it."""
    while isinstance(found, Mapping):
        found = found.get("version")
    return int(found)
