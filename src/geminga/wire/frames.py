"""Frames: commands and entries, split from a stream of bytes.

Framing.md section 1. A frame is a 4-byte ``total_size``, a 4-byte ``command_size``, a ``BaseCommand``, and
for SEND and MESSAGE an entry (`wire.metadata`).

`FrameDecoder` takes bytes in any pieces. The three commands sent once per message or batch (SEND,
SEND_RECEIPT, MESSAGE) are read by hand into light objects; anything unusual in them, and every other command,
goes to protobuf, with the same result.

Memory. An incomplete frame is kept in one growing buffer, so a frame of n bytes costs n bytes and one copy
however it is split, and at most ``max_frame_size`` bytes are kept. The piece that completes it is added
whole, so that the frames after it are read together with it. Of a complete frame an entry of up to
`ENTRY_COPY_BYTES_MAX` bytes is a separate ``bytes``; a larger one is a ``memoryview`` into the bytes given to
`FrameDecoder.feed`, which stay in memory as long as it does: keep such a view briefly, or convert it to
``bytes`` first.

Errors. Invalid bytes raise `ProtocolError` (`FrameTooLarge` for an announced size above the limit) naming
them. Frames before the bad one in the same `feed` are not lost: they are returned, the error is put in
`FrameDecoder.error`, and the next `feed` raises it. After an error nothing more is read: there is no position
in the stream at which reading could resume.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from struct import Struct
from typing import ClassVar, Final

from geminga.errors import FrameTooLarge, ProtocolError
from geminga.ids import to_signed
from geminga.wire.checksum import Buffer
from geminga.wire.commands import parse_command, type_name
from geminga.wire.frame_encoding import (
    MESSAGE,
    SEND,
    SEND_RECEIPT,
    encode_command,
    encode_flow,
    encode_message,
    encode_messages,
    encode_send,
    encode_send_receipt,
)
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import excerpt
from geminga.wire.varint import MINUS_ONE, read_varint

__all__ = [
    "ENTRY_COPY_BYTES_MAX", "FRAME_PADDING", "INSTANCE_HEADER", "MAX_MESSAGE_SIZE", "MESSAGE",
    "PROTOCOL_VERSION", "SEND", "SEND_RECEIPT", "CommandFrame", "Frame", "FrameDecoder", "MessageFrame",
    "ReceiptFrame", "SendFrame", "encode_command", "encode_flow", "encode_message", "encode_messages",
    "encode_send", "encode_send_receipt", "parse_command",
]  # fmt: skip

MAX_MESSAGE_SIZE = 5 * 1024 * 1024
"""The broker's default limit of an entry's size in bytes, announced in CONNECTED."""
FRAME_PADDING = 10 * 1024
"""Bytes that a frame may have beyond ``max_message_size``, for its command and metadata."""
PROTOCOL_VERSION = 21
"""The newest protocol version of Pulsar 4.0, which this package speaks (framing.md section 2)."""
INSTANCE_HEADER = "X-Geminga-Instance"
"""HTTP header with the ``instance_id`` that the same broker sends in CONNECTED."""
ENTRY_COPY_BYTES_MAX = 4096
"""Entries up to this size are copied out of the read buffer, which costs less than a view."""

FRAMES_UNLIMITED: Final = 1 << 62
_SIZE = Struct(">I")


class Frame:
    """Common interface of all frames. ``type`` is the number of ``BaseCommand.Type``."""

    __slots__ = ("entry",)

    type: int
    entry: Buffer | None
    _command: pb.BaseCommand | None = None

    @property
    def command(self) -> pb.BaseCommand:
        """The whole command. For the three hot types it is built on demand: use their attributes."""
        raise NotImplementedError

    def __repr__(self) -> str:
        size = "" if self.entry is None else f", entry of {len(self.entry)} bytes"
        return f"{type(self).__name__}({pb.BaseCommand.Type.Name(self.type)}{size})"


class CommandFrame(Frame):
    """Any command but the three hot ones."""

    __slots__ = ("command", "type")

    command: pb.BaseCommand

    def __init__(self, type: int, command: pb.BaseCommand) -> None:
        self.type = type
        self.command = command
        self.entry = None


@dataclass(slots=True, repr=False, eq=False)
class SendFrame(Frame):
    """SEND. ``highest_sequence_id`` is 0 when absent, ``num_messages`` 1.

    The rest of the fields are class attributes that hold the default; a SEND that has any is a
    `_FullSendFrame`.
    """

    producer_id: int
    sequence_id: int
    num_messages: int
    highest_sequence_id: int
    entry: Buffer

    type = SEND
    is_chunk = False
    txnid_least_bits = 0
    txnid_most_bits = 0

    @property
    def command(self) -> pb.BaseCommand:
        if self._command is not None:
            return self._command
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id = self.producer_id
        command.send.sequence_id = self.sequence_id
        if self.num_messages != 1:
            command.send.num_messages = self.num_messages
        if self.highest_sequence_id:
            command.send.highest_sequence_id = self.highest_sequence_id
        return command


class _FullSendFrame(SendFrame):
    """Has an instance dictionary, where the rare fields shadow the class's defaults."""


