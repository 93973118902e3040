"""What becomes of entries: two fields more, and nothing else, unless it has to be."""

from __future__ import annotations

import pytest

from geminga.errors import CorruptPayload
from geminga.mirror.entries import (
    EntryRewriter,
    Origin,
    PairUnknownError,
    SchemaUnknownError,
    origin_of,
    origins_in,
)
from geminga.mirror.positions import Position
from geminga.wire.metadata import build_entry, checksum_matches, metadata_size, parse_entry, peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

PAIR, OTHER = b"\x01" * 8, b"\x02" * 8
PLACE = Position(70_000_000_000, 12_345)


def metadata(**fields: object) -> pb.MessageMetadata:
    found = pb.MessageMetadata(producer_name="writer", sequence_id=7, publish_time=1_700_000_000_000)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def rewriter(**settings: object) -> EntryRewriter:
    return EntryRewriter(**{"pair": PAIR, "source_name": "here", "target_name": "there", **settings})  # type: ignore[arg-type]


def whole(entry: bytes, **settings: object) -> bytes:
    forwarded = rewriter(**settings).rewrite(entry, PLACE)
    assert forwarded is not None
    return forwarded.head + bytes(forwarded.payload)


def test_metadata_and_payload_stay_byte_for_byte() -> None:
    before = metadata(
        num_messages_in_batch=3, compression=pb.ZSTD, uncompressed_size=99, uuid="x-1", chunk_id=2
    )
    before.properties.add(key="a", value="b")
    before.encryption_keys.add(key="k", value=b"\x00\xff")
    raw = before.SerializeToString() + b"\xca\x3e\x03new"  # a field that nobody knows yet
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
    assert origin_of(after, PAIR) == PLACE
    assert origin_of(after, OTHER) is None


def test_a_damaged_entry_gets_no_checksum_that_fits() -> None:
    entry = bytearray(build_entry(metadata().SerializeToString(), b"payload"))
    entry[-1] ^= 1
    with pytest.raises(CorruptPayload, match="checksum"):
        rewriter().rewrite(bytes(entry), PLACE)


def test_an_entry_without_a_checksum_gets_one() -> None:
    raw = metadata().SerializeToString()
    after = whole(len(raw).to_bytes(4, "big") + raw + b"payload")
    assert checksum_matches(after)
    assert bytes(parse_entry(after).payload) == b"payload"


def test_markers_stay() -> None:
    entry = build_entry(metadata(marker_type=pb.TXN_COMMIT).SerializeToString(), b"")
    assert rewriter().rewrite(entry, PLACE) is None


def test_a_committed_transaction_is_none_in_the_target() -> None:
    entry = build_entry(metadata(txnid_least_bits=4, txnid_most_bits=5).SerializeToString(), b"p")
    parsed = parse_entry(whole(entry)).metadata
    assert not parsed.HasField("txnid_least_bits")
    assert not parsed.HasField("txnid_most_bits")


def test_schema_versions_are_those_of_the_target() -> None:
    entry = build_entry(metadata(schema_version=b"\0" * 7 + b"\1").SerializeToString(), b"p")
    with pytest.raises(SchemaUnknownError) as caught:
        rewriter().rewrite(entry, PLACE)
    version = caught.value.version
    for mapped in (version, b"\0" * 7 + b"\5", None):
        parsed = parse_entry(whole(entry, schema_versions={version: mapped})).metadata
        assert parsed.HasField("schema_version") == (mapped is not None)
        assert parsed.schema_version == (mapped or b"")


def test_what_came_from_the_target_stays() -> None:
    entry = build_entry(metadata(replicated_from="there").SerializeToString(), b"p")
    assert rewriter().rewrite(entry, PLACE) is None
    # Two clusters of one name: the name says nothing.
    same = rewriter(source_name="there").rewrite(entry, PLACE)
    assert same is not None


def test_what_a_mirror_brought_from_the_target_stays() -> None:
    entry = whole(build_entry(metadata().SerializeToString(), b"p"), source_name="x", target_name="x")
    back = rewriter(pair=OTHER, source_name="x", target_name="x")
    with pytest.raises(PairUnknownError) as caught:
        back.rewrite(entry, PLACE)
    assert caught.value.pair == PAIR
    back.reads_target[PAIR] = True
    assert back.rewrite(entry, Position(9, 9)) == Origin(PAIR, PLACE)


def test_through_three_clusters() -> None:
    entry = whole(build_entry(metadata().SerializeToString(), b"p"), source_name="a", target_name="b")
    forwarded = rewriter(pair=OTHER, source_name="b", target_name="c", reads_target={PAIR: False}).rewrite(
        entry, Position(1, 2)
    )
    assert forwarded is not None
    after = forwarded.head + bytes(forwarded.payload)
    assert (origin_of(after, PAIR), origin_of(after, OTHER)) == (PLACE, Position(1, 2))
    assert parse_entry(after).metadata.replicated_from == "b"
    home = rewriter(source_name="c", target_name="a", reads_target={PAIR: True, OTHER: False})
    assert home.rewrite(after, Position(9, 9)) == Origin(PAIR, PLACE)


@pytest.mark.parametrize(
    "junk", [b"\xff" * 12, b"\x0a\xff\x01", b"\xaa\xcf\x03\x02ab", b"\xaa\xcf\x03\x09" + b"\xff" * 9]
)
def test_somebody_elses_field_is_no_origin(junk: bytes) -> None:
    assert origins_in(junk) == []
    assert origins_in(metadata().SerializeToString()) == []


def test_an_origin_is_read_as_it_was_written() -> None:
    after = whole(build_entry(metadata().SerializeToString(), b"p"))
    size = metadata_size(after)
    assert origins_in(after[10 : 10 + size]) == [Origin(PAIR, PLACE)]


@pytest.mark.parametrize(
    "fields", [{}, {"num_messages_in_batch": 5}, {"partition_key": "k", "event_time": 9}]
)
def test_a_broker_reads_a_mirrored_entry_as_fast_as_any(fields: dict[str, object]) -> None:
    from geminga.wire import metadata as module

    after = whole(build_entry(metadata(**fields).SerializeToString(), b"p"))
    size = metadata_size(after)
    read = module._read_head(after[10 : 10 + size])
    full = module._full_head(parse_entry(after).metadata)
    assert read is not None
    assert {name: getattr(read, name) for name in module.EntryHead.__slots__} == {
        name: getattr(full, name) for name in module.EntryHead.__slots__
    }
