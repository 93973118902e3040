"""Avro encoders, compiled once for a definition.

They cover records, arrays, maps, enums, primitive types and unions of one type and null, and only values that
fit exactly. `AvroSchema` leaves all else, wrong values included, to fastavro, which writes the same bytes.
"""

from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Any

from geminga.schema.definition import Record

Encoder = Callable[[Any, bytearray], None]
"""Appends a value. Raises any error for a value that does not fit."""


class NotCompiled(Exception):
    """A definition or a value that is left to fastavro."""


def encoder_of(definition: Any) -> Encoder | None:
    """Return the encoder of a definition that fastavro has parsed; None if it has parts that none covers."""
    try:
        return _encoder(definition, dict(PRIMITIVES))
    except NotCompiled:
        return None


def _encoder(definition: Any, named: dict[str, Encoder]) -> Encoder:
    if isinstance(definition, list):
        return _optional(definition, named)
    if isinstance(definition, str):
        if definition not in named:
            raise NotCompiled
        return named[definition]
    if "logicalType" in definition:
        raise NotCompiled
    kind = definition["type"]
    if kind == "record":
        return _record(definition, named)
    if kind == "enum":
        return named.setdefault(definition["name"], _enum(definition["symbols"]))
    if kind == "array":
        return _array(_encoder(definition["items"], named))
    if kind == "map":
        encode_pairs = _array(_pair(_encoder(definition["values"], named)))
        return lambda value, out: encode_pairs(list(value.items()), out)
    return _encoder(kind, named)


def _append_number(value: int, out: bytearray) -> None:
    rest = value << 1 if value >= 0 else ~(value << 1)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _append_bytes(value: bytes, out: bytearray) -> None:
    _append_number(len(value), out)
    out += value


def _of_type(append: Callable[[Any, bytearray], object], *kinds: type) -> Encoder:
    def encode(value: Any, out: bytearray) -> None:
        if type(value) not in kinds:
            raise NotCompiled
        append(value, out)

    return encode


def _whole(limit: int) -> Encoder:
    def encode(value: Any, out: bytearray) -> None:
        if type(value) is not int or not -limit <= value < limit:
            raise NotCompiled
        _append_number(value, out)

    return encode


_FLOAT, _DOUBLE = Struct("<f").pack, Struct("<d").pack
PRIMITIVES: dict[str, Encoder] = {
    "null": _of_type(lambda value, out: None, type(None)),
    "boolean": _of_type(lambda value, out: out.append(value), bool),
    "int": _whole(1 << 31),
    "long": _whole(1 << 63),
    "float": _of_type(lambda value, out: out.extend(_FLOAT(value)), float, int),
    "double": _of_type(lambda value, out: out.extend(_DOUBLE(value)), float, int),
    "bytes": _of_type(_append_bytes, bytes),
    "string": _of_type(lambda value, out: _append_bytes(value.encode(), out), str),
}


def _optional(branches: list[Any], named: dict[str, Encoder]) -> Encoder:
    if len(branches) != 2 or "null" not in branches:
        raise NotCompiled
    null = branches.index("null")
    encode_other = _encoder(branches[1 - null], named)

    def encode(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(2 * null)
        else:
            out.append(2 - 2 * null)
            encode_other(value, out)

    return encode


def _enum(symbols: list[str]) -> Encoder:
    indexes = {symbol: index for index, symbol in enumerate(symbols)}
    return lambda value, out: _append_number(indexes[value.name if isinstance(value, Enum) else value], out)


def _pair(encode_value: Encoder) -> Encoder:
    def encode(pair: tuple[Any, Any], out: bytearray) -> None:
        PRIMITIVES["string"](pair[0], out)
        encode_value(pair[1], out)

    return encode


def _array(encode_item: Encoder) -> Encoder:
    def encode(value: Any, out: bytearray) -> None:
        if type(value) is not list:
            raise NotCompiled
        if value:
            _append_number(len(value), out)
            for item in value:
                encode_item(item, out)
        out.append(0)

    return encode


def _record(definition: dict[str, Any], named: dict[str, Encoder]) -> Encoder:
    fields: list[tuple[str, Encoder]] = []

    def encode(value: Any, out: bytearray) -> None:
        if isinstance(value, Record):
            value = value.__dict__
        elif type(value) is not dict or "-type" in value:  # fastavro compares it with the record's name
            raise NotCompiled
        for name, encode_field in fields:
            encode_field(value[name], out)

    named[definition["name"]] = encode
    fields += [(field["name"], _encoder(field["type"], named)) for field in definition["fields"]]
    return encode
