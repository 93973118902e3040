"""Where a query starts and ends, what a micro-batch may take, and how ranges become tasks.

Everything here runs on the driver, holds no state that a restart would miss, and moves no cursor. Entry
ids are contiguous within a ledger, so counting entries is arithmetic there; what lies behind a ledger's
end is found by asking for the first entry after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from geminga.errors import InvalidConfiguration, PulsarException
from geminga.ids import MessageId
from geminga.spark.cluster import Cluster, EntrySource, closed_quietly, discover
from geminga.spark.offsets import EARLIEST, LATEST, WHOLE_ENTRY, Offset, Offsets, Partition, partition_topic
from geminga.spark.options import ReadOptions

if TYPE_CHECKING:
    from geminga.wire.metadata import RawEntry

logger = logging.getLogger("geminga.spark")

LEDGERS_MAX = 256
"""Ledgers that the splitting of one partition steps through; what lies behind them is one task."""

PROBE_SECONDS = 10.0
"""How long the first entry at a place, which is known to be there, may take."""

_SCAN_ENTRIES = 500
_QUEUE_FOR_SCANS = 20_000


@dataclass(frozen=True, slots=True)
class Range:
    """What one task reads of a partition: after ``start``, up to and with ``end``."""

    partition: Partition
    start: Offset
    end: Offset

    def __str__(self) -> str:
        return f"{partition_topic(self.partition)} after {self.start} up to {self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one micro-batch may take over all partitions; None is no limit."""

    entries: int | None = None
    rows: int | None = None
    bytes: int | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.entries, self.rows, self.bytes))

    def share(self, parts: int) -> Limits:
        """An even share for one of ``parts``, at least 1 of each."""
        entries, rows, size = (
            None if limit is None else max(1, limit // parts)
            for limit in (self.entries, self.rows, self.bytes)
        )
        return Limits(entries=entries, rows=rows, bytes=size)

    def less(self, used: Iterable[Used]) -> Limits:
        """What is left; 0 where nothing is."""
        taken = list(used)
        return Limits(
            entries=None if self.entries is None else max(0, self.entries - sum(u.entries for u in taken)),
            rows=None if self.rows is None else max(0, self.rows - sum(u.rows for u in taken)),
            bytes=None if self.bytes is None else max(0, self.bytes - sum(u.bytes for u in taken)),
        )

    @property
    def exhausted(self) -> bool:
        return 0 in (self.entries, self.rows, self.bytes)


@dataclass(slots=True)
class Used:
    """What was taken of one partition so far."""

    entries: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Scan:
    """Walks a partition's entries on the driver, to stop where a limit in rows or bytes is reached."""

    partition: Partition
    end: Offset
    at: Offset
    open: Callable[[], EntrySource]
    source: EntrySource | None = None
    queue: list[RawEntry] = field(default_factory=list)
    used: Used = field(default_factory=Used)
    done: bool = False

    def advance(self, limits: Limits) -> None:
        """Take entries as long as ``limits`` are kept; the very first is always taken."""
        from geminga.wire.columnar import message_counts

        taken = Used()
        while not self.done:
            if not self.queue:
                if self.source is None:
                    self.source = self.open()
                self.queue = self.source.read(_SCAN_ENTRIES, PROBE_SECONDS)
                if not self.queue:
                    self.done = True
                    return
            counts = message_counts(self.queue)
            for number, (entry, rows) in enumerate(zip(self.queue, counts, strict=True)):
                place = Offset.after_entry(entry.ledger_id, entry.entry_id)
                if place > self.end:
                    self.done = True
                    return
                if place <= self.at:
                    continue
                size = len(entry.entry)
                first = self.used.entries == 0
                if not first and _exceeds(limits, taken, rows, size):
                    self.queue = self.queue[number:]
                    return
                for used in (self.used, taken):
                    used.entries += 1
                    used.rows += rows
                    used.bytes += size
                self.at = place
                self.done = place >= self.end
            self.queue = []


def _exceeds(limits: Limits, taken: Used, rows: int, size: int) -> bool:
    return (
        (limits.entries is not None and taken.entries + 1 > limits.entries)
        or (limits.rows is not None and taken.rows + rows > limits.rows)
        or (limits.bytes is not None and taken.bytes + size > limits.bytes)
    )


class Planner:
    """Plans one query. Keeps a reader open a partition, to ask for the newest message."""

    def __init__(self, cluster: Cluster, options: ReadOptions) -> None:
        self.cluster = cluster
        self.options = options
        self._watchers: dict[Partition, EntrySource] = {}

    def close(self) -> None:
        for source in self._watchers.values():
            closed_quietly(source)
        self._watchers.clear()

    # --- places -----------------------------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        return discover(
            self.cluster,
            self.options.topics,
            self.options.topics_pattern,
            missing_is_empty=self.options.wait_for_topics,
        )

    def _open(self, partition: Partition, start: MessageId, queue_size: int) -> EntrySource:
        return self.cluster.open(
            partition, start, queue_size=queue_size, name=self.options.subscription_prefix
        )

    def newest(self, partition: Partition) -> Offset:
        """The offset behind the newest message, `EARLIEST` for an empty topic."""
        message_id = self._last_message_id(partition)
        if message_id.entry_id < 0:
            return EARLIEST
        return Offset.after_entry(message_id.ledger_id, message_id.entry_id)

    def _last_message_id(self, partition: Partition) -> MessageId:
        watcher = self._watchers.get(partition)
        if watcher is not None:
            try:
                return watcher.last_message_id()
            except PulsarException as error:
                # The reader ended, for example because the topic was deleted and made again.
                logger.info("asking %s anew: %s", partition_topic(partition), error)
                closed_quietly(self._watchers.pop(partition))
        watcher = self._watchers[partition] = self._open(partition, MessageId.latest, 1)
        return watcher.last_message_id()

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        return {partition: self.newest(partition) for partition in partitions}

    def first_from(self, partition: Partition, start: MessageId) -> RawEntry | None:
        """The first entry at or after ``start``; None when nothing arrives."""
        source = self._open(partition, start, 1)
        try:
            entries = source.read(1, PROBE_SECONDS)
        finally:
            closed_quietly(source)
        return entries[0] if entries else None

    def starting(self, default: str) -> Offsets:
        """Where a new query starts, for every partition there is."""
        partitions = self.partitions()
        if self.options.starting_time_ms is not None:
            return {p: self._from_time(p, self.options.starting_time_ms) for p in partitions}
        return self._named("startingOffsets", self.options.starting_offsets or default, default, partitions)

    def ending(self, partitions: Iterable[Partition]) -> Offsets:
        """Where a batch query ends; never behind the newest message."""
        named = self._named("endingOffsets", self.options.ending_offsets, "latest", list(partitions))
        latest = self.latest(named)
        return {partition: min(place, latest[partition]) for partition, place in named.items()}

    def _named(
        self, option: str, places: str | Offsets, default: str, partitions: list[Partition]
    ) -> Offsets:
        given = {} if isinstance(places, str) else places
        unknown = sorted(set(given) - set(partitions))
        if unknown:
            names = ", ".join(partition_topic(partition) for partition in unknown)
            raise InvalidConfiguration(f"option {option} names {names}, which this query does not read")
        otherwise = places if isinstance(places, str) else default
        found: Offsets = {}
        for partition in partitions:
            place = given.get(partition, EARLIEST if otherwise == "earliest" else LATEST)
            if place == LATEST:
                place = self.newest(partition)
            elif partition in given and option == "startingOffsets":
                place = place.inclusive_start
            found[partition] = place
        return found

    def _from_time(self, partition: Partition, time_ms: int) -> Offset:
        """The offset before the first entry published at or after ``time_ms``, by bisection.

        Publish times grow with the position, but for clock differences between producers.
        """
        from geminga.wire.metadata import peek_entry

        def is_early(entry: RawEntry) -> bool:
            return peek_entry(entry.entry).publish_time < time_ms

        end = self.newest(partition)
        if end == EARLIEST:
            return EARLIEST
        first = self.first_from(partition, MessageId.earliest)
        if first is None or not is_early(first):
            return EARLIEST
        low = Offset.after_entry(first.ledger_id, first.entry_id)
        while low.ledger < end.ledger:
            following = self.first_from(partition, MessageId(-1, low.ledger + 1, 0))
            if following is None or not is_early(following):
                break
            low = Offset.after_entry(following.ledger_id, following.entry_id)
        step = 1
        if low.ledger == end.ledger:
            while low.entry + step < end.entry:
                step *= 2
        else:
            step = 1 << 17
        while step:
            probe = MessageId(-1, low.ledger, low.entry + step)
            found = None if (low.ledger, probe.entry_id) > end[:2] else self.first_from(partition, probe)
            if found is not None and found.ledger_id == low.ledger and is_early(found):
                low = Offset.after_entry(found.ledger_id, found.entry_id)
            else:
                step //= 2
        return low

    # --- admission --------------------------------------------------------------------------------

    def limited(self, start: Offsets, latest: Offsets, limits: Limits) -> Offsets:
        """How far a micro-batch goes: fair shares of the limits over the partitions with a backlog."""
        end = {p: max(start.get(p, EARLIEST), latest[p]) for p in latest}
        behind = [p for p in sorted(end) if end[p] > start.get(p, EARLIEST)]
        if not limits or not behind:
            return end
        if limits.rows is None and limits.bytes is None and limits.entries is not None:
            return {**end, **self._limited_entries(start, {p: end[p] for p in behind}, limits.entries)}
        scans = [self._scan(p, start.get(p, EARLIEST), end[p]) for p in behind]
        try:
            for scan in scans:
                scan.advance(limits.share(len(scans)))
            hungry = [scan for scan in scans if not scan.done]
            for number, scan in enumerate(hungry):
                left = limits.less(each.used for each in scans)
                if left.exhausted:
                    break
                scan.advance(left.share(len(hungry) - number))
        finally:
            for scan in scans:
                if scan.source is not None:
                    closed_quietly(scan.source)
        return {**end, **{scan.partition: scan.end if scan.done else scan.at for scan in scans}}

    def _scan(self, partition: Partition, start: Offset, end: Offset) -> _Scan:
        return _Scan(
            partition, end, start, lambda: self._open(partition, start.reader_start, _QUEUE_FOR_SCANS)
        )

    def _limited_entries(self, start: Offsets, end: Offsets, limit: int) -> Offsets:
        """Smallest backlogs first, so that what they leave goes to the others."""
        found: Offsets = {}
        backlog = {p: _entries_between(start.get(p, EARLIEST), end[p]) for p in end}
        left, waiting = limit, len(end)
        for partition in sorted(end, key=lambda p: (backlog[p] or _FAR, p)):
            share = max(1, left // waiting)
            known = backlog[partition]
            if known is not None and known <= share:
                found[partition], taken = end[partition], known
            else:
                found[partition] = self._stepped(
                    partition, start.get(partition, EARLIEST), end[partition], share
                )
                taken = share
            left, waiting = max(0, left - taken), waiting - 1
        return found

    def _stepped(self, partition: Partition, start: Offset, end: Offset, entries: int) -> Offset:
        """The offset ``entries`` behind ``start``, or the end of its ledger when that comes first."""
        if start.ledger < 0:
            first = self.first_from(partition, MessageId.earliest)
            if first is None:
                return start
            start = Offset.after_entry(first.ledger_id, first.entry_id - 1)
        wanted = Offset.after_entry(start.ledger, start.entry + entries)
        if start.ledger == end.ledger:
            return min(wanted, end)
        found = self.first_from(partition, MessageId(-1, wanted.ledger, wanted.entry))
        if found is None:
            return end
        return (
            wanted if found.ledger_id == wanted.ledger else min(Offset.after_entry(found.ledger_id, -1), end)
        )

    # --- tasks ------------------------------------------------------------------------------------

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """The tasks that read everything between the offsets."""
        pieces: list[Range] = []
        for partition, place in sorted(end.items()):
            begin = start.get(partition, EARLIEST)
            if place > begin:
                pieces += self._by_ledger(partition, begin, place)
        known = sum(_entries_between(piece.start, piece.end) or 0 for piece in pieces)
        size = self.options.max_entries_per_split
        missing = self.options.min_partitions - len(pieces)
        if missing > 0 and known:
            size = min(size, max(1, -(-known // self.options.min_partitions)))
        return [part for piece in pieces for part in _cut(piece, size)]

    def _by_ledger(self, partition: Partition, start: Offset, end: Offset) -> list[Range]:
        if start.ledger < 0:
            first = self.first_from(partition, MessageId.earliest)
            if first is None or Offset.after_entry(first.ledger_id, first.entry_id - 1) >= end:
                return []
            start = Offset.after_entry(first.ledger_id, first.entry_id - 1)
        pieces: list[Range] = []
        while start.ledger < end.ledger and len(pieces) < LEDGERS_MAX:
            following = self.first_from(partition, MessageId(-1, start.ledger + 1, 0))
            if following is None or following.ledger_id <= start.ledger:
                break
            boundary = Offset.after_entry(following.ledger_id, following.entry_id - 1)
            if boundary >= end:
                break
            pieces.append(Range(partition, start, boundary))
            start = boundary
        pieces.append(Range(partition, start, end))
        return pieces


_FAR = 1 << 62


def _entries_between(start: Offset, end: Offset) -> int | None:
    """Entries after ``start`` up to ``end``; None when they lie in different ledgers."""
    if start.ledger != end.ledger or start.ledger < 0:
        return None
    return end.entry - start.entry + (start.batch_index != WHOLE_ENTRY)


def _cut(piece: Range, size: int) -> list[Range]:
    """Cut a range within one ledger into parts of at most ``size`` entries."""
    entries = _entries_between(piece.start, piece.end)
    if entries is None or entries <= size:
        return [piece]
    places = [
        Offset.after_entry(piece.start.ledger, entry)
        for entry in range(piece.start.entry + size, piece.end.entry, size)
    ]
    return [
        Range(piece.partition, start, end)
        for start, end in zip([piece.start, *places], [*places, piece.end], strict=True)
    ]
