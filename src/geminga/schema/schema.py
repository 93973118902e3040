"""Schemas: encode and decode values, and describe themselves to the topic (framing.md section 11)."""

from __future__ import annotations

import json
from enum import Enum
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any, ClassVar, Generic

from geminga._util.values import V
from geminga.producer.message import KeyedContent
from geminga.schema.definition import Record, read_json
from geminga.schema_info import SchemaInfo as SchemaInfo
from geminga.schema_info import SchemaType as SchemaType
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import text


class Schema(Generic[V]):
    """Base of all schemas; subclasses define `encode` and `decode`.

    ``record_cls`` is the type of values; ``schema_definition`` is registered on the topic as JSON
    text, byte for byte as ``pulsar-client`` writes it, so that both get the same schema version;
    ``schema_data``, if given, is registered unchanged instead.
    """

    reads_versions: ClassVar[bool] = False
    """Whether decoding needs the schema that a message was written with: see `geminga.schema.versions`."""

    needs_topic: ClassVar[bool] = False
    """Whether a producer first requests the topic's schema and uses `for_topic`."""

    nulls_are_none: ClassVar[bool] = False
    """Whether the value of a message with a null value (a tombstone) is None; else the payload is decoded."""

    def __init__(
        self, record_cls: Any, schema_type: SchemaType, schema_definition: Any, schema_name: str, *,
        schema_data: bytes | None = None, properties: tuple[tuple[str, str], ...] = (),
    ) -> None:  # fmt: skip
        self._record_cls = record_cls
        self._schema_type = SchemaType(schema_type)
        self._schema_name = schema_name
        self._client: Any = None
        self._properties = properties
        if schema_data is None:
            schema_data = json.dumps(schema_definition, indent=True).encode()
        self._schema_data = schema_data

    def encode(self, obj: V) -> bytes:
        """Return the payload of a value. Raises `TypeError` for a value of another type."""
        raise NotImplementedError

    def decode(self, data: bytes) -> V:
        """Return the value of a payload."""
        raise NotImplementedError

    def encode_message(self, obj: Any) -> bytes | KeyedContent:
        """Return the message content for a value; override it to set the message's key, too."""
        return self.encode(obj)

    def decode_message(self, msg: Any) -> Any:
        """Return the value of a message; override it to use more than the payload."""
        data = msg.data()
        return None if not data and self.nulls_are_none and is_null(msg) else self.decode(data)

    def for_topic(self, info: SchemaInfo | None) -> Schema[V]:
        """Return the schema for producers on a topic whose newest schema is ``info``, if `needs_topic`."""
        return self

    def schema_info(self) -> SchemaInfo:
        """Return type, name, definition and properties of the schema."""
        kind = int(self._schema_type)
        return SchemaInfo(
            type=kind, name=self._schema_name, data=self._schema_data, properties=self._properties
        )

    def told_to_topic(self) -> SchemaInfo | None:
        """Return `schema_info`; None for schemas that are not registered (bytes, and those of the topic)."""
        info = self.schema_info()
        return None if info.type <= SchemaType.NONE else info

    def wire_schema(self) -> pb.Schema | None:
        """Return `told_to_topic` in the form of the SUBSCRIBE command."""
        info = self.told_to_topic()
        return None if info is None else to_wire(info)

    def attach_client(self, client: Any) -> None:
        """Set the client that uses this schema, for schemas that look up versions."""
        self._client = client

    def _validate_object_type(self, obj: Any) -> None:
        if not isinstance(obj, self._record_cls):
            expected = getattr(self._record_cls, "__name__", self._record_cls)
            raise TypeError(f"{self} takes a {expected}, not a {type(obj).__name__}")

    def __str__(self) -> str:
        return type(self).__name__

    __repr__ = __str__


def to_wire(info: SchemaInfo) -> pb.Schema:
    """Return a schema in the form of commands."""
    schema = pb.Schema(name=str(info.name), schema_data=info.data, type=info.type)  # type: ignore[arg-type]
    for key, value in info.properties:
        schema.properties.add(key=key, value=value)
    return schema


