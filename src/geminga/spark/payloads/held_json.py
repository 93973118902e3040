"""JSON objects that the columns of a query hold completely: every field, at any depth, with all digits; and
the search for messages that are no JSON objects."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from geminga.errors import InvalidConfiguration
from geminga.spark.payloads.arrays import Mask, booleans
from geminga.spark.payloads.json_text import NO_NUMBER, JsonReader, converter, parsed_by_arrow
from geminga.spark.payloads.writing import node_of_type
from geminga.spark.releases import arrow_schema
from geminga.spark.schema import ArrowBatchConverter, message_columns
from geminga.spark.source.reading import Again
from geminga.spark.tasks import session_zone

Test = Callable[[Any], bool]
_FINER = re.compile(r"\.\d{7}")
"""A time with more digits than microseconds have."""
_FEW, _PARTS = 64, 16
"""Maximum payloads that are parsed together only, and the parts of a larger number."""
_SIZE_MAX, _DEPTH_MAX = 50_000, 1000
"""Maximum bytes, objects and arrays of a payload that Arrow's parser decides on: Spark's allows names of
50,000 characters, and nesting to a depth of 1000."""
_NO_NUMBER = rf"\d{{300}}|{NO_NUMBER}"
"""Numbers that Arrow's parser accepts and Spark's may not: a number of more than 1000 characters has a third
of them in one run of digits at the least."""


def held_reader(schema: T.DataType, zone: str = "UTC") -> JsonReader:
    """Return a reader of the payloads that ``schema`` holds completely; all others are damaged to it.

    A payload is held if ``from_json`` with ``schema`` returns every value, at any depth, unchanged. A field
    without a column, a duplicate key, a value of another type, and digits of a number or time that the type
    cuts off prevent that. ``null`` is held.
    """
    return JsonReader(node_of_type(schema), zone=zone, holds=_test(schema))


def without_json_column(schema: T.StructType, name: str) -> T.StructType:
    """Return the message columns of a query with the option ``jsonColumn``, after checks of its columns.
    Raises `InvalidConfiguration`."""
    rest = T.StructType([field for field in schema.fields if field.name != name])
    if len(rest) == len(schema) or not isinstance(schema[name].dataType, T.StructType):
        raise InvalidConfiguration(
            f"option jsonColumn={name}: the query has no STRUCT column of that name; name all columns with "
            f".schema(), such as '{name} STRUCT<id: BIGINT>, value BINARY'"
        )
    if "value" not in message_columns(rest):
        raise InvalidConfiguration(
            f"option jsonColumn={name} requires the column 'value', with the payloads that {name} cannot hold"
        )
    node_of_type(schema[name].dataType)
    return rest


class JsonColumnConverter:
    """Converts decoded messages to record batches for the option ``jsonColumn``."""

    def __init__(self, schema: T.StructType, name: str) -> None:
        rest = without_json_column(schema, name)
        self.rest = ArrowBatchConverter(rest)
        self.columns = self.rest.columns
        self.schema: pa.Schema = arrow_schema(schema)
        self.at = schema.names.index(name)
        self.reader = held_reader(schema[name].dataType, session_zone())

    def shape(self, messages: pa.RecordBatch, again: object = None) -> pa.RecordBatch:
        """Convert ``messages``, which has the columns `columns`, perhaps followed by others."""
        number = self.columns.index("value")
        rows, _ = self.reader.read(messages.column(number))
        arrays = self.rest.shape(messages).columns
        arrays[number] = pc.if_else(rows.is_valid(), pa.nulls(1, arrays[number].type)[0], arrays[number])
        arrays.insert(self.at, rows.cast(self.schema.field(self.at).type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class WithoutObjectsConverter:
    """Converts decoded messages to record batches for the option ``withoutJsonObjects``."""

    def __init__(self, schema: T.StructType) -> None:
        self.rest = ArrowBatchConverter(schema)
        self.columns = ["value"]

    def shape(self, messages: pa.RecordBatch, again: Again | None = None) -> pa.RecordBatch:
        """Convert those of ``messages`` that may be no objects; ``again`` decodes their other columns."""
        chosen = may_be_none(messages.column(0))
        if not chosen.any():
            # Not made of a list: for the first of those, Arrow imports pandas.
            nothing = [pa.nulls(0, field.type) for field in self.rest.schema]
            return pa.RecordBatch.from_arrays(nothing, schema=self.rest.schema)
        assert again is not None
        return self.rest.shape(again(self.rest.columns).filter(booleans(chosen)))


def may_be_none(payloads: pa.Array) -> Mask:
    """Return the mask of the payloads (binary) for which Spark's `json_object_keys` may return null: all that
    Arrow's parser rejects as JSON objects, and up to `_FEW` beside each."""
    if _are_objects(payloads):
        return np.zeros(len(payloads), np.bool_)
    if len(payloads) <= _FEW:
        return np.ones(len(payloads), np.bool_)
    size = -(-len(payloads) // _PARTS)
    return np.concatenate([may_be_none(payloads[i : i + size]) for i in range(0, len(payloads), size)])


def _are_objects(payloads: pa.Array) -> bool:
    """Return whether Arrow's parser and Spark's accept all payloads. Spark's ignores text after an object."""
    longest = pc.max(pc.binary_length(payloads)).as_py() or 0
    if payloads.null_count or longest > _SIZE_MAX:
        return False
    if longest > _DEPTH_MAX and pc.max(pc.count_substring_regex(payloads, r"[\[{]")).as_py() > _DEPTH_MAX:
        return False
    try:
        is_same = not pc.any(pc.match_substring_regex(payloads, _NO_NUMBER)).as_py()
        return is_same and not parsed_by_arrow(payloads, pa.struct([])).null_count
    except (pa.ArrowException, AttributeError):
        return False


def _test(kind: T.DataType) -> Test:
    test = _test_of(kind)
    return lambda value: value is None or test(value)


def _test_of(kind: T.DataType) -> Test:
    """Return the test whether ``from_json`` keeps a `parsed` value that is not null."""
    if isinstance(kind, T.StructType):
        fields = {field.name: _test(field.dataType) for field in kind.fields}
        return lambda value: (
            isinstance(value, dict)
            and all(name in fields and fields[name](one) for name, one in value.items())
        )
    if isinstance(kind, T.ArrayType):
        item = _test(kind.elementType)
        return lambda value: isinstance(value, list) and all(map(item, value))
    if isinstance(kind, T.MapType):
        of_value = _test(kind.valueType)
        return lambda value: isinstance(value, dict) and all(map(of_value, value.values()))
    if isinstance(kind, T.StringType):
        return lambda value: isinstance(value, str)
    if isinstance(kind, T.DateType):
        return lambda value: isinstance(value, str) and len(value.strip()) <= len("2024-02-29")
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return lambda value: isinstance(value, int) or (isinstance(value, str) and not _FINER.search(value))
    convert = converter(node_of_type(kind))

    def test(value: Any) -> bool:
        try:
            found = convert(value)
        except (ValueError, TypeError, ArithmeticError):
            return False
        if isinstance(kind, T.DoubleType | T.FloatType) and not isinstance(value, str | float):
            return bool(Decimal(str(np.float32(found) if isinstance(kind, T.FloatType) else found)) == value)
        return True

    return test
