"""JSON texts with more data than a table's columns hold, which the templates keep in ``__rescued``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions
from pyspark.sql import types as T

from geminga.spark.payloads.arrays import booleans
from geminga.spark.payloads.held_json import held_reader

if TYPE_CHECKING:
    from pyspark.sql import Column


def beyond(schema: T.StructType) -> Callable[[str], Column]:
    """Return a function on a column of JSON texts: the text if ``schema`` does not hold all of it, and
    otherwise null. See `geminga.spark.payloads.held_json.held_reader`."""

    def texts_beyond(texts: pa.Array) -> pa.Array:
        return texts_that(schema, texts)

    udf: Any = functions.arrow_udf  # type: ignore[attr-defined] # PySpark's stubs lack it
    found: Callable[[str], Column] = udf(texts_beyond, T.StringType())
    return found


def texts_that(schema: T.StructType, texts: pa.Array) -> pa.Array:
    """Return ``texts`` with null for those that ``schema`` holds completely; empty texts count as held."""
    _, damaged = held_reader(schema).read(texts.cast(pa.binary()))
    empty = pc.equal(pc.binary_length(texts), 0)
    return pc.if_else(pc.or_kleene(pc.invert(booleans(damaged)), empty), None, texts)
