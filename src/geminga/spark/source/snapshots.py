"""Snapshot of topics as one frame: offloaded ledgers by Spark's own Parquet source, the rest by ours.

A Python data source sends rows to Spark through a pipe, which is at most about half as fast as the JVM's own
Parquet reader. For reading much history, `snapshot` splits each partition into ledgers whose rows are
complete (``plain`` in the manifest) and the gaps between them, and joins Spark's scan of the files with
``format("pulsar")`` over the gaps. The split is by message ids and made once: each message stays on one side
even if messages are offloaded, published or trimmed later.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType

from geminga.errors import InvalidConfiguration
from geminga.filesystems import hadoop_location
from geminga.ids import MessageId
from geminga.offload.file import schema as file_schema
from geminga.offload.manifest import OffloadedLedger
from geminga.offload.storage import folder_of
from geminga.spark.cluster import clients as clusters
from geminga.spark.offsets import (
    EARLIEST,
    OTHERS,
    WHOLE_ENTRY,
    Offset,
    Offsets,
    Partition,
    partition_topic,
    to_json,
)
from geminga.spark.options import ReadOptions, read_options, without
from geminga.spark.schema import COLUMNS, source_schema
from geminga.spark.source import lag
from geminga.spark.source.offloaded import Manifests
from geminga.spark.source.planning import Planner

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger("geminga.spark")

GAPS_MAX = 4
"""Maximum pieces of one partition that ``format("pulsar")`` reads: each is a scan of its own in Spark's plan.
If there are more, the shortest runs of ledgers between them are read that way, too."""
MILLISECONDS_MAX = (1 << 63) // 1000 - 1
"""Maximum milliseconds that fit into 64 bits as microseconds: Spark's reader fails for larger times."""

_READING: Mapping[str, str] = {
    # Off by default. Without it a flipped bit is a wrong row, with it an error.
    "parquet.page.verify-checksum.enabled": "true",
    # Override session settings that would silently skip missing or corrupt files.
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    # Times before 1900 are in the proleptic Gregorian calendar, like Spark's own files.
    "datetimeRebaseMode": "CORRECTED",
    # A folder named `a=b` is a topic, not a partition column, and `[` in a name is no pattern.
    "recursiveFileLookup": "true",
    "__globPaths__": "false",
}
_SET_BY_SCANS = (
    "topics", "topics_pattern", "starting_offsets", "ending_offsets", "starting_time_ms", "ending_time_ms",
    "starting_times", "ending_times", "future_is_latest", "first_offsets",
)  # fmt: skip
"""Options that the scans of gaps set themselves: partitions and offsets."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Result of `snapshot`."""

    frame: DataFrame
    """Frame with the columns of ``format("pulsar")`` with the same options."""
    following: str
    """Value of ``startingOffsets`` for a query that continues right after the frame's last messages."""
    files: int
    """Number of offloaded ledgers that Spark reads as Parquet itself."""


@dataclass(slots=True)
class _Cut:
    """Files and offset ranges to read, by method: each of ``gaps`` is read by one scan."""

    files: list[str] = field(default_factory=list)
    gaps: list[dict[Partition, tuple[Offset, Offset]]] = field(default_factory=list)
    firsts: Offsets = field(default_factory=dict)
    """For partitions read from their first message on, the offset before it."""


def snapshot(
    spark: SparkSession, options: Mapping[str, str], *, files_location: str | None = None
) -> Snapshot:
    """Return a frame of all messages currently in the topics, for batch work over much history.

    ``options`` are those of ``spark.read.format("pulsar")``, which must be registered
    (`geminga.spark.session`). Ledgers in ``offloadLocation`` are read by Spark's own Parquet source, at its
    speed, with its column pruning and its filters on pages; the rest by ``format("pulsar")``: the live tail,
    ledgers with encrypted messages, chunks or keys of bytes, and everything if payloads are read by schema
    (``valueSchema``). ``files_location`` is the same location as Spark's file systems name it (default:
    ``offloadLocation``, with ``s3a:`` for ``s3:`` and without its options and keys); if Spark cannot read it,
    the snapshot is slower, and a warning is logged.

    The frame's start and end are fixed now, and it returns the same rows at every run; messages removed by
    retention meanwhile, and damaged files, fail the query. Raises `InvalidConfiguration`, and the errors of
    ``format("pulsar")``.
    """
    read = read_options(options)
    _check(read)
    planner = Planner(clusters.connect(read.connection), read, is_batch=True)
    try:
        start = planner.starting("earliest")
        end = planner.ending(start)
        cut = _cut(planner, read, start, end)
    finally:
        planner.close()
    frames = []
    if cut.files:
        native = _native(spark, read, cut, files_location)
        if native is None:
            cut = _Cut(gaps=[lag.behind(start, end)], firsts=cut.firsts)
        else:
            frames.append(native)
    rest = without(options, _SET_BY_SCANS)
    frames += [_scan(spark, rest, gaps, cut.firsts) for gaps in cut.gaps]
    if not frames:  # the topics are empty
        columns = spark.read.format("pulsar").options(**options).load().schema
        frames = [spark.createDataFrame([], columns)]
    return Snapshot(reduce(lambda one, other: one.union(other), frames), _following(end), len(cut.files))


