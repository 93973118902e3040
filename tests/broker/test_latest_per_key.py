"""Selection of compaction: false batch headers, and keys that do not fit into memory."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import Any, TypeVar

import pytest

from geminga.broker import latest_per_key as survivors_module
from geminga.broker.batch_rewrite import BATCH_MESSAGES_MAX, STEP_MESSAGES, rebatched
from geminga.broker.cooperative import Steps, at_once
from geminga.broker.latest_per_key import KeptMessages, LatestPerKey
from geminga.wire.compression import compress
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.batch_model import open_batch

T = TypeVar("T")


def batch(keys: list[str], value: bytes = b"v") -> bytes:
    body = b""
    for key in keys:
        data = pb.SingleMessageMetadata(partition_key=key, payload_size=len(value)).SerializeToString()
        body += len(data).to_bytes(4, "big") + data + value
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=len(keys)
    )
    return build_entry(metadata.SerializeToString(), body)


def note(survivors: LatestPerKey, entry: bytes) -> int:
    """In how many steps."""
    steps = survivors.note(entry)
    return 1 if steps is None else 1 + sum(1 for _ in steps)


def counted(steps: Steps[T]) -> tuple[int, T]:
    """Run all steps; return their number and their result."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_broken_batches_are_kept_whole() -> None:
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
        at_once(survivors.next_pass())
        kept = survivors.kept()
        if open_batch(hostile) is None:
            assert kept == (1, 1, 1)
    assert at_once(rebatched(b"\x0e\x01not an entry", 1)) == b"\x0e\x01not an entry"


def test_keys_that_exceed_the_memory_are_processed_in_parts() -> None:
    random = Random(1)
    entries = [batch([f"k{random.randrange(5000)}" for _ in range(20)]) for _ in range(500)]
    kept = []
    for bytes_max in (1 << 30, 100_000):
        survivors = LatestPerKey(bytes_max=bytes_max, retain_null_key=False)
        while True:
            for entry in entries:
                note(survivors, entry)
            if not at_once(survivors.next_pass()):
                break
        assert (survivors.passes > 1) == (bytes_max == 100_000)
        kept.append([survivors.kept() for _ in entries])
        assert survivors.messages == 10_000
    assert kept[0] == kept[1]


def test_many_keys_are_processed_in_steps() -> None:
    """Also when a pass is over, and when half of them are left to another one."""
    keys = 20 * STEP_MESSAGES
    entries = [batch([f"k{key}" for key in range(first, first + 500)]) for first in range(0, keys, 500)]
    steps = []
    for bytes_max in (1 << 30, 1 << 20):
        survivors = LatestPerKey(bytes_max=bytes_max, retain_null_key=False)
        most = 0
        more = True
        while more:
            most = max(most, *(note(survivors, entry) for entry in entries))
            count, more = counted(survivors.next_pass())
            assert count > 50
        steps.append(most)
        assert survivors.keys == keys
        assert all(survivors.kept() == KeptMessages((1 << 500) - 1, 500, 500) for _ in entries)
    assert steps[0] < 5 < 50 < steps[1]


def crowded(count: int) -> bytes:
    """Return an entry of a few kilobytes with ``count`` messages."""
    single = pb.SingleMessageMetadata(partition_key="k", payload_size=0, sequence_id=1).SerializeToString()
    body = (len(single).to_bytes(4, "big") + single) * count
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count,
        compression=pb.ZSTD, uncompressed_size=len(body),
    )  # fmt: skip
    return build_entry(metadata.SerializeToString(), compress(pb.ZSTD, body))


def test_many_messages_in_few_bytes_are_processed_in_steps() -> None:
    entry = crowded(50 * STEP_MESSAGES)
    assert len(entry) < 10_000
    survivors = LatestPerKey(bytes_max=1 << 20, retain_null_key=False)
    assert note(survivors, entry) >= 99
    bits = (1 << 50 * STEP_MESSAGES) - 2
    assert sum(1 for _ in rebatched(entry, bits)) >= 49
    assert sum(1 for _ in rebatched(entry, bits // 3)) >= 98  # every other one
    batch = open_batch(at_once(rebatched(entry, bits)))
    assert batch is not None
    assert batch.messages == [None] + [(b"k", False)] * (50 * STEP_MESSAGES - 1)


def test_batches_of_too_many_messages_are_kept_whole() -> None:
    entry = crowded(BATCH_MESSAGES_MAX + 1)
    survivors = LatestPerKey(bytes_max=1 << 20, retain_null_key=False)
    assert note(survivors, entry) == 1
    assert survivors.closed == 1


def single(key: str, **fields: Any) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, partition_key=key, **fields
    )
    return build_entry(metadata.SerializeToString(), b"x")


def chunk(key: str, uuid: str, index: int) -> bytes:
    return single(key, uuid=uuid, chunk_id=index, num_chunks_from_msg=2, total_chunk_msg_size=2)


def test_a_key_that_is_larger_than_the_memory_takes_one_pass() -> None:
    survivors = LatestPerKey(bytes_max=1 << 20, retain_null_key=False)
    entries = [single("k" * 1_100_000)] + [single("k" * 1_100_000 + "l")] + [single("m")] * 200
    while True:
        for entry in entries:
            note(survivors, entry)
        if not at_once(survivors.next_pass()):
            break
    assert survivors.passes < 20
    assert [survivors.kept().bits for _ in entries] == [1, 1] + [0] * 199 + [1]


@pytest.mark.parametrize("bytes_max", [20_000, 1 << 30])
def test_chunked_messages_take_bounded_memory(bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivors_module, "OPEN_CHUNKS_BYTES_MAX", 4_000)
    entries = []
    for number in range(300):
        entries += [chunk(f"k{number % 100}", f"whole{number}", index) for index in (0, 1)]
        entries.append(chunk("k1", f"open{number}", 0))
    survivors = LatestPerKey(bytes_max=bytes_max, retain_null_key=False)
    while True:
        for entry in entries:
            note(survivors, entry)
            assert len(survivors._open_chunks) < 10
            if bytes_max == 20_000:
                assert len(survivors._chunks) + sum(map(len, survivors._tables)) < 150
        if not at_once(survivors.next_pass()):
            break
    bits = [survivors.kept().bits for _ in entries]
    assert bits == [0, 0, 1] * 200 + [1, 1, 1] * 100


def test_a_chunked_message_that_was_open_for_long_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivors_module, "OPEN_CHUNKS_BYTES_MAX", 4_000)
    entries = [chunk("k", "slow", 0), *(chunk("l", f"open{n}", 0) for n in range(50)), chunk("k", "slow", 1)]
    survivors = LatestPerKey(bytes_max=1 << 30, retain_null_key=False)
    for entry in entries:
        note(survivors, entry)
    at_once(survivors.next_pass())
    assert all(survivors.kept().bits for _ in entries)


