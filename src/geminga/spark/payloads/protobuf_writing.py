"""Writer of Protobuf payloads from Arrow columns, the inverse of `geminga.spark.payloads.protobuf_columns`.

Each field is encoded for all messages at once, with its tag and size in front; a message is its fields' bytes
in the order of their numbers, as Protobuf's own library writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor as F

from geminga.errors import InvalidMessage
from geminga.spark.payloads import protobuf_kernels as k
from geminga.spark.payloads.arrays import binary_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_FIXED = {
    F.TYPE_DOUBLE: 8, F.TYPE_FIXED64: 8, F.TYPE_SFIXED64: 8, F.TYPE_FLOAT: 4, F.TYPE_FIXED32: 4,
    F.TYPE_SFIXED32: 4,
}  # fmt: skip
"""Bytes of types with a fixed size."""
_BOUNDS = {
    F.TYPE_UINT32: 1 << 32, F.TYPE_FIXED32: 1 << 32, F.TYPE_UINT64: 1 << 64, F.TYPE_FIXED64: 1 << 64,
}  # fmt: skip
_ZIGZAG = (F.TYPE_SINT32, F.TYPE_SINT64)
_VARINT_BYTES_MAX = 10


class ProtobufWriter:
    """Encodes rows as payloads of one registered message type."""

    def __init__(self, definition: bytes) -> None:
        from geminga.schema.protobuf import message_class_of

        self.descriptor = message_class_of(definition).DESCRIPTOR

    def needs(self, field: str) -> bool:
        """Return whether a message must have the field."""
        return bool(self.descriptor.fields_by_name[field].is_required)

    def write(self, rows: pa.StructArray) -> pa.Array:
        """Return the payloads (binary) of rows whose columns have the fields' names; a field without a column
        is not set. Raises `InvalidMessage` naming a field with an invalid value."""
        return _messages(self.descriptor, rows, "")


def _messages(descriptor: Any, rows: pa.StructArray, name: str) -> pa.Array:
    """Return the bytes of each message; values below a null are ignored."""
    if descriptor.full_name == "google.protobuf.Timestamp" and pa.types.is_timestamp(rows.type):
        return _times(descriptor, rows)
    columns = {
        each.name: column for each, column in zip(rows.type, rows.flatten(), strict=True)
    }  # nulls of the rows are nulls of their columns
    present = ~_nulls(rows)
    is_entry = bool(descriptor.GetOptions().map_entry)
    parts = []
    for field in sorted(descriptor.fields, key=lambda each: each.number):
        column = columns.get(field.name)
        path = f"{name}.{field.name}" if name else field.name
        if (field.is_required or is_entry) and (column is None or bool((_nulls(column) & present).any())):
            raise InvalidMessage(f"field {path!r} is required, and rows have no value for it")
        if column is not None:
            parts.append(_field(field, column, path, is_entry))
    return _joined(parts, len(rows))


def _times(descriptor: Any, times: pa.Array) -> pa.Array:
    micros = _int64s(times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64()))
    seconds = micros // 1_000_000
    nanos = (micros - seconds * 1_000_000) * 1000
    numbers = (descriptor.fields_by_name[each].number for each in ("seconds", "nanos"))
    tags = [number << 3 | k.VARINT for number in numbers]
    return _joined(
        [_numbers(tag, part, part != 0, 0) for tag, part in zip(tags, (seconds, nanos), strict=True)],
        len(times),
    )


def _field(field: Any, column: pa.Array, name: str, is_entry: bool) -> pa.Array:
    """Return the bytes of one field in each message; none where null, except in a map's entry."""
    if pa.types.is_null(column.type):
        return pa.repeat(pa.scalar(b"", pa.binary()), len(column))
    if not field.is_repeated:
        present = ~_nulls(column)
        if not (field.has_presence or is_entry):
            is_enum = field.type == F.TYPE_ENUM
            numbers = _symbols(field.enum_type, column, present, name) if is_enum else None
            present &= ~(_is_default(column) if numbers is None else numbers == 0)
        return _values(field, column, present, name)
    nulls = _nulls(column)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1].astype(
        np.int64
    )
    if pa.types.is_map(column.type):
        items: pa.Array = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
    else:
        items = column.values
    if items.null_count and _is_any_used(_nulls(items), offsets, nulls):
        raise InvalidMessage(f"field {name!r}: an item is null, which Protobuf can't represent")
    everything = np.ones(len(items), np.bool_)
    if field.is_packed:
        _, bounds, data = _bytes(_scalars(field, items, everything, 0, name))
        starts, ends = bounds[offsets[:-1]], bounds[offsets[1:]]
        return _sized(field.number << 3 | k.SIZED, starts, ends, data, ~nulls & (ends > starts))
    _, bounds, data = _bytes(_values(field, items, everything, name))
    # The items of a message are next to each other, each with its tag.
    starts, ends = bounds[offsets[:-1]], np.where(nulls, bounds[offsets[:-1]], bounds[offsets[1:]])
    return _slices(starts, ends, data)


def _is_any_used(chosen: Mask, offsets: Int64s, nulls: Mask) -> bool:
    """Return whether a chosen item belongs to a list that is not null."""
    before = np.append(0, np.cumsum(chosen))
    return bool(((before[offsets[1:]] > before[offsets[:-1]]) & ~nulls).any())


def _values(field: Any, column: pa.Array, present: Mask, name: str) -> pa.Array:
    """Return the bytes of each present value with its tag; empty bytes elsewhere."""
    if field.type == F.TYPE_MESSAGE:
        column = _messages(field.message_type, column, name)
    elif field.type not in (F.TYPE_STRING, F.TYPE_BYTES):
        wire = {8: k.EIGHT, 4: k.FOUR}.get(_FIXED.get(field.type, 0), k.VARINT)
        return _scalars(field, column, present, field.number << 3 | wire, name)
    starts, ends, data = binary_parts(column)
    return _sized(field.number << 3 | k.SIZED, starts, ends, data, present)


