"""Fast encoding of protobuf's base-128 numbers.

`varint` looks numbers up in tables of 14 bits that fill as they are used (at most 32,768 entries of a few
bytes), so that an id of up to 28 bits costs one or two look-ups instead of a loop. They fill by blocks
of consecutive numbers: scattered small objects that are never freed would keep whole memory pages in use.
"""

from collections.abc import Callable
from functools import cache

U64_MASK = (1 << 64) - 1
_BLOCK = 256
MINUS_ONE = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
"""-1, and 2^64-1, as a varint."""


class _Table(dict[int, bytes]):
    """0..16383 to the bytes that ``encode`` returns, made on first use."""

    def __init__(self, encode: Callable[[int], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, value: int) -> bytes:
        if not 0 <= value < 16384:
            return varint(value)
        for each in range(value & -_BLOCK, (value & -_BLOCK) + _BLOCK):
            self[each] = self._encode(each)
        return self[value]


SHORT = _Table(lambda value: bytes((value,) if value < 128 else (value & 0x7F | 0x80, value >> 7)))
"""``SHORT[n]`` is the varint of ``n``: a bare look-up below 16384, any 64-bit number otherwise."""
MORE = _Table(lambda value: bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80)))
"""``MORE[n & 0x3FFF]`` are the low 14 bits of a number above 16383; the varint of ``n >> 14`` follows."""


def varint(value: int) -> bytes:
    """The varint of a number from -2^63 to 2^64-1; negative ones travel as two's complement of 64 bits."""
    if value < 0:
        value &= U64_MASK
    if value < 16384:
        return SHORT[value]
    if value < 1 << 28:
        return MORE[value & 0x3FFF] + SHORT[value >> 14]
    encoded = MORE[value & 0x3FFF] + MORE[value >> 14 & 0x3FFF]
    value >>= 28
    while value >= 16384:
        encoded += MORE[value & 0x3FFF]
        value >>= 14
    return encoded + SHORT[value]


def varints(first: int, count: int) -> list[bytes]:
    """The varints of ``count`` whole numbers from ``first`` >= 0 on, several times as fast as one by one."""
    last = first + count - 1
    if last < 16384:
        return list(map(SHORT.__getitem__, range(first, last + 1)))
    if first >> 14 != last >> 14:
        return [varint(value) for value in range(first, last + 1)]
    more, low = varint(first >> 14), first & 0x3FFF
    return [encoded + more for encoded in low_bits()[low : low + count]]


@cache
def low_bits() -> list[bytes]:
    """Return the values of `MORE` as a list; threads may compute it in parallel."""
    return [MORE[value] for value in range(16384)]


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at ``position`` and the position after it."""
    value = data[position]
    if value < 128:
        return value, position + 1
    # ``(byte - 1) << 7`` puts a byte in and takes out the "more follows" bit of the one before.
    byte = data[position + 1]
    value += (byte - 1) << 7
    if byte < 128:
        return value, position + 2
    byte = data[position + 2]
    value += (byte - 1) << 14
    if byte < 128:
        return value, position + 3
    position += 3
    shift = 21
    while True:
        byte = data[position]
        position += 1
        value += (byte - 1) << shift
        if byte < 128:
            if value > U64_MASK:
                raise ValueError("a varint exceeds 64 bits")
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a varint is longer than 10 bytes")