@dataclass(slots=True, repr=False, eq=False)
class ReceiptFrame(Frame):
    """SEND_RECEIPT. Ids are signed: 2^64-1 on the wire is -1; they are -1 when absent.

    ``highest_sequence_id`` is 0 when absent.
    """

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    ledger_id: int
    entry_id: int
    entry: None = None

    type = SEND_RECEIPT

    @property
    def command(self) -> pb.BaseCommand:
        if self._command is not None:
            return self._command
        highest = self.highest_sequence_id or None
        encoded = encode_send_receipt(
            self.producer_id, self.sequence_id, highest, self.ledger_id, self.entry_id
        )
        return pb.BaseCommand.FromString(encoded[8:])


class _FullReceiptFrame(ReceiptFrame):
    """Keeps the protobuf command that it was read from."""


@dataclass(slots=True, repr=False, eq=False)
class MessageFrame(Frame):
    """MESSAGE. ``partition`` is -1 for a topic without partitions, ``consumer_epoch`` -1 when absent.

    ``ack_set``: 64-bit words as signed numbers, a set bit is a batch position that is still
    unacknowledged; empty when the whole entry is.
    """

    consumer_id: int
    ledger_id: int
    entry_id: int
    partition: int
    redelivery_count: int
    ack_set: Sequence[int]
    consumer_epoch: int
    entry: Buffer

    type = MESSAGE

    @property
    def command(self) -> pb.BaseCommand:
        if self._command is not None:
            return self._command
        encoded = encode_message(
            self.consumer_id, self.ledger_id, self.entry_id, self.partition, 0, ack_set=self.ack_set,
            redelivery_count=self.redelivery_count, consumer_epoch=self.consumer_epoch,
        )  # fmt: skip
        return pb.BaseCommand.FromString(encoded[8:])


class _FullMessageFrame(MessageFrame):
    """Keeps the protobuf command that it was read from."""


# --- decoding ---------------------------------------------------------------------------------------


_HotReader = Callable[[bytes, int, int, int, int], Frame | None]


