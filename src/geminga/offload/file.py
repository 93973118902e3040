"""File of an offloaded ledger: Parquet for any reader, with the envelopes of the entries in between.

The rows are the ledger's messages, in order, with the columns `geminga.offload.entry_envelope.COLUMNS`; any
Parquet reader can read them. Entries are in *groups* of about `GROUP_BYTES`, a row group each. The envelope
of a group (`geminga.offload.entry_envelope`) is behind its row group, where Parquet allows other bytes. The
footer's ``geminga.offload`` has the offsets, as JSON::

    {"version": 1, "topic": ..., "partition": ..., "ledger": ..., "uuid": ..., "entries": ...,
     "messages": ..., "closed": ..., "entry_bytes": ..., "publish": [first, last] or null,
     "event": [first, last] or null, "plain": ...,
     "groups": [[first entry, entries, rows, row group or -1, offset, size, crc32c], ...]}

``closed`` counts entries that hold messages but have no rows, mostly encrypted ones; ``entry_bytes`` is the
size of the entries in the store. ``plain``: the rows contain all information of the ledger's messages: no
message is encrypted or chunked, and every key is the text in the column. A group whose entries have no rows
has no row group.

An entry is returned byte for byte, or not at all: pages, envelopes and entries have verified checksums.
"""

from __future__ import annotations

import contextlib
import io
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from geminga.errors import CorruptPayload
from geminga.offload.entry_envelope import (
    COLUMNS,
    EntryEnvelope,
    EntrySplitter,
    JoinedEntries,
    SplitEntries,
    concatenated,
    joined,
)
from geminga.offload.entry_joining import JOINED_COLUMNS
from geminga.wire.checksum import crc32c
from geminga.wire.columnar import message_schema

VERSION = 1
METADATA_KEY = b"geminga.offload"
GROUP_BYTES = 8 * 1024 * 1024
"""Bytes of entries in a group, unless one entry is larger."""
GROUP_MEMORY_BYTES = 64 * 1024 * 1024
"""Approximate memory limit of a group, unless one entry takes more: a reader loads a whole group."""
GROUP_ENTRIES_MAX = 65_536
COMPRESSION_LEVEL = 3

_DICTIONARIES = (
    "producer_name", "topic", "schema_version", "key", "properties.key_value.key",
    "properties.key_value.value",
)  # fmt: skip
_ENCODINGS = {
    "value": "DELTA_LENGTH_BYTE_ARRAY",
    **dict.fromkeys(
        ("event_time", "publish_time", "sequence_id", "partition", "ledger_id", "entry_id", "batch_index",
         "batch_size"),
        "DELTA_BINARY_PACKED",
    ),
}  # fmt: skip


class Sink(Protocol):
    """Output of a file, written in order."""

    def write(self, data: Any) -> object: ...


class NotOffloaded(Exception):
    """The file is no offloaded ledger, or has an unknown version."""


def schema() -> pa.Schema:
    """Return the schema of an offloaded ledger: message columns, with text instead of dictionaries."""
    fields = []
    for each in message_schema(COLUMNS):
        kind = each.type.value_type if pa.types.is_dictionary(each.type) else each.type
        fields.append(pa.field(each.name, kind, nullable=each.nullable))
    return pa.schema(fields)


