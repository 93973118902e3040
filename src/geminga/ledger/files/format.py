"""Format of the store's files: superblock, log file header, groups of records.

A log file is a header followed by groups. A group contains the records of one write and one sync::

    group     = header directory payload
    header    = magic records payload_bytes position sequence synced_through directory_crc header_crc
    directory = one column after the other: kind u8, size u32, crc u32, first u64, second u64
    payload   = the records' bytes, one after the other, in directory order

Everything is little-endian. Checksums are CRC32C. ``position`` is the group's own position, and the header's
checksum starts from a seed of the store, so that bytes of another position or another store are never taken
for a group. ``synced_through`` is the log position known to be on the disk when the group was written: wrong
bytes before it are damage, not a torn tail. The records' checksums are kept in the directory and in the
index, apart from the bytes they guard; the payload of consecutive entries is contiguous, so one read fetches
a run of them.

A position is ``file number << 32 | offset``; positions grow along the log.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from geminga.ledger.files.bit_correction import corrected
from geminga.wire.checksum import crc32c

FORMAT_VERSION = 1
"""Version of everything in a store's folder, the broker's records under its keys included.

It rises with every change that an earlier version could not read, so that such a version refuses the store
as a whole (`geminga.ledger.files.folder`); docs/explanation/formats.md.
"""

OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1

_SUPERBLOCK = struct.Struct("<16sI16sI")
_SUPERBLOCK_MAGIC = b"GEMINGA-STORE\r\n\x1a"
SUPERBLOCK_BYTES = _SUPERBLOCK.size

_FILE_HEADER = struct.Struct("<16sIQ16sI")
_FILE_MAGIC = b"GEMINGA-LOG\r\n\x1a\0\0"
FILE_HEADER_BYTES = _FILE_HEADER.size

_GROUP = struct.Struct("<8sIIQQQI")
_CHECKSUM = struct.Struct("<I")
GROUP_MAGIC = b"\xf5GEMGRP\xfa"
GROUP_HEADER_BYTES = _GROUP.size + _CHECKSUM.size
RECORD_BYTES = 1 + 4 + 4 + 8 + 8

_MARK = struct.Struct("<8sQQI")
_MARK_MAGIC = b"GEMSYNC\x1a"
MARK_BYTES = _MARK.size


class RecordKind:
    """Kinds of records; the comments have their two numbers (first, second), and what they hold."""

    ENTRY = 1  # (ledger, entry): the entry's bytes
    MOVED = 2  # (ledger, entry): an entry written again by the rewriting of a mostly dead file
    CREATE = 3  # (ledger, 0): the owner's name
    DELETE_LEDGER = 4  # (ledger, 0)
    PUT = 5  # (key bytes, key fingerprint): key, value
    MERGE = 6  # (key bytes, key fingerprint): key, delta
    DELETE_KEY = 7  # (key bytes, key fingerprint): key
    RESTATE = 8  # (key bytes, key fingerprint): key, base and deltas, written again by rewriting
    MANIFEST = 9  # (next ledger id, 0): the numbers of the log files that exist
    DROP_FILE = 10  # (file number, 0): the file is dead and may be missing from now on
    CHECKPOINT = 11  # (checkpoint number, 0): the last record before a checkpoint
    NOTHING = 12  # (0, 0): changes nothing; keeps the order of a callback among the writes
    GIVE_UP = 13  # (ledger, entry): the entry is lost to damage, and the loss is accepted
    REMAINS = 14  # (key bytes, key fingerprint): key, u32 values lost, u32 deltas lost, and then as RESTATE
    SETTLE = 15  # (0, 0): the name of a settled damage

    OF_KEYS = frozenset((PUT, MERGE, DELETE_KEY, RESTATE, REMAINS))


KIND_NAMES = {
    RecordKind.ENTRY: "entry",
    RecordKind.MOVED: "entry",
    RecordKind.CREATE: "ledger creation",
    RecordKind.DELETE_LEDGER: "ledger deletion",
    RecordKind.PUT: "key-value write",
    RecordKind.MERGE: "key-value write",
    RecordKind.DELETE_KEY: "key deletion",
    RecordKind.RESTATE: "key-value write",
    RecordKind.MANIFEST: "list of log files",
    RecordKind.DROP_FILE: "file deletion",
    RecordKind.CHECKPOINT: "checkpoint",
    RecordKind.NOTHING: "empty record",
    RecordKind.GIVE_UP: "giving up of an entry",
    RecordKind.REMAINS: "key-value write",
    RecordKind.SETTLE: "settling of damage",
}

_SWAP = sys.byteorder == "big"


def describe(position: int) -> str:
    """Format a position for people: file name and offset."""
    return f"{file_name(position >> OFFSET_BITS)} at offset {position & OFFSET_MASK}"


def file_name(number: int) -> str:
    """Return the name of a log file in the store's folder."""
    return f"log-{number:010d}"


