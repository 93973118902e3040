"""Entries are split and joined again, byte for byte."""

import io
import struct
import tracemalloc

import pyarrow as pa
import pytest
from entries import batch_entry, in_batch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.offload import entry_envelope as residue_module
from geminga.offload import entry_joining
from geminga.offload.entry_envelope import EntryEnvelope, EntrySplitter, joined
from geminga.offload.file import LedgerFile, LedgerWriter
from geminga.wire.compression import LZ4, NONE, SNAPPY, ZLIB, ZSTD, compress
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.varint import varint

TOPIC = "persistent://public/default/flights-partition-3"
words = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.integers(0, 2**63 - 1)


def unknown_field(number: int, data: bytes) -> bytes:
    """Field of a future version."""
    tag = number << 3 | 2
    return bytes((tag & 0x7F | 0x80, tag >> 7, len(data))) + data


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return the metadata of a message in a batch, and its payload."""
    message = pb.SingleMessageMetadata()
    value = draw(st.binary(max_size=40))
    for key, item in draw(st.lists(st.tuples(words, words), max_size=3)):
        message.properties.add(key=key, value=item)
    if draw(st.booleans()):
        message.partition_key = draw(words)
        message.partition_key_b64_encoded = draw(st.booleans())
    if draw(st.booleans()):
        message.ordering_key = draw(st.binary(max_size=8))
    if draw(st.booleans()):
        message.event_time = draw(numbers)
    if draw(st.booleans()):
        message.sequence_id = draw(st.integers(0, 2**64 - 1))
    if draw(st.integers(0, 5)) == 0:
        message.null_value = True
        value = b""
    if draw(st.integers(0, 9)) == 0:
        message.compacted_out = True
    message.payload_size = len(value)
    data = message.SerializeToString()
    if draw(st.integers(0, 9)) == 0:
        data += unknown_field(200, draw(st.binary(max_size=9)))
    return data, value


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name=draw(words), sequence_id=draw(numbers), publish_time=draw(numbers)
    )
    kind = draw(st.sampled_from(("batch", "batch", "single", "chunk", "encrypted", "marker", "junk")))
    if kind == "junk":
        return draw(st.binary(max_size=60))
    if draw(st.booleans()):
        metadata.partition_key = draw(words)
    for key, value in draw(st.lists(st.tuples(words, words), max_size=3)):
        metadata.properties.add(key=key, value=value)
    if draw(st.booleans()):
        metadata.schema_version = draw(st.binary(max_size=8))
    if draw(st.booleans()):
        metadata.deliver_at_time = draw(numbers)
    payload = draw(st.binary(max_size=80))
    if kind == "batch":
        found = draw(st.lists(messages(), min_size=1, max_size=8))
        metadata.num_messages_in_batch = len(found)
        payload = b"".join(struct.pack(">I", len(head)) + head + value for head, value in found)
    elif kind == "chunk":
        metadata.uuid, metadata.num_chunks_from_msg = "u", draw(st.integers(2, 3))
        metadata.chunk_id = draw(st.integers(0, 2))
    elif kind == "encrypted":
        metadata.encryption_keys.add(key="k", value=b"v")
    elif kind == "marker":
        metadata.marker_type = 1
    elif draw(st.booleans()):
        metadata.null_value, payload = True, b""
    codec = draw(st.sampled_from((NONE, LZ4, ZLIB, ZSTD, SNAPPY)))
    if codec:
        metadata.compression, metadata.uncompressed_size = codec, len(payload)
        payload = compress(codec, payload, draw(st.sampled_from((0, 1, 7))) if codec in (ZLIB, ZSTD) else 0)
    data = metadata.SerializeToString()
    if draw(st.integers(0, 9)) == 0:
        data += unknown_field(300, draw(st.binary(max_size=9)))
    entry = build_entry(data, payload)
    way = draw(st.integers(0, 9))
    if way == 0:
        return entry[6:]  # without checksum
    return entry[:3] + b"x" + entry[4:] if way == 1 else entry


@pytest.mark.parametrize("piece_rows", [3, entry_joining.PIECE_ROWS])
@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(entries(), min_size=1, max_size=12), st.integers(1, 12))
def test_split_entries_are_joined_byte_for_byte(piece_rows, found, piece):
    entry_joining.PIECE_ROWS, before = piece_rows, entry_joining.PIECE_ROWS
    try:
        check_split_and_joined(found, piece)
    finally:
        entry_joining.PIECE_ROWS = before


def check_split_and_joined(found, piece):
    sink = io.BytesIO()
    writer = LedgerWriter(sink, topic=TOPIC, partition=3, ledger_id=17, uuid="u")
    for start in range(0, len(found), piece):
        writer.add(found[start : start + piece])
        writer._flush()
    written = writer.close()
    file = LedgerFile(io.BytesIO(sink.getvalue()))
    assert file.summary == written.summary
    again = [entry for group in range(len(file.summary.groups)) for entry in file.entries(group).entries]
    assert again == found
    for number in range(len(found)):
        group = file.group_of(number)
        assert file.entries(group).entries[number - file.first_of(group)] == found[number]


def batch(count: int = 50, codec: int = NONE) -> bytes:
    values = [b'{"flight": "UA%d", "delay": %d}' % (index % 7, index) for index in range(count)]
    messages = [in_batch(value, sequence_id=index) for index, value in enumerate(values)]
    return batch_entry(messages, codec, publish_time=1_700_000_000_000)


def said_twice() -> list[tuple[str, bytes]]:
    """Entries with duplicate fields: the last one counts, and the joined entry has the same size."""
    first = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_700_000_000_000)
    last = pb.MessageMetadata(producer_name="q", sequence_id=8, publish_time=1_700_000_000_001)
    found = [("metadata", build_entry(first.SerializeToString() + last.SerializeToString(), b"value"))]
    batch = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1_700_000_000_000, num_messages_in_batch=2
    )
    one = {"partition_key": "a", "ordering_key": b"a", "sequence_id": 1, "event_time": 5}
    other = {"partition_key": "b", "ordering_key": b"b", "sequence_id": 2, "event_time": 6}
    for field, value in other.items():
        head = pb.SingleMessageMetadata(payload_size=3, **one).SerializeToString()
        head += pb.SingleMessageMetadata(**{field: value}).SerializePartialToString()
        payload = 2 * (struct.pack(">I", len(head)) + head + b"abc")
        found.append((field, build_entry(batch.SerializeToString(), payload)))
    return found


@pytest.mark.parametrize(("name", "entry"), said_twice(), ids=[name for name, _ in said_twice()])
def test_an_entry_with_duplicate_fields_is_returned_unchanged(name, entry):
    (split,) = EntrySplitter(TOPIC, 3, 17).split(0, [entry, batch()])
    assert split.messages[0].num_rows == (1 if name == "metadata" else 2) + 50
    found = joined(split.messages, EntryEnvelope.decode(split.envelope.encode()))
    assert (found.bad, found.other, found.entries) == ([], [], [entry, batch()])


@pytest.mark.parametrize("codec", [NONE, LZ4, ZLIB, ZSTD, SNAPPY])
def test_an_entry_that_can_be_joined_is_not_stored_whole(codec):
    (split,) = EntrySplitter(TOPIC, 3, 17).split(0, [batch(codec=codec)])
    assert split.envelope.whole == b""
    assert split.messages[0].num_rows == 50


def test_numbers_of_other_programs_that_are_too_long_are_returned_unchanged():
    message = pb.SingleMessageMetadata(payload_size=1, sequence_id=3).SerializeToString()
    message += bytes((0xC8, 0x0C)) + b"\xff" * 9 + b"\x7f"  # field 201, of 70 bits
    entry = batch_entry([struct.pack(">I", len(message)) + message + b"v"], publish_time=1)
    (split,) = EntrySplitter(TOPIC, 3, 17).split(0, [entry])
    assert split.envelope.whole == b""
    assert joined(split.messages, split.envelope).entries == [entry]


def test_long_tags_of_the_first_message_are_not_repeated_for_each_message():
    plain = pb.SingleMessageMetadata(payload_size=1).SerializeToString()
    long = plain + bytes((0xCA, 0x0C)) + varint(60_000) + bytes(60_000)  # field 201
    each = [struct.pack(">I", len(data)) + data + b"v" for data in (long, *[plain] * 5_000)]
    entry = batch_entry(each, publish_time=1)
    (split,) = EntrySplitter(TOPIC, 3, 17).split(0, [entry])
    assert split.envelope.whole == b""
    tracemalloc.start()
    found = joined(split.messages, split.envelope)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.entries == [entry]
    assert peak < 30_000_000, "5,000 times 60 KB would be 300 MB"


def test_tags_of_other_messages_give_no_entry():
    (split,) = EntrySplitter(TOPIC, 3, 17).split(0, [batch(codec=ZSTD), batch(3)])
    properties = in_batch(b"v", properties={"a": "b"})
    (other,) = EntrySplitter(TOPIC, 3, 17).split(0, [batch_entry([properties] * 50), batch(3)])
    for cut in (0, 1):  # the tags of messages with a property, and the same cut
        envelope = EntryEnvelope.decode(split.envelope.encode())
        tags = other.envelope.tags[: int(other.envelope.tag_sizes[0])]
        envelope.tags = tags[: len(tags) - cut] + split.envelope.tags[int(envelope.tag_sizes[0]) :]
        envelope.tag_sizes = envelope.tag_sizes.copy()
        envelope.tag_sizes[0] = len(tags) - cut
        found = joined(split.messages, envelope)
        assert (found.bad, found.other, found.entries) == ([0], [], [b"", batch(3)])


def test_a_codec_that_compresses_differently_gives_uncompressed_messages(monkeypatch):
    entry = batch(codec=ZSTD)
    (split,) = EntrySplitter(TOPIC, 3, 17).split(0, [entry, batch()])
    monkeypatch.setattr(residue_module, "_compressed", lambda way, plain: b"otherwise")
    found = joined(split.messages, EntryEnvelope.decode(split.envelope.encode()))
    assert (found.bad, found.other) == ([], [0])
    plain = parse_entry(found.entries[0])
    assert plain.metadata.compression == NONE
    assert bytes(plain.payload) == bytes(parse_entry(batch()).payload)


def test_nulls_of_a_part_of_an_array_are_found():
    array = pa.array([None, 1, None, 3, 4, None, 6, 7, None, 9])
    for start in range(9):
        assert entry_joining._nulls(array[start:]).tolist() == array[start:].is_null().to_pylist()


def test_wrong_bytes_are_never_returned():
    (split,) = EntrySplitter(TOPIC, 3, 17).split(0, [batch(), batch(3)])
    envelope = EntryEnvelope.decode(split.envelope.encode())
    envelope.crcs = envelope.crcs.copy()
    envelope.crcs[0] ^= 1
    found = joined(split.messages, envelope)
    assert (found.bad, found.entries) == ([0], [b"", batch(3)])
