"""Search for mirrored entries in a topic: the newest one, and which entry is at which position of the other
cluster.

Entries of other producers may lie in between, so that positions cannot be computed; but the positions in a
pair's stamps increase with the positions of its entries.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator, Collection
from itertools import accumulate
from typing import NamedTuple

from geminga.admin import InternalStats
from geminga.entries import ClientContext, Entry, RawEntry, next_entry, open_entries, parse_entry
from geminga.errors import CorruptPayload, Timeout
from geminga.mirror.entries import stamp_of
from geminga.mirror.positions import NOWHERE, Position, parse_position

_LOOK_ENTRIES = 4
"""Number of newest entries that are read first; each further step reads four times as many."""
_LOOK_ENTRIES_MAX = 16_384
_QUEUE_MESSAGES = 20_000
_QUEUE_BYTES = 8 * 1024 * 1024
_ENTRY_SECONDS_MAX = 60.0


class StampedEntry(NamedTuple):
    """A mirrored entry: the position in its stamp, its own position and offset, and its bytes."""

    stamp: Position
    position: Position
    offset: int
    raw: RawEntry


class LedgerLayout:
    """A topic's ledgers as one sequence of offsets, as of the last `learn`. ``last``: the newest entry."""

    def __init__(self, stats: InternalStats | None = None) -> None:
        """None: no ledgers."""
        self.last = NOWHERE
        self.is_new = True
        """True if the topic never had an entry."""
        self.entries = 0
        self._counts: dict[int, int] = {}
        self._ledgers: list[int] = []
        self._begins: list[int] = []
        if stats is not None:
            self.learn(stats, since=-1)

    def learn(self, stats: InternalStats, since: int) -> None:
        """Add the ledgers that a topic has now. Known ledgers are kept from ``since`` on, also deleted ones:
        those without backlog are deleted soon."""
        last = parse_position(stats.last_confirmed_entry)
        counts = {ledger: count for ledger, count in self._counts.items() if ledger >= since}
        for ledger in stats.ledgers:
            # Apache Pulsar does not report the number of entries of the open ledger.
            count = last.entry + 1 if ledger.ledger_id == last.ledger else ledger.entries
            if count > 0:
                counts[ledger.ledger_id] = max(count, counts.get(ledger.ledger_id, 0))
        self.last, self.is_new = max(self.last, last), last == NOWHERE and not stats.entries_added_counter
        self._counts, self._ledgers = counts, sorted(counts)
        *self._begins, self.entries = accumulate((counts[each] for each in self._ledgers), initial=0)

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
        return self.offset_behind(Position(position.ledger, position.entry - 1))

    def between(self, read: Position, place: Position) -> int:
        """Return the number of known entries after ``read`` and before ``place``."""
        if read.ledger == place.ledger:
            return max(0, place.entry - read.entry - 1)
        end = self.offset(Position(read.ledger + 1, 0))  # more entries may have been read than are known
        return max(0, self.offset(place) - min(self.offset_behind(read), end))


class StampHistory:
    """Queries about the present entries of a topic or partition with a stamp of one of ``pairs``."""

    def __init__(
        self, context: ClientContext, topic: str, pairs: Collection[bytes], stats: InternalStats
    ) -> None:
        self._context = context
        self._topic = topic
        self._pairs = pairs
        self.shape = LedgerLayout(stats)

    async def entry(self, position: Position) -> Entry | None:
        """Return the entry at a position; None if it does not exist or cannot be read."""
        offset = self.shape.offset(position)
        try:
            async for raw in self._entries(offset, min(offset + 1, self.shape.entries)):
                if (raw.ledger_id, raw.entry_id) == position:
                    return parse_entry(raw.entry, verify=False)
        except CorruptPayload:
            pass
        return None

    async def newest(self) -> StampedEntry | None:
        """Return the last mirrored entry, or None. Reads backwards."""
        found = await self.last(NOWHERE, 0, self.shape.entries, only_one=True)
        return found[-1] if found else None

    async def last(
        self, above: Position, start: int, stop: int, *, only_one: bool = False
    ) -> list[StampedEntry]:
        """Return the mirrored entries with offsets ``start <= offset < stop`` and a stamp after ``above``, in
        order. Reads backwards, up to a stamp that is not after ``above``; ``only_one``: up to any stamp."""
        found: list[StampedEntry] = []
        count = _LOOK_ENTRIES
        while stop > start:
            begin = max(start, stop - count)
            some = [one async for one in self.stamped(begin, stop)]
            found = [*(one for one in some if one.stamp > above), *found]
            if some and (only_one or some[0].stamp <= above):
                break
            stop, count = begin, min(count * 4, _LOOK_ENTRIES_MAX)
        return found

    async def stamped(self, start: int, stop: int) -> AsyncIterator[StampedEntry]:
        """Yield the mirrored entries with offsets ``start <= offset < stop``, with increasing stamps."""
        highest = NOWHERE
        async for raw in self._entries(start, min(stop, self.shape.entries)):
            stamp = stamp_of(raw.entry)
            if stamp is not None and stamp.pair in self._pairs and stamp.position > highest:
                highest = stamp.position
                place = Position(raw.ledger_id, raw.entry_id)
                yield StampedEntry(highest, place, self.shape.offset(place), raw)

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
