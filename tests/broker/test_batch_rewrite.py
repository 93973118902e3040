"""Batches as compaction sees them, held to what protobuf alone reads in them."""

from random import Random
from typing import Any

from geminga.broker.entries.batch_rewrite import OpenedBatch, opened
from geminga.broker.runtime.cooperative import at_once
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.batch_model import Keyed, open_batch
from tests.support.entries import batch_entry, framed

CODECS = (pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY)


def message(random: Random, size: int | None = None) -> bytes:
    single = pb.SingleMessageMetadata(
        payload_size=random.choice([0, 1, 5, 127, 128, 300, 16_384]) if size is None else size
    )
    if random.random() < 0.8:
        single.partition_key = random.choice(["", "k", "ключ", "k" * 127, "k" * 128, f"k{random.random()}"])
    if random.random() < 0.2:
        single.compacted_out = random.random() < 0.7
    if random.random() < 0.3:
        single.event_time = random.randrange(1 << 40)
    if random.random() < 0.2:
        single.properties.add(key="p", value="v" * random.choice([0, 200]))
    if random.random() < 0.5:
        single.sequence_id = random.randrange(1 << 20)
    if random.random() < 0.1:
        single.null_value = True
    return framed(single.SerializeToString(), random.randbytes(single.payload_size))


def entry_of(messages: list[bytes], *, count: int | None = None, compression: Any = pb.NONE) -> bytes:
    return batch_entry(messages, compression, num_messages_in_batch=len(messages) if count is None else count)


def messages_of(batch: OpenedBatch) -> list[Keyed | None]:
    """As the model has them."""
    found: list[Keyed | None] = [None if key is None else (key, True) for key in batch.keys]
    for index, key in enumerate(batch.keys):
        if batch.is_emptied[index]:
            assert key is not None
            found[index] = key, False
    for index in batch.unkeyed:
        assert batch.keys[index] is None
        size = batch.starts[index + 1] - batch.starts[index]
        metadata_size = int.from_bytes(batch.body[batch.starts[index] :][:4], "big")
        found[index] = None, size > 4 + metadata_size
    return found


def check(entry: bytes) -> bool:
    """As the model reads it; whether it can be read."""
    found, expected = at_once(opened(entry)), open_batch(entry)
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return False
    assert messages_of(found) == expected.messages
    assert list(found.starts) == expected.starts
    return True


def test_messages_are_found_as_protobuf_finds_them():
    random = Random(5)
    for number in range(300):
        messages = [message(random) for _ in range(random.choice([1, 2, 30]))]
        assert check(entry_of(messages, compression=CODECS[number % 5]))


def test_damaged_batches_are_detected_as_by_protobuf():
    random = Random(6)
    read = 0
    for _ in range(4_000):
        whole = b"".join(message(random, size=random.choice([0, 3, 130])) for _ in range(3))
        broken = bytearray(whole)
        for _ in range(random.choice([1, 2])):
            broken[random.randrange(len(broken))] = random.randrange(256)
        entry = entry_of([bytes(broken[: random.choice([len(broken), random.randrange(len(broken) + 1)])])])
        metadata = parse_entry(entry).metadata
        metadata.num_messages_in_batch = 3
        entry = build_entry(metadata.SerializeToString(), bytes(parse_entry(entry).payload))
        read += check(entry)
    assert read > 500
