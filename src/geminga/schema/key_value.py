"""Pairs of a key and a value, each with its own schema (framing.md section 11).

INLINE puts both into the payload. SEPARATED puts only the value there, and the key into the message's
partition key (base64), by which the message is routed and compacted.
"""

import base64
import binascii
import json
from enum import Enum
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

from geminga._util.values import V
from geminga.config import check_type
from geminga.errors import CorruptPayload, IncompatibleSchema
from geminga.producer.message import KeyedContent
from geminga.schema.schema import Schema, SchemaInfo, SchemaType, is_null
from geminga.schema.versions import Reader, VersionedSchema

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
else:
    from typing import TypeVar

    K = TypeVar("K")

_SIZE = Struct(">i")
_NULL_SIZE = -1


class KeyValueEncodingType(Enum):
    """Location of a pair's key: in the payload, or in the message's partition key."""

    INLINE = "INLINE"
    SEPARATED = "SEPARATED"


class KeyValue(NamedTuple, Generic[K, V]):
    """A received pair; for sending, any tuple of two works too."""

    key: K
    value: V


class KeyValueSchema(VersionedSchema[KeyValue[K, V]]):
    """A pair of ``key_schema`` and ``value_schema``; values are `KeyValue`, or tuples of two (which type
    checkers do not accept).

    None is a null key (INLINE only) or a null value.
    """

    nulls_are_none: ClassVar[bool] = False

    def __init__(
        self, key_schema: Schema[K], value_schema: Schema[V],
        encoding: KeyValueEncodingType = KeyValueEncodingType.INLINE,
    ) -> None:  # fmt: skip
        self.key_schema: Schema[K] = check_type("key_schema", key_schema, Schema)
        self.value_schema: Schema[V] = check_type("value_schema", value_schema, Schema)
        self.encoding: KeyValueEncodingType = check_type("encoding", encoding, KeyValueEncodingType)
        self._separated = encoding is KeyValueEncodingType.SEPARATED
        key, value = _described(key_schema), _described(value_schema)
        super().__init__(
            tuple,
            SchemaType.KEY_VALUE,
            None,
            "KeyValue",
            schema_data=_join(key.data, value.data),
            properties=(
                *_part_properties("key", key),
                *_part_properties("value", value),
                ("kv.encoding.type", encoding.value),
            ),
        )

    def _parts(self, obj: Any) -> tuple[bytes | None, bytes | None]:
        if not isinstance(obj, tuple) or len(obj) != 2:
            raise TypeError(f"{self} takes a KeyValue or a tuple (key, value), not {type(obj).__name__}")
        key, value = obj
        return (
            None if key is None else self.key_schema.encode(key),
            None if value is None else self.value_schema.encode(value),
        )

    def encode(self, obj: Any) -> bytes:
        """Return the payload of a pair. Raises `TypeError` for any other value."""
        key, value = self._parts(obj)
        if self._separated:
            return value or b""
        return _sized(key) + _sized(value)

    def encode_message(self, obj: Any) -> bytes | KeyedContent:
        """Return the content of a pair. Raises `TypeError` for another value, a null key with SEPARATED."""
        if not self._separated:
            return self.encode(obj)
        key, value = self._parts(obj)
        if key is None:
            raise TypeError(f"{self} keeps the key apart: it cannot be None")
        return KeyedContent(value, key)

    def decode(self, data: bytes) -> Any:
        """Return the pair of a payload; with SEPARATED its key is None, as the payload does not hold it.

        Raises `CorruptPayload`.
        """
        if self._separated:
            return KeyValue(None, self.value_schema.decode(data))
        key, value = split_pair(data)
        return KeyValue(
            None if key is None else self.key_schema.decode(key),
            None if value is None else self.value_schema.decode(value),
        )

    def _read_own(self, msg: Any) -> Any:
        return _read(msg, self.key_schema.decode_message, self.value_schema.decode_message, self._separated)

    def _reader(self, writer: SchemaInfo) -> Reader:
        key, value = parts_of(writer)
        read_key = _part_reader(self.key_schema, key)
        read_value = _part_reader(self.value_schema, value)
        # A topic may have changed its encoding: what counts is the writer's.
        separated = encoding_of(writer) is KeyValueEncodingType.SEPARATED
        return lambda msg: _read(msg, read_key, read_value, separated)

    def __str__(self) -> str:
        return f"KeyValueSchema({self.key_schema}, {self.value_schema}, {self.encoding.value})"


