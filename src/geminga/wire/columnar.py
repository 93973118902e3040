"""Arrow columns from entries, and batch payloads from Arrow columns.

`decode_entries` takes entries as the broker delivers them and gives one record batch;
`encode_table` takes a table and gives the bodies of batches, ready for compression and framing.
No Python object is made a message: the loops are in `geminga.wire.columnar_kernels`.

The message columns and their Arrow types are in `message_schema`. Layout of the bytes: framing.md
sections 1.2 to 1.5; key hashes: algorithms.md section 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from geminga.config import suggestion
from geminga.errors import (
    CorruptPayload,
    CryptoError,
    InvalidConfiguration,
    InvalidMessage,
    OperationNotSupported,
)

if TYPE_CHECKING:
    from geminga.wire.metadata import RawEntry
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

MILLISECONDS_UTC = pa.timestamp("ms", tz="UTC")

_COLUMN_TYPES: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "key": pa.string(),
    "ordering_key": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "event_time": MILLISECONDS_UTC,
    "publish_time": MILLISECONDS_UTC,
    "sequence_id": pa.int64(),
    "producer_name": pa.dictionary(pa.int32(), pa.string()),
    "topic": pa.dictionary(pa.int32(), pa.string()),
    "ledger_id": pa.int64(),
    "entry_id": pa.int64(),
    "partition": pa.int32(),
    "batch_index": pa.int32(),
    "redelivery_count": pa.int32(),
    # Not among the default columns:
    "key_bytes": pa.binary(),
    "message_id": pa.binary(),
}

EXTRA_COLUMNS = ("key_bytes", "message_id")
"""``key_bytes``: the key with base64 undone where its producer flagged it. ``message_id``: the bytes
of ``MessageIdData``, as `geminga.MessageId.serialize` gives them."""

MESSAGE_COLUMNS = tuple(name for name in _COLUMN_TYPES if name not in EXTRA_COLUMNS)
"""The columns of a message, in their default order."""

MAX_UNCOMPRESSED_SIZE = 128 * 1024 * 1024
"""Default bound, in bytes, on what one compressed entry may grow to."""

_NULLABLE = ("value", "key", "ordering_key", "properties", "event_time", "key_bytes")
_INT32_MAX = (1 << 31) - 1
_SCHEMES = {"JavaStringHash": 0, "Murmur3_32Hash": 1, "BoostHash": 2}


def message_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """The Arrow schema of decoded messages; ``None`` asks for `MESSAGE_COLUMNS`.

    ``key`` is the wire's text (base64 for keys made from bytes); ``event_time`` is null when absent;
    ``batch_index`` is -1 for a message alone in its entry; ``partition`` is -1 for a topic without
    partitions; ``topic`` and ``producer_name`` are dictionary-encoded. Raises
    `InvalidConfiguration` for an unknown column.
    """
    fields = []
    for name in MESSAGE_COLUMNS if columns is None else columns:
        if name not in _COLUMN_TYPES:
            known = ", ".join(_COLUMN_TYPES)
            hint = suggestion(name, _COLUMN_TYPES)
            raise InvalidConfiguration(f"columns: no message column {name!r}{hint}; allowed: {known}")
        fields.append(pa.field(name, _COLUMN_TYPES[name], nullable=name in _NULLABLE))
    return pa.schema(fields)


def _kernels() -> Any:
    """The compiled loops; numba costs about 0.3 s to import, so it is loaded at first use."""
    from geminga.wire import columnar_kernels

    return columnar_kernels


def _place(entry: RawEntry) -> str:
    return f"{entry.topic}:{entry.ledger_id}:{entry.entry_id}"


# --- chunks --------------------------------------------------------------------------------------


class ChunkCarry:
    """Chunks of messages whose last chunk was not among the entries decoded so far.

    Give the same carry to successive `decode_entries` calls over one partition. ``limit`` bounds the
    open messages (10 as in the official consumers); the oldest is dropped when it is exceeded.
    """

    def __init__(self, limit: int = 10) -> None:
        self.limit = limit
        self.open: dict[bytes, list[bytes]] = {}
        self.headless: list[str] = []
        """Places of chunks that were dropped because their message's first chunk was not seen."""

    def add(self, uuid: bytes, chunk_id: int, chunk_count: int, payload: bytes, place: str) -> bytes | None:
        """Take one chunk; returns the whole payload with the last one (algorithms.md section 12)."""
        if chunk_id == 0:
            self.open.pop(uuid, None)
            while len(self.open) >= self.limit:
                self.open.pop(next(iter(self.open)))
            self.open[uuid] = []
        parts = self.open.get(uuid)
        if parts is None:
            self.headless.append(place)
            return None
        if chunk_id < len(parts):
            return None
        if chunk_id > len(parts):
            del self.open[uuid]
            self.headless.append(place)
            return None
        parts.append(payload)
        if len(parts) < chunk_count:
            return None
        del self.open[uuid]
        return b"".join(parts)


