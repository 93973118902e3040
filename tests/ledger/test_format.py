import contextlib
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.ledger.files import format as layout
from geminga.wire.checksum import crc32c

SEED = 12345
POSITION = (3 << 32) | 64


def encode(payloads: list[bytes]) -> bytes:
    directory = layout.Directory(
        bytes([layout.RecordKind.ENTRY] * len(payloads)),
        array("I", map(len, payloads)),
        array("I", map(crc32c, payloads)),
        array("Q", [7] * len(payloads)),
        array("Q", range(len(payloads))),
    )
    head = layout.encode_group(
        directory,
        position=POSITION,
        sequence=9,
        synced_through=64,
        payload_bytes=sum(map(len, payloads)),
        seed=SEED,
    )
    return head + b"".join(payloads)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20))
def test_groups_are_decoded(payloads):
    data = encode(payloads)
    header = layout.decode_group_header(data[: layout.GROUP_HEADER_BYTES], POSITION, SEED)
    assert (header.sequence, header.synced_through, header.records) == (9, 64, len(payloads))
    assert header.end == POSITION + len(data)
    start = layout.GROUP_HEADER_BYTES
    directory = layout.decode_directory(header, data[start : start + header.directory_bytes])
    assert directory is not None
    for position, size, payload, crc in zip(
        directory.positions(header.payload_position), directory.sizes, payloads, directory.crcs, strict=True
    ):
        at = position - POSITION
        assert data[at : at + size] == payload
        assert crc == crc32c(payload)


def test_more_wrong_bits_in_header_or_directory_are_rejected():
    data = encode([b"one", b"two", b""])
    chance = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(data[:-6])
        for offset in chance.sample(range(len(damaged)), chance.randrange(2, 6)):
            damaged[offset] ^= chance.randrange(1, 256)
        start = layout.GROUP_HEADER_BYTES
        header = layout.decode_group_header(bytes(damaged[:start]), POSITION, SEED)
        if header is None:
            header = layout.mend_group_header(bytes(damaged[:start]), POSITION, SEED)
        if header is None:
            continue
        directory = layout.decode_directory(header, bytes(damaged[start : start + header.directory_bytes]))
        assert directory is None or (header.was_mended and directory.was_mended)


def test_groups_of_another_position_or_store_are_rejected():
    head = encode([b"x"])[: layout.GROUP_HEADER_BYTES]
    assert layout.decode_group_header(head, POSITION, SEED) is not None
    assert layout.decode_group_header(head, POSITION + 64, SEED) is None
    assert layout.decode_group_header(head, POSITION, SEED + 1) is None
    assert layout.decode_group_header(head[:-1], POSITION, SEED) is None


def test_superblock_file_header_and_mark_are_decoded():
    store_id = bytes(range(16))
    assert layout.decode_superblock(layout.encode_superblock(store_id)) == (layout.FORMAT_VERSION, store_id)
    assert layout.decode_file_header(layout.encode_file_header(7, store_id)) == (7, store_id)
    assert layout.decode_mark(layout.encode_mark(99, 3, SEED), SEED) == (99, 3)
    assert layout.decode_mark(layout.encode_mark(99, 3, SEED), SEED + 1) is None
    for data, decode in (
        (layout.encode_superblock(store_id), layout.decode_superblock),
        (layout.encode_file_header(7, store_id), layout.decode_file_header),
        (layout.encode_mark(99, 3, SEED), lambda data: layout.decode_mark(data, SEED)),
    ):
        for offset in range(len(data)):
            damaged = bytearray(data)
            damaged[offset] ^= 0x10
            assert decode(bytes(damaged)) is None
        assert decode(data[:-1]) is None


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("log-0000000012", 12), ("log-12", None), ("log-00000000012", None), ("log-000000001x", None),
        ("log-00000000१२", None), ("xlog-0000000012", None), ("synced", None),
    ],
)  # fmt: skip
def test_file_names_are_formatted_and_parsed(name, number):
    assert layout.file_number(name) == number
    if number is not None:
        assert layout.file_name(number) == name


@given(st.lists(st.binary(max_size=30)))
def test_lists_are_decoded(items):
    data = layout.encode_list(items)
    assert layout.decode_list(data) == items
    for cut in range(1, min(len(data), 5)):
        with contextlib.suppress(ValueError):
            assert layout.decode_list(data[:-cut]) != items


@given(st.binary(max_size=9), st.binary(max_size=30), st.lists(st.binary(max_size=9)))
def test_values_are_decoded(key, base, deltas):
    data = layout.encode_value(key, base, deltas)
    assert data.startswith(key)
    assert layout.decode_value(data[len(key) :]) == (base, deltas)


def test_the_format_on_disk_is_unchanged():
    """Later versions must read what this one wrote: a change here needs a new format version."""
    assert layout.FORMAT_VERSION == 1
    assert layout.encode_superblock(bytes(16)).hex() == (
        "47454d494e47412d53544f52450d0a1a01000000" + "00" * 16 + "34840517"
    )
    assert encode([b"ab", b"c"]).hex() == EXPECTED_GROUP


EXPECTED_GROUP = (
    "f547454d475250fa0200000003000000400000000300000009000000000000004000000000000000e852232052c5c8b7"
    "010102000000010000003629a2e2c733eb20070000000000000007000000000000000000000000000000010000000000"
    "0000616263"
)
