"""Runs of MESSAGEs: consecutive entries of one consumer, read together.

A topic of unbatched messages arrives as a frame for each message. The frames of one subscription differ in
entry and entry id only, so the bytes after the first frame are compared instead of parsed; any difference
ends the run, and that frame is read as usual (`wire.frames`). The entries are cut out of the read buffer
once, into the columns that the application's messages are made of.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import le
from struct import Struct
from typing import Final

from google.protobuf.message import DecodeError, EncodeError

from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.frames import ENTRY_COPY_BYTES_MAX, Frame, MessageFrame
from geminga.wire.metadata import MAGIC_CHECKSUM
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.varint import read_varint, varint, varints

_BODY_START: Final = 12
"""Start of the body: after two sizes, the command's type, and the body's tag and size."""
_MAGIC: Final = MAGIC_CHECKSUM.to_bytes(2, "big")
_ENTRY_HEAD_SIZE: Final = 10
"""Bytes of magic number, checksum, and size of the metadata."""
RUN_MESSAGES_MAX: Final = 256
"""Maximum messages of a run, which limits the frames read twice because of a malformed entry id."""
_CRC_START: Final = 6


class MessageRun(Frame):
    """MESSAGEs of one consumer with entries of one ledger and without an ack set. ``type`` is MESSAGE.

    The fields are those of ``first``; ``entry_ids`` never fall. The entries are the bytes of ``data`` from
    a start to an end, and begin with a magic number, the checksum, and the size of the metadata. ``data`` may
    be a ``memoryview`` of a buffer that is used again: it is read before then.
    """

    __slots__ = ("_checksums", "_data", "_ends", "_sizes", "_starts", "entry_ids", "first")

    type = MessageFrame.type

    def __init__(
        self, first: MessageFrame, entry_ids: Sequence[int], data: bytes, *columns: list[int]
    ) -> None:
        """``columns``: starts, ends, checksums, and sizes of the metadata."""
        self.first, self.entry_ids, self.entry, self._data = first, entry_ids, None, data
        self._starts, self._ends, self._checksums, self._sizes = columns

    @property
    def consumer_id(self) -> int:
        return self.first.consumer_id

    def frames(self) -> Iterator[MessageFrame]:
        """Yield the frames one by one."""
        first = self.first
        for entry_id, start, end in zip(self.entry_ids, self._starts, self._ends, strict=True):
            yield MessageFrame(
                first.consumer_id, first.ledger_id, entry_id, first.partition, first.redelivery_count, (),
                first.consumer_epoch, bytes(self._data[start:end]),
            )  # fmt: skip

    def columns(self) -> tuple[list[bytes], list[bytes]] | None:
        """Return the encoded metadata and the payloads; None unless every checksum is correct."""
        data, starts, ends = self._data, self._starts, self._ends
        is_small = ends[-1] - starts[0] <= ENTRY_COPY_BYTES_MAX * len(starts)
        view: Buffer = data if is_small else memoryview(data)
        checked = [view[start + _CRC_START : end] for start, end in zip(starts, ends, strict=True)]
        middles = [start + _ENTRY_HEAD_SIZE + size for start, size in zip(starts, self._sizes, strict=True)]
        if list(map(crc32c, checked)) != self._checksums or not all(map(le, middles, ends)):
            return None
        bounds = zip(starts, middles, strict=True)
        metadata = [data[start + _ENTRY_HEAD_SIZE : middle] for start, middle in bounds]
        payloads = [data[middle:end] for middle, end in zip(middles, ends, strict=True)]
        if isinstance(data, memoryview):
            return list(map(bytes, metadata)), list(map(bytes, payloads))
        return metadata, payloads


def are_plain(metadata: Sequence[bytes]) -> bool:
    """Return whether all encoded metadata consist of what every message has; False if they may have more."""
    pattern = _pattern_of(metadata[0])
    # The pattern has the length of the first one's, so that each repetition is one entry's metadata.
    sizes = list(map(len, metadata))
    return (
        pattern is not None
        and sizes.count(sizes[0]) == len(sizes)
        and pattern.fullmatch(b"".join(metadata)) is not None
    )


def encrypted_alike(metadata: Sequence[bytes]) -> tuple[pb.MessageMetadata, list[bytes]] | None:
    """Return the first metadata and each ``encryption_param``, if all have the same data keys and differ only
    in it, in numbers and in the producer's name. None if they may differ otherwise."""
    if (together := parse_together(metadata[:1])) is None:
        return None
    first, param = together[1], together[1].encryption_param
    fields = pb.MessageMetadata(encryption_keys=first.encryption_keys, encryption_param=param)
    keys = fields.SerializePartialToString()[: -len(param)]
    at = metadata[0].find(keys)
    start, end = at + len(keys), at + len(keys) + len(param)
    rest = metadata[0][end:]
    if (
        at < 0
        or not param
        or first.ByteSize() != len(metadata[0])  # a field is repeated; its last value counts
        or first.compression
        or not all(each[at:start] == keys and each[end:] == rest for each in metadata)
        or not are_plain([each[:at] for each in metadata])
    ):
        return None
    return first, [each[start:end] for each in metadata]


def parse_together(metadata: Sequence[bytes]) -> tuple[list[pb.MessageMetadata], pb.MessageMetadata] | None:
    """Return the parsed metadata, and one with every field that any of them has. None if protobuf rejects
    one, or one belongs to no message of its own: to a batch, a chunk or a marker."""
    try:
        parsed = list(map(pb.MessageMetadata.FromString, metadata))
        merged = pb.MessageMetadata.FromString(b"".join(metadata))
        # Finds missing required fields in less than half of the time that IsInitialized takes.
        list(map(pb.MessageMetadata.SerializeToString, parsed))
    except (DecodeError, EncodeError):
        return None
    return None if any(map(merged.HasField, _UNUSUAL_FIELDS)) else (parsed, merged)


