"""CRC32C against the values of the Java client (algorithms.md section 13)."""

import crc32c as package
import pytest

from geminga.wire import checksum
from geminga.wire.checksum import crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x00000000), (b"a", 0xC1D04330), (b"123456789", 0xE3069283), (b"hello world", 0xC99465AA),
        (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E),
    ],
)  # fmt: skip
def test_known_values(data, expected):
    assert crc32c(data) == expected
    assert crc32c(bytearray(data)) == expected
    assert crc32c(memoryview(b"x" + data)[1:]) == expected


def test_a_checksum_of_two_pieces_equals_that_of_the_whole():
    data = bytes(range(256)) * 300
    assert crc32c(data[1000:], crc32c(data[:1000])) == crc32c(data)


def test_the_function_is_that_of_the_package_and_stands_in_for_it(monkeypatch):
    data = bytes(range(256)) * 9
    assert checksum.crc32c(data, 7) == package.crc32c(data, 7)
    assert checksum.crc32c(data, 7, 0) == package.crc32c(data, 7)
    # If the package has another layout, its public function is used.
    monkeypatch.setattr(checksum.PathFinder, "find_spec", lambda *_: None)
    assert checksum._c_function() is package.crc32c
