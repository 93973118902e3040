"""Reader of JSON payloads: decodes them by their registered definition into Arrow arrays.

Arrow's own parser parses all payloads of a record batch at once. Each payload is on its own line, ``{"v":
payload}``: after the closing brace only another line may begin, so a payload can't extend into the next one,
and as many values as lines means one each. Payloads with maps, or with other values than texts in text
fields, are rewritten before. If that fails, the payloads before the one that Arrow names are
parsed (or the first half, if it names none), that one and some after it by Python's parser with exact
decimals, whose values are converted a column at a time, and so on.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import functools
import json
import math
import re
from collections.abc import Callable
from itertools import chain
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.spark.payloads.arrays import Mask, binary_parts, booleans, validity
from geminga.spark.payloads.fitting import fit, pruned
from geminga.spark.payloads.json_columns import UNITS_US, converted, parsed_type
from geminga.spark.payloads.nodes import SchemaNode
from geminga.spark.payloads.types import members_of, number_of, spark_type
from geminga.spark.releases import arrow_type

_WHOLE = {"int8": 1 << 7, "int16": 1 << 15, "int": 1 << 31, "long": 1 << 63}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FEW, _MANY = 64, 8192
"""Payloads for Python's parser where Arrow's fails: at first, and at most after further failures."""
_ROW = re.compile(r" in row (\d+)$")
"""End of the errors in which Arrow names the damaged payload."""


class JsonReader:
    """Reads the payloads of one definition. ``wanted`` and ``reader`` as for Avro; ``zone``: the default time
    zone of times without one, as returned by `zone_of`. With ``holds``, a test of a `parsed` value, a payload
    is also damaged if it fails the test or repeats a key: see `geminga.spark.payloads.held_json`."""

    def __init__(
        self,
        node: SchemaNode,
        wanted: pa.DataType | None = None,
        reader: SchemaNode | None = None,
        zone: str = "UTC",
        holds: Callable[[Any], bool] | None = None,
    ) -> None:
        self.holds = holds
        self.node = pruned(node, wanted, reader)
        self.kind = arrow_type(spark_type(self.node))
        self.zone = zone_of(zone)
        self.at_once: list[tuple[pa.DataType, bool]] = []
        """Ways to parse payloads: the type, with times as text or as numbers, and whether the payloads are
        rewritten before. The one that fitted last is first."""
        self._exact_left, self._exact_size = 0, _FEW
        """Payloads for Python's parser before Arrow's is tried again, now and after its next failure."""
        self.has_decimals = _has(self.node, "decimal")
        if _parses_at_once(self.node):
            types = [parsed_type(self.node, self.kind, times_are_text=text) for text in (True, False)]
            has_maps, has_texts = _has(self.node, "map"), _has(self.node, "text")
            ways = [way for way in (False, True) if (has_maps or has_texts if way else not has_maps)]
            if holds is not None:  # times as text, and other values than texts in no text field
                types, ways = types[:1], [False] if not has_maps and not _has(self.node, "float") else []
            self.at_once = [(kind, way) for way in ways for kind in dict.fromkeys(types)]

    def read(self, payloads: pa.Array) -> tuple[pa.Array, Mask]:
        """Return the values of ``payloads`` (binary), null where a payload is null or damaged, and the mask
        of the damaged. A value of another type than its field's, or out of its range, is damaged."""
        if not len(payloads) or not self.at_once:
            return self.exactly(payloads)
        start, size, parts = 0, len(payloads), []
        while start < len(payloads):
            piece = payloads[start : start + (self._exact_left or size)]
            if self._exact_left:
                parts.append(self.exactly(piece))
                self._exact_left -= len(piece)
            else:
                found = self._at_once(piece)
                if isinstance(found, int) and found >= _FEW:
                    size = found
                    continue
                if isinstance(found, int):  # more such payloads may follow
                    self._exact_left, size = self._exact_size, _FEW
                    self._exact_size = min(2 * self._exact_size, _MANY)
                    continue
                parts.append((found, np.zeros(len(piece), np.bool_)))
                self._exact_size, size = _FEW, 2 * size
            start += len(piece)
        values, masks = zip(*parts, strict=True)
        return pa.concat_arrays(values), np.concatenate(masks)

    def _at_once(self, payloads: pa.Array) -> pa.Array | int:
        """Return the values. If a payload needs Python's parser, return how many payloads precede it; half of
        all if Arrow's error does not name it."""
        first = 0
        for number, way in enumerate(self.at_once):
            try:
                found = self._parsed_as(*way, payloads)
            except (pa.ArrowException, AttributeError) as error:
                found_row = _ROW.search(str(error))
                row = len(payloads) if found_row is None else int(found_row[1])
                # A payload with line breaks may be several of Arrow's rows.
                first = max(first, row if row < len(payloads) else len(payloads) // 2)
                continue
            self.at_once.insert(0, self.at_once.pop(number))
            return found
        return first

    @functools.cached_property
    def _rewriting(self) -> _Rewriting:
        return _Rewriting(self.node)

    def _parsed_as(self, kind: pa.DataType, rewrites: bool, payloads: pa.Array) -> pa.Array:
        """Return the values, parsed as ``kind``, after rewriting the payloads if ``rewrites``. Raises
        `AttributeError` or an Arrow error."""
        filled = pc.fill_null(payloads, b"null") if payloads.null_count else payloads
        if self.has_decimals and pc.any(pc.match_substring_regex(filled, _WRAPS)).as_py():
            raise pa.ArrowInvalid("a number that Arrow's decimals may not hold")
        if self.holds is not None and pc.any(pc.match_substring_regex(filled, _CUT_OFF)).as_py():
            raise pa.ArrowInvalid("a number or time that may have more digits than its column")
        if rewrites:
            filled = self._rewriting(filled)
        unknown = "ignore" if self.holds is None else "error"
        values = parsed_by_arrow(filled, kind, unknown_fields=unknown)
        return fit(converted(values, self.node, self.kind, self.zone), self.kind)

    def exactly(self, payloads: pa.Array) -> tuple[pa.Array, Mask]:
        """Return the same as `read`, from Python's parser alone."""
        damaged = np.zeros(len(payloads), np.bool_)
        try:
            values: list[Any] = payloads.cast(pa.string()).to_pylist()
        except pa.ArrowInvalid:
            values = payloads.to_pylist()
        for number, payload in enumerate(values):
            try:
                values[number] = None if payload is None else parsed(payload, twice=self.holds is None)
                damaged[number] = self.holds is not None and not self.holds(values[number])
            except (ValueError, ArithmeticError, RecursionError):
                damaged[number] = True
            values[number] = None if damaged[number] else values[number]
        return _column(values, self.node, self.kind, self.zone, damaged), damaged


# Not made of Python's bytes: for the first of those, Arrow imports pandas, 0.3 s of CPU in each worker.
_BEGIN, _END, _NOTHING = pa.Array.from_buffers(
    pa.binary(), 3, [None, pa.py_buffer(np.array([0, 5, 7, 7], np.int32)), pa.py_buffer(b'{"v":}\n')]
)


def parsed_by_arrow(payloads: pa.Array, kind: pa.DataType, *, unknown_fields: str = "ignore") -> pa.Array:
    """Return the values of ``payloads`` (binary, without nulls), parsed as ``kind``. Raises `AttributeError`
    or an Arrow error, also for a field that ``kind`` lacks where ``unknown_fields`` is ``error``."""
    from pyarrow import json as arrow_json

    lines = pc.binary_join_element_wise(_BEGIN, payloads, _END, _NOTHING)
    # One array with 32-bit offsets, or an error: invalid UTF-8 is detected here.
    text = lines.cast(pa.string()).buffers()[2]
    table = arrow_json.read_json(
        pa.BufferReader(text),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema([pa.field("v", kind)]),
            newlines_in_values=True,
            unexpected_field_behavior=unknown_fields,
        ),
    )
    if table.num_rows != len(payloads):
        raise pa.ArrowInvalid("a payload that is no single value")
    return pa.concat_arrays(table.column("v").chunks)


