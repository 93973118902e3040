from __future__ import annotations

import datetime as dt
import sys
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    Not,
    StringContains,
)
from pyspark.sql.types import BinaryType, StructType

from geminga.spark.datasource import FilteringReader, PulsarDataSource
from geminga.spark.filters import kept, understood, wanted_partitions

TOPIC = "persistent://public/default/t"
TIME = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def rows() -> pa.RecordBatch:
    times = [TIME, TIME + dt.timedelta(hours=1), None]
    return pa.record_batch({
        "__key": pa.array([b"a", b"b", None], pa.binary()),
        "__eventTime": pa.array(times, pa.timestamp("us", tz="UTC")),
        "__entryId": pa.array([1, 2, 3], pa.int64()),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([EqualTo(("__key",), b"b")], [2]),
        ([In(("__KEY",), (b"a", b"c"))], [1]),
        ([IsNull(("__key",))], [3]),
        ([IsNotNull(("__key",)), GreaterThanOrEqual(("__eventTime",), TIME)], [1, 2]),
        ([LessThan(("__eventTime",), TIME + dt.timedelta(minutes=1)), EqualTo(("__entryId",), 1)], [1]),
        ([EqualTo(("__key",), b"z")], []),
        # What is not understood, or does not fit the column, leaves everything to Spark.
        (
            [Not(EqualTo(("__key",), b"a")), StringContains(("__key",), "a"), EqualTo(("other",), 1)],
            [1, 2, 3],
        ),
        (
            [EqualTo(("__key", "part"), b"a"), EqualTo(("__entryId",), "text"), EqualTo(("__key",), None)],
            [1, 2, 3],
        ),
    ],
)
def test_filters_are_applied_to_rows(filters: list[Filter], left: list[int]) -> None:
    batch = rows()
    found = understood(filters, batch.schema.names)
    assert kept(found, batch).column("__entryId").to_pylist() == left


def test_filters_select_partitions_and_topics() -> None:
    partitions = [(TOPIC, 0), (TOPIC, 1), ("persistent://public/default/u", -1)]
    columns = ["__partition", "__topic"]

    def wanted(*filters: Filter) -> list[int]:
        return [partitions.index(p) for p in wanted_partitions(understood(filters, columns), partitions)]

    assert wanted(EqualTo(("__partition",), 1)) == [1]
    assert wanted(In(("__topic",), (f"{TOPIC}-partition-0", "persistent://public/default/u"))) == [0, 2]
    assert wanted(EqualTo(("__topic",), TOPIC)) == []
    assert wanted(GreaterThanOrEqual(("__partition",), 1)) == [0, 1, 2]


def test_a_reader_takes_filters_only_where_spark_pushes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Spark does not push filters, a reader with `pushFilters` makes every query fail."""
    source = PulsarDataSource({"service.url": "pulsar://h", "topic": "t"})
    schema = StructType().add("value", BinaryType())
    plain = source.reader(schema)
    assert plain.pushFilters.__func__ is DataSourceReader.pushFilters  # type: ignore[attr-defined]
    worker = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.setitem(sys.modules, worker, ModuleType(worker))
    reader = source.reader(schema)
    assert isinstance(reader, FilteringReader)
    filters: list[Filter] = [EqualTo(("value",), b"a")]
    assert list(reader.pushFilters(filters)) == filters, "Spark applies every one again"
