"""What compaction keeps: batches that lie, and keys that do not fit into memory."""

from __future__ import annotations

from random import Random

from geminga.broker.survivors import Survivors, open_batch, rebatched
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb


def batch(keys: list[str], value: bytes = b"v") -> bytes:
    body = b""
    for key in keys:
        data = pb.SingleMessageMetadata(partition_key=key, payload_size=len(value)).SerializeToString()
        body += len(data).to_bytes(4, "big") + data + value
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=len(keys)
    )
    return build_entry(metadata.SerializeToString(), body)


def test_messages_of_all_sizes_are_found() -> None:
    for size in (0, 1, 126, 127, 128, 300, 16_383, 16_384, 70_000):
        for sequence_id in (None, 5):
            for key in ("k", "k" * 127, "k" * 128, ""):
                single = pb.SingleMessageMetadata(partition_key=key, payload_size=size)
                if sequence_id is not None:
                    single.sequence_id = sequence_id
                data = single.SerializeToString()
                body = (len(data).to_bytes(4, "big") + data + bytes(size)) * 2
                metadata = pb.MessageMetadata(
                    producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2
                )
                opened = open_batch(build_entry(metadata.SerializeToString(), body))
                assert opened is not None
                assert opened.messages == [(key.encode(), size > 0)] * 2
                assert opened.starts == [0, len(body) // 2, len(body)]


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
        survivors = Survivors(bytes_max=1 << 20, retain_null_key=False)
        survivors.note(hostile)
        survivors.next_pass()
        left = survivors.kept(hostile)[0]
        if open_batch(hostile) is None:
            assert left == hostile
    assert rebatched(b"\x0e\x01not an entry", 1) == b"\x0e\x01not an entry"


def test_keys_that_do_not_fit_are_done_in_parts() -> None:
    random = Random(1)
    entries = [batch([f"k{random.randrange(5000)}" for _ in range(20)]) for _ in range(500)]
    kept = []
    for bytes_max in (1 << 30, 100_000):
        survivors = Survivors(bytes_max=bytes_max, retain_null_key=False)
        while True:
            for entry in entries:
                survivors.note(entry)
            if not survivors.next_pass():
                break
        assert (survivors.passes > 1) == (bytes_max == 100_000)
        kept.append([survivors.kept(entry) for entry in entries])
        assert survivors.messages == 10_000
    assert kept[0] == kept[1]
