"""Arrow columns from entries.

`decode_entries` converts entries, as the broker delivers them, to one record batch. There is no Python object
per message: the loops are in `geminga.wire.columnar_kernels`. `geminga.wire.columnar_encoding` makes batches
from Arrow columns.

The message columns and their Arrow types are in `message_schema`. Layout of the bytes: framing.md sections
1.2 to 1.5.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from geminga.config import suggestion
from geminga.errors import CorruptPayload, CryptoError, InvalidConfiguration, OperationNotSupported
from geminga.wire import columnar_fields as field

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from geminga.wire.metadata import RawEntry

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
    "batch_size": pa.int32(),
    "redelivery_count": pa.int32(),
    # Not among the default columns:
    "key_bytes": pa.binary(),
    "message_id": pa.binary(),
    "schema_version": pa.dictionary(pa.int32(), pa.binary()),
}

EXTRA_COLUMNS = ("key_bytes", "message_id", "schema_version")
"""``key_bytes``: the key with base64 undone where its producer flagged it. ``message_id``: the bytes
of ``MessageIdData``, as `geminga.MessageId.serialize` gives them. ``schema_version``: the version of the
topic's schema that the producer named, empty for none."""

MESSAGE_COLUMNS = tuple(name for name in _COLUMN_TYPES if name not in EXTRA_COLUMNS)
"""The columns of a message, in their default order."""

MAX_UNCOMPRESSED_SIZE = 128 * 1024 * 1024
"""Default maximum uncompressed size of one entry, in bytes."""

_NULLABLE = ("value", "key", "ordering_key", "properties", "event_time", "key_bytes")
_INT32_MAX = (1 << 31) - 1


def message_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """The Arrow schema of decoded messages; ``None`` asks for `MESSAGE_COLUMNS`.

    ``key`` is the wire's text (base64 for keys made from bytes); ``event_time`` is null when absent;
    ``batch_index`` is -1 for a message alone in its entry and ``batch_size``, how many messages its entry
    holds, 0; ``partition`` is -1 for a topic without partitions; ``topic`` and ``producer_name`` are
    dictionary-encoded. Raises `InvalidConfiguration` for an unknown column.
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
    """The loops; numba costs about 0.3 s to import, so it is loaded at first use."""
    from geminga.wire import columnar_kernels

    return columnar_kernels


def _place(entry: RawEntry) -> str:
    return f"{entry.topic}:{entry.ledger_id}:{entry.entry_id}"


# --- chunks --------------------------------------------------------------------------------------


class ChunkCarry:
    """Chunks of messages whose last chunk was not among the entries decoded so far.

    Pass the same carry to successive `decode_entries` calls over one partition. ``limit`` is the maximum of
    incomplete messages (10 as in the official consumers); the oldest is dropped when it is exceeded.
    """

    def __init__(self, limit: int = 10) -> None:
        self.limit = limit
        self.open: dict[bytes, list[bytes]] = {}
        self.headless: list[str] = []
        """Positions of chunks that were dropped because their message's first chunk was not seen."""

    def copy(self) -> ChunkCarry:
        """Return an independent copy."""
        other = ChunkCarry(self.limit)
        other.open = {uuid: list(parts) for uuid, parts in self.open.items()}
        other.headless = list(self.headless)
        return other

    def add(self, uuid: bytes, chunk_id: int, chunk_count: int, payload: bytes, place: str) -> bytes | None:
        """Add one chunk; return the whole payload with the last one (algorithms.md section 12)."""
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


# --- counting -------------------------------------------------------------------------------------


def message_counts(entries: Sequence[RawEntry]) -> list[int]:
    """Return the number of messages that each entry announces (1 for a plain message), from its metadata
    alone.

    Raises `CorruptPayload` for an entry whose metadata is damaged.
    """
    if not entries:
        return []
    counts: list[int] = np.maximum(_short_heads(entries)[:, field.BATCH_COUNT], 1).tolist()
    return counts


def encrypted_entries(entries: Sequence[RawEntry]) -> list[int]:
    """Return the indexes of the encrypted entries. Raises `CorruptPayload` for damaged metadata."""
    if not entries:
        return []
    found: list[int] = np.flatnonzero(_short_heads(entries)[:, field.IS_ENCRYPTED]).tolist()
    return found


def _short_heads(entries: Sequence[RawEntry]) -> Int64s:
    try:
        return _heads(entries, [memoryview(entry.entry)[:_HEAD_BYTES] for entry in entries])
    except CorruptPayload:
        return _heads(entries, [entry.entry for entry in entries])


