"""Columns of whole numbers: compact in memory and on disk, with cheap sums.

A column stores its least number, and each number's difference to it in as few bytes as the largest needs;
none if all numbers are equal. Entry sizes of one producer take a byte each, the message counts of unbatched
entries nothing.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import compress

from geminga.broker.entries.records import RecordReader, put_varint

_TYPECODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""The array type code by bytes per number."""
_COLUMN_OVERHEAD_BYTES = 160
_BIT_VALUES = bytes.maketrans(b"01", b"\x00\x01")


class IntegerColumn:
    """Immutable column of non-negative numbers of up to 64 bits."""

    __slots__ = ("_above", "_count", "_least")

    def __init__(self, numbers: Sequence[int]) -> None:
        self._count = len(numbers)
        self._least = least = min(numbers, default=0)
        self._above: array[int] | None = None
        farthest = max(numbers, default=0) - least
        if farthest:
            width = next(width for width in _TYPECODES if farthest < 1 << 8 * width)
            self._above = array(_TYPECODES[width], [number - least for number in numbers])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        """Return the number at ``0 <= index < len``."""
        return self._least if self._above is None else self._least + self._above[index]

    def part(self, start: int, stop: int) -> list[int]:
        """Return the numbers at ``start <= index < stop``."""
        if self._above is None:
            return [self._least] * (stop - start)
        return [self._least + number for number in self._above[start:stop]]

    def __iter__(self) -> Iterator[int]:
        if self._above is None:
            return iter((self._least,) * self._count)
        return iter([self._least + number for number in self._above])

    def sum(self, start: int, stop: int) -> int:
        """Return the sum of the numbers at ``start <= index < stop``."""
        total = self._least * (stop - start)
        return total if self._above is None else total + sum(self._above[start:stop])

    def all_are(self, number: int, start: int, stop: int) -> bool:
        """Return whether the numbers at ``start <= index < stop`` all equal ``number``."""
        if self._above is None:
            return self._least == number
        above = number - self._least
        return above >= 0 and self._above[start:stop].count(above) == stop - start

    def sum_where(self, bits: int) -> int:
        """Return the sum of the numbers at the indexes set in ``bits``; the lowest bit is index 0."""
        total = self._least * bits.bit_count()
        if self._above is None or not bits:
            return total
        chosen = f"{bits:b}".encode().translate(_BIT_VALUES)[::-1]
        return total + sum(compress(self._above, chosen))

    @property
    def held_bytes(self) -> int:
        """Return the approximate memory in bytes."""
        above = self._above
        return _COLUMN_OVERHEAD_BYTES + (0 if above is None else len(above) * above.itemsize)

    def encode(self, out: bytearray) -> None:
        """Append the column's compact form."""
        put_varint(out, self._count)
        put_varint(out, self._least)
        if self._above is None:
            out.append(0)
            return
        out.append(self._above.itemsize)
        out += _little_endian(self._above).tobytes()

    @staticmethod
    def decode(reader: RecordReader) -> IntegerColumn:
        """Parse the compact form; raises `StoreDamaged`."""
        column = IntegerColumn(())
        column._count = reader.varint()
        column._least = reader.varint()
        width = reader.varint()
        if column._count > sys.maxsize:
            raise reader.damaged(f"a column of {column._count} numbers")
        if width:
            if width not in _TYPECODES:
                raise reader.damaged(f"a column of {width} bytes a number")
            above = array(_TYPECODES[width])
            above.frombytes(reader.take(column._count * width))
            column._above = _little_endian(above)
        return column


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return numbers
    swapped = array(numbers.typecode, numbers)
    swapped.byteswap()
    return swapped
