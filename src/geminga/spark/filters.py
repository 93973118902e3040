"""Filters that Spark pushes down into a batch read.

They only spare work: every one is handed back, so that Spark applies it again, and none decides what is
right. Partitions and topics that a filter rules out are not read; rows are left out before they are handed to
the JVM. Publish times do not cut a range: they grow with the position but for clock differences, and a cut
would lose the rows that those misplace (``startingTime`` and ``endingTime`` are for who accepts that).
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource

from geminga.spark.offsets import Partition, partition_topic

_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}
_VALUES = (bool, int, str, bytes, dt.datetime)
"""Types of values that Arrow compares as Spark does."""


@dataclass(frozen=True, slots=True)
class RowTest:
    """One filter in plain values: ``operation`` is the name of Spark's class."""

    column: str
    operation: str
    values: tuple[Any, ...] = ()

    def mask(self, column: pa.Array) -> pa.Array:
        """Return the mask of the rows that pass; a comparison with null does not."""
        if self.operation == "IsNull":
            return pc.is_null(column)
        if self.operation == "IsNotNull":
            return pc.is_valid(column)
        if self.operation == "In":
            return pc.is_in(column, value_set=pa.array(self.values, column.type), skip_nulls=True)
        compared = _COMPARISONS[self.operation](column, pa.scalar(self.values[0], column.type))
        return pc.fill_null(compared, False)


def pushes_down() -> bool:
    """Return whether Spark plans this query with filters. Otherwise a reader with `pushFilters` would fail
    the query, so only the planning process gets one."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _WORKER in sys.modules or getattr(main, "name", None) == _WORKER


def understood(filters: Iterable[datasource.Filter], columns: Sequence[str]) -> list[RowTest]:
    """Return the filters that apply to a read of ``columns``."""
    known = {name.lower(): name for name in columns}
    found = []
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        name = known.get(path[0].lower()) if len(path) == 1 else None
        operation = type(each).__name__
        if name is None or operation not in {*_COMPARISONS, "In", "IsNull", "IsNotNull"}:
            continue
        given = getattr(each, "value", ())
        values = tuple(given) if operation == "In" else () if operation.startswith("Is") else (given,)
        if all(isinstance(value, _VALUES) for value in values):
            found.append(RowTest(name, operation, values))
    return found


def wanted_partitions(tests: Iterable[RowTest], partitions: Iterable[Partition]) -> list[Partition]:
    """Return the partitions that pass the filters on ``__partition`` and ``__topic``."""
    found = list(partitions)
    for test in tests:
        if test.operation in ("EqualTo", "In") and test.column == "__partition":
            found = [partition for partition in found if partition[1] in test.values]
        elif test.operation in ("EqualTo", "In") and test.column == "__topic":
            found = [partition for partition in found if partition_topic(partition) in test.values]
    return found


def kept(tests: Sequence[RowTest], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that pass all tests. Skip a test that Arrow can't evaluate for the column."""
    mask: pa.Array | None = None
    for test in tests:
        try:
            one = test.mask(batch.column(test.column))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            continue
        mask = one if mask is None else pc.and_(mask, one)
    return batch if mask is None else batch.filter(mask)