def file_number(name: str) -> int | None:
    """Return the number in a log file's name; None for other names."""
    digits = name.removeprefix("log-")
    if len(digits) != 10 or len(name) != 14 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def _sealed(layout: struct.Struct, *fields: object, seed: int = 0) -> bytes:
    """Encode fields, followed by their checksum."""
    body = layout.pack(*fields, 0)[:-4]
    return body + _CHECKSUM.pack(crc32c(body, seed))


def _unsealed(layout: struct.Struct, magic: bytes, data: bytes, seed: int = 0) -> list[Any] | None:
    """Return the fields between magic and checksum; None unless the bytes are intact."""
    if len(data) != layout.size:
        return None
    found, *fields, checksum = layout.unpack(data)
    return fields if found == magic and checksum == crc32c(data[:-4], seed) else None


def encode_superblock(store_id: bytes) -> bytes:
    return _sealed(_SUPERBLOCK, _SUPERBLOCK_MAGIC, FORMAT_VERSION, store_id)


def decode_superblock(data: bytes) -> tuple[int, bytes] | None:
    """Return (format version, store id); None unless the bytes are an intact superblock."""
    found = _unsealed(_SUPERBLOCK, _SUPERBLOCK_MAGIC, data)
    return None if found is None else (found[0], found[1])


def encode_file_header(number: int, store_id: bytes) -> bytes:
    return _sealed(_FILE_HEADER, _FILE_MAGIC, FORMAT_VERSION, number, store_id)


def decode_file_header(data: bytes) -> tuple[int, bytes] | None:
    """Return (file number, store id); None unless the bytes are an intact header."""
    found = _unsealed(_FILE_HEADER, _FILE_MAGIC, data)
    return None if found is None else (found[1], found[2])


def encode_mark(position: int, sequence: int, seed: int) -> bytes:
    """Encode the synced-through mark: the log is synced up to ``position``, the end of group ``sequence``."""
    return _sealed(_MARK, _MARK_MAGIC, position, sequence, seed=seed)


def decode_mark(data: bytes, seed: int) -> tuple[int, int] | None:
    found = _unsealed(_MARK, _MARK_MAGIC, data, seed)
    return None if found is None else (found[0], found[1])


@dataclass(slots=True)
class GroupHeader:
    """Header of a group, as read from the log."""

    position: int
    sequence: int
    synced_through: int
    records: int
    payload_bytes: int
    directory_crc: int
    was_mended: bool = False
    """Whether one flipped bit in it was corrected."""

    @property
    def directory_bytes(self) -> int:
        return self.records * RECORD_BYTES

    @property
    def payload_position(self) -> int:
        return self.position + GROUP_HEADER_BYTES + self.directory_bytes

    @property
    def end(self) -> int:
        """The position behind the group."""
        return self.payload_position + self.payload_bytes


@dataclass(slots=True)
class Directory:
    """The records of a group, by columns."""

    kinds: bytes
    sizes: array[int]
    crcs: array[int]
    firsts: array[int]
    seconds: array[int]
    was_mended: bool = False
    """Whether one flipped bit in it was corrected."""

    def positions(self, payload_position: int) -> list[int]:
        """Return the position of each record's bytes."""
        starts = list(accumulate(self.sizes, initial=payload_position))
        starts.pop()
        return starts


def _packed(column: array[int]) -> bytes:
    if _SWAP:
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def pack_numbers(typecode: str, numbers: Iterable[int]) -> bytes:
    """Encode numbers as little-endian bytes; typecode "I" for 4 bytes each, "Q" for 8."""
    return _packed(array(typecode, numbers))


def unpack_numbers(typecode: str, data: bytes | memoryview) -> array[int]:
    """Decode the result of `pack_numbers`."""
    column: array[int] = array(typecode)
    column.frombytes(data)
    if _SWAP:
        column.byteswap()
    return column


