"""Frames: commands and entries, split from a stream of bytes.

Framing.md section 1. A frame is a 4-byte ``total_size``, a 4-byte ``command_size``, a ``BaseCommand``, and
for SEND and MESSAGE an entry (`wire.metadata`).

`FrameDecoder` takes bytes in any pieces. Commands are read by protobuf; the three that are sent once per
message or batch (SEND, SEND_RECEIPT, MESSAGE) become light objects of their fields.

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
from typing import Any, Final

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
    command: Any = None
    """The whole command; None for the three frequent types, whose fields are attributes."""

    def __repr__(self) -> str:
        size = "" if self.entry is None else f", entry of {len(self.entry)} bytes"
        return f"{type(self).__name__}({pb.BaseCommand.Type.Name(self.type)}{size})"


class CommandFrame(Frame):
    """Any command but the three frequent ones."""

    __slots__ = ("command", "type")

    def __init__(self, type: int, command: pb.BaseCommand) -> None:
        self.type = type
        self.command = command
        self.entry = None


@dataclass(slots=True, repr=False, eq=False)
class SendFrame(Frame):
    """SEND. ``highest_sequence_id`` is 0 when absent, ``num_messages`` 1."""

    producer_id: int
    sequence_id: int
    num_messages: int
    highest_sequence_id: int
    entry: Buffer
    is_chunk: bool = False
    txnid_least_bits: int = 0
    txnid_most_bits: int = 0

    type = SEND


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


# --- decoding ---------------------------------------------------------------------------------------


class FrameDecoder:
    """Splits a stream into frames; one for each direction of a connection.

    ``max_frame_size``: the largest frame in bytes, including its 4-byte length; may be set at any time
    (CONNECTED announces the broker's ``max_message_size``, to which `FRAME_PADDING` is added). ``error`` is
    the error that ended the stream, None before.
    """

    __slots__ = ("_needed", "_pending", "_rest", "_rest_start", "error", "max_frame_size")

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

    def _refusal(self, data: Buffer, position: int, size: int) -> ProtocolError:
        """Return the error for the frame at ``position``, whose ``size`` is not allowed."""
        if size > self.max_frame_size:
            head = bytes(data[position : position + 4])
            if head[:2] == b"\x16\x03":
                return ProtocolError(
                    f"a TLS handshake ({head.hex()}) came in on a connection without TLS: "
                    "use this address with pulsar://, or the TLS address with pulsar+ssl://"
                )
            if head[:2] == b"\x15\x03":
                return ProtocolError(
                    f"a TLS alert ({head.hex()}) came in on a connection without TLS: the peer speaks TLS, "
                    "use its address with pulsar+ssl://"
                )
            if head == b"HTTP":
                return ProtocolError(
                    "an HTTP answer came in: this is the address of a web server; use that of the binary "
                    "protocol (usually port 6650)"
                )
            if head in (b"\r\n\r\n", b"PROX"):
                return ProtocolError(
                    "a header of the PROXY protocol came in: set proxy_protocol of the broker and let the "
                    "proxy send version 2, or let it send none"
                )
            if head in _HTTP_WORDS:
                return ProtocolError(
                    f"an HTTP request ({head!r}) came in on the binary protocol's port: use the web port"
                )
            return FrameTooLarge(
                f"a frame announces {size} bytes ({head.hex()}); at most {self.max_frame_size} are accepted"
            )
        return ProtocolError(f"a frame announces {size - 4} bytes after its length: it cannot hold a command")

    def _read(self, data: bytes, start: int, frames: list[Frame], frames_max: int) -> None:
        """Append the complete frames from ``start`` on; keep the rest."""
        end, limit, follow = len(data), self.max_frame_size, self._follow
        needed = 4
        while end - start >= 4:
            if frames_max <= 0:
                self._rest, self._rest_start = data, start
                return
            size: int = _SIZE.unpack_from(data, start)[0] + 4
            if not 9 <= size <= limit:
                raise self._refusal(data, start, size)
            frame_end = start + size
            if frame_end > end:
                needed = size
                break
            frame = _read_frame(data, start, frame_end)
            frames.append(frame)
            frames_max -= 1
            if follow is not None and frame_end < end:
                frame_end, more = follow(frame, data, start, frame_end, frames, frames_max)
                frames_max -= more
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
        send, entry = command.send, entry_of(data, command_end, end)
        frame = SendFrame(
            send.producer_id, send.sequence_id, send.num_messages, send.highest_sequence_id, entry
        )
        if send.is_chunk or send.txnid_most_bits or send.txnid_least_bits:
            frame.is_chunk = send.is_chunk
            frame.txnid_most_bits, frame.txnid_least_bits = send.txnid_most_bits, send.txnid_least_bits
        return frame
    if kind == MESSAGE:
        message = command.message
        place, words = message.message_id, message.ack_set
        epoch = to_signed(message.consumer_epoch) if message.HasField("consumer_epoch") else -1
        return MessageFrame(
            message.consumer_id, to_signed(place.ledgerId), to_signed(place.entryId), place.partition,
            message.redelivery_count, tuple(words) if words else (), epoch, entry_of(data, command_end, end),
        )  # fmt: skip
    if command_end != end:
        raise ProtocolError(f"{end - command_end} bytes follow a {type_name(kind)} command inside its frame")
    if kind == SEND_RECEIPT:
        receipt = command.send_receipt
        place, is_known = receipt.message_id, receipt.HasField("message_id")
        return ReceiptFrame(
            receipt.producer_id, receipt.sequence_id, to_signed(receipt.highest_sequence_id),
            to_signed(place.ledgerId) if is_known else -1, to_signed(place.entryId) if is_known else -1,
        )  # fmt: skip
    return CommandFrame(kind, command)


def entry_of(data: bytes, start: int, end: int) -> Buffer:
    """Return the entry from ``start`` to ``end``: a copy, or a view if it is large."""
    if end - start <= ENTRY_COPY_BYTES_MAX:
        return data[start:end]
    return memoryview(data)[start:end]