def left_of(entries: list[bytes], **options: Any) -> list[bytes]:
    """Return the entries that a compaction writes."""
    survivors = LatestPerKey(bytes_max=1 << 20, retain_null_key=False, **options)
    for entry in entries:
        note(survivors, entry)
    assert not at_once(survivors.next_pass())
    found = []
    for entry in entries:
        kept = survivors.kept()
        if kept.staying:
            found.append(entry if kept.staying == kept.messages else at_once(rebatched(entry, kept.bits)))
    assert survivors.is_over
    return found


def assembled(entries: list[bytes]) -> dict[str, list[bytes]]:
    """The newest message of each key, as a client puts its chunks together."""
    parts: dict[str, list[bytes]] = {}
    newest = {}
    for entry in entries:
        parsed = parse_entry(entry)
        metadata, uuid = parsed.metadata, parsed.metadata.uuid
        if not metadata.chunk_id:
            parts[uuid] = []
        found = parts.get(uuid)
        if found is None or metadata.chunk_id > len(found):
            parts.pop(uuid, None)
        elif metadata.chunk_id == len(found):
            found.append(bytes(parsed.payload))
            if len(found) == metadata.num_chunks_from_msg:
                newest[metadata.partition_key] = parts.pop(uuid)
    return newest


def test_a_chunked_message_that_is_sent_again_stays_readable() -> None:
    """After a lost connection the client sends chunks a second time: those are no newer message."""
    whole = [chunk("k", "u", index) for index in (0, 1)]
    assert left_of([*whole, chunk("k", "u", 1)]) == whole
    assert left_of([whole[0], *whole]) == whole
    older = [chunk("k", "older", index) for index in (0, 1)]
    assert left_of([*older, chunk("k", "u", 1)]) == older


def test_clients_assemble_the_same_messages_after_compaction() -> None:
    """Chunks of several messages interleaved, repeated or missing; compaction runs twice."""
    random = Random(8)
    for _ in range(300):
        entries: list[bytes] = []
        senders = []
        for number in range(6):
            last = random.choice([2, 3])
            indexes = list(range(last))
            for _ in range(random.choice([0, 0, 1, 2])):
                start = random.randrange(last)
                indexes += range(start, last)
            if random.random() < 0.3:
                del indexes[random.randrange(len(indexes))]
            senders.append((f"k{number % 2}", f"u{number}", last, indexes))
        while any(indexes for *_, indexes in senders):
            key, uuid, last, indexes = random.choice([each for each in senders if each[3]])
            fields = {"chunk_id": indexes.pop(0), "num_chunks_from_msg": last, "total_chunk_msg_size": last}
            metadata = pb.MessageMetadata(
                producer_name="p", sequence_id=0, publish_time=1, partition_key=key, uuid=uuid, **fields
            )
            entries.append(build_entry(metadata.SerializeToString(), b"%d" % len(entries)))
        cut = random.randrange(len(entries) + 1)
        left = left_of(left_of(entries[:cut]) + entries[cut:])
        assert assembled(left) == assembled(entries)


def test_unreadable_entries_are_kept_whole_and_do_not_stop_compaction() -> None:
    """The metadata of a single message may hold anything where only protobuf looks."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()
    hostile = build_entry(metadata + b"\x22\x02\xff\xff\x32\x01k", b"")
    deletes = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key="k")
    deletion = build_entry(deletes.SerializeToString(), b"")
    assert left_of([single("k"), hostile, single("l")]) == [single("k"), hostile, single("l")]
    assert left_of([single("k"), hostile, deletion]) == [hostile, deletion]


def test_keys_that_are_not_text_are_distinguished() -> None:
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


def test_entries_of_any_sizes_take_little_memory() -> None:
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
    at_once(survivors.next_pass())
    assert [survivors.kept().messages for _ in range(10_000)] == [1, 2] * 5_000