def _check(options: ReadOptions) -> None:
    if options.starting_offsets == "latest":
        raise InvalidConfiguration("startingOffsets=latest gives a snapshot nothing to read")
    if options.read_compacted:
        raise InvalidConfiguration(
            "option readCompacted=true: a snapshot ends at the topics' present end, and the replacement of "
            "a message may be published later; allowed: false, or spark.read.format('pulsar')"
        )


# --- the cut ----------------------------------------------------------------------------------------


def _cut(planner: Planner, options: ReadOptions, start: Offsets, end: Offsets) -> _Cut:
    wanted = lag.behind(start, end)
    begins = planner.queries.begins({p: begin for p, (begin, _) in wanted.items()})
    found = _Cut(firsts={p: begins[p] for p, (begin, _) in wanted.items() if begins[p] > begin == EARLIEST})
    runs: dict[Partition, list[list[OffloadedLedger]]] = {}
    if options.value_schema != "BYTES":
        # Topics without messages have columns, too.
        found.gaps.append(
            {
                p: (start.get(p, EARLIEST), max(place, start.get(p, EARLIEST)))
                for p, place in sorted(end.items())
            }
        )
        return found
    if wanted:
        pieces = {p: [(begins[p], place)] for p, (_, place) in wanted.items()}
        whole = {
            p: [each for each in offloaded[0] if _is_whole(each, begins[p], wanted[p][1])]
            for p, offloaded in planner.tasks.offloaded(pieces).items()
        }
        for p, ledgers in _undamaged(options, whole).items():
            runs[p] = _runs(ledgers)
            for each in (each for run in runs[p] for each in run):
                found.files.append(f"{folder_of(partition_topic(p))}/{each.file}")
    for p, (begin, place) in wanted.items():
        at_begin = begins[p]
        for number, (before, behind) in enumerate(_gaps(runs.get(p, []), at_begin, place)):
            if number == len(found.gaps):
                found.gaps.append({})
            # A range from the topic's beginning can't miss earlier messages.
            found.gaps[number][p] = begin if before == at_begin else before, behind
    return found


def _first_place(ledger: OffloadedLedger) -> Offset:
    return Offset(ledger.ledger, -1)


def _last_place(ledger: OffloadedLedger) -> Offset:
    return Offset(ledger.ledger, ledger.entries - 1)


def _says_all(ledger: OffloadedLedger) -> bool:
    times = [time for span in (ledger.publish, ledger.event) if span is not None for time in span]
    return ledger.plain and all(abs(time) <= MILLISECONDS_MAX for time in times)


def _is_whole(ledger: OffloadedLedger, begin: Offset, end: Offset) -> bool:
    """Return whether all rows of a ledger are to be read."""
    return (
        ledger.entries > 0
        and _says_all(ledger)
        and begin <= _first_place(ledger)
        and _last_place(ledger) <= end
    )


def _undamaged(
    options: ReadOptions, ledgers: Mapping[Partition, Sequence[OffloadedLedger]]
) -> dict[Partition, list[OffloadedLedger]]:
    asked = [(p, each) for p, found in ledgers.items() for each in found]
    if not asked or options.offload_location is None:
        return {}
    found: dict[Partition, list[OffloadedLedger]] = {}
    for (p, each), is_right in zip(asked, Manifests(options.offload_location).undamaged(asked), strict=True):
        if is_right:
            found.setdefault(p, []).append(each)
    return found


