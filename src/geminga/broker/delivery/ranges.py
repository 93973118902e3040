"""A set of whole numbers that stays small and fast for millions of scattered ranges.

Cursors keep in it which entries behind their mark-delete position are acknowledged. The numbers are
kept as bitmaps of 1,024 numbers a chunk, so that adding one number costs the same whether the set
holds ten ranges or ten million, and a million alternating holes take about half a megabyte. Ranges
are half-open: ``start <= value < stop``.
"""

from __future__ import annotations

from collections.abc import Iterator

from geminga.broker.records import RecordReader, put_varint

_SHIFT = 10
_BITS = 1 << _SHIFT
_MASK = _BITS - 1
_FULL = (1 << _BITS) - 1
_BITMAP_BYTES = _BITS // 8

# How a chunk is written: a run of full chunks, a bitmap, or its ranges, whichever is shortest.
_RUN, _BITMAP, _RANGES = 0, 1, 2


def _lowest_zero(bits: int) -> int:
    return ((bits + 1) & ~bits).bit_length() - 1


def _lowest_one(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


class RangeSet:
    """See the module. Numbers are >= 0."""

    __slots__ = ("_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many numbers are in the set."""
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __contains__(self, value: int) -> bool:
        return bool(self._chunks.get(value >> _SHIFT, 0) >> (value & _MASK) & 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self._chunks == other._chunks

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [f"{start}..{stop - 1}" for start, stop in self.ranges(8)]
        return f"RangeSet({', '.join(shown)}{', ...' if len(shown) == 8 else ''})"

    def add(self, value: int) -> bool:
        """Add one number; False when it was there."""
        key, bit = value >> _SHIFT, 1 << (value & _MASK)
        bits = self._chunks.get(key, 0)
        if bits & bit:
            return False
        self._chunks[key] = bits | bit
        self._count += 1
        return True

    def add_range(self, start: int, stop: int) -> int:
        """Add ``start <= value < stop``; returns how many were new."""
        before = self._count
        for key, mask in _masks(start, stop):
            bits = self._chunks.get(key, 0)
            merged = bits | mask
            if merged != bits:
                self._chunks[key] = merged
                self._count += merged.bit_count() - bits.bit_count()
        return self._count - before

    def remove_range(self, start: int, stop: int) -> int:
        """Remove ``start <= value < stop``; returns how many were there."""
        before = self._count
        for key, mask in _masks(start, stop):
            bits = self._chunks.get(key, 0)
            if not bits & mask:
                continue
            kept = bits & ~mask
            self._count -= bits.bit_count() - kept.bit_count()
            if kept:
                self._chunks[key] = kept
            else:
                del self._chunks[key]
        return before - self._count

    def clear(self) -> None:
        self._chunks.clear()
        self._count = 0

    def next_missing(self, value: int) -> int:
        """The first number >= ``value`` that is not in the set."""
        chunks = self._chunks
        key, offset = value >> _SHIFT, value & _MASK
        while True:
            found = _lowest_zero(chunks.get(key, 0) >> offset) + offset
            if found < _BITS:
                return (key << _SHIFT) + found
            key, offset = key + 1, 0

    def next_present(self, value: int, stop: int) -> int:
        """The first number in ``value <= n < stop`` that is in the set; ``stop`` when there is none."""
        if not self._count:
            return stop
        chunks = self._chunks
        key, offset = value >> _SHIFT, value & _MASK
        while (key << _SHIFT) + offset < stop:
            bits = chunks.get(key, 0) >> offset
            if bits:
                return min(stop, (key << _SHIFT) + _lowest_one(bits) + offset)
            key, offset = key + 1, 0
        return stop

    def count_below(self, stop: int) -> int:
        """How many numbers are below ``stop``."""
        last = stop >> _SHIFT
        below = sum(bits.bit_count() for key, bits in self._chunks.items() if key < last)
        return below + (self._chunks.get(last, 0) & ((1 << (stop & _MASK)) - 1)).bit_count()

    def ranges(self, ranges_max: int | None = None) -> Iterator[tuple[int, int]]:
        """``(start, stop)`` pairs in rising order, at most ``ranges_max``."""
        given = 0
        open_start, open_stop = -1, -1
        for start, stop in self._chunk_ranges():
            if start == open_stop:
                open_stop = stop
                continue
            if open_start >= 0:
                yield open_start, open_stop
                given += 1
                if given == ranges_max:
                    return
            open_start, open_stop = start, stop
        if open_start >= 0:
            yield open_start, open_stop

    def _chunk_ranges(self) -> Iterator[tuple[int, int]]:
        for key in sorted(self._chunks):
            base = key << _SHIFT
            for start, stop in _bit_ranges(self._chunks[key]):
                yield base + start, base + stop

    def encode(self, out: bytearray) -> None:
        """Append the set's compact form."""
        keys = sorted(self._chunks)
        put_varint(out, len(keys))
        previous, index = 0, 0
        while index < len(keys):
            key = keys[index]
            put_varint(out, key - previous)
            bits = self._chunks[key]
            run = 0
            while index + run < len(keys) and keys[index + run] == key + run:
                if self._chunks[keys[index + run]] != _FULL:
                    break
                run += 1
            if run:
                out.append(_RUN)
                put_varint(out, run)
                index += run
                previous = key + run
                continue
            _encode_chunk(out, bits)
            index += 1
            previous = key + 1

    @staticmethod
    def decode(reader: RecordReader) -> RangeSet:
        """The inverse of `encode`; raises `StoreDamaged`."""
        found = RangeSet()
        left = reader.varint()
        key = 0
        while left > 0:
            key += reader.varint()
            kind = reader.varint()
            run = reader.varint() if kind == _RUN else 1
            if run < 1 or run > left:
                raise reader.damaged(f"a run of {run} chunks where {left} are left")
            bits = _FULL if kind == _RUN else _decode_chunk(reader, kind)
            for each in range(key, key + run):
                found._chunks[each] = bits
            found._count += bits.bit_count() * run
            key += run
            left -= run
        return found


def _masks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The chunks that a range touches, with the bits it takes in each."""
    while start < stop:
        key, low = start >> _SHIFT, start & _MASK
        high = min(_BITS, low + stop - start)
        if low == 0 and high == _BITS:
            yield key, _FULL
        else:
            yield key, ((1 << (high - low)) - 1) << low
        start += high - low


def _bit_ranges(bits: int) -> Iterator[tuple[int, int]]:
    at = 0
    while bits:
        gap = _lowest_one(bits)
        bits >>= gap
        length = _lowest_zero(bits)
        bits >>= length
        yield at + gap, at + gap + length
        at += gap + length


def _encode_chunk(out: bytearray, bits: int) -> None:
    count = (bits & ~(bits << 1)).bit_count()
    if count * 2 >= _BITMAP_BYTES:
        # Two numbers a range, a byte or two each: the bitmap is no longer, and much faster.
        out.append(_BITMAP)
        out += bits.to_bytes(_BITMAP_BYTES, "little")
        return
    out.append(_RANGES)
    put_varint(out, count)
    end = 0
    for start, stop in _bit_ranges(bits):
        put_varint(out, start - end)
        put_varint(out, stop - start)
        end = stop


def _decode_chunk(reader: RecordReader, kind: int) -> int:
    if kind == _BITMAP:
        return reader.bitmap(_BITMAP_BYTES)
    if kind != _RANGES:
        raise reader.damaged(f"unknown kind of chunk {kind}")
    bits, at = 0, 0
    for _ in range(reader.varint()):
        at += reader.varint()
        length = reader.varint()
        if length < 1 or at + length > _BITS:
            raise reader.damaged(f"a range of {length} at {at} leaves its chunk")
        bits |= ((1 << length) - 1) << at
        at += length
    return bits
