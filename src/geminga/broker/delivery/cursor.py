"""Cursor: the entries of a topic that a subscription has acknowledged.

A cursor addresses entries by their offset (`entries.managed_ledger`). Everything below ``mark`` is
acknowledged; behind it, ``holes`` holds the entries acknowledged out of order, and ``batches`` the open
messages of partly acknowledged batches. All three survive restarts in full.

A *tally* counts the messages and bytes acknowledged behind the mark, so that a backlog in messages is two
sums and a subtraction (`entries.entry_counts`). It changes with every acknowledgement that leaves or closes a
hole, is stored with the holes, and is recomputed where it is missing or out of date. The bytes of a partly
acknowledged batch count until its last message is acknowledged: the store keeps all of them.

Durable form: one key per cursor. Its value is a snapshot; each acknowledgement since is a delta that the
store merges onto it. Acknowledgements only add to a cursor, so deltas may be applied twice, in any order, and
on top of a newer snapshot, with the same result; loading reads all deltas and sorts mark, holes and batches
once at the end. A seek, which revokes acknowledgements, writes a snapshot, which replaces the deltas.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from geminga.broker.delivery.ranges import RangeSet, bit_ranges
from geminga.broker.entries.columns import IntegerColumn
from geminga.broker.entries.entry_counts import EntryCounts, Tally
from geminga.broker.entries.records import RecordReader, put_bytes, put_varint
from geminga.errors import StoreError
from geminga.ledger.api import StoredValue
from geminga.wire.varint import varint

_VERSION = 3
"""Format version, the first of a release."""
_RANGES, _BELOW, _BATCH, _OFFSETS, _TALLY = 1, 2, 3, 4, 6
_TALLY_FORM = struct.Struct("<QQQQQQ")
"""Mark, entries in holes and partly acknowledged batches identify the state that the tally belongs to; the
rest is the tally: messages acknowledged in those batches, messages and bytes in holes. Written with every
delta, so its size is fixed for speed."""
_NO_TALLY = _TALLY_FORM.pack((1 << 64) - 1, 0, 0, 0, 0, 0)
"""Placeholder for a missing tally before further data: no cursor is in that state."""
_WINDOW = 4096
"""Offsets that are counted together."""
_COLUMN_FROM = 8
"""Smallest number of single offsets that a delta holds as a column: shorter, and read ten times as fast."""
_WORD_BITS = 64
_WORD_BYTES = 8
_WORD_MASK = (1 << _WORD_BITS) - 1
HOLES_COUNTED_BATCHES_MAX = 10_000
PARTIAL_BATCHES_BYTES_MAX = 32 * 1024 * 1024
"""Memory limit of the open messages of partly acknowledged batches; more such batches are refused."""
_BATCH_OVERHEAD_BYTES = 170

SNAPSHOT_AFTER_BYTES_MIN = 64 * 1024
"""A snapshot is written when the deltas since the last one outgrow it and this size ..."""
SNAPSHOT_AFTER_DELTAS = 4096
SNAPSHOT_AFTER_RANGES = 65_536
"""... or when they contain this many ranges, which bounds the loading time."""

Properties = dict[str, str]


class CursorFull(Exception):
    """The limit of partly acknowledged batches is reached: the acknowledgement was not accepted."""

    def __init__(self) -> None:
        super().__init__(
            "the subscription has too many partly acknowledged batches: "
            "acknowledge the remaining messages of some first"
        )


def bits_from_words(words: Sequence[int], messages: int) -> int:
    """Convert a ``java.util.BitSet``'s long array to bits: 1 is a message that is still open.

    Bits beyond the batch's ``messages`` are ignored.
    """
    wanted = words[: -(-messages // _WORD_BITS)]
    packed = b"".join([(word & _WORD_MASK).to_bytes(_WORD_BYTES, "little") for word in wanted])
    return int.from_bytes(packed, "little") & ((1 << messages) - 1)


def words_from_bits(bits: int) -> list[int]:
    """Convert bits to signed words, trailing zero words dropped: the inverse of `bits_from_words`."""
    count = -(-bits.bit_length() // _WORD_BITS)
    packed = bits.to_bytes(count * _WORD_BYTES, "little")
    return [
        int.from_bytes(packed[place : place + _WORD_BYTES], "little", signed=True)
        for place in range(0, len(packed), _WORD_BYTES)
    ]


def without_lowest_ones(bits: int, count: int) -> int:
    """Clear the lowest ``count`` ones of ``bits``."""
    lengths = range(bits.bit_length() + 1)
    low = bisect_right(lengths, count, key=lambda length: (bits & ((1 << length) - 1)).bit_count()) - 1
    return bits >> low << low


class Cursor:
    """Cursor in memory. ``mark`` is the offset of the first unacknowledged entry.

    ``is_behind``: the cursor started behind the topic's beginning or has moved, so compacted entries before
    it are not wanted.
    """

    __slots__ = (
        "_below", "_delta_bytes", "_delta_ranges", "_deltas", "_fresh_batches", "_fresh_ranges", "_parts",
        "_snapshot_bytes", "_tally", "batches", "batches_bytes", "counts", "durable", "holes", "is_behind",
        "mark", "properties",
    )  # fmt: skip

    def __init__(
        self, mark: int, *, counts: EntryCounts, durable: bool, properties: Properties | None = None
    ) -> None:
        self.mark = mark
        self.is_behind = False
        self.counts = counts
        self.durable = durable
        self.properties: Properties = properties or {}
        self.holes = RangeSet()
        self.batches: dict[int, int] = {}
        self.batches_bytes = 0
        self._tally: Tally | None = (0, 0)
        self._parts = 0
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
        """Return the first unacknowledged offset from ``offset`` on (the entry may not exist yet)."""
        if offset < self.mark:
            offset = self.mark
        return self.holes.next_missing(offset) if self.holes else offset

    def open_run(self, offset: int, stop: int) -> int:
        """Return the end of the run of open entries that starts at ``offset``, at most ``stop``."""
        return self.holes.next_present(offset, stop)

    def last_open(self, end: int) -> int:
        """Return the last unacknowledged entry before ``end``; -1 if there is no such entry."""
        found = self.holes.last_missing(self.mark, end)
        return found if found >= self.mark else -1

    def behind_open(self, count: int, end: int) -> int:
        """Return the offset behind the next ``count`` open entries; ``end`` if there are fewer."""
        offset, left = self.mark, count
        while offset < end and left > 0:
            stop = min(offset + _WINDOW, end)
            there = stop - offset - self.holes.bits(offset, stop).bit_count()
            if there > left:
                for _ in range(left):
                    offset = self.next_open(offset) + 1
                return offset
            left -= there
            offset = stop
            if not left:
                break
        return offset

    def backlog(self, end: int) -> int:
        """Return the number of unacknowledged entries below ``end``."""
        return max(0, end - self.mark - len(self.holes))

    def open_tally(self, end: int) -> Tally:
        """Return the unacknowledged messages below ``end``, and the bytes of their entries."""
        if self._tally is None:
            self._tally = self.counts.held(self.holes, self.mark, self.holes.end)
            for offset, bits in self.batches.items():
                self.batches[offset] = bits & ((1 << self._messages(offset)) - 1)
            self._parts = sum(map(self._part, self.batches))
        messages, size = self.counts.between(self.mark, end)
        return max(0, messages - self._tally[0] - self._parts), max(0, size - self._tally[1])

    def hole_count(self) -> int:
        """Return the number of runs of open messages before an acknowledged one, also inside batches.

        With more partly acknowledged batches than `HOLES_COUNTED_BATCHES_MAX` each of them counts as one.
        """
        batches = self.batches
        found = self.holes.range_count()
        if len(batches) > HOLES_COUNTED_BATCHES_MAX:
            return found + len(batches)
        for offset, bits in batches.items():
            last = self._batch_end(offset)
            found += (bits & ~(bits >> 1) & (last - 1)).bit_count()
            if not bits & 1 and self._ends_open(offset - 1):
                found += 1
            if not bits & last and offset + 1 in self.holes:
                found -= 1  # that run ends inside the batch, and was counted there
        return found

    def _batch_end(self, offset: int) -> int:
        """Return the bit of a partly acknowledged batch's last message."""
        return 1 << max(self._messages(offset), self.batches[offset].bit_length()) - 1

    def _ends_open(self, offset: int) -> bool:
        """Return whether the last message of an entry is open."""
        if self.is_acknowledged(offset):
            return False
        bits = self.batches.get(offset)
        return bits is None or bool(bits & self._batch_end(offset))

    def messages_open(self, start: int, stop: int) -> int:
        """Return the open messages in ``start <= offset < stop``, behind the mark; cost grows with holes."""
        messages = self.counts.between(start, stop)[0]
        if self.holes:
            messages -= self.counts.held(self.holes, start, stop)[0]
        offsets, batches = range(start, stop), self.batches
        few = offsets if len(offsets) < len(batches) else batches
        return messages - sum(self._part(at) for at in few if at in batches and at in offsets)

    def open_bits(self, offset: int) -> int:
        """Return a number with a 1 for each open message of an entry that is not wholly acknowledged."""
        bits = self.batches.get(offset)
        return (1 << self._messages(offset)) - 1 if bits is None else bits

    def _messages(self, offset: int) -> int:
        """Return the number of messages of an entry, at least 1, because it may be a chunk."""
        return max(1, self.counts.of(offset)[0])

    def _part(self, offset: int) -> int:
        """Return the number of acknowledged messages of a partly acknowledged batch."""
        return self._messages(offset) - self.batches[offset].bit_count()

    def ack_words(self, offset: int) -> Sequence[int]:
        """``MESSAGE.ack_set`` for a partly acknowledged batch, empty otherwise."""
        bits = self.batches.get(offset)
        return words_from_bits(bits) if bits else ()

    def open_messages(self, offset: int) -> int:
        """Return the number of open messages of a partly acknowledged batch; 0 for any other entry."""
        return self.batches.get(offset, 0).bit_count()

    def open_ranges(self, offset: int) -> list[tuple[int, int]]:
        """Return the first and the last index of each run of open messages of a partly acknowledged batch."""
        return [(start, stop - 1) for start, stop in bit_ranges(self.batches.get(offset, 0))]

    # --- acknowledging ---
    def acknowledge(self, offset: int) -> bool:
        """Acknowledge one entry; False if it was acknowledged before."""
        if offset < self.mark or not self._add(offset):
            return False
        if self.batches:
            self._drop_batch(offset)
            self._fresh_batches.pop(offset, None)
        if self.durable:
            self._note_fresh(offset, offset + 1)
        return True

    def acknowledge_run(self, start: int, stop: int) -> Sequence[int]:
        """Acknowledge the entries at ``start <= offset < stop``; return those that were not before."""
        start = max(start, self.mark)
        if stop - start < 2 or self.batches or self.holes.next_present(start, stop) < stop:
            return [offset for offset in range(start, stop) if self.acknowledge(offset)]
        if start == self.mark:
            self.mark = stop
            self.is_behind = True
            if self.holes:
                self._close_gap()
        else:
            self.holes.add_range(start, stop)
            if self._tally is not None:
                self._tell(1, self.counts.between, start, stop)
        if self.durable:
            self._note_fresh(start, stop)
        return range(start, stop)

    def _note_fresh(self, start: int, stop: int) -> None:
        ranges = self._fresh_ranges
        if ranges and ranges[-1][1] == start:
            ranges[-1][1] = stop
        else:
            ranges.append([start, stop])

    def _add(self, offset: int) -> bool:
        if offset == self.mark:
            self.mark = offset + 1
            self.is_behind = True
            if self.holes:
                self._close_gap()
            return True
        if not self.holes.add(offset):
            return False
        if self._tally is not None:
            self._tell(1, self.counts.of, offset)
        return True

    def _tell(self, sign: int, ask: Callable[..., Tally], *where: Any) -> None:
        """Add the messages and bytes of entries to the tally, or subtract them.

        If they cannot be read, the tally is dropped and recomputed later; the acknowledgement holds.
        """
        tally = self._tally
        if tally is not None:
            try:
                messages, size = ask(*where)
            except StoreError:
                self._tally = None
            else:
                self._tally = tally[0] + sign * messages, tally[1] + sign * size

    def _tell_part(self, sign: int, offset: int) -> None:
        """Add the acknowledged messages of a batch to the tally, or subtract them."""
        if self._tally is not None:
            try:
                self._parts += sign * self._part(offset)
            except StoreError:
                self._tally = None

    def _close_gap(self) -> None:
        contiguous = self.holes.next_missing(self.mark)
        if contiguous != self.mark:
            self.holes.remove_range(self.mark, contiguous)
            self._tell(-1, self.counts.between, self.mark, contiguous)
            self.mark = contiguous

    def acknowledge_part(
        self, offset: int, words: Sequence[int], messages: int, *, is_limited: bool = True
    ) -> int | None:
        """Acknowledge some of a batch's ``messages``: the bits of ``words`` are 1 for each open message.

        Clients count from a full batch, so the set is ANDed with the stored one. Nothing is stored for an
        entry with a single message, and never more bits than the batch has messages. Returns the number of
        open messages, 0 if the entry is now acknowledged, None if it was before. Raises `CursorFull`, unless
        the cursor is not to be limited.
        """
        if self.is_acknowledged(offset):
            return None
        before = self.batches.get(offset)
        known = (1 << messages) - 1 if before is None else before
        after = known & bits_from_words(words, messages)
        if not after:
            self.acknowledge(offset)
            return 0
        if after == known:
            return after.bit_count()
        is_more = is_limited and before is None
        if is_more and self.batches_bytes + _held_bytes(after) > PARTIAL_BATCHES_BYTES_MAX:
            raise CursorFull
        self._drop_batch(offset)
        self.batches[offset] = after
        self.batches_bytes += _held_bytes(after)
        if self._tally is not None:
            self._tell_part(1, offset)
        if self.durable:
            self._fresh_batches[offset] = after
        return after.bit_count()

    def acknowledge_below(self, offset: int) -> bool:
        """Acknowledge every entry below ``offset`` (cumulative); False if nothing changes."""
        before = self.mark
        if offset <= before:
            return False
        if self.holes:
            self._drop_holes(offset)
        self.mark = offset
        self.is_behind = True
        if self.holes:
            self._close_gap()
        if self.batches:
            self._drop_batches(before, self.mark)
        if self.durable:
            self._below = max(self._below, offset)
        return True

    def _drop_holes(self, offset: int) -> None:
        """Drop the holes below ``offset``; the tally is recounted on the side with fewer holes."""
        held = self.counts.held
        if offset - self.mark <= self.holes.end - offset:
            self._tell(-1, held, self.holes, self.mark, offset)
        elif self._tally is not None:
            self._tally = 0, 0
            self._tell(1, held, self.holes, offset, self.holes.end)
        self.holes.remove_range(self.mark, offset)

    def _drop_batch(self, offset: int) -> None:
        """Drop the open messages of an acknowledged batch, if any are stored."""
        bits = self.batches.get(offset)
        if bits is not None:
            self._tell_part(-1, offset)
            self.batches_bytes -= _held_bytes(bits)
            del self.batches[offset]

    def _drop_batches(self, start: int, stop: int) -> None:
        """Drop the batches of acknowledged entries; costs the lesser of the two numbers."""
        offsets = range(start, stop)
        batches = self.batches
        for offset in offsets if len(offsets) < len(batches) else [at for at in batches if at in offsets]:
            self._drop_batch(offset)

    def reset(self, offset: int) -> None:
        """Reopen everything from ``offset`` on. The caller writes a snapshot instead of the pending delta."""
        self.mark = offset
        self.is_behind = False
        self.holes.clear()
        self.batches.clear()
        self.batches_bytes = self._parts = 0
        self._tally = 0, 0

    def clamp(self, start: int, end: int) -> None:
        """Limit a loaded cursor to the entries that exist: ``start <= offset < end``."""
        if self.mark > end:
            self.reset(end)
        if self.mark >= start and self.holes.end <= end and max(self.batches, default=-1) < end:
            return
        self.mark = max(self.mark, start)
        self.holes.remove_range(end, self.holes.end)
        self.batches = {at: bits for at, bits in self.batches.items() if at < end}
        self._put_in_order()

    def _put_in_order(self) -> None:
        """Remove holes below the mark and batches of acknowledged entries; drop the tally."""
        self._tally = None
        self.holes.remove_range(0, self.mark)
        self._close_gap()
        self.batches = {
            at: bits for at, bits in self.batches.items() if bits and not self.is_acknowledged(at)
        }
        self.batches_bytes = sum(map(_held_bytes, self.batches.values()))

    def step_over(self, start: int, stop: int) -> None:
        """Count missing entries at ``start <= offset < stop`` as acknowledged, without writing them."""
        if stop > self.mark:
            self.holes.add_range(max(start, self.mark), stop)
            self._put_in_order()

    # --- durable form ---
    @property
    def changed(self) -> bool:
        """Whether `take_delta` would return anything."""
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
        """Return what was acknowledged since the last call, for the store to merge."""
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
        if self._tally is not None and self._parts >= 0 and (self.holes or self.batches):
            out.append(_TALLY)
            out += self._packed_tally(self._tally)
        self._forget_fresh()
        self._deltas += 1
        self._delta_bytes += len(out)
        return bytes(out)

    def take_snapshot(self) -> bytes:
        """Return the whole cursor, with the pending delta, for the store to put."""
        self._forget_fresh()
        out = bytearray([_VERSION])
        put_varint(out, self.mark)
        put_bytes(out, json.dumps(self.properties, separators=(",", ":")).encode())
        self.holes.encode(out)
        self._put_batches(out)
        if self._tally is not None and self._parts >= 0:
            out += self._packed_tally(self._tally)
        elif self.is_behind:
            out += _NO_TALLY
        out += bytes(self.is_behind)  # a byte or none
        self._deltas = self._delta_ranges = self._delta_bytes = 0
        self._snapshot_bytes = len(out)
        return bytes(out)

    def _put_batches(self, out: bytearray) -> None:
        """Append columns of offsets and sizes, then all bits, for speed with 100,000 batches."""
        sizes = [(bits.bit_length() + 7) // 8 for bits in self.batches.values()]
        IntegerColumn(list(self.batches)).encode(out)
        IntegerColumn(sizes).encode(out)
        out += b"".join(
            [bits.to_bytes(size, "little") for bits, size in zip(self.batches.values(), sizes, strict=True)]
        )

    def _read_batches(self, reader: RecordReader) -> None:
        offsets, sizes = IntegerColumn.decode(reader), IntegerColumn.decode(reader)
        if len(offsets) != len(sizes):
            raise reader.damaged(f"{len(offsets)} batches and {len(sizes)} sizes of such")
        blob, place = reader.take(sizes.sum(0, len(sizes))), 0
        for offset, size in zip(offsets, sizes, strict=True):
            self.batches[offset] = int.from_bytes(blob[place : place + size], "little")
            place += size

    def _packed_tally(self, tally: Tally) -> bytes:
        return _TALLY_FORM.pack(self.mark, len(self.holes), len(self.batches), self._parts, *tally)

    def _forget_fresh(self) -> None:
        self._fresh_ranges = []
        self._fresh_batches = {}
        self._below = -1

    @staticmethod
    def load(value: StoredValue, what: str, counts: EntryCounts) -> Cursor:
        """Parse a stored cursor; raises `StoreDamaged` naming ``what``."""
        reader = RecordReader(value.base, what)
        version = reader.varint()
        if version != _VERSION:
            raise reader.damaged(f"cursor version {version}, this program knows {_VERSION}")
        cursor = Cursor(reader.varint(), counts=counts, durable=True)
        try:
            cursor.properties = json.loads(reader.blob())
        except (ValueError, RecursionError) as error:
            raise reader.damaged("the properties are no JSON") from error
        cursor.holes = RangeSet.decode(reader)
        cursor._read_batches(reader)
        tally = _read_tally(reader) if reader else None
        cursor.is_behind = bool(reader)
        cursor._snapshot_bytes, placed = len(value.base), cursor.mark
        for delta in value.deltas:
            tally = cursor._take_in(RecordReader(delta, what))
            cursor._delta_bytes += len(delta)
        cursor._deltas = len(value.deltas)
        cursor._put_in_order()
        cursor.is_behind = cursor.is_behind or cursor.mark > placed
        cursor._take_tally(tally)
        return cursor

    def _take_in(self, reader: RecordReader) -> tuple[int, ...] | None:
        """Add a delta, and return its tally; `_put_in_order` must follow."""
        tally = None
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
                column = IntegerColumn.decode(reader)
                self._delta_ranges += len(column)
                self.holes.add_all(column)
            elif kind == _BATCH:
                offset = reader.varint()
                bits = int.from_bytes(reader.blob(), "little")
                self._delta_ranges += 1
                self.batches[offset] = self.batches.get(offset, bits) & bits
            elif kind == _TALLY:
                tally = _read_tally(reader)
            else:
                raise reader.damaged(f"unknown kind of cursor delta {kind}")
        return tally

    def _take_tally(self, tally: tuple[int, ...] | None) -> None:
        """Use the tally if it belongs to this state; without holes no tally is needed."""
        if not self.holes and not self.batches:
            self._tally = 0, 0
        elif tally is not None and tally[:3] == (self.mark, len(self.holes), len(self.batches)):
            self._parts, self._tally = tally[3], (tally[4], tally[5])


def _read_tally(reader: RecordReader) -> tuple[int, ...]:
    return _TALLY_FORM.unpack(reader.take(_TALLY_FORM.size))


def _held_bytes(bits: int) -> int:
    """Return the memory of a partly acknowledged batch."""
    return bits.bit_length() // 8 + _BATCH_OVERHEAD_BYTES


def _put_ranges(out: bytearray, ranges: list[list[int]]) -> None:
    if len(ranges) == 1:
        start, stop = ranges[0]
        out += b"%c\x01" % _RANGES + varint(start) + varint(stop - start)
        return
    singles = [start for start, stop in ranges if stop - start == 1]
    if len(singles) >= _COLUMN_FROM:
        out.append(_OFFSETS)
        IntegerColumn(singles).encode(out)
        ranges = [each for each in ranges if each[1] - each[0] > 1]
        if not ranges:
            return
    out.append(_RANGES)
    put_varint(out, len(ranges))
    for start, stop in ranges:
        put_varint(out, start)
        put_varint(out, stop - start)
