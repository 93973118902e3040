"""Schemas: encode and decode values, and describe themselves to the topic (framing.md section 11)."""

from __future__ import annotations

import json
from enum import Enum, IntEnum
from typing import Any

from geminga.producer.settings import SchemaInfo as SchemaInfo
from geminga.schema.definition import Record
from geminga.wire.proto import pulsar_wire_pb2 as pb


class SchemaType(IntEnum):
    """Kinds of schema, with the wire's numbers; those below 1 are never sent (framing.md section 11)."""

    AUTO_PUBLISH = -4
    AUTO_CONSUME = -3
    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    KEY_VALUE = 15
    PROTOBUF_NATIVE = 20


class Schema:
    """Base of all schemas; subclasses define `encode` and `decode`.

    ``record_cls`` is the type of values; ``schema_definition`` goes to the topic as JSON text, in the
    very form in which ``pulsar-client`` writes it, so that both get the same schema version.
    """

    def __init__(
        self, record_cls: Any, schema_type: SchemaType, schema_definition: Any, schema_name: str
    ) -> None:
        self._record_cls = record_cls
        self._schema_type = SchemaType(schema_type)
        self._schema_name = schema_name
        self._client: Any = None
        self._schema_data = json.dumps(schema_definition, indent=True).encode()

    def encode(self, obj: Any) -> bytes:
        """The payload of a value. Raises `TypeError` for a value of another type."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        """The value of a payload."""
        raise NotImplementedError

    def decode_message(self, msg: Any) -> Any:
        """The value of a message; override it to look at more than the payload."""
        return self.decode(msg.data())

    def schema_info(self) -> SchemaInfo | None:
        """What the topic is told; None when the topic stays without a schema (bytes)."""
        if self._schema_type <= SchemaType.NONE:
            return None
        return SchemaInfo(type=int(self._schema_type), name=self._schema_name, data=self._schema_data)

    def wire_schema(self) -> pb.Schema | None:
        """`schema_info` as SUBSCRIBE carries it."""
        info = self.schema_info()
        if info is None:
            return None
        return pb.Schema(name=info.name, schema_data=info.data, type=info.type)  # type: ignore[arg-type]

    def attach_client(self, client: Any) -> None:
        """The client that uses this schema, for schemas that look up versions."""
        self._client = client

    def _validate_object_type(self, obj: Any) -> None:
        if not isinstance(obj, self._record_cls):
            expected = getattr(self._record_cls, "__name__", self._record_cls)
            raise TypeError(f"{self} takes a {expected}, not a {type(obj).__name__}")

    def __str__(self) -> str:
        return type(self).__name__

    __repr__ = __str__


class BytesSchema(Schema):
    """Payloads as they are; the topic is told nothing."""

    def __init__(self) -> None:
        super().__init__(bytes, SchemaType.BYTES, None, "BYTES")

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, bytes):
            self._validate_object_type(obj)
        data: bytes = obj
        return data

    def decode(self, data: bytes) -> Any:
        return data


class StringSchema(Schema):
    """UTF-8 text."""

    def __init__(self) -> None:
        super().__init__(str, SchemaType.STRING, None, "STRING")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        data: bytes = obj.encode("utf-8")
        return data

    def decode(self, data: bytes) -> Any:
        return bytes(data).decode("utf-8")


class JsonSchema(Schema):
    """A `Record` class as JSON objects."""

    def __init__(self, record_cls: type[Record]) -> None:
        super().__init__(record_cls, SchemaType.JSON, record_cls.schema(), "JSON")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        return json.dumps(_record_values(obj), default=_plain, indent=True).encode("utf-8")

    def decode(self, data: bytes) -> Any:
        return self._record_cls(**json.loads(data))


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