@dataclass(slots=True)
class FileSummary:
    """Summary in a file's footer. Times are (first, last) in milliseconds since 1970, or None."""

    topic: str
    partition: int
    ledger: int
    uuid: str
    entries: int = 0
    messages: int = 0
    closed: int = 0
    entry_bytes: int = 0
    publish: tuple[int, int] | None = None
    event: tuple[int, int] | None = None
    plain: bool = False
    groups: list[list[int]] = field(default_factory=list)

    def encode(self) -> bytes:
        return json.dumps(
            {"version": VERSION, **{name: getattr(self, name) for name in self.__slots__}}
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> FileSummary:
        """Decode a summary. Raises `NotOffloaded`."""
        try:
            kept = json.loads(data)
            version = kept.pop("version")
            if version != VERSION:
                raise NotOffloaded(f"the file is of version {version}; {VERSION} can be read")
            for name in ("publish", "event"):
                if kept[name] is not None:
                    first, last = kept[name]
                    kept[name] = first, last
            for group in kept.get("groups", ()):
                if len(group) != 7 or not all(type(number) is int for number in group):
                    raise ValueError(f"a group is {group}, not 7 integers")
            return cls(**{name: value for name, value in kept.items() if name in cls.__slots__})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NotOffloaded(f"the file's {METADATA_KEY.decode()} cannot be read: {error}") from error


# --- writing ----------------------------------------------------------------------------------------


class _Position(io.RawIOBase):
    """Output of the Parquet writer, which counts bytes because envelopes are written in between."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink
        self.at = 0
        self.crc = 0
        self.tail: tuple[int, int] | None = None
        """Size and CRC32C of the bytes written since this was last set to (0, 0)."""
        self.is_over = False
        """Whether writes are discarded."""

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if self.is_over:
            return view.nbytes
        self._sink.write(view)
        self.crc = crc32c(view, self.crc)
        self.at += view.nbytes
        if self.tail is not None:
            self.tail = self.tail[0] + view.nbytes, crc32c(view, self.tail[1])
        return view.nbytes

    def tell(self) -> int:
        return self.at

    def writable(self) -> bool:
        return True


class WrittenFile(NamedTuple):
    """Result of writing: ``size`` bytes with the CRC32C ``crc``. ``tail``: size and CRC32C of the Parquet
    footer at the end, with its size and magic, as it has no checksum of its own, unlike pages."""

    summary: FileSummary
    size: int
    crc: int
    tail: tuple[int, int]


class LedgerWriter:
    """Writes one ledger to a sink. `add` its entries in order, then `close`; the sink stays open."""

    def __init__(self, sink: Sink, *, topic: str, partition: int, ledger_id: int, uuid: str) -> None:
        self._position = _Position(sink)
        self._schema = schema()
        # Envelopes are written through it too, as it tracks the offset of the next page.
        self._file = pa.PythonFile(self._position, mode="w")
        self._writer = pq.ParquetWriter(
            self._file, self._schema, version="2.6", compression="zstd",
            compression_level=COMPRESSION_LEVEL, use_dictionary=list(_DICTIONARIES),
            column_encoding=_ENCODINGS, write_page_checksum=True, store_schema=True,
        )  # fmt: skip
        self._splitter = EntrySplitter(topic, partition, ledger_id)
        self._summary = FileSummary(topic, partition, ledger_id, uuid, plain=True)
        self._row_groups = 0
        self._waiting: list[SplitEntries] = []
        self._waiting_bytes = self._waiting_memory_bytes = self._waiting_entries = 0

    def add(self, entries: Sequence[bytes]) -> None:
        """Add consecutive entries; they are split at once, and written with their group.

        Raises the sink's exceptions.
        """
        piece: list[bytes] = []
        for entry in entries:
            piece.append(entry)
            self._waiting_bytes += len(entry)
            is_full = self._waiting_entries + len(piece) >= GROUP_ENTRIES_MAX
            if is_full or self._waiting_bytes >= GROUP_BYTES:
                self._split(piece)
                piece = []
                self._flush()
        if piece:
            self._split(piece)

    def _split(self, entries: Sequence[bytes]) -> None:
        summary = self._summary
        for piece in self._splitter.split(summary.entries, entries):
            count = len(piece.envelope.flags)
            self._waiting.append(piece)
            self._waiting_entries += count
            self._waiting_memory_bytes += piece.memory_bytes
            summary.entries += count
            if self._waiting_memory_bytes >= GROUP_MEMORY_BYTES:
                self._flush()
        summary.entry_bytes += sum(map(len, entries))

    def _flush(self) -> None:
        """Write the pending group."""
        waiting, self._waiting = self._waiting, []
        entries, self._waiting_entries = self._waiting_entries, 0
        self._waiting_bytes = self._waiting_memory_bytes = 0
        if not entries:
            return
        summary = self._summary
        batches = [batch for piece in waiting for batch in piece.messages]
        rows = sum(batch.num_rows for batch in batches)
        row_group = -1
        if rows:
            table = pa.Table.from_batches([_plain(batch, self._schema) for batch in batches])
            self._writer.write_table(table, row_group_size=max(rows, 1))
            row_group = self._row_groups
            self._row_groups += 1
            summary.publish = _span(summary.publish, table.column("publish_time"))
            summary.event = _span(summary.event, table.column("event_time"))
        envelope = concatenated([piece.envelope for piece in waiting]).encode()
        at = self._position.at
        self._file.write(envelope)
        first = summary.entries - entries
        summary.groups.append([first, entries, rows, row_group, at, len(envelope), crc32c(envelope)])
        summary.messages += rows
        summary.closed += sum(piece.closed for piece in waiting)
        summary.plain = summary.plain and all(piece.is_plain for piece in waiting)

    def close(self) -> WrittenFile:
        """Write the pending group and the footer."""
        self._flush()
        self._writer.add_key_value_metadata({METADATA_KEY: self._summary.encode()})
        self._position.tail = 0, 0
        self._writer.close()
        pa.default_memory_pool().release_unused()
        return WrittenFile(self._summary, self._position.at, self._position.crc, self._position.tail)

    def abandon(self) -> None:
        """Write nothing more, and drop pending entries. Closes Arrow's writer, which writes on deletion."""
        self._position.is_over = True
        self._waiting.clear()
        with contextlib.suppress(Exception):
            self._writer.close()
        pa.default_memory_pool().release_unused()


def _plain(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _span(before: tuple[int, int] | None, column: pa.ChunkedArray) -> tuple[int, int] | None:
    import pyarrow.compute as pc

    found = pc.min_max(column.cast(pa.int64())).as_py()
    if found["min"] is None:
        return before
    if before is None:
        return found["min"], found["max"]
    return min(before[0], found["min"]), max(before[1], found["max"])


# --- reading ----------------------------------------------------------------------------------------


class LedgerFile:
    """Open file of an offloaded ledger. ``source``: a file with random access. Used by one thread."""

    def __init__(self, source: BinaryIO | pa.NativeFile) -> None:
        """Read the footer. Raises `NotOffloaded`, or the source's exceptions."""
        self._source = source
        try:
            self._parquet = pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
        except (pa.ArrowInvalid, KeyError, UnicodeDecodeError) as error:
            raise NotOffloaded(f"no Parquet file of a ledger: {error}") from error
        lacking = set(COLUMNS).difference(self._parquet.schema_arrow.names)
        if lacking:
            raise NotOffloaded(f"the file lacks the columns {', '.join(sorted(lacking))}")
        metadata = self._parquet.metadata.metadata or {}
        if METADATA_KEY not in metadata:
            raise NotOffloaded(
                f"the file has no {METADATA_KEY.decode()} in its footer: no ledger was offloaded to it"
            )
        self.summary = FileSummary.decode(metadata[METADATA_KEY])
        self._firsts = [group[0] for group in self.summary.groups]

    def group_of(self, entry_id: int) -> int:
        """Return the index of the group with an entry."""
        return bisect_right(self._firsts, entry_id) - 1

    def first_of(self, group: int) -> int:
        """Return the first entry of a group."""
        return self._firsts[group]

    def entries(self, group: int) -> JoinedEntries:
        """Return the entries of a group. Raises `CorruptPayload`, or the source's exceptions."""
        envelope, entries = self._envelope(group), self.summary.groups[group][1]
        table = self._rows(group, JOINED_COLUMNS)
        found = joined([] if table is None else table.combine_chunks().to_batches(), envelope)
        if len(found.entries) != entries:
            raise CorruptPayload(f"{len(found.entries)} entries are where {entries} should be")
        return found

    def has(self, entry_id: int, entry: bytes) -> bool:
        """Whether an entry is the one of this id, by its checksum, which needs little reading. Raises
        `CorruptPayload`, or the source's exceptions."""
        group = self.group_of(entry_id)
        return self._envelope(group).is_of(entry_id - self.first_of(group), entry)

    def _envelope(self, group: int) -> EntryEnvelope:
        first, entries, _, _, at, size, crc = self.summary.groups[group]
        self._source.seek(at)
        data = self._source.read(size)
        if len(data) != size or crc32c(data) != crc:
            raise CorruptPayload(
                f"the envelope of entries {first} to {first + entries - 1} fails its checksum"
            )
        return EntryEnvelope.decode(data)

    def _rows(self, group: int, columns: Sequence[str]) -> pa.Table | None:
        """Read the rows of a group; None if its entries have no rows."""
        first, entries, _, row_group, *_ = self.summary.groups[group]
        if row_group < 0:
            return None
        try:
            return self._parquet.read_row_group(row_group, columns=list(columns), use_threads=False)
        except (pa.ArrowInvalid, pa.ArrowException) as error:
            raise CorruptPayload(f"the rows of entries {first} to {first + entries - 1}: {error}") from error
        except OSError as error:
            if "checksum" in str(error) or "could not verify" in str(error):
                raise CorruptPayload(
                    f"the rows of entries {first} to {first + entries - 1}: {error}"
                ) from error
            raise

    def close(self) -> None:
        self._parquet.close()
        self._source.close()
