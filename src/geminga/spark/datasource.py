"""``format("pulsar")``: the classes that Spark calls; the work is in `source`, `sink` and `payloads`."""

import contextlib
import functools
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from pyspark.sql.types import StructType

from geminga.errors import InvalidConfiguration
from geminga.filesystems import resolve
from geminga.schema_info import SchemaInfo
from geminga.spark.cluster import clients as clusters
from geminga.spark.offsets import (
    EARLIEST,
    Checkpoint,
    Offsets,
    Partition,
    is_another_topic,
    partition_topic,
    to_json,
)
from geminga.spark.options import ReadOptions, read_options, write_options
from geminga.spark.releases import (
    PLANS_BY_START,
    Filter,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    need_planning_by_start,
)
from geminga.spark.schema import ArrowBatchConverter, message_columns, source_schema, without_collations
from geminga.spark.source.admission import BatchLimits
from geminga.spark.source.data_loss import DataLossError
from geminga.spark.source.dead_letters import DeadLetters
from geminga.spark.source.filters import Test, pushes_down, understood, wanted_partitions
from geminga.spark.source.lag import LAG
from geminga.spark.source.offset_log import newest_offsets
from geminga.spark.source.planning import Planner
from geminga.spark.source.ranges import ENTRIES_COMBINED, TASKS_MIN, Range, combined
from geminga.spark.source.reading import BatchConverter, read_range
from geminga.spark.tasks import query_of_task

logger = logging.getLogger("geminga.spark")


@dataclass
class PulsarRanges(InputPartition):
    """The ranges that one task reads, one after the other."""

    parts: tuple[Range, ...]


def _tasks(ranges: Sequence[Range], options: ReadOptions) -> list[PulsarRanges]:
    """Return the ranges as sent to the tasks."""
    entries_max = min(ENTRIES_COMBINED, options.max_entries_per_split or ENTRIES_COMBINED)
    tasks = combined(ranges, max(TASKS_MIN, options.min_partitions), entries_max)
    return [PulsarRanges(tuple(task)) for task in tasks]


