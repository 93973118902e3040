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
    DataType,
    DateType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from geminga.spark.payloads.arrays import booleans
from geminga.spark.payloads.json_text import converter, parsed
from geminga.spark.payloads.writing import node_of_type

if TYPE_CHECKING:
    from pyspark.sql import Column

Test = Callable[[Any], bool]
_FINER = re.compile(r"\.\d{7}")
"""A time with more digits than microseconds have."""


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
    holds = _test(schema)
    is_held = np.ones(len(texts), np.bool_)
    for number, text in enumerate(texts.cast(pa.binary())):
        try:
            raw = text.as_py()
            is_held[number] = not raw or holds(parsed(raw.decode(), twice=False))
        except (ValueError, ArithmeticError, RecursionError):
            is_held[number] = False
    return pc.if_else(booleans(is_held), None, texts)


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
