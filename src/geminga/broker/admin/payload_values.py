"""Values of Avro and Protobuf messages by the schema that they were written with, for masking their fields.

Definitions and payloads are those of clients: they are decoded in Python, without code of their library, with
at most `DEPTH_MAX` levels and the items that a `Budget` allows.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any, Final

from geminga.broker.rules import avro_rules
from geminga.broker.rules.avro_rules import AvroType
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.wire.varint import read_varint

DEPTH_MAX: Final = 64
DEFINITION_ITEMS_MAX: Final = 50_000
"""Messages and enums that are read of a definition of Protobuf."""
_NAME_SHORT: Final = 16
Decoder = Callable[[bytes, "Budget"], Any]
"""Returns the value of a payload, as `json.loads` does. Raises `Undecodable`."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STRING, _MESSAGE, _RAW, _ENUM, _BOOL, _UINT64, _UINT32 = 9, 11, 12, 14, 8, 4, 13
_INTEGERS: Final = {3: 64, 5: 32, _ENUM: 32}
"""Signed types of Protobuf and their bits."""
_ZIGZAG: Final = frozenset((17, 18))
_FIXED: Final = {1: "<d", 2: "<f", 6: "<Q", 7: "<I", 15: "<i", 16: "<q"}
"""Types of Protobuf with a fixed size, by their numbers in descriptor.proto."""


class Undecodable(ValueError):
    """A definition or a payload that cannot be decoded."""


class Budget:
    """Number of items that may still be decoded; one with a long name, of a definition, counts as several."""

    def __init__(self, items: int) -> None:
        self._items = items

    def spend(self, depth: int, name: str = "") -> None:
        """Count one item. Raises `Undecodable` for too many, or too deep ones."""
        self._items -= 1 + len(name) // _NAME_SHORT
        if self._items < 0 or depth > DEPTH_MAX:
            raise Undecodable("too many items, or too deep")


def decoder_of(schema: SchemaInfo | None) -> Decoder | None:
    """Return the decoder of a schema; None unless it is one of Avro or Protobuf. Raises `Undecodable`."""
    if schema is None or schema.type not in (SchemaType.AVRO, SchemaType.PROTOBUF_NATIVE):
        return None
    try:
        if schema.type == SchemaType.AVRO:
            kind = avro_rules.parse(schema.data)
            return lambda payload, budget: _whole(lambda reader: _avro(reader, kind, 0), payload, budget)
        types = _Types(json.loads(schema.data))
        return lambda payload, budget: _whole(types.root, payload, budget)
    except Exception as error:  # a definition of any form
        raise Undecodable(f"no definition: {type(error).__name__}") from None


def decode_nothing(_payload: bytes, _budget: Budget) -> Any:
    """Refuse a payload: the decoder of definitions that cannot be used. Raises `Undecodable`."""
    raise Undecodable("its schema cannot be used")


def _whole(read: Callable[[_Reader], Any], payload: bytes, budget: Budget) -> Any:
    reader = _Reader(payload, budget)
    try:
        value = read(reader)
    except Exception as error:  # definition and payload are of any form
        raise Undecodable(str(error)) from None
    if reader.left:
        raise Undecodable(f"{reader.left} bytes are left over")
    return value


