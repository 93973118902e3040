"""Envelopes of entries: all their bytes that are not in the messages' columns.

`EntrySplitter.split` splits entries into a record batch of their messages and an `EntryEnvelope`; `joined`
restores the entries from both. Each split is verified by joining it again: an entry that would come
out differently (encrypted, a chunk, a marker, with fields in another order) is stored whole in the envelope.
So is an entry whose payload was compressed in a way that cannot be repeated, which stores its bytes twice.

The envelope has the checksum of every entry, which is checked when the entry is joined. If a later version of
a codec compresses differently, the messages are delivered uncompressed (`JoinedEntries.other`).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from struct import Struct
from typing import Any, NamedTuple

import cramjam
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.errors import CorruptPayload, CryptoError
from geminga.offload.entry_joining import MessageColumns, joined_parts
from geminga.wire import columnar_fields
from geminga.wire.checksum import crc32c
from geminga.wire.columnar import ChunkCarry, LaidOpen, entry_heads, lay_open
from geminga.wire.compression import LZ4, NONE, SNAPPY, ZLIB, ZSTD, compress
from geminga.wire.metadata import MAGIC_CHECKSUM, RawEntry, build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.offload")

COLUMNS = (
    "value", "key", "ordering_key", "properties", "event_time", "publish_time", "sequence_id",
    "producer_name", "topic", "partition", "ledger_id", "entry_id", "batch_index", "batch_size",
    "schema_version",
)  # fmt: skip
"""Columns of a message that are stored."""
CHUNK_BYTES_MAX = 64 * 1024 * 1024
"""Limit on incomplete chunked messages in memory; a larger message has no row."""

_WHOLE, _CHECKED, _BATCH = 1, 2, 4
_WAY_SHIFT = 3
_SYNC_FLUSHED = -6
"""Zlib level 6 as the Java client ends its streams."""
_WAYS = (
    (NONE, 0), (LZ4, 0), (ZLIB, 6), (ZLIB, _SYNC_FLUSHED), (ZSTD, 3), (SNAPPY, 0), (ZSTD, 1), (ZSTD, 2),
    (ZSTD, 4), (ZSTD, 5), (ZSTD, 6), (ZSTD, 9), (ZLIB, 1), (ZLIB, 9), (ZSTD, 15), (ZSTD, 19),
)  # fmt: skip
"""Ways of compression: codec and level, as Geminga's, the C++ and Python clients use, and Java's with LZ4
(mostly) and ZLIB. Files store the index of a way: only append to the list, up to 32."""
_FAILURES_MAX = 8
"""After this many failures a codec is tried only for one in _RETRIED_ENTRIES entries."""
_RETRIED_ENTRIES = 64
_UNCOMPRESSED_MAX = 32 * 1024 * 1024
"""Limit on decompressed bytes in one split, if it has more than one entry."""
ROW_BYTES = 128
"""Approximate memory of a row besides its content, which may be only a few bytes of a batch."""
ROWS_MAX = 1_000_000
"""Maximum number of messages in an entry with rows. No client writes larger batches, but a few compressed
kilobytes of a hostile client may contain any number of empty messages."""

_MAGIC_AND_CRC = Struct(">HI")
_SIZE = Struct(">I")
_HEAD = Struct("<4sIIQ")
_SECTION = Struct("<QQ")
_MAGIC = b"GRS1"
_LEVEL = 3


@dataclass(slots=True)
class EntryEnvelope:
    """Envelope of consecutive entries. ``counts``: rows of each entry; ``joined_bytes``: uncompressed size of
    all metadata and payloads that are joined."""

    flags: NDArray[np.uint8]
    counts: NDArray[np.int32]
    crcs: NDArray[np.uint32]
    tags: bytes
    tag_sizes: NDArray[np.int32]
    whole: bytes
    whole_sizes: NDArray[np.int32]
    joined_bytes: int

    def is_of(self, index: int, entry: bytes) -> bool:
        """Whether an entry is the one that was split, according to its checksum."""
        crc = int(self.crcs[index])
        if self.flags[index] & _CHECKED:
            return bytes(entry[: _MAGIC_AND_CRC.size]) == _MAGIC_AND_CRC.pack(MAGIC_CHECKSUM, crc)
        return crc32c(entry) == crc

    def encode(self) -> bytes:
        """Encode and compress the envelope."""
        sections = [
            self.flags.tobytes(), self.counts.astype("<i4").tobytes(), self.crcs.astype("<u4").tobytes(),
            self.tags, self.tag_sizes.astype("<i4").tobytes(), self.whole,
            self.whole_sizes.astype("<i4").tobytes(),
        ]  # fmt: skip
        parts = [_HEAD.pack(_MAGIC, len(self.flags), len(sections), self.joined_bytes)]
        for section in sections:
            packed = bytes(cramjam.zstd.compress(section, level=_LEVEL)) if section else b""
            parts += (_SECTION.pack(len(section), len(packed)), packed)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> EntryEnvelope:
        """Decode the result of `encode`. Raises `CorruptPayload`."""
        try:
            magic, entries, sections, joined_bytes = _HEAD.unpack_from(data)
            if magic != _MAGIC or sections != 7:
                raise CorruptPayload(f"an envelope begins with {magic!r} and {sections} sections")
            at, found = _HEAD.size, []
            for _ in range(sections):
                size, packed = _SECTION.unpack_from(data, at)
                at += _SECTION.size
                out = bytearray(size)
                if size and cramjam.zstd.decompress_into(data[at : at + packed], out) != size:
                    raise CorruptPayload("a section of an envelope is cut")
                found.append(bytes(out))
                at += packed
            flags, counts, crcs, tags, tag_sizes, whole, whole_sizes = found
            envelope = cls(
                np.frombuffer(flags, np.uint8), np.frombuffer(counts, "<i4"), np.frombuffer(crcs, "<u4"),
                tags, np.frombuffer(tag_sizes, "<i4"), whole, np.frombuffer(whole_sizes, "<i4"), joined_bytes,
            )  # fmt: skip
        except CorruptPayload:
            raise
        except Exception as error:
            raise CorruptPayload(f"an envelope cannot be read: {error}") from error
        each = (envelope.flags, envelope.counts, envelope.crcs, envelope.tag_sizes, envelope.whole_sizes)
        if any(len(one) != entries for one in each):
            raise CorruptPayload("the sections of an envelope do not fit together")
        return envelope


class SplitEntries(NamedTuple):
    """Messages and envelope of entries. ``closed``: number of entries that hold messages but have no rows.
    ``is_plain``: the rows contain all information of the messages."""

    messages: list[pa.RecordBatch]
    envelope: EntryEnvelope
    closed: int
    is_plain: bool

    @property
    def memory_bytes(self) -> int:
        """Approximate memory until the entries are written."""
        rows = sum(each.num_rows for each in self.messages)
        columns = sum(each.nbytes for each in self.messages)
        return int(columns + rows * ROW_BYTES + len(self.envelope.whole))


@dataclass(slots=True)
class EntrySplitter:
    """Splits the entries of one ledger, in order."""

    topic: str
    partition: int
    ledger_id: int
    _chunks: ChunkCarry = field(default_factory=ChunkCarry)
    _ways: dict[int, list[int]] = field(default_factory=dict)
    _failures: dict[int, int] = field(default_factory=dict)
    _tried: int = 0

    def split(self, first_entry_id: int, entries: Sequence[bytes]) -> Iterator[SplitEntries]:
        """Split one or more entries, in several pieces: compressed entries may be larger than the memory when
        decompressed."""
        raw = [
            RawEntry(self.topic, self.partition, self.ledger_id, first_entry_id + index, entry)
            for index, entry in enumerate(entries)
        ]
        for messages, envelope, closed, is_plain in self._pieces(raw):
            self._bound_chunks()
            rows = [messages] if messages is not None and messages.num_rows else []
            yield SplitEntries(rows, envelope, closed, is_plain)

    def _pieces(self, raw: list[RawEntry]) -> Any:
        """Yield (messages or None, envelope, closed, is_plain) of runs of entries that are split together."""
        before = self._chunks.copy()
        try:
            heads = entry_heads(raw)
            fields = columnar_fields
            encrypted = heads[:, fields.IS_ENCRYPTED] != 0
            sizes = np.where(heads[:, fields.COMPRESSION] != 0, heads[:, fields.UNCOMPRESSED_SIZE], 0)
            rows = np.clip(heads[:, fields.BATCH_COUNT], 1, ROWS_MAX + 1)
            needed = int((np.clip(sizes, 0, _UNCOMPRESSED_MAX) + rows * ROW_BYTES).sum())
            if (len(raw) > 1 and needed > _UNCOMPRESSED_MAX) or int(rows.max()) > ROWS_MAX:
                raise _TooLargeOpen
            if encrypted.any():
                edges = np.flatnonzero(np.diff(encrypted)) + 1
                bounds = [0, *edges.tolist(), len(raw)]
                for start, stop in pairwise(bounds):
                    if encrypted[start]:
                        yield None, _kept_whole(raw[start:stop]), stop - start, False
                    else:
                        yield from self._pieces(raw[start:stop])
                return
            laid = lay_open(raw, COLUMNS, chunks=self._chunks)
            # A chunked message may have begun in an earlier ledger, or end in a later one.
            is_plain = laid.says_keys and not (heads[:, fields.CHUNK_COUNT] > 1).any()
            piece = laid.messages, self._envelope(raw, laid), 0, bool(is_plain)
        except (CorruptPayload, CryptoError, _TooLargeOpen):
            self._chunks = before
            if len(raw) == 1:
                yield None, _kept_whole(raw), 1, False
                return
            middle = len(raw) // 2
            yield from self._pieces(raw[:middle])
            yield from self._pieces(raw[middle:])
            return
        yield piece

    def _envelope(self, raw: list[RawEntry], laid: LaidOpen) -> EntryEnvelope:
        from geminga.offload import envelope_kernels  # here, as reading needs no compiled loops

        kernels: Any = envelope_kernels
        fields = columnar_fields
        metadata_and_payload = [fields.METADATA_START, fields.PAYLOAD_START]
        heads, payloads, count = laid.heads, laid.payloads, len(raw)
        has_checksum = heads[:, fields.CHECKSUM] >= 0
        begins = heads[:, fields.CHECKSUM_START] - laid.starts
        is_whole: NDArray[np.bool_] = (
            (payloads[:, 0] < 0)
            | (heads[:, fields.CHUNK_COUNT] > 1)
            | (begins != np.where(has_checksum, 6, 0))
        )
        flags = np.zeros(count, np.uint8)
        for index in np.flatnonzero(~is_whole & (heads[:, fields.COMPRESSION] != 0)).tolist():
            way = self._way(laid, index)
            is_whole[index] = way < 0
            flags[index] = max(way, 0) << _WAY_SHIFT
        room = int(sum(len(each.entry) for each in raw)) + int((payloads[:, 1] - payloads[:, 0]).sum())
        columns = MessageColumns([laid.messages])
        is_batch = heads[:, fields.BATCH_COUNT] >= 0
        data, bounds = laid.buffer.data, (*heads[:, metadata_and_payload].T.tolist(), *payloads.T.tolist())
        is_wrong = True
        while is_wrong:
            tags, ends = np.empty(room + 2 * count + 64, np.uint8), np.empty(count, np.int64)
            kernels.cut(laid.buffer, heads, payloads, laid.counts, is_whole, tags, ends)
            cut = tags[: ends[-1]].tobytes()
            sizes = np.diff(ends, prepend=0).astype(np.int32)
            is_wrong, joined_bytes = False, 0
            entries = list(zip(sizes.tolist(), is_batch.tolist(), laid.counts.tolist(), strict=True))
            parts = joined_parts(columns, cut, entries)
            for index, (part, start, middle, begin, end) in enumerate(zip(parts, *bounds, strict=True)):
                if part == (bytes(data[start:middle]), bytes(data[begin:end])):
                    joined_bytes += middle - start + end - begin
                elif not is_whole[index]:
                    is_whole[index] = is_wrong = True
        flags[is_whole] = _WHOLE
        flags |= np.where(has_checksum & ~is_whole, _CHECKED, 0).astype(np.uint8)
        flags |= np.where(is_batch & ~is_whole, _BATCH, 0).astype(np.uint8)
        crcs = heads[:, fields.CHECKSUM].astype(np.uint32)
        whole: list[bytes] = []
        whole_sizes = np.zeros(count, np.int32)
        for index in np.flatnonzero(is_whole | ~has_checksum).tolist():
            entry = raw[index].entry
            crcs[index] = crc32c(entry)
            if is_whole[index]:
                whole.append(bytes(entry))
                whole_sizes[index] = len(entry)
        return EntryEnvelope(
            flags, laid.counts.astype(np.int32), crcs, cut, sizes, b"".join(whole), whole_sizes, joined_bytes
        )

    def _way(self, laid: LaidOpen, index: int) -> int:
        """Return the index in `_WAYS` of the payload's compression; -1 if none gives the same bytes."""
        fields, head = columnar_fields, laid.heads[index]
        codec = int(head[fields.COMPRESSION])
        self._tried += 1
        if self._failures.get(codec, 0) >= _FAILURES_MAX and self._tried % _RETRIED_ENTRIES:
            return -1
        packed = laid.buffer[head[fields.PAYLOAD_START] : head[fields.PAYLOAD_END]].tobytes()
        plain = laid.buffer[laid.payloads[index, 0] : laid.payloads[index, 1]].tobytes()
        ways = self._ways.get(codec)
        if ways is None:
            ways = self._ways[codec] = [way for way, (each, _) in enumerate(_WAYS) if each == codec]
        for index_of_way, way in enumerate(ways):
            if _compressed(way, plain) == packed:
                if index_of_way:
                    ways.insert(0, ways.pop(index_of_way))  # the same producer's entries are likely to follow
                self._failures[codec] = 0
                return way
        self._failures[codec] = self._failures.get(codec, 0) + 1
        return -1

    def _bound_chunks(self) -> None:
        held = self._chunks.open
        while held and sum(sum(map(len, parts)) for parts in held.values()) > CHUNK_BYTES_MAX:
            held.pop(next(iter(held)))
        self._chunks.headless.clear()


