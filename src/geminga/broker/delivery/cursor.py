"""A cursor: which entries of a topic a subscription has dealt with.

A cursor counts entries by their offset (`managed_ledger`). Everything below ``mark`` is acknowledged;
behind it, ``holes`` holds what was acknowledged out of order, and ``batches`` the messages of a batch
that are still open. All three survive restarts in full.

Beside them goes a *tally*: how many messages and bytes are acknowledged behind the mark, so that a backlog
in messages is two sums and a subtraction (`entry_counts`). It changes with every acknowledgement that
leaves a hole or closes one, is kept with them, and is made anew where it is missing or in doubt. The bytes
of a partly acknowledged batch count until its last message is acknowledged: the store keeps all of them.

Durable form: one key a cursor. Its value is a snapshot; every acknowledgement since is a delta that
the store merges onto it. Acknowledgements only ever add to a cursor, so deltas may be applied twice,
in any order, and on top of a newer snapshot, with the same result; loading takes them in together and
puts mark, holes and batches in order once, at its end. What takes something back (a seek) writes a
snapshot, which replaces the deltas.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from geminga.broker.columns import IntegerColumn
from geminga.broker.delivery.ranges import RangeSet, bit_ranges
from geminga.broker.records import RecordReader, put_bytes, put_varint
from geminga.errors import StoreError
from geminga.ledger.api import StoredValue
from geminga.wire.varint import varint

_VERSION = 3
"""Before it, partly acknowledged batches were written one by one (1, 2) and there was no tally (1)."""
_RANGES, _BELOW, _BATCH, _OFFSETS, _TALLY = 1, 2, 3, 4, 6
_TALLY_FORM = struct.Struct("<QQQQQQ")
"""Mark, entries in holes, partly acknowledged batches: what state the tally is of; then the tally itself:
messages acknowledged in those batches, messages and bytes in holes. Written with every delta, so it is packed
quickly rather than tightly."""
_NO_TALLY = _TALLY_FORM.pack((1 << 64) - 1, 0, 0, 0, 0, 0)
"""In place of one, where something follows: no cursor is in that state."""
_WINDOW = 4096
"""Offsets that are counted together."""
_COLUMN_FROM = 8
"""From so many single offsets on, a delta holds them as a column: shorter, and read ten times as fast."""
_WORD_BITS = 64
_WORD_BYTES = 8
_WORD_MASK = (1 << _WORD_BITS) - 1
HOLES_COUNTED_BATCHES_MAX = 10_000
PARTIAL_BATCHES_BYTES_MAX = 32 * 1024 * 1024
"""Memory for what is open in partly acknowledged batches; further ones are refused until some are done."""
_BATCH_OVERHEAD_BYTES = 170

SNAPSHOT_AFTER_BYTES_MIN = 64 * 1024
"""A snapshot is written when the deltas since the last one outgrow it, and this ..."""
SNAPSHOT_AFTER_DELTAS = 4096
SNAPSHOT_AFTER_RANGES = 65_536
"""... or when there are so many of them, with so many ranges: loading must never take long."""

Properties = dict[str, str]


Tally = tuple[int, int]
"""Messages and bytes."""


class MessageCounts(Protocol):
    """What entries hold (`entry_counts.EntryCounts`)."""

    def of(self, offset: int) -> Tally:
        """Messages and bytes of one entry."""

    def between(self, start: int, stop: int) -> Tally:
        """Those of all entries at ``start <= offset < stop``."""

    def held(self, offsets: RangeSet, start: int, stop: int) -> Tally:
        """Those of the entries at ``start <= offset < stop`` that are in a set."""

    @property
    def is_complete(self) -> bool:
        """Whether that can be said without reading many entries first."""


class CursorFull(Exception):
    """No more partly acknowledged batches can be kept: the acknowledgement was not taken."""

    def __init__(self) -> None:
        super().__init__(
            "the subscription has too many partly acknowledged batches: "
            "acknowledge the remaining messages of some first"
        )


def bits_from_words(words: Sequence[int], messages: int) -> int:
    """The bits of a ``java.util.BitSet``'s long array: 1 is a message that is still open.

    What lies beyond the batch's ``messages`` is left out, and not looked at.
    """
    wanted = words[: -(-messages // _WORD_BITS)]
    packed = b"".join([(word & _WORD_MASK).to_bytes(_WORD_BYTES, "little") for word in wanted])
    return int.from_bytes(packed, "little") & ((1 << messages) - 1)


def words_from_bits(bits: int) -> list[int]:
    """The inverse of `bits_from_words`: signed words, trailing zero words dropped."""
    count = -(-bits.bit_length() // _WORD_BITS)
    packed = bits.to_bytes(count * _WORD_BYTES, "little")
    return [
        int.from_bytes(packed[place : place + _WORD_BYTES], "little", signed=True)
        for place in range(0, len(packed), _WORD_BYTES)
    ]


def without_lowest_ones(bits: int, count: int) -> int:
    """``bits`` with its lowest ``count`` ones taken out."""
    low, high = 0, bits.bit_length()
    while low < high:
        middle = (low + high + 1) // 2
        if (bits & ((1 << middle) - 1)).bit_count() <= count:
            low = middle
        else:
            high = middle - 1
    return bits >> low << low


class Cursor:
    """See the module. ``mark`` is the offset of the first entry that is not dealt with.

    ``is_behind`` says that nothing before it is wanted, whatever compaction has of that: that it was placed
    behind the topic's beginning, or has moved since.
    """

    __slots__ = (
        "_below", "_delta_bytes", "_delta_ranges", "_deltas", "_fresh_batches", "_fresh_ranges", "_parts",
        "_snapshot_bytes", "_tally", "batches", "batches_bytes", "counts", "durable", "holes", "is_behind",
        "mark", "properties",
    )  # fmt: skip

    def __init__(
        self, mark: int, *, counts: MessageCounts, durable: bool, properties: Properties | None = None
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
        """The first entry from ``offset`` on that is not acknowledged (it may not exist yet)."""
        if offset < self.mark:
            offset = self.mark
        return self.holes.next_missing(offset) if self.holes else offset

    def open_run(self, offset: int, stop: int) -> int:
        """Where the run of open entries that starts at ``offset`` ends, at most ``stop``."""
        return self.holes.next_present(offset, stop)

    def last_open(self, end: int) -> int:
        """The last entry before ``end`` that is not acknowledged; -1 when there is none."""
        stop = end
        while stop > self.mark:
            start = max(self.mark, stop - _WINDOW)
            there = ~self.holes.bits(start, stop) & ((1 << (stop - start)) - 1)
            if there:
                return start + there.bit_length() - 1
            stop = start
        return -1

    def behind_open(self, count: int, end: int) -> int:
        """The offset behind the next ``count`` open entries; ``end`` when there are no more than those."""
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
        """Entries below ``end`` that are not acknowledged."""
        return max(0, end - self.mark - len(self.holes))

    def open_tally(self, end: int) -> Tally | None:
        """Messages below ``end`` that are not acknowledged, and the bytes of the entries that hold them.

        None while the topic's entries are still being counted.
        """
        if not self.counts.is_complete:
            return None
        if self._tally is None:
            self._tally = self.counts.held(self.holes, self.mark, self.holes.end)
            for offset, bits in self.batches.items():
                self.batches[offset] = bits & ((1 << self._messages(offset)) - 1)
            self._parts = sum(map(self._part, self.batches))
        messages, size = self.counts.between(self.mark, end)
        return max(0, messages - self._tally[0] - self._parts), max(0, size - self._tally[1])

    def hole_count(self) -> int:
        """How many runs of open messages lie before an acknowledged one, those inside batches included.

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
        """The bit of a partly acknowledged batch's last message."""
        messages = self._messages(offset) if self.counts.is_complete else 1
        return 1 << max(messages, self.batches[offset].bit_length()) - 1

    def _ends_open(self, offset: int) -> bool:
        """Whether the last message of an entry is open."""
        if self.is_acknowledged(offset):
            return False
        bits = self.batches.get(offset)
        return bits is None or bool(bits & self._batch_end(offset))

    def messages_open(self, start: int, stop: int) -> int:
        """Open messages in ``start <= offset < stop``, not before the mark; costs what holes lie between."""
        return self.messages_begun(start, stop) - sum(self.parts(start, stop))

    def messages_begun(self, start: int, stop: int) -> int:
        """The same with all messages of entries that are partly acknowledged."""
        messages = self.counts.between(start, stop)[0]
        return messages - self.counts.held(self.holes, start, stop)[0] if self.holes else messages

    def parts(self, start: int, stop: int) -> Iterator[int]:
        """How many messages of each partly acknowledged batch among these entries are acknowledged.

        May be gone through in steps. What is acknowledged as a whole meanwhile counts as nothing.
        """
        offsets, batches = range(start, stop), self.batches
        few = offsets if len(offsets) < len(batches) else list(batches)
        return (self._part(at) for at in few if at in batches and at in offsets)

    def open_bits(self, offset: int) -> int:
        """A one for each open message of an entry that is not acknowledged as a whole."""
        bits = self.batches.get(offset)
        return (1 << self._messages(offset)) - 1 if bits is None else bits

    def _messages(self, offset: int) -> int:
        """How many messages can be acknowledged in an entry: one at least, it may be a chunk."""
        return max(1, self.counts.of(offset)[0])

    def _part(self, offset: int) -> int:
        """How many messages of a partly acknowledged batch are acknowledged."""
        return self._messages(offset) - self.batches[offset].bit_count()

    def ack_words(self, offset: int) -> Sequence[int]:
        """``MESSAGE.ack_set`` for a partly acknowledged batch, empty otherwise."""
        bits = self.batches.get(offset)
        return words_from_bits(bits) if bits else ()

    def open_messages(self, offset: int) -> int:
        """How many messages of a partly acknowledged batch are open; 0 when it is not such a batch."""
        return self.batches.get(offset, 0).bit_count()

    def open_ranges(self, offset: int) -> list[tuple[int, int]]:
        """Which messages of a partly acknowledged batch are open: the first and the last of each run."""
        return [(start, stop - 1) for start, stop in bit_ranges(self.batches.get(offset, 0))]

    # --- acknowledging ---
    def acknowledge(self, offset: int) -> bool:
        """One entry; False when it was acknowledged before."""
        if offset < self.mark or not self._add(offset):
            return False
        if self.batches:
            self._drop_batch(offset)
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
            self.is_behind = True
            if self.holes:
                self._close_gap()
            return True
        if not self.holes.add(offset):
            return False
        if self._is_tallied():
            self._tell(1, self.counts.of, offset)
        return True

    def _is_tallied(self) -> bool:
        """Whether the tally is to follow what changes; not before all entries are counted."""
        if self._tally is not None:
            try:
                is_complete = self.counts.is_complete
            except StoreError:
                is_complete = False
            if not is_complete:
                self._tally = None
        return self._tally is not None

    def _tell(self, sign: int, ask: Callable[..., Tally], *where: Any) -> None:
        """Add what some entries hold to the tally, or take it from there.

        An acknowledgement holds whether that can be read or not: else the tally is made anew, when it can.
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
        """The same of the messages that are acknowledged in a batch."""
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

    def acknowledge_part(self, offset: int, words: Sequence[int], messages: int) -> int | None:
        """Some of a batch's ``messages``: the bits of ``words`` have a 1 for each that is not acknowledged.

        Clients count from a full batch, so a set is ANDed with what is known. Nothing is kept for an entry
        of a single message, and never more than the batch holds. Returns how many messages remain open, 0
        when the entry is now done, None when it was done before. Raises `CursorFull`.
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
        if before is None and self.batches_bytes + _held_bytes(after) > PARTIAL_BATCHES_BYTES_MAX:
            raise CursorFull
        self._drop_batch(offset)
        self.batches[offset] = after
        self.batches_bytes += _held_bytes(after)
        if self._is_tallied():
            self._tell_part(1, offset)
        if self.durable:
            self._fresh_batches[offset] = after
        return after.bit_count()

    def acknowledge_below(self, offset: int) -> bool:
        """Every entry below ``offset`` (a cumulative acknowledgement); False when nothing is new."""
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
        """Forget the holes below ``offset``; those behind it are counted instead where they are fewer."""
        held = self.counts.held
        if offset - self.mark <= self.holes.end - offset:
            self._tell(-1, held, self.holes, self.mark, offset)
        elif self._tally is not None:
            self._tally = 0, 0
            self._tell(1, held, self.holes, offset, self.holes.end)
        self.holes.remove_range(self.mark, offset)

    def _drop_batch(self, offset: int) -> None:
        """Forget what is open in a batch, if it is a partly acknowledged one: it is done."""
        bits = self.batches.get(offset)
        if bits is not None:
            self._tell_part(-1, offset)
            self.batches_bytes -= _held_bytes(bits)
            del self.batches[offset]

    def _drop_batches(self, start: int, stop: int) -> None:
        """Forget the batches of entries that are done; costs the lesser of the two numbers."""
        offsets = range(start, stop)
        batches = self.batches
        for offset in offsets if len(offsets) < len(batches) else [at for at in batches if at in offsets]:
            self._drop_batch(offset)

    def reset(self, offset: int) -> None:
        """Everything from ``offset`` on is open again. The caller writes a snapshot."""
        self.mark = offset
        self.is_behind = False
        self.holes.clear()
        self.batches.clear()
        self.batches_bytes = self._parts = 0
        self._tally = 0, 0
        self._forget_fresh()

    def clamp(self, start: int, end: int) -> None:
        """Fit a loaded cursor to the entries that exist: ``start <= offset < end``."""
        if self.mark > end:
            self.reset(end)
        if self.mark >= start and self.holes.end <= end and max(self.batches, default=-1) < end:
            return
        self.mark = max(self.mark, start)
        self.holes.remove_range(end, self.holes.end)
        self.batches = {at: bits for at, bits in self.batches.items() if at < end}
        self._put_in_order()

    def _put_in_order(self) -> None:
        """Nothing below the mark, no batches of entries that are done; the tally is to be made anew."""
        self._tally = None
        self.holes.remove_range(0, self.mark)
        self._close_gap()
        self.batches = {
            at: bits for at, bits in self.batches.items() if bits and not self.is_acknowledged(at)
        }
        self.batches_bytes = sum(map(_held_bytes, self.batches.values()))

    def step_over(self, start: int, stop: int) -> None:
        """There is nothing at ``start <= offset < stop``: it counts as dealt with. Not written down."""
        if stop > self.mark:
            self.holes.add_range(max(start, self.mark), stop)
            self._put_in_order()

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
        if self._tally is not None and self._parts >= 0 and (self.holes or self.batches):
            out.append(_TALLY)
            out += self._packed_tally(self._tally)
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
        """Columns of offsets and sizes, then all bits: quick, for there may be a hundred thousand."""
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
    def load(value: StoredValue, what: str, counts: MessageCounts) -> Cursor:
        """The cursor that was kept; raises `StoreDamaged` naming ``what``."""
        reader = RecordReader(value.base, what)
        version = reader.varint()
        if not 1 <= version <= _VERSION:
            raise reader.damaged(f"cursor version {version}, this program knows {_VERSION}")
        cursor = Cursor(reader.varint(), counts=counts, durable=True)
        try:
            cursor.properties = json.loads(reader.blob())
        except ValueError as error:
            raise reader.damaged("the properties are no JSON") from error
        cursor.holes = RangeSet.decode(reader)
        tally = None
        if version >= _VERSION:
            cursor._read_batches(reader)
            tally = _read_tally(reader) if reader else None
            cursor.is_behind = bool(reader)
        else:
            for _ in range(reader.varint()):
                offset = reader.varint()
                cursor.batches[offset] = int.from_bytes(reader.blob(), "little")
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
        """Add a delta, and return the tally in it; `_put_in_order` must follow."""
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
        """Believe the tally if it is of this very state; without holes none is needed."""
        if not self.holes and not self.batches:
            self._tally = 0, 0
        elif tally is not None and tally[:3] == (self.mark, len(self.holes), len(self.batches)):
            self._parts, self._tally = tally[3], (tally[4], tally[5])


def _read_tally(reader: RecordReader) -> tuple[int, ...]:
    return _TALLY_FORM.unpack(reader.take(_TALLY_FORM.size))


def _held_bytes(bits: int) -> int:
    """What a partly acknowledged batch takes in memory."""
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