def _parses_at_once(node: SchemaNode) -> bool:
    """Return whether Arrow's parser reads a node's values, with the same results as Python's."""
    node = node.inner
    if node.kind == "record":
        return bool(node.fields) and all(_parses_at_once(field.node) for field in node.fields)
    if node.kind in ("array", "map"):
        return _parses_at_once(node.branches[0])
    return bool(node.logical) or node.kind not in ("union", "null")


class _Rewriting:
    """Table of the nodes that `geminga.spark.payloads.json_kernels` rewrites, or that contain such nodes."""

    def __init__(self, root: SchemaNode) -> None:
        from geminga.spark.payloads import json_kernels

        self.kernels = json_kernels
        self.ops: list[int] = []
        self.children: list[list[tuple[bytes, int]]] = []
        """Keys, as JSON texts, and numbers of the nodes below each."""
        self._add(root)
        below = [child for each in self.children for child in each]
        names = [name for name, _ in below]
        self.tables = (
            np.array(self.ops, np.int64),
            np.cumsum([0, *map(len, self.children)], dtype=np.int64),
            np.array([number for _, number in below], np.int64),
            np.frombuffer(b"".join(names) or b" ", np.uint8),
            np.cumsum([0, *map(len, names)], dtype=np.int64),
        )

    def _add(self, node: SchemaNode) -> int:
        """Add a node and those below; return its number."""
        node = node.inner
        if node.logical or node.kind not in _REWRITTEN:
            return self.kernels.COPIED
        number = len(self.ops)
        self.ops.append(_REWRITTEN.index(node.kind))
        self.children.append([])
        for name, child in (
            *((f.name, f.node) for f in node.fields),
            *(("", each) for each in node.branches),
        ):
            self.children[number].append((json.dumps(name, ensure_ascii=False).encode(), self._add(child)))
        if number and node.kind in ("record", "array") and len(self.ops) == number + 1:
            del self.ops[number:], self.children[number:]  # nothing below is rewritten
            return self.kernels.COPIED
        return number

    def __call__(self, payloads: pa.Array) -> pa.Array:
        """Return the rewritten payloads (binary, without nulls). Raises `ArrowInvalid` for too large ones."""
        starts, ends, data = binary_parts(payloads)
        size = self.kernels.GROWTH_MAX * int(ends[-1] - starts[0]) + self.kernels.ROOM * len(payloads)
        if size >= 1 << 31:
            raise pa.ArrowInvalid("payloads that are too large together")
        out, offsets = np.empty(size, np.uint8), np.zeros(len(payloads) + 1, np.int32)
        rewrite: Any = self.kernels.rewrite
        rewrite(data, starts, ends, self.tables, out, offsets)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.binary(), len(payloads), buffers)


