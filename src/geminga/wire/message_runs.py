"""Runs of MESSAGEs: consecutive entries of one consumer, read together.

A topic of unbatched messages arrives as a frame for each message. The frames of one subscription differ in
entry and entry id only, so the bytes after the first frame are compared instead of parsed; any difference
ends the run, and that frame is read as usual (`wire.frames`). `MessageRun.payload_bytes` finds the runs
that need no further reading before the application takes their messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import Final

from google.protobuf.message import DecodeError

from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.frames import ENTRY_COPY_BYTES_MAX, Frame, MessageFrame
from geminga.wire.metadata import MAGIC_CHECKSUM
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.varint import read_varint, varint, varints

_BODY_START: Final = 12
"""Start of the body: after two sizes, the command's type, and the body's tag and size."""
_ENTRY_HEAD: Final = Struct(">HII")
"""Magic number, checksum, and size of the metadata."""
HEAD_SIZE: Final = _ENTRY_HEAD.size
RUN_MESSAGES_MAX: Final = 256
"""Maximum messages of a run, which limits the frames read twice because of a malformed entry id."""
_CRC_START: Final = 6


class MessageRun(Frame):
    """MESSAGEs of one consumer with entries of one ledger and without an ack set. ``type`` is MESSAGE.

    The fields are those of `MessageFrame`; ``entry_ids`` and ``entries`` are columns.
    """

    __slots__ = ("encoded_metadata", "entries", "entry_ids", "first", "metadata")

    type = MessageFrame.type

    def __init__(self, first: MessageFrame, entry_ids: list[int], entries: list[Buffer]) -> None:
        self.first = first
        self.entry_ids = entry_ids
        self.entries = entries
        self.entry = None
        self.encoded_metadata: list[bytes] = []
        """Set by `payload_bytes`."""
        self.metadata: list[pb.MessageMetadata] | None = None
        """Metadata of the entries, if `payload_bytes` had to parse them."""

    @property
    def consumer_id(self) -> int:
        return self.first.consumer_id

    def frames(self) -> Iterator[MessageFrame]:
        """Yield the frames one by one."""
        first = self.first
        for entry_id, entry in zip(self.entry_ids, self.entries, strict=True):
            yield MessageFrame(
                first.consumer_id, first.ledger_id, entry_id, first.partition, first.redelivery_count, (),
                first.consumer_epoch, entry,
            )  # fmt: skip

    def payload_bytes(self) -> int:
        """Return the size of all payloads, or -1 unless all entries are plain.

        A plain entry is an unbatched message with a correct checksum, and metadata that protobuf accepts. It
        is neither compressed nor encrypted, nor a chunk or a marker.
        """
        entries = self.entries
        lengths = list(map(len, entries))
        if min(lengths) < HEAD_SIZE:
            return -1
        heads = list(map(_ENTRY_HEAD.unpack_from, entries))
        sizes: list[int] = [size for _, _, size in heads]
        is_small = max(lengths) <= ENTRY_COPY_BYTES_MAX
        views: Sequence[Buffer] = entries if is_small else [memoryview(entry) for entry in entries]
        checksums = [crc32c(entry[_CRC_START:]) for entry in views]
        if heads != list(zip(repeat(MAGIC_CHECKSUM), checksums, sizes)):
            return -1
        ends = [HEAD_SIZE + size for size in sizes]
        encoded = [bytes(entry[HEAD_SIZE:end]) for entry, end in zip(views, ends, strict=True)]
        if list(map(len, encoded)) != sizes or not self._read_plain(encoded):
            return -1
        self.encoded_metadata = encoded
        return sum(lengths) - sum(sizes) - HEAD_SIZE * len(entries)

    def _read_plain(self, encoded: list[bytes]) -> bool:
        """Read all metadata together; return False unless all are plain."""
        joined, size = b"".join(encoded), len(encoded[0])
        pattern = _pattern_of(encoded[0])
        # The pattern has the length of the first one's, so that each repetition is one entry's metadata.
        if pattern is not None and pattern.fullmatch(joined) and all(len(each) == size for each in encoded):
            return True
        try:
            metadata = list(map(pb.MessageMetadata.FromString, encoded))
            merged = pb.MessageMetadata.FromString(joined)  # has every field that one of them has
        except DecodeError:
            return False
        if any(map(merged.HasField, _UNUSUAL_FIELDS)) or merged.encryption_keys:
            return False
        self.metadata = metadata
        return all(map(pb.MessageMetadata.IsInitialized, metadata))


_UNUSUAL_FIELDS: Final = ("num_messages_in_batch", "marker_type", "compression", "num_chunks_from_msg")


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
    """Return the layout of a frame up to its entry: total size, head, entry id and tail, of these sizes."""
    return Struct(f">I{head}s{entry_id}s{tail}s")


def read_message_run(
    first: MessageFrame, data: bytes, start: int, frame_end: int, frame_size_max: int, count_max: int
) -> tuple[MessageRun | None, int]:
    """Return the run of the MESSAGE at ``start``, a plain `MessageFrame`, and at most ``count_max`` more, and
    its end."""
    command_end = frame_end - len(first.entry)
    if data[frame_end + 4 : frame_end + _BODY_START] != data[start + 4 : start + _BODY_START]:
        return None, frame_end
    consumer, ledger, number = varint(first.consumer_id), varint(first.ledger_id), varint(first.entry_id)
    body = start + _BODY_START
    id_size = data[body + len(consumer) + 2 : body + len(consumer) + 3]
    known = b"".join((b"\x08", consumer, b"\x12", id_size, b"\x08", ledger, b"\x10", number))
    if data[body : body + len(known)] != known:
        return None, frame_end
    number_start = body + len(known) - len(number)
    head, tail = data[start + 4 : number_start], data[body + len(known) : command_end]
    layout = _layout(len(head), len(number), len(tail))
    unpack, size = layout.unpack_from, layout.size
    least, copied_max = size - 4, size - 4 + ENTRY_COPY_BYTES_MAX
    entries: list[Buffer] = [first.entry]
    view = memoryview(data)
    numbers: list[bytes] = []
    add_entry, add_number = entries.append, numbers.append
    at, end = frame_end, len(data)
    stop, count_max = end - size, min(count_max, RUN_MESSAGES_MAX - 1)
    while at <= stop:
        total, found_head, number, found_tail = unpack(data, at)
        next_at = at + 4 + total
        if (
            found_head != head or found_tail != tail or next_at > end
            or not least <= total <= frame_size_max - 4 or count_max <= 0
        ):  # fmt: skip
            break
        add_entry((data if total <= copied_max else view)[at + size : next_at])
        add_number(number)
        at = next_at
        count_max -= 1
    ids = _entry_ids(first.entry_id, numbers)
    if len(ids) < len(entries):  # ends before bytes that are no number
        at -= sum(map(len, entries[len(ids) :])) + size * (len(entries) - len(ids))
        del entries[len(ids) :]
    return (MessageRun(first, ids, entries), at) if len(ids) > 1 else (None, frame_end)


def _entry_ids(first: int, numbers: list[bytes]) -> list[int]:
    """Return ``first`` and the entry ids in ``numbers``, up to the first invalid one."""
    if first + len(numbers) < 1 << 63 and numbers == varints(first + 1, len(numbers)):
        return list(range(first, first + len(numbers) + 1))
    ids = [first]
    for number in numbers:
        try:
            entry_id, behind = read_varint(number, 0)
        except (IndexError, ValueError):
            break
        if behind != len(number) or entry_id >> 63:
            break
        ids.append(entry_id)
    return ids