# --- decoding ------------------------------------------------------------------------------------


class _Decoder:
    """One `decode_entries` call: heads, payloads, then the scan over all messages."""

    def __init__(self, entries: Sequence[RawEntry], chunks: ChunkCarry | None, limit: int) -> None:
        self.kernels = _kernels()
        self.entries = entries
        self.limit = limit
        self.chunks = chunks
        self.raw = b"".join([entry.entry for entry in entries])
        self.buffer: Bytes = np.frombuffer(self.raw, np.uint8)
        self.bounds: Int64s = np.zeros(len(entries) + 1, np.int64)
        np.cumsum([len(entry.entry) for entry in entries], out=self.bounds[1:])
        self.heads: Int64s = np.empty((len(entries), self.kernels.HEAD_FIELDS), np.int64)
        damaged = self.kernels.parse_heads(self.buffer, self.bounds, self.heads)
        if damaged >= 0:
            raise CorruptPayload(f"{_place(entries[damaged])}: the entry's headers or metadata are damaged")

    def verify(self) -> None:
        """Check every CRC32C; an entry without one is taken as it is."""
        from geminga.wire.checksum import crc32c

        k = self.kernels
        view = memoryview(self.raw)
        wanted = self.heads[:, k.CHECKSUM].tolist()
        starts = self.heads[:, k.CHECKSUM_START].tolist()
        ends = self.heads[:, k.PAYLOAD_END].tolist()
        for i, (checksum, start, end) in enumerate(zip(wanted, starts, ends, strict=True)):
            if checksum >= 0 and crc32c(view[start:end]) != checksum:
                raise CorruptPayload(f"{_place(self.entries[i])}: checksum mismatch over {end - start} bytes")

    def payloads(self) -> Int64s:
        """(start, end) of every entry's uncompressed payload in ``self.buffer``; -1 delivers nothing."""
        k = self.kernels
        heads = self.heads
        data = heads[:, [k.PAYLOAD_START, k.PAYLOAD_END]].copy()
        data[heads[:, k.MARKER_TYPE] >= 0] = -1
        is_chunk = heads[:, k.CHUNK_COUNT] > 1
        special = np.flatnonzero(
            (data[:, 0] >= 0) & ((heads[:, k.COMPRESSION] != 0) | (heads[:, k.IS_ENCRYPTED] != 0) | is_chunk)
        )
        if not len(special):
            return data
        parts = [self.raw]
        size = len(self.raw)
        for i in special.tolist():
            payload = self._special_payload(i)
            if payload is None:
                data[i] = -1
                continue
            data[i] = (size, size + len(payload))
            size += len(payload)
            parts.append(payload)
        if self.chunks is None and any(is_chunk):
            self._refuse_cut_chunks(is_chunk)
        self.buffer = np.frombuffer(b"".join(parts), np.uint8)
        return data

    def _special_payload(self, i: int) -> bytes | None:
        k = self.kernels
        head = self.heads[i]
        place = _place(self.entries[i])
        if head[k.IS_ENCRYPTED]:
            raise CryptoError(f"{place}: the entry is encrypted; reading by columns has no keys to open it")
        payload = self.raw[head[k.PAYLOAD_START] : head[k.PAYLOAD_END]]
        if head[k.CHUNK_COUNT] > 1:
            whole = self._add_chunk(head, payload, place)
            if whole is None:
                return None
            payload = whole
        if head[k.COMPRESSION] == 0:
            return payload
        from geminga.wire.compression import decompress

        try:
            return decompress(
                int(head[k.COMPRESSION]), payload, int(head[k.UNCOMPRESSED_SIZE]), limit=self.limit
            )
        except CorruptPayload as error:
            raise CorruptPayload(f"{place}: {error}") from error

    def _add_chunk(self, head: Int64s, payload: bytes, place: str) -> bytes | None:
        k = self.kernels
        if self.chunks is None:
            self._own_chunks = getattr(self, "_own_chunks", None) or ChunkCarry(limit=1 << 30)
        carry = self.chunks or self._own_chunks
        uuid = self.raw[head[k.UUID_START] : head[k.UUID_START] + head[k.UUID_SIZE]]
        count = int(head[k.CHUNK_COUNT])
        chunk_id = int(head[k.CHUNK_ID])
        if not 0 <= chunk_id < count or not uuid:
            raise CorruptPayload(f"{place}: chunk {chunk_id} of {count} with the uuid {uuid!r}")
        return carry.add(uuid, chunk_id, count, payload, place)

    def _refuse_cut_chunks(self, is_chunk: NDArray[np.bool_]) -> None:
        carry = self._own_chunks
        if carry.open or carry.headless:
            what = carry.headless[0] if carry.headless else _place(self.entries[np.flatnonzero(is_chunk)[-1]])
            raise OperationNotSupported(
                f"{what}: a chunked message is cut: not all of its chunks are among the {len(self.entries)} "
                "entries given; pass chunks=ChunkCarry() to carry chunks from one call to the next"
            )

    def scan(self, columns: Sequence[str]) -> _Messages:
        """Find every message and keep what ``columns`` need of it."""
        k = self.kernels
        data = self.payloads()
        batch_counts = self.heads[:, k.BATCH_COUNT]
        # A message takes at least its 4 bytes of size and 2 of metadata: a count beyond that is a lie,
        # and must not decide how much memory is taken.
        lying = np.flatnonzero((data[:, 0] >= 0) & (batch_counts > (data[:, 1] - data[:, 0]) // 6))
        if len(lying):
            i = int(lying[0])
            raise CorruptPayload(
                f"{_place(self.entries[i])}: {batch_counts[i]} messages announced "
                f"in {data[i, 1] - data[i, 0]} bytes"
            )
        capacity = int(np.where(data[:, 0] >= 0, np.maximum(batch_counts, 1), 0).sum())
        fields = sorted({field for name in columns for field in _needed_fields(k, name)})
        slots = np.full(k.MESSAGE_FIELDS, -1, np.int64)
        slots[fields] = np.arange(len(fields))
        rows = np.empty((len(fields), capacity), np.int64)
        words: list[int] = []
        ack_bounds = np.zeros(len(self.entries) + 1, np.int64)
        for i, entry in enumerate(self.entries):
            if entry.ack_set:
                words.extend(_signed_64(word) for word in entry.ack_set)
            ack_bounds[i + 1] = len(words)
        counts = np.empty(len(self.entries), np.int64)
        count, damaged = k.scan_messages(
            self.buffer, data, self.heads, np.array(words, np.int64), ack_bounds, slots, rows, counts
        )
        if damaged >= 0:
            raise CorruptPayload(
                f"{_place(self.entries[damaged])}: the payload is not the batch of "
                f"{max(int(batch_counts[damaged]), 1)} messages that its metadata announces"
            )
        found = {field: rows[slot, :count] for slot, field in enumerate(fields)}
        return _Messages(self, found, counts, count)


def _signed_64(word: int) -> int:
    return word - (1 << 64) if word >> 63 == 1 else word


def _needed_fields(k: Any, column: str) -> tuple[int, ...]:
    if column == "value":
        return (k.VALUE_START, k.VALUE_SIZE)
    if column == "key":
        return (k.KEY_START, k.KEY_SIZE)
    if column == "key_bytes":
        return (k.KEY_START, k.KEY_SIZE, k.KEY_IS_BASE64)
    if column == "ordering_key":
        return (k.ORDERING_KEY_START, k.ORDERING_KEY_SIZE)
    if column == "properties":
        return (
            k.PROPERTIES_START, k.PROPERTIES_END, k.PROPERTY_FIELD,
            k.PROPERTY_COUNT, k.PROPERTY_KEY_BYTES, k.PROPERTY_VALUE_BYTES,
        )  # fmt: skip
    if column == "event_time":
        return (k.EVENT_TIME,)
    if column == "sequence_id":
        return (k.MESSAGE_SEQUENCE_ID,)
    if column in ("batch_index", "message_id"):
        return (k.BATCH_INDEX,)
    return ()


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


class _Messages:
    """The scan's result, and the Arrow arrays made from it."""

    def __init__(self, decoder: _Decoder, found: dict[int, Int64s], counts: Int64s, count: int) -> None:
        self.decoder = decoder
        self.kernels = decoder.kernels
        self.found = found
        self.counts = counts
        self.count = count

    def column(self, name: str) -> pa.Array:
        k = self.kernels
        if name == "value":
            return self._binary(k.VALUE_START, k.VALUE_SIZE, name)
        if name == "key":
            return self._text(self._binary(k.KEY_START, k.KEY_SIZE, name), name)
        if name == "ordering_key":
            return self._binary(k.ORDERING_KEY_START, k.ORDERING_KEY_SIZE, name)
        if name == "key_bytes":
            return self._key_bytes()
        if name == "properties":
            return self._properties()
        if name == "event_time":
            times = self.found[k.EVENT_TIME]
            return pa.array(times, mask=times == 0).cast(MILLISECONDS_UTC)
        if name == "sequence_id":
            return pa.array(self.found[k.MESSAGE_SEQUENCE_ID])
        if name == "batch_index":
            return pa.array(self.found[k.BATCH_INDEX].astype(np.int32))
        if name == "message_id":
            return self._message_ids()
        return self._of_entry(name)

    def _per_entry(self, values: Any, dtype: type) -> NDArray[Any]:
        return np.repeat(np.asarray(values, dtype), self.counts)

    def _of_entry(self, name: str) -> pa.Array:
        entries = self.decoder.entries
        heads = self.decoder.heads
        if name == "publish_time":
            return pa.array(np.repeat(heads[:, self.kernels.PUBLISH_TIME], self.counts)).cast(
                MILLISECONDS_UTC
            )
        if name == "producer_name":
            starts = heads[:, self.kernels.PRODUCER_START].tolist()
            sizes = heads[:, self.kernels.PRODUCER_SIZE].tolist()
            raw = self.decoder.raw
            return self._dictionary([raw[s : s + n] for s, n in zip(starts, sizes, strict=True)], name)
        if name == "topic":
            return self._dictionary([entry.topic.encode() for entry in entries], name)
        if name == "ledger_id":
            return pa.array(self._per_entry([entry.ledger_id for entry in entries], np.int64))
        if name == "entry_id":
            return pa.array(self._per_entry([entry.entry_id for entry in entries], np.int64))
        if name == "partition":
            return pa.array(self._per_entry([entry.partition for entry in entries], np.int32))
        return pa.array(self._per_entry([entry.redelivery_count for entry in entries], np.int32))

    def _dictionary(self, names: list[bytes], column: str) -> pa.DictionaryArray:
        numbers: dict[bytes, int] = {}
        indices = self._per_entry([numbers.setdefault(name, len(numbers)) for name in names], np.int32)
        words = self._text(pa.array(list(numbers), pa.binary()), column)
        return pa.DictionaryArray.from_arrays(pa.array(indices), words)

    def _checked_size(self, sizes: Int64s, column: str) -> int:
        total = int(np.maximum(sizes, 0).sum())
        if total > _INT32_MAX:
            raise InvalidConfiguration(
                f"column {column!r} of {self.count} messages takes {total} bytes; one record batch holds "
                f"{_INT32_MAX}: decode fewer entries at once"
            )
        return total

    def _binary(self, start_field: int, size_field: int, column: str) -> pa.Array:
        starts, sizes = self.found[start_field], self.found[size_field]
        absent = sizes < 0
        nulls = int(absent.sum())
        if nulls == self.count and self.count:
            return pa.nulls(self.count, pa.binary())
        out = np.empty(self._checked_size(sizes, column), np.uint8)
        offsets = np.empty(self.count + 1, np.int32)
        self.kernels.gather(self.decoder.buffer, starts, sizes, offsets, out)
        validity = _bitmap(~absent) if nulls else None
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.binary(), self.count, buffers, nulls)

    def _key_bytes(self) -> pa.Array:
        k = self.kernels
        starts, sizes, flags = self.found[k.KEY_START], self.found[k.KEY_SIZE], self.found[k.KEY_IS_BASE64]
        if not flags.any():
            return self._binary(k.KEY_START, k.KEY_SIZE, "key_bytes")
        absent = sizes < 0
        out = np.empty(self._checked_size(sizes, "key_bytes"), np.uint8)
        offsets = np.empty(self.count + 1, np.int32)
        row = k.gather_keys(self.decoder.buffer, starts, sizes, flags, offsets, out)
        if row >= 0:
            raise CorruptPayload(f"{self._place_of_row(row)}: a key flagged as base64 is none")
        buffers = [_bitmap(~absent), pa.py_buffer(offsets), pa.py_buffer(out[: offsets[-1]])]
        return pa.Array.from_buffers(pa.binary(), self.count, buffers, int(absent.sum()))

    def _text(self, array: pa.Array, column: str) -> pa.Array:
        """Check that bytes are UTF-8, without a copy; names the message when they are not."""
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid as error:
            for row, value in enumerate(array.to_pylist() if len(array) == self.count else ()):
                try:
                    (value or b"").decode()
                except UnicodeDecodeError:
                    raise CorruptPayload(f"{self._place_of_row(row)}: the {column} is not UTF-8") from error
            place = _place(self.decoder.entries[0])
            raise CorruptPayload(
                f"{place} or one of the entries after it: a {column} is not UTF-8"
            ) from error

    def _place_of_row(self, row: int) -> str:
        index = int(np.searchsorted(np.cumsum(self.counts), row, side="right"))
        return _place(self.decoder.entries[index])

    def _properties(self) -> pa.Array:
        k = self.kernels
        found = self.found
        counts = found[k.PROPERTY_COUNT]
        slots = int(counts.sum())
        row_offsets = np.zeros(self.count + 1, np.int32)
        key_offsets, value_offsets = np.zeros(slots + 1, np.int32), np.zeros(slots + 1, np.int32)
        keys = np.empty(self._checked_size(found[k.PROPERTY_KEY_BYTES], "properties"), np.uint8)
        values = np.empty(self._checked_size(found[k.PROPERTY_VALUE_BYTES], "properties"), np.uint8)
        if slots:
            k.gather_properties(
                self.decoder.buffer, found[k.PROPERTIES_START], found[k.PROPERTIES_END],
                found[k.PROPERTY_FIELD], counts, row_offsets, key_offsets, keys, value_offsets, values,
            )  # fmt: skip
        words = [
            self._text(
                pa.Array.from_buffers(
                    pa.binary(), slots, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0
                ),
                "properties",
            )
            for offsets, data in ((key_offsets, keys), (value_offsets, values))
        ]
        kind = _COLUMN_TYPES["properties"]
        pairs = pa.StructArray.from_arrays(words, fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, self.count, [None, pa.py_buffer(row_offsets)], 0, children=[pairs])

    def _message_ids(self) -> pa.Array:
        entries = self.decoder.entries
        batch_indexes = self.found[self.kernels.BATCH_INDEX]
        # Tags and varints of the five fields: 1 + 10 bytes for each at the most.
        out = np.empty(min(self.count * 55, _INT32_MAX), np.uint8)
        offsets = np.empty(self.count + 1, np.int32)
        self.kernels.message_ids(
            self._per_entry([entry.ledger_id for entry in entries], np.int64),
            self._per_entry([entry.entry_id for entry in entries], np.int64),
            self._per_entry([entry.partition for entry in entries], np.int64),
            batch_indexes,
            np.repeat(np.maximum(self.decoder.heads[:, self.kernels.BATCH_COUNT], 0), self.counts),
            offsets,
            out,
        )
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[: offsets[-1]].copy())]
        return pa.Array.from_buffers(pa.binary(), self.count, buffers, 0)


