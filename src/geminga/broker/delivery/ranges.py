"""Set of whole numbers that stays small and fast for millions of scattered ranges.

Cursors store in it the acknowledged entries behind their mark-delete position. The numbers are
stored as bitmaps of 1,024 numbers a chunk, so that adding one number costs the same whether the set
holds ten ranges or ten million, and ten million alternating holes take about six megabytes. Ranges
are half-open: ``start <= value < stop``. docs/decisions/ack-holes.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from geminga.broker.entries.records import RecordReader, put_varint

_SHIFT = 10
_BITS = 1 << _SHIFT
_MASK = _BITS - 1
_FULL = (1 << _BITS) - 1
_BITMAP_BYTES = _BITS // 8

# Formats of chunks, of which the shortest is used: a run of full chunks, a bitmap, a list of ranges, and a
# run of bitmaps, which millions of holes become and which is read fastest.
_RUN, _BITMAP, _RANGES, _BITMAPS = 0, 1, 2, 3
CHUNKS_MAX = 1 << 24
"""Chunks of a stored set: more than fit into memory, so that a wrong number is recognised."""


def _lowest_zero(bits: int) -> int:
    return ((bits + 1) & ~bits).bit_length() - 1


def _lowest_one(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


class RangeSet:
    """Set of numbers >= 0 that stores ranges compactly."""

    __slots__ = ("_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of elements."""
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
        """Add one number; False if it was in the set."""
        key, bit = value >> _SHIFT, 1 << (value & _MASK)
        bits = self._chunks.get(key, 0)
        if bits & bit:
            return False
        self._chunks[key] = bits | bit
        self._count += 1
        return True

    def add_range(self, start: int, stop: int) -> int:
        """Add ``start <= value < stop``; return how many were new."""
        before = self._count
        for key, mask in _masks(start, stop):
            bits = self._chunks.get(key, 0)
            merged = bits | mask
            if merged != bits:
                self._chunks[key] = merged
                self._count += merged.bit_count() - bits.bit_count()
        return self._count - before

    def add_all(self, values: Iterable[int]) -> None:
        """Add many numbers, in any order: the fastest way to load a stored cursor."""
        chunks = self._chunks
        known = chunks.get
        count = 0
        for value in values:
            key, bit = value >> _SHIFT, 1 << (value & _MASK)
            bits = known(key, 0)
            if not bits & bit:
                chunks[key] = bits | bit
                count += 1
        self._count += count

    def remove(self, value: int) -> bool:
        """Remove one number; False if it was not in the set."""
        key, bit = value >> _SHIFT, 1 << (value & _MASK)
        bits = self._chunks.get(key, 0)
        if not bits & bit:
            return False
        if bits == bit:
            del self._chunks[key]
        else:
            self._chunks[key] = bits ^ bit
        self._count -= 1
        return True

    def remove_range(self, start: int, stop: int) -> int:
        """Remove ``start <= value < stop``; return how many were in the set."""
        before, chunks = self._count, self._chunks
        for key in self._keys(start, stop):
            low, high = max(start, key << _SHIFT), min(stop, (key + 1) << _SHIFT)
            bits = chunks[key]
            kept = bits & ~(((1 << (high - low)) - 1) << (low & _MASK))
            self._count -= bits.bit_count() - kept.bit_count()
            if kept:
                chunks[key] = kept
            else:
                del chunks[key]
        return before - self._count

    def _keys(self, start: int, stop: int) -> list[int]:
        """Return the set's chunks with numbers ``start <= value < stop``; costs the lesser number of chunks
        between and of those of the set."""
        chunks = self._chunks
        keys = range(start >> _SHIFT, -(-stop >> _SHIFT)) if start < stop else range(0)
        if len(keys) < len(chunks):
            return [key for key in keys if key in chunks]
        return [key for key in chunks if key in keys]

    @property
    def end(self) -> int:
        """Return the number behind the highest one; 0 for an empty set."""
        if not self._chunks:
            return 0
        key = max(self._chunks)
        return (key << _SHIFT) + self._chunks[key].bit_length()

    def range_count(self) -> int:
        """Return the number of ranges without creating them."""
        chunks = self._chunks
        found = 0
        for key, bits in chunks.items():
            found += (bits & ~(bits << 1)).bit_count()
            if bits & 1 and chunks.get(key - 1, 0) >> (_BITS - 1):
                found -= 1
        return found

    def clear(self) -> None:
        self._chunks.clear()
        self._count = 0

    def next_missing(self, value: int) -> int:
        """Return the first number >= ``value`` that is not in the set."""
        chunks = self._chunks
        key, offset = value >> _SHIFT, value & _MASK
        while True:
            found = _lowest_zero(chunks.get(key, 0) >> offset) + offset
            if found < _BITS:
                return (key << _SHIFT) + found
            key, offset = key + 1, 0

    def next_present(self, value: int, stop: int) -> int:
        """Return the first number in ``value <= n < stop`` that is in the set; ``stop`` without one."""
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

    def last_missing(self, start: int, stop: int) -> int:
        """Return the last number below ``stop`` that is not in the set; ``start`` - 1 if all are."""
        while stop > start:
            low = max(start, stop - (1 << _SHIFT))
            there = ~self.bits(low, stop) & ((1 << (stop - low)) - 1)
            if there:
                return low + there.bit_length() - 1
            stop = low
        return start - 1

    def bits(self, start: int, stop: int) -> int:
        """Return the elements in ``start <= value < stop`` as bits, ``start`` the lowest."""
        chunks = self._chunks
        key, shift = start >> _SHIFT, start & _MASK
        found = chunks.get(key, 0) >> shift
        width = _BITS - shift
        while width < stop - start:
            key += 1
            found |= chunks.get(key, 0) << width
            width += _BITS
        return found & ((1 << (stop - start)) - 1)

    def histogram(self, start: int, stop: int, width: int) -> list[int]:
        """Count the elements in each interval of ``width`` numbers from ``start`` to ``stop``."""
        if width <= _BITS:
            return [self.bits(at, min(at + width, stop)).bit_count() for at in range(start, stop, width)]
        chunks = self._chunks
        found = [0] * -(-(stop - start) // width)
        for key in self._keys(start, stop):
            bits = chunks[key]
            low, high = max(start, key << _SHIFT), min(stop, (key + 1) << _SHIFT)
            cell, last_cell = (low - start) // width, (high - 1 - start) // width
            if cell == last_cell and high - low == _BITS:
                found[cell] += bits.bit_count()
                continue
            for each in range(cell, last_cell + 1):  # at most two: a cell is wider than a chunk
                begin = max(low, start + each * width)
                end = min(high, start + (each + 1) * width)
                found[each] += self.bits(begin, end).bit_count()
        return found

    def ranges(self, ranges_max: int | None = None, begin: int = 0) -> Iterator[tuple[int, int]]:
        """Yield ``(start, stop)`` pairs in rising order from ``begin`` on, at most ``ranges_max``."""
        given = 0
        open_start, open_stop = -1, -1
        for start, stop in self._chunk_ranges(begin):
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

    def _chunk_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        first = begin >> _SHIFT
        for key in sorted(key for key in self._chunks if key >= first):
            base = key << _SHIFT
            for start, stop in bit_ranges(self._chunks[key]):
                if base + stop > begin:
                    yield max(begin, base + start), base + stop

    def encode(self, out: bytearray) -> None:
        """Append the set's compact form."""
        chunks = self._chunks
        keys = sorted(chunks)
        put_varint(out, len(keys))
        previous, index = 0, 0
        while index < len(keys):
            key = keys[index]
            put_varint(out, key - previous)
            kind = _kind(chunks[key])
            run = 1
            if kind != _RANGES:
                while (
                    index + run < len(keys)
                    and keys[index + run] == key + run
                    and _kind(chunks[key + run]) == kind
                ):
                    run += 1
            if kind == _RANGES:
                _encode_ranges(out, chunks[key])
            elif kind == _RUN:
                out.append(_RUN)
                put_varint(out, run)
            elif run == 1:
                out.append(_BITMAP)
                out += chunks[key].to_bytes(_BITMAP_BYTES, "little")
            else:
                out.append(_BITMAPS)
                put_varint(out, run)
                out += b"".join(
                    [chunks[each].to_bytes(_BITMAP_BYTES, "little") for each in range(key, key + run)]
                )
            index += run
            previous = key + run

    @staticmethod
    def decode(reader: RecordReader) -> RangeSet:
        """Parse the compact form; raises `StoreDamaged`."""
        found = RangeSet()
        left = reader.varint()
        if left > CHUNKS_MAX:
            raise reader.damaged(f"{left} chunks; at most {CHUNKS_MAX} are written")
        key = 0
        while left > 0:
            key += reader.varint()
            kind = reader.varint()
            run = reader.varint() if kind in (_RUN, _BITMAPS) else 1
            if run < 1 or run > left:
                raise reader.damaged(f"a run of {run} chunks where {left} are left")
            if kind == _BITMAPS:
                found._take_bitmaps(key, reader.take(run * _BITMAP_BYTES))
            else:
                bits = _FULL if kind == _RUN else _decode_chunk(reader, kind)
                found._chunks.update(dict.fromkeys(range(key, key + run), bits))
                found._count += bits.bit_count() * run
            key += run
            left -= run
        return found

    def _take_bitmaps(self, key: int, data: bytes) -> None:
        from_bytes = int.from_bytes
        fresh = [
            from_bytes(data[place : place + _BITMAP_BYTES], "little")
            for place in range(0, len(data), _BITMAP_BYTES)
        ]
        self._chunks.update(zip(range(key, key + len(fresh)), fresh, strict=True))
        self._count += int.from_bytes(data, "little").bit_count()


def add_set(target: RangeSet, other: RangeSet) -> None:
    """Add all elements of another set."""
    chunks = target._chunks
    if not chunks:
        chunks.update(other._chunks)
        target._count = other._count
        return
    for key, bits in other._chunks.items():
        before = chunks.get(key, 0)
        chunks[key] = merged = before | bits if before else bits
        target._count += merged.bit_count() - before.bit_count()


def remove_set(target: RangeSet, other: RangeSet) -> None:
    """Remove all elements of another set."""
    chunks, others = target._chunks, other._chunks
    for key in [key for key in chunks if key in others]:
        bits = chunks[key]
        kept = bits & ~others[key]
        target._count -= bits.bit_count() - kept.bit_count()
        if kept:
            chunks[key] = kept
        else:
            del chunks[key]


def take_lowest(target: RangeSet, count: int) -> list[int]:
    """Remove and return the lowest ``count`` numbers, or all if there are fewer."""
    found: list[int] = []
    for start, stop in target.ranges():
        found += range(start, min(stop, start + count - len(found)))
        if len(found) == count:
            break
    if found:
        target.remove_range(found[0], found[-1] + 1)
    return found


def _kind(bits: int) -> int:
    """Return the format of a chunk."""
    if bits == _FULL:
        return _RUN
    # Two numbers a range, a byte or two each: from here on the bitmap is no longer, and much faster.
    return _BITMAP if (bits & ~(bits << 1)).bit_count() * 2 >= _BITMAP_BYTES else _RANGES


def _masks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the chunks that a range touches, with the bits it has in each."""
    while start < stop:
        key, low = start >> _SHIFT, start & _MASK
        high = min(_BITS, low + stop - start)
        if low == 0 and high == _BITS:
            yield key, _FULL
        else:
            yield key, ((1 << (high - low)) - 1) << low
        start += high - low


def bit_ranges(bits: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of ones in a number, lowest first: ``(start, stop)`` pairs."""
    at = 0
    while bits:
        gap = _lowest_one(bits)
        bits >>= gap
        length = _lowest_zero(bits)
        bits >>= length
        yield at + gap, at + gap + length
        at += gap + length


def _encode_ranges(out: bytearray, bits: int) -> None:
    out.append(_RANGES)
    put_varint(out, (bits & ~(bits << 1)).bit_count())
    end = 0
    for start, stop in bit_ranges(bits):
        put_varint(out, start - end)
        put_varint(out, stop - start)
        end = stop


def _decode_chunk(reader: RecordReader, kind: int) -> int:
    if kind == _BITMAP:
        return int.from_bytes(reader.take(_BITMAP_BYTES), "little")
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
