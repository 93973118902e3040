"""Filters that Spark pushes down into a batch read, where ``__partition`` and ``__topic`` limit what is read.

They only spare work: every one is handed back, so that Spark applies it again. Publish times do not cut a
range: they grow with the position except for clock differences, and a cut would lose the rows that those
misplace (``startingTime`` and ``endingTime`` are for programs that accept that).
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from geminga.spark.offsets import Partition, partition_topic
from geminga.spark.releases import Filter

_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"

Test = tuple[str, tuple[Any, ...]]
"""A column, and the values of which it must have one."""


def pushes_down() -> bool:
    """Return whether Spark plans this query with filters. Otherwise a reader with `pushFilters` would fail
    the query, so only the planning process gets one."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _WORKER in sys.modules or getattr(main, "name", None) == _WORKER


def understood(filters: Iterable[Filter], columns: Sequence[str]) -> list[Test]:
    """Return the filters for equality on the columns that choose partitions, where a read has them."""
    known = {name.lower(): name for name in columns if name in ("__partition", "__topic")}
    found = []
    for each in filters:
        path: tuple[str, ...] = getattr(each, "attribute", ())
        name = known.get(path[0].lower()) if len(path) == 1 else None
        if name is not None and type(each).__name__ in ("EqualTo", "In"):
            given: Any = each
            found.append((name, tuple(given.value) if type(each).__name__ == "In" else (given.value,)))
    return found


def wanted_partitions(tests: Iterable[Test], partitions: Iterable[Partition]) -> list[Partition]:
    """Return the partitions that pass the filters."""
    found = list(partitions)
    for column, values in tests:
        found = [p for p in found if (p[1] if column == "__partition" else partition_topic(p)) in values]
    return found
