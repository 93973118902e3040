"""``/admin/v2/schemas``: the versions of topics' schemas."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import (
    LONG_BODY_BYTES_MAX,
    Resource,
    answer,
    done_answer,
    object_body,
    part,
    query_flag,
    stepwise,
    topic_of,
    whole_number,
)
from geminga.broker.refusal import Refused
from geminga.broker.rules.compatibility import check_definition, comparisons
from geminga.broker.rules.policies import text_map
from geminga.config import suggestion
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

_TYPES: Final = {
    "NONE": "None", "STRING": "String", "JSON": "Json", "PROTOBUF": "Protobuf", "AVRO": "Avro",
    "BOOLEAN": "Bool", "INT8": "Int8", "INT16": "Int16", "INT32": "Int32", "INT64": "Int64",
    "FLOAT": "Float", "DOUBLE": "Double", "DATE": "Date", "TIME": "Time", "TIMESTAMP": "Timestamp",
    "KEY_VALUE": "KeyValue", "INSTANT": "Instant", "LOCAL_DATE": "LocalDate", "LOCAL_TIME": "LocalTime",
    "LOCAL_DATE_TIME": "LocalDateTime", "PROTOBUF_NATIVE": "ProtobufNative",
}  # fmt: skip
"""The admin API's names of schema types and the wire's."""
_NAMES: Final = {pb.Schema.Type.Value(wire): name for name, wire in _TYPES.items()}
_LENGTH = struct.Struct(">i")


def pack_key_value(data: str) -> bytes:
    """Key and value schema as the wire has them, from ``{"key": ..., "value": ...}``."""
    try:
        both = json.loads(data)
        parts = [both["key"], both["value"]]
    except (ValueError, KeyError, TypeError):
        raise AdminRefusal(422, 'a KEY_VALUE schema is a JSON object {"key": ..., "value": ...}') from None
    out = b""
    for item in parts:
        raw = (item if isinstance(item, str) else json.dumps(item)).encode()
        out += _LENGTH.pack(len(raw)) + raw
    return out


def unpack_key_value(data: bytes) -> str:
    """The inverse of `pack_key_value`; bytes that are none are shown as they are."""
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
    except ValueError:
        return text


class SchemasResource(Resource):
    """Schemas. A topic need not exist yet: its schema may be there first."""

    def register(self, router: web.UrlDispatcher) -> None:
        base = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
        router.add_get(f"{base}/schema", self.latest)
        router.add_post(f"{base}/schema", self.upload)
        router.add_delete(f"{base}/schema", self.delete)
        router.add_get(f"{base}/schema/{{version}}", self.get)
        router.add_get(f"{base}/schemas", self.all)
        router.add_get(f"{base}/metadata", self.metadata)
        router.add_post(f"{base}/compatibility", self.compatibility)
        router.add_post(f"{base}/version", self.version)

    def _topic(self, request: web.Request) -> TopicName:
        topic = topic_of(request, domain="persistent")
        self.namespaces.policies(topic.tenant, topic.namespace)
        return topic

    async def latest(self, request: web.Request) -> web.Response:
        """The newest schema of a topic."""
        topic = self._topic(request)
        found = self.server.broker.schemas.latest(topic)
        if found is None:
            raise AdminRefusal(404, f"Schema not found for topic {topic}")
        return answer(_schema_json(*found))

    async def get(self, request: web.Request) -> web.Response:
        """One version of the schema."""
        topic = self._topic(request)
        number = whole_number(part(request, "version"), "version")
        found = self.server.broker.schemas.get(topic, number)
        if found is None:
            raise AdminRefusal(404, f"Schema version {number} not found for topic {topic}")
        return answer(_schema_json(number, found))

    async def all(self, request: web.Request) -> web.Response:
        """All versions."""
        found = self.server.broker.schemas.numbered(self._topic(request))
        return answer({"getSchemaResponses": [_schema_json(number, schema) for number, schema in found]})

    async def metadata(self, request: web.Request) -> web.Response:
        """Numbers of the versions."""
        topic = self._topic(request)
        count = len(self.server.broker.schemas.versions(topic))
        if not count:
            return done_answer()
        # Schemas are not in ledgers here: only the version numbers say something.
        index = [{"ledgerId": -1, "entryId": number, "version": number} for number in range(count)]
        return answer({"info": index[-1], "index": index})

    async def upload(self, request: web.Request) -> web.Response:
        """Give a topic a schema that its compatibility strategy allows. Body: ``type``, ``schema``,
        ``properties``. 409 where it is incompatible."""
        topic, schema = self._topic(request), await self._posted(request)
        schemas = self.server.broker.schemas
        try:
            check_definition(schema)
        except Refused as refused:
            raise AdminRefusal(422, refused.reason) from refused
        await self._read(topic, schema)
        try:
            number = await self.durable(lambda done: schemas.put(topic, schema, auto_update=True, done=done))
        except Refused as refused:
            raise AdminRefusal(409, refused.reason) from refused
        return answer({"version": {"version": number}})

    async def delete(self, request: web.Request) -> web.Response:
        """Delete all of a topic's schemas; their numbers are not given again, and the answer is the next
        one, which is the deletion's. With ``?force=true`` the numbers are forgotten, too, and begin anew:
        messages that are left are then read by what comes."""
        topic, force = self._topic(request), query_flag(request, "force")
        schemas = self.server.broker.schemas
        if force:
            await self.durable(lambda done: schemas.delete(topic, done))
            return answer({"version": -1})
        return answer({"version": await self.durable(lambda done: schemas.retire(topic, done))})

    async def compatibility(self, request: web.Request) -> web.Response:
        """Whether a schema could be given, and by which strategy."""
        topic, schema = self._topic(request), await self._posted(request)
        strategy = self.namespaces.topic_policies(topic).schema_compatibility_strategy
        try:
            async for _ in stepwise(comparisons(schema, self.server.broker.schemas.intact(topic), strategy)):
                pass
            fits = True
        except Refused:
            fits = False
        return answer({"schemaCompatibilityStrategy": strategy, "compatibility": fits}, 202)

    async def version(self, request: web.Request) -> web.Response:
        """Which version a schema is; -1 where it is none."""
        topic, schema = self._topic(request), await self._posted(request)
        await self._read(topic, schema)
        return answer({"version": self.server.broker.schemas.find(topic, schema)})

    async def _read(self, topic: TopicName, schema: pb.Schema) -> None:
        """What a topic's many versions mean, and whether the schema fits them, is found out in steps."""
        async for _ in stepwise(self.server.broker.schemas.reading(str(topic), schema, lambda: True) or ()):
            pass

    async def _posted(self, request: web.Request) -> pb.Schema:
        document = await object_body(request, bytes_max=LONG_BODY_BYTES_MAX)
        kind, data = document.get("type"), document.get("schema") or ""
        if kind not in _TYPES:
            raise AdminRefusal(422, f"no schema type is called {kind!r}{suggestion(kind, _TYPES)}")
        if not isinstance(data, str):
            raise AdminRefusal(422, f"schema={data!r} is not allowed; allowed: text")
        schema = pb.Schema(name="", type=_TYPES[kind])
        schema.schema_data = pack_key_value(data) if kind == "KEY_VALUE" else data.encode()
        for key, value in text_map("properties", document.get("properties") or {}).items():
            schema.properties.add(key=key, value=value)
        return schema


def _schema_json(version: int, schema: pb.Schema) -> dict[str, Any]:
    kind = _NAMES.get(schema.type, "NONE")
    data = schema.schema_data
    text = unpack_key_value(data) if kind == "KEY_VALUE" else data.decode(errors="replace")
    properties = {str(item.key): str(item.value) for item in schema.properties}  # type: ignore[attr-defined]
    return {"version": version, "type": kind, "timestamp": 0, "data": text, "properties": properties}