def decode_entries(
    entries: Sequence[RawEntry],
    columns: Sequence[str] | None = None,
    *,
    max_uncompressed_size: int = MAX_UNCOMPRESSED_SIZE,
    chunks: ChunkCarry | None = None,
    verify: bool = True,
) -> pa.RecordBatch:
    """The messages of ``entries``, in order, as one record batch of `message_schema` ``(columns)``.

    Markers, compacted-out messages and, in a partly acknowledged batch, positions that the entry's
    ``ack_set`` no longer holds are left out. Chunked messages come with the id of their last chunk;
    chunks of a message that goes on beyond ``entries`` are kept in ``chunks``.

    Raises `CorruptPayload` naming ``topic:ledger:entry`` for damage, `CryptoError` for an encrypted
    entry, `OperationNotSupported` for a cut chunked message when no ``chunks`` are given, and
    `InvalidConfiguration` for an unknown column or a column of more than 2 GiB.
    """
    schema = message_schema(columns)
    if not entries:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    decoder = _Decoder(entries, chunks, max_uncompressed_size)
    if verify:
        decoder.verify()
    messages = decoder.scan(schema.names)
    if not schema.names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * messages.count, pa.struct([])))
    return pa.RecordBatch.from_arrays([messages.column(name) for name in schema.names], schema=schema)


