"""One flipped bit is found at any position; two never pass for one."""

import random

import pytest

from geminga.ledger.files.bit_correction import corrected, flipped_bit
from geminga.wire.checksum import crc32c


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 52, 200, 1000])
def test_every_flipped_bit_is_found(size):
    data = random.Random(size).randbytes(size)
    for seed in (0, 0x12345678) if size <= 200 else (0x12345678,):
        stored = crc32c(data, seed)
        assert flipped_bit(data, stored, seed) is None, "nothing is wrong"
        for bit in range(size * 8):
            wrong = bytearray(data)
            wrong[bit >> 3] ^= 1 << (bit & 7)
            assert flipped_bit(bytes(wrong), stored, seed) == bit
            if size <= 200 or not bit % 7:
                assert corrected(memoryview(wrong), stored, seed) == data


def test_a_flipped_bit_of_the_checksum_leaves_the_data_as_it_is():
    for bit in range(32):
        assert flipped_bit(b"some bytes", crc32c(b"some bytes") ^ 1 << bit) == -1
        assert corrected(b"some bytes", crc32c(b"some bytes") ^ 1 << bit) == b"some bytes"


def test_two_flipped_bits_are_never_taken_for_one():
    data = random.Random(1).randbytes(40)
    stored = crc32c(data)
    for first in range(320):
        for second in range(first):
            wrong = bytearray(data)
            wrong[first >> 3] ^= 1 << (first & 7)
            wrong[second >> 3] ^= 1 << (second & 7)
            assert corrected(wrong, stored) is None


def test_entirely_different_bytes_are_not_corrected():
    chance = random.Random(2)
    stored = crc32c(chance.randbytes(300))
    assert all(corrected(chance.randbytes(300), stored) is None for _ in range(300))
    assert corrected(b"", 5) is None
