"""Conversion of columns that Arrow's JSON parser has read to times, dates and bytes.

Only the usual notation is converted here, a whole column at once. Any other value raises, and the reader then
parses the rows concerned one by one, with the full rules.
"""

import base64
import datetime as dt
import time
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from geminga.spark.payloads.fitting import nested
from geminga.spark.payloads.nodes import SchemaNode

UNITS_US = {"seconds": 1_000_000, "millis": 1000, "micros": 1}
"""Microseconds of the units of logical types."""
_DAY = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}"
_MOMENT = _DAY + r"[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_NAMED_ZONES = (dt.datetime(1970, 1, 1), dt.datetime(2037, 1, 1))
"""Times for which Arrow and Python have the same rules of a named zone."""


def parsed_type(node: SchemaNode, kind: pa.DataType, *, times_are_text: bool) -> pa.DataType:
    """Return the type to parse a node's values as, if ``kind`` is the type that they are converted to: the
    widest decimals, to detect excess digits, and times as text or numbers."""
    node = node.inner
    if node.kind == "record":
        return pa.struct(
            field.with_type(parsed_type(each.node, field.type, times_are_text=times_are_text))
            for field, each in zip(kind, node.fields, strict=True)
        )
    if node.kind == "array":
        item = parsed_type(node.branches[0], kind.value_type, times_are_text=times_are_text)
        return pa.list_(kind.value_field.with_type(item))
    if node.kind == "map":
        item = parsed_type(node.branches[0], kind.item_type, times_are_text=times_are_text)
        return pa.list_(pa.struct([("key", pa.string()), ("value", item)]))
    if node.logical == "decimal":
        return pa.decimal256(76, 38)
    if node.logical:
        number = pa.int32() if node.logical == "date" else pa.int64()
        return pa.string() if times_are_text or node.kind == "string" else number
    return pa.string() if node.kind in ("bytes", "fixed") else kind


def converted(array: pa.Array, node: SchemaNode, kind: pa.DataType, zone: dt.tzinfo | None) -> pa.Array:
    """Convert an array of `parsed_type`; decimals stay as they are. ``zone``: zone of times that name none;
    None: that of this process. Raises `ArrowInvalid` for a value in an unusual notation."""
    node = node.inner
    if node.kind == "record":
        columns = [
            converted(array.field(number), each.node, kind.field(number).type, zone)
            for number, each in enumerate(node.fields)
        ]
        fields = [field.with_type(column.type) for field, column in zip(kind, columns, strict=True)]
        return pa.StructArray.from_arrays(
            columns, fields=fields, mask=array.is_null() if array.null_count else None
        )
    if node.kind == "array":
        values = converted(array.values, node.branches[0], kind.value_type, zone)
        return nested(array, pa.list_(kind.value_field.with_type(values.type)), values)
    if node.kind == "map":
        keys, items = array.values.flatten()
        items = converted(items, node.branches[0], kind.item_type, zone)
        kind = pa.map_(kind.key_field, kind.item_field.with_type(items.type))
        pairs = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return nested(array, kind, pairs)
    if node.logical == "decimal":
        return array
    if node.logical:
        return _times(array, node, kind, zone)
    return _bytes(array, kind) if node.kind in ("bytes", "fixed") else array


def _times(array: pa.Array, node: SchemaNode, kind: pa.DataType, zone: dt.tzinfo | None) -> pa.Array:
    if not pa.types.is_string(array.type):
        unit_us = UNITS_US.get(node.logical.rpartition("-")[2], 1)
        return (pc.multiply_checked(array, unit_us) if unit_us > 1 else array).cast(kind)
    if node.logical == "date":
        _check_matches(array, f"{_DAY}$")
        return array.cast(kind)
    is_local = node.logical.startswith("local")
    _check_matches(array, f"{_MOMENT}$" if is_local else f"{_MOMENT}Z?$")
    naive = pc.utf8_rtrim(array, "Z").cast(pa.timestamp("us"))
    if is_local:
        return naive
    in_utc = pc.ends_with(array, "Z")
    as_utc = pc.assume_timezone(naive, "UTC")
    if zone is dt.UTC or pc.all(in_utc, min_count=0).as_py():
        return as_utc.cast(kind)
    return pc.if_else(in_utc, as_utc, _in_zone(naive, zone).cast(as_utc.type)).cast(kind)


def _in_zone(naive: pa.Array, zone: dt.tzinfo | None) -> pa.Array:
    """Return the moments of local times."""
    if zone is None and time.tzname == ("UTC", "UTC"):
        zone = dt.UTC
    if isinstance(zone, dt.timezone):
        offset = pa.scalar(zone.utcoffset(None), pa.duration("us"))
        return pc.assume_timezone(pc.subtract_checked(naive, offset), "UTC")
    ends = pc.min_max(naive).as_py()
    first, end = _NAMED_ZONES
    if not isinstance(zone, ZoneInfo) or not (first <= ends["min"] and ends["max"] < end):
        raise pa.ArrowInvalid("a local time whose zone Arrow may not know")
    # A skipped local time raises; of a repeated one Java takes the first.
    return pc.assume_timezone(naive, zone.key, ambiguous="earliest", nonexistent="raise")


def _bytes(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        values = [
            None if text is None else base64.b64decode(text, validate=True) for text in array.to_pylist()
        ]
    except ValueError as error:
        raise pa.ArrowInvalid(f"no base64: {error}") from None
    return pa.array(values, kind)


def _check_matches(array: pa.Array, pattern: str) -> None:
    if not pc.all(pc.match_substring_regex(array, pattern), min_count=0).as_py():
        raise pa.ArrowInvalid("a time in another notation than the usual one")
