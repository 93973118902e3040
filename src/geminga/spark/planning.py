"""Where a query starts and ends, what a micro-batch may take, and how ranges become tasks.

Everything here runs on the driver and holds no state that a restart would miss. Questions to the cluster
are put for all partitions at once (`geminga.spark.watch`), and again while a broker restarts.
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
"""So old may be what is known about the size of entries; looks for a limit count too."""
LOOKS_MAX = 8
"""Partitions that are looked at then, one entry each; or when tasks are cut."""
SAMPLES = 3
"""Entries of a large range that are looked at to tell what one holds."""
ENTRIES_PER_SPLIT = 10_000
"""Default of ``maxEntriesPerSplit`` in queries that are split."""
BYTES_PER_SPLIT = 64 * 1024 * 1024
"""Default of ``maxBytesPerSplit`` there."""
ENTRIES_MIN = 16
"""Entries that a task has at least, of a range that has them."""
CLOCK_DIFFERENCE_MS_MAX = 5_000
"""So far in the driver's future a starting time may lie."""


@dataclass(frozen=True, slots=True)
class Range:
    """What one task reads of a partition: after ``start``, up to and with ``end``."""

    partition: Partition
    start: Offset
    end: Offset
    head: tuple[RawEntry, ...] = ()
    """The first entries of the range, where the planner has them at hand."""
    beginning: Offset | None = None
    """Where the query reads the partition from its first message on: the place before that."""
    offloaded: tuple[OffloadedLedger, ...] = ()
    """The ledgers of the range that are read as files."""
    next_kept: tuple[int, int] | None = None
    """The entry (by ledger and id) that came behind ``start``, in a later ledger, when this was planned and
    the query's subscription had kept everything behind ``start``: nothing was between them. None: unknown."""
    compacted: bool = False
    """Of what lies here, what compaction has left is read; see `geminga.spark.compacted`."""
    goes_on: bool = False
    """And everything behind ``end`` that is there when that was read."""

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
        """Whether one partition becomes several tasks; in a stream, whose order is then lost, by option."""
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
        """Partitions of which what is offloaded is known to be the broker's own."""
        self._looked = float("-inf")
        self._heads: dict[Partition, tuple[Offset, list[RawEntry]]] = {}
        self._turn: Partition | None = None

    def close(self) -> None:
        self.watch.close()
        if self.cursor is not None:
            self.cursor.close()

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
        """Move the subscription to what Spark has committed; returns `latest`, which it tells too. See
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
        """The partitions in which the entry before each place, or the first one of its ledger, is there:
        brokers remove whole ledgers, the oldest first, so that all that lies behind is there too."""
        asked = [(p, at(place.ledger, place.entry)) for p, place in places.items() if place.ledger >= 0]
        return {
            partition
            for (partition, wanted), entry in zip(asked, self._first(asked), strict=True)
            if entry is not None and (entry.ledger_id, entry.entry_id) == (wanted.ledger_id, wanted.entry_id)
        }

    def lost(self, what: str) -> None:
        """Messages may be lost: an error, unless ``failOnDataLoss`` says to go on."""
        if self.options.fail_on_data_loss:
            raise refusal(what)
        logger.warning("%s", what)

    def position(self, partitions: Iterable[Partition]) -> Offsets:
        """Where the subscription stands; it is made, behind the newest messages, where there is none."""
        cursor, asked = self.cursor, list(partitions)
        assert cursor is not None
        return self.retry_policy.call(
            f"opening the subscription {cursor.name}", lambda: cursor.position(asked)
        )

    # --- questions --------------------------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        options = self.options
        return self.retry_policy.call(
            "looking up the topics",
            lambda: discover(
                self.cluster, options.topics, options.topics_pattern, missing_is_empty=options.wait_for_topics
            ),
        )

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """The offset behind the newest message of each, `EARLIEST` for an empty topic."""
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
        """The place before the first message of each; without those that have none any more."""
        found = self._run({partition: before_first(EARLIEST) for partition in partitions})
        return {partition: place for partition, place in found.items() if place is not None}

    def begins(self, places: Offsets) -> Offsets:
        """The same places within ledgers: before the first entry there is, for `EARLIEST`."""
        found = self._run({p: before_first(place) for p, place in places.items()})
        return {p: found[p] or place for p, place in places.items()}

    # --- places -----------------------------------------------------------------------------------

    def starting(self, default: str) -> Offsets:
        """Where a new query starts, for every partition there is."""
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
        """Where a batch query ends; never behind the newest message. ``known``: what options may name too,
        as filters rule it out."""
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
        """The time of each partition that has one."""
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
                f"option startingTime={time_ms} lies {(time_ms - now_ms) / 1000:g} s in the future: nothing "
                "published until then could be told from what comes after; allowed: milliseconds since 1970, "
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
        """``latest`` of the partitions, where it is known: asking is what takes time. ``known``: others that
        may be named."""
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
        """A start behind the newest message would wait for a message that may never come."""
        given = self.options.starting_offsets
        if not isinstance(given, dict):
            return
        latest = self.latest(partition for partition in places if partition in given)
        for partition, newest in latest.items():
            if places[partition] > newest and given[partition] != LATEST:
                raise InvalidConfiguration(
                    f"option startingOffsets: {partition_topic(partition)} has no message "
                    f"{given[partition]}, its newest is {newest}; say 'latest' to start behind it"
                )

    # --- admission --------------------------------------------------------------------------------

    def limited(self, start: Offsets, latest: Offsets, limits: BatchLimits) -> Offsets:
        """How far a micro-batch goes: fair shares of the limits over the partitions with a backlog."""
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
        """Those that got nothing the last time come first."""
        turn = self._turn
        if turn is None:
            return behind
        return [p for p in behind if p > turn] + [p for p in behind if p <= turn]

    def _step(self, steps: Mapping[Partition, tuple[Offset, Offset, int]]) -> Offsets:
        return self._run({p: stepped_ahead(start, end, n) for p, (start, end, n) in steps.items()})

    # --- lag --------------------------------------------------------------------------------------

    def spans(self, start: Offsets, latest: Offsets) -> dict[Partition, OffsetSpan]:
        """How many entries lie between, by partition."""
        waiting = behind(start, latest)
        found = self._run({p: self.ledgers.span(p, *places) for p, places in waiting.items()})
        return {**dict.fromkeys(latest, OffsetSpan(0)), **found}

    def _gauged(self, start: Offsets, latest: Offsets) -> EntryCostEstimate:
        """The gauge, after a look at some entries where none was taken for a while."""
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
        """About how many messages lie between."""
        gauge = self._gauged(start, latest)
        costs = ((span, gauge.of(partition)) for partition, span in self.spans(start, latest).items())
        return sum(span.entries * each.rows for span, each in costs if each is not None)

    def lag(self, end: Offsets, latest: Offsets) -> dict[str, dict[str, Any]]:
        """How far ``end`` is behind, by topic; see `geminga.spark.lag.by_topic`."""
        return by_topic(self.spans(end, latest), self._gauged(end, latest))

    # --- tasks ------------------------------------------------------------------------------------

    def ranges(self, start: Offsets, end: Offsets, first: Offsets | None = None) -> list[Range]:
        """The tasks that read everything between the offsets. ``first``: of partitions that are read from
        `EARLIEST` on, the place before what was their first message: that has to be there still."""
        first = first or {}
        if not self.is_batch:
            # The end of a stream before its start is in a topic that was recreated: all of it is read.
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
        """Return how many entries of each partition one task reads at the most; None: all of them.

        What an entry holds shows in the entry alone. A few of some large ranges are read, at positions that
        follow from their ends: what is planned again is cut again where it was.
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
        """Whether it is less than half of what a task reads, by entries that were looked at for a limit or
        the lag: nobody needs to ask."""
        entries, known = entries_between(begin, end), self.gauge.partitions.get(partition)
        # Dead letters in a topic are told apart by the task that they are of, which a restart has to cut
        # again as it was; what was looked at so far it does not know.
        if entries is None or known is None or self.options.dead_letter_topic is not None:
            return False
        return entries * known.bytes < self.bytes_per_split / 2

    def _is_compacted(self, start: Offset) -> bool:
        """Whether what lies behind ``start`` is read as compaction has left it: the whole of it in one
        micro-batch and task. A stream reads what comes later as it is."""
        return self.options.read_compacted and (self.is_batch or start == EARLIEST)

    def _known_start(self, partition: Partition, start: Offset) -> Offset:
        """Before the first entry that was looked at, where the start says no more than 'the beginning'."""
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
        """Enough tasks for ``minPartitions``, as far as there are entries; none larger than ``sizes``."""
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
        """See `Range.next_kept`. The subscription tells what no other can: that a ledger was done when it was
        trimmed. It is asked after the entry that is next: whatever moves it until that is read, such as a
        time to live, makes what was between a loss."""
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
        """The ledgers that are read as files, by partition and number of its piece. Once a query, the broker
        is asked of each partition whether what is offloaded there is its own."""
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


def _samples(begin: Offset, end: Offset) -> list[MessageId]:
    """Places that stand for the entries between; none where more tasks than one are not worth while."""
    entries = entries_between(begin, end)
    if entries is None:  # ledgers that nobody has counted
        return [begin.next_place, at(end.ledger, end.entry // 2)]
    if entries < 2 * ENTRIES_MIN:
        return []
    step = entries // SAMPLES
    return [at(begin.ledger, begin.entry + 1 + step // 2 + step * number) for number in range(SAMPLES)]


def _not_read(option: str, partitions: Iterable[Partition]) -> InvalidConfiguration:
    names = ", ".join(partition_topic(partition) for partition in sorted(partitions))
    return InvalidConfiguration(f"option {option} names {names}, which this query does not read")


def _goes_on(piece: PartitionPiece) -> bool:
    """Whether it may begin behind the last entry of a ledger."""
    start = piece.start
    return start.entry >= 0 and start.batch_index == WHOLE_ENTRY and piece.end.ledger > start.ledger


def behind_message(message_id: MessageId) -> Offset:
    """The offset behind a message, `EARLIEST` for none."""
    if message_id.entry_id < 0:
        return EARLIEST
    return Offset.after_entry(message_id.ledger_id, message_id.entry_id)
