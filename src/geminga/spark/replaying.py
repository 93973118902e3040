"""``format("pulsar_replay")``: a table of a lake as a stream, in time order and at a given pace.

::

    spark.readStream.format("pulsar_replay").option("time", "__publishTime").option("speed", "60").load(table)

A table is a folder of Parquet files, written by streams or others (see `geminga.spark.pipelines.lake`). A
micro-batch holds the rows between two times, sorted; so a query resumes correctly even when the table's files
were merged meanwhile. A row added later with a time that was already replayed can't follow in order: it fails
the next run, or is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from geminga.config import check_choice, refuse
from geminga.errors import InvalidConfiguration
from geminga.filesystems import resolve
from geminga.spark.releases import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
    arrow_schema,
    need_planning_by_start,
)

BUCKETS_MAX = 1 << 22
"""Maximum number of time buckets that are counted; a micro-batch ends at the end of a bucket."""
ROWS_MAX = 500_000
"""Maximum rows of a micro-batch, unless more have the same time."""
BATCH_ROWS = 10_000
EVERY_SECONDS = 0.5
"""Interval of micro-batches: each takes the rows that became due in it, or since the last micro-batch."""
_MICROSECONDS = 1_000_000
BEFORE_ALL = -(1 << 62)
_OPTIONS = {
    "path": "The table's folder.",
    "time": "The column of timestamps that gives the order and the pace.",
    "speed": "Seconds of that time in a second (`60`); `max`, the default, waits for nothing.",
    "rowspersecond": "A steady rate instead of a speed.",
    "startingtime": "ISO 8601: rows before are left out.",
    "endingtime": "ISO 8601: rows at or after it are left out.",
    "nulltimes": "`fail` (default) or `skip`: what rows without a time do.",
    "laterows": "`fail` (default) or `skip`: what rows do that came behind the point that was reached.",
}


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The checked options of a replay. Times are microseconds since 1970."""

    path: str
    time: str
    speed: float = math.inf
    rows_per_second: float = math.inf
    starting: int | None = None
    ending: int | None = None
    skip_null_times: bool = False
    skip_late_rows: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReplayOptions:
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            check_choice("option", name, tuple(_OPTIONS))
        for name in ("path", "time"):
            if not given.get(name):
                raise InvalidConfiguration(f"format('pulsar_replay') needs {name}: {_OPTIONS[name]}")
        if "speed" in given and "rowspersecond" in given:
            raise InvalidConfiguration("speed and rowsPerSecond exclude each other")
        nulls, late = (given.get(name, "fail").lower() for name in ("nulltimes", "laterows"))
        check_choice("nullTimes", nulls, ("fail", "skip"))
        check_choice("lateRows", late, ("fail", "skip"))
        return cls(
            path=given["path"],
            time=given["time"],
            speed=_pace("speed", given.get("speed", "max")),
            rows_per_second=_pace("rowsPerSecond", given.get("rowspersecond", "max")),
            starting=_moment("startingTime", given.get("startingtime")),
            ending=_moment("endingTime", given.get("endingtime")),
            skip_null_times=nulls == "skip",
            skip_late_rows=late == "skip",
        )


def _pace(name: str, text: str) -> float:
    if text.lower() == "max":
        return math.inf
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        refuse(name, text, "a number above 0, or max")
    return value


