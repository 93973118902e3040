"""Search in the target: how far it has been mirrored, and at which position it has an entry of the source.

Entries of other producers may lie in between, so that positions cannot be computed; but the source positions
in the mirror's entries increase with their target positions. Forged entries are not signed, and copied marks
occur behind their original (`geminga.mirror.replication_stamp`): both are ignored.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from geminga.admin import InternalStats
from geminga.client.context import ClientContext
from geminga.client.entry_reader import next_entry, open_entries
from geminga.errors import CorruptPayload, Timeout
from geminga.mirror.entries import mark_of, pairs_of
from geminga.mirror.position_map import PositionMap, Range
from geminga.mirror.positions import NOWHERE, Position, parse_position
from geminga.mirror.replication_stamp import StampOrigin
from geminga.wire.metadata import Entry, RawEntry, parse_entry

_LOOK_ENTRIES = 4
"""Number of newest entries that are read first; each further step reads four times as many."""
_LOOK_ENTRIES_MAX = 16_384
_SCAN_ENTRIES = 64
"""A range of at most this many entries is read completely instead of bisected."""
_QUEUE_MESSAGES = 20_000
_QUEUE_BYTES = 8 * 1024 * 1024
_ENTRY_SECONDS_MAX = 60.0


class MirroredEntry(NamedTuple):
    """A mirrored entry in the target."""

    source: Position
    target: Position
    offset: int


class LedgerLayout:
    """A topic's ledgers as one sequence of offsets, as of one moment."""

    def __init__(self, stats: InternalStats) -> None:
        self.last = last = parse_position(stats.last_confirmed_entry)
        self.is_new = last == NOWHERE and not stats.entries_added_counter
        """True if the topic never had an entry."""
        self._ledgers: list[int] = []
        self._begins: list[int] = []
        self.entries = 0
        for ledger in stats.ledgers:
            count = last.entry + 1 if ledger.ledger_id == last.ledger else ledger.entries
            if count > 0:
                self._ledgers.append(ledger.ledger_id)
                self._begins.append(self.entries)
                self.entries += count

    def has(self, position: Position) -> bool | None:
        """Return whether an entry exists; None if it is older than the oldest."""
        index = bisect_right(self._ledgers, position.ledger) - 1
        if index >= 0 and self._ledgers[index] == position.ledger:
            end = self._begins[index + 1] if index + 1 < len(self._begins) else self.entries
            return position.entry < end - self._begins[index]
        # Brokers delete whole ledgers, the oldest first.
        return False if index >= 0 or self.is_new or NOWHERE < self.last < position else None

    def position(self, offset: int) -> Position:
        index = bisect_right(self._begins, offset) - 1
        return Position(self._ledgers[index], offset - self._begins[index])

    def offset_behind(self, position: Position) -> int:
        """Return the offset of the first entry after a position."""
        index = bisect_right(self._ledgers, position.ledger) - 1
        if index >= 0 and self._ledgers[index] == position.ledger:
            return self._begins[index] + position.entry + 1
        return self._begins[index + 1] if index + 1 < len(self._begins) else self.entries

    def offset(self, position: Position) -> int:
        """Return the offset of an entry, or of its successor if the entry does not exist."""
        index = bisect_right(self._ledgers, position.ledger) - 1
        if index < 0:
            return 0
        if self._ledgers[index] == position.ledger:
            return self._begins[index] + position.entry
        return self._begins[index + 1] if index + 1 < len(self._begins) else self.entries


