"""Frames: how commands and entries are cut out of, and put into, a stream of bytes.

Framing.md section 1. A frame is a 4-byte ``total_size``, a 4-byte ``command_size``, a ``BaseCommand``,
and for SEND and MESSAGE an entry (`wire.metadata`).

`FrameDecoder` takes bytes in any pieces. The three commands that travel once a message or batch (SEND,
SEND_RECEIPT, MESSAGE) are read by hand into light objects; anything unusual in them, and every other
command, goes to protobuf, with the same result.

Memory. An incomplete frame is kept in one growing buffer, so a frame of n bytes costs n bytes and one
copy however it is cut, and never more than ``max_frame_size`` bytes wait. Of a complete frame an entry
of up to `ENTRY_COPY_BYTES_MAX` bytes is a ``bytes`` of its own; a larger one is a ``memoryview`` into
the bytes given to `FrameDecoder.feed`, which stay in memory as long as it does: keep such a view
briefly, or make it ``bytes`` first.

Errors. Whatever is wrong raises `ProtocolError` (`FrameTooLarge` for an announced size above the limit)
saying what was seen. Frames before the bad one in the same `feed` are not lost: they are returned, the
error is put in `FrameDecoder.error`, and the next `feed` raises it. After an error nothing more is read:
the stream has no place where reading could start again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from geminga.errors import FrameTooLarge, ProtocolError
from geminga.ids import to_signed
from geminga.wire.checksum import Buffer
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.varint import MINUS_ONE, MORE, SHORT, varint

MAX_MESSAGE_SIZE = 5 * 1024 * 1024
"""The broker's default limit of an entry's size in bytes, announced in CONNECTED."""
FRAME_PADDING = 10 * 1024
"""What a frame may be larger than ``max_message_size``, in bytes, for its command and metadata."""
PROTOCOL_VERSION = 21
"""The newest protocol version of Pulsar 4.0, which this package speaks (framing.md section 2)."""
ENTRY_COPY_BYTES_MAX = 4096
"""Entries up to this size are copied out of the read buffer: that costs less than a view of it."""

SEND: Final = 6
SEND_RECEIPT: Final = 7
MESSAGE: Final = 9

_HEADER = Struct(">II")
_SIZE = Struct(">I")


class Frame:
    """What all frames share. ``type`` is the number of ``BaseCommand.Type``."""

    __slots__ = ("entry",)

    type: int
    entry: Buffer | None

    @property
    def command(self) -> pb.BaseCommand:
        """The whole command. For the three hot types it is built on demand: use their attributes."""
        raise NotImplementedError

    @property
    def send(self) -> SendFrame | None:
        """This frame if it is a SEND."""
        return None

    @property
    def receipt(self) -> ReceiptFrame | None:
        """This frame if it is a SEND_RECEIPT."""
        return None

    @property
    def message(self) -> MessageFrame | None:
        """This frame if it is a MESSAGE."""
        return None

    def __repr__(self) -> str:
        size = "" if self.entry is None else f", entry of {len(self.entry)} bytes"
        return f"{type(self).__name__}({pb.BaseCommand.Type.Name(self.type)}{size})"  # type: ignore[arg-type]


class CommandFrame(Frame):
    """Any command but the three hot ones."""

    __slots__ = ("command", "type")

    command: pb.BaseCommand

    def __init__(self, type: int, command: pb.BaseCommand) -> None:
        self.type = type
        self.command = command
        self.entry = None


class SendFrame(Frame):
    """SEND. ``highest_sequence_id`` is 0 when absent, ``num_messages`` 1.

    The rest of the fields are class attributes that hold the default; a SEND that has any is a
    `_FullSendFrame`.
    """

    __slots__ = ("highest_sequence_id", "num_messages", "producer_id", "sequence_id")

    type = SEND
    entry: Buffer
    is_chunk: bool = False
    marker: bool = False
    txnid_least_bits: int = 0
    txnid_most_bits: int = 0
    message_id: pb.MessageIdData | None = None
    _command: pb.BaseCommand | None = None

    def __init__(
        self, producer_id: int, sequence_id: int, num_messages: int, highest_sequence_id: int, entry: Buffer
    ) -> None:
        self.producer_id = producer_id
        self.sequence_id = sequence_id
        self.num_messages = num_messages
        self.highest_sequence_id = highest_sequence_id
        self.entry = entry

    @property
    def send(self) -> SendFrame:
        return self

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


class ReceiptFrame(Frame):
    """SEND_RECEIPT. Ids are signed: -1 is what travels as 2^64-1; they are -1 when absent.

    ``highest_sequence_id`` is 0 when absent.
    """

    __slots__ = ("entry_id", "highest_sequence_id", "ledger_id", "producer_id", "sequence_id")

    type = SEND_RECEIPT
    _command: pb.BaseCommand | None = None

    def __init__(
        self, producer_id: int, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int
    ) -> None:
        self.producer_id = producer_id
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.entry = None

    @property
    def receipt(self) -> ReceiptFrame:
        return self

    @property
    def command(self) -> pb.BaseCommand:
        if self._command is not None:
            return self._command
        return pb.BaseCommand.FromString(
            encode_send_receipt(
                self.producer_id,
                self.sequence_id,
                self.highest_sequence_id or None,
                self.ledger_id,
                self.entry_id,
            )[8:]
        )


class _FullReceiptFrame(ReceiptFrame):
    """Keeps the protobuf command that it came from."""


class MessageFrame(Frame):
    """MESSAGE. ``partition`` is -1 for a topic without partitions, ``consumer_epoch`` -1 when absent.

    ``ack_set``: 64-bit words as signed numbers, a set bit is a batch position that is still
    unacknowledged; empty when the whole entry is.
    """

    __slots__ = (
        "ack_set",
        "consumer_epoch",
        "consumer_id",
        "entry_id",
        "ledger_id",
        "partition",
        "redelivery_count",
    )

    type = MESSAGE
    entry: Buffer
    _command: pb.BaseCommand | None = None

    def __init__(
        self,
        consumer_id: int,
        ledger_id: int,
        entry_id: int,
        partition: int,
        redelivery_count: int,
        ack_set: Sequence[int],
        consumer_epoch: int,
        entry: Buffer,
    ) -> None:
        self.consumer_id = consumer_id
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.partition = partition
        self.redelivery_count = redelivery_count
        self.ack_set = ack_set
        self.consumer_epoch = consumer_epoch
        self.entry = entry

    @property
    def message(self) -> MessageFrame:
        return self

    @property
    def command(self) -> pb.BaseCommand:
        if self._command is not None:
            return self._command
        return pb.BaseCommand.FromString(
            encode_message(
                self.consumer_id,
                self.ledger_id,
                self.entry_id,
                self.partition,
                0,
                redelivery_count=self.redelivery_count,
                ack_set=self.ack_set,
                consumer_epoch=self.consumer_epoch,
            )[8:]
        )


class _FullMessageFrame(MessageFrame):
    """Keeps the protobuf command that it came from."""


# --- what protobuf does not check -------------------------------------------------------------------

_BODY_FIELDS: Final[dict[int, str]] = {
    field.number: field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.number != pb.BaseCommand.TYPE_FIELD_NUMBER
}
"""Number of a command's type to the name of its body: the numbers are the same (framing.md 1.1)."""


