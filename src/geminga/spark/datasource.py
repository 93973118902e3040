"""``format("pulsar")``: what Spark calls, and nothing else; the work is in the modules beside this one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from geminga.errors import InvalidConfiguration
from geminga.spark import cluster as clusters
from geminga.spark.admission import Limits
from geminga.spark.offsets import EARLIEST, Offsets, from_json, to_json
from geminga.spark.options import READ, WRITE, ReadOptions, read_options, write_options
from geminga.spark.planning import Planner, Range
from geminga.spark.reading import DataLossError, read_range
from geminga.spark.schema import ArrowShaper, message_columns
from geminga.spark.tables import options_for, read_schema

logger = logging.getLogger("geminga.spark")


@dataclass
class PulsarRange(InputPartition):
    """A `Range` on its way to a task."""

    range: Range


class PulsarDataSource(DataSource):
    """The data source ``pulsar``. `geminga.spark.register` makes it known to a session."""

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> StructType:
        return read_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PulsarReader(read_options(options_for(READ, self.options, schema)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = read_options(options_for(READ, self.options, schema))
        if options.ending_offsets != "latest":
            raise InvalidConfiguration("option endingOffsets is for batch queries: a stream does not end")
        return PulsarStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from geminga.spark.writing import batch_writer

        if overwrite:
            raise InvalidConfiguration("Pulsar topics can only be appended to: use .mode('append')")
        return batch_writer(write_options(options_for(WRITE, self.options, schema)), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from geminga.spark.writing import stream_writer

        return stream_writer(write_options(options_for(WRITE, self.options, schema)), schema)


def _read(options: ReadOptions, schema: StructType, part: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark makes up a partition without content when there is nothing to read.
    if isinstance(part, PulsarRange):
        cluster = clusters.connect(options.connection)
        yield from read_range(cluster, options, part.range, ArrowShaper(schema))


class PulsarReader(DataSourceReader):
    """A batch query: from ``startingOffsets`` to ``endingOffsets``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        message_columns(schema)
        if options.starting_offsets == "latest":
            raise InvalidConfiguration("startingOffsets=latest gives a batch query nothing to read")
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        planner = Planner(clusters.connect(self.options.connection), self.options, is_batch=True)
        try:
            start = planner.starting("earliest")
            return [PulsarRange(part) for part in planner.ranges(start, planner.ending(start))]
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. All that a restart needs is in the offsets of its checkpoint."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        message_columns(schema)
        self.options = options
        self.schema = schema
        self.limits = Limits(
            entries=options.max_entries_per_trigger,
            rows=options.max_rows_per_trigger,
            bytes=options.max_bytes_per_trigger,
        )
        self._planner: Planner | None = None
        self._target: Offsets | None = None
        self._reported: dict[str, Any] | None = None

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(clusters.connect(self.options.connection), self.options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return to_json(self.planner.starting("latest"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark knows one limit a source; `latestOffset` keeps all that are set.
        if self.limits.rows is not None:
            return ReadMaxRows(self.limits.rows)
        if self.limits.bytes is not None:
            return ReadMaxBytes(self.limits.bytes)
        if self.limits.entries is not None:
            return ReadMaxFiles(self.limits.entries)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.planner.latest(self.planner.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = from_json(start)
        latest = self._target
        if latest is None:
            latest = self.planner.latest(self.planner.partitions())
        self._check_gone(begin, latest)
        # A partition that the query has not seen yet starts at its first message.
        begin = {partition: begin.get(partition, EARLIEST) for partition in latest}
        self._reported = to_json({p: max(latest[p], begin[p]) for p in latest})
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self.limits
        return to_json(self.planner.limited(begin, latest, limits))

    def _check_gone(self, begin: Offsets, latest: Offsets) -> None:
        gone = sorted(set(begin) - set(latest))
        if not gone:
            return
        names = ", ".join(f"{topic} ({index})" for topic, index in gone)
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"the checkpoint knows partitions that are no longer there: {names}. "
                "Set failOnDataLoss=false to go on without them"
            )
        logger.warning("the checkpoint knows partitions that are no longer there: %s", names)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._reported

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [PulsarRange(part) for part in self.planner.ranges(from_json(start), from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, partition)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def __getstate__(self) -> dict[str, Any]:
        # The copy that goes to the tasks has no use for the driver's connections.
        return {**self.__dict__, "_planner": None}
