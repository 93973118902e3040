"""Schemas determined by the topic: reading messages of any schema, and publishing encoded payloads."""

import json
from collections.abc import Callable
from typing import Any, ClassVar

from geminga.errors import CorruptPayload, IncompatibleSchema
from geminga.schema import primitives, times
from geminga.schema.avro import AvroSchema
from geminga.schema.definition import read_json
from geminga.schema.key_value import KeyValueSchema, encoding_of, parts_of
from geminga.schema.protobuf import message_class_of
from geminga.schema.schema import BytesSchema, Schema, SchemaInfo, SchemaType, StringSchema
from geminga.schema.versions import Reader, VersionedSchema

_FIXED_SIZE = (
    primitives.BooleanSchema, primitives.Int8Schema, primitives.Int16Schema, primitives.Int32Schema,
    primitives.Int64Schema, primitives.FloatSchema, primitives.DoubleSchema, times.DateSchema,
    times.TimeSchema, times.TimestampSchema, times.InstantSchema, times.LocalDateSchema,
    times.LocalTimeSchema, times.LocalDateTimeSchema,
)  # fmt: skip
_SIMPLE: dict[int, Callable[[], Schema]] = {
    SchemaType.STRING: StringSchema,
    SchemaType.BYTES: BytesSchema,
    SchemaType.NONE: BytesSchema,
    **{each.kind: each for each in _FIXED_SIZE},
}


class GenericJsonSchema(Schema):
    """JSON without a record class: values are dicts, lists and scalars, as from `json.loads`."""

    nulls_are_none: ClassVar[bool] = True

    def __init__(self, info: SchemaInfo) -> None:
        super().__init__(
            object, SchemaType.JSON, None, info.name, schema_data=info.data, properties=info.properties
        )

    def encode(self, obj: Any) -> bytes:
        """Return the value as JSON. Raises `TypeError` for a type that JSON lacks, `ValueError` for NaN and
        infinite numbers."""
        return json.dumps(obj, allow_nan=False).encode()

    def decode(self, data: bytes) -> Any:
        """Return the value of a payload. Raises `CorruptPayload`."""
        try:
            return read_json(data)
        except (ValueError, RecursionError) as error:
            raise CorruptPayload(f"{len(data)} bytes are no JSON: {error}") from error


def schema_of(info: SchemaInfo | None) -> Schema:
    """Return a schema made from a topic's definition. Values are dicts for records, generated classes for
    Protobuf messages, `KeyValue` for pairs; bytes if ``info`` is None.

    Raises `IncompatibleSchema` for an unusable definition or an unknown type.
    """
    if info is None:
        return BytesSchema()
    simple = _SIMPLE.get(info.type)
    if simple is not None:
        return simple()
    try:
        if info.type == SchemaType.JSON:
            return GenericJsonSchema(info)
        if info.type == SchemaType.AVRO:
            return AvroSchema(None, json.loads(info.data))
        if info.type == SchemaType.PROTOBUF_NATIVE:
            from geminga.schema.protobuf import ProtobufNativeSchema

            return ProtobufNativeSchema(message_class_of(info.data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise IncompatibleSchema(f"the topic's schema cannot be used: {error}") from error
    if info.type == SchemaType.KEY_VALUE:
        key, value = parts_of(info)
        return KeyValueSchema(schema_of(key), schema_of(value), encoding_of(info))
    raise IncompatibleSchema(f"schemas of type {info.type} cannot be read without their classes")


class AutoConsumeSchema(VersionedSchema):
    """Reads every message with its writer's schema, of any type; see `schema_of`.

    The value of a message without a schema is its bytes. No schema is registered on the topic.
    """

    nulls_are_none: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__(object, SchemaType.AUTO_CONSUME, None, "AUTO_CONSUME")

    def encode(self, obj: Any) -> bytes:
        """Always raises `TypeError`: this schema only reads."""
        raise TypeError("AutoConsumeSchema only reads; AutoProduceBytesSchema publishes")

    def decode(self, data: bytes) -> Any:
        return data

    def _reader(self, writer: SchemaInfo) -> Reader:
        return schema_of(writer).decode_message


class AutoProduceBytesSchema(BytesSchema):
    """Publishes encoded payloads on a topic of any schema.

    The producer requests the topic's newest schema when it is created, and uses that schema; each payload is
    checked against it. On a topic without a schema any bytes may be sent.
    """

    needs_topic: ClassVar[bool] = True

    def __init__(self) -> None:
        Schema.__init__(self, bytes, SchemaType.AUTO_PUBLISH, None, "AUTO_PRODUCE_BYTES")

    def for_topic(self, info: SchemaInfo | None) -> Schema[bytes]:
        return BytesSchema() if info is None else _EncodedSchema(info)


class _EncodedSchema(BytesSchema):
    """`AutoProduceBytesSchema` on a topic with a schema."""

    def __init__(self, info: SchemaInfo) -> None:
        kind = SchemaType(info.type)
        Schema.__init__(self, bytes, kind, None, info.name, schema_data=info.data, properties=info.properties)
        self._checking = schema_of(info)

    def encode(self, obj: Any) -> bytes:
        """Return the bytes. Raises `TypeError` for another type, `CorruptPayload` for invalid bytes."""
        payload = super().encode(obj)
        try:
            self._checking.decode(payload)
        except UnicodeDecodeError as error:
            raise CorruptPayload(f"{len(payload)} bytes are no value of {self._checking}: {error}") from error
        return payload

    def __str__(self) -> str:
        return f"AutoProduceBytesSchema({self._checking})"