@lru_cache(maxsize=None)
def _holds_text(descriptor: Descriptor) -> bool:
    """Whether the message, or a message inside it, has a string field."""
    return _holds_text_within(descriptor, set())


def _holds_text_within(descriptor: Descriptor, seen: set[str]) -> bool:
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        field.type == FieldDescriptor.TYPE_STRING
        or (field.message_type is not None and _holds_text_within(field.message_type, seen))
        for field in descriptor.fields
    )


def _check_text(message: Message, where: str) -> None:
    """Refuse text that is not UTF-8: protobuf lets it pass and hands it out as bytes."""
    for field, value in message.ListFields():
        values: Sequence[Any] = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_STRING:
            for item in values:
                if not isinstance(item, str):
                    raise ProtocolError(f"{where}.{field.name} is not UTF-8 text: {bytes(item)[:40].hex()}")
        elif field.message_type is not None and _holds_text(field.message_type):
            for item in values:
                _check_text(item, f"{where}.{field.name}")


def parse_command(data: bytes) -> pb.BaseCommand:
    """A complete and known command. Raises `ProtocolError` for anything else, saying what was seen."""
    try:
        command = pb.BaseCommand.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"a command of {len(data)} bytes is no protobuf: {_excerpt(data)}") from error
    if not command.HasField("type"):
        unknown = [field.data for field in UnknownFieldSet(command) if field.field_number == 1]
        what = f"the unknown command type {unknown[-1]}" if unknown else "a command without a type"
        raise ProtocolError(f"{what} was received: {_excerpt(data)}")
    name = _BODY_FIELDS.get(command.type)
    if name is None or not command.HasField(name):  # type: ignore[arg-type]
        raise ProtocolError(f"a {_type_name(command.type)} command came without its body: {_excerpt(data)}")
    if not command.IsInitialized():
        missing = ", ".join(command.FindInitializationErrors())
        raise ProtocolError(f"a {_type_name(command.type)} command lacks {missing}")
    body = getattr(command, name)
    if _holds_text(body.DESCRIPTOR):
        _check_text(body, name)
    return command