class TargetHistory:
    """Queries about a topic or partition of the target. ``keys``: keys that sign the pair's marks; None:
    accept any. ``is_direct``: the mirror of the pair writes here; else another mirror copied its entries on,
    in order."""

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        pair: bytes,
        stats: InternalStats,
        keys: Sequence[bytes] | None,
        *,
        is_direct: bool = True,
    ) -> None:
        self._context = context
        self._topic = topic
        self._pair = pair
        self._keys = keys
        self._is_direct = is_direct
        self.shape = LedgerLayout(stats)

    async def has(self, source: Position, target: Position) -> bool:
        """Return whether the copy of a source entry is at the position that the target reported; True also if
        the target has deleted entries that old."""
        there = self.shape.has(target)
        if not there:
            return there is None
        offset = self.shape.offset(target)
        return any([one[0].position == source async for one in self._marked(offset, offset + 1)])

    async def entry(self, position: Position) -> Entry | None:
        """Return the entry at a position; None if it cannot be read."""
        offset = self.shape.offset(position)
        try:
            async for raw in self._entries(offset, offset + 1):
                return parse_entry(raw.entry, verify=False)
        except CorruptPayload:
            pass
        return None

    async def newest(self, claimed: Position = NOWHERE) -> MirroredEntry | None:
        """Return the newest mirrored entry, or None. Reads backwards from the end. ``claimed``: source
        position of that entry according to the target's deduplication."""
        stop, count = self.shape.entries, _LOOK_ENTRIES
        while stop > 0:
            start = max(0, stop - count)
            marks = [one async for one in self._marked(start, stop)]
            if marks:
                # If the highest is a copy of an earlier one, so are all others.
                origin, target, offset = max(marks, key=lambda one: one[0].position)
                if origin.position == claimed or not await self.is_copy(origin, start):
                    return MirroredEntry(origin.position, target, offset)
            stop, count = start, min(count * 4, _LOOK_ENTRIES_MAX)
        return None

    async def floor(self, source: Position) -> MirroredEntry | None:
        """Return the last mirrored entry at or before a source position, or None."""
        low, high = 0, self.shape.entries
        best: MirroredEntry | None = None
        while high - low > _SCAN_ENTRIES:
            middle = (low + high) // 2
            first = await self._first(middle, high)
            if first is None or first.source > source:
                high = middle
            else:
                best, low = first, first.offset + 1
        async for one in self.mirrored(low, high):
            if one.source > source:
                break
            best = one
        return best

    async def behind(self, source: Position) -> MirroredEntry | None:
        """Return the first mirrored entry after a source position, or None."""
        floor = await self.floor(source)
        return await self._first(0 if floor is None else floor.offset + 1, self.shape.entries)

    async def first(self) -> MirroredEntry | None:
        """Return the oldest mirrored entry that still exists."""
        return await self._first(0, self.shape.entries)

    async def places(self, start: MirroredEntry, before: Position) -> PositionMap:
        """Return the map of mirrored entries from ``start`` on, below a source position."""
        found = PositionMap(start.source)
        async for one in self.mirrored(start.offset, self.shape.entries):
            if one.source >= before:
                break
            found.add(one.source, one.target)
        return found

    async def between(self, after: Position, last: Position) -> list[Range]:
        """Return the ranges of mirrored entries after a target position, up to and including another."""
        found: list[Range] = []
        stop = min(self.shape.offset_behind(last), self.shape.entries)
        async for one in self.mirrored(self.shape.offset_behind(after), stop):
            ledger, entry = one.target
            if found and found[-1][0] == ledger and found[-1][2] == entry - 1:
                found[-1] = (ledger, found[-1][1], entry)
            else:
                found.append((ledger, entry, entry))
        return found

    async def _first(self, start: int, stop: int) -> MirroredEntry | None:
        async for one in self.mirrored(start, stop):
            return one
        return None

    async def mirrored(self, start: int, stop: int) -> AsyncIterator[MirroredEntry]:
        """Yield the mirrored entries with offsets ``start <= offset < stop``, in order."""
        highest: Position | None = None
        async for origin, target, offset in self._marked(start, stop):
            if highest is None:
                if self._is_direct and await self.is_copy(origin, start):
                    continue
            elif origin.position <= highest:
                continue
            highest = origin.position
            yield MirroredEntry(origin.position, target, offset)

    async def is_copy(self, origin: StampOrigin, offset: int) -> bool:
        """Return whether a mark at ``offset`` or later is a copy: its entry, or a later one, exists
        before."""
        async for earlier, _, _ in self._marked(self.shape.offset_behind(origin.after), offset):
            if earlier.position >= origin.position:
                return True
        return False

    async def pairs(self, start: int, stop: int) -> set[bytes]:
        """Return the pairs of all mirrors' marks in the entries with offsets ``start <= offset < stop``."""
        found: set[bytes] = set()
        async for raw in self._entries(start, stop):
            with contextlib.suppress(CorruptPayload):
                found |= pairs_of(raw.entry, self._keys or ())
        return found

    async def _marked(self, start: int, stop: int) -> AsyncIterator[tuple[StampOrigin, Position, int]]:
        """Yield all entries with a mark of the pair, copies included, with positions and offsets."""
        async for raw in self._entries(start, stop):
            try:
                origin = mark_of(raw.entry, self._pair, self._keys, is_direct=self._is_direct)
            except CorruptPayload:
                continue
            if origin is not None:
                place = Position(raw.ledger_id, raw.entry_id)
                yield origin, place, self.shape.offset(place)

    async def _entries(self, start: int, stop: int) -> AsyncIterator[RawEntry]:
        """Yield the entries with offsets ``start <= offset < stop`` that still exist."""
        if start >= stop:
            return
        last = self.shape.position(stop - 1)
        reader = await open_entries(
            self._context,
            self._topic,
            self.shape.position(start).message_id(),
            stop_at=last.message_id(),
            queue_size=_QUEUE_MESSAGES,
            queue_bytes_max=_QUEUE_BYTES,
        )
        try:
            while True:
                raw = await next_entry(reader, self._context.now() + _ENTRY_SECONDS_MAX)
                if raw is None:
                    raise Timeout(f"{self._topic} gave no entry up to {last} in {_ENTRY_SECONDS_MAX:g} s")
                place = Position(raw.ledger_id, raw.entry_id)
                if place <= last:
                    yield raw
                if place >= last:
                    return
        finally:
            await reader.close()