def _read(msg: Any, read_key: Reader, read_value: Reader, separated: bool) -> KeyValue[Any, Any]:
    key: bytes | None
    value: bytes | None
    if separated:
        key, value = _key_of(msg), None if is_null(msg) else msg.data()
    elif is_null(msg):
        key = value = None
    else:
        key, value = split_pair(msg.data())
    return KeyValue(
        None if key is None else read_key(_Part(key)), None if value is None else read_value(_Part(value))
    )


class _Part:
    """Key or value of a pair in the form of a message with only a payload, for the schema of that part."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def data(self) -> bytes:
        return self._data

    def schema_version(self) -> str:
        return ""


def _part_reader(schema: Schema, writer: SchemaInfo) -> Reader:
    """Return the reader of a part whose writer used another schema."""
    if isinstance(schema, VersionedSchema):
        return schema._reader(writer)
    return schema.decode_message


def _key_of(msg: Any) -> bytes | None:
    if not msg.has_partition_key():
        return None
    key: str = msg.partition_key()
    if not msg.partition_key_is_base64():
        return key.encode()
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error as error:
        raise CorruptPayload(f"the key {key[:100]!r} is no base64: {error}") from error


# --- payloads and definitions ---------------------------------------------------------------------


def _sized(part: bytes | None) -> bytes:
    return _SIZE.pack(_NULL_SIZE) if part is None else _SIZE.pack(len(part)) + part


def split_pair(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the key and the value of an INLINE payload. Raises `CorruptPayload`."""
    parts: list[bytes | None] = []
    place = 0
    for what in ("key", "value"):
        try:
            (size,) = _SIZE.unpack_from(data, place)
        except StructError:
            raise CorruptPayload(f"a pair of {len(data)} bytes ends before its {what}") from None
        place += _SIZE.size
        if size == _NULL_SIZE:
            parts.append(None)
            continue
        if size < 0 or place + size > len(data):
            raise CorruptPayload(f"the {what} of a pair of {len(data)} bytes has the size {size}")
        parts.append(bytes(data[place : place + size]))
        place += size
    if place != len(data):
        raise CorruptPayload(f"a pair ends at byte {place} of {len(data)}")
    return parts[0], parts[1]


def _join(key: bytes, value: bytes) -> bytes:
    return _SIZE.pack(len(key)) + key + _SIZE.pack(len(value)) + value


def _described(schema: Schema) -> SchemaInfo:
    """Return a part's schema as Java describes it: bytes have a type too, and text has no definition."""
    info = schema.told_to_topic()
    if info is None:
        return SchemaInfo(type=int(SchemaType.BYTES), name="Bytes")
    if info.type == SchemaType.STRING:
        return SchemaInfo(type=info.type, name="String")
    return info


def _part_properties(part: str, info: SchemaInfo) -> tuple[tuple[str, str], ...]:
    return (
        (f"{part}.schema.name", info.name),
        (f"{part}.schema.properties", json.dumps(dict(info.properties), separators=(",", ":"))),
        (f"{part}.schema.type", SchemaType(info.type).name),
    )


def parts_of(info: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo]:
    """Return the schemas of key and value. Raises `IncompatibleSchema` if ``info`` is no pair's schema."""
    properties = dict(info.properties)
    try:
        if info.type != SchemaType.KEY_VALUE:
            raise ValueError(f"its type is {info.type}")
        key, value = split_pair(info.data)
        return _part_info("key", key or b"", properties), _part_info("value", value or b"", properties)
    except (CorruptPayload, KeyError, ValueError, TypeError, RecursionError) as error:
        raise IncompatibleSchema(f"the topic's schema describes no pair: {error}") from error


def _part_info(part: str, data: bytes, properties: dict[str, str]) -> SchemaInfo:
    own = json.loads(properties.get(f"{part}.schema.properties") or "{}")
    return SchemaInfo(
        type=int(SchemaType[properties[f"{part}.schema.type"]]),
        name=properties.get(f"{part}.schema.name", ""),
        data=data,
        properties=tuple((str(key), str(value)) for key, value in dict(own or {}).items()),
    )


def encoding_of(info: SchemaInfo) -> KeyValueEncodingType:
    """Return the encoding of a pair's schema; INLINE if the schema does not name one."""
    name = dict(info.properties).get("kv.encoding.type", "INLINE")
    try:
        return KeyValueEncodingType(name)
    except ValueError:
        raise IncompatibleSchema(f"the topic's schema has the unknown encoding {name[:100]!r}") from None
