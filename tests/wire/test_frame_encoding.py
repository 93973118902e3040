"""Written frames against protobuf's own writer."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from geminga.wire import frames
from geminga.wire.frames import FrameDecoder, MessageFrame, ReceiptFrame, SendFrame
from geminga.wire.proto import pulsar_wire_pb2 as pb

U64 = st.integers(0, (1 << 64) - 1)
ID = st.one_of(st.integers(0, 300), st.integers(0, 1 << 30), st.integers(0, (1 << 63) - 1))


def whole_frame(command: pb.BaseCommand, entry: bytes = b"") -> bytes:
    body = command.SerializeToString()
    return struct.pack(">II", len(body) + 4 + len(entry), len(body)) + body + entry


@given(
    st.tuples(ID, U64, st.integers(-(1 << 31), (1 << 31) - 1), st.none() | U64),
    st.tuples(st.booleans(), st.none() | st.tuples(U64, U64)),
    st.binary(max_size=20),
)
def test_encode_send(numbers, rare, entry):
    producer_id, sequence_id, num_messages, highest = numbers
    is_chunk, transaction = rare
    most, least = transaction or (None, None)
    head = frames.encode_send(
        producer_id, sequence_id, num_messages, highest, len(entry),
        is_chunk=is_chunk, transaction=transaction,
    )  # fmt: skip
    expected = pb.BaseCommand(type=pb.BaseCommand.SEND)
    body = expected.send
    body.producer_id, body.sequence_id = producer_id, sequence_id
    for name, value, unset in (
        ("num_messages", num_messages, 1),
        ("highest_sequence_id", highest, None),
        ("is_chunk", is_chunk, False),
        ("txnid_least_bits", least, None),
        ("txnid_most_bits", most, None),
    ):
        if value != unset or (unset is None and value is not None):
            setattr(body, name, value)
    assert head + entry == whole_frame(expected, entry)
    (frame,) = FrameDecoder().feed(head + entry)
    assert isinstance(frame, SendFrame)
    assert (frame.producer_id, frame.sequence_id, frame.num_messages) == numbers[:3]
    assert (frame.highest_sequence_id, frame.is_chunk) == (highest or 0, is_chunk)
    assert (frame.txnid_most_bits, frame.txnid_least_bits, frame.entry) == (most or 0, least or 0, entry)


@given(ID, U64, st.none() | U64, st.just(-1) | ID, st.just(-1) | ID)
def test_encode_receipt(producer, sequence, highest, ledger, entry):
    expected = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
    body = expected.send_receipt
    body.producer_id, body.sequence_id = producer, sequence
    body.message_id.ledgerId, body.message_id.entryId = ledger % (1 << 64), entry % (1 << 64)
    if highest is not None:
        body.highest_sequence_id = highest
    encoded = frames.encode_send_receipt(producer, sequence, highest, ledger, entry)
    assert encoded == whole_frame(expected)
    (frame,) = FrameDecoder().feed(encoded)
    assert isinstance(frame, ReceiptFrame)
    assert (frame.producer_id, frame.sequence_id) == (producer, sequence)
    assert (frame.ledger_id, frame.entry_id) == (ledger, entry)
    assert frame.highest_sequence_id % (1 << 64) == (highest or 0)


@given(
    st.tuples(ID, ID, ID, st.integers(-1, (1 << 31) - 1)),
    st.integers(0, (1 << 32) - 1),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20),
    st.just(-1) | ID,
    st.binary(max_size=20),
)
def test_encode_message(numbers, redelivered, ack_set, epoch, entry):
    consumer_id, ledger_id, entry_id, partition = numbers
    expected = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    body = expected.message
    body.consumer_id = consumer_id
    body.message_id.ledgerId, body.message_id.entryId = ledger_id, entry_id
    body.message_id.partition = partition
    if redelivered:
        body.redelivery_count = redelivered
    body.ack_set.extend(ack_set)
    if epoch >= 0:
        body.consumer_epoch = epoch
    head = frames.encode_message(
        consumer_id, ledger_id, entry_id, partition, len(entry),
        redelivery_count=redelivered, ack_set=ack_set, consumer_epoch=epoch,
    )  # fmt: skip
    assert head + entry == whole_frame(expected, entry)
    (frame,) = FrameDecoder().feed(head + entry)
    assert isinstance(frame, MessageFrame)
    assert (frame.consumer_id, frame.ledger_id, frame.entry_id, frame.partition) == numbers
    assert (frame.redelivery_count, list(frame.ack_set)) == (redelivered, ack_set)
    assert (frame.consumer_epoch, frame.entry) == (epoch, entry)


@given(ID, st.integers(0, (1 << 32) - 1))
def test_encode_flow(consumer_id, permits):
    expected = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    expected.flow.consumer_id, expected.flow.messagePermits = consumer_id, permits
    assert frames.encode_flow(consumer_id, permits) == whole_frame(expected)


@given(
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.one_of(st.integers(0, 40_000), st.integers(0, 1 << 60)),
    st.sampled_from([-1, 0, 5, 300]),
    st.sampled_from([-1, 0, 7, 1 << 30]),
    st.lists(st.binary(max_size=300), min_size=1, max_size=200),
)
def test_messages_that_follow_each_other_are_written_as_each_is(
    consumer_id, ledger_id, first, partition, epoch, entries
):  # fmt: skip
    expected = b"".join(
        frames.encode_message(
            consumer_id, ledger_id, first + index, partition, len(entry), consumer_epoch=epoch
        )
        + entry
        for index, entry in enumerate(entries)
    )
    written = frames.encode_messages(consumer_id, ledger_id, first, partition, entries, consumer_epoch=epoch)
    assert written == expected
