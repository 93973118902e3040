"""Key hashes and Key_Shared slots against the recorded values of the Java and C++ clients."""

import csv
import json
import sys

import pytest

from geminga.wire import hashing


@pytest.fixture(scope="module")
def rows(vectors):
    with open(vectors / "hash_vectors.tsv", encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_all_vectors(rows):
    assert len(rows) == 44
    for row in rows:
        key, data = json.loads(row["key_json"]), bytes.fromhex(row["utf8_hex"])
        assert key.encode() == data
        assert hashing.java_string_hash(key) == int(row["java_string_hash"]), key
        assert hashing.murmur3_32(data) == int(row["murmur3_32"]), key
        assert hashing.PARTITION_HASHES["BoostHash"](key) == int(row["cpp_boost_hash"]), key
        assert hashing.consistent_slot(data) == int(row["sticky_hash_consistent_1_65535"]), key
        assert hashing.range_slot(data) == int(row["sticky_hash_auto_split"]), key
        assert hashing.range_slot(data) == int(row["sticky_hash_sticky_ranges"]), key


def test_partitions(rows):
    for row in rows:
        key = json.loads(row["key_json"])
        for partitions in (3, 10):
            java = hashing.partition_of(key, partitions, "JavaStringHash")
            murmur = hashing.partition_of(key, partitions, "Murmur3_32Hash")
            assert java == int(row[f"java_mod{partitions}"])
            assert murmur == int(row[f"murmur_mod{partitions}"])
            boost = hashing.partition_of(key, partitions, "BoostHash")
            assert boost == int(row["cpp_boost_hash"]) % partitions


def test_long_keys_are_not_remembered():
    long = "é" * (hashing.REMEMBERED_KEY_SIZE_MAX + 1)
    for key, hashed in (
        (long, hashing.java_string_hash), (long.encode(), hashing.murmur3_32),
        (long, hashing.PARTITION_HASHES["BoostHash"]),
    ):  # fmt: skip
        before = sys.getrefcount(key)
        hashed(key)
        assert sys.getrefcount(key) == before


def test_java_hash_of_keys_of_any_length():
    for size in (0, 1, 2, 127, 128, 129, 500):
        key = ("é日a\U0001f600" * size)[:size]
        expected = 0
        for unit in memoryview(key.encode("utf-16-le")).cast("H"):
            expected = (31 * expected + unit) & 0xFFFFFFFF
        assert hashing.java_string_hash(key) == expected & 0x7FFFFFFF


def test_points_of_a_ring_are_the_hashes_of_their_text():
    for size in range(12):
        prefix = "consumér-1\0".encode()[:size]
        texts = [prefix + str(number).encode() for number in range(1100)]
        assert hashing.murmur3_32_numbered(prefix, 1100) == list(map(hashing.murmur3_32, texts))
        assert hashing.consistent_points(prefix, 1100) == list(map(hashing.consistent_slot, texts))


def test_points_of_a_ring_take_the_place_of_no_key():
    before = hashing._murmur_remembered.cache_info()
    hashing.consistent_points(b"consumer", 100)
    assert hashing._murmur_remembered.cache_info() == before


def test_any_buffer_is_hashed():
    for data in (b"key-1", b"k" * 300):
        assert hashing.murmur3_32(memoryview(data)) == hashing.murmur3_32(bytearray(data))


def test_keys_that_are_no_unicode_text_are_hashed():
    for hash_of in hashing.PARTITION_HASHES.values():
        assert 0 <= hash_of("\ud800") < 1 << 31


def test_a_slot_takes_few_steps_of_python_for_a_key_of_any_length(monkeypatch):
    sizes = []
    monkeypatch.setattr(hashing, "murmur3_32", lambda key: sizes.append(len(key)) or 7)
    for slot_of in (hashing.consistent_slot, hashing.range_slot):
        slot_of(bytes(hashing.STICKY_KEY_BYTES_MAX))
        slot_of(bytes(5_000_000))
    assert max(sizes) == hashing.STICKY_KEY_BYTES_MAX


def test_slots_are_never_zero(monkeypatch):
    monkeypatch.setattr(hashing, "murmur3_32", lambda data: 65536 * 3)
    assert hashing.range_slot(b"") == 1
    monkeypatch.setattr(hashing, "murmur3_32", lambda data: 65535 * 3)
    assert hashing.consistent_slot(b"") == 1