def _moment(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        refuse(name, text, "a time such as 2026-11-02T08:00:00Z")
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * _MICROSECONDS + since.microseconds


@dataclass(frozen=True, slots=True)
class ReplayFile:
    """A file of the table and its first and last time, in microseconds."""

    path: str
    first: int
    last: int


class ReplayTimes:
    """Row counts of a table by time, counted once, in memory for `BUCKETS_MAX` buckets."""

    def __init__(self, options: ReplayOptions) -> None:
        from geminga.spark.pipelines import lake

        self.options = options
        self.system, _ = resolve(options.path)
        self.files: list[ReplayFile] = []
        nulls = 0
        paths = lake.files(options.path)
        for path in paths:
            micros, without = self._times(path)
            nulls += without
            if len(micros):
                self.files.append(ReplayFile(path, int(micros.min()), int(micros.max())))
        if nulls and not options.skip_null_times:
            raise InvalidConfiguration(
                f"{options.path}: {nulls} rows have no {options.time} and would never be replayed; take "
                "another column, or set nullTimes=skip to leave them out"
            )
        self.first = min((file.first for file in self.files), default=0)
        self.last = max((file.last for file in self.files), default=self.first - 1)
        self.width = max(1, -(-(self.last - self.first + 1) // BUCKETS_MAX))
        counts: NDArray[np.int64] = np.zeros((self.last - self.first) // self.width + 1, np.int64)
        for file in self.files:
            micros, _ = self._times(file.path)
            counts += np.bincount((micros - self.first) // self.width, minlength=len(counts))
        self._until: NDArray[np.int64] = np.cumsum(counts)
        """Rows up to the end of each bucket."""

    def _times(self, path: str) -> tuple[NDArray[np.int64], int]:
        """Return the selected times of one file, and the number of rows without a time."""
        system, options = self.system, self.options
        schema = parquet.read_schema(path, filesystem=system)
        if options.time not in schema.names:
            check_choice("time", options.time, tuple(schema.names))
        if not pa.types.is_timestamp(schema.field(options.time).type):
            refuse(
                "time", options.time, f"a column of timestamps; this one is {schema.field(options.time).type}"
            )
        column = parquet.read_table(path, columns=[options.time], filesystem=system)[options.time]
        values = pc.drop_null(pc.cast(column, pa.timestamp("us"), safe=False)).cast(pa.int64())
        micros = values.to_numpy()
        if options.starting is not None:
            micros = micros[micros >= options.starting]
        if options.ending is not None:
            micros = micros[micros < options.ending]
        return micros, column.null_count

    def rows_until(self, moment: int) -> int:
        """Return the number of rows up to the end of the bucket of ``moment``."""
        if moment < self.first or not self.files:
            return 0
        return int(self._until[min((moment - self.first) // self.width, len(self._until) - 1)])

    def exactly_until(self, moment: int) -> int:
        """Return the number of rows up to ``moment`` itself; rereads the table's times."""
        return sum(
            int(np.count_nonzero(self._times(file.path)[0] <= moment))
            for file in self.files
            if file.first <= moment
        )

    def whole_buckets(self, moment: int) -> int:
        """Return the end of the last bucket that ends at ``moment`` or before."""
        return min(self.last, self.first + (moment - self.first + 1) // self.width * self.width - 1)

    def moment_of(self, rows: int) -> int:
        """Return the last time up to which there are at most ``rows`` rows; at least one bucket with rows."""
        bucket = int(np.searchsorted(self._until, rows, side="right"))
        return self.first + bucket * self.width - 1

    def next_after(self, moment: int) -> int:
        """Return the end of the first bucket that has rows after ``moment``."""
        bucket = int(np.searchsorted(self._until, self.rows_until(moment), side="right"))
        return min(self.last, self.first + (bucket + 1) * self.width - 1)


@dataclass
class ReplaySlice(InputPartition):
    """Rows after ``begin`` up to and including ``through``, in these files."""

    begin: int
    through: int
    paths: tuple[str, ...]


class LakeReplaySource(DataSource):
    """The data source ``pulsar_replay``; streams only."""

    @classmethod
    def name(cls) -> str:
        return "pulsar_replay"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        from geminga.spark.pipelines import lake

        options = ReplayOptions.of(self.options)
        return from_arrow_schema(lake.table_dataset(options.path).schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        need_planning_by_start("format('pulsar_replay') as a stream")
        return ReplayReader(ReplayOptions.of(self.options), schema)


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader whose offset is the time up to which all rows were replayed, valid in any later run."""

    clock = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def __init__(self, options: ReplayOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._known: ReplayTimes | None = None
        self._is_available_now = False
        self._began: tuple[float, int] | None = None
        """Clock time at which this run began, and the table's time then."""
        self._went_on = 0.0
        self._is_checked = False

    @property
    def times(self) -> ReplayTimes:
        if self._known is None:
            self._known = ReplayTimes(self.options)
        return self._known

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        # Constant, independent of the table: Spark calls this again for the start of the first micro-batch.
        return {"through": BEFORE_ALL}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the rows due next; wait for them, as `AvailableNow` ends without any."""
        begin = int(start["through"])
        times = self.times
        self._check_late(start)
        if not times.files or begin >= times.last:
            if not self._is_available_now:
                self.sleep(EVERY_SECONDS)
                self._known, self._is_checked = None, False  # the table may have grown
            return start
        wanted = times.next_after(begin)
        if self._began is None:
            # Replay the first row of this run immediately, also when it resumes.
            self._began = (self.clock(), wanted)
        elif min(self.options.speed, self.options.rows_per_second) < math.inf:
            self.sleep(max(0.0, self._went_on + EVERY_SECONDS - self.clock()))
        while (due := self._due(self.clock())) < wanted:
            self.sleep(EVERY_SECONDS)
            if not self._is_available_now:
                return start
        self._went_on = self.clock()
        most = times.moment_of(times.rows_until(begin) + ROWS_MAX)
        through = min(times.last, max(wanted, min(times.whole_buckets(due), most)))
        return {"through": through, "rows": times.rows_until(through)}

    def _check_late(self, start: dict[str, Any]) -> None:
        """Check once a run whether rows were added with times that an earlier run has already replayed."""
        if self._is_checked or self.options.skip_late_rows or "rows" not in start:
            return
        begin = int(start["through"])
        late = self.times.exactly_until(begin) - int(start["rows"])
        if late > 0:
            reached = datetime.fromtimestamp(begin / _MICROSECONDS, UTC).isoformat()
            raise InvalidConfiguration(
                f"{self.options.path}: {late} rows with a {self.options.time} up to {reached} were added to "
                "the table after that time was replayed, and can't follow in order. lateRows=skip leaves "
                "them out; a new query replays the whole table"
            )
        self._is_checked = True

    def _due(self, now: float) -> int:
        assert self._began is not None
        began, moment = self._began
        passed = now - began
        if self.options.speed != math.inf:
            return moment + int(passed * self.options.speed * _MICROSECONDS)
        if self.options.rows_per_second != math.inf:
            rows = self.times.rows_until(moment) + int(passed * self.options.rows_per_second)
            return self.times.moment_of(rows)
        return self.times.last

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, through = int(start["through"]), int(end["through"])
        paths = [file.path for file in self.times.files if file.first <= through and file.last > begin]
        # One task, since a sink gets the rows in the task's order.
        return [ReplaySlice(max(begin, self.times.first - 1), through, tuple(paths))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ReplaySlice) and partition.paths:
            yield from read_slice(self.options, self.schema, partition)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None, "_began": None, "_is_checked": False}


def read_slice(options: ReplayOptions, schema: StructType, part: ReplaySlice) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a slice, sorted by time; those with equal times in the order of their files."""
    system, _ = resolve(options.path)
    wanted = arrow_schema(schema)
    own = pa.unify_schemas([parquet.read_schema(path, filesystem=system) for path in part.paths])
    time_type = own.field(options.time).type
    low, high = part.begin + 1, part.through + 1
    if options.starting is not None:
        low = max(low, options.starting)
    if options.ending is not None:
        high = min(high, options.ending)
    bounds = [pa.scalar(moment, pa.timestamp("us", time_type.tz)) for moment in (low, high)]
    column = pc.field(options.time)
    found = dataset.dataset(list(part.paths), schema=own, format="parquet", filesystem=system).to_table(
        filter=(column >= bounds[0]) & (column < bounds[1])
    )
    order = pc.sort_indices(found, sort_keys=[(options.time, "ascending")])
    found = found.take(order)
    columns = [
        found[field.name].cast(field.type)
        if field.name in found.column_names
        else pa.nulls(len(found), field.type)
        for field in wanted
    ]
    yield from pa.Table.from_arrays(columns, schema=wanted).to_batches(max_chunksize=BATCH_ROWS)
