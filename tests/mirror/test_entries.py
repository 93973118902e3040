"""Rewritten entries have two more fields and are otherwise unchanged, unless a change is necessary."""

from __future__ import annotations

import pytest

from geminga.errors import CorruptPayload
from geminga.mirror.entries import EntryRewriter, PairsUnknownError, SchemaUnknownError, TargetEntry, mark_of
from geminga.mirror.positions import NOWHERE, Position
from geminga.mirror.replication_stamp import MARKS_MAX, ReplicationStamp, StampOrigin, mark_field, marks_in
from geminga.wire.metadata import build_entry, checksum_matches, metadata_size, parse_entry, peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

PAIR, OTHER = b"\x01" * 8, b"\x02" * 8
KEY, FOREIGN = b"k" * 32, b"f" * 32
PLACE = Position(70_000_000_000, 12_345)


def metadata(**fields: object) -> pb.MessageMetadata:
    found = pb.MessageMetadata(producer_name="writer", sequence_id=7, publish_time=1_700_000_000_000)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def rewriter(reads_target: dict[bytes, bool] | None = None, **settings: object) -> EntryRewriter:
    given = {"pair": PAIR, "source_name": "here", "target_name": "there", "key": KEY, **settings}
    made = EntryRewriter(**given)  # type: ignore[arg-type]
    asked = reads_target or {}
    made.learn(frozenset(pair for pair in asked if asked[pair]), frozenset(asked), NOWHERE)
    return made


def origin_of(entry: bytes, pair: bytes, key: bytes = KEY) -> Position | None:
    found = mark_of(entry, pair, (key,), is_direct=False)
    return None if found is None else found.position


def origin(found: ReplicationStamp | TargetEntry | None) -> StampOrigin:
    assert isinstance(found, ReplicationStamp)
    return found.origin


def whole(entry: bytes, **settings: object) -> bytes:
    forwarded = rewriter(**settings).rewrite(entry, PLACE)  # type: ignore[arg-type]
    assert isinstance(forwarded, TargetEntry)
    return forwarded.head + bytes(forwarded.payload)


def test_metadata_and_payload_stay_byte_for_byte() -> None:
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
    back = rewriter(pair=OTHER, source_name="x", target_name="x", target_keys=(FOREIGN, KEY))
    with pytest.raises(PairsUnknownError) as caught:
        back.rewrite(entry, PLACE)
    assert caught.value.pairs == {PAIR}
    back.learn(frozenset({PAIR}), frozenset({PAIR}), Position(9, 9))
    assert origin(back.rewrite(entry, Position(9, 9))) == StampOrigin(PAIR, PLACE, NOWHERE)


def test_through_three_clusters() -> None:
    """Each mirror signs with a key of its source; to where an entry comes from, its mark is known."""
    entry = whole(build_entry(metadata().SerializeToString(), b"p"), source_name="a", target_name="b")
    on = rewriter({PAIR: False}, pair=OTHER, source_name="b", target_name="c", key=FOREIGN)
    forwarded = on.rewrite(entry, Position(1, 2))
    assert isinstance(forwarded, TargetEntry)
    after = forwarded.head + bytes(forwarded.payload)
    assert (origin_of(after, PAIR), origin_of(after, OTHER, FOREIGN)) == (PLACE, Position(1, 2))
    assert mark_of(after, PAIR, (KEY,)) is None  # it was brought on
    assert parse_entry(after).metadata.replicated_from == "b"
    home = rewriter(
        {PAIR: True, OTHER: False}, pair=b"\x03" * 8, source_name="c", target_name="a", target_keys=(KEY,)
    )
    assert origin(home.rewrite(after, Position(9, 9))) == StampOrigin(PAIR, PLACE, NOWHERE)


def test_an_unsigned_mark_is_copied_on() -> None:
    """Any producer can write the field, with any pair and position: the message is copied as any other."""
    entry = whole(build_entry(metadata().SerializeToString(), b"p"), source_name="x", target_name="x")
    back = rewriter(pair=OTHER, source_name="x", target_name="x", target_keys=(FOREIGN,))
    with pytest.raises(PairsUnknownError):  # perhaps the key is newer than those that are known
        back.rewrite(entry, PLACE)
    back.learn(frozenset({PAIR}), frozenset({PAIR}), Position(9, 9))
    forwarded = back.rewrite(entry, Position(9, 9))
    assert isinstance(forwarded, TargetEntry)
    after = forwarded.head + bytes(forwarded.payload)
    assert origin_of(after, OTHER) == Position(9, 9)


