"""Rewritten entries have two more fields and are otherwise unchanged, unless a change is necessary."""

from typing import Any

import pytest

from geminga.errors import CorruptPayload
from geminga.mirror.entries import EntryRewriter, SchemaUnknownError, TargetEntry, stamp_of
from geminga.mirror.positions import Position
from geminga.mirror.replication_stamp import ReplicationStamp, stamps_in
from geminga.wire.metadata import build_entry, checksum_matches, metadata_size, parse_entry, peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

PAIR, OTHER = b"\x01" * 8, b"\x02" * 8
PLACE = Position(70_000_000_000, 12_345)


def metadata(**fields: object) -> pb.MessageMetadata:
    found = pb.MessageMetadata(producer_name="writer", sequence_id=7, publish_time=1_700_000_000_000)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def rewriter(**settings: Any) -> EntryRewriter:
    return EntryRewriter(**{"pair": PAIR, "source_name": "here", **settings})


def whole(entry: bytes, place: Position = PLACE, **settings: Any) -> bytes:
    forwarded = rewriter(**settings).rewrite(entry, place)
    assert isinstance(forwarded, TargetEntry)
    return forwarded.head + bytes(forwarded.payload)


def test_metadata_and_payload_stay_byte_for_byte():
    before = metadata(
        num_messages_in_batch=3, compression=pb.ZSTD, uncompressed_size=99, uuid="x-1", chunk_id=2
    )
    before.properties.add(key="a", value="b")
    before.encryption_keys.add(key="k", value=b"\x00\xff")
    raw = before.SerializeToString() + b"\xca\x3e\x03new"  # an unknown field
    entry = build_entry(raw, b"\x00payload" * 100)
    after = whole(entry)
    assert checksum_matches(after)
    size = metadata_size(after)
    assert after[10 : 10 + len(raw)] == raw
    assert after[10 + size :] == b"\x00payload" * 100
    parsed = parse_entry(after).metadata
    assert parsed.replicated_from == "here"
    parsed.ClearField("replicated_from")
    parsed.DiscardUnknownFields()
    assert parsed == before
    assert peek_entry(after).num_messages == 3
    assert stamp_of(after) == ReplicationStamp(PAIR, PLACE)


def test_rewriting_a_damaged_entry_raises_corrupt_payload():
    entry = bytearray(build_entry(metadata().SerializeToString(), b"payload"))
    entry[-1] ^= 1
    with pytest.raises(CorruptPayload, match="checksum"):
        rewriter().rewrite(bytes(entry), PLACE)


def test_an_entry_without_a_checksum_gets_one():
    raw = metadata().SerializeToString()
    after = whole(len(raw).to_bytes(4, "big") + raw + b"payload")
    assert checksum_matches(after)
    assert bytes(parse_entry(after).payload) == b"payload"


def test_markers_are_not_copied():
    entry = build_entry(metadata(marker_type=pb.TXN_COMMIT).SerializeToString(), b"")
    assert rewriter().rewrite(entry, PLACE) == []


def test_copies_of_committed_messages_have_no_transaction_id():
    entry = build_entry(metadata(txnid_least_bits=4, txnid_most_bits=5).SerializeToString(), b"p")
    parsed = parse_entry(whole(entry)).metadata
    assert not parsed.HasField("txnid_least_bits")
    assert not parsed.HasField("txnid_most_bits")


def test_schema_versions_are_those_of_the_target():
    entry = build_entry(metadata(schema_version=b"\0" * 7 + b"\1").SerializeToString(), b"p")
    with pytest.raises(SchemaUnknownError) as caught:
        rewriter().rewrite(entry, PLACE)
    version = caught.value.version
    for mapped in (version, b"\0" * 7 + b"\5", None):
        parsed = parse_entry(whole(entry, schema_versions={version: mapped})).metadata
        assert parsed.HasField("schema_version") == (mapped is not None)
        assert parsed.schema_version == (mapped or b"")


@pytest.mark.parametrize("name", ["here", "there", "elsewhere"])
def test_a_replicated_entry_is_not_copied_again_and_its_stamp_is_returned(name):
    entry = whole(build_entry(metadata().SerializeToString(), b"p"), source_name=name)
    assert rewriter(pair=OTHER).rewrite(entry, Position(1, 2)) == [ReplicationStamp(PAIR, PLACE)]
    # By Apache Pulsar's geo-replication.
    entry = build_entry(metadata(replicated_from=name).SerializeToString(), b"p")
    assert rewriter().rewrite(entry, PLACE) == []


def test_forward_copies_all_but_entries_of_the_target_and_keeps_the_first_name():
    entry = whole(build_entry(metadata().SerializeToString(), b"p"), source_name="a")
    after = whole(entry, Position(1, 2), pair=OTHER, source_name="b", target_name="c")
    assert stamp_of(after) == ReplicationStamp(OTHER, Position(1, 2))
    assert parse_entry(after).metadata.replicated_from == "a"
    home = rewriter(source_name="c", target_name="a")
    assert home.rewrite(after, Position(9, 9)) == [ReplicationStamp(OTHER, Position(1, 2))]


def test_a_signed_stamp_of_an_earlier_version_is_read():
    field = bytes.fromhex("aacf031f") + PAIR + b"\x07\x81\x01\x05\x80\x01" + b"\xee" * 17
    assert stamps_in(with_field(field)) == [ReplicationStamp(PAIR, Position(7, 129))]


@pytest.mark.parametrize(
    "junk",
    [
        b"", b"\xaa\xcf\x03\x02ab", b"\xa8\xcf\x03\x02", b"\xaa\xcf\x03\x09" + b"\xff" * 9,
        b"\xaa\xcf\x03\x20" + b"\xff" * 32,
    ],
)  # fmt: skip
def test_an_unrelated_field_of_the_same_number_is_not_a_stamp(junk):
    assert stamps_in(with_field(junk)) == []


def with_field(field: bytes) -> pb.MessageMetadata:
    return pb.MessageMetadata.FromString(metadata().SerializeToString() + field)