# --- encoding ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """The body of one batch, uncompressed: what goes behind ``MessageMetadata`` in an entry.

    ``rows`` are the table's row numbers in the order of the messages. ``first_sequence_id`` is -1 when
    no sequence ids were given. ``partition_key`` and ``ordering_key`` are the first message's: the
    outer metadata repeats them. ``keyed`` tells that the partition came from a key's hash.
    """

    partition: int
    body: memoryview
    count: int
    rows: Sequence[int]
    first_sequence_id: int
    keyed: bool
    partition_key: str | None
    ordering_key: bytes | None

    @property
    def uncompressed_size(self) -> int:
        return len(self.body)

    @property
    def first_row(self) -> int:
        return int(self.rows[0])

    @property
    def last_sequence_id(self) -> int:
        return self.first_sequence_id + self.count - 1 if self.first_sequence_id >= 0 else -1


_INPUT_COLUMNS = ("value", "key", "ordering_key", "properties", "event_time")


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Read-only: numba compiles a kernel once for each mix of writable and read-only arguments."""
    array.flags.writeable = False
    return array


_NO_BYTES: Bytes = _frozen(np.empty(0, np.uint8))
_NO_OFFSETS: NDArray[np.int32] = _frozen(np.empty(0, np.int32))
_NO_NULLS: NDArray[np.bool_] = _frozen(np.empty(0, np.bool_))
_NO_ROWS: Int64s = np.empty(0, np.int64)