def test_a_known_mirror_may_sign_with_a_new_key() -> None:
    """One question answers for all that was written before it."""
    first, second = (
        whole(build_entry(metadata().SerializeToString(), b"p"), key=key, source_name="x", target_name="x")
        for key in (KEY, FOREIGN)
    )
    back = rewriter({PAIR: True}, pair=OTHER, source_name="x", target_name="x", target_keys=(KEY,))
    assert isinstance(back.rewrite(first, Position(9, 9)), ReplicationStamp)
    with pytest.raises(PairsUnknownError):
        back.rewrite(second, Position(9, 10))
    back.learn(frozenset({PAIR}), frozenset({PAIR}), Position(9, 20))
    assert isinstance(back.rewrite(second, Position(9, 20)), TargetEntry)
    with pytest.raises(PairsUnknownError):
        back.rewrite(second, Position(9, 21))
    back.target_keys = (FOREIGN, KEY)
    back.learn(frozenset({PAIR}), frozenset({PAIR}), Position(9, 21))
    for entry in (first, second):
        assert isinstance(back.rewrite(entry, Position(9, 30)), ReplicationStamp)


def test_thousands_of_marks_in_one_entry_are_one_question() -> None:
    marks = b"".join(
        mark_field(StampOrigin(number.to_bytes(8, "big"), PLACE, NOWHERE), FOREIGN) for number in range(3_000)
    )
    entry = build_entry(metadata(replicated_from="x").SerializeToString() + marks, b"p")
    made = rewriter(source_name="x", target_name="x", target_keys=(KEY,))
    with pytest.raises(PairsUnknownError) as caught:
        made.rewrite(entry, PLACE)
    assert len(caught.value.pairs) == MARKS_MAX
    made.learn(frozenset(), caught.value.pairs, PLACE)
    forwarded = made.rewrite(entry, PLACE)
    assert isinstance(forwarded, TargetEntry)
    # The real one is behind what anybody has written before.
    real = forwarded.head + bytes(forwarded.payload)
    back = rewriter({PAIR: True}, pair=OTHER, source_name="x", target_name="x", target_keys=(KEY,))
    assert isinstance(back.rewrite(real, PLACE), ReplicationStamp)


def test_what_was_sent_before_is_not_sent_again() -> None:
    """It was brought back by a mirror that could not tell."""
    there = whole(build_entry(metadata().SerializeToString(), b"p"), source_name="x", target_name="x")
    back = rewriter({PAIR: False}, pair=OTHER, source_name="x", target_name="x", key=FOREIGN)
    forwarded = back.rewrite(there, Position(1, 2))
    assert isinstance(forwarded, TargetEntry)
    again = forwarded.head + bytes(forwarded.payload)
    assert rewriter(source_name="x", target_name="x").rewrite(again, Position(3, 4)) is None


@pytest.mark.parametrize("change", [0, 8, 12, -1, -16, -17])
def test_a_mark_that_was_changed_is_none(change: int) -> None:
    after = whole(build_entry(metadata().SerializeToString(), b"p"))
    size = metadata_size(after)
    (mark,) = marks_in(after[10 : 10 + size])
    assert mark.is_signed_with((FOREIGN, KEY))
    assert not mark.is_signed_with((FOREIGN,))
    assert not mark.is_signed_with(())
    raw = bytearray(after[10 : 10 + size])
    start = raw.index(mark.body)
    raw[start + change if change >= 0 else start + len(mark.body) + 16 + change] ^= 1
    assert not any(one.is_signed_with((KEY,)) for one in marks_in(bytes(raw)))


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff" * 12, b"\x0a\xff\x01", b"\xaa\xcf\x03\x02ab", b"\xaa\xcf\x03\x09" + b"\xff" * 9,
        b"\xaa\xcf\x03\x20" + b"\xff" * 32, b"\xaa\xcf\x03\x20" + b"\0" * 32,
        b"\xaa\xcf\x03\x40" + b"\1" * 32,
    ],
)  # fmt: skip
def test_somebody_elses_field_is_no_mark(junk: bytes) -> None:
    assert marks_in(junk) == []
    assert marks_in(metadata().SerializeToString()) == []


def test_a_mark_is_read_as_it_was_written() -> None:
    made = rewriter()
    for place in (NOWHERE, Position(3, -1), Position(70_000_000_000, 12)):
        made.after = place
        forwarded = made.rewrite(build_entry(metadata().SerializeToString(), b"p"), PLACE)
        assert isinstance(forwarded, TargetEntry)
        after = forwarded.head + bytes(forwarded.payload)
        size = metadata_size(after)
        assert [one.origin for one in marks_in(after[10 : 10 + size])] == [StampOrigin(PAIR, PLACE, place)]


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
