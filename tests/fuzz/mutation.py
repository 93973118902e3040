"""Mutation of bytes: bit flips, odd numbers, copies, cuts and joins, drawn from a seed."""

import random
from collections.abc import Sequence

_ODD = (
    b"\0", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"[" * 2000,
    b"{", b"}", b'"', b"\\", b"-1", b"1e999", b"NaN", b"null", b"9" * 40, b"\xed\xa0\x80", b"\xc0\x80",
)  # fmt: skip
BYTES_MAX = 1 << 16


def mutated(random: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return a seed with one to eight changes."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.choice((1, 1, 2, 4, 8, 64)))
        change = random.randrange(7)
        if change == 0 and data:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        elif change == 1:
            data[at:end] = random.choice(_ODD)
        elif change == 2:
            data[at:at] = random.choice(_ODD)
        elif change == 3:
            del data[at:end]
        elif change == 4:
            data[at:at] = data[at:end]
        elif change == 5:
            other = random.choice(seeds)
            data[at:] = other[random.randrange(len(other) + 1) :]
        else:
            data[at:end] = random.randbytes(end - at)
    return bytes(data[:BYTES_MAX])
