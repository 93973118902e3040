"""A topic's entries: a list of store ledgers with consecutive offsets.

Every entry has an *offset*: its index in the topic's whole history, counted from 0 and never reused, also
after ledgers were trimmed. Inside the broker all positions (cursors, read positions, pending
acknowledgements) are offsets, independent of ledger boundaries; ledger and entry ids are used only towards
clients. The offset at which a ledger begins is stored under ``ledgers/<topic>`` before the ledger's first
entry, so offsets survive restarts.

A loaded topic starts a new ledger with its first entry, as in Apache Pulsar: ids that clients may have seen
before a crash are not reused for other entries.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Protocol

from geminga.broker.entries import ledger_list
from geminga.broker.entries.entry_counts import CountsCache, EntryCounts
from geminga.broker.settings import LEDGER_SECONDS_LIMIT
from geminga.errors import LedgerNotFound, StoreError
from geminga.ledger.api import Buffer, Done, EntryStore, ReadAhead
from geminga.ledger.damage import EntriesDamaged

log = logging.getLogger("geminga.broker")

_ENTRY_BYTES_MAX = 1 << 30
"""Upper bound of an entry's size: frames are at most this long."""
_CACHED_ENTRY_OVERHEAD = 160
"""Approximate memory of the cache itself per entry, in bytes."""


SegmentTest = Callable[["Segment", int], bool]


@dataclass(slots=True, eq=False, repr=False)
class Segment:
    """One ledger of the topic. ``created_ms`` and ``written_ms`` are the broker's wall-clock time."""

    ledger_id: int
    base: int
    created_ms: int
    entries: int
    size_bytes: int
    written_ms: int = 0
    """Time of its last entry; 0 if unknown."""

    @property
    def end(self) -> int:
        """The offset behind its last entry."""
        return self.base + self.entries


_ledger_id = attrgetter("ledger_id")


class OffsetRuns(Protocol):
    """Set of offsets, as runs."""

    def next_missing(self, value: int) -> int: ...

    def next_present(self, value: int, stop: int) -> int: ...

    def last_missing(self, start: int, stop: int) -> int: ...