def _runs(ledgers: Sequence[OffloadedLedger]) -> list[list[OffloadedLedger]]:
    """Return the ledgers to read as files, in runs without gaps."""
    runs: list[list[OffloadedLedger]] = []
    for each in ledgers:
        if runs and runs[-1][-1].offset + runs[-1][-1].entries == each.offset:
            runs[-1].append(each)
        else:
            runs.append([each])
    longest = sorted(range(len(runs)), key=lambda number: sum(each.messages for each in runs[number]))
    return [runs[number] for number in sorted(longest[-(GAPS_MAX - 1) :])]


def _gaps(
    runs: Sequence[Sequence[OffloadedLedger]], begin: Offset, end: Offset
) -> list[tuple[Offset, Offset]]:
    """Return the ranges before, between and after the runs, as (after, up to and including)."""
    edges = [begin, *(place for run in runs for place in (_first_place(run[0]), _last_place(run[-1]))), end]
    return [(before, behind) for before, behind in list(pairwise(edges))[::2] if before < behind]


# --- frames -----------------------------------------------------------------------------------------


def _scan(
    spark: SparkSession,
    options: Mapping[str, str],
    gaps: Mapping[Partition, tuple[Offset, Offset]],
    firsts: Mapping[Partition, Offset],
) -> DataFrame:
    """Return ``format("pulsar")`` over these pieces of partitions."""
    assigned: dict[str, list[int]] = {}
    for topic, index in sorted(gaps):
        assigned.setdefault(topic, []).append(index)
    at_first = [p for p, (before, _) in gaps.items() if before == EARLIEST and p in firsts]
    places = {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(to_json({p: _next(before) for p, (before, _) in gaps.items()})),
        "endingOffsets": json.dumps(to_json({p: behind for p, (_, behind) in gaps.items()})),
        "firstOffsets": json.dumps(to_json({p: _next(firsts[p]) for p in at_first})),
    }
    return spark.read.format("pulsar").options(**options, **places).load()


def _next(place: Offset) -> Offset:
    """Return the position of the next message, for ``startingOffsets``."""
    if place == EARLIEST:
        return place
    if place.batch_index == WHOLE_ENTRY:
        return Offset(place.ledger, place.entry + 1)
    return place._replace(batch_index=place.batch_index + 1)


def _following(end: Offsets) -> str:
    # Partitions added from now on, and new topics of a pattern, are read from their first message on.
    return json.dumps({OTHERS[0]: "earliest", **to_json({p: _next(place) for p, place in end.items()})})


def _native(
    spark: SparkSession, options: ReadOptions, cut: _Cut, files_location: str | None
) -> DataFrame | None:
    """Return the ledgers by Spark's own Parquet source; None if Spark cannot open the location."""
    location = files_location or options.offload_location
    assert location is not None
    root = hadoop_location(location).rstrip("/")
    reader = spark.read.schema(from_arrow_schema(file_schema())).options(**_READING)
    try:
        rows = reader.parquet(*(f"{root}/{file}" for file in cut.files))
        rows.schema  # noqa: B018 - Spark Connect looks at a frame no sooner
    except Exception as error:
        if not isinstance(error, PySparkException) and type(error).__module__.split(".")[0] != "py4j":
            raise
        logger.warning(
            "Spark cannot read %s itself (%s); reading it by format('pulsar'). Set files_location to its "
            "name in Spark's file systems", root, _first_line(error),
        )  # fmt: skip
        return None
    schema = source_schema(options.columns)
    return rows.select(*(_column(each.name).cast(each.dataType).alias(each.name) for each in schema.fields))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# --- columns ----------------------------------------------------------------------------------------


def _column(name: str) -> Column:
    if name == "__messageId":
        numbers = (
            F.col(each) for each in ("partition", "ledger_id", "entry_id", "batch_index", "batch_size")
        )
        return F.udf(_message_id, BinaryType())(*numbers)
    if name == "__redeliveryCount":
        return F.lit(0)
    return F.col("key" if name == "__key" else COLUMNS[name].message_column)


def _message_id(partition: int, ledger: int, entry: int, index: int, size: int) -> bytes:
    return MessageId(partition, ledger, entry, index, batch_size=size).serialize()