class PulsarDataSource(DataSource):
    """The data source ``pulsar``. `geminga.spark.register` registers it in a session."""

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> StructType:
        return read_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        schema = without_collations(schema)
        options = read_options(self.options)
        return FilteringReader(options, schema) if pushes_down() else PulsarReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            return self._stream_reader(without_collations(schema))
        except Exception as error:
            return FailingStreamReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options)
        if options.says_end:
            raise InvalidConfiguration(
                "endingOffsets and endingTime are for batch queries: a stream has no end"
            )
        if options.first_offsets:
            raise InvalidConfiguration(
                "firstOffsets is for batch queries: a stream's checkpoint has the first messages"
            )
        return PulsarStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from geminga.spark.sink.writing import batch_writer

        if overwrite:
            raise InvalidConfiguration("Pulsar topics can only be appended to: use .mode('append')")
        return batch_writer(write_options(self.options), without_collations(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from geminga.spark.sink.writing import stream_writer

        return stream_writer(write_options(self.options), without_collations(schema))


_OPTION = "option."
"""Prefix under which Spark's catalog stores the ``OPTIONS`` of ``CREATE TABLE``."""


def read_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns for the options, or the default ones of a table of Spark's catalog that is being
    created. Spark does not pass a table's options to queries of a Python data source: so a table has columns
    only, and each query names its options.

    Raises `InvalidConfiguration` for options that do not fit, and for a table with options.
    """
    if "provider" in {name.lower() for name in options}:
        refused = sorted(name[len(_OPTION) :] for name in options if name.lower().startswith(_OPTION))
        if refused:
            raise InvalidConfiguration(
                f"a table of Spark's catalog can have no options ({', '.join(refused)}): Spark does not "
                "pass them to queries. Use CREATE TEMPORARY VIEW ... USING pulsar OPTIONS (...); or create "
                "the table without OPTIONS and name them at each use, as in SELECT ... FROM t WITH "
                "('service.url' = '...', topic = '...') and INSERT INTO t WITH (...)"
            )
        return source_schema(None)
    found = read_options(options)
    if found.value_schema == "BYTES":
        return source_schema(found.columns)
    from geminga.spark.payloads.registry import payload_columns

    return payload_columns(found, clusters.connect(found.connection))


def _checked(options: ReadOptions, schema: StructType) -> dict[str, SchemaInfo]:
    """Check a query's columns, and that its dead letter location can be opened. Return the topics' newest
    schemas if payloads are read by schema."""
    if options.dead_letter_path is not None:
        resolve(options.dead_letter_path)
    if options.json_column is not None:
        from geminga.spark.payloads.held_json import without_json_column

        without_json_column(schema, options.json_column)
        return {}
    if options.value_schema == "BYTES":
        message_columns(schema)
        return {}
    from geminga.spark.payloads.registry import newest_schemas

    return newest_schemas(options, clusters.connect(options.connection), schema)


def _read(
    options: ReadOptions, schema: StructType, newest: dict[str, SchemaInfo], part: InputPartition, query: str
) -> Iterator[pa.RecordBatch]:
    if not isinstance(part, PulsarRanges):
        return  # Spark makes up an empty partition when there is nothing to read
    plain = _plain_converter(options, schema)
    for each in part.parts:
        cluster = clusters.connect(options.connection)
        place = options.dead_letter_path
        kept = contextlib.nullcontext() if place is None else DeadLetters(place, each, query)
        with kept as letters:
            converter = plain
            if converter is None:
                from geminga.spark.payloads.rows import PayloadBatchConverter

                topic = each.partition[0]
                lookup = functools.partial(_schema_version, cluster, options, each.partition)
                converter = PayloadBatchConverter(schema, options, topic, newest.get(topic), lookup, letters)
            yield from read_range(cluster, options, each, converter)


def _plain_converter(options: ReadOptions, schema: StructType) -> BatchConverter | None:
    """Return the converter of a task whose columns depend on no schema of a topic; None for others."""
    if options.json_column is not None:
        from geminga.spark.payloads.held_json import JsonColumnConverter

        return JsonColumnConverter(schema, options.json_column)
    if options.without_json_objects:
        from geminga.spark.payloads.held_json import WithoutObjectsConverter

        return WithoutObjectsConverter(schema)
    return ArrowBatchConverter(schema) if options.value_schema == "BYTES" else None


def _schema_version(
    cluster: clusters.Cluster, options: ReadOptions, partition: Partition, version: bytes
) -> SchemaInfo | None:
    return options.connection.retry_policy.call(
        f"asking for a schema version of {partition[0]}", lambda: cluster.schema(partition, version)
    )


class PulsarReader(DataSourceReader):
    """A batch query: from ``startingOffsets`` to ``endingOffsets``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.newest = _checked(options, schema)
        if options.starting_offsets == "latest":
            raise InvalidConfiguration("startingOffsets=latest gives a batch query nothing to read")
        self.options = options
        self.schema = schema
        self.tests: list[Test] = []
        # Tasks get this object in its present state: all attempts at this query have one name.
        self.query = f"batch-{uuid.uuid4().hex}"

    def partitions(self) -> Sequence[InputPartition]:
        planner = Planner(clusters.connect(self.options.connection), self.options, is_batch=True)
        try:
            planner.reach()
            start = planner.starting("earliest")
            wanted = wanted_partitions(self.tests, start)
            end = planner.ending(wanted, start)
            first = {p: place.inclusive_start for p, place in self.options.first_offsets.items()}
            return _tasks(planner.ranges(start, end, first), self.options)
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, self.newest, partition, self.query)


class FilteringReader(PulsarReader):
    """A batch query that takes Spark's filters. See `geminga.spark.source.filters`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self.tests = understood(filters, self.schema.names)
        return filters


class FailingStreamReader(DataSourceStreamReader):
    """Reader that raises an error at Spark's first call: PySpark hides an error of a reader's creation behind
    an `UnboundLocalError` of its own."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise self.error

    initialOffset = latestOffset = partitions = read = _fail  # noqa: N815


def _check_log(location: str | None, logged: Offsets, begin: Offsets) -> None:
    """Raise if Spark starts at other offsets than the newest ones of its log at ``location``."""
    if logged != begin:
        raise InvalidConfiguration(
            f"option checkpointLocation={location} is not the folder of this query: its newest offsets are "
            f"{to_json(logged)}, and Spark continues at {to_json(begin)}; set it to the "
            "checkpointLocation of writeStream"
        )


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. All state that a restart needs is in the offsets of its checkpoint."""

    clock = staticmethod(time.monotonic)

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.newest = _checked(options, schema)
        self.options = options
        self.schema = schema
        self.limits = BatchLimits(
            entries=options.max_entries_per_trigger,
            rows=options.max_rows_per_trigger,
            bytes=options.max_bytes_per_trigger,
        )
        self._planner: Planner | None = None
        self._initial: Offsets | None = None
        self._target: Offsets | None = None
        self._first: Offsets = {}
        self._reported: dict[str, Any] | None = None
        self._went_on = float("-inf")
        self._own_name = f"{options.subscription_prefix}-{uuid.uuid4().hex}"
        self._planned: dict[str, Any] | None = None
        """Newest planned end, where Spark gives no start."""
        self._logged: dict[str, Any] | None = None
        """Start of the first micro-batch since this process started, as read from Spark's log, until Spark
        confirms it."""
        own_subscription = options.durable_subscription and options.subscription is None
        self._needs_start = bool(self.limits or options.min_rows_per_trigger is not None or own_subscription)
        """Whether an end cannot be planned without its start."""
        if self._needs_start and options.checkpoint_location is None:
            need_planning_by_start(
                "a limit of a micro-batch, such as maxOffsetsPerTrigger, or durableSubscription without a "
                "name (predefinedSubscription)",
                ", where the source needs the option checkpointLocation with the same value as the sink",
            )

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(clusters.connect(self.options.connection), self.options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        # Spark asks twice, for the plan of the first micro-batch and for its tasks.
        if self._initial is None:
            planner, options = self.planner, self.options
            planner.reach()
            if options.subscription is not None and not options.says_start:
                planner.subscribe(options.subscription)
                partitions = planner.partitions()
                self._initial = planner.with_cursor("opening", lambda each: each.position(partitions))
            else:
                self._initial = planner.starting("latest")
        name = self._subscription(None)
        return Checkpoint(offsets=self._initial, subscription=name).to_json()

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
        self.planner.reach()
        self._target = self.planner.latest(self._partitions())

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch. ``start`` is always what Spark has committed; below PySpark
        4.2 it is missing, and the last planned end is used."""
        if PLANS_BY_START:
            assert start is not None
            return self._end_after(start, limit)
        if self._planned is None:
            self.planner.reach()  # Spark asks for the start of a new query later
        begin = self._planned or (self._start_of_log() if self._needs_start else None)
        self._planned = self._newest() if begin is None else self._end_after(begin, limit)
        return self._planned

    def _start_of_log(self) -> dict[str, Any]:
        """Return the newest offsets of Spark's log, or the start of a new query."""
        assert self.options.checkpoint_location is not None
        topics = {topic for topic, _ in self._partitions()}
        self._logged = newest_offsets(self.options.checkpoint_location, topics) or self.initialOffset()
        return self._logged

    def _newest(self) -> dict[str, Any]:
        """Return the end of the first micro-batch since this process started, where its start is unknown:
        Spark asks for the start of a new query later, and never for that of a restarted one."""
        newest = self.planner.latest(self._partitions())
        return Checkpoint(offsets=newest, subscription=self.options.subscription).to_json()

    def _end_after(self, start: dict[str, Any], limit: ReadLimit | None) -> dict[str, Any]:
        begin = Checkpoint.from_json(start)
        partitions = self._partitions()
        known = self._follow(begin, partitions)
        latest = self._target or known or self.planner.latest(partitions)
        self._check_gone(begin.offsets, latest)
        anew = self._made_anew(begin.offsets, latest)
        # A partition that the query has not seen yet starts at its first message.
        offsets = {p: EARLIEST if p in anew else begin.offsets.get(p, EARLIEST) for p in latest}
        newest = {p: max(latest[p], offsets[p]) for p in latest}
        self._first = self._firsts(begin, offsets, newest)
        end = offsets
        if self._is_enough(offsets, newest):
            limits = BatchLimits() if isinstance(limit, ReadAllAvailable) else self.limits
            end = self.planner.limited(offsets, latest, limits)
        behind = {p: self._first.get(p, place) if place == EARLIEST else place for p, place in end.items()}
        self._reported = {**to_json(newest), LAG: self.planner.lag(behind, newest)}
        return start if end == begin.offsets else self._ended(begin, end, newest)

    def _partitions(self) -> list[Partition]:
        """Return the partitions of a started query, whose topics may have been deleted: `_check_gone`."""
        return self.planner.partitions(missing_is_empty=not self.options.fail_on_data_loss)

    def _ended(self, begin: Checkpoint, end: Offsets, newest: Offsets) -> dict[str, Any]:
        is_first = begin.offsets == self._initial
        subscription = self._subscription(begin.subscription)
        return Checkpoint(
            offsets=end,
            subscription=subscription,
            start=begin.offsets if is_first else None,
            first=self._first,
            waiting={} if subscription is None else {p: newest[p] for p in end if newest[p] > end[p]},
        ).to_json()

    def _firsts(self, begin: Checkpoint, offsets: Offsets, newest: Offsets) -> Offsets:
        """Return, for partitions that begin at their first message, the offset before it as first seen. Until
        those messages are read, only this offset can show that retention removed some."""
        if self.options.read_compacted:
            return {}
        known = {**self._first, **begin.first}
        at_first = [partition for partition, place in offsets.items() if place == EARLIEST]
        known.update(
            self.planner.queries.firsts(p for p in at_first if p not in known and newest[p] > EARLIEST)
        )
        return {partition: known[partition] for partition in at_first if partition in known}

    def _is_enough(self, begin: Offsets, newest: Offsets) -> bool:
        """Return whether to start a micro-batch now, by ``minRowsPerTrigger`` and ``maxTriggerDelay``."""
        minimum, now = self.options.min_rows_per_trigger, self.clock()
        if minimum is not None and self._target is None and begin != newest:
            waited_ms = (now - self._went_on) * 1000
            is_due = waited_ms >= self.options.max_trigger_delay_ms
            if not is_due and self.planner.micro_batches.rows_between(begin, newest) < minimum:
                return False
        self._went_on = now
        return True

    def _subscription(self, remembered: str | None) -> str | None:
        """Return the name of the query's own subscription; None when it has none."""
        if self.options.subscription is not None:
            return self.options.subscription
        return remembered or self._own_name if self.options.durable_subscription else None

    def _follow(
        self, begin: Checkpoint, partitions: list[Partition], *, is_known: bool = False, is_new: bool = False
    ) -> Offsets | None:
        """Move the query's subscription to ``begin``; return the newest offsets, if the move reported them.

        ``is_known``: an earlier run planned up to ``begin`` with its subscription. ``is_new``: none did.
        """
        name = self._subscription(begin.subscription)
        if begin.subscription not in (None, name):
            logger.warning(
                "this query no longer moves its former subscription %s: remove it, or the broker "
                "keeps all messages after its cursor", begin.subscription,
            )  # fmt: skip
        if name is None:
            return None
        self.planner.subscribe(name)
        is_new = is_new or begin.offsets == self._initial
        is_known = begin.subscription == name and (is_known or not is_new)
        return self.planner.with_cursor(
            "moving",
            lambda cursor: cursor.follow(
                begin.offsets, partitions, is_new=is_new, is_known=is_known, first=begin.first,
                waiting=begin.waiting,
            ),
        )  # fmt: skip

    def _check_gone(self, begin: Offsets, latest: Offsets) -> None:
        gone = sorted(set(begin) - set(latest))
        if not gone:
            return
        names = ", ".join(f"{topic} ({index})" for topic, index in gone)
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"the checkpoint has partitions that are not in the query's topics: {names}. They were "
                "deleted, or the options no longer name them. Set failOnDataLoss=false to continue without"
            )
        logger.warning("the checkpoint has partitions that are not in the query's topics: %s", names)

    def _made_anew(self, begin: Offsets, latest: Offsets) -> set[Partition]:
        """Return the partitions that were recreated since ``begin``. They are read from their first message
        on: waiting until they have as many messages as the old ones would skip all of those."""
        if self.options.read_compacted:
            return set()  # a compacted topic may end before the offset read last
        found = {p for p, newest in latest.items() if is_another_topic(begin.get(p, EARLIEST), newest)}
        for partition in sorted(found):
            self.planner.queries.lost(
                f"{partition_topic(partition)} ends at {latest[partition]}, and this query has read up to "
                f"{begin[partition]}: it was deleted and made again, or is of another cluster, and what was "
                "not read of the old one is gone"
            )
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._reported

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned, begin = Checkpoint.from_json(end), Checkpoint.from_json(start)
        logged, self._logged = self._logged, None
        if logged is not None:
            _check_log(self.options.checkpoint_location, Checkpoint.from_json(logged).offsets, begin.offsets)
        is_new = not PLANS_BY_START and begin.offsets == self._initial
        if is_new:
            # The end was planned before Spark asked for the start, which may be the newest message.
            place = planned.offsets
            begin = replace(begin, offsets={p: min(at, place.get(p, at)) for p, at in begin.offsets.items()})
        elif not PLANS_BY_START:  # `_newest` does not know what the checkpoint has
            self._check_gone(begin.offsets, planned.offsets)
            self._made_anew(begin.offsets, planned.offsets)
        if planned.start is not None:
            # The start of the first micro-batch is not in Spark's log: Spark calls `initialOffset` again for
            # it.
            begin = Checkpoint(offsets=planned.start, subscription=planned.subscription)
        self._planned = self._planned or end
        if self.planner.cursor is None:
            # A restart runs the planned micro-batch before it asks for a new end.
            self._initial = self._initial if planned.start is None else planned.start
            known = list(begin.offsets)
            if not self.options.fail_on_data_loss:  # topics may have been deleted
                there = set(self._partitions())
                known = [partition for partition in known if partition in there]
            self._follow(
                replace(begin, subscription=planned.subscription or begin.subscription, first=planned.first),
                known,
                is_known=not is_new,
                is_new=is_new,
            )
        ranges = self.planner.ranges(begin.offsets, planned.offsets, planned.first)
        return _tasks(ranges, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, self.schema, self.newest, partition, self._query())

    def _query(self) -> str:
        """Return, in a task, the query's id, which is valid as long as its checkpoint."""
        if self.options.dead_letter_path is None:
            return ""
        return query_of_task(" ".join(self.options.topics) or str(self.options.topics_pattern))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy without the driver's connections.
        return {**self.__dict__, "_planner": None, "_first": {}}
