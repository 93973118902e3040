"""Encoded operations, compared with frames of the Java and C++ clients and protobuf's own parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded_frames

from geminga.errors import MessageTooBig
from geminga.producer.message import OutgoingMessage, RichMessage, build_message, simple_message
from geminga.producer.operation import SendOperation, name_field, schema_version_field
from geminga.wire.batch import decode_batch
from geminga.wire.compression import decompress
from geminga.wire.frames import FrameDecoder
from geminga.wire.metadata import parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

MAX = 5 * 1024 * 1024


def recorded_sends():
    for recorded in recorded_frames("SEND"):
        entry = parse_entry(recorded.entry)
        metadata = entry.metadata
        if metadata.encryption_keys or metadata.num_chunks_from_msg > 1:
            continue
        if metadata.HasField("txnid_most_bits"):
            continue  # transactions are not supported
        yield pytest.param(recorded, recorded.frame, entry, id=f"{recorded.case}-{recorded.number}")


def outgoing(metadata, payload, properties=None):
    """The message that a recorded metadata describes."""
    has = metadata.HasField
    return OutgoingMessage(
        payload,
        null_value=metadata.null_value,
        partition_key=metadata.partition_key if has("partition_key") else None,
        partition_key_b64=metadata.partition_key_b64_encoded,
        ordering_key=metadata.ordering_key if has("ordering_key") else None,
        properties=tuple((p.key, p.value) for p in metadata.properties),
        event_time=metadata.event_time,
    )


def rebuild(send, entry):
    """Our operation for what a recorded frame carries."""
    metadata = entry.metadata
    payload = bytes(entry.payload)
    body = decompress(metadata.compression, payload, metadata.uncompressed_size or len(payload), limit=MAX)
    if metadata.HasField("num_messages_in_batch"):
        singles = []
        for single in decode_batch(body, metadata.num_messages_in_batch):
            singles.append(
                OutgoingMessage(
                    bytes(single.payload), null_value=single.null_value, partition_key=single.partition_key,
                    partition_key_b64=single.partition_key_b64, ordering_key=single.ordering_key,
                    properties=tuple(single.properties.items()), event_time=single.event_time,
                    sequence_id=single.sequence_id,
                )
            )  # fmt: skip
        first = singles[0]
    else:
        singles = [outgoing(metadata, body)]
        first = singles[0]
    first.replicate_to = tuple(metadata.replicate_to)
    first.deliver_at_time = metadata.deliver_at_time
    first.schema_version = metadata.schema_version if metadata.HasField("schema_version") else None
    batch = metadata.HasField("num_messages_in_batch")
    operation = SendOperation(
        [m.payload for m in singles], [None] * len(singles), len(singles), sequence_id=metadata.sequence_id,
        highest_sequence_id=metadata.highest_sequence_id or metadata.sequence_id + len(singles) - 1,
        size=0, permits=0, opened_at=0.0, deadline=0.0, is_batch=batch, compression=metadata.compression,
        messages=dict(enumerate(singles)),
        sequence_ids=[m.sequence_id for m in singles] if batch else None,
    )  # fmt: skip
    operation.publish_time = metadata.publish_time
    return operation


@pytest.mark.parametrize(("recorded", "send", "entry"), list(recorded_sends()))
def test_what_official_clients_sent_is_written_with_the_same_meaning(recorded, send, entry):
    operation = rebuild(send, entry)
    head, body = operation.frame(send.producer_id, name_field(entry.metadata.producer_name), 0, MAX)
    (ours,) = FrameDecoder(1 << 26).feed(head + bytes(body))
    written = parse_entry(ours.entry)
    expected, got = pb.MessageMetadata(), pb.MessageMetadata()
    expected.CopyFrom(entry.metadata)
    got.CopyFrom(written.metadata)
    for metadata in (expected, got):
        # Java writes defaults out and the size of plain messages; C++ leaves the highest id of a batch out.
        metadata.ClearField("highest_sequence_id")
        if not metadata.compression:
            metadata.ClearField("compression")
        if not metadata.compression or operation.is_batch:
            metadata.ClearField("uncompressed_size")
        if not metadata.partition_key_b64_encoded:
            metadata.ClearField("partition_key_b64_encoded")
    assert got == expected
    assert (ours.sequence_id, ours.num_messages) == (send.sequence_id, send.num_messages)
    sizes = [m.uncompressed_size or len(m_payload) for m, m_payload in
             ((entry.metadata, entry.payload), (written.metadata, written.payload))]  # fmt: skip
    theirs = decompress(entry.metadata.compression, bytes(entry.payload), sizes[0], limit=MAX)
    mine = decompress(written.metadata.compression, bytes(written.payload), sizes[1], limit=MAX)
    if recorded.case.startswith("py."):
        assert mine == theirs  # C++ writes the same bytes, single metadata included
    if recorded.case.startswith("py.") and not operation.is_batch and not operation.compression:
        assert head + bytes(body) == recorded.data


def simple(count=1, first=5, payload=b"hello", **changes):
    values = {
        "sequence_id": first, "highest_sequence_id": first + count - 1, "size": 0, "permits": 0,
        "opened_at": 0.0, "deadline": 0.0, "is_batch": count > 1,
    }  # fmt: skip
    values.update(changes)
    return SendOperation(values.pop("payloads", [payload] * count), [None] * count, count, **values)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "in a run"])
@pytest.mark.parametrize(
    ("key", "payload", "has_size"), [("k", b"", True), ("k", b"x", False), (None, b"", False)]
)
def test_deletions_of_keys_have_a_size(key, payload, has_size, others):
    """Without it, compaction by Apache Pulsar 4.0 keeps them."""
    message = simple_message(payload, key, ())
    operation = simple(
        1 + others, payloads=[payload, b"next"][: 1 + others], is_batch=False, is_run=bool(others),
        messages={0: message, 1: None} if others else {0: message},
    )  # fmt: skip
    first, *_ = FrameDecoder(1 << 26).feed(b"".join(map(bytes, operation.frame(7, name_field("p"), 0, MAX))))
    metadata = parse_entry(first.entry).metadata
    assert (metadata.HasField("uncompressed_size"), metadata.uncompressed_size) == (has_size, 0)


def test_a_resend_writes_the_same_bytes():
    operation = simple(count=2)
    once = operation.frame(9, name_field("me"), 100, MAX)
    again = operation.frame(9, name_field("me"), 999, MAX)
    assert once == again
    assert operation.publish_time == 100


def test_the_limit_counts_metadata_and_body():
    operation = simple(payload=b"x" * 100)
    head, body = simple(payload=b"x" * 100).frame(9, name_field("me"), 1, MAX)
    metadata_size = int.from_bytes(head[-len(head) :][head.rindex(b"\x0e\x01") + 6 :][:4], "big")
    limit = metadata_size + len(body)
    with pytest.raises(MessageTooBig, match=f"max_message_size is {limit - 1}"):
        operation.frame(9, name_field("me"), 1, limit - 1)
    operation.frame(9, name_field("me"), 1, limit)


def test_a_damaged_copy_is_noticed():
    operation = simple(payload=b"x" * 50)
    assert operation.checksum_is_intact()
    operation.frame(9, name_field("me"), 1, MAX)
    assert operation.checksum_is_intact()
    operation.body = b"y" + operation.body[1:]
    assert not operation.checksum_is_intact()


MESSAGES = st.lists(
    st.builds(
        build_message,
        st.one_of(st.none(), st.binary(max_size=40)),
        properties=st.sampled_from([None, {"a": "b"}, {"a": "ä", "": "v" * 200}]),
        partition_key=st.sampled_from([None, "k", "ключ"]),
        ordering_key=st.sampled_from([None, "o", b"\xff" * 130]),
        replication_clusters=st.sampled_from([None, ["east"], ["east", "west"]]),
        event_timestamp=st.sampled_from([None, 0, 1, 1_700_000_000_000, (1 << 63) - 1]),
        deliver_at=st.sampled_from([None, 1_700_000_000_000]),
        kind=st.just(RichMessage),
    )
    | st.builds(simple_message, st.binary(max_size=40), st.sampled_from([None, "k"]))
    | st.none(),
    min_size=2,
    max_size=12,
).filter(any)


@given(
    MESSAGES, st.sampled_from([0, 126, 16_380, 1 << 40]), st.integers(0, 1), st.sampled_from([b"", bytes(8)])
)
def test_messages_of_a_run_keep_all_their_fields(messages, first, done, schema):
    payloads = [b"plain" if each is None else each.payload for each in messages]
    by_index = {index: each for index, each in enumerate(messages) if each is not None}
    run = simple(len(messages), first, payloads=payloads, is_batch=False, is_run=True, messages=by_index)
    run.permits = len(messages)
    singles = run.singles()
    if done:
        run.split_off(1, 0, 0)
    fixed = 7, name_field("p"), 5, MAX, schema_version_field(schema)
    frames = FrameDecoder(1 << 26).feed(b"".join(map(bytes, run.frame(*fixed))))
    assert len(frames) == len(messages) - done
    for frame, single, payload in zip(frames, singles[done:], payloads[done:], strict=True):
        head, body = single.frame(*fixed)
        (alone,) = FrameDecoder(1 << 26).feed(head + bytes(body))
        expected, got = parse_entry(alone.entry), parse_entry(frame.entry)
        assert (got.metadata, bytes(got.payload)) == (expected.metadata, payload)
        assert frame.sequence_id == alone.sequence_id == got.metadata.sequence_id
        assert frame.entry == alone.entry, "sent again alone it would have other bytes"
        message = single.messages[0] if single.messages else simple_message(b"", None)
        assert outgoing_fields(outgoing(got.metadata, payload)) == outgoing_fields(message)
        assert tuple(got.metadata.replicate_to) == message.replicate_to
        assert got.metadata.deliver_at_time == message.deliver_at_time


@given(MESSAGES, st.sampled_from([0, 126, 16_380, 1 << 40]))
def test_messages_of_a_batch_keep_all_their_fields(messages, first):
    payloads = [b"plain" if each is None else each.payload for each in messages]
    by_index = {index: each for index, each in enumerate(messages) if each is not None}
    operation = simple(len(messages), first, payloads=payloads, messages=by_index)
    operation.encode_body()
    data = bytes(operation.body)
    for sequence_id, (message, payload) in enumerate(zip(messages, payloads, strict=True), first):
        size = int.from_bytes(data[:4], "big")
        metadata = pb.SingleMessageMetadata.FromString(data[4 : 4 + size])
        end = 4 + size + metadata.payload_size
        assert (metadata.sequence_id, data[4 + size : end]) == (sequence_id, payload)
        found = outgoing_fields(outgoing(metadata, payload))
        assert found == outgoing_fields(message or simple_message(b"", None))
        data = data[end:]
    assert not data


def outgoing_fields(message):
    """Return the fields that a message has in a batch, too."""
    return (
        message.null_value, message.partition_key, message.ordering_key, message.properties,
        message.event_time,
    )  # fmt: skip
