"""JSON payloads, read by the definition that they were registered with, as Arrow arrays.

All payloads of a record batch are parsed at once by Arrow's own parser. Each stands in a line of its own,
``{"v": payload}``: behind the closing brace only another line may begin, so a payload can neither reach into
the next one nor hide, and as many values as lines means one each. Where that fails, payloads are parsed one
by one, which tells the damaged from the rest.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.spark.payloads.arrays import nulls_of
from geminga.spark.payloads.fitting import reader_field, source_of
from geminga.spark.payloads.nodes import Node
from geminga.spark.payloads.types import arrow_type, members_of, number_of, spark_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

_WHOLE = {"int8": 1 << 7, "int16": 1 << 15, "int": 1 << 31, "long": 1 << 63}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class JsonReader:
    """Reads the payloads of one definition. ``wanted`` and ``reader`` as for Avro."""

    def __init__(self, node: Node, wanted: pa.DataType | None = None, reader: Node | None = None) -> None:
        self.node = pruned(node, wanted, reader)
        self.kind = arrow_type(spark_type(self.node))
        self.convert = _converter(self.node)
        self.at_once = _parsed_type(self.node)

    def read(self, payloads: pa.Array) -> tuple[pa.Array, Mask]:
        """The values of ``payloads`` (binary), null where a payload is null or damaged, and the mask of the
        damaged. A value of another type than its field's, or out of its range, is damage."""
        found = None if self.at_once is None or not len(payloads) else self._at_once(payloads)
        if found is not None:
            return found, np.zeros(len(payloads), np.bool_)
        return self._one_by_one(payloads)

    def _at_once(self, payloads: pa.Array) -> pa.Array | None:
        from pyarrow import json as arrow_json

        filled = pc.fill_null(payloads, b"null") if payloads.null_count else payloads
        lines = pc.binary_join_element_wise(b'{"v":', filled, b"}\n", b"")
        try:
            # One array with 32-bit offsets, or nothing: a payload that is no UTF-8 is found here.
            text = lines.cast(pa.string()).buffers()[2]
            table = arrow_json.read_json(
                pa.BufferReader(text),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=text.size + 1),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=pa.schema([pa.field("v", self.at_once)]),
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
            )
        except (pa.ArrowException, AttributeError):
            return None
        if table.num_rows != len(payloads):
            return None
        column = table.column("v").combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        return column

    def _one_by_one(self, payloads: pa.Array) -> tuple[pa.Array, Mask]:
        values: list[Any] = []
        damaged = np.zeros(len(payloads), np.bool_)
        absent = nulls_of(payloads)
        for number, payload in enumerate(payloads):
            try:
                value = None if absent[number] else self.convert(json.loads(payload.as_py()))
            except (ValueError, TypeError, OverflowError, RecursionError, ArithmeticError):
                value, damaged[number] = None, True
            values.append(value)
        return pa.array(values, self.kind), damaged


def pruned(node: Node, wanted: pa.DataType | None, reader: Node | None) -> Node:
    """``node`` without the fields that nobody wants."""
    if wanted is None:
        return node
    if node.kind == "union" and node.inner is not node:
        branches = tuple(
            branch if branch.kind == "null" else pruned(branch, wanted, reader) for branch in node.branches
        )
        return Node("union", branches=branches)
    reader = None if reader is None else reader.inner
    if node.kind == "record" and pa.types.is_struct(wanted):
        names = [field.name for field in node.fields]
        chosen = {}
        for each in wanted:
            source = source_of(names, each.name, reader)
            if source is not None:
                known = reader_field(reader, each.name)
                chosen[source] = (each.type, None if known is None else known.node)
        fields = tuple(
            type(field)(field.name, pruned(field.node, *chosen[field.name]), field.default, field.aliases)
            for field in node.fields
            if field.name in chosen
        )
        return Node("record", fields=fields)
    if node.kind == "array" and pa.types.is_list(wanted):
        items = reader.branches[0] if reader is not None and reader.kind == "array" else None
        return Node("array", branches=(pruned(node.branches[0], wanted.value_type, items),))
    return node


def _parsed_type(node: Node) -> pa.DataType | None:
    """The type that Arrow's parser makes of a node; None where it can't, or would do otherwise than
    `_converter`."""
    node = node.inner
    if node.logical or node.kind in ("bytes", "fixed", "union", "map", "null"):
        return None
    if node.kind == "record":
        fields = [(field.name, _parsed_type(field.node)) for field in node.fields]
        if not fields or any(kind is None for _, kind in fields):
            return None
        return pa.struct([pa.field(name, kind) for name, kind in fields])
    if node.kind == "array":
        items = _parsed_type(node.branches[0])
        return None if items is None else pa.list_(items)
    return arrow_type(spark_type(node))