def from_wire(schema: pb.Schema) -> SchemaInfo:
    """Return the schema of a command as the public API's `SchemaInfo`."""
    pairs: Any = schema.properties
    properties = tuple((text(pair.key), text(pair.value)) for pair in pairs)
    return SchemaInfo(
        type=int(schema.type), name=text(schema.name), data=bytes(schema.schema_data), properties=properties
    )


def is_null(msg: Any) -> bool:
    """Whether a message has the value null, as tombstones have."""
    has_null_value = getattr(msg, "has_null_value", None)
    return has_null_value is not None and bool(has_null_value())


class BytesSchema(Schema[bytes]):
    """Payloads unchanged; no schema is registered on the topic."""

    def __init__(self) -> None:
        super().__init__(bytes, SchemaType.BYTES, None, "BYTES")

    def encode(self, data: Any) -> bytes:
        if not isinstance(data, bytes):
            self._validate_object_type(data)
        payload: bytes = data
        return payload

    def decode(self, data: bytes) -> bytes:
        return data


class StringSchema(Schema[str]):
    """UTF-8 text."""

    def __init__(self) -> None:
        super().__init__(str, SchemaType.STRING, None, "STRING")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        data: bytes = obj.encode("utf-8")
        return data

    def decode(self, data: bytes) -> str:
        return bytes(data).decode("utf-8")


class JsonSchema(Schema[V]):
    """JSON objects: a `Record` class, a dataclass, a Pydantic model, a named tuple or a typed dict.

    See `geminga.schema.models` for how annotations become a definition. Raises `TypeError` for any other
    class, and for an annotation that has no form.
    """

    nulls_are_none = True

    def __init__(self, record_cls: type[V]) -> None:
        self._model: Any = None
        if isinstance(record_cls, type) and issubclass(record_cls, Record):
            super().__init__(record_cls, SchemaType.JSON, record_cls.schema(), "JSON")
            return
        from geminga.schema.models import Form, model_of

        self._model = model = model_of(record_cls, Form.JSON)
        super().__init__(model.value_type, SchemaType.JSON, model.definition, "JSON")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        if self._model is not None:
            data: bytes = self._model.to_json(obj)
            return data
        try:
            text = _indented(obj, "\n")
        except (_NotPlain, TypeError):
            text = json.dumps(_record_values(obj), default=_plain, indent=True)
        return text.encode("utf-8")

    def decode(self, data: bytes) -> V:
        """Return the value. Raises `CorruptPayload` if the payload does not fit, and a `Record`'s errors."""
        if self._model is not None:
            value: V = self._model.from_json(data)
        else:
            value = self._record_cls(**read_json(data))
        return value


class _NotPlain(Exception):
    """A value that `_indented` leaves to `json.dumps`."""


def _indented(value: Any, line: str) -> str:
    """Return the text of ``json.dumps(value, indent=True)``, which is slow; ``line`` begins a line."""
    kind = type(value)
    if kind is str:
        return encode_basestring_ascii(value)
    if kind is int:
        return repr(value)
    if kind is float:
        if isfinite(value):
            return repr(value)
    elif value is None:
        return "null"
    elif kind is bool:
        return "true" if value else "false"
    elif kind is list:
        inner = line + " "
        items = [inner + _indented(item, inner) for item in value]
        return f"[{','.join(items)}{line}]" if items else "[]"
    elif kind is dict or isinstance(value, Record):
        if kind is not dict:
            value = _record_values(value)
        inner = line + " "
        pairs = [
            f"{inner}{encode_basestring_ascii(key)}: {_indented(one, inner)}" for key, one in value.items()
        ]
        return "{" + ",".join(pairs) + line + "}" if pairs else "{}"
    elif isinstance(value, (Enum, bytes)):
        return _indented(_plain(value), line)
    raise _NotPlain


def _record_values(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record._fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Record):
        return _record_values(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
