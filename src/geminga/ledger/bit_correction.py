"""Putting one flipped bit right: a checksum tells not only that a bit is wrong but also which.

CRC32C sums of messages that differ in one bit differ by a number that belongs to the bit's distance from
the end alone, and no two bits of a message shorter than 2^31 bits share it. Two flipped bits are never
taken for one (the code's distance is 4); bytes that are wrong altogether are, with a chance of one in
2^32 for each bit that they have. Group headers and directories are small, are checked in other ways too,
and a flip in one would take out a whole group of records that belong to others: there it is worth it.
Entries and values are corrected only by ``geminga store repair``, when somebody asked for it.
"""

from __future__ import annotations

from geminga.wire.checksum import crc32c

_POLYNOMIAL = 0x82F63B78  # reflected


def _step(crc: int) -> int:
    """The sum of a difference one zero byte later."""
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


_TABLE = [_step(byte) for byte in range(256)]
_BACK = {crc >> 24: byte for byte, crc in enumerate(_TABLE)}
_LAST_BYTE = {_TABLE[1 << bit]: bit for bit in range(8)}


def flipped_bit(data: bytes | memoryview, stored: int, seed: int = 0) -> int | None:
    """Which bit of ``data``, flipped back, gives the stored checksum: byte index * 8 + bit.

    -1 when the flipped bit is one of the checksum's own, so that the data is right; None when more than
    one bit is wrong, or none.
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
    """The data with its one flipped bit put right; None when it is not one bit that is wrong."""
    bit = flipped_bit(data, stored, seed)
    if bit is None:
        return None
    right = bytearray(data)
    if bit >= 0:
        right[bit >> 3] ^= 1 << (bit & 7)
    return bytes(right)