class FrameDecoder:
    """Splits a stream into frames; one for each direction of a connection.

    ``max_frame_size``: the largest frame in bytes, including its 4-byte length; may be set at any time
    (CONNECTED announces the broker's ``max_message_size``, to which `FRAME_PADDING` is added). ``error`` is
    the error that ended the stream, None before.
    """

    __slots__ = ("_needed", "_pending", "_rest", "_rest_start", "error", "max_frame_size")

    _readers: ClassVar[dict[int, _HotReader]]
    _follow: Callable[[Frame, bytes, int, int, list[Frame], int], tuple[int, int]] | None = None
    """Hook for decoders of runs: reads further frames after the one just read, up to a maximum number.

    Returns the position after the last one, and their number.
    """

    def __init__(self, max_frame_size: int = MAX_MESSAGE_SIZE + FRAME_PADDING) -> None:
        self.max_frame_size = max_frame_size
        self.error: ProtocolError | None = None
        self._pending: BytesIO | None = None
        self._needed = 0
        self._rest = b""
        self._rest_start = 0

    @property
    def pending_size(self) -> int:
        """Bytes of an incomplete frame."""
        return 0 if self._pending is None else self._pending.tell()

    @property
    def unread_size(self) -> int:
        """Bytes left unread because of ``frames_max``: `feed` without data continues with them."""
        return len(self._rest) - self._rest_start

    def feed(self, data: Buffer, frames_max: int = FRAMES_UNLIMITED) -> list[Frame]:
        """Return the frames that ``data`` completes, in order. ``bytes`` are not copied, other buffers are.

        At most ``frames_max`` frames are read, so that many small ones cannot take long; the rest
        (`unread_size`) is read by the next call, which may have no further bytes.

        Raises `ProtocolError` or `FrameTooLarge`; see the module's text for frames before the error.
        """
        if self.error is not None:
            raise self.error
        if type(data) is not bytes:
            data = bytes(data)
        start = 0
        if self._rest:
            rest, start = self._rest, self._rest_start
            self._rest, self._rest_start = b"", 0
            data, start = (rest[start:] + data, 0) if data else (rest, start)
        pending = self._pending
        if pending is not None:
            before = pending.tell()
            if before + len(data) >= self._needed and before < len(data):
                data = pending.getvalue() + data
            else:  # a large frame, which is not copied again
                pending.write(data)
                if pending.tell() < self._needed:
                    return []
                data = pending.getvalue()
            self._pending = None
        return self._frames_of(data, start, frames_max)

    def _frames_of(self, data: bytes, start: int, frames_max: int) -> list[Frame]:
        """Return the complete frames from ``start`` on; keep the rest, and an error after some frames."""
        frames: list[Frame] = []
        try:
            self._read(data, start, frames, frames_max)
        except ProtocolError as error:
            self.error = error
            if not frames:
                raise
        return frames

    def _frame_size(self, data: Buffer, position: int) -> int:
        """Return the checked size of the frame at ``position``, including its length field."""
        size: int = _SIZE.unpack_from(data, position)[0] + 4
        if size > self.max_frame_size:
            head = bytes(data[position : position + 4])
            if head[:2] == b"\x16\x03":
                raise ProtocolError(
                    f"a TLS handshake ({head.hex()}) came in on a connection without TLS: "
                    "use this address with pulsar://, or the TLS address with pulsar+ssl://"
                )
            if head[:2] == b"\x15\x03":
                raise ProtocolError(
                    f"a TLS alert ({head.hex()}) came in on a connection without TLS: the peer speaks TLS, "
                    "use its address with pulsar+ssl://"
                )
            if head == b"HTTP":
                raise ProtocolError(
                    "an HTTP answer came in: this is the address of a web server; use that of the binary "
                    "protocol (usually port 6650)"
                )
            if head in (b"\r\n\r\n", b"PROX"):
                raise ProtocolError(
                    "a header of the PROXY protocol came in: set proxy_protocol of the broker and let the "
                    "proxy send version 2, or let it send none"
                )
            if head in _HTTP_WORDS:
                raise ProtocolError(
                    f"an HTTP request ({head!r}) came in on the binary protocol's port: use the web port"
                )
            raise FrameTooLarge(
                f"a frame announces {size} bytes ({head.hex()}); at most {self.max_frame_size} are accepted"
            )
        if size < 9:
            raise ProtocolError(
                f"a frame announces {size - 4} bytes after its length: it cannot hold a command"
            )
        return size

    def _read(self, data: bytes, start: int, frames: list[Frame], frames_max: int) -> None:
        """Append the complete frames from ``start`` on; keep the rest."""
        end = len(data)
        limit = self.max_frame_size
        append, follow, readers = frames.append, self._follow, self._readers
        room = frames_max - len(frames)
        while end - start >= _HOT_HEAD_SIZE and room > 0:
            total, size, kind, tag, body_size, id_tag, number = _HOT_HEAD(data, start)
            frame_end = start + 4 + total
            if frame_end > end or frame_end - start > limit:
                break
            if id_tag == 8 and body_size == size - 4 and body_size < 128 and size + 4 <= total:
                reader = readers.get(kind << 8 | tag)
                if reader is not None:
                    try:
                        frame = reader(data, start + _HOT_HEAD_SIZE, start + 8 + size, frame_end, number)
                    except (IndexError, ValueError):
                        frame = None
                    if frame is not None:
                        append(frame)
                        room -= 1
                        if follow is not None and frame_end < end:
                            frame_end, more = follow(frame, data, start, frame_end, frames, room)
                            room -= more
                        start = frame_end
                        continue
            if total < 5:
                self._frame_size(data, start)  # raises
            append(_read_frame(data, start, frame_end))
            room -= 1
            start = frame_end
        needed = 4
        while end - start >= 4:
            if room <= 0:
                self._rest, self._rest_start = data, start
                return
            frame_end = start + self._frame_size(data, start)
            if frame_end > end:
                needed = frame_end - start
                break
            append(_read_frame(data, start, frame_end))
            room -= 1
            start = frame_end
        if start < end:
            self._needed, self._pending = needed, BytesIO()
            self._pending.write(memoryview(data)[start:])


