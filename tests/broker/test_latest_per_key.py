"""Selection of compaction: false batch headers, and keys that do not fit into memory."""

import tracemalloc
from random import Random
from typing import Any

import pytest

from geminga.broker.entries.batch_rewrite import BATCH_MESSAGES_MAX, STEP_MESSAGES, rebatched
from geminga.broker.entries.latest_per_key import KeptMessages, LatestPerKey, TooManyKeys
from geminga.broker.runtime.cooperative import at_once
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.batch_model import open_batch
from tests.support.entries import batch_entry, in_batch, single_entry


def batch(keys: list[str], value: bytes = b"v") -> bytes:
    return batch_entry([in_batch(value, partition_key=key) for key in keys])


def note(survivors: LatestPerKey, entry: bytes) -> int:
    """In how many steps."""
    steps = survivors.note(entry)
    return 1 if steps is None else 1 + sum(1 for _ in steps)


def test_broken_batches_are_kept_whole():
    random = Random(3)
    entry = batch(["a", "b", "c"])
    payload = bytes(parse_entry(entry).payload)
    for _ in range(3000):
        broken = bytearray(payload)
        for _ in range(random.choice([1, 2])):
            broken[random.randrange(len(broken))] = random.randrange(256)
        broken = broken[: random.choice([len(broken), random.randrange(len(broken) + 1)])]
        metadata = parse_entry(entry).metadata
        metadata.num_messages_in_batch = random.choice([0, 1, 3, 3, 3, 2**31 - 1])
        metadata.compression = random.choice([pb.NONE, pb.NONE, pb.NONE, pb.LZ4, pb.ZSTD])
        metadata.uncompressed_size = random.choice([0, len(payload), 2**32 - 1])
        hostile = build_entry(metadata.SerializeToString(), bytes(broken))
        survivors = LatestPerKey(bytes_max=1 << 20, retain_null_key=False)
        note(survivors, hostile)
        at_once(survivors.end())
        kept = survivors.kept()
        if open_batch(hostile) is None:
            assert kept == (1, 1, 1)
    assert at_once(rebatched(b"\x0e\x01not an entry", 1)) == b"\x0e\x01not an entry"


def test_keys_that_exceed_the_memory_are_refused():
    survivors = LatestPerKey(bytes_max=100_000, retain_null_key=False)
    for number in range(600):
        note(survivors, batch([f"k{number}"]))
    with pytest.raises(TooManyKeys, match="compaction_memory_bytes_max"):
        note(survivors, batch([f"l{number}" for number in range(100)]))


def test_many_keys_are_processed_in_steps():
    keys = 20 * STEP_MESSAGES
    entries = [batch([f"k{key}" for key in range(first, first + 500)]) for first in range(0, keys, 500)]
    survivors = LatestPerKey(bytes_max=1 << 30, retain_null_key=False)
    assert max(note(survivors, entry) for entry in entries) < 5
    assert sum(1 for _ in survivors.end()) == 20
    assert all(survivors.kept() == KeptMessages((1 << 500) - 1, 500, 500) for _ in entries)


def crowded(count: int) -> bytes:
    """Return an entry of a few kilobytes with ``count`` messages."""
    return batch_entry([in_batch(partition_key="k", sequence_id=1)] * count, pb.ZSTD)


def test_many_messages_in_few_bytes_are_processed_in_steps():
    entry = crowded(50 * STEP_MESSAGES)
    assert len(entry) < 10_000
    survivors = LatestPerKey(bytes_max=1 << 20, retain_null_key=False)
    assert note(survivors, entry) >= 99
    bits = (1 << 50 * STEP_MESSAGES) - 2
    assert sum(1 for _ in rebatched(entry, bits)) >= 49
    assert sum(1 for _ in rebatched(entry, bits // 3)) >= 98  # every other one
    batch = open_batch(at_once(rebatched(entry, bits)))
    assert batch.messages == [None] + [(b"k", False)] * (50 * STEP_MESSAGES - 1)


def test_batches_of_too_many_messages_are_kept_whole():
    entry = crowded(BATCH_MESSAGES_MAX + 1)
    survivors = LatestPerKey(bytes_max=1 << 20, retain_null_key=False)
    assert note(survivors, entry) == 1
    assert survivors.closed == 1


def single(key: str, **fields: Any) -> bytes:
    return single_entry(b"x", partition_key=key, **fields)


def chunk(key: str, uuid: str, index: int) -> bytes:
    return single(key, uuid=uuid, chunk_id=index, num_chunks_from_msg=2, total_chunk_msg_size=2)


def left_of(entries: list[bytes], **options: Any) -> list[bytes]:
    """Return the entries that a compaction writes."""
    survivors = LatestPerKey(bytes_max=1 << 20, retain_null_key=False, **options)
    for entry in entries:
        note(survivors, entry)
    at_once(survivors.end())
    found = []
    for entry in entries:
        kept = survivors.kept()
        if kept.staying:
            found.append(entry if kept.staying == kept.messages else at_once(rebatched(entry, kept.bits)))
    assert survivors.is_over
    return found


def test_chunks_of_large_messages_are_kept():
    """A key that is deleted behind them stays deleted."""
    whole = [chunk("k", "u", index) for index in (0, 1)]
    deletion = single_entry(partition_key="k")
    assert left_of([single("k"), *whole, single("l"), single("l")]) == [single("k"), *whole, single("l")]
    assert left_of([single("k"), *whole, deletion]) == [*whole, deletion]


def test_unreadable_entries_are_kept_whole_and_do_not_stop_compaction():
    """The metadata of a single message may hold anything where only protobuf looks."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()
    hostile = build_entry(metadata + b"\x22\x02\xff\xff\x32\x01k", b"")
    deletion = single_entry(partition_key="k")
    assert left_of([single("k"), hostile, single("l")]) == [single("k"), hostile, single("l")]
    assert left_of([single("k"), hostile, deletion]) == [hostile, deletion]


def test_keys_that_are_not_text_are_distinguished():
    """C++ and Go take any bytes for a key; protobuf's Python does not, so the entries are made by hand."""
    plain = single("xyz")

    def keyed(key: bytes, value: bytes) -> bytes:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()
        return build_entry(metadata + b"\x32\x03" + key, value)

    def in_batch(key: bytes, value: bytes) -> bytes:
        return batch(["xyz"], value).replace(b"xyz", key)

    assert left_of([plain]) == [plain]
    one, other = b"\xff\xfe\xfd", b"\xff\xfe\xfc"
    both = [keyed(one, b"1"), keyed(other, b"2")]
    assert left_of(both) == both
    assert left_of([in_batch(one, b"1"), keyed(one, b"2")]) == [keyed(one, b"2")]
    assert left_of([in_batch(one, b"1"), keyed(other, b"2"), keyed(one, b"")]) == [keyed(other, b"2")]


def test_entries_of_any_sizes_take_little_memory():
    survivors = LatestPerKey(bytes_max=1 << 20, retain_null_key=False)
    entries = [batch(["a"]), batch(["a", "b"])]
    tracemalloc.start()
    try:
        for _ in range(5_000):
            for entry in entries:
                note(survivors, entry)
        assert tracemalloc.get_traced_memory()[0] < 10_000 * 20
    finally:
        tracemalloc.stop()
    at_once(survivors.end())
    assert [survivors.kept().messages for _ in range(10_000)] == [1, 2] * 5_000
