"""A cursor: which entries of a topic a subscription has dealt with.

A cursor counts entries by their offset (`managed_ledger`). Everything below ``mark`` is acknowledged;
behind it, ``holes`` holds what was acknowledged out of order, and ``batches`` the messages of a batch
that are still open. All three survive restarts in full.

Durable form: one key a cursor. Its value is a snapshot; every acknowledgement since is a delta that
the store merges onto it. Acknowledgements only ever add to a cursor, so deltas may be applied twice,
in any order, and on top of a newer snapshot, with the same result; loading takes them in together and
puts mark, holes and batches in order once, at its end. What takes something back (a seek) writes a
snapshot, which replaces the deltas.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence

from geminga.broker.delivery.ranges import RangeSet
from geminga.broker.records import RecordReader, put_bytes, put_numbers, put_varint
from geminga.errors import StoreError
from geminga.ledger.api import Done, EntryStore, Value

_VERSION = 2
_VERSIONS_READ = (1, 2)
_RANGES, _BELOW, _BATCH, _OFFSETS = 1, 2, 3, 4
_COLUMN_FROM = 8
"""From so many single offsets on, a delta holds them as a column: shorter, and read ten times as fast."""
_WORD_BITS = 64
_WORD_BYTES = 8
_WORD_MASK = (1 << _WORD_BITS) - 1
BATCH_MESSAGES_MAX = 1 << 20
"""An acknowledgement set longer than this is not taken: no client packs as many into one entry."""

SNAPSHOT_AFTER_BYTES_MIN = 64 * 1024
"""A snapshot is written when the deltas since the last one outgrow it, and this ..."""
SNAPSHOT_AFTER_DELTAS = 4096
SNAPSHOT_AFTER_RANGES = 65_536
"""... or when there are so many of them, with so many ranges: loading must never take long."""

Properties = dict[str, str]


def bits_from_words(words: Sequence[int]) -> int:
    """The bits of a ``java.util.BitSet``'s long array: 1 is a message that is still open."""
    packed = b"".join([(word & _WORD_MASK).to_bytes(_WORD_BYTES, "little") for word in words])
    return int.from_bytes(packed, "little")


