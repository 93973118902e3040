"""Writer of Protobuf payloads from Arrow columns, by Protobuf's own library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from geminga.errors import InvalidMessage
from geminga.spark.payloads.fitting import fit
from geminga.spark.payloads.protobuf import is_map

Convert = Callable[[Any], Any]
"""Function from a Python value of Arrow to one that the library takes; None is not set."""

_BITS = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}


class ProtobufWriter:
    """Encodes rows as payloads of one registered message type."""

    def __init__(self, definition: bytes) -> None:
        from geminga.schema.protobuf import message_class_of

        self.descriptor = message_class_of(definition).DESCRIPTOR
        self.convert = _message(self.descriptor, "")

    def needs(self, field: str) -> bool:
        """Return whether a message must have the field."""
        return bool(self.descriptor.fields_by_name[field].is_required)

    def write(self, rows: pa.StructArray) -> pa.Array:
        """Return the payloads (binary) of rows whose columns have the fields' names; a field without a column
        is not set. Raises `InvalidMessage` naming a field with an invalid value, and `OverflowError` for more
        than 2 GiB."""
        convert = self.convert
        # Python has no times after the year 9999.
        values = fit(rows, _with_times_as_numbers(rows.type)).to_pylist()
        payloads = [convert(value).SerializeToString() for value in values]
        if (size := sum(map(len, payloads))) > (1 << 31) - 1:
            raise OverflowError(f"{size} bytes in one column of a record batch")
        return pa.array(payloads, pa.binary())


def _with_times_as_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_times_as_numbers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _with_times_as_numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_times_as_numbers(kind.value_type))
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _message(descriptor: Any, path: str) -> Convert:
    make: Any = GetMessageClass(descriptor)
    if descriptor.full_name == "google.protobuf.Timestamp":
        return lambda micros: make(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)
    fields = [
        (field.name, _field(field, f"{path}.{field.name}" if path else field.name))
        for field in descriptor.fields
    ]

    def convert(row: dict[str, Any]) -> Any:
        return make(**{name: of_field(row[name]) for name, of_field in fields if name in row})

    return convert


def _field(field: Any, path: str) -> Convert:
    if is_map(field):
        key, value = (
            _required(_value(each, f"{path}.{each.name}"), f"{path}.{each.name}")
            for each in (field.message_type.fields_by_name[name] for name in ("key", "value"))
        )
        # Maps whose keys are not text are arrays of structs.
        pair = _item(lambda item: item.values() if isinstance(item, dict) else item, path)
        return _optional(lambda pairs: {key(k): value(v) for k, v in map(pair, pairs)})
    of_value = _value(field, path)
    if field.is_repeated:
        of_item = _item(of_value, path)
        return _optional(lambda values: list(map(of_item, values)))
    return _required(of_value, path) if field.is_required else _optional(of_value)


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _required(convert: Convert, path: str) -> Convert:
    def of_value(value: Any) -> Any:
        if value is None:
            raise InvalidMessage(f"field {path!r} is required, and rows have no value for it")
        return convert(value)

    return of_value


def _item(convert: Convert, path: str) -> Convert:
    def of_item(item: Any) -> Any:
        if item is None:
            raise InvalidMessage(f"field {path!r}: an item is null, which Protobuf can't represent")
        return convert(item)

    return of_item


def _value(field: Any, path: str) -> Convert:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _message(field.message_type, path)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _symbol(field.enum_type, path)
    if field.cpp_type in _BITS:
        return _unsigned(_BITS[field.cpp_type], path)
    return lambda value: value


def _unsigned(bits: int, path: str) -> Convert:
    def convert(value: Any) -> int:
        number = int(value)
        if not 0 <= number < 1 << bits:
            raise InvalidMessage(f"field {path!r}: a number is not from 0 to 2^{bits} - 1")
        return number

    return convert


def _symbol(enumeration: Any, path: str) -> Convert:
    numbers = {name: value.number for name, value in enumeration.values_by_name.items()}

    def convert(word: str) -> int:
        if (number := numbers.get(word)) is None:
            # An open enumeration's value without a name, as reading produces it.
            number = None if enumeration.is_closed else _number(word)
        if number is None:
            raise InvalidMessage(f"field {path!r}: {word!r} is none of {', '.join(numbers)}")
        return number

    return convert


def _number(word: str) -> int | None:
    try:
        number = int(word)
    except ValueError:
        return None
    return number if -(1 << 31) <= number < 1 << 31 else None