_HEAD_BYTES = 1024
"""Bytes that contain the metadata of nearly every entry."""


def _heads(entries: Sequence[RawEntry], parts: Sequence[Any], joined: bytes | None = None) -> Int64s:
    """Return one row of ``columnar_fields``' head fields per entry, read from its bytes in ``parts``.

    ``joined`` are the concatenated parts, if the caller has them.
    """
    kernels = _kernels()
    buffer = np.frombuffer(b"".join(parts) if joined is None else joined, np.uint8)
    bounds = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=bounds[1:])
    heads = np.empty((len(entries), field.HEAD_FIELDS), np.int64)
    damaged = kernels.parse_heads(buffer, bounds, heads)
    if damaged >= 0:
        raise CorruptPayload(f"{_place(entries[damaged])}: the entry's headers or metadata are damaged")
    return heads


# --- decoding ------------------------------------------------------------------------------------


class _Decoder:
    """One `decode_entries` call: heads, payloads, then the scan over all messages."""

    def __init__(self, entries: Sequence[RawEntry], chunks: ChunkCarry | None, limit: int) -> None:
        self.kernels = _kernels()
        self.entries = entries
        self.limit = limit
        self.chunks = chunks
        self._carry = chunks or ChunkCarry(limit=1 << 30)
        parts = [entry.entry for entry in entries]
        self.raw = b"".join(parts)
        self.buffer: Bytes = np.frombuffer(self.raw, np.uint8)
        self.heads = _heads(entries, parts, self.raw)

    def verify(self) -> None:
        """Check every CRC32C; entries without one are accepted."""
        from geminga.wire.checksum import crc32c

        view = memoryview(self.raw)
        wanted = self.heads[:, field.CHECKSUM].tolist()
        starts = self.heads[:, field.CHECKSUM_START].tolist()
        ends = self.heads[:, field.PAYLOAD_END].tolist()
        for i, (checksum, start, end) in enumerate(zip(wanted, starts, ends, strict=True)):
            if checksum >= 0 and crc32c(view[start:end]) != checksum:
                raise CorruptPayload(f"{_place(self.entries[i])}: checksum mismatch over {end - start} bytes")

    def payloads(self) -> Int64s:
        """Return (start, end) of each entry's uncompressed payload in ``self.buffer``; -1: no messages."""
        heads = self.heads
        data = heads[:, [field.PAYLOAD_START, field.PAYLOAD_END]].copy()
        data[heads[:, field.MARKER_TYPE] >= 0] = -1
        is_chunk = heads[:, field.CHUNK_COUNT] > 1
        special = np.flatnonzero(
            (data[:, 0] >= 0)
            & ((heads[:, field.COMPRESSION] != 0) | (heads[:, field.IS_ENCRYPTED] != 0) | is_chunk)
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
        head = self.heads[i]
        place = _place(self.entries[i])
        if head[field.IS_ENCRYPTED]:
            raise CryptoError(f"{place}: the entry is encrypted; reading by columns has no keys to open it")
        payload = self.raw[head[field.PAYLOAD_START] : head[field.PAYLOAD_END]]
        if head[field.CHUNK_COUNT] > 1:
            whole = self._add_chunk(head, payload, place)
            if whole is None:
                return None
            payload = whole
        if head[field.COMPRESSION] == 0:
            return payload
        from geminga.wire.compression import decompress

        try:
            return decompress(
                int(head[field.COMPRESSION]), payload, int(head[field.UNCOMPRESSED_SIZE]), limit=self.limit
            )
        except CorruptPayload as error:
            raise type(error)(f"{place}: {error}") from error

    def _add_chunk(self, head: Int64s, payload: bytes, place: str) -> bytes | None:
        uuid = self.raw[head[field.UUID_START] : head[field.UUID_START] + head[field.UUID_SIZE]]
        count = int(head[field.CHUNK_COUNT])
        chunk_id = int(head[field.CHUNK_ID])
        if not 0 <= chunk_id < count or not uuid:
            raise CorruptPayload(f"{place}: chunk {chunk_id} of {count} with the uuid {uuid!r}")
        return self._carry.add(uuid, chunk_id, count, payload, place)

    def _refuse_cut_chunks(self, is_chunk: NDArray[np.bool_]) -> None:
        carry = self._carry
        if carry.open or carry.headless:
            what = carry.headless[0] if carry.headless else _place(self.entries[np.flatnonzero(is_chunk)[-1]])
            raise OperationNotSupported(
                f"{what}: a chunked message is cut: not all of its chunks are among the {len(self.entries)} "
                "entries given; pass chunks=ChunkCarry() to carry chunks from one call to the next"
            )

    def scan(self, columns: Sequence[str]) -> _Messages:
        """Find every message and keep the fields that ``columns`` need."""
        k = self.kernels
        data = self.data = self.payloads()
        batch_counts = self.heads[:, field.BATCH_COUNT]
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
        fields = sorted({field for name in columns for field in _NEEDED_FIELDS.get(name, ())})
        wanted = np.array(fields, np.int64)
        rows = np.empty((len(fields), capacity), np.int64)
        words: list[int] = []
        ack_bounds = np.zeros(len(self.entries) + 1, np.int64)
        for i, entry in enumerate(self.entries):
            if entry.ack_set:
                words.extend(_signed_64(word) for word in entry.ack_set)
            ack_bounds[i + 1] = len(words)
        counts = np.empty(len(self.entries), np.int64)
        count, damaged = k.scan_messages(
            self.buffer, data, self.heads, np.array(words, np.int64), ack_bounds, wanted, rows, counts
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


_NEEDED_FIELDS: dict[str, tuple[int, ...]] = {
    "value": (field.VALUE_START, field.VALUE_SIZE),
    "key": (field.KEY_START, field.KEY_SIZE),
    "key_bytes": (field.KEY_START, field.KEY_SIZE, field.KEY_IS_BASE64),
    "ordering_key": (field.ORDERING_KEY_START, field.ORDERING_KEY_SIZE),
    "properties": (
        field.PROPERTIES_START, field.PROPERTIES_END, field.PROPERTY_FIELD,
        field.PROPERTY_COUNT, field.PROPERTY_KEY_BYTES, field.PROPERTY_VALUE_BYTES,
    ),
    "event_time": (field.EVENT_TIME,),
    "sequence_id": (field.MESSAGE_SEQUENCE_ID,),
    "batch_index": (field.BATCH_INDEX,),
    "message_id": (field.BATCH_INDEX,),
}  # fmt: skip
"""Fields of messages that a column is made of; other columns are made of the entry."""


# `pa.array` is avoided here: its first call in a process imports pandas, which takes half a second.


def bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    """Return a validity buffer."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def number_array(
    values: NDArray[Any], kind: pa.DataType, absent: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return an Arrow array over ``values``, which has the width of ``kind``; null where ``absent``."""
    nulls = 0 if absent is None else int(absent.sum())
    validity = bitmap(~absent) if absent is not None and nulls else None
    return pa.Array.from_buffers(
        kind, len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))], nulls
    )


