"""Splitting of an entry's payload into its messages.

The order is that of framing.md section 1.5: decrypt, assemble chunks, decompress, split. Unreadable entries
raise `InvalidEntry`, whose ``validation_error`` is sent to the broker when the entry is acknowledged without
delivery (section 7).
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from google.protobuf.message import DecodeError

from geminga.errors import CorruptPayload
from geminga.wire.compression import decompress
from geminga.wire.proto import pulsar_wire_pb2 as pb

Buffer = bytes | bytearray | memoryview

UNCOMPRESSED_SIZE_CORRUPTION = pb.CommandAck.UncompressedSizeCorruption
DECOMPRESSION_ERROR = pb.CommandAck.DecompressionError
CHECKSUM_MISMATCH = pb.CommandAck.ChecksumMismatch
BATCH_DESERIALIZE_ERROR = pb.CommandAck.BatchDeSerializeError
DECRYPTION_ERROR = pb.CommandAck.DecryptionError

_SMALLEST_MESSAGE_BYTES = 6
"""The size prefix and ``payload_size`` 0, which is required."""

_read_head = Struct(">IBBBB").unpack_from
_read_size = Struct(">I").unpack_from
_read_size_behind = Struct(">BBBB").unpack_from

_TAG_PROPERTIES, _TAG_KEY, _TAG_PAYLOAD_SIZE, _TAG_COMPACTED_OUT = 0x0A, 0x12, 0x18, 0x20


class InvalidEntry(CorruptPayload):
    """An entry that no consumer can read."""

    def __init__(self, validation_error: int, reason: str) -> None:
        super().__init__(reason)
        self.validation_error = validation_error

    def __reduce__(self) -> tuple[object, tuple[int, str]]:
        return (InvalidEntry, (self.validation_error, str(self)))


def open_payload(metadata: pb.MessageMetadata, payload: Buffer, bytes_max: int) -> bytes:
    """Return the decompressed payload (of an entry, or of all chunks together).

    Raises `InvalidEntry` when it does not decompress to the announced size or that exceeds ``bytes_max``.
    """
    kind = metadata.compression
    if not kind:
        return payload if type(payload) is bytes else bytes(payload)
    size = metadata.uncompressed_size
    if size > bytes_max:
        raise InvalidEntry(
            UNCOMPRESSED_SIZE_CORRUPTION, f"{size} bytes announced, message_bytes_max is {bytes_max}"
        )
    try:
        return decompress(kind, payload, size, limit=bytes_max)
    except CorruptPayload as error:
        raise InvalidEntry(DECOMPRESSION_ERROR, str(error)) from error


def split_batch(body: bytes, count: int) -> tuple[list[int], list[int]]:
    """Return the offsets of a batch's messages, and the indexes of those compacted out.

    There are ``count + 1`` offsets (the last is the end of the body). Raises `InvalidEntry` unless exactly
    ``count`` messages fill the body to its end.
    """
    size = len(body)
    if count < 0 or count * _SMALLEST_MESSAGE_BYTES > size:
        raise InvalidEntry(BATCH_DESERIALIZE_ERROR, f"{count} messages announced in a batch of {size} bytes")
    if count > 1 and size % count == 0 and _is_even(body, count, size // count):
        return list(range(0, size + 1, size // count)), []
    starts: list[int] = []
    compacted_out: list[int] = []
    append = starts.append
    position = 0
    for index in range(count):
        append(position)
        try:
            metadata_size, tag, first, second, third = _read_head(body, position)
        except StructError:
            tag = 0
        # Most messages begin with payload_size, in one or two bytes; 0x20 after it is compacted_out.
        if tag == _TAG_PAYLOAD_SIZE and first < 128 and (second != _TAG_COMPACTED_OUT or metadata_size == 2):
            position += 4 + metadata_size + first
        elif (
            tag == _TAG_PAYLOAD_SIZE
            and first > 127
            and second < 128
            and (third != _TAG_COMPACTED_OUT or metadata_size == 3)
        ):
            position += 4 + metadata_size + first - 128 + (second << 7)
        elif tag == _TAG_KEY and first < 128:
            # A short key, and then its payload size.
            try:
                tag, low, high, behind = _read_size_behind(body, position + 6 + first)
            except StructError:
                tag = 0
            if tag != _TAG_PAYLOAD_SIZE or first + 6 > metadata_size:
                position = _read_carefully(body, position, index, compacted_out)
            elif low < 128 and high != _TAG_COMPACTED_OUT:
                position += 4 + metadata_size + low
            elif low > 127 and high < 128 and behind != _TAG_COMPACTED_OUT:
                position += 4 + metadata_size + low - 128 + (high << 7)
            else:
                position = _read_carefully(body, position, index, compacted_out)
        else:
            position = _read_carefully(body, position, index, compacted_out)
    if position != size:
        raise InvalidEntry(
            BATCH_DESERIALIZE_ERROR, f"{count} messages end at byte {position} of a batch of {size} bytes"
        )
    append(size)
    return starts, compacted_out


def _is_even(body: bytes, count: int, step: int) -> bool:
    """Return whether all messages are ``step`` bytes long and have equal sizes of metadata and payload, so
    that none must be parsed individually. ``count`` is more than 1."""
    if step < 8:
        return False
    metadata_size, tag, first, second, third = _read_head(body, 0)
    if tag != _TAG_PAYLOAD_SIZE:
        return False
    if first < 128:
        size, head, behind = first, 6, second
    elif second < 128:
        size, head, behind = first - 128 + (second << 7), 7, third
    else:
        return False
    if 4 + metadata_size + size != step:
        return False
    if metadata_size != head - 4:
        # Another field follows, the same in all messages.
        if behind == _TAG_COMPACTED_OUT:
            return False
        head += 1
    return all(body[place::step] == body[place : place + 1] * count for place in range(head))


def _read_carefully(body: bytes, position: int, index: int, compacted_out: list[int]) -> int:
    """Return the end of any message, parsed by protobuf; every field is checked."""
    start = position + 4
    if start > len(body):
        raise InvalidEntry(
            BATCH_DESERIALIZE_ERROR, f"message {index} begins at byte {position} of {len(body)}"
        )
    end = start + int(_read_size(body, position)[0])
    if end > len(body):
        raise InvalidEntry(
            BATCH_DESERIALIZE_ERROR, f"metadata of message {index} ends at byte {end} of {len(body)}"
        )
    single = pb.SingleMessageMetadata()
    try:
        single.ParseFromString(body[start:end])
    except DecodeError as error:
        raise InvalidEntry(
            BATCH_DESERIALIZE_ERROR, f"metadata of message {index} is no protobuf: {error}"
        ) from error
    if not single.HasField("payload_size") or single.payload_size < 0:
        raise InvalidEntry(BATCH_DESERIALIZE_ERROR, f"message {index} has no valid payload_size")
    if single.compacted_out:
        compacted_out.append(index)
    return end + single.payload_size
