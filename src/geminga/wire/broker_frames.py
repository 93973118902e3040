"""The broker's decoder: clients' frames, with SENDs in runs, and ACKs of single entries read by hand."""

from dataclasses import dataclass
from typing import ClassVar, Final

from geminga.wire.frames import HOT_READERS, Frame, FrameDecoder, SendFrame
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.send_runs import read_run
from geminga.wire.varint import read_varint

ACK: Final = 10
ACK_HEAD: Final = 0x080A52
"""08, the type, and the tag of the body."""
_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1
_MESSAGE_ID = b"\x10\x00\x1a"
"""Individual ack type, and the tag of a message id."""


@dataclass(slots=True, repr=False, eq=False)
class AckFrame(Frame):
    """An individual ACK of one whole entry. ``request_id`` is None without a receipt."""

    consumer_id: int
    ledger_id: int
    entry_id: int
    request_id: int | None
    entry: None = None

    type = ACK

    @property
    def command(self) -> pb.BaseCommand:
        command = pb.BaseCommand(type=pb.BaseCommand.ACK)
        command.ack.consumer_id = self.consumer_id
        command.ack.ack_type = pb.CommandAck.Individual
        command.ack.message_id.add(ledgerId=self.ledger_id, entryId=self.entry_id)
        if self.request_id is not None:
            command.ack.request_id = self.request_id
        return command


def read_ack(data: bytes, position: int, end: int, frame_end: int, consumer_id: int) -> AckFrame | None:
    """Read an ACK by hand; None, `IndexError` or `ValueError`: protobuf must read the command."""
    if consumer_id > 127:
        consumer_id, position = read_varint(data, position - 1)
    behind = position + 5
    if data[position : position + 3] != _MESSAGE_ID or data[behind - 1] != 0x08 or end != frame_end:
        return None
    place_end = behind - 1 + data[position + 3]
    ledger_id, position = read_varint(data, behind)
    if data[position] != 0x10:
        return None
    entry_id, position = read_varint(data, position + 1)
    if position != place_end:
        position = _behind_places(data, position, place_end)
    if position != place_end or ledger_id > _INT64_MAX or entry_id > _INT64_MAX:
        return None
    request_id = None
    if position != end:
        if data[position] != 0x40:
            return None
        request_id, position = read_varint(data, position + 1)
        if position != end:
            return None
    return AckFrame(consumer_id, ledger_id, entry_id, request_id)


def _behind_places(data: bytes, position: int, end: int) -> int:
    """Skip partition and batch index, which acknowledge nothing by themselves; -1 at any other field."""
    for tag in (0x18, 0x20):
        if position < end and data[position] == tag:
            value, position = read_varint(data, position + 1)
            if _INT32_MAX < value < (1 << 64) - (1 << 31):
                return -1
    return position


class BrokerFrameDecoder(FrameDecoder):
    """A `FrameDecoder` that returns consecutive SENDs as `SendRun`, and plain ACKs as `AckFrame`.

    A single SEND stays a `SendFrame`. ``frames_max`` counts the SENDs of a run.
    """

    __slots__ = ()

    _readers: ClassVar = {**HOT_READERS, ACK_HEAD: read_ack}

    def _follow(
        self, first: Frame, data: bytes, start: int, frame_end: int, frames: list[Frame], room: int
    ) -> tuple[int, int]:
        if type(first) is not SendFrame or not room:
            return frame_end, 0
        run, end = read_run(first, data, start, frame_end, self.max_frame_size, room)
        if run is None:
            return frame_end, 0
        frames[-1] = run
        return end, len(run.entries) - 1