class _TooLargeOpen(Exception):
    """The entries would be too large when decompressed."""


def _compressed(way: int, plain: bytes) -> bytes:
    codec, level = _WAYS[way]
    if level == _SYNC_FLUSHED:
        stream = zlib.compressobj(-level)
        return stream.compress(plain) + stream.flush(zlib.Z_SYNC_FLUSH)
    return compress(codec, plain, level)


def _kept_whole(raw: Sequence[RawEntry]) -> EntryEnvelope:
    entries = [bytes(each.entry) for each in raw]
    count = len(entries)
    return EntryEnvelope(
        np.full(count, _WHOLE, np.uint8), np.zeros(count, np.int32),
        np.array([crc32c(entry) for entry in entries], np.uint32), b"", np.zeros(count, np.int32),
        b"".join(entries), np.array([len(entry) for entry in entries], np.int32), 0,
    )  # fmt: skip


def concatenated(envelopes: Sequence[EntryEnvelope]) -> EntryEnvelope:
    """Concatenate the envelopes of consecutive entries; at least one."""
    if len(envelopes) == 1:
        return envelopes[0]

    def put(name: str) -> Any:
        return np.concatenate([getattr(each, name) for each in envelopes])

    return EntryEnvelope(
        put("flags"), put("counts"), put("crcs"), b"".join(each.tags for each in envelopes), put("tag_sizes"),
        b"".join(each.whole for each in envelopes), put("whole_sizes"),
        sum(each.joined_bytes for each in envelopes),
    )  # fmt: skip


