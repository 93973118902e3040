"""Entries: recorded ones, the fields that a broker reads, and damaged ones."""

import pickle
import struct
from typing import Any

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from geminga.errors import CorruptPayload
from geminga.wire.checksum import crc32c
from geminga.wire.metadata import EntryHead, RawEntry, build_entry, checksum_matches, parse_entry, peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

HEAD_FIELDS = (
    "num_messages", "is_batch", "publish_time", "producer_name", "sequence_id", "highest_sequence_id",
    "partition_key", "partition_key_b64", "ordering_key", "event_time", "deliver_at_time", "chunk_id",
    "num_chunks", "uuid", "marker_type", "encrypted", "null_value", "txnid_least_bits",
    "txnid_most_bits",
)  # fmt: skip


def content(head: EntryHead) -> dict[str, Any]:
    return {name: getattr(head, name) for name in HEAD_FIELDS}


def expected(metadata: pb.MessageMetadata) -> dict[str, Any]:
    given = {field.name: value for field, value in metadata.ListFields()}
    return {
        "num_messages": metadata.num_messages_in_batch,
        "is_batch": "num_messages_in_batch" in given,
        "publish_time": metadata.publish_time,
        "producer_name": metadata.producer_name,
        "sequence_id": metadata.sequence_id,
        "highest_sequence_id": metadata.highest_sequence_id,
        "partition_key": given.get("partition_key"),
        "partition_key_b64": metadata.partition_key_b64_encoded,
        "ordering_key": given.get("ordering_key"),
        "event_time": metadata.event_time,
        "deliver_at_time": metadata.deliver_at_time,
        "chunk_id": given.get("chunk_id", -1),
        "num_chunks": metadata.num_chunks_from_msg,
        "uuid": metadata.uuid,
        "marker_type": given.get("marker_type"),
        "encrypted": "encryption_keys" in given,
        "null_value": metadata.null_value,
        "txnid_least_bits": given.get("txnid_least_bits"),
        "txnid_most_bits": given.get("txnid_most_bits"),
    }


@pytest.fixture(scope="module")
def entries(recorded):
    found = [record for record in recorded if record.entry is not None]
    assert len(found) > 150
    return found


# --- recorded entries ---
def test_recorded_checksums_are_right(entries):
    checked = 0
    for record in entries:
        expected = record.decoded.get("crc32c_ok")
        assert checksum_matches(record.entry) is expected
        assert checksum_matches(memoryview(record.entry)) is expected
        checked += expected is True
    assert checked > 150


def test_recorded_entries_parse(entries):
    for record in entries:
        entry = parse_entry(record.entry)
        said = record.decoded["metadata"]
        assert entry.metadata.producer_name == said["producer_name"]
        assert entry.metadata.sequence_id == said["sequence_id"]
        assert entry.metadata.publish_time == said["publish_time"]
        assert len(entry.payload) == record.decoded["payload_len"]
    assert any("brokerEntryMetadata" in record.decoded for record in entries)


def test_recorded_entries_are_built_to_the_same_bytes(entries):
    same = 0
    for record in entries:
        if not record.decoded.get("crc32c"):
            continue
        entry = parse_entry(record.entry)
        built = build_entry(entry.metadata.SerializeToString(), entry.payload)
        assert record.entry.endswith(built)
        same += 1
    assert same > 150


def test_recorded_heads_have_the_fields_of_the_metadata(entries):
    for record in entries:
        head = peek_entry(record.entry)
        assert content(head) == expected(parse_entry(record.entry).metadata)
        assert content(peek_entry(memoryview(record.entry))) == content(head)


# --- layout ---
def a_metadata(**fields: Any) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        **{"producer_name": "p", "sequence_id": 7, "publish_time": 1_700_000_000_000} | fields
    )


def test_an_entry_without_checksum():
    metadata = a_metadata().SerializeToString()
    entry = struct.pack(">I", len(metadata)) + metadata + b"payload"
    assert checksum_matches(entry) is None
    parsed = parse_entry(entry)
    assert bytes(parsed.payload) == b"payload"
    assert parsed.metadata == a_metadata()
    assert content(peek_entry(entry)) == expected(a_metadata())