def _binary_values(values: list[bytes], validity: pa.Buffer | None = None, nulls: int = 0) -> pa.Array:
    """Return the array of ``values``, of which some count as null (`pa.array` would import pandas)."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers, nulls)


def _base64_decoded(key: bytes) -> bytes:
    """Undo base64 of either alphabet, with or without padding. Raises `ValueError`."""
    try:
        return a2b_base64(key, strict_mode=True)  # almost all keys: a fifth of the time of what follows
    except ValueError:
        text = key.partition(b"=")[0].translate(_URL_SAFE)
        return a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)


_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class _Messages:
    """The scan's result, and the Arrow arrays made from it."""

    def __init__(self, decoder: _Decoder, found: dict[int, Int64s], counts: Int64s, count: int) -> None:
        self.decoder = decoder
        self.kernels = decoder.kernels
        self.found = found
        self.counts = counts
        self.count = count
        self.has_replaced_text = False
        """Whether text in a column had invalid UTF-8 that was replaced."""

    def column(self, name: str) -> pa.Array:
        if name == "value":
            return self._binary(field.VALUE_START, field.VALUE_SIZE, name)
        if name == "key":
            return self._text(self._binary(field.KEY_START, field.KEY_SIZE, name))
        if name == "ordering_key":
            return self._binary(field.ORDERING_KEY_START, field.ORDERING_KEY_SIZE, name)
        if name == "key_bytes":
            return self._key_bytes()
        if name == "properties":
            return self._properties()
        if name == "event_time":
            times = self.found[field.EVENT_TIME]
            return number_array(times, MILLISECONDS_UTC, times == 0)
        if name == "sequence_id":
            return number_array(self.found[field.MESSAGE_SEQUENCE_ID], pa.int64())
        if name == "batch_index":
            return number_array(self.found[field.BATCH_INDEX].astype(np.int32), pa.int32())
        if name == "message_id":
            return self._message_ids()
        return self._of_entry(name)

    def _per_entry(self, values: Any, dtype: type) -> NDArray[Any]:
        return np.repeat(np.asarray(values, dtype), self.counts)

    def _of_entry(self, name: str) -> pa.Array:
        entries = self.decoder.entries
        heads = self.decoder.heads
        if name == "publish_time":
            times = np.repeat(heads[:, field.PUBLISH_TIME], self.counts)
            return number_array(times, MILLISECONDS_UTC)
        if name == "producer_name":
            return self._dictionary(self._slices(field.PRODUCER_START, field.PRODUCER_SIZE))
        if name == "topic":
            return self._dictionary([entry.topic.encode() for entry in entries])
        if name == "schema_version":
            versions = self._slices(field.SCHEMA_VERSION_START, field.SCHEMA_VERSION_SIZE)
            return self._dictionary(versions, is_text=False)
        if name == "batch_size":
            sizes = self._per_entry(np.maximum(heads[:, field.BATCH_COUNT], 0), np.int32)
            return number_array(sizes, pa.int32())
        # Redelivery counts have 32 bits without a sign on the wire: a broker may say anything.
        kind = _COLUMN_TYPES[name]
        number_max = (1 << kind.bit_width - 1) - 1
        numbers = [min(getattr(entry, name), number_max) for entry in entries]
        return number_array(self._per_entry(numbers, kind.to_pandas_dtype()), kind)

    def _slices(self, start_field: int, size_field: int) -> list[bytes]:
        """Return the bytes of each entry to which two fields of its head point."""
        bounds = self.decoder.heads[:, [start_field, size_field]].tolist()
        return [self.decoder.raw[start : start + size] for start, size in bounds]

    def _dictionary(self, names: list[bytes], *, is_text: bool = True) -> pa.DictionaryArray:
        numbers: dict[bytes, int] = {}
        indices = self._per_entry([numbers.setdefault(name, len(numbers)) for name in names], np.int32)
        words = _binary_values(list(numbers))
        words = self._text(words) if is_text else words
        return pa.DictionaryArray.from_arrays(number_array(indices, pa.int32()), words)

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
        validity = bitmap(~absent) if nulls else None
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.binary(), self.count, buffers, nulls)

    def _key_bytes(self) -> pa.Array:
        keys = self._binary(field.KEY_START, field.KEY_SIZE, "key_bytes")
        flags = self.found[field.KEY_IS_BASE64] != 0
        if not flags.any():
            return keys
        values = [key or b"" for key in keys.to_pylist()]
        for row in np.flatnonzero(flags).tolist():
            try:
                values[row] = _base64_decoded(values[row])
            except ValueError:
                place = self._place_of_row(row)
                raise CorruptPayload(f"{place}: a key flagged as base64 is none") from None
        return _binary_values(values, keys.buffers()[0], keys.null_count)

    def _text(self, array: pa.Array) -> pa.Array:
        """Convert bytes to text, without a copy if they are UTF-8.

        Invalid UTF-8 is read with replacement characters, as in `geminga.wire.metadata.text`.
        """
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            self.has_replaced_text = True
            words = [
                None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist()
            ]
            return pa.array(words, pa.string())

    def _place_of_row(self, row: int) -> str:
        index = int(np.searchsorted(np.cumsum(self.counts), row, side="right"))
        return _place(self.decoder.entries[index])

    def _properties(self) -> pa.Array:
        k = self.kernels
        found = self.found
        counts = found[field.PROPERTY_COUNT]
        slots = int(counts.sum())
        row_offsets = np.zeros(self.count + 1, np.int32)
        key_offsets, value_offsets = np.zeros(slots + 1, np.int32), np.zeros(slots + 1, np.int32)
        keys = np.empty(self._checked_size(found[field.PROPERTY_KEY_BYTES], "properties"), np.uint8)
        values = np.empty(self._checked_size(found[field.PROPERTY_VALUE_BYTES], "properties"), np.uint8)
        if slots:
            k.gather_properties(
                self.decoder.buffer, found[field.PROPERTIES_START], found[field.PROPERTIES_END],
                found[field.PROPERTY_FIELD], counts, row_offsets, (key_offsets, keys),
                (value_offsets, values),
            )  # fmt: skip
        words = [
            self._text(
                pa.Array.from_buffers(
                    pa.binary(), slots, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0
                )
            )
            for offsets, data in ((key_offsets, keys), (value_offsets, values))
        ]
        kind = _COLUMN_TYPES["properties"]
        pairs = pa.StructArray.from_arrays(words, fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, self.count, [None, pa.py_buffer(row_offsets)], 0, children=[pairs])

    def _message_ids(self) -> pa.Array:
        entries = self.decoder.entries
        return message_ids(
            self._per_entry([entry.ledger_id for entry in entries], np.int64),
            self._per_entry([entry.entry_id for entry in entries], np.int64),
            self._per_entry([entry.partition for entry in entries], np.int64),
            self.found[field.BATCH_INDEX],
            np.repeat(np.maximum(self.decoder.heads[:, field.BATCH_COUNT], 0), self.counts),
        )