_UNUSUAL_FIELDS: Final = ("num_messages_in_batch", "marker_type", "num_chunks_from_msg")


def _pattern_of(first: bytes) -> re.Pattern[bytes] | None:
    """Return the pattern of metadata with fields of the same sizes as in ``first``, if ``first`` has no
    optional field but the uncompressed size and a schema version. Comparing is several times as fast as
    parsing."""
    try:
        name_end = first[1] + 2
        _, sequence_end = read_varint(first, name_end + 1)
        end = time_end = sequence_end + 1 + _TIME_SIZE
        if first[end : end + 1] == b"\x48":
            _, end = read_varint(first, end + 1)
    except (IndexError, ValueError):
        return None
    return _compiled(first[1], sequence_end - name_end - 1, end - time_end - 1, len(first) - end)


@lru_cache(maxsize=256)
def _compiled(
    name_size: int, sequence_size: int, bytes_size: int, version_size: int
) -> re.Pattern[bytes] | None:
    """Return a pattern of metadata that hold a producer's name, a sequence id, a publish time, and perhaps
    the uncompressed size and a schema version, of these sizes in bytes."""
    if name_size > 127 or max(sequence_size, bytes_size) > 9 or version_size not in (0, 11):
        return None

    def number(size: int) -> bytes:
        return rb"[\x80-\xff]{%d}[\x00-\x7f]" % (size - 1)

    parts = [rb"\x0a\x%02x.{%d}" % (name_size, name_size)]
    parts += [rb"\x10", number(sequence_size), rb"\x18", number(_TIME_SIZE)]
    parts += [rb"\x48", number(bytes_size)] if bytes_size > 0 else []
    parts += [rb"\x82\x01\x08.{8}"] if version_size else []
    return re.compile(b"(?:" + b"".join(parts) + b")+", re.DOTALL)


_TIME_SIZE: Final = 6
"""Bytes of a publish time until the year 2109."""


# --- reading ----------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _layout(head: int, entry_id: int, tail: int) -> Struct:
    """Return the layout of a frame up to its metadata: total size, head, entry id and tail, of these sizes,
    checksum, and size of the metadata."""
    return Struct(f">I{head}s{entry_id}s{tail}sII")


def read_message_run(
    first: MessageFrame, data: bytes, start: int, frame_end: int, frame_size_max: int, count_max: int
) -> tuple[MessageRun | None, int]:
    """Return the run of the MESSAGE at ``start``, which has no ack set, and at most ``count_max`` more, and
    its end."""
    entry_start = frame_end - len(first.entry)
    if data[frame_end + 4 : frame_end + _BODY_START] != data[start + 4 : start + _BODY_START]:
        return None, frame_end
    consumer, ledger, number = varint(first.consumer_id), varint(first.ledger_id), varint(first.entry_id)
    body = start + _BODY_START
    id_size = data[body + len(consumer) + 2 : body + len(consumer) + 3]
    known = b"".join((b"\x08", consumer, b"\x12", id_size, b"\x08", ledger, b"\x10", number))
    if data[body : body + len(known)] != known or first.entry[:2] != _MAGIC:
        return None, frame_end
    number_start = body + len(known) - len(number)
    head, tail = bytes(data[start + 4 : number_start]), bytes(data[body + len(known) : entry_start + 2])
    layout = _layout(len(head), len(number), len(tail))
    unpack, size = layout.unpack_from, layout.size
    before, least, most = size - _ENTRY_HEAD_SIZE, size - 4, frame_size_max - 4
    starts: list[int] = []
    numbers: list[bytes] = []
    checksums: list[int] = []
    sizes: list[int] = []
    add_start, add_number, add_checksum = starts.append, numbers.append, checksums.append
    add_size = sizes.append
    at, end = start, len(data)
    stop, left = end - size, min(count_max, RUN_MESSAGES_MAX - 1) + 1
    while at <= stop:
        total, found_head, number, found_tail, checksum, metadata_size = unpack(data, at)
        next_at = at + 4 + total
        if (
            found_head != head
            or found_tail != tail
            or next_at > end
            or not least <= total <= most
            or not left
        ):
            break
        add_start(at + before)
        add_number(number)
        add_checksum(checksum)
        add_size(metadata_size)
        at = next_at
        left -= 1
    ids = _entry_ids(numbers)
    if len(ids) < len(starts):  # ends before bytes that are no number
        at = starts[len(ids)] - before
        for column in (starts, checksums, sizes):
            del column[len(ids) :]
    if len(ids) < 2:
        return None, frame_end
    return MessageRun(first, ids, data, starts, [*[s - before for s in starts[1:]], at], checksums, sizes), at


def _entry_ids(numbers: list[bytes]) -> Sequence[int]:
    """Return the entry ids in ``numbers``, up to one that is invalid or falls; the very first is valid."""
    if not numbers:
        return []
    first, _ = read_varint(numbers[0], 0)
    if first + len(numbers) <= 1 << 63 and numbers == varints(first, len(numbers)):
        return range(first, first + len(numbers))
    ids = [first]
    for number in numbers[1:]:
        try:
            entry_id, behind = read_varint(number, 0)
        except (IndexError, ValueError):
            break
        if behind != len(number) or entry_id >> 63 or entry_id < ids[-1]:
            break
        ids.append(entry_id)
    return ids
