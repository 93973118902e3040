"""Batches: recorded ones, the hand-written writer against protobuf, and lying ones."""

from typing import Any

import pytest
from entries import encode_single_metadata, framed
from hypothesis import given
from hypothesis import strategies as st
from interpreter import run_python

from geminga.errors import CorruptPayload
from geminga.producer.message import simple_message
from geminga.wire import batch, cache, compression
from geminga.wire.batch import (
    SingleMessage,
    append_full_message,
    append_message,
    decode_batch,
    encode_plain_batch,
    encode_rich_batch,
    metadata_fields,
)
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

FIELDS = (
    "payload", "sequence_id", "partition_key", "partition_key_b64", "ordering_key", "properties",
    "event_time", "null_value", "compacted_out", "null_partition_key",
)  # fmt: skip


def content(message: SingleMessage) -> dict[str, Any]:
    return {name: getattr(message, name) for name in FIELDS}


def expected(single: pb.SingleMessageMetadata, payload: bytes) -> dict[str, Any]:
    given = {field.name: value for field, value in single.ListFields()}
    return {
        "payload": payload,
        "sequence_id": given.get("sequence_id", -1),
        "partition_key": given.get("partition_key"),
        "partition_key_b64": single.partition_key_b64_encoded,
        "ordering_key": given.get("ordering_key"),
        "properties": {pair.key: pair.value for pair in single.properties},
        "event_time": single.event_time,
        "null_value": single.null_value,
        "compacted_out": single.compacted_out,
        "null_partition_key": single.null_partition_key,
    }


@pytest.fixture(scope="module")
def batches(recorded):
    found = []
    for record in recorded:
        if record.entry is None:
            continue
        entry = parse_entry(record.entry)
        metadata = entry.metadata
        if metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys:
            data = compression.decompress(
                metadata.compression, entry.payload, metadata.uncompressed_size, limit=1 << 23
            )
            found.append((record, data, metadata.num_messages_in_batch))
    assert len(found) == 20
    return found


# --- recorded batches ---
def test_recorded_batches_decode(batches):
    for record, data, count in batches:
        messages = decode_batch(data, count)
        assert len(messages) == count
        for message, said in zip(messages, record.decoded["batch"], strict=True):
            metadata = said["metadata"]
            properties = {pair["key"]: pair["value"] for pair in metadata.get("properties", [])}
            assert message.payload == said["payload"].encode()
            assert message.sequence_id == metadata["sequence_id"]
            assert message.partition_key == metadata.get("partition_key")
            assert message.event_time == metadata.get("event_time", 0)
            assert message.properties == properties


def test_recorded_plain_batches_are_written_by_the_fast_writers(batches):
    same = 0
    for _, data, count in batches:
        messages = decode_batch(data, count)
        first = messages[0].sequence_id
        if any(m != SingleMessage(m.payload, first + i) for i, m in enumerate(messages)):
            continue
        pieces: list[bytes] = []
        for message in messages:
            append_message(pieces, message.payload, message.sequence_id)
        assert b"".join(pieces) == data
        assert encode_plain_batch([message.payload for message in messages], first) == data
        same += 1
    assert same == 3


def one_by_one(payloads: list[bytes], first: int) -> bytes:
    pieces: list[bytes] = []
    for number, payload in enumerate(payloads, first):
        append_message(pieces, payload, number)
    return b"".join(pieces)


EDGES = [0, 1, 127, 128, 16383, 16384, 2 * 16384, 1 << 21, 1 << 28, (1 << 35) - 3, 1 << 42, (1 << 63) - 400]


@pytest.mark.parametrize("first", [max(0, edge - before) for edge in EDGES for before in (0, 1, 5, 300)])
def test_batches_over_the_edges_of_their_ids(first):
    for count in (1, 2, 5, 300):
        for payloads in ([b"x" * 130] * count, [b""] * count, [b"y" * (n % 7) for n in range(count)]):
            assert encode_plain_batch(payloads, first) == one_by_one(payloads, first)
    assert encode_plain_batch([], first) == b""


# --- reading ---
@given(st.data())
def test_messages_have_the_fields_of_their_metadata(messages_of, data):
    payloads = data.draw(st.lists(st.binary(max_size=200), max_size=5))
    pieces, wanted = [], []
    for payload in payloads:
        single = data.draw(messages_of(pb.SingleMessageMetadata))
        single.payload_size = len(payload)
        pieces.append(framed(single.SerializeToString(), payload))
        wanted.append(expected(single, payload))
    assert [content(message) for message in decode_batch(b"".join(pieces), len(payloads))] == wanted


def test_keys_and_properties_of_a_batch_are_limited():
    plain = [framed(encode_single_metadata(1, number), b"x") for number in range(100)]
    keyed = framed(encode_single_metadata(1, 1, partition_key="k" * 60), b"x")
    assert len(decode_batch(b"".join((*plain, keyed)), 101, metadata_bytes_max=100)) == 101
    with pytest.raises(CorruptPayload, match="more than 100 bytes of metadata"):
        decode_batch(keyed * 2, 2, metadata_bytes_max=100)