_REWRITTEN = ("text", "record", "array", "map")
"""Kinds of nodes by their operations in `geminga.spark.payloads.json_kernels`."""


def _has(node: SchemaNode, kind: str) -> bool:
    """Return whether a node, or one below, is of a kind, or has a logical type of that name."""
    node = node.inner
    below = (*node.branches, *(field.node for field in node.fields))
    return kind == (node.logical or node.kind) or any(_has(each, kind) for each in below)


_WRAPS = r"\d{39}|\d[eE]\+?\d"
"""Numbers that could overflow in Arrow's parser when it rescales them to a decimal."""
NO_NUMBER = r"[:,\[\s-](NaN|Inf(inity)?)\s*[,\]}]"
"""NaN and Infinity, which Arrow reads, are no JSON."""
_CUT_OFF = rf"\.\d{{7}}|[\d.]{{16}}|\d[eE]|\\u00[23]|{NO_NUMBER}"
"""Times, also with escaped digits, and numbers that may be cut off: each double has 15 exact digits."""


# --- Python's parser ------------------------------------------------------------------------------

Convert = Callable[[Any], Any]

_DECODER = json.JSONDecoder(parse_float=decimal.Decimal)
_NUMBER_MAX = 1000
"""Maximum characters of a number for Jackson's parser."""
_SCAN: Any = _DECODER.scan_once  # type: ignore[attr-defined] # half of the decoder's time is around it


