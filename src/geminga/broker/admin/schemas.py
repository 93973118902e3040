"""``/admin/v2/schemas``: the versions of topics' schemas."""

import json
import struct
from typing import Any, Final

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import LONG_BODY_BYTES_MAX, Resource, answer, object_body, query_flag, topic_of
from geminga.broker.admin.routes import ADMINISTRATOR, LOOK, PRODUCE, route
from geminga.broker.rules.compatibility import check_compatible, check_definition
from geminga.broker.rules.policies import text_map
from geminga.broker.rules.schemas import check_size
from geminga.broker.runtime.refusal import Refused
from geminga.config import suggestion
from geminga.ids import TopicName
from geminga.schema_info import SchemaType
from geminga.wire.proto import pulsar_wire_pb2 as pb

_PATH = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

_TYPES: Final = {name: int(kind) for name, kind in SchemaType.__members__.items() if kind >= 0}
_NAMES: Final = {number: name for name, number in _TYPES.items()}
_LENGTH = struct.Struct(">i")


def pack_key_value(data: str) -> bytes:
    """Return key and value schema in wire format, from ``{"key": ..., "value": ...}``."""
    try:
        both = json.loads(data)
        parts = [both["key"], both["value"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise AdminRefusal(422, 'a KEY_VALUE schema is a JSON object {"key": ..., "value": ...}') from None
    out = b""
    for item in parts:
        raw = (item if isinstance(item, str) else json.dumps(item)).encode()
        out += _LENGTH.pack(len(raw)) + raw
    return out


def unpack_key_value(data: bytes) -> str:
    """The inverse of `pack_key_value`; bytes in another format are decoded as text."""
    parts, place = [], 0
    try:
        for _ in range(2):
            size = max(0, _LENGTH.unpack_from(data, place)[0])
            place += _LENGTH.size
            parts.append(data[place : place + size].decode())
            place += size
    except (struct.error, UnicodeDecodeError):
        return data.decode(errors="replace")
    return json.dumps({"key": _parsed(parts[0]), "value": _parsed(parts[1])})


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class SchemasResource(Resource):
    """Schemas of topics. A topic may have a schema before it exists."""

    def _topic(self, request: web.Request) -> TopicName:
        topic = topic_of(request, domain="persistent")
        self.namespaces.policies(topic.tenant, topic.namespace)
        return topic

    @route("GET", _PATH + "/schema", needs=LOOK)
    async def latest(self, request: web.Request) -> object:
        """The newest schema of a topic."""
        topic = self._topic(request)
        found = self.server.broker.schemas.latest(topic)
        if found is None:
            raise AdminRefusal(404, f"Schema not found for topic {topic}")
        return _schema_json(*found)

    @route("GET", _PATH + "/schema/{version}", needs=LOOK)
    async def get(self, request: web.Request, version: int) -> object:
        """One version of the schema."""
        topic = self._topic(request)
        found = self.server.broker.schemas.get(topic, version)
        if found is None:
            raise AdminRefusal(404, f"Schema version {version} not found for topic {topic}")
        return _schema_json(version, found)

    @route("GET", _PATH + "/schemas", needs=LOOK)
    async def all(self, request: web.Request) -> object:
        """All versions."""
        found = self.server.broker.schemas.numbered(self._topic(request))
        return {"getSchemaResponses": [_schema_json(number, schema) for number, schema in found]}

    @route("GET", _PATH + "/metadata", needs=LOOK)
    async def metadata(self, request: web.Request) -> dict[str, Any] | None:
        """Version numbers; 204 if the topic has no schema."""
        topic = self._topic(request)
        count = len(self.server.broker.schemas.versions(topic))
        if not count:
            return None
        # Schemas are not stored in ledgers here: only the version numbers have a meaning.
        index = [{"ledgerId": -1, "entryId": number, "version": number} for number in range(count)]
        return {"info": index[-1], "index": index}

    @route("POST", _PATH + "/schema", needs=PRODUCE)
    async def upload(self, request: web.Request) -> object:
        """Set a topic's schema if its compatibility strategy allows it. Body: ``type``, ``schema``,
        ``properties``. 409 if it is incompatible."""
        topic, schema = self._topic(request), await self._posted(request)
        schemas = self.server.broker.schemas
        try:
            check_definition(schema)
        except Refused as refused:
            raise AdminRefusal(422, refused.reason) from refused
        number = await self.durable(lambda done: schemas.put(topic, schema, auto_update=True, done=done))
        return {"version": {"version": number}}

    @route("DELETE", _PATH + "/schema", needs=ADMINISTRATOR)
    async def delete(self, request: web.Request) -> object:
        """Delete all of a topic's schemas; the answer is the deletion's version, and version numbers are not
        reused. With ``?force=true`` numbers restart at 0: remaining messages are then decoded with new
        schemas."""
        topic, force = self._topic(request), query_flag(request, "force")
        schemas = self.server.broker.schemas
        if force:
            await self.durable(lambda done: schemas.delete(topic, done))
            return {"version": -1}
        return {"version": await self.durable(lambda done: schemas.retire(topic, done))}

    @route("POST", _PATH + "/compatibility", needs=LOOK)
    async def compatibility(self, request: web.Request) -> web.Response:
        """Whether a schema is compatible, and by which strategy."""
        topic, schema = self._topic(request), await self._posted(request)
        strategy = self.namespaces.topic_policies(topic).schema_compatibility_strategy
        try:
            check_compatible(schema, self.server.broker.schemas.intact(topic), strategy)
            fits = True
        except Refused:
            fits = False
        return answer({"schemaCompatibilityStrategy": strategy, "compatibility": fits}, 202)

    @route("POST", _PATH + "/version", needs=LOOK)
    async def version(self, request: web.Request) -> object:
        """Version of a schema; -1 if the topic does not have it."""
        topic, schema = self._topic(request), await self._posted(request)
        return {"version": self.server.broker.schemas.find(topic, schema)}

    async def _posted(self, request: web.Request) -> pb.Schema:
        document = await object_body(request, bytes_max=LONG_BODY_BYTES_MAX)
        kind, data = document.get("type"), document.get("schema") or ""
        if kind not in _TYPES:
            raise AdminRefusal(422, f"no schema type is called {kind!r}{suggestion(kind, _TYPES)}")
        if not isinstance(data, str):
            raise AdminRefusal(422, f"schema={data!r} is not allowed; allowed: text")
        schema = pb.Schema(name="", type=_TYPES[kind])  # type: ignore[arg-type]
        schema.schema_data = pack_key_value(data) if kind == "KEY_VALUE" else data.encode()
        for key, value in text_map("properties", document.get("properties") or {}).items():
            schema.properties.add(key=key, value=value)
        check_size(schema)
        return schema


def _schema_json(version: int, schema: pb.Schema) -> dict[str, Any]:
    kind = _NAMES.get(schema.type, "NONE")
    data = schema.schema_data
    text = unpack_key_value(data) if kind == "KEY_VALUE" else data.decode(errors="replace")
    properties = {str(item.key): str(item.value) for item in schema.properties}  # type: ignore[attr-defined]
    return {"version": version, "type": kind, "timestamp": 0, "data": text, "properties": properties}