def test_broker_entry_metadata_comes_before_the_checksum():
    broker = pb.BrokerEntryMetadata(broker_timestamp=1, index=41)
    inner = build_entry(a_metadata().SerializeToString(), b"payload")
    data = broker.SerializeToString()
    entry = struct.pack(">HI", 0x0E02, len(data)) + data + inner
    parsed = parse_entry(entry)
    assert bytes(parsed.payload) == b"payload"
    assert checksum_matches(entry) is True
    assert checksum_matches(entry[:-1] + b"!") is False
    assert content(peek_entry(entry)) == expected(a_metadata())


def test_an_entry_with_empty_broker_metadata_parses():
    inner = build_entry(a_metadata().SerializeToString(), b"payload")
    for rest in (inner, inner[6:]):
        parsed = parse_entry(b"\x0e\x02\x00\x00\x00\x00" + rest)
        assert parsed.metadata == a_metadata()


def test_a_large_payload_is_a_view_into_the_entry():
    entry = build_entry(a_metadata().SerializeToString(), bytes(10_000))
    payload = parse_entry(entry).payload
    assert payload.obj is entry
    assert payload.nbytes == 10_000


def test_build_entry_takes_any_buffer():
    metadata = a_metadata().SerializeToString()
    built = build_entry(metadata, b"payload")
    assert (
        built == build_entry(metadata, memoryview(b"payload")) == build_entry(metadata, bytearray(b"payload"))
    )
    assert built[:2] == b"\x0e\x01"
    assert int.from_bytes(built[2:6], "big") == crc32c(built[6:])


def test_a_wrong_checksum_is_named_and_can_be_ignored():
    entry = bytearray(build_entry(a_metadata().SerializeToString(), b"payload"))
    entry[-1] ^= 1
    with pytest.raises(CorruptPayload, match=r"has the checksum [0-9a-f]{8} and announces [0-9a-f]{8}"):
        parse_entry(entry)
    assert bytes(parse_entry(entry, verify=False).payload) == b"payloae"
    assert checksum_matches(entry) is False


@pytest.mark.parametrize(("entry", "words"), cases("damaged_entries"))
def test_damaged_entries(entry, words):
    data = bytes.fromhex(entry)
    with pytest.raises(CorruptPayload, match=words):
        parse_entry(data, verify=False)
    with pytest.raises(CorruptPayload, match=words):
        peek_entry(data)


def test_a_checksum_that_is_cut_off():
    with pytest.raises(CorruptPayload, match="ends inside its checksum"):
        checksum_matches(b"\x0e\x01\x00\x00")


# --- fields ---
@given(st.data())
def test_heads_have_the_fields_of_the_metadata(messages_of, data):
    metadata = data.draw(messages_of(pb.MessageMetadata))
    entry = build_entry(metadata.SerializeToString(), data.draw(st.binary(max_size=20)))
    assert content(peek_entry(entry)) == expected(metadata)
    assert parse_entry(entry).metadata == metadata


def test_a_marker_of_type_0_is_a_marker():
    metadata = a_metadata(marker_type=0, chunk_id=0, txnid_least_bits=0, txnid_most_bits=0)
    assert content(peek_entry(build_entry(metadata.SerializeToString(), b""))) == expected(metadata)


def test_text_that_is_not_utf_8_is_read_as_java_reads_it():
    data = a_metadata(producer_name="ab", partition_key="cd").SerializeToString()
    entry = build_entry(data.replace(b"ab", b"a\xff").replace(b"cd", b"\xffd"), b"")
    head = peek_entry(entry)
    assert (head.producer_name, head.partition_key) == ("a�", "�d")


def test_raw_entries_pickle():
    raw = RawEntry("topic", 1, 2, 3, b"entry", 4, (5,))
    assert pickle.loads(pickle.dumps(raw)) == raw
    assert RawEntry("topic", -1, 2, 3, b"").ack_set == ()
