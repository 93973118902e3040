"""What the target says by itself: how far it has been mirrored, and where in it an entry of the source is.

Entries of others may lie in between, so nothing can be computed from positions alone; but the mirror's own
entries carry their source position, which grows with their place. What others write there that looks like the
mirror's own is not signed, or a copy of it further on (`geminga.mirror.replication_stamp`): neither counts.
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
"""How many of the newest entries are looked at first; then four times as many, and so on."""
_LOOK_ENTRIES_MAX = 16_384
_SCAN_ENTRIES = 64
"""A stretch of so many entries is read through instead of halved."""
_QUEUE_MESSAGES = 20_000
_QUEUE_BYTES = 8 * 1024 * 1024
_ENTRY_SECONDS_MAX = 60.0


class MirroredEntry(NamedTuple):
    """One of the mirror's own entries in the target."""

    source: Position
    target: Position
    offset: int


class LedgerLayout:
    """A topic's ledgers as one list of offsets, as they were at one moment."""

    def __init__(self, stats: InternalStats) -> None:
        self.last = last = parse_position(stats.last_confirmed_entry)
        self.is_new = last == NOWHERE and not stats.entries_added_counter
        """Nothing was ever there."""
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
        """Whether an entry is there; None: it is older than what is there."""
        index = bisect_right(self._ledgers, position.ledger) - 1
        if index >= 0 and self._ledgers[index] == position.ledger:
            end = self._begins[index + 1] if index + 1 < len(self._begins) else self.entries
            return position.entry < end - self._begins[index]
        # Ledgers go from the front, and whole.
        return False if index >= 0 or self.is_new or NOWHERE < self.last < position else None

    def position(self, offset: int) -> Position:
        index = bisect_right(self._begins, offset) - 1
        return Position(self._ledgers[index], offset - self._begins[index])

    def offset_behind(self, position: Position) -> int:
        """Of the first entry behind a position."""
        index = bisect_right(self._ledgers, position.ledger) - 1
        if index >= 0 and self._ledgers[index] == position.ledger:
            return self._begins[index] + position.entry + 1
        return self._begins[index + 1] if index + 1 < len(self._begins) else self.entries

    def offset(self, position: Position) -> int:
        """Of an entry that is in the shape, or of where it would be."""
        index = bisect_right(self._ledgers, position.ledger) - 1
        if index < 0:
            return 0
        if self._ledgers[index] == position.ledger:
            return self._begins[index] + position.entry
        return self._begins[index + 1] if index + 1 < len(self._begins) else self.entries


class TargetHistory:
    """Questions about one topic or partition of the target. ``keys``: that the marks of the pair are signed
    with; None: whoever wrote them. ``is_direct``: the mirror of the pair itself writes here; else another
    brought its entries on, in their order."""

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
        """Whether the entry that the mirror brought from a place of the source lies where the target said.
        True as well for one that is so old that the target does not keep it any more."""
        there = self.shape.has(target)
        if not there:
            return there is None
        offset = self.shape.offset(target)
        return any([one[0].position == source async for one in self._marked(offset, offset + 1)])

    async def entry(self, position: Position) -> Entry | None:
        """The entry at a position; None where there is none to read."""
        offset = self.shape.offset(position)
        try:
            async for raw in self._entries(offset, offset + 1):
                return parse_entry(raw.entry, verify=False)
        except CorruptPayload:
            pass
        return None

    async def newest(self, claimed: Position = NOWHERE) -> MirroredEntry | None:
        """The mirror's newest entry; None when it has none. Reads from the end backwards, until one comes.
        ``claimed``: the source position that it has if deduplication in the target is right."""
        stop, count = self.shape.entries, _LOOK_ENTRIES
        while stop > 0:
            start = max(0, stop - count)
            marks = [one async for one in self._marked(start, stop)]
            if marks:
                # If the highest is a copy of what lies before, so are all here.
                origin, target, offset = max(marks, key=lambda one: one[0].position)
                if origin.position == claimed or not await self.is_copy(origin, start):
                    return MirroredEntry(origin.position, target, offset)
            stop, count = start, min(count * 4, _LOOK_ENTRIES_MAX)
        return None

    async def floor(self, source: Position) -> MirroredEntry | None:
        """The mirror's last entry at or before a position of the source; None when there is none any more."""
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
        """The mirror's first entry behind a position of the source; None when there is none."""
        floor = await self.floor(source)
        return await self._first(0 if floor is None else floor.offset + 1, self.shape.entries)

    async def first(self) -> MirroredEntry | None:
        """The mirror's oldest entry that is still there."""
        return await self._first(0, self.shape.entries)

    async def places(self, start: MirroredEntry, before: Position) -> PositionMap:
        """The mirror's entries from one on, those below a position of the source."""
        found = PositionMap(start.source)
        async for one in self.mirrored(start.offset, self.shape.entries):
            if one.source >= before:
                break
            found.add(one.source, one.target)
        return found

    async def between(self, after: Position, last: Position) -> list[Range]:
        """The mirror's entries of the target behind a position of the target, up to and with another."""
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
        """The mirror's entries among those with the offsets ``start <= offset < stop``, in order."""
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
        """Whether a mark at ``offset`` or behind it was written for an earlier entry: there it is found,
        or one that came later still."""
        async for earlier, _, _ in self._marked(self.shape.offset_behind(origin.after), offset):
            if earlier.position >= origin.position:
                return True
        return False

    async def pairs(self, start: int, stop: int) -> set[bytes]:
        """All pairs of which mirrors have written marks into the entries with the offsets
        ``start <= offset < stop``."""
        found: set[bytes] = set()
        async for raw in self._entries(start, stop):
            with contextlib.suppress(CorruptPayload):
                found |= pairs_of(raw.entry, self._keys or ())
        return found

    async def _marked(self, start: int, stop: int) -> AsyncIterator[tuple[StampOrigin, Position, int]]:
        """All entries with a mark of the pair, copies among them, with their places and offsets."""
        async for raw in self._entries(start, stop):
            try:
                origin = mark_of(raw.entry, self._pair, self._keys, is_direct=self._is_direct)
            except CorruptPayload:
                continue
            if origin is not None:
                place = Position(raw.ledger_id, raw.entry_id)
                yield origin, place, self.shape.offset(place)

    async def _entries(self, start: int, stop: int) -> AsyncIterator[RawEntry]:
        """Those with the offsets ``start <= offset < stop`` that are still there."""
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