# --- joining ----------------------------------------------------------------------------------------


class JoinedEntries(NamedTuple):
    """Restored entries. ``bad`` are the indexes of lost entries (which are empty), ``other`` of entries whose
    messages are right but whose bytes differ from the original."""

    entries: list[bytes]
    bad: list[int]
    other: list[int]


def joined(messages: Sequence[pa.RecordBatch], envelope: EntryEnvelope) -> JoinedEntries:
    """Restore split entries. Raises `CorruptPayload` when messages and envelope do not belong together.

    ``messages`` may have any of `COLUMNS`, but has `JOINED_COLUMNS`.
    """
    if int(envelope.counts.sum()) != sum(batch.num_rows for batch in messages):
        raise CorruptPayload("an offloaded ledger's rows are not those that its entries had")
    if int(envelope.tag_sizes.sum()) != len(envelope.tags) or int(envelope.whole_sizes.sum()) != len(
        envelope.whole
    ):
        raise CorruptPayload("the parts of an envelope do not fit together")
    flags = envelope.flags
    parts: Iterable[tuple[bytes, bytes] | None] = repeat(None, len(flags))
    if envelope.tags:
        is_batch = ((flags & _BATCH) != 0).tolist()
        entries = list(zip(envelope.tag_sizes.tolist(), is_batch, envelope.counts.tolist(), strict=True))
        parts = joined_parts(MessageColumns(messages), envelope.tags, entries)
    found = JoinedEntries([], [], [])
    whole_at = 0
    for index, (kind, crc, size, part) in enumerate(
        zip(flags.tolist(), envelope.crcs.tolist(), envelope.whole_sizes.tolist(), parts, strict=True)
    ):
        if kind & _WHOLE:
            entry = envelope.whole[whole_at : whole_at + size]
            whole_at += size
            is_right = crc32c(entry) == crc
        elif part is None:
            entry, is_right = b"", False
        else:
            entry, is_right = _entry(kind, crc, *part)
            if not is_right and kind >> _WAY_SHIFT:
                # The columns' checksums were verified, so the codec compresses differently now.
                entry, is_right = _uncompressed(*part), True
                found.other.append(index)
        if not is_right:
            found.bad.append(index)
            entry = b""
        found.entries.append(entry)
    return found


def _entry(kind: int, crc: int, metadata: bytes, payload: bytes) -> tuple[bytes, bool]:
    """Return an entry, and whether it is the one that was split."""
    head = _SIZE.pack(len(metadata)) + metadata
    way = kind >> _WAY_SHIFT
    body = payload if not way else _compressed(way, bytes(payload))
    is_right = crc32c(body, crc32c(head)) == crc
    if kind & _CHECKED:
        return b"".join((_MAGIC_AND_CRC.pack(MAGIC_CHECKSUM, crc), head, body)), is_right
    return b"".join((head, body)), is_right


def _uncompressed(metadata: bytes, payload: bytes) -> bytes:
    """Return the entry as its producer would have sent it without compression."""
    fields = pb.MessageMetadata.FromString(metadata)
    fields.ClearField("compression")
    return build_entry(fields.SerializeToString(), payload)