def _null_mask(array: pa.Array) -> NDArray[np.bool_]:
    if not array.null_count:
        return _NO_NULLS
    return _frozen(array.is_null().to_numpy(zero_copy_only=False))


def _raw_binary(array: pa.Array) -> tuple[NDArray[np.int32], Bytes]:
    """Offsets and bytes of a binary or string array, without a copy."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return _frozen(np.zeros(len(array) + 1, np.int32)), _NO_BYTES
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return _frozen(bounds), _frozen(
        np.frombuffer(data, np.uint8)
    ) if data is not None and data.size else _NO_BYTES


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array | None:
    """The column as one array of ``kind``; None when it is absent or all null."""
    if name not in table.column_names:
        return None
    column = table.column(name)
    if column.type != kind and not (kind == pa.binary() and column.type == pa.string()):
        try:
            column = column.cast(kind, safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidMessage(
                f"column {name!r} of type {column.type} can't be sent as {kind}: {error}"
            ) from error
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], kind)
    return array if array.null_count < len(array) or name == "value" else None


class _Encoder:
    """One `encode_table` call on a piece of the table that fits Arrow's 32-bit offsets."""

    def __init__(self, table: pa.Table, first_row: int) -> None:
        self.first_row = first_row
        self.count = table.num_rows
        value = _column(table, "value", pa.binary())
        if value is None:
            raise InvalidMessage("the table has no column 'value'")
        self.value = value
        self.key = _column(table, "key", pa.string())
        self.ordering_key = _column(table, "ordering_key", pa.binary())
        self.properties = _column(table, "properties", pa.map_(pa.string(), pa.string()))
        self.event_times = self._event_times(table)

    def _event_times(self, table: pa.Table) -> Int64s:
        if "event_time" not in table.column_names:
            return _NO_ROWS
        column = table.column("event_time")
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
        array = _column(pa.table({"event_time": column}), "event_time", pa.int64())
        if array is None:
            return _NO_ROWS
        times: Int64s = array.fill_null(0).to_numpy(zero_copy_only=False).copy()
        if len(times) and times.min() < 0:
            row = self.first_row + int(np.argmax(times < 0))
            raise InvalidMessage(
                f"row {row}: event_time {times.min()} ms lies before 1970, which Pulsar can't carry"
            )
        return times

    def route(self, k: Any, partitions: int, scheme: int) -> tuple[Int64s, Int64s]:
        """(rows in the order of sending, bounds of the groups); the last group is without keys."""
        if self.key is None:
            bounds = np.zeros(partitions + 2, np.int64)
            bounds[-1] = self.count
            return _NO_ROWS, bounds
        offsets, data = _raw_binary(self.key)
        groups = np.empty(self.count, np.int64)
        k.hash_keys(data, offsets, scheme, groups)
        groups %= partitions
        nulls = _null_mask(self.key)
        if len(nulls):
            groups[nulls] = partitions
        order, bounds = np.empty(self.count, np.int64), np.empty(partitions + 2, np.int64)
        k.group_rows(groups, partitions + 1, order, bounds)
        return order, bounds

    def _binary_input(self, array: pa.Array | None) -> tuple[Any, Any, Any]:
        if array is None:
            return _NO_OFFSETS, _NO_BYTES, _NO_NULLS
        return (*_raw_binary(array), _null_mask(array))

    def _map_input(self) -> tuple[Any, ...]:
        array = self.properties
        if array is None:
            return (_NO_OFFSETS, _NO_OFFSETS, _NO_BYTES, _NO_OFFSETS, _NO_BYTES, _NO_NULLS)
        if array.items.null_count:
            raise InvalidMessage("a property has a null value; the protocol carries text only")
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        return (_frozen(offsets), *_raw_binary(array.keys), *_raw_binary(array.items), _null_mask(array))

    def _worst_size(self, maps: tuple[Any, ...]) -> int:
        size = self.count * _kernels().WORST_METADATA_SIZE
        for array in (self.value, self.key, self.ordering_key):
            if array is not None:
                offsets, _ = _raw_binary(array)
                size += int(offsets[-1]) - int(offsets[0])
        if self.properties is not None:
            size += 20 * len(self.properties.keys) + len(maps[2]) + len(maps[4])
        return size

    def encode(
        self, k: Any, order: Int64s, bounds: Int64s, first_partition: int, sequence_ids: Int64s,
        max_messages: int, max_bytes: int,
    ) -> list[EncodedBatch]:  # fmt: skip
        maps = self._map_input()
        out = np.empty(self._worst_size(maps), np.uint8)
        # Never touched beyond the batches that are made, so that the worst case costs nothing.
        batches = np.empty((self.count, k.BATCH_FIELDS), np.int64)
        count, size = k.encode_rows(
            order, bounds, first_partition, sequence_ids, max_messages, max_bytes,
            *self._binary_input(self.value), *self._binary_input(self.key),
            *self._binary_input(self.ordering_key), self.event_times, *maps, batches, out,
        )  # fmt: skip
        body = memoryview(out)[:size]
        return [self._batch(k, row, order, body) for row in batches[:count].tolist()]

    def _batch(self, k: Any, fields: list[int], order: Int64s, body: memoryview) -> EncodedBatch:
        first, count = fields[k.BATCH_FIRST], fields[k.BATCH_ROWS]
        start = self.first_row + first
        rows: Any = (
            order[first : first + count] + self.first_row if len(order) else range(start, start + count)
        )
        row = int(order[first]) if len(order) else first
        return EncodedBatch(
            partition=fields[k.BATCH_PARTITION],
            body=body[fields[k.BATCH_START] : fields[k.BATCH_END]],
            count=count,
            rows=rows,
            first_sequence_id=fields[k.BATCH_SEQUENCE_ID],
            keyed=bool(fields[k.BATCH_IS_KEYED]),
            partition_key=None if self.key is None else self.key[row].as_py(),
            ordering_key=None if self.ordering_key is None else self.ordering_key[row].as_py(),
        )


