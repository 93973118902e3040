"""Avro encoders and decoders, compiled once for a definition.

They cover records, arrays, maps, enums, primitive types and unions of one type and null, and only values that
fit exactly. For all else, wrong values included, `AvroSchema` uses fastavro, whose results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Any

from geminga.schema.definition import Record

Encoder = Callable[[Any, bytearray], None]
"""Appends a value. Raises any error for a value that does not fit."""
Decoder = Callable[[bytes, int], tuple[Any, int]]
"""Returns the value at an offset, and the offset behind it. Raises any error for bytes that are no value."""

_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_LIMITS = {"int": 1 << 31, "long": 1 << 63}


class NotCompiled(Exception):
    """A definition or a value that is left to fastavro."""


def codec_of(definition: Any) -> tuple[Encoder, Decoder] | None:
    """Return encoder and decoder of a definition that fastavro has parsed; None if they do not cover it."""
    try:
        return _codec(definition, {})
    except NotCompiled:
        return None


def _codec(definition: Any, named: dict[str, tuple[Encoder, Decoder]]) -> tuple[Encoder, Decoder]:
    if isinstance(definition, list):
        return _optional(definition, named)
    if isinstance(definition, str):
        known = named.get(definition) or _PRIMITIVE.get(definition)
        if known is None:
            raise NotCompiled
        return known
    kind = definition["type"]
    if "logicalType" in definition:
        raise NotCompiled
    if kind == "record":
        return _record(definition, named)
    if kind == "enum":
        return named.setdefault(definition["name"], _enum(definition["symbols"]))
    if kind == "array":
        return _blocks(*_codec(definition["items"], named))
    if kind == "map":
        return _map(*_codec(definition["values"], named))
    return _codec(kind, named)


def _append_number(value: int, out: bytearray) -> None:
    rest = value << 1 if value >= 0 else ~(value << 1)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _number(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    rest, shift = byte & 0x7F, 7
    while byte >= 0x80:
        at += 1
        byte = data[at]
        rest |= (byte & 0x7F) << shift
        shift += 7
    if rest >> 64:
        raise NotCompiled
    return (rest >> 1) ^ -(rest & 1), at + 1


def _whole(kind: str) -> tuple[Encoder, Decoder]:
    limit = _LIMITS[kind]

    def encode(value: Any, out: bytearray) -> None:
        if type(value) is not int or not -limit <= value < limit:
            raise NotCompiled
        _append_number(value, out)

    return encode, _number


def _fraction(form: Struct) -> tuple[Encoder, Decoder]:
    def encode(value: Any, out: bytearray) -> None:
        if type(value) is not float and type(value) is not int:
            raise NotCompiled
        out += form.pack(value)

    return encode, lambda data, at: (form.unpack_from(data, at)[0], at + form.size)


def _append_bytes(value: Any, out: bytearray) -> None:
    if type(value) is not bytes:
        raise NotCompiled
    _append_number(len(value), out)
    out += value


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at)
    end = at + size
    if not at <= end <= len(data):
        raise NotCompiled
    return data[at:end], end


def _append_text(value: Any, out: bytearray) -> None:
    if type(value) is not str:
        raise NotCompiled
    _append_bytes(value.encode(), out)


def _text(data: bytes, at: int) -> tuple[str, int]:
    value, end = _bytes(data, at)
    return value.decode(), end


def _append_bool(value: Any, out: bytearray) -> None:
    if type(value) is not bool:
        raise NotCompiled
    out.append(value)


def _append_null(value: Any, out: bytearray) -> None:
    if value is not None:
        raise NotCompiled


_PRIMITIVE: dict[str, tuple[Encoder, Decoder]] = {
    "null": (_append_null, lambda data, at: (None, at)),
    "boolean": (_append_bool, lambda data, at: (data[at] != 0, at + 1)),
    "int": _whole("int"),
    "long": _whole("long"),
    "float": _fraction(_FLOAT),
    "double": _fraction(_DOUBLE),
    "bytes": (_append_bytes, _bytes),
    "string": (_append_text, _text),
}


def _optional(branches: list[Any], named: dict[str, tuple[Encoder, Decoder]]) -> tuple[Encoder, Decoder]:
    if len(branches) != 2 or "null" not in branches:
        raise NotCompiled
    null = branches.index("null")
    encode_other, decode_other = _codec(branches[1 - null], named)
    null_byte, other_byte = 2 * null, 2 - 2 * null

    def encode(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(null_byte)
        else:
            out.append(other_byte)
            encode_other(value, out)

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        byte = data[at]
        if byte == other_byte:
            return decode_other(data, at + 1)
        if byte != null_byte:
            raise NotCompiled
        return None, at + 1

    return encode, decode


def _enum(symbols: list[str]) -> tuple[Encoder, Decoder]:
    indexes = {symbol: index for index, symbol in enumerate(symbols)}

    def encode(value: Any, out: bytearray) -> None:
        _append_number(indexes[value.name if isinstance(value, Enum) else value], out)

    def decode(data: bytes, at: int) -> tuple[str, int]:
        index, at = _number(data, at)
        if index < 0:
            raise NotCompiled
        return symbols[index], at

    return encode, decode


def _blocks(encode_item: Encoder, decode_item: Decoder) -> tuple[Encoder, Decoder]:
    def encode(value: Any, out: bytearray) -> None:
        if type(value) is not list:
            raise NotCompiled
        if value:
            _append_number(len(value), out)
            for item in value:
                encode_item(item, out)
        out.append(0)

    def decode(data: bytes, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while True:
            count, at = _number(data, at)
            if count == 0:
                return items, at
            if not 0 < count <= len(data):
                raise NotCompiled
            for _ in range(count):
                item, at = decode_item(data, at)
                items.append(item)

    return encode, decode


def _map(encode_value: Encoder, decode_value: Decoder) -> tuple[Encoder, Decoder]:
    def encode_pair(pair: tuple[Any, Any], out: bytearray) -> None:
        _append_text(pair[0], out)
        encode_value(pair[1], out)

    def decode_pair(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = _text(data, at)
        value, at = decode_value(data, at)
        return (key, value), at

    encode_pairs, decode_pairs = _blocks(encode_pair, decode_pair)

    def decode(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        pairs, at = decode_pairs(data, at)
        return dict(pairs), at

    return lambda value, out: encode_pairs(list(value.items()), out), decode


def _record(definition: dict[str, Any], named: dict[str, tuple[Encoder, Decoder]]) -> tuple[Encoder, Decoder]:
    fields: list[tuple[str, Encoder, Decoder]] = []

    def encode(value: Any, out: bytearray) -> None:
        if isinstance(value, Record):
            value = value.__dict__
        elif type(value) is not dict:
            raise NotCompiled
        for name, encode_field, _ in fields:
            encode_field(value[name], out)

    def decode(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values = {}
        for name, _, decode_field in fields:
            values[name], at = decode_field(data, at)
        return values, at

    named[definition["name"]] = encode, decode
    fields += [(field["name"], *_codec(field["type"], named)) for field in definition["fields"]]
    return encode, decode