def parsed(text: bytes | str, *, twice: bool = True) -> Any:
    """Parse JSON with exact numbers: integers as int, others as Decimal. Raises `ValueError`,
    without ``twice`` also for a duplicate key and for text that Spark's `json_object_keys` rejects, and
    `ArithmeticError` for an exponent beyond Decimal's."""
    text = text if isinstance(text, str) else text.decode()
    if not twice:
        return json.loads(text, parse_float=_number, parse_constant=_number, object_pairs_hook=_once)
    try:
        value, end = _SCAN(text, 0)
    except StopIteration:
        end = -1
    # Otherwise there are spaces around the value, a byte order mark, or a fault.
    return value if end == len(text) else _DECODER.decode(text.removeprefix("\ufeff"))


def _number(text: str) -> decimal.Decimal:
    if len(text) > _NUMBER_MAX or text[-1].isalpha():
        raise ValueError("NaN, Infinity or a number that is too long")
    return decimal.Decimal(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found


def _column(values: list[Any], node: SchemaNode, kind: pa.DataType, zone: Zone, wrong: Mask) -> pa.Array:
    """Return values of `parsed` as an array, null where ``wrong``: set for each that the node can't have."""
    node = node.inner
    if node.logical or node.kind not in ("record", "array", "map", "union"):
        return _leaf(values, node, kind, zone, wrong)
    if node.kind == "union" and number_of(node) is None:
        return _union(values, node, kind, zone, wrong)
    if node.kind == "union":
        kinds = [member.kind for member in members_of(node)]
        return _leaf(values, SchemaNode("long" if "long" in kinds else "double"), kind, zone, wrong)
    wanted = list if node.kind == "array" else dict
    for number, value in enumerate(values) if not set(map(type, values)) <= {wanted, type(None)} else ():
        if not isinstance(value, wanted):
            values[number], wrong[number] = None, wrong[number] or value is not None
    absent = np.fromiter((value is None for value in values), np.bool_, len(values))
    if node.kind == "record":
        columns = [
            _column(
                [v if v is None else v.get(each.name) for v in values], each.node, field.type, zone, wrong
            )
            for each, field in zip(node.fields, kind, strict=True)
        ]
        if not columns:
            return pa.array([None if no else {} for no in absent | wrong], kind)
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=booleans(absent | wrong))
    sizes = np.fromiter((len(value or ()) for value in values), np.int32, len(values))
    parts = (value.values() if node.kind == "map" else value for value in values if value)
    items = list(chain.from_iterable(parts))
    below = np.zeros(len(items), np.bool_)
    item_kind = kind.value_type if node.kind == "array" else kind.item_type
    child = _column(items, node.branches[0], item_kind, zone, below)
    wrong[np.repeat(np.arange(len(values)), sizes)[below]] = True
    if node.kind == "map":
        keys, bad_keys = list(chain.from_iterable(filter(None, values))), below.copy()
        texts = _leaf(keys, SchemaNode("string"), pa.string(), zone, bad_keys)
        wrong[np.repeat(np.arange(len(values)), sizes)[bad_keys]] = True
        texts = pc.fill_null(texts, "") if texts.null_count else texts
        child = pa.StructArray.from_arrays([texts, child], fields=[kind.key_field, kind.item_field])
    offsets = pa.py_buffer(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
    valid, nulls = validity(absent | wrong)
    return pa.Array.from_buffers(kind, len(values), [valid, offsets], nulls, children=[child])


def _union(values: list[Any], node: SchemaNode, kind: pa.DataType, zone: Zone, wrong: Mask) -> pa.Array:
    """Return values as the first matching member; Java writes a union's value without its type."""
    columns, left = [], values
    for member, field in zip(members_of(node), kind, strict=True):
        unfit = np.zeros(len(left), np.bool_)
        columns.append(_column(list(left), member, field.type, zone, unfit))
        left = [value if unfit[number] else None for number, value in enumerate(left)]
    wrong |= np.fromiter((value is not None for value in left), np.bool_, len(left))
    absent = wrong | np.fromiter((value is None for value in values), np.bool_, len(values))
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=booleans(absent))


