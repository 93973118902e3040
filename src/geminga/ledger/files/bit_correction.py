"""Correction of single flipped bits: the checksum shows which bit is wrong.

CRC32C sums of messages that differ in one bit differ by a number that depends only on the bit's distance
from the end, and no two bits of a message shorter than 2^31 bits share it. Two flipped bits are never
mistaken for one (the code's distance is 4); bytes that are entirely wrong are, with a chance of one in
2^32 for each of their bits. The store corrects only group headers and directories, when it reads them: they
are small, have further checks, and a flip there would lose a whole group of unrelated records.
"""

from geminga.wire.checksum import crc32c

_POLYNOMIAL = 0x82F63B78  # reflected


def _step(crc: int) -> int:
    """Return the checksum difference after one more zero byte."""
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


_TABLE = [_step(byte) for byte in range(256)]
_BACK = {crc >> 24: byte for byte, crc in enumerate(_TABLE)}
_LAST_BYTE = {_TABLE[1 << bit]: bit for bit in range(8)}


def flipped_bit(data: bytes | memoryview, stored: int, seed: int = 0) -> int | None:
    """Return the bit of ``data`` to flip back so that it matches the stored checksum: byte index * 8 + bit.

    -1 if the flipped bit is in the checksum itself, so that the data is right; None if no bit is wrong, or
    more than one.
    """
    difference = crc32c(data, seed) ^ stored
    if difference.bit_count() == 1:
        return -1
    if not difference:
        return None
    for index in range(len(data) - 1, -1, -1):
        bit = _LAST_BYTE.get(difference)
        if bit is not None:
            return index * 8 + bit
        byte = _BACK[difference >> 24]
        difference = (difference ^ _TABLE[byte]) << 8 & 0xFFFFFFFF | byte
    return None


def corrected(data: bytes | memoryview, stored: int, seed: int = 0) -> bytes | None:
    """Return the data with its one flipped bit corrected; None unless exactly one bit is wrong."""
    bit = flipped_bit(data, stored, seed)
    if bit is None:
        return None
    right = bytearray(data)
    if bit >= 0:
        right[bit >> 3] ^= 1 << (bit & 7)
    return bytes(right)