def encode_group(
    directory: Directory, *, position: int, sequence: int, synced_through: int, payload_bytes: int, seed: int
) -> bytes:
    """Encode header and directory of a group; the payload follows unchanged."""
    columns = b"".join(
        (
            directory.kinds,
            _packed(directory.sizes),
            _packed(directory.crcs),
            _packed(directory.firsts),
            _packed(directory.seconds),
        )
    )
    header = _GROUP.pack(
        GROUP_MAGIC, len(directory.kinds), payload_bytes, position, sequence, synced_through, crc32c(columns)
    )
    return b"".join((header, _CHECKSUM.pack(crc32c(header, seed)), columns))


def decode_group_header(data: bytes | memoryview, position: int, seed: int) -> GroupHeader | None:
    """Return the header at ``position``; None unless an intact group of this store begins there."""
    if len(data) < GROUP_HEADER_BYTES:
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, _GROUP.size)
    magic, records, payload_bytes, own_position, sequence, synced_through, directory_crc = _GROUP.unpack_from(
        data
    )
    if magic != GROUP_MAGIC or own_position != position or checksum != crc32c(data[: _GROUP.size], seed):
        return None
    return GroupHeader(position, sequence, synced_through, records, payload_bytes, directory_crc)


def mend_group_header(data: bytes | memoryview, position: int, seed: int) -> GroupHeader | None:
    """Return the header at ``position`` with one flipped bit corrected; None if that is not enough."""
    if len(data) < GROUP_HEADER_BYTES:
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, _GROUP.size)
    right = corrected(data[: _GROUP.size], checksum, seed)
    if right is None:
        return None
    header = decode_group_header(right + _CHECKSUM.pack(crc32c(right, seed)), position, seed)
    if header is not None:
        header.was_mended = True
    return header


def decode_directory(header: GroupHeader, data: bytes) -> Directory | None:
    """Decode the directory that follows ``header``; None if more than one bit is wrong."""
    if len(data) != header.directory_bytes:
        return None
    was_mended = crc32c(data) != header.directory_crc
    if was_mended:
        right = corrected(data, header.directory_crc)
        if right is None:
            return None
        data = right
    n = header.records
    view = memoryview(data)
    directory = Directory(
        bytes(view[:n]),
        unpack_numbers("I", view[n : 5 * n]),
        unpack_numbers("I", view[5 * n : 9 * n]),
        unpack_numbers("Q", view[9 * n : 17 * n]),
        unpack_numbers("Q", view[17 * n :]),
        was_mended,
    )
    return directory if sum(directory.sizes) == header.payload_bytes else None


def key_name(data: bytes | memoryview, fingerprint: int) -> bytes | None:
    """Return the name in a damaged key record, with up to one bit corrected; None if it is lost."""
    return bytes(data) if crc32c(data) == fingerprint else corrected(data, fingerprint)


def encode_value(key: bytes, base: bytes, deltas: Iterable[bytes]) -> bytes:
    """Encode the payload of a RESTATE record."""
    return key + encode_list((base, *deltas))


def decode_value(data: bytes | memoryview) -> tuple[bytes, list[bytes]]:
    """Return (base, deltas) of a RESTATE payload behind its key."""
    first, *rest = decode_list(data)
    return first, rest


def encode_remains(key: bytes, values: int, deltas: int, base: bytes, rest: Iterable[bytes]) -> bytes:
    """Encode the payload of a REMAINS record."""
    return b"".join((key, _CHECKSUM.pack(values), _CHECKSUM.pack(deltas), encode_value(b"", base, rest)))


def decode_remains(data: bytes | memoryview) -> tuple[int, int, bytes, list[bytes]]:
    """Return (values lost, deltas lost, base, deltas) of a REMAINS payload behind its key."""
    (values,), (deltas,) = _CHECKSUM.unpack_from(data), _CHECKSUM.unpack_from(data, 4)
    base, rest = decode_value(data[8:])
    return values, deltas, base, rest


def encode_list(items: Iterable[bytes]) -> bytes:
    """Encode byte strings, each behind its length (u32)."""
    parts: list[bytes] = []
    for item in items:
        parts += (_CHECKSUM.pack(len(item)), item)
    return b"".join(parts)


def decode_list(data: bytes | memoryview) -> list[bytes]:
    """Decode the result of `encode_list`; raises ValueError when lengths and bytes disagree."""
    items = []
    offset = 0
    while offset < len(data):
        if offset + 4 > len(data):
            raise ValueError("a length is cut off")
        (size,) = _CHECKSUM.unpack_from(data, offset)
        offset += 4
        if offset + size > len(data):
            raise ValueError("an item is cut off")
        items.append(bytes(data[offset : offset + size]))
        offset += size
    return items