# --- one by one -----------------------------------------------------------------------------------

Convert = Callable[[Any], Any]


def _converter(node: Node) -> Convert:
    """From a value of `json.loads` to what Arrow takes. Raises `ValueError` or `TypeError`."""
    inner = node.inner
    convert = _converter_of(inner)
    return lambda value: None if value is None else convert(value)


def _converter_of(node: Node) -> Convert:
    if node.logical:
        return _LOGICAL[node.logical](node)
    if node.kind == "record":
        return _record(node)
    if node.kind == "array":
        item = _converter(node.branches[0])
        return lambda value: [item(one) for one in _checked(value, list)]
    if node.kind == "map":
        of_value = _converter(node.branches[0])
        return lambda value: [(key, of_value(one)) for key, one in _checked(value, dict).items()]
    if node.kind == "union":
        return _union(node)
    if node.kind in _WHOLE:
        return _whole(_WHOLE[node.kind])
    return _SIMPLE[node.kind]


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _record(node: Node) -> Convert:
    fields = [(field.name, _converter(field.node)) for field in node.fields]

    def convert(value: Any) -> dict[str, Any]:
        _checked(value, dict)
        return {name: of_field(value.get(name)) for name, of_field in fields}

    return convert


def _union(node: Node) -> Convert:
    members = members_of(node)
    if number_of(node) is not None:
        return _whole(1 << 63) if any(member.kind == "long" for member in members) else _float
    converters = [_converter(member) for member in members]

    def convert(value: Any) -> dict[str, Any]:
        """The first member that takes it; Java's writes a union's value without its type."""
        for number, member in enumerate(converters):
            try:
                return {f"member{number}": member(value)}
            except (ValueError, TypeError, OverflowError):
                continue
        raise TypeError(f"{value!r} is of no type of the union")

    return convert


def _whole(bound: int) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
            raise ValueError(f"{value!r} is no whole number below {bound}")
        return value

    return convert


_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _float(value: Any) -> float:
    if isinstance(value, str):
        value = _WORDS.get(value, value)  # as Jackson writes them
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _text(value: Any) -> str:
    _checked(value, str).encode()  # half a surrogate pair is no text
    return str(value)


def _raw(value: Any) -> bytes:
    try:
        return base64.b64decode(_checked(value, str), validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from None


def _boolean(value: Any) -> bool:
    return bool(_checked(value, bool))


def _nothing(value: Any) -> None:
    raise TypeError(f"{value!r} is not null")


_SIMPLE: dict[str, Convert] = {
    "boolean": _boolean, "float": _float, "double": _float, "string": _text, "enum": _text, "bytes": _raw,
    "fixed": _raw, "null": _nothing,
}  # fmt: skip


def _decimal(node: Node) -> Convert:
    quantum = decimal.Decimal(1).scaleb(-node.scale)
    context = decimal.Context(prec=76)

    def convert(value: Any) -> decimal.Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError(f"{value!r} is no decimal")
        exact = decimal.Decimal(str(value))
        found = exact.quantize(quantum, context=context)
        if found != exact or found.adjusted() >= node.precision - node.scale:
            raise ValueError(f"{value} is no decimal({node.precision},{node.scale})")
        return found

    return convert


def _moment(node: Node) -> Convert:
    unit_us = 1000 if node.logical.endswith("millis") else 1
    is_local = node.logical.startswith("local")

    def convert(value: Any) -> dt.datetime:
        if isinstance(value, str):
            moment = dt.datetime.fromisoformat(value)
            if is_local:
                return moment.replace(tzinfo=None)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
        count = _whole(1 << 63)(value)
        found = _EPOCH + dt.timedelta(microseconds=count * unit_us)
        return found.replace(tzinfo=None) if is_local else found

    return convert


def _date(node: Node) -> Convert:
    def convert(value: Any) -> dt.date:
        if isinstance(value, str):
            return dt.date.fromisoformat(value)
        if isinstance(value, list):  # as Jackson writes a LocalDate
            return dt.date(*value)
        return _EPOCH.date() + dt.timedelta(days=_whole(1 << 31)(value))

    return convert


_LOGICAL: dict[str, Callable[[Node], Convert]] = {
    "decimal": _decimal, "date": _date, "timestamp-millis": _moment, "timestamp-micros": _moment,
    "local-timestamp-millis": _moment, "local-timestamp-micros": _moment,
}  # fmt: skip