_PIECE_BYTES = 512 * 1024 * 1024


def encode_table(
    table: pa.Table | pa.RecordBatch,
    *,
    partitions: int = 1,
    hashing: str = "JavaStringHash",
    first_partition: int = 0,
    max_messages: int = 1000,
    max_bytes: int = 128 * 1024,
    first_sequence_ids: Sequence[int] | None = None,
) -> list[EncodedBatch]:
    """Serialise the rows of ``table`` into batches.

    Columns used: ``value`` (binary or text, null for a null value; required), ``key`` (text),
    ``ordering_key`` (binary), ``properties`` (map of text to text), ``event_time`` (timestamp, or
    milliseconds since 1970). Rows with a key go to ``hash(key) mod partitions``, in the table's order
    within a partition; the others are spread a batch at a time from ``first_partition`` on.

    A batch closes at ``max_messages`` messages, or before its payloads (metadata not counted, as in
    the official clients) exceed ``max_bytes``; a larger message travels alone. ``first_sequence_ids``
    holds the next sequence id of every partition (ids then count up, one a message); with None the
    messages carry none. Raises `InvalidMessage` for a column that can't be carried.
    """
    if hashing not in _SCHEMES:
        raise InvalidConfiguration(
            f"hashing={hashing!r}{suggestion(hashing, _SCHEMES)}; allowed: {', '.join(_SCHEMES)}"
        )
    if partitions < 1 or max_messages < 1:
        raise InvalidConfiguration(f"partitions={partitions} and max_messages={max_messages} must be >= 1")
    if first_sequence_ids is not None and len(first_sequence_ids) != partitions:
        raise InvalidConfiguration(
            f"{len(first_sequence_ids)} first_sequence_ids for {partitions} partitions"
        )
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if table.num_rows == 0:
        return []
    kernels = _kernels()
    sequence_ids = _NO_ROWS if first_sequence_ids is None else np.array(first_sequence_ids, np.int64)
    piece_rows = max(1, table.num_rows * _PIECE_BYTES // max(table.nbytes, _PIECE_BYTES))
    batches: list[EncodedBatch] = []
    turn = first_partition
    for first_row in range(0, table.num_rows, piece_rows):
        encoder = _Encoder(table.slice(first_row, piece_rows), first_row)
        order, bounds = encoder.route(kernels, partitions, _SCHEMES[hashing])
        made = encoder.encode(
            kernels,
            order,
            bounds,
            turn,
            sequence_ids,
            max_messages,
            max_bytes if max_bytes > 0 else _INT32_MAX,
        )
        turn += sum(not batch.keyed for batch in made)
        batches += made
    return batches