class ReadAheadCache:
    """Entries of all topics that were read ahead from the disk: readers do not wait for the next ones.

    ``bytes_max`` bounds the memory of the whole broker's cache, unless a single read is larger; the oldest
    reads are evicted first. New entries are in the store's memory, not here.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._reads = deque[tuple[dict[int, bytes], range, int]]()

    def add(self, cached: dict[int, bytes], offset: int, entries: list[bytes]) -> None:
        """Add consecutive entries to ``cached``, from which they are evicted later."""
        size = sum(map(len, entries)) + len(entries) * _CACHED_ENTRY_OVERHEAD
        cached.update(enumerate(entries, offset))
        self._reads.append((cached, range(offset, offset + len(entries)), size))
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._reads) > 1:
            cached, offsets, size = self._reads.popleft()
            for each in offsets:
                cached.pop(each, None)
            self._bytes -= size


def _ignore(_entries: list[bytes], _error: StoreError | None) -> None:
    """Called for nothing: a read of the memory alone is not reported."""


class ManagedLedger:
    """Ledgers of a topic. Entries at ``start <= offset < confirmed`` are readable; ``end`` is the next."""

    __slots__ = (
        "_bases", "_cache", "_current", "_owner", "_rolled", "_store",
        "aborted", "cached", "confirmed", "counts", "damaged", "end", "segments",
    )  # fmt: skip

    def __init__(
        self,
        store: EntryStore,
        owner: str,
        cache: ReadAheadCache,
        counts: CountsCache,
        *,
        now_ms: int = 0,
        rolled: Callable[[], None] = lambda: None,
    ) -> None:
        """``rolled`` is called for each new ledger."""
        self._rolled = rolled
        self._store = store
        self._owner = owner
        self._cache = cache
        self.cached: dict[int, bytes] = {}
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self.counts = EntryCounts(store, owner, counts, self.segments, self._bases)
        self._current: Segment | None = None
        self.damaged: Sequence[tuple[int, int]] = ()
        self.aborted: OffsetRuns | None = None
        """Entries of aborted transactions, which are not read."""
        self.end = 0
        self._load(now_ms)
        self.confirmed = self.end

    def _load(self, now_ms: int) -> None:
        found = ledger_list.load(self._store, self._owner, now_ms)
        for info, (base, created_ms) in found.ledgers:
            self._add_segment(Segment(info.ledger_id, base, created_ms, info.entries, info.size_bytes))
            for first, last in self._store.damage.entries_of(info.ledger_id):
                self._note_damage(base + first, base + last + 1)
        self.end = found.end
        if found.was_mended:
            self._store.keys.put(self._key, self._list())
        if found.empty:
            self._store.delete_ledgers(found.empty)

    def _list(self) -> bytes:
        """Return the whole encoded ledger list."""
        record = bytearray()
        if not self.segments or self.segments[-1].end < self.end:
            ledger_list.put_ledger(record, ledger_list.END_MARKER, self.end, 0)
        for segment in self.segments:
            ledger_list.put_ledger(record, segment.ledger_id, segment.base, segment.created_ms)
        return bytes(record)

    def _add_segment(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._bases.append(segment.base)

    @property
    def _key(self) -> str:
        return ledger_list.key_of(self._owner)

    # --- positions ---
    @property
    def start(self) -> int:
        """The offset of the oldest stored entry."""
        return self._bases[0] if self._bases else self.end

    def gaps(self) -> list[tuple[int, int]]:
        """Return (first, behind the last) of each run of missing offsets between ``start`` and ``end``."""
        begins = [*self._bases[1:], self.end]
        return [
            (segment.end, begin)
            for segment, begin in zip(self.segments, begins, strict=False)
            if segment.end < begin
        ]

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment of an offset or, for an offset in a gap, the last segment before it."""
        current = self._current
        if current is not None and offset >= current.base:
            return current
        index = bisect_right(self._bases, offset) - 1
        return self.segments[index] if index >= 0 else None

    def index_of(self, offset: int) -> int:
        """Return the index in ``segments`` of `segment_of`; -1 for None."""
        return bisect_right(self._bases, offset) - 1

    def position(self, offset: int) -> tuple[int, int]:
        """Return ledger and entry id of an existing entry."""
        segment = self.segment_of(offset)
        if segment is None:
            return -1, -1
        return segment.ledger_id, offset - segment.base

    def position_before(self, offset: int) -> tuple[int, int]:
        """Return the id before an entry, as of mark-delete positions; entry -1 before a ledger's first."""
        if offset > self.start:
            return self.position(offset - 1)
        return (self.segments[0].ledger_id, -1) if self.segments else (-1, -1)

    def offset(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the offset of an id if that entry exists, else None (foreign, trimmed or future)."""
        segment = self.segment(ledger_id)
        if segment is None or not 0 <= entry_id < segment.entries:
            return None
        return segment.base + entry_id

    def runs_of(self, keys: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the stored entries among these ids as offsets ``start <= offset < stop``, in order."""
        start = stop = -1
        segment: Segment | None = None
        for ledger_id, entry_id in keys:
            if segment is None or segment.ledger_id != ledger_id:
                segment = self.segment(ledger_id)
                if segment is None:
                    continue
            offset = segment.base + entry_id
            if not 0 <= entry_id < segment.entries or offset >= self.confirmed:
                continue
            if offset != stop:
                if start < stop:
                    yield start, stop
                start = offset
            stop = offset + 1
        if start < stop:
            yield start, stop

    def segment(self, ledger_id: int) -> Segment | None:
        """Return the segment of a ledger of this topic, None for foreign and trimmed ones."""
        segments = self.segments
        if not segments:
            return None
        segment = segments[-1]
        if segment.ledger_id != ledger_id:
            segment = segments[min(bisect_left(segments, ledger_id, key=_ledger_id), len(segments) - 1)]
        return segment if segment.ledger_id == ledger_id else None

    def offset_from(self, ledger_id: int, entry_id: int) -> int:
        """Return the first existing or future offset whose id is not before ``ledger_id:entry_id``.

        Both ids are signed; -1 is before everything and 2^63-1 behind everything.
        """
        if ledger_id < 0:
            return self.start
        for segment in self.segments:
            if ledger_id < segment.ledger_id:
                return segment.base
            if ledger_id == segment.ledger_id:
                return min(segment.base + max(entry_id, 0), segment.end)
        return self.end

    @property
    def is_writing(self) -> bool:
        """Whether entries are pending in the store."""
        return self.confirmed < self.end

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def size_from(self, offset: int) -> int:
        """Return the bytes at and behind ``offset``."""
        return self.counts.between(max(offset, self.start), self.end)[1]

    # --- writing ---
    def append(self, entry: Buffer, messages: int, *, now_ms: int, limits: LedgerLimits, done: Done) -> int:
        """Add an entry that counts as ``messages`` messages in backlogs, and return its offset.

        ``done`` reports; the owner then sets ``confirmed`` behind it. Raises `StoreStopped`.
        """
        segment = self._current
        if segment is None or limits.reached(segment, now_ms):
            segment = self._roll(now_ms)
        self._store.append(segment.ledger_id, entry, done)
        offset = self.end
        segment.entries += 1
        size = len(entry)
        segment.size_bytes += size
        segment.written_ms = now_ms
        self.counts.append(messages, size)
        self.end = offset + 1
        return offset

    def next_position(self, now_ms: int, limits: LedgerLimits) -> tuple[int, int]:
        """Return ledger and entry id of the next entry. Raises `StoreStopped`."""
        segment = self._current
        if segment is None or limits.reached(segment, now_ms):
            segment = self._roll(now_ms)
        return segment.ledger_id, segment.entries

    def has_room(self, entries: int, size: int, now_ms: int, limits: LedgerLimits) -> bool:
        """Return whether the current ledger takes these further entries and bytes."""
        segment = self._current
        return segment is not None and not limits.reached(segment, now_ms, entries - 1, size)

    def append_run(
        self, entries: list[bytes], sizes: list[int], size: int, *, now_ms: int, done: Done
    ) -> int:
        """Add entries of a message each, for which the ledger `has_room`; return the first one's offset.

        ``done`` reports on all of them at once. Raises `StoreStopped`.
        """
        segment = self._current
        assert segment is not None
        self._store.append_run(segment.ledger_id, entries, done)
        offset = self.end
        segment.entries += len(entries)
        segment.size_bytes += size
        segment.written_ms = now_ms
        self.counts.append_run(sizes, size)
        self.end = offset + len(entries)
        return offset

    def _roll(self, now_ms: int) -> Segment:
        ledger_id = self._store.create_ledger(self._owner)
        record = bytearray()
        ledger_list.put_ledger(record, ledger_id, self.end, now_ms)
        self._store.keys.merge(self._key, bytes(record))
        segment = Segment(ledger_id, self.end, now_ms, 0, 0)
        self._add_segment(segment)
        self.counts.roll(ledger_id)
        self._current = segment
        self._rolled()
        return segment

    # --- reading ---
    def read(self, offset: int, stop: int, *, entries_max: int, bytes_max: int) -> list[bytes]:
        """Return entries from ``offset`` to below ``stop``.

        At least one if ``offset`` is readable; fewer than requested at a ledger's end, before damaged entries
        or at a limit. Empty if `skip_gap` would skip something. Raises `StoreBusy` if the disk does not
        respond; this is for callers that cannot wait, `fetch` for all others.
        """
        stop = min(stop, self.confirmed, offset + entries_max)
        found = self.in_memory(offset, stop, bytes_max)
        if found:
            return found
        segment, count = self._stored(offset, stop)
        if segment is None:
            return []
        try:
            return self._store.read(
                segment.ledger_id, offset - segment.base, entries_max=count, bytes_max=bytes_max
            )
        except EntriesDamaged as error:
            self.damage_found(segment, error)
            return []

    def fetch(
        self,
        offset: int,
        stop: int,
        *,
        bytes_max: int,
        ahead_stop: int,
        ahead_bytes_max: int,
        done: Callable[[StoreError | None], None],
    ) -> list[bytes] | None:
        """Return entries that are not `in_memory`, or None and call ``done`` after they were read.

        Entries read, up to ``ahead_stop``, are added to the cache for the next readers.
        """
        segment, count = self._stored(offset, min(stop, self.confirmed))
        if segment is None:
            return []
        _, ahead = self._stored(offset, min(ahead_stop, self.confirmed))

        def taken(entries: list[bytes], error: StoreError | None) -> None:
            if isinstance(error, LedgerNotFound) and self.segment(segment.ledger_id) is not segment:
                # Trimmed while it was read: the reader continues behind it at once.
                error = None
            if isinstance(error, EntriesDamaged):
                try:
                    self.damage_found(segment, error)
                    error = None
                except EntriesDamaged as unknown:
                    error = unknown  # the reader receives the error
            self._cache.add(self.cached, offset, entries)
            done(error)

        try:
            return self._store.fetch(
                segment.ledger_id,
                offset - segment.base,
                entries_max=count,
                bytes_max=bytes_max,
                ahead=ReadAhead(max(count, ahead), ahead_bytes_max),
                done=taken,
            )
        except EntriesDamaged as error:
            self.damage_found(segment, error)
            return []

    def in_memory(self, offset: int, stop: int, bytes_max: int) -> list[bytes]:
        """Return the entries from ``offset`` on that were read ahead, or are in the store's memory."""
        cached = self.cached
        found: list[bytes] = []
        size = 0
        while offset < stop:
            entry = cached.get(offset)
            if entry is None or (size and size + len(entry) > bytes_max):
                break
            size += len(entry)
            found.append(entry)
            offset += 1
        if found:
            return found
        segment, count = self._stored(offset, stop)
        if segment is None:
            return []
        at = offset - segment.base
        try:
            recent = self._store.fetch(
                segment.ledger_id, at, entries_max=count, bytes_max=bytes_max, ahead=None, done=_ignore
            )
        except StoreError:
            return []  # the caller that reads the disk receives the error
        return recent or []

    def _stored(self, offset: int, stop: int) -> tuple[Segment | None, int]:
        """Return the ledger with the entries from ``offset`` on, and their number; None without any."""
        segment = self.segment_of(offset)
        if segment is None:
            return None, 0
        stop = min(stop, segment.end, self._damage_after(offset))
        if self.aborted is not None and offset < stop:
            stop = self.aborted.next_present(offset, stop)
        return (segment, stop - offset) if offset < stop else (None, 0)

    def read_one(self, offset: int) -> bytes | None:
        """Return one entry of any size; None if it does not exist (yet, or any more)."""
        found = self.read(offset, offset + 1, entries_max=1, bytes_max=_ENTRY_BYTES_MAX)
        return found[0] if found else None

    def skip_gap(self, offset: int) -> int:
        """Return ``offset``, or the next readable one if entries are missing or damaged there."""
        while True:
            found = self._behind_damage(self._next_existing(offset))
            if found == offset:
                return offset
            offset = found

    @property
    def newest(self) -> int:
        """Offset of the last durable entry without known damage; below ``start`` without one."""
        offset = self.confirmed - 1
        while offset >= self.start:
            segment = self.segment_of(offset)
            existing = offset if segment is None else min(offset, segment.end - 1)
            readable = min(
                (run[0] - 1 for run in self.damaged if run[0] <= existing < run[1]), default=existing
            )
            if self.aborted is not None:
                readable = self.aborted.last_missing(self.start, readable + 1)
            if readable == offset:
                break
            offset = readable
        return offset

    def _next_existing(self, offset: int) -> int:
        offset = max(offset, self.start)
        segment = self.segment_of(offset)
        if segment is None or offset < segment.end:
            return offset
        index = bisect_right(self._bases, offset)
        return self._bases[index] if index < len(self._bases) else max(offset, self.end)

    # --- damage ---
    def damage_found(self, segment: Segment, error: EntriesDamaged) -> None:
        """Record entries that the store cannot read: they are skipped."""
        damage = error.damage
        if damage is None or damage.first_entry_id is None or damage.last_entry_id is None:
            raise error
        start, stop = segment.base + damage.first_entry_id, segment.base + damage.last_entry_id + 1
        self._note_damage(start, stop)
        log.error("topic %s: entries at offset %d to %d: %s", self._owner, start, stop - 1, error)

    def _note_damage(self, start: int, stop: int) -> None:
        self.damaged = sorted((*self.damaged, (start, stop)))

    def _behind_damage(self, offset: int) -> int:
        for start, stop in self.damaged:
            if start <= offset < stop:
                offset = stop
        return offset if self.aborted is None else self.aborted.next_missing(offset)

    def _damage_after(self, offset: int) -> int:
        """Return the offset of the next damaged entry from ``offset`` on."""
        for start, stop in self.damaged:
            if offset < stop:
                return max(start, offset)
        return self.end

    # --- trimming ---
    def is_open(self, segment: Segment) -> bool:
        """Return whether the next entry may be added to the ledger."""
        return segment is self._current

    def written_ms(self, index: int) -> int:
        """Return when the last entry of the ledger at ``index`` was written, at the latest if unknown."""
        segment = self.segments[index]
        if segment.written_ms:
            return segment.written_ms
        latest = segment.created_ms + LEDGER_SECONDS_LIMIT * 1000
        following = self.segments[index + 1].created_ms if index + 1 < len(self.segments) else latest
        return min(latest, following)

    def unneeded(self, keep_from: int, expired: SegmentTest) -> int:
        """Return how many of the oldest ledgers are wholly below ``keep_from`` and ``expired``.

        ``expired(segment, written_ms)`` is called oldest first, until it returns False.
        """
        keep_from = min(keep_from, self.confirmed)
        gone = 0
        for index, segment in enumerate(self.segments):
            if segment.end > keep_from or not segment.entries:
                break
            if not expired(segment, self.written_ms(index)):
                break
            gone += 1
        return gone

    def close_current(self, now_ms: int) -> None:
        """Begin a new ledger for further entries."""
        if self._current is not None and self._current.entries:
            self._roll(now_ms)

    def forget(self, count: int) -> None:
        """Delete the ``count`` oldest ledgers."""
        deleted = self.segments[:count]
        if not deleted:
            return
        del self.segments[:count]
        del self._bases[:count]
        for segment in deleted:
            if segment is self._current:
                self._current = None
        start = self.start
        self.damaged = tuple(run for run in self.damaged if run[1] > start)
        for offset in [at for at in self.cached if at < start]:
            self.cached.pop(offset)
        # In this order a crash in between leaves records without entries, which loading ignores, never
        # entries without a record; and entries that are counted again, but no orphaned counts.
        self.counts.forget(deleted)
        marker = bytearray()
        if not self.segments:
            ledger_list.put_ledger(marker, ledger_list.END_MARKER, self.end, 0)
            self._store.keys.merge(self._key, bytes(marker))
        self._store.delete_ledgers([segment.ledger_id for segment in deleted])
        # If damage takes this write, a list with records of deleted ledgers is as good.
        self._store.keys.put(self._key, self._list(), same=True)

    def leave_memory(self) -> None:
        """Drop the reference to the topic."""
        self._rolled = lambda: None

    def release(self) -> None:
        """Allow the store to drop the unused ledgers from memory."""
        self._store.release([segment.ledger_id for segment in self.segments])

    def delete_all(self) -> None:
        """Delete every entry and the ledger list of a topic that is being deleted."""
        ids = [segment.ledger_id for segment in self.segments]
        self.cached.clear()
        self.counts.delete_all(self.segments)
        if ids:
            self._store.delete_ledgers(ids)
        self._store.keys.delete(self._key)


@dataclass(slots=True, eq=False, repr=False)
class LedgerLimits:
    """Limits of a ledger: the first one reached starts a new one."""

    entries_max: int
    bytes_max: int
    seconds_max: float

    def reached(self, segment: Segment, now_ms: int, more_entries: int = 0, more_bytes: int = 0) -> bool:
        """Return whether the limits are reached after ``more_entries`` and ``more_bytes``."""
        return (
            segment.entries + more_entries >= self.entries_max
            or segment.size_bytes + more_bytes >= self.bytes_max
            or (now_ms - segment.created_ms >= self.seconds_max * 1000 and segment.entries > 0)
        )


ledger_limits = lru_cache(maxsize=1024)(LedgerLimits)
"""Returns an object with these limits that all topics share."""