def _type_name(number: int) -> str:
    return pb.BaseCommand.Type.Name(number)  # type: ignore[arg-type]


def _excerpt(data: Buffer) -> str:
    return bytes(data[:32]).hex() + ("..." if len(data) > 32 else "")


# --- decoding ---------------------------------------------------------------------------------------


class FrameDecoder:
    """Cuts a stream into frames; one for each direction of a connection.

    ``max_frame_size``: the largest frame in bytes, its 4-byte length included; may be set at any time
    (CONNECTED announces the broker's ``max_message_size``, to which `FRAME_PADDING` is added).
    ``error`` is the error that ended the stream, None while it is well.
    """

    __slots__ = ("_needed", "_pending", "error", "max_frame_size")

    def __init__(self, max_frame_size: int = MAX_MESSAGE_SIZE + FRAME_PADDING) -> None:
        self.max_frame_size = max_frame_size
        self.error: ProtocolError | None = None
        self._pending = bytearray()
        self._needed = 4

    @property
    def pending_size(self) -> int:
        """Bytes of an incomplete frame that are waiting for the rest."""
        return len(self._pending)

    def feed(self, data: Buffer) -> list[Frame]:
        """The frames that ``data`` completes, in order. ``bytes`` are not copied, other buffers are.

        Raises `ProtocolError` or `FrameTooLarge`; see the module's text for frames before the error.
        """
        if self.error is not None:
            raise self.error
        if type(data) is not bytes:
            data = bytes(data)
        frames: list[Frame] = []
        try:
            start = self._finish_pending(data, frames) if self._pending else 0
            if start >= 0:
                self._read(data, start, frames)
        except ProtocolError as error:
            self.error = error
            self._pending = bytearray()
            if not frames:
                raise
        return frames

    def _finish_pending(self, data: bytes, frames: list[Frame]) -> int:
        """Complete the waiting frame; the place in ``data`` after it, -1 when it is still incomplete."""
        pending = self._pending
        view = memoryview(data)
        taken = 0
        while True:
            piece = view[taken : taken + self._needed - len(pending)]
            pending += piece
            taken += len(piece)
            if len(pending) < self._needed:
                return -1
            if self._needed > 4:
                break
            self._needed = self._frame_size(pending, 0)
        frame = bytes(pending)
        self._pending = bytearray()
        self._needed = 4
        self._read(frame, 0, frames)
        return taken

    def _frame_size(self, data: Buffer, position: int) -> int:
        """The checked size of the frame at ``position``, its length field included."""
        size: int = _SIZE.unpack_from(data, position)[0] + 4
        if size > self.max_frame_size:
            head = bytes(data[position : position + 4])
            if head[:2] == b"\x16\x03":
                raise ProtocolError(
                    f"a TLS handshake ({head.hex()}) came in on a connection without TLS: "
                    "use this address with pulsar://, or the TLS address with pulsar+ssl://"
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

    def _read(self, data: bytes, start: int, frames: list[Frame]) -> None:
        """Append the complete frames from ``start`` on; keep the rest."""
        end = len(data)
        while end - start >= 4:
            frame_end = start + self._frame_size(data, start)
            if frame_end > end:
                self._needed = frame_end - start
                break
            frames.append(_read_frame(data, start, frame_end))
            start = frame_end
        if start < end:
            self._pending += memoryview(data)[start:]


_HTTP_WORDS = frozenset((b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN"))


def _read_frame(data: bytes, start: int, end: int) -> Frame:
    """The complete frame between two places."""
    if end - start < 8:
        raise ProtocolError(f"a frame of {end - start} bytes ends before its command size")
    command_size: int = _HEADER.unpack_from(data, start)[1]
    command_end = start + 8 + command_size
    if command_end > end or command_size == 0:
        raise ProtocolError(
            f"a frame of {end - start} bytes announces a command of {command_size} bytes: "
            f"{_excerpt(data[start:end])}"
        )
    command = parse_command(data[start + 8 : command_end])
    kind = command.type
    if kind == SEND:
        return _full_send(command, _entry_of(data, command_end, end))
    if kind == MESSAGE:
        return _full_message(command, _entry_of(data, command_end, end))
    if command_end != end:
        raise ProtocolError(f"{end - command_end} bytes follow a {_type_name(kind)} command inside its frame")
    if kind == SEND_RECEIPT:
        return _full_receipt(command)
    return CommandFrame(kind, command)


def _entry_of(data: bytes, start: int, end: int) -> Buffer:
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
    frame.marker = body.marker
    frame.txnid_least_bits = body.txnid_least_bits
    frame.txnid_most_bits = body.txnid_most_bits
    if body.HasField("message_id"):
        frame.message_id = body.message_id
    return frame


def _full_receipt(command: pb.BaseCommand) -> ReceiptFrame:
    body = command.send_receipt
    known = body.HasField("message_id")
    frame = _FullReceiptFrame(
        body.producer_id,
        body.sequence_id,
        to_signed(body.highest_sequence_id),
        to_signed(body.message_id.ledgerId) if known else -1,
        to_signed(body.message_id.entryId) if known else -1,
    )
    frame._command = command
    return frame


def _full_message(command: pb.BaseCommand, entry: Buffer) -> MessageFrame:
    body = command.message
    place = body.message_id
    frame = _FullMessageFrame(
        body.consumer_id,
        to_signed(place.ledgerId),
        to_signed(place.entryId),
        place.partition,
        body.redelivery_count,
        tuple(body.ack_set),
        to_signed(body.consumer_epoch) if body.HasField("consumer_epoch") else -1,
        entry,
    )
    frame._command = command
    return frame


# --- encoding ---------------------------------------------------------------------------------------


def encode_command(command: pb.BaseCommand) -> bytes:
    """The whole frame of a command that carries no entry."""
    body = command.SerializeToString()
    return _HEADER.pack(len(body) + 4, len(body)) + body


def _frame_head(kind: int, body: bytes, entry_size: int) -> bytes:
    """Sizes, type and body of a hot command; an entry of ``entry_size`` bytes is to follow."""
    size = len(body)
    command = bytes((8, kind)) + varint(kind << 3 | 2) + varint(size) + body
    return _HEADER.pack(len(command) + 4 + entry_size, len(command)) + command


def encode_send(
    producer_id: int,
    sequence_id: int,
    num_messages: int,
    highest_sequence_id: int | None,
    entry_size: int,
    *,
    is_chunk: bool = False,
    txnid_least_bits: int | None = None,
    txnid_most_bits: int | None = None,
    marker: bool = False,
) -> bytes:
    """All of a SEND frame that precedes the entry of ``entry_size`` bytes.

    ``num_messages`` is left out when 1 and ``highest_sequence_id`` when None, as the Java client does.
    """
    body = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence_id)
    if num_messages != 1:
        body += b"\x18" + varint(num_messages)
    if txnid_least_bits is not None:
        body += b"\x20" + varint(txnid_least_bits)
    if txnid_most_bits is not None:
        body += b"\x28" + varint(txnid_most_bits)
    if highest_sequence_id is not None:
        body += b"\x30" + varint(highest_sequence_id)
    if is_chunk:
        body += b"\x38\x01"
    if marker:
        body += b"\x40\x01"
    return _frame_head(SEND, body, entry_size)


def encode_send_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int | None, ledger_id: int, entry_id: int
) -> bytes:
    """A SEND_RECEIPT frame. -1 for ledger and entry (a duplicate) travels as 2^64-1."""
    place = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
    body = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence_id) + b"\x1a" + SHORT[len(place)] + place
    if highest_sequence_id is not None:
        body += b"\x20" + varint(highest_sequence_id)
    return _frame_head(SEND_RECEIPT, body, 0)


def encode_message(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    entry_size: int,
    *,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int = -1,
) -> bytes:
    """All of a MESSAGE frame that precedes the entry of ``entry_size`` bytes.

    ``partition`` is always written, -1 too, as the Apache broker does; ``redelivery_count`` only above 0,
    ``consumer_epoch`` only above -1.
    """
    place = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id) + b"\x18" + varint(partition)
    body = b"\x08" + varint(consumer_id) + b"\x12" + SHORT[len(place)] + place
    if redelivery_count:
        body += b"\x18" + varint(redelivery_count)
    for word in ack_set:
        body += b"\x20" + varint(word)
    if consumer_epoch >= 0:
        body += b"\x28" + varint(consumer_epoch)
    return _frame_head(MESSAGE, body, entry_size)


def encode_flow(consumer_id: int, permits: int) -> bytes:
    """A FLOW frame."""
    body = b"\x08" + varint(consumer_id) + b"\x10" + varint(permits)
    return _frame_head(11, body, 0)