@given(st.lists(st.binary(max_size=300), max_size=10), st.integers(0, (1 << 63) - 1))
def test_plain_batches_round_trip(payloads, first):
    encoded = encode_plain_batch(payloads, first)
    assert encoded == one_by_one(payloads, first)
    messages = decode_batch(encoded, len(payloads))
    assert [message.payload for message in messages] == payloads
    assert [message.sequence_id for message in messages] == list(range(first, first + len(payloads)))


def test_a_plain_message_has_defaults_for_absent_fields():
    (message,) = decode_batch(encode_plain_batch([b"payload"], 9), 1)
    assert content(message) == {
        "payload": b"payload", "sequence_id": 9, "partition_key": None, "partition_key_b64": False,
        "ordering_key": None, "properties": {}, "event_time": 0, "null_value": False, "compacted_out": False,
        "null_partition_key": False,
    }  # fmt: skip


# --- lies ---
GOOD = encode_plain_batch([b"one", b"two", b"three"], 300)


@pytest.mark.parametrize("count", [-1, 0, 1, 2, 4, 5, 1000, (1 << 31) - 1])
def test_wrong_counts(count):
    with pytest.raises(CorruptPayload):
        decode_batch(GOOD, count)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (GOOD + b"\x00", "3 messages end at byte 38 of a batch of 39 bytes"),
        (framed(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"x" * 20), "no valid payload_size"),
        (framed(b"\x18\x7f", b"x" * 20), "1 messages end at byte 133 of a batch of 26 bytes"),
        (framed(b"\x12\x01k\x18\x7f", b"x" * 20), "1 messages end at byte 136 of a batch of 29 bytes"),
        (framed(b"", b"x" * 20), "message 0 has no valid payload_size"),
        (framed(b"\x40\x01", b"x" * 20), "message 0 has no valid payload_size"),
        (framed(b"\xff\xff", b"x" * 20), "metadata of message 0 is no protobuf"),
        (framed(b"\x18\x14\xff\xff", b"x" * 20), "the metadata of message 0 of 4 bytes is no SingleMessage"),
        (framed(b"\x18\x14\x18\x13", b"x" * 20), "message 0 announces several sizes"),
        (b"\xff\xff\xff\xff" + b"x" * 20, "metadata of message 0 ends at byte 4294967299 of 24"),
    ],
)
def test_batches_with_wrong_sizes_or_metadata_are_corrupt(data, words):
    with pytest.raises(CorruptPayload, match=words):
        decode_batch(data, 3 if data.startswith(GOOD) else 1)


def test_text_that_is_not_utf_8_is_read_as_java_reads_it():
    metadata = encode_single_metadata(0, partition_key="ab", properties={"cd": "ef"})
    data = framed(metadata.replace(b"ab", b"a\xff").replace(b"cd", b"\xffd").replace(b"ef", b"\xff\xfe"), b"")
    (message,) = decode_batch(data, 1)
    assert message.partition_key == "a�"
    assert message.properties == {"�d": "��"}


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=300),
            st.sampled_from([None, "k", "key-1", "ключ", "k" * 127, "k" * 300]),
            st.sampled_from([(), (("a", "b"),), (("a", "ä"), ("", "v" * 200))]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([0, 100, 127, 16_370, 1 << 21, (1 << 28) - 10, 1 << 40]),
)
def test_a_batch_with_keys_equals_the_one_encoded_message_by_message(messages, first):
    pieces: list[bytes] = []
    for number, (payload, key, properties) in enumerate(messages, first):
        metadata = encode_single_metadata(
            len(payload), number, partition_key=key, properties=dict(properties)
        )
        append_full_message(pieces, payload, metadata)
    payloads = [payload for payload, _, _ in messages]
    simple = [simple_message(b"", key, properties) for _, key, properties in messages]
    fields = metadata_fields(b"\x0a", b"\x12", simple)
    assert encode_rich_batch(payloads, fields, first) == b"".join(pieces)


def test_fields_are_cached_within_bounds():
    for number in range(40_000):
        message = simple_message(b"", f"key-{number}", (("n", str(number)),))
        metadata_fields(b"\x0a", b"\x12", [message])
    metadata_fields(b"\x0a", b"\x12", [simple_message(b"", "k" * 1000)])
    for kept in (batch._KEYS, batch._PROPERTIES):
        assert 0 < len(kept) <= cache.ENTRIES_MAX
    assert "k" * 1000 not in batch._KEYS


def test_batches_that_several_threads_write_at_once():
    """Test also the first calls, which create the shared tables: in a separate process, with forced
    switches."""
    program = """
import sys, threading
from geminga.wire import batch
payloads = [b"x" * (n % 2) for n in range(1000)]
pieces = []
for number, payload in enumerate(payloads, 20_000):
    batch.append_message(pieces, payload, number)
expected, written, together = b"".join(pieces), [], threading.Barrier(4)
def write():
    together.wait()
    written.append(bytes(batch.encode_plain_batch(payloads, 20_000)))
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=write) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
write_again = bytes(batch.encode_plain_batch(payloads, 20_000))
assert [*written, write_again] == [expected] * 5, len(written)
"""
    run_python(program)