class _Reader:
    """Position in a payload."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        self._data = data
        self._at = 0
        self.budget = budget

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise Undecodable("the payload is truncated")
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        value, self._at = read_varint(self._data, self._at)
        return value

    def long(self) -> int:
        return _zigzag(self.varint())

    def choice(self, of: Any) -> Any:
        number = self.long()
        if not 0 <= number < len(of):
            raise Undecodable(f"number {number} of {len(of)}")
        return of[number]


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _text(raw: bytes) -> str:
    """Return bytes for people."""
    return raw.hex(" ")


# --- Avro ---
_AVRO: Final[dict[str, Callable[[_Reader], Any]]] = {
    "null": lambda _: None,
    "boolean": lambda reader: reader.take(1) != b"\0",
    "int": _Reader.long,
    "long": _Reader.long,
    "float": lambda reader: struct.unpack("<f", reader.take(4))[0],
    "double": lambda reader: struct.unpack("<d", reader.take(8))[0],
    "string": lambda reader: reader.take(reader.long()).decode(),
    "bytes": lambda reader: _text(reader.take(reader.long())),
}


def _avro(reader: _Reader, kind: AvroType, depth: int, name: str = "") -> Any:
    reader.budget.spend(depth, name)
    if (single := _AVRO.get(kind.kind)) is not None:
        return single(reader)
    if kind.kind == "record":
        return {each.name: _avro(reader, each.type, depth + 1, each.name) for each in kind.fields}
    if kind.kind == "union":
        return _avro(reader, reader.choice(kind.branches), depth + 1)
    if kind.kind == "enum":
        symbol = reader.choice(kind.symbols)
        reader.budget.spend(depth, symbol)
        return symbol
    if kind.kind == "fixed":
        return _text(reader.take(kind.size))
    assert kind.inner is not None
    found: list[Any] = []
    while left := reader.long():
        if left < 0:
            left = -left
            reader.long()
        for _ in range(left):
            name = reader.take(reader.long()).decode() if kind.kind == "map" else ""
            found.append((name, _avro(reader, kind.inner, depth + 1)))
    return dict(found) if kind.kind == "map" else [value for _, value in found]


# --- Protobuf ---
class _Types:
    """Messages and enums of a definition."""

    def __init__(self, definition: Any) -> None:
        from google.protobuf import descriptor_pb2

        self._messages: dict[str, Any] = {}
        self._fields: dict[str, dict[int, Any]] = {}
        self._enums: dict[str, dict[int, str]] = {}
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(definition["fileDescriptorSet"]))
        budget = Budget(DEFINITION_ITEMS_MAX)
        for file in files.file:
            space = f".{file.package}" if file.package else ""
            self._collect(file.message_type, file.enum_type, space, 0, budget)
        self._root = f".{definition['rootMessageTypeName']}"

    def _collect(self, messages: Any, enums: Any, space: str, depth: int, budget: Budget) -> None:
        for each in enums:
            budget.spend(depth, space)
            self._enums[f"{space}.{each.name}"] = {one.number: one.name for one in each.value}
        for each in messages:
            name = f"{space}.{each.name}"
            budget.spend(depth, name)
            self._messages[name] = each
            self._fields[name] = {field.number: field for field in each.field}
            self._collect(each.nested_type, each.enum_type, name, depth + 1, budget)

    def root(self, reader: _Reader) -> dict[str, Any]:
        """Return the payload's message."""
        return self._message(reader, self._root, 0)

    def _message(self, reader: _Reader, name: str, depth: int) -> dict[str, Any]:
        fields = self._fields[name]
        found: dict[str, Any] = {}
        while reader.left:
            reader.budget.spend(depth)
            tag = reader.varint()
            wire = tag & 7
            field = fields.get(tag >> 3)
            if wire not in (_VARINT, _FIXED64, _BYTES, _FIXED32):
                raise Undecodable(f"wire type {wire}")
            part = reader
            if wire == _BYTES:
                part = _Reader(reader.take(reader.varint()), reader.budget)
            elif field is None and wire == _VARINT:
                reader.varint()
            elif field is None:
                reader.take(8 if wire == _FIXED64 else 4)
            if field is None:
                continue  # of a newer version
            own = _wire_type(field.type)
            if wire == _BYTES and own != _BYTES:  # packed numbers
                while part.left:
                    found.setdefault(field.name, []).append(self._value(part, field, depth))
            elif wire != own:
                raise Undecodable("a field has another wire type")
            elif field.label != field.LABEL_REPEATED:
                found[field.name] = self._value(part, field, depth)
            elif field.type == _MESSAGE and self._messages[field.type_name].options.map_entry:
                entry = self._value(part, field, depth)
                found.setdefault(field.name, {})[str(entry.get("key", ""))] = entry.get("value")
            else:
                found.setdefault(field.name, []).append(self._value(part, field, depth))
        return found

    def _value(self, reader: _Reader, field: Any, depth: int) -> Any:
        reader.budget.spend(depth, field.name)
        kind = field.type
        if kind == _MESSAGE:
            return self._message(reader, field.type_name, depth + 1)
        if kind == _STRING:
            return reader.take(reader.left).decode()
        if kind == _RAW:
            return _text(reader.take(reader.left))
        if kind in _FIXED:
            return struct.unpack(_FIXED[kind], reader.take(struct.calcsize(_FIXED[kind])))[0]
        number = reader.varint()
        if kind in _ZIGZAG:
            return _zigzag(number)
        if kind == _BOOL:
            return number != 0
        if kind in _INTEGERS:
            bits = _INTEGERS[kind]
            number &= (1 << bits) - 1
            number -= (number >> (bits - 1)) << bits
            if kind != _ENUM:
                return number
            symbol = self._enums.get(field.type_name, {}).get(number, number)
            reader.budget.spend(depth, str(symbol))
            return symbol
        if kind in (_UINT32, _UINT64):
            return number
        raise Undecodable(f"type {kind}")


def _wire_type(kind: int) -> int:
    if kind in (_STRING, _MESSAGE, _RAW):
        return _BYTES
    return {4: _FIXED32, 8: _FIXED64}[struct.calcsize(_FIXED[kind])] if kind in _FIXED else _VARINT