_EXACT: dict[str, set[type]] = {
    "boolean": {bool}, "int8": {int}, "int16": {int}, "int": {int}, "long": {int}, "string": {str},
    "text": {str}, "enum": {str},
}  # fmt: skip
"""Types of Python whose values Arrow takes as they are, or refuses."""


def _leaf(values: list[Any], node: SchemaNode, kind: pa.DataType, zone: Zone, wrong: Mask) -> pa.Array:
    types = {*map(type, values)} - {type(None)}
    try:
        if not node.logical and types <= _EXACT.get(node.kind, set()):
            return pa.array(values, kind)
        if node.kind == "double" and types <= {int, decimal.Decimal}:
            return pa.array([value if value is None else float(value) for value in values], kind)
    except (pa.ArrowException, ValueError, OverflowError):
        pass  # one of them; determined below
    convert = converter(node, zone)
    for number, value in enumerate(values):
        try:
            values[number] = None if value is None else convert(value)
        except (ValueError, TypeError, OverflowError, ArithmeticError, RecursionError):
            values[number], wrong[number] = None, True
    return pa.array(values, kind)


def converter(node: SchemaNode, zone: Zone = dt.UTC) -> Convert:
    """Return the function from a value of `parsed` to Arrow's input, for a type without others inside. It
    raises `ValueError`, `TypeError` or `ArithmeticError` for a value that the node can't have."""
    if node.logical == "decimal":
        return _decimal(node)
    if node.logical == "date":
        return _date(node)
    if node.logical:
        return _moment(node, zone)
    if node.kind in _WHOLE:
        return _whole(_WHOLE[node.kind])
    return _SIMPLE[node.kind]


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _whole(bound: int) -> Convert:
    def convert(value: Any) -> int:
        if (
            isinstance(value, decimal.Decimal)
            and value.adjusted() < 20
            and value == value.to_integral_value()
        ):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
            raise ValueError(f"{value!r} is no whole number below {bound}")
        return value

    return convert


_WORDS = {
    "NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "+INF": math.inf, "-Infinity": -math.inf,
    "-INF": -math.inf,
}  # fmt: skip
"""Jackson's and Spark's names of floats that are not numbers."""


def _float(value: Any) -> float:
    if isinstance(value, str):
        value = _WORDS.get(value, value)
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _single(value: Any) -> float:
    """Return the nearest 32-bit float, which may differ from rounding the nearest 64-bit float."""
    found = _float(value)
    if not math.isfinite(found):
        return found
    return float(pa.scalar(str(value)).cast(pa.float32()).as_py())


def _text(value: Any) -> str:
    _checked(value, str).encode()  # half a surrogate pair is invalid
    return str(value)


def _any_text(value: Any) -> str:
    """Return a string, or the text of any other value."""
    return _text(value if isinstance(value, str) else text_of(value))


_ENCODE: Any = json.encoder.c_make_encoder(  # type: ignore[attr-defined] # once: `JSONEncoder` makes one a value
    None, None, json.encoder.encode_basestring, None, ":", ",", False, False, True
)  # fmt: skip


def text_of(value: Any) -> str:
    """Return the JSON text of a value of `parsed`, without spaces and with its numbers' original digits."""
    try:
        return "".join(_ENCODE(value, 0))
    except TypeError:
        pass  # it has decimals inside
    if isinstance(value, dict):
        return f"{{{','.join(f'{text_of(key)}:{text_of(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(text_of, value))}]"
    return str(value)


