"""Planning of a query: start and end, the size of micro-batches, and tasks for ranges.

Everything here runs on the driver and holds no state that a restart would miss. Cluster queries cover all
partitions at once (`geminga.spark.watch`), and are retried while a broker restarts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from geminga.errors import InvalidConfiguration
from geminga.ids import MessageId
from geminga.offload.manifest import OffloadedLedger
from geminga.spark.admission import (
    BatchLimits,
    EntryCost,
    EntryCostEstimate,
    EntrySample,
    MeasuredEntry,
    PartitionBudget,
    admit,
)
from geminga.spark.cluster import Cluster, discover
from geminga.spark.cursor import QueryCursor
from geminga.spark.data_loss import refusal
from geminga.spark.lag import ClosedLedgers, OffsetSpan, behind, by_topic
from geminga.spark.offsets import (
    EARLIEST,
    LATEST,
    OTHERS,
    WHOLE_ENTRY,
    Offset,
    Offsets,
    Partition,
    entries_between,
    partition_topic,
)
from geminga.spark.options import ReadOptions
from geminga.spark.retry_policy import RetryPolicy
from geminga.spark.search import (
    PartitionPiece,
    Search,
    at,
    before_first,
    before_time,
    pieces,
    run,
    stepped_ahead,
)

if TYPE_CHECKING:
    from geminga.spark.offloaded import Manifests
    from geminga.wire.metadata import RawEntry

T = TypeVar("T")

logger = logging.getLogger("geminga.spark")

LOOK_AGAIN_SECONDS = 60.0
"""Maximum age of the known entry sizes; reading entries for a limit renews them."""
LOOKS_MAX = 8
"""Maximum partitions sampled then, one entry each; also when tasks are cut."""
SAMPLES = 3
"""Entries of a large range that are sampled to estimate its average entry."""
ENTRIES_PER_SPLIT = 10_000
"""Default of ``maxEntriesPerSplit`` in queries that are split."""
BYTES_PER_SPLIT = 64 * 1024 * 1024
"""Default of ``maxBytesPerSplit`` in queries that are split."""
ENTRIES_MIN = 16
"""Minimum entries of a task, if its range has them."""
TASKS_MIN = 32
"""Tasks that are left when tasks with fewer than `ENTRIES_MIN` entries are combined."""
ENTRIES_COMBINED = 64
"""Maximum entries, on average, of a task that reads several ranges."""
CLOCK_DIFFERENCE_MS_MAX = 5_000
"""Maximum lead of a starting time over the driver's clock."""


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a partition that one task reads: after ``start``, up to and including ``end``."""

    partition: Partition
    start: Offset
    end: Offset
    head: tuple[RawEntry, ...] = ()
    """The first entries of the range, if the planner has read them."""
    beginning: Offset | None = None
    """For a partition read from its first message on: the offset before that message."""
    offloaded: tuple[OffloadedLedger, ...] = ()
    """The ledgers of the range that are read as files."""
    next_kept: tuple[int, int] | None = None
    """The entry (ledger, id) that followed ``start``, in a later ledger, at planning time, when the query's
    subscription had kept all messages after ``start``: so none was between them. None: unknown."""
    compacted: bool = False
    """Whether the range is read compacted; see `geminga.spark.compacted`."""
    goes_on: bool = False
    """Whether to read on after ``end``, to the newest message at that time."""

    def __str__(self) -> str:
        return f"{partition_topic(self.partition)} after {self.start} up to {self.end}"


class Planner:
    """Plans one query."""

    def __init__(
        self,
        cluster: Cluster,
        options: ReadOptions,
        *,
        is_batch: bool = False,
        retry_policy: RetryPolicy | None = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.options = options
        self.retry_policy = retry_policy or RetryPolicy(options.connection.operation_timeout_ms / 1000)
        self.is_batch = is_batch
        given = (options.max_entries_per_split, options.max_bytes_per_split)
        self.splits = is_batch or given != (None, None)
        """Whether a partition may become several tasks; in a stream, by option only."""
        self.entries_per_split = options.max_entries_per_split or ENTRIES_PER_SPLIT
        self.bytes_per_split = options.max_bytes_per_split or BYTES_PER_SPLIT
        self.watch = cluster.watch(
            name=options.subscription_prefix, from_first=is_batch, compacted=options.read_compacted
        )
        self.gauge = EntryCostEstimate()
        self._wall_clock = wall_clock
        self._clock = clock
        self.cursor: QueryCursor | None = None
        """The query's own subscription, if it has one; see `follow`."""
        self.ledgers = ClosedLedgers()
        self._manifests: Manifests | None = None
        self._confirmed: set[Partition] = set()
        """Partitions whose offloaded ledgers are verified to be the broker's."""
        self._looked = float("-inf")
        self._heads: dict[Partition, tuple[Offset, list[RawEntry]]] = {}
        self._turn: Partition | None = None

    def close(self) -> None:
        self.watch.close()
        if self.cursor is not None:
            self.cursor.close()

    def reach(self) -> None:
        """Connect as the query starts; see `Cluster.reach`."""
        self.cluster.reach((*self.options.topics, str(self.options.topics_pattern))[0])

    # --- the query's subscription -----------------------------------------------------------------

    def subscribe(self, name: str) -> QueryCursor:
        """Have the durable subscription ``name`` follow this query from now on."""
        if self.cursor is None:
            is_own = name != self.options.subscription
            self.cursor = QueryCursor(name, self.cluster.cursors(name), self, is_own=is_own)
        return self.cursor

    def follow(
        self,
        committed: Offsets,
        partitions: Iterable[Partition],
        *,
        is_new: bool,
        is_known: bool = False,
        first: Offsets | None = None,
        waiting: Offsets | None = None,
    ) -> Offsets:
        """Move the subscription to Spark's committed offsets; return the same offsets as `latest`. See
        `geminga.spark.cursor.QueryCursor.follow`."""
        cursor, asked = self.cursor, list(partitions)
        assert cursor is not None
        return self.retry_policy.call(
            f"moving the subscription {cursor.name}",
            lambda: cursor.follow(
                committed, asked, is_new=is_new, is_known=is_known, first=first, waiting=waiting
            ),
        )

    def still_there(self, places: Offsets) -> set[Partition]:
        """Return the partitions that still have the entry before each offset, or the first one of its ledger.
        Brokers remove whole ledgers, the oldest first, so all later entries exist too."""
        asked = [(p, at(place.ledger, place.entry)) for p, place in places.items() if place.ledger >= 0]
        return {
            partition
            for (partition, wanted), entry in zip(asked, self._first(asked), strict=True)
            if entry is not None and (entry.ledger_id, entry.entry_id) == (wanted.ledger_id, wanted.entry_id)
        }

    def lost(self, what: str) -> None:
        """Report a possible loss of messages: as an error, or as a warning if ``failOnDataLoss`` is false."""
        if self.options.fail_on_data_loss:
            raise refusal(what)
        logger.warning("%s", what)

    def position(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the subscription's position; create it after the newest messages if it is missing."""
        cursor, asked = self.cursor, list(partitions)
        assert cursor is not None
        return self.retry_policy.call(
            f"opening the subscription {cursor.name}", lambda: cursor.position(asked)
        )

    # --- questions --------------------------------------------------------------------------------

    def partitions(self, *, missing_is_empty: bool = False) -> list[Partition]:
        options = self.options
        missing_is_empty |= options.wait_for_topics
        return self.retry_policy.call(
            "looking up the topics",
            lambda: discover(
                self.cluster, options.topics, options.topics_pattern, missing_is_empty=missing_is_empty
            ),
        )

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the offset after the newest message of each partition, `EARLIEST` for an empty topic."""
        asked = list(partitions)
        found = self.retry_policy.call("asking for the newest messages", lambda: self.watch.newest(asked))
        return {partition: behind_message(message_id) for partition, message_id in found.items()}

    def _first(self, places: list[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        return self.retry_policy.call("looking for entries", lambda: self.watch.first(places))

    def _look(self, peeks: Sequence[EntrySample]) -> list[tuple[list[MeasuredEntry], bool]]:
        return self.retry_policy.call("looking at entries", lambda: self.watch.look(peeks))

    def _run(self, searches: Mapping[Partition, Search[T]]) -> dict[Partition, T]:
        return run(searches, self._first)

    def firsts(self, partitions: Iterable[Partition]) -> Offsets:
        """Return the offset before the first message of each partition, without empty partitions."""
        found = self._run({partition: before_first(EARLIEST) for partition in partitions})
        return {partition: place for partition, place in found.items() if place is not None}

    def begins(self, places: Offsets) -> Offsets:
        """Return ``places`` with `EARLIEST` replaced by the offset before the first entry."""
        found = self._run({p: before_first(place) for p, place in places.items()})
        return {p: found[p] or place for p, place in places.items()}

    # --- positions ----------------------------------------------------------------------------------

    def starting(self, default: str) -> Offsets:
        """Return the start of a new query for every existing partition."""
        partitions, options = self.partitions(), self.options
        times = self._times(
            "startingOffsetsByTimestamp", options.starting_times, options.starting_time_ms, partitions
        )
        rest = [partition for partition in partitions if partition not in times]
        places = self._named("startingOffsets", options.starting_offsets or default, default, rest)
        self._check_start(places)
        self._check_past(times)
        return {**places, **self._before_times(times)}

    def ending(self, partitions: Iterable[Partition], known: Iterable[Partition] = ()) -> Offsets:
        """Return the end of a batch query, at most the newest message. ``known``: partitions excluded by a
        filter, which options may name too."""
        asked, options = list(partitions), self.options
        known = {*asked, *known}
        times = self._times("endingOffsetsByTimestamp", options.ending_times, options.ending_time_ms, known)
        times = {partition: times[partition] for partition in asked if partition in times}
        rest = [partition for partition in asked if partition not in times]
        latest = self.latest(rest)
        named = self._named("endingOffsets", options.ending_offsets, "latest", rest, latest, known)
        places = {partition: min(place, latest[partition]) for partition, place in named.items()}
        return {**places, **self._before_times(times)}

    def _times(
        self,
        option: str,
        given: Mapping[Partition, int],
        all_ms: int | None,
        partitions: Collection[Partition],
    ) -> dict[Partition, int]:
        """Return the time of each partition that has one."""
        if all_ms is not None:
            return dict.fromkeys(partitions, all_ms)
        whole = {topic: time_ms for (topic, index), time_ms in given.items() if index < 0}
        found = {}
        for partition in partitions:
            time_ms = given.get(partition, whole.get(partition[0]))
            if time_ms is not None:
                found[partition] = time_ms
        topics = {topic for topic, _ in partitions}
        unknown = [p for p in given if p not in found and not (p[1] < 0 and p[0] in topics)]
        if unknown:
            raise _not_read(option, unknown)
        return found

    def _before_times(self, times: Mapping[Partition, int]) -> Offsets:
        latest = self.latest(times)
        return self._run({p: before_time(newest, times[p]) for p, newest in latest.items()})

    def _check_past(self, times: Mapping[Partition, int]) -> None:
        now_ms = int(self._wall_clock() * 1000)
        time_ms = max(times.values(), default=now_ms)
        if time_ms > now_ms + CLOCK_DIFFERENCE_MS_MAX and not self.options.future_is_latest:
            raise InvalidConfiguration(
                f"option startingTime={time_ms} is {(time_ms - now_ms) / 1000:g} s in the future: messages "
                "published until then could not be excluded; allowed: milliseconds since 1970, "
                f"up to now ({now_ms}), or startingOffsetsByTimestampStrategy=latest"
            )

    def _named(
        self,
        option: str,
        places: str | Offsets,
        default: str,
        partitions: list[Partition],
        latest: Offsets | None = None,
        known: Collection[Partition] = (),
    ) -> Offsets:
        """Resolve offsets named by an option. ``latest``: newest offsets, if known, which saves a query.
        ``known``: other partitions that may be named."""
        given = {} if isinstance(places, str) else places
        unknown = set(given) - {OTHERS, *partitions, *known}
        if unknown:
            raise _not_read(option, unknown)
        otherwise = EARLIEST if (places if isinstance(places, str) else default) == "earliest" else LATEST
        otherwise = given.get(OTHERS, otherwise)
        found = {partition: given.get(partition, otherwise) for partition in partitions}
        at_the_end = latest
        if at_the_end is None:
            at_the_end = self.latest(partition for partition, place in found.items() if place == LATEST)
        for partition, place in found.items():
            if place == LATEST:
                found[partition] = at_the_end[partition]
            elif partition in given and option == "startingOffsets":
                found[partition] = place.inclusive_start
        return found

    def _check_start(self, places: Offsets) -> None:
        """Reject a start after the newest message, which could wait forever."""
        given = self.options.starting_offsets
        if not isinstance(given, dict):
            return
        latest = self.latest(partition for partition in places if partition in given)
        for partition, newest in latest.items():
            if places[partition] > newest and given[partition] != LATEST:
                raise InvalidConfiguration(
                    f"option startingOffsets: {partition_topic(partition)} has no message "
                    f"{given[partition]}, its newest is {newest}; use 'latest' to start after it"
                )

    # --- admission --------------------------------------------------------------------------------

    def limited(self, start: Offsets, latest: Offsets, limits: BatchLimits) -> Offsets:
        """Return the end of a micro-batch: fair shares of the limits over the partitions with a backlog."""
        self._heads.clear()
        if limits.needs_entries:
            self._looked = self._clock()
        end = {p: max(start.get(p, EARLIEST), latest[p]) for p in latest}
        behind = self._in_turn(
            [
                p
                for p in sorted(end)
                if end[p] > start.get(p, EARLIEST) and not self._is_compacted(start.get(p, EARLIEST))
            ]
        )
        if not limits or not behind:
            return end
        intakes = [PartitionBudget(p, start.get(p, EARLIEST), end[p]) for p in behind]
        admit(intakes, limits, self.gauge, self._look, self._step)
        for intake in intakes:
            if intake.head:
                self._heads[intake.partition] = (intake.start, intake.head)
        served = [intake.partition for intake in intakes if intake.at > intake.start]
        if served and len(served) < len(intakes):
            self._turn = served[-1]
        return {**end, **{intake.partition: intake.at for intake in intakes}}

    def _in_turn(self, behind: list[Partition]) -> list[Partition]:
        """Return the partitions in turn: those that got no share the last time come first."""
        turn = self._turn
        if turn is None:
            return behind
        return [p for p in behind if p > turn] + [p for p in behind if p <= turn]

    def _step(self, steps: Mapping[Partition, tuple[Offset, Offset, int]]) -> Offsets:
        return self._run({p: stepped_ahead(start, end, n) for p, (start, end, n) in steps.items()})

    # --- lag --------------------------------------------------------------------------------------

    def spans(self, start: Offsets, latest: Offsets) -> dict[Partition, OffsetSpan]:
        """Return the number of entries between the offsets, by partition."""
        waiting = behind(start, latest)
        found = self._run({p: self.ledgers.span(p, *places) for p, places in waiting.items()})
        return {**dict.fromkeys(latest, OffsetSpan(0)), **found}

    def _gauged(self, start: Offsets, latest: Offsets) -> EntryCostEstimate:
        """Return the entry cost estimate, after sampling some entries if it is too old."""
        waiting = behind(start, latest)
        now = self._clock()
        if waiting and (self.gauge.all is None or now - self._looked > LOOK_AGAIN_SECONDS):
            self._looked = now
            few = list(waiting.items())[:LOOKS_MAX]
            peeks = [EntrySample(partition, begin, end, rows=1, bytes=1) for partition, (begin, end) in few]
            for peek, (seen, _) in zip(peeks, self._look(peeks), strict=True):
                self.gauge.saw(peek.partition, sum((each.cost for each in seen), EntryCost()))
        return self.gauge

    def rows_between(self, start: Offsets, latest: Offsets) -> float:
        """Return the approximate number of messages between the offsets."""
        gauge = self._gauged(start, latest)
        costs = ((span, gauge.of(partition)) for partition, span in self.spans(start, latest).items())
        return sum(span.entries * each.rows for span, each in costs if each is not None)

    def lag(self, end: Offsets, latest: Offsets) -> dict[str, dict[str, Any]]:
        """Return the lag of ``end``, by topic; see `geminga.spark.lag.by_topic`."""
        return by_topic(self.spans(end, latest), self._gauged(end, latest))

    # --- tasks ------------------------------------------------------------------------------------

    def ranges(self, start: Offsets, end: Offsets, first: Offsets | None = None) -> list[Range]:
        """Return the tasks that read everything between the offsets. ``first``: for partitions read from
        `EARLIEST` on, the offset before their first message, which must still exist."""
        first = first or {}
        if not self.is_batch:
            # A stream's end before its start is in a recreated topic: all of it is read.
            start = {p: place for p, place in start.items() if place <= end.get(p, place)}
        behind = {p: (start.get(p, EARLIEST), end[p]) for p in sorted(end) if end[p] > start.get(p, EARLIEST)}
        compacted = [p for p, (begin, _) in behind.items() if self._is_compacted(begin)]
        wanted = {
            p: (self._known_start(p, first.get(p, begin) if begin == EARLIEST else begin), place)
            for p, (begin, place) in behind.items()
            if p not in compacted
        }
        begins = self.begins({p: begin for p, (begin, _) in wanted.items()})
        wanted = {p: (begins[p], place) for p, (_, place) in wanted.items()}
        sizes = self._sizes(wanted)
        cut = self._run({p: pieces(*places, sizes[p]) for p, places in wanted.items()})
        count = sum(len(found) for found in cut.values())
        if 0 < count < self.options.min_partitions:
            cut = self._smaller(wanted, cut, sizes)
        nexts = self._nexts_kept(cut)
        offloaded = self.offloaded(cut)
        whole = [
            Range(p, *behind[p], beginning=EARLIEST, compacted=True, goes_on=self.is_batch) for p in compacted
        ]
        return whole + [
            part
            for p, found in cut.items()
            for part in self._of_partition(
                p, start.get(p, EARLIEST), found, nexts.get(p), offloaded.get(p, {})
            )
        ]

    def _sizes(self, wanted: Mapping[Partition, tuple[Offset, Offset]]) -> dict[Partition, int | None]:
        """Return the maximum entries per task for each partition; None: no limit.

        The size of an entry is known only after reading it. A few entries of large ranges are read, at
        positions derived from the range's ends: planning a range again splits it in the same way.
        """
        if not self.splits:
            return dict.fromkeys(wanted)
        most = self.entries_per_split
        large = {
            p: places
            for p in sorted(wanted)
            if not self._is_small(p, *wanted[p]) and (places := _samples(*wanted[p]))
        }
        asked = [(p, place) for p in list(large)[:LOOKS_MAX] for place in large[p]]
        lengths: dict[Partition, list[int]] = {}
        for (partition, _), entry in zip(asked, self._first(asked) if asked else [], strict=True):
            if entry is not None:
                lengths.setdefault(partition, []).append(len(entry.entry))
        everywhere = [length for found in lengths.values() for length in found]
        sizes: dict[Partition, int | None] = dict.fromkeys(wanted, most)
        for partition in large:
            seen = lengths.get(partition, everywhere)
            if seen:
                fitting = self.bytes_per_split * len(seen) // max(1, sum(seen))
                sizes[partition] = min(most, max(ENTRIES_MIN, fitting))
        return sizes

    def _is_small(self, partition: Partition, begin: Offset, end: Offset) -> bool:
        """Return whether a range is less than half a task, by entries sampled for a limit or the lag: no
        further sampling is needed."""
        entries, known = entries_between(begin, end), self.gauge.partitions.get(partition)
        # Dead letters in a topic are identified by their task, which a restart must cut in the same way; it
        # does not know the entries sampled so far.
        if entries is None or known is None or self.options.dead_letter_topic is not None:
            return False
        return entries * known.bytes < self.bytes_per_split / 2

    def _is_compacted(self, start: Offset) -> bool:
        """Return whether the messages after ``start`` are read compacted, in one micro-batch and task. A
        stream reads later messages uncompacted."""
        return self.options.read_compacted and (self.is_batch or start == EARLIEST)

    def _known_start(self, partition: Partition, start: Offset) -> Offset:
        """Return the offset before the first sampled entry, if the start is only `EARLIEST`."""
        known, head = self._heads.get(partition, (None, []))
        if start == known == EARLIEST and head:
            return Offset.after_entry(head[0].ledger_id, head[0].entry_id - 1)
        return start

    def _smaller(
        self,
        wanted: Mapping[Partition, tuple[Offset, Offset]],
        cut: dict[Partition, list[PartitionPiece]],
        sizes: Mapping[Partition, int | None],
    ) -> dict[Partition, list[PartitionPiece]]:
        """Return enough tasks for ``minPartitions``, if possible; none larger than ``sizes``."""
        most = {p: sizes[p] or self.entries_per_split for p in cut}
        exact = self._run({p: pieces(*wanted[p], most[p], exact=True) for p in cut})
        entries = sum(piece.entries or 0 for found in exact.values() for piece in found)
        size = max(1, -(-entries // self.options.min_partitions))
        return self._run({p: pieces(*wanted[p], min(most[p], size), exact=True) for p in cut})

    def _of_partition(
        self,
        partition: Partition,
        start: Offset,
        found: list[PartitionPiece],
        next_kept: tuple[int, int] | None,
        offloaded: Mapping[int, tuple[OffloadedLedger, ...]],
    ) -> list[Range]:
        begin, entries = self._heads.get(partition, (None, []))
        head = entries if begin == start else []
        parts = []
        for number, piece in enumerate(found):
            mine = tuple(e for e in head if piece.start < Offset(e.ledger_id, e.entry_id) <= piece.end)
            begins = number == 0
            parts.append(
                Range(
                    partition,
                    piece.start,
                    piece.end,
                    head=mine if begins else (),
                    beginning=found[0].start if start == EARLIEST else None,
                    offloaded=offloaded.get(number, ()),
                    next_kept=next_kept if begins else None,
                )
            )
        return parts

    def _nexts_kept(self, cut: Mapping[Partition, list[PartitionPiece]]) -> dict[Partition, tuple[int, int]]:
        """Return `Range.next_kept` by partition. Only the subscription shows that a trimmed ledger was read
        to its end. It is queried after the next entry: if its cursor is moved meanwhile, for example by a
        time to live, the messages between are a loss."""
        cursor = self.cursor
        if cursor is None:
            return {}
        starts = {p: found[0].start for p, found in cut.items() if found and _goes_on(found[0])}
        asked = [(p, start.next_place) for p, start in starts.items() if p in cursor.kept]
        if not asked:
            return {}
        nexts = {
            partition: (entry.ledger_id, entry.entry_id)
            for (partition, place), entry in zip(asked, self._first(asked), strict=True)
            if entry is not None and entry.ledger_id > place.ledger_id
        }
        places = {partition: starts[partition] for partition in nexts}
        if not places:
            return {}
        keeps = self.retry_policy.call(
            f"looking at the subscription {cursor.name}", lambda: cursor.keeps(places)
        )
        return {partition: place for partition, place in nexts.items() if partition in keeps}

    def offloaded(
        self, cut: Mapping[Partition, list[PartitionPiece]]
    ) -> dict[Partition, dict[int, tuple[OffloadedLedger, ...]]]:
        """Return the ledgers to read as files, by partition and index of its piece. Once a query, each
        partition's offloaded ledgers are verified to be the broker's."""
        location = self.options.offload_location
        if location is None:
            return {}
        if self._manifests is None:
            from geminga.spark.offloaded import Manifests

            self._manifests = Manifests(location)
        manifests = self._manifests

        def of_piece(partition: Partition, piece: PartitionPiece) -> tuple[OffloadedLedger, ...]:
            return self.retry_policy.call(
                "reading what is offloaded", lambda: manifests.within(partition, piece.start, piece.end)
            )

        found: dict[Partition, dict[int, tuple[OffloadedLedger, ...]]] = {}
        for partition, parts in cut.items():
            for number, piece in enumerate(parts):
                within = of_piece(partition, piece)
                if within:
                    found.setdefault(partition, {})[number] = within
        newest = [(p, parts[max(parts)][-1]) for p, parts in found.items() if p not in self._confirmed]
        if newest:
            places = [(p, MessageId(-1, each.ledger, each.entries - 1)) for p, each in newest]
            asked = [(*each, entry) for each, entry in zip(newest, self._first(places), strict=True)]
            for (partition, _), is_right in zip(newest, manifests.confirmed(asked), strict=True):
                if is_right:
                    self._confirmed.add(partition)
                else:
                    del found[partition]
        return found


def combined(ranges: Sequence[Range], tasks_min: int) -> list[list[Range]]:
    """Return the ranges by task. Small ones share tasks, as long as more than ``tasks_min`` tasks are left:
    the start of a task takes longer than reading them."""
    if len(ranges) <= tasks_min:
        return [[part] for part in ranges]
    small, tasks, entries = [], [], 0
    for part in ranges:
        count = ENTRIES_MIN if part.compacted else entries_between(part.start, part.end) or ENTRIES_MIN
        if count < ENTRIES_MIN:
            small.append(part)
            entries += count
        else:
            tasks.append([part])
    number = max(min(len(small), tasks_min - len(tasks)), -(-entries // ENTRIES_COMBINED))
    step = -(-len(small) // number) if small else 1
    return tasks + [small[first : first + step] for first in range(0, len(small), step)]


def _samples(begin: Offset, end: Offset) -> list[MessageId]:
    """Return sample positions for the entries between; none if the range is too small to split."""
    entries = entries_between(begin, end)
    if entries is None:  # ledgers of unknown size
        return [begin.next_place, at(end.ledger, end.entry // 2)]
    if entries < 2 * ENTRIES_MIN:
        return []
    step = entries // SAMPLES
    return [at(begin.ledger, begin.entry + 1 + step // 2 + step * number) for number in range(SAMPLES)]


def _not_read(option: str, partitions: Iterable[Partition]) -> InvalidConfiguration:
    names = ", ".join(partition_topic(partition) for partition in sorted(partitions))
    return InvalidConfiguration(f"option {option} names {names}, which this query does not read")


def _goes_on(piece: PartitionPiece) -> bool:
    """Return whether the piece may begin after the last entry of a ledger."""
    start = piece.start
    return start.entry >= 0 and start.batch_index == WHOLE_ENTRY and piece.end.ledger > start.ledger


def behind_message(message_id: MessageId) -> Offset:
    """Return the offset after a message, `EARLIEST` for none."""
    if message_id.entry_id < 0:
        return EARLIEST
    return Offset.after_entry(message_id.ledger_id, message_id.entry_id)