def message_ids(
    ledgers: Int64s, entries: Int64s, partitions: Int64s, batch_indexes: Int64s, batch_sizes: Int64s
) -> pa.Array:
    """Return the column ``message_id`` (binary) for messages with these numbers."""
    count = len(ledgers)
    # Tags and varints of the five fields: 1 + 10 bytes for each at the most.
    out = np.empty(min(count * 55, _INT32_MAX), np.uint8)
    offsets = np.empty(count + 1, np.int32)
    _kernels().message_ids(ledgers, entries, partitions, batch_indexes, batch_sizes, offsets, out)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[: offsets[-1]].copy())]
    return pa.Array.from_buffers(pa.binary(), count, buffers, 0)


def decode_entries(
    entries: Sequence[RawEntry],
    columns: Sequence[str] | None = None,
    *,
    max_uncompressed_size: int = MAX_UNCOMPRESSED_SIZE,
    chunks: ChunkCarry | None = None,
    verify: bool = True,
) -> pa.RecordBatch:
    """Return the messages of ``entries``, in order, as one record batch of `message_schema` ``(columns)``.

    Markers, compacted-out messages and, in a partly acknowledged batch, messages that are not in the entry's
    ``ack_set`` are left out. Chunked messages have the id of their last chunk; chunks of a message that
    continues after ``entries`` are kept in ``chunks``.

    Raises `CorruptPayload` naming ``topic:ledger:entry`` for damage, `CryptoError` for an encrypted entry,
    `OperationNotSupported` for a cut chunked message when no ``chunks`` are given, and `InvalidConfiguration`
    for an unknown column or a column of more than 2 GiB.
    """
    schema = message_schema(columns)
    if not entries:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    decoder = _Decoder(entries, chunks, max_uncompressed_size)
    if verify:
        decoder.verify()
    return _record_batch(decoder.scan(schema.names), schema)


