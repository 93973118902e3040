import sys
from types import ModuleType

from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, GreaterThanOrEqual, In, Not
from pyspark.sql.types import BinaryType, StructType

from geminga.spark.datasource import FilteringReader, PulsarDataSource
from geminga.spark.source.filters import understood, wanted_partitions

TOPIC = "persistent://public/default/t"


def test_filters_select_partitions_and_topics():
    partitions = [(TOPIC, 0), (TOPIC, 1), ("persistent://public/default/u", -1)]
    columns = ["__partition", "__topic"]

    def wanted(*filters: Filter) -> list[int]:
        return [partitions.index(p) for p in wanted_partitions(understood(filters, columns), partitions)]

    assert wanted(EqualTo(("__partition",), 1)) == [1]
    assert wanted(In(("__topic",), (f"{TOPIC}-partition-0", "persistent://public/default/u"))) == [0, 2]
    assert wanted(EqualTo(("__topic",), TOPIC)) == []
    assert wanted(EqualTo(("__PARTITION",), 1), In(("__topic",), (f"{TOPIC}-partition-0",))) == []
    assert wanted(GreaterThanOrEqual(("__partition",), 1), EqualTo(("other",), 1)) == [0, 1, 2]
    assert wanted(EqualTo(("__partition", "part"), 1), Not(EqualTo(("__partition",), 1))) == [0, 1, 2]


def test_a_reader_takes_filters_only_where_spark_pushes_them(monkeypatch):
    """If Spark does not push filters, a reader with `pushFilters` makes every query fail."""
    source = PulsarDataSource({"service.url": "pulsar://h", "topic": "t"})
    schema = StructType().add("value", BinaryType())
    plain = source.reader(schema)
    assert plain.pushFilters.__func__ is DataSourceReader.pushFilters
    worker = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.setitem(sys.modules, worker, ModuleType(worker))
    reader = source.reader(schema)
    assert isinstance(reader, FilteringReader)
    filters: list[Filter] = [EqualTo(("value",), b"a")]
    assert list(reader.pushFilters(filters)) == filters, "Spark applies every one again"