def _raw(value: Any) -> bytes:
    try:
        return base64.b64decode(_checked(value, str), validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64: {error}") from None


def _nothing(value: Any) -> None:
    raise TypeError(f"{value!r} is not null")


_SIMPLE: dict[str, Convert] = {
    "boolean": functools.partial(_checked, kind=bool), "float": _single, "double": _float, "string": _text,
    "text": _any_text, "enum": _text, "bytes": _raw, "fixed": _raw, "null": _nothing,
}  # fmt: skip


_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _decimal(node: SchemaNode) -> Convert:
    quantum = decimal.Decimal(f"1E-{node.scale}")
    context = decimal.Context(prec=76)

    def convert(value: Any) -> decimal.Decimal:
        if isinstance(value, bool) or not isinstance(value, int | decimal.Decimal | str):
            raise TypeError(f"{value!r} is no decimal")
        if isinstance(value, str) and not _DECIMAL.fullmatch(value := value.replace(",", "")):
            raise ValueError(f"{value!r} is no decimal")
        exact = decimal.Decimal(value)
        found = exact.quantize(quantum, context=context)
        if found != exact or found.adjusted() >= node.precision - node.scale:
            raise ValueError(f"{value} is no decimal({node.precision},{node.scale})")
        return found

    return convert


# --- times ----------------------------------------------------------------------------------------

Zone = dt.tzinfo | None
"""Time zone; None is this process's own."""

_DAY = r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})%s)?)?"
_DATE = re.compile(_DAY % "(?:[ T].*)?", re.ASCII)
_TIME = re.compile(_DAY % r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?(.*))?", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT|Z)?(?:([+-])(\d{1,2})(?::?(\d{1,2})(?::?(\d\d))?)?)?", re.ASCII)
_SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""Java's short zone names that Spark accepts; Python knows EST, HST and MST itself."""


@functools.lru_cache(maxsize=256)
def zone_of(name: str) -> Zone:
    """Return a time zone by one of Spark's names for it: a region, an offset such as ``+01:00``, or ``UTC``;
    this process's own for an empty name. Raises `ValueError`."""
    if not name:
        return None
    match = _OFFSET.fullmatch(name)
    if match is None:
        try:
            return ZoneInfo(_SHORT_ZONES.get(name, name))
        except (KeyError, OSError):
            raise ValueError(f"{name!r} is no time zone") from None
    sign, hours, minutes, seconds = match.groups(default="0")
    offset = dt.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    return dt.timezone(-offset if sign == "-" else offset)


def _moment(node: SchemaNode, zone: Zone) -> Convert:
    """Return the parser of times as microseconds since 1970, from text or numbers."""
    unit_us = UNITS_US[node.logical.rpartition("-")[2]]
    is_local = node.logical.startswith("local")
    whole = _whole(1 << 63)

    def convert(value: Any) -> int:
        if isinstance(value, str):
            return _microseconds(value, dt.UTC if is_local else zone, takes_zone=not is_local)
        if node.kind == "string":
            raise TypeError(f"{value!r} is no time")
        return int(whole(whole(value) * unit_us))

    return convert


def _microseconds(text: str, zone: Zone, *, takes_zone: bool) -> int:
    match = _TIME.fullmatch(text.strip())
    if match is None or (match[8] and not takes_zone):
        raise ValueError(f"{text!r} is no time, or has a time zone where there is none")
    *parts, fraction, named = match.groups(default="")
    year, month, day, hour, minute, second = (int(part or i < 3) for i, part in enumerate(parts))
    found = dt.datetime(year, month, day, hour, minute, second, int(f"{fraction:0<6}"[:6]), dt.UTC)
    zone = zone_of(named.strip()) if named else zone
    local = found.replace(tzinfo=zone) if zone is not None else found.replace(tzinfo=None).astimezone()
    # Java's rules: a skipped local time moves forward, of a repeated one the first is used.
    return (found - _EPOCH - (local.utcoffset() or dt.timedelta())) // dt.timedelta(microseconds=1)


def _date(node: SchemaNode) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, str):
            match = _DATE.fullmatch(value.strip())
            if match is None:
                raise ValueError(f"{value!r} is no date")
            found = dt.date(*(int(part or 1) for part in match.groups()))
        elif node.kind == "string":
            raise TypeError(f"{value!r} is no date")
        elif isinstance(value, list):  # as Jackson writes a LocalDate
            found = dt.date(*value)
        else:
            return int(_whole(1 << 31)(value))
        return (found - _EPOCH.date()).days

    return convert