def _record_batch(messages: _Messages, schema: pa.Schema) -> pa.RecordBatch:
    if not schema.names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * messages.count, pa.struct([])))
    return pa.RecordBatch.from_arrays([messages.column(name) for name in schema.names], schema=schema)


class LaidOpen(NamedTuple):
    """Entries with their messages and the offsets of both.

    ``heads`` has a row of ``columnar_fields``' head fields per entry, ``payloads`` the (start, end) of its
    uncompressed payload in ``buffer`` (-1 for an entry without messages), ``counts`` its number of rows in
    ``messages``. ``starts`` are the starts of the entries in ``buffer``, which has them first. ``says_keys``:
    the column ``key`` has the bytes of every key; none is base64, or no text.
    """

    messages: pa.RecordBatch
    buffer: Bytes
    starts: Int64s
    heads: Int64s
    payloads: Int64s
    counts: Int64s
    says_keys: bool


def lay_open(entries: Sequence[RawEntry], columns: Sequence[str], *, chunks: ChunkCarry) -> LaidOpen:
    """Decode like `decode_entries`, and return the intermediate results too. There is at least one entry."""
    decoder = _Decoder(entries, chunks, MAX_UNCOMPRESSED_SIZE)
    decoder.verify()
    messages = decoder.scan([*columns, "key_bytes"])
    starts = np.zeros(len(entries), np.int64)
    np.cumsum([len(entry.entry) for entry in entries[:-1]], out=starts[1:])
    batch = _record_batch(messages, message_schema(columns))
    says_keys = not messages.has_replaced_text and not messages.found[field.KEY_IS_BASE64].any()
    return LaidOpen(batch, decoder.buffer, starts, decoder.heads, decoder.data, messages.counts, says_keys)


def entry_heads(entries: Sequence[RawEntry]) -> Int64s:
    """Return a row of ``columnar_fields``' head fields for each of at least one entry.

    Their offsets are not to be used. Raises `CorruptPayload` for damaged metadata.
    """
    return _short_heads(entries)