def words_from_bits(bits: int) -> list[int]:
    """The inverse of `bits_from_words`: signed words, trailing zero words dropped."""
    count = -(-bits.bit_length() // _WORD_BITS)
    packed = bits.to_bytes(count * _WORD_BYTES, "little")
    return [
        int.from_bytes(packed[place : place + _WORD_BYTES], "little", signed=True)
        for place in range(0, len(packed), _WORD_BYTES)
    ]


class Cursor:
    """See the module. ``mark`` is the offset of the first entry that is not dealt with."""

    __slots__ = (
        "_below", "_delta_bytes", "_delta_ranges", "_deltas", "_fresh_batches", "_fresh_ranges",
        "_snapshot_bytes", "batches", "durable", "holes", "mark", "properties",
    )  # fmt: skip

    def __init__(self, mark: int, *, durable: bool, properties: Properties | None = None) -> None:
        self.mark = mark
        self.durable = durable
        self.properties: Properties = properties or {}
        self.holes = RangeSet()
        self.batches: dict[int, int] = {}
        self._fresh_ranges: list[list[int]] = []
        self._fresh_batches: dict[int, int] = {}
        self._below = -1
        self._deltas = 0
        self._delta_bytes = 0
        self._delta_ranges = 0
        self._snapshot_bytes = 0

    # --- questions ---
    def is_acknowledged(self, offset: int) -> bool:
        return offset < self.mark or offset in self.holes

    def next_open(self, offset: int) -> int:
        """The first entry from ``offset`` on that is not acknowledged (it may not exist yet)."""
        if offset < self.mark:
            offset = self.mark
        return self.holes.next_missing(offset) if self.holes else offset

    def open_run(self, offset: int, stop: int) -> int:
        """Where the run of open entries that starts at ``offset`` ends, at most ``stop``."""
        return self.holes.next_present(offset, stop)

    def backlog(self, end: int) -> int:
        """Entries below ``end`` that are not acknowledged."""
        return max(0, end - self.mark - len(self.holes))

    def ack_words(self, offset: int) -> Sequence[int]:
        """``MESSAGE.ack_set`` for a partly acknowledged batch, empty otherwise."""
        bits = self.batches.get(offset)
        return words_from_bits(bits) if bits else ()

    def open_messages(self, offset: int) -> int:
        """How many messages of a partly acknowledged batch are open; 0 when it is not such a batch."""
        return self.batches.get(offset, 0).bit_count()

    # --- acknowledging ---
    def acknowledge(self, offset: int) -> bool:
        """One entry; False when it was acknowledged before."""
        if offset < self.mark or not self._add(offset):
            return False
        if self.batches:
            self.batches.pop(offset, None)
            self._fresh_batches.pop(offset, None)
        if self.durable:
            ranges = self._fresh_ranges
            if ranges and ranges[-1][1] == offset:
                ranges[-1][1] = offset + 1
            else:
                ranges.append([offset, offset + 1])
        return True

    def _add(self, offset: int) -> bool:
        if offset == self.mark:
            self.mark = offset + 1
            if self.holes:
                self._close_gap()
            return True
        return self.holes.add(offset)

    def _close_gap(self) -> None:
        contiguous = self.holes.next_missing(self.mark)
        if contiguous != self.mark:
            self.holes.remove_range(self.mark, contiguous)
            self.mark = contiguous

    def acknowledge_part(self, offset: int, still_open: int) -> int | None:
        """Some messages of a batch: ``still_open`` has a 1 for each that is not acknowledged.

        Clients count from a full batch, so a set is ANDed with what is known. Returns what remains
        open, 0 when the entry is now done, None when it was done before.
        """
        if self.is_acknowledged(offset):
            return None
        before = self.batches.get(offset, still_open)
        after = before & still_open
        if not after:
            self.acknowledge(offset)
        elif offset not in self.batches or after != before:
            self.batches[offset] = after
            if self.durable:
                self._fresh_batches[offset] = after
        return after

    def acknowledge_below(self, offset: int) -> bool:
        """Every entry below ``offset`` (a cumulative acknowledgement); False when nothing is new."""
        if offset <= self.mark:
            return False
        before = self.mark
        self.holes.remove_range(before, offset)
        self.mark = offset
        self._close_gap()
        if self.batches:
            self._drop_batches(before, self.mark)
        if self.durable:
            self._below = max(self._below, offset)
        return True

    def _drop_batches(self, start: int, stop: int) -> None:
        """Forget the batches of entries that are done; costs the lesser of the two numbers."""
        batches = self.batches
        offsets = range(start, stop)
        for offset in offsets if len(offsets) < len(batches) else [at for at in batches if at in offsets]:
            batches.pop(offset, None)

    def reset(self, offset: int) -> None:
        """Everything from ``offset`` on is open again. The caller writes a snapshot."""
        self.mark = offset
        self.holes.clear()
        self.batches.clear()
        self._forget_fresh()

    def clamp(self, start: int, end: int) -> None:
        """Fit a loaded cursor to the entries that exist: ``start <= offset < end``."""
        if self.mark > end:
            self.reset(end)
        elif self.mark < start:
            self.holes.remove_range(self.mark, start)
            self.mark = start
            self._close_gap()
        self.holes.remove_range(end, self.holes.end)
        self.batches = {at: bits for at, bits in self.batches.items() if self.mark <= at < end}

    # --- durable form ---
    @property
    def changed(self) -> bool:
        """Whether there is something that `take_delta` would give."""
        return bool(self._fresh_ranges or self._fresh_batches or self._below >= 0)

    @property
    def wants_snapshot(self) -> bool:
        """Whether the deltas have outgrown the snapshot."""
        return (
            self._delta_bytes > max(SNAPSHOT_AFTER_BYTES_MIN, self._snapshot_bytes)
            or self._deltas >= SNAPSHOT_AFTER_DELTAS
            or self._delta_ranges >= SNAPSHOT_AFTER_RANGES
        )

    def take_delta(self) -> bytes:
        """What was acknowledged since the last call, for the store to merge."""
        out = bytearray()
        if self._below >= 0:
            out.append(_BELOW)
            put_varint(out, self._below)
        if self._fresh_ranges:
            _put_ranges(out, self._fresh_ranges)
        self._delta_ranges += len(self._fresh_ranges) + len(self._fresh_batches)
        for offset, bits in self._fresh_batches.items():
            out.append(_BATCH)
            put_varint(out, offset)
            put_bytes(out, bits.to_bytes((bits.bit_length() + 7) // 8, "little"))
        self._forget_fresh()
        self._deltas += 1
        self._delta_bytes += len(out)
        return bytes(out)

    def take_snapshot(self) -> bytes:
        """The whole cursor, for the store to put; what `take_delta` would give is in it."""
        self._forget_fresh()
        out = bytearray([_VERSION])
        put_varint(out, self.mark)
        put_bytes(out, json.dumps(self.properties, separators=(",", ":")).encode())
        self.holes.encode(out)
        put_varint(out, len(self.batches))
        for offset, bits in self.batches.items():
            put_varint(out, offset)
            put_bytes(out, bits.to_bytes((bits.bit_length() + 7) // 8, "little"))
        self._deltas = self._delta_ranges = self._delta_bytes = 0
        self._snapshot_bytes = len(out)
        return bytes(out)

    def _forget_fresh(self) -> None:
        self._fresh_ranges = []
        self._fresh_batches = {}
        self._below = -1

    @staticmethod
    def load(value: Value, what: str) -> Cursor:
        """The cursor that was kept; raises `StoreDamaged` naming ``what``."""
        reader = RecordReader(value.base, what)
        version = reader.varint()
        if version not in _VERSIONS_READ:
            raise reader.damaged(f"cursor version {version}, this program knows {_VERSION}")
        cursor = Cursor(reader.varint(), durable=True)
        try:
            cursor.properties = json.loads(reader.blob())
        except ValueError as error:
            raise reader.damaged("the properties are no JSON") from error
        cursor.holes = RangeSet.decode(reader)
        for _ in range(reader.varint()):
            offset = reader.varint()
            cursor.batches[offset] = int.from_bytes(reader.blob(), "little")
        cursor._snapshot_bytes = len(value.base)
        for delta in value.deltas:
            cursor._take_in(RecordReader(delta, what))
            cursor._delta_bytes += len(delta)
        cursor._deltas = len(value.deltas)
        if value.deltas:
            cursor._put_in_order()
        return cursor

    def _take_in(self, reader: RecordReader) -> None:
        """Add a delta; `_put_in_order` must follow."""
        while reader:
            kind = reader.varint()
            if kind == _BELOW:
                self.mark = max(self.mark, reader.varint())
            elif kind == _RANGES:
                count = reader.varint()
                self._delta_ranges += count
                for _ in range(count):
                    start = reader.varint()
                    self.holes.add_range(max(start, self.mark), start + reader.varint())
            elif kind == _OFFSETS:
                first, column = reader.varint(), reader.numbers()
                self._delta_ranges += len(column)
                self.holes.add_all([first + distance for distance in column])
            elif kind == _BATCH:
                offset = reader.varint()
                bits = int.from_bytes(reader.blob(), "little")
                self._delta_ranges += 1
                self.batches[offset] = self.batches.get(offset, bits) & bits
            else:
                raise reader.damaged(f"unknown kind of cursor delta {kind}")

    def _put_in_order(self) -> None:
        """Nothing below the mark, no batches of entries that are done."""
        self.holes.remove_range(0, self.mark)
        self._close_gap()
        for offset in [at for at, bits in self.batches.items() if not bits or self.is_acknowledged(at)]:
            del self.batches[offset]


def _put_ranges(out: bytearray, ranges: list[list[int]]) -> None:
    singles = [start for start, stop in ranges if stop - start == 1]
    if len(singles) >= _COLUMN_FROM:
        first = min(singles)
        out.append(_OFFSETS)
        put_varint(out, first)
        put_numbers(out, [offset - first for offset in singles])
        ranges = [each for each in ranges if each[1] - each[0] > 1]
        if not ranges:
            return
    out.append(_RANGES)
    put_varint(out, len(ranges))
    for start, stop in ranges:
        put_varint(out, start)
        put_varint(out, stop - start)


class CursorWriter:
    """Writes one durable cursor and says when what it wrote is durable, in order."""

    __slots__ = ("_closed", "_cursor", "_key", "_pending", "_store", "_waiting")

    def __init__(self, cursor: Cursor, store: EntryStore, key: str) -> None:
        self._cursor = cursor
        self._store = store
        self._key = key
        self._closed = False
        self._waiting: list[Done] = []
        self._pending: deque[list[Done]] = deque()

    def when_durable(self, done: Done) -> None:
        """``done`` runs when everything acknowledged so far is durable: at once if it is."""
        if self._cursor.durable and (self._cursor.changed or self._waiting):
            self._waiting.append(done)
        elif self._pending:
            self._pending[-1].append(done)
        else:
            done(None)

    def flush(self) -> None:
        """Hand what changed to the store."""
        cursor = self._cursor
        if not (cursor.changed and cursor.durable) or self._closed:
            return
        if cursor.wants_snapshot:
            self.write_snapshot(None)
            return
        waiting = self._take_waiting()
        self._pending.append(waiting)
        try:
            self._store.merge(self._key, cursor.take_delta(), self._written)
        except StoreError as error:
            self._refused(waiting, error)

    def write_snapshot(self, done: Done | None) -> None:
        """Put the whole cursor (creation, seek, clearing up)."""
        waiting = self._take_waiting()
        if done is not None:
            waiting.append(done)
        if not self._cursor.durable or self._closed:
            for each in waiting:
                each(None)
            return
        self._pending.append(waiting)
        try:
            self._store.put(self._key, self._cursor.take_snapshot(), self._written)
        except StoreError as error:
            self._refused(waiting, error)

    def _refused(self, waiting: list[Done], error: StoreError) -> None:
        self._pending.remove(waiting)
        for done in waiting:
            done(error)

    def delete(self, done: Done | None) -> None:
        """Remove the cursor from the store; nothing is written from now on."""
        self._closed = True
        for waiting in self._take_waiting():
            waiting(None)
        if self._cursor.durable:
            self._store.delete(self._key, done)
        elif done is not None:
            done(None)

    def _take_waiting(self) -> list[Done]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _written(self, error: StoreError | None) -> None:
        for done in self._pending.popleft():
            done(error)
