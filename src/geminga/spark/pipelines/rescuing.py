"""JSON texts with more data than a table's columns hold, which the templates keep in ``__rescued``."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from geminga.spark.payloads.arrays import booleans
from geminga.spark.payloads.json_text import converter, parsed, parsed_by_arrow
from geminga.spark.payloads.writing import node_of_type
from geminga.spark.releases import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import Column

Test = Callable[[Any], bool]
_FINER = re.compile(r"\.\d{7}")
"""A time with more digits than microseconds have."""
_UNSURE = r"\.\d{7}|[\d.]{16}|\d[eE]|\\u00[23]"
"""Times, also with escaped digits, and numbers that may be cut off: each double has 15 exact digits."""
_BLOCK_ROWS = 1000
"""Texts that Arrow parses together; where one does not fit, each is parsed by itself."""


def beyond(schema: StructType) -> Callable[[str], Column]:
    """Return a function on a column of JSON texts: the text if columns of ``schema`` do not hold all of it.

    Null where ``from_json`` with ``schema`` returns every value of the text, at any depth, unchanged. A field
    without a column, a duplicate key, a value of another type, or digits of a number or time that the type
    cuts off all return the whole text.
    """

    def texts_beyond(texts: pa.Array) -> pa.Array:
        return texts_that(schema, texts)

    udf: Any = functions.arrow_udf  # type: ignore[attr-defined] # PySpark's stubs lack it
    found: Callable[[str], Column] = udf(texts_beyond, StringType())
    return found


def texts_that(schema: StructType, texts: pa.Array) -> pa.Array:
    """Return ``texts`` with null for those that ``schema`` holds completely; empty texts count as held."""
    holds, strict = _test(schema), _strict(schema)
    raw, is_held = texts.cast(pa.binary()), np.ones(len(texts), np.bool_)
    for at in range(0, len(texts), _BLOCK_ROWS):
        block = raw[at : at + _BLOCK_ROWS]
        if strict is None or not _fits(block, strict):
            is_held[at : at + len(block)] = [_is_held(text, holds) for text in block.to_pylist()]
    return pc.if_else(booleans(is_held), None, texts)


def _is_held(text: bytes | None, holds: Test) -> bool:
    try:
        return not text or holds(parsed(text.decode(), twice=False))
    except (ValueError, ArithmeticError, RecursionError):
        return False


def _fits(texts: pa.Array, strict: pa.DataType) -> bool:
    """Return whether Arrow's parser shows that ``strict`` holds all texts completely."""
    filled = pc.fill_null(texts, b"null")
    try:
        if not pc.any(pc.match_substring_regex(filled, _UNSURE)).as_py():
            parsed_by_arrow(filled, strict, unknown_fields="error")
            return True
    except (pa.ArrowException, AttributeError):
        pass
    return False


def _strict(kind: DataType) -> pa.DataType | None:
    """Return the type with which Arrow's parser accepts only values that ``kind`` holds, or None."""
    if isinstance(kind, StructType):
        fields = {field.name: _strict(field.dataType) for field in kind.fields}
        return None if None in fields.values() else pa.struct(list(fields.items()))
    if isinstance(kind, ArrayType):
        item = _strict(kind.elementType)
        return None if item is None else pa.list_(item)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return pa.string()
    if isinstance(
        kind, BooleanType | ByteType | ShortType | IntegerType | LongType | DoubleType | StringType
    ):
        return arrow_type(kind)
    return None


def _test(kind: DataType) -> Test:
    test = _test_of(kind)
    return lambda value: value is None or test(value)


def _test_of(kind: DataType) -> Test:
    """Return the test whether ``from_json`` keeps a `parsed` value that is not null."""
    if isinstance(kind, StructType):
        fields = {field.name: _test(field.dataType) for field in kind.fields}
        return lambda value: (
            isinstance(value, dict)
            and all(name in fields and fields[name](one) for name, one in value.items())
        )
    if isinstance(kind, ArrayType):
        item = _test(kind.elementType)
        return lambda value: isinstance(value, list) and all(map(item, value))
    if isinstance(kind, MapType):
        of_value = _test(kind.valueType)
        return lambda value: isinstance(value, dict) and all(map(of_value, value.values()))
    if isinstance(kind, StringType):
        return lambda value: isinstance(value, str)
    if isinstance(kind, DateType):
        return lambda value: isinstance(value, str) and len(value.strip()) <= len("2024-02-29")
    if isinstance(kind, TimestampType | TimestampNTZType):
        return lambda value: isinstance(value, int) or (isinstance(value, str) and not _FINER.search(value))
    convert = converter(node_of_type(kind))

    def test(value: Any) -> bool:
        try:
            found = convert(value)
        except (ValueError, TypeError, ArithmeticError):
            return False
        if isinstance(kind, DoubleType | FloatType) and not isinstance(value, str | float):
            return bool(Decimal(str(np.float32(found) if isinstance(kind, FloatType) else found)) == value)
        return True

    return test