_HTTP_WORDS = frozenset((b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN"))


def _read_frame(data: bytes, start: int, end: int) -> Frame:
    """Read the complete frame from ``start`` to ``end`` by protobuf."""
    command_size: int = _SIZE.unpack_from(data, start + 4)[0] if end - start >= 8 else 0
    command_end = start + 8 + command_size
    if command_end > end or command_size == 0:
        raise ProtocolError(
            f"a frame of {end - start} bytes announces a command of {command_size} bytes: "
            f"{excerpt(data[start:end])}"
        )
    command = parse_command(bytes(data[start + 8 : command_end]))
    kind = command.type
    if kind == SEND:
        return _full_send(command, entry_of(data, command_end, end))
    if kind == MESSAGE:
        return _full_message(command, entry_of(data, command_end, end))
    if command_end != end:
        raise ProtocolError(f"{end - command_end} bytes follow a {type_name(kind)} command inside its frame")
    if kind == SEND_RECEIPT:
        return _full_receipt(command)
    return CommandFrame(kind, command)


def entry_of(data: bytes, start: int, end: int) -> Buffer:
    """Return the entry from ``start`` to ``end``: a copy, or a view if it is large."""
    if end - start <= ENTRY_COPY_BYTES_MAX:
        return data[start:end]
    return memoryview(data)[start:end]


def _full_send(command: pb.BaseCommand, entry: Buffer) -> SendFrame:
    body = command.send
    frame = _FullSendFrame(
        body.producer_id, body.sequence_id, body.num_messages, body.highest_sequence_id, entry
    )
    frame._command = command
    frame.is_chunk = body.is_chunk
    frame.txnid_least_bits = body.txnid_least_bits
    frame.txnid_most_bits = body.txnid_most_bits
    return frame


def _full_receipt(command: pb.BaseCommand) -> ReceiptFrame:
    body = command.send_receipt
    known = body.HasField("message_id")
    frame = _FullReceiptFrame(
        body.producer_id, body.sequence_id, to_signed(body.highest_sequence_id),
        to_signed(body.message_id.ledgerId) if known else -1,
        to_signed(body.message_id.entryId) if known else -1,
    )  # fmt: skip
    frame._command = command
    return frame


def _full_message(command: pb.BaseCommand, entry: Buffer) -> MessageFrame:
    body = command.message
    place = body.message_id
    frame = _FullMessageFrame(
        body.consumer_id, to_signed(place.ledgerId), to_signed(place.entryId), place.partition,
        body.redelivery_count, tuple(body.ack_set),
        to_signed(body.consumer_epoch) if body.HasField("consumer_epoch") else -1, entry,
    )  # fmt: skip
    frame._command = command
    return frame


# --- the three hot commands, by hand ----------------------------------------------------------------
#  Each reader gets the position after the first byte of the body's first field, the ends of the command and
# of the frame, and that byte. It returns None, or raises IndexError or ValueError, for anything unknown,
# which protobuf then reads.

_HOT_HEAD = Struct(">IIHBBBB").unpack_from
"""Total size; command size; 08 and the type; the body's tag; its size; 08; the first byte of the id."""
_HOT_HEAD_SIZE = 14
_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


def _read_send(data: bytes, position: int, end: int, frame_end: int, producer_id: int) -> SendFrame | None:
    if producer_id > 127:
        producer_id, position = read_varint(data, position - 1)
    if data[position] != 0x10:
        return None
    sequence_id, position = read_varint(data, position + 1)
    num_messages = 1
    highest_sequence_id = 0
    while position < end:
        tag = data[position]
        if tag == 0x18:
            num_messages, position = read_varint(data, position + 1)
            if num_messages > _INT32_MAX:
                return None
        elif tag == 0x30:
            highest_sequence_id, position = read_varint(data, position + 1)
        else:
            return None
    if position != end:
        return None
    entry = entry_of(data, end, frame_end)
    return SendFrame(producer_id, sequence_id, num_messages, highest_sequence_id, entry)


def _read_receipt(
    data: bytes, position: int, end: int, frame_end: int, producer_id: int
) -> ReceiptFrame | None:
    if producer_id > 127:
        producer_id, position = read_varint(data, position - 1)
    if data[position] != 0x10 or end != frame_end:
        return None
    sequence_id, position = read_varint(data, position + 1)
    if data[position] != 0x1A:
        return None
    place_end = position + 2 + data[position + 1]
    if data[position + 2] != 0x08:
        return None
    ledger_id, position = read_varint(data, position + 3)
    if data[position] != 0x10:
        return None
    entry_id, position = read_varint(data, position + 1)
    if position != place_end:
        return None
    highest_sequence_id = 0
    if position != end:
        if data[position] != 0x20:
            return None
        if data[position + 1 : end] == MINUS_ONE:
            highest_sequence_id = -1
        else:
            highest_sequence_id, position = read_varint(data, position + 1)
            if position != end:
                return None
    if ledger_id > _INT64_MAX or entry_id > _INT64_MAX or highest_sequence_id > _INT64_MAX:
        return None
    return ReceiptFrame(producer_id, sequence_id, highest_sequence_id, ledger_id, entry_id)


def _read_message(
    data: bytes, position: int, end: int, frame_end: int, consumer_id: int
) -> MessageFrame | None:
    if consumer_id > 127:
        consumer_id, position = read_varint(data, position - 1)
    if data[position] != 0x12:
        return None
    place_end = position + 2 + data[position + 1]
    if data[position + 2] != 0x08:
        return None
    ledger_id, position = read_varint(data, position + 3)
    if data[position] != 0x10:
        return None
    entry_id, position = read_varint(data, position + 1)
    partition = -1
    if position != place_end:
        if data[position] != 0x18:
            return None
        if data[position + 1 : place_end] != MINUS_ONE:
            partition, position = read_varint(data, position + 1)
            if position != place_end or partition > _INT32_MAX:
                return None
    position = place_end
    redelivery_count = 0
    consumer_epoch = -1
    while position < end:
        tag = data[position]
        if tag == 0x18:
            redelivery_count, position = read_varint(data, position + 1)
        elif tag == 0x28:
            consumer_epoch, position = read_varint(data, position + 1)
        else:
            return None
    if position != end or redelivery_count > _INT32_MAX or consumer_epoch > _INT64_MAX:
        return None
    if ledger_id > _INT64_MAX or entry_id > _INT64_MAX:
        return None
    entry = entry_of(data, end, frame_end)
    return MessageFrame(
        consumer_id, ledger_id, entry_id, partition, redelivery_count, (), consumer_epoch, entry
    )


HOT_READERS: Final[dict[int, _HotReader]] = {
    0x080632: _read_send,
    0x08073A: _read_receipt,
    0x08094A: _read_message,
}
"""08, the type, and the tag of the body, to the reader of that command."""
FrameDecoder._readers = HOT_READERS
