"""ACKs of single entries: read by hand as protobuf reads them, or left to it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from geminga.wire.broker_frames import AckFrame, BrokerFrameDecoder
from geminga.wire.frames import CommandFrame, encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

NUMBER = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))
SMALL = st.one_of(st.none(), st.integers(-1, 300), st.integers(-(1 << 31), (1 << 31) - 1))


def ack(consumer_id: int = 1, ledger_id: int = 2, entry_id: int = 3, **fields: Any) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.ack_type = pb.CommandAck.Individual
    place = command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    for name, value in fields.items():
        if value is not None:
            setattr(place if name in ("partition", "batch_index") else command.ack, name, value)
    return command


@given(NUMBER, NUMBER, NUMBER, st.one_of(st.none(), NUMBER), SMALL, SMALL)
def test_plain_acks_are_decoded_without_protobuf(
    consumer_id, ledger_id, entry_id, request_id, partition,
    batch_index
):  # fmt: skip
    command = ack(
        consumer_id, ledger_id, entry_id, request_id=request_id, partition=partition, batch_index=batch_index
    )
    (frame,) = BrokerFrameDecoder().feed(encode_command(command))
    assert isinstance(frame, AckFrame) == (max(ledger_id, entry_id) < 1 << 63)
    # Which message of a batch it was, and in which partition, acknowledges nothing by itself.
    for field in ("partition", "batch_index"):
        command.ack.message_id[0].ClearField(field)
        if isinstance(frame, CommandFrame):
            frame.command.ack.message_id[0].ClearField(field)
    assert frame.command == command


def test_other_acks_are_decoded_by_protobuf():
    others = [ack(), ack(), ack(), ack(), ack(validation_error=1), ack(txnid_least_bits=1)]
    others[0].ack.ack_type = pb.CommandAck.Cumulative
    others[1].ack.message_id.add(ledgerId=5, entryId=6)
    others[2].ack.message_id[0].ack_set.append(1)
    others[3].ack.properties.add(key="k", value=1)
    for command in others:
        (frame,) = BrokerFrameDecoder().feed(encode_command(command))
        assert isinstance(frame, CommandFrame)
        assert frame.command == command


def test_an_ack_frame_returns_its_command():
    (frame,) = BrokerFrameDecoder().feed(encode_command(ack(request_id=4)))
    assert frame.type == pb.BaseCommand.ACK
    assert frame.command == ack(request_id=4)