def _scalars(field: Any, column: pa.Array, present: Mask, tag: int, name: str) -> pa.Array:
    return _numbers(tag, _wire_numbers(field, column, present, name), present, _FIXED.get(field.type, 0))


def _wire_numbers(field: Any, column: pa.Array, present: Mask, name: str) -> Int64s:
    """Return each value as its 64-bit number on the wire."""
    if field.type == F.TYPE_ENUM:
        return _symbols(field.enum_type, column, present, name)
    if pa.types.is_floating(column.type):
        kind = np.float32 if field.type == F.TYPE_FLOAT else np.float64
        values = _filled(column).to_numpy(zero_copy_only=False).astype(kind)
        bits: Int64s = (
            values.view(np.uint32).astype(np.int64) if kind is np.float32 else values.view(np.int64)
        )
        return bits
    if pa.types.is_decimal(column.type):
        halves = _decimal_halves(column)
        if bool((halves[:, 1] != 0)[present].any()):
            raise InvalidMessage(f"field {name!r}: a number is not from 0 to 2^64 - 1")
        return np.ascontiguousarray(halves[:, 0])
    values = _int64s(column)
    bound = _BOUNDS.get(field.type)
    if bound == 1 << 32 and bool(((values < 0) | (values >= bound))[present].any()):
        raise InvalidMessage(f"field {name!r}: a number is not from 0 to 2^32 - 1")
    return (values << 1) ^ (values >> 63) if field.type in _ZIGZAG else values


def _decimal_halves(column: pa.Array) -> Int64s:
    """Return the low and high 8 bytes of whole decimals."""
    _, data = column.buffers()
    found: Int64s = np.frombuffer(data, np.int64).reshape(-1, 2)[column.offset :][: len(column)]
    return found


def _symbols(enumeration: Any, column: pa.Array, present: Mask, name: str) -> Int64s:
    coded = column.dictionary_encode()
    numbers = []
    for word in coded.dictionary.to_pylist():
        known = enumeration.values_by_name.get(word)
        number = known.number if known is not None else _number(word)
        if number is None or (known is None and enumeration.is_closed):
            names = ", ".join(enumeration.values_by_name)
            raise InvalidMessage(f"field {name!r}: {word!r} is none of {names}")
        numbers.append(number)
    codes = pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False)
    found = np.array(numbers or [0], np.int64)[codes]
    return np.where(present, found, 0)


def _number(word: str) -> int | None:
    """Return the number of an open enumeration's value without a name, as reading produces it."""
    try:
        number = int(word)
    except ValueError:
        return None
    return number if -(1 << 31) <= number < 1 << 31 else None


def _is_default(column: pa.Array) -> Mask:
    """Return the mask of values that equal the default of a missing field."""
    if pa.types.is_floating(column.type):
        values = _filled(column).to_numpy(zero_copy_only=False).astype(np.float64)
        return np.asarray((values == 0) & ~np.signbit(values))
    if pa.types.is_decimal(column.type):
        return np.asarray(~_decimal_halves(column).any(axis=1))
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        starts, ends, _ = binary_parts(column)
        return np.asarray(starts == ends)
    return np.asarray(_int64s(column) == 0)


def _filled(column: pa.Array) -> pa.Array:
    return (
        pc.fill_null(column, False if pa.types.is_boolean(column.type) else 0)
        if column.null_count
        else column
    )


def _int64s(column: pa.Array) -> Int64s:
    """Return integers and booleans as 64-bit integers; 0 for null."""
    found: Int64s = _filled(column).cast(pa.int64()).to_numpy(zero_copy_only=False).copy()
    return found


def _nulls(column: pa.Array) -> Mask:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


# --- bytes ---------------------------------------------------------------------------------------


def _numbers(tag: int, values: Int64s, present: Mask, size: int) -> pa.Array:
    offsets = np.zeros(len(values) + 1, np.int64)
    out = np.empty(len(values) * 2 * _VARINT_BYTES_MAX, np.uint8)
    put: Any = k.put_numbers
    return _array(offsets, out[: put(tag, values, present, size, offsets, out)])


def _sized(tag: int, starts: Int64s, ends: Int64s, data: NDArray[np.uint8], present: Mask) -> pa.Array:
    offsets = np.zeros(len(starts) + 1, np.int64)
    room = int((ends - starts)[present].sum()) + len(starts) * 2 * _VARINT_BYTES_MAX
    out = np.empty(room, np.uint8)
    put: Any = k.put_sized
    return _array(offsets, out[: put(tag, starts, ends, data, present, offsets, out)])


def _array(offsets: Int64s, out: NDArray[np.uint8]) -> pa.Array:
    if len(out) > (1 << 31) - 1:
        raise OverflowError(f"{len(out)} bytes in one column of a record batch")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers, 0)


def _bytes(array: pa.Array) -> tuple[Int64s, Int64s, NDArray[np.uint8]]:
    """Return starts, bounds (one more) and bytes of a written array."""
    starts, ends, data = binary_parts(array)
    return starts, np.append(starts[:1] if len(starts) else [0], ends), data


def _slices(starts: Int64s, ends: Int64s, data: NDArray[np.uint8]) -> pa.Array:
    from geminga.spark.payloads.arrays import gathered

    return gathered(data, np.ascontiguousarray(starts), np.ascontiguousarray(ends - starts), pa.binary())


def _joined(parts: Sequence[pa.Array], count: int) -> pa.Array:
    if not parts:
        return pa.repeat(pa.scalar(b"", pa.binary()), count)
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, b"")
