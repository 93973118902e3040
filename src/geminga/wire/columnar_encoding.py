"""Batch payloads from Arrow tables.

`encode_table` converts a table to the bodies of batches, ready for compression and framing. The loops are in
`geminga.wire.columnar_encoding_kernels`. Layout of the bytes: framing.md section 1.4; key hashes:
algorithms.md section 1.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.config import suggestion
from geminga.errors import InvalidConfiguration, InvalidMessage
from geminga.wire import columnar_fields as field

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_INT32_MAX = (1 << 31) - 1
_SCHEMES = {"JavaStringHash": 0, "Murmur3_32Hash": 1, "BoostHash": 2}


def _kernels() -> Any:
    """The loops; numba costs about 0.3 s to import, so it is loaded at first use."""
    from geminga.wire import columnar_encoding_kernels

    return columnar_encoding_kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """The uncompressed body of one batch, which follows ``MessageMetadata`` in an entry.

    ``rows`` are the table's row numbers in the order of the messages. ``partition_key`` and ``ordering_key``
    are the first message's: the outer metadata repeats them. ``keyed``: the partition was chosen by a key's
    hash.
    """

    partition: int
    body: memoryview
    count: int
    rows: Sequence[int]
    keyed: bool
    partition_key: str | None
    partition_key_b64: bool
    ordering_key: bytes | None

    @property
    def uncompressed_size(self) -> int:
        return len(self.body)

    @property
    def first_row(self) -> int:
        return int(self.rows[0])


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view: numba compiles a kernel for each mix of writable and read-only arguments."""
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
    """Return offsets and bytes of a binary or string array, without a copy."""
    _, offsets, data = array.buffers()
    if offsets is None or not len(array):
        return _frozen(np.zeros(len(array) + 1, np.int32)), _NO_BYTES
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return _frozen(bounds), _frozen(
        np.frombuffer(data, np.uint8)
    ) if data is not None and data.size else _NO_BYTES


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array | None:
    """Return the column as one array of ``kind``; None when it is absent or all null."""
    if name not in table.column_names:
        return None
    column = table.column(name)
    if column.type != kind:
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


def _keys(table: pa.Table) -> tuple[pa.Array | None, NDArray[np.bool_]]:
    """Return the keys, of any text or binary type, as text, and the mask of those that are base64 of bytes
    that are no UTF-8; empty for none."""
    is_text = "key" not in table.column_names or "binary" not in str(table.column("key").type)
    array = _column(table, "key", pa.string() if is_text else pa.binary())
    if array is None or is_text:
        return array, _NO_NULLS
    try:
        return array.cast(pa.string()), _NO_NULLS
    except pa.ArrowInvalid:
        keys: list[Any] = array.to_pylist()
    flags = np.zeros(len(keys), np.bool_)
    for row, key in enumerate(keys):
        try:
            _ = key and key.decode()
        except UnicodeDecodeError:
            keys[row], flags[row] = b64encode(key), True
    return pa.array(keys, pa.binary()).cast(pa.string()), _frozen(flags)


def _numbered(array: pa.Array | None, count: int) -> tuple[Int64s, int]:
    """Return a number for each different value, from 1 on and 0 for null, and their count."""
    if array is None:
        return np.zeros(count, np.int64), 0
    encoded = array.dictionary_encode()
    numbers: Int64s = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False) + 1
    return numbers, len(encoded.dictionary)


class _Encoder:
    """One `encode_table` call on a piece of the table that fits Arrow's 32-bit offsets."""

    def __init__(self, table: pa.Table, first_row: int) -> None:
        self.first_row = first_row
        self.count = table.num_rows
        value = _column(table, "value", pa.binary())
        if value is None:
            raise InvalidMessage("the table has no column 'value'")
        self.value = value
        self.key, self.key_flags = _keys(table)
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

    def route(self, k: Any, partitions: int, scheme: int, by_key: bool) -> tuple[Int64s, Int64s, Int64s]:
        """Return the rows in the order of sending, the bounds of their groups, and the partition of each row:
        -1 for one without a key.

        There is a group for each partition, ``by_key`` for each pair of key and ordering key; the last group
        is without keys.
        """
        places = np.full(self.count, -1, np.int64)
        if self.key is not None:
            offsets, data = _raw_binary(self.key)
            k.hash_keys(data, offsets, scheme, places)
            places %= partitions
            nulls = _null_mask(self.key)
            if len(nulls):
                places[nulls] = -1
        elif not by_key or self.ordering_key is None:
            bounds = np.zeros(partitions + 2, np.int64)
            bounds[-1] = self.count
            return _NO_ROWS, bounds, places
        if by_key:
            groups, count = self._pairs()
        else:
            groups, count = np.where(places < 0, partitions, places), partitions
        order, bounds = np.empty(self.count, np.int64), np.empty(count + 2, np.int64)
        k.group_rows(groups, count + 1, order, bounds)
        return order, bounds, places

    def _pairs(self) -> tuple[Int64s, int]:
        """Return a number for each row's key and ordering key, the highest for none, and their count."""
        keys, key_count = _numbered(self.key, self.count)
        ordering_keys, _ = _numbered(self.ordering_key, self.count)
        # 0 is the pair of two nulls, whose rows come last.
        found, groups = np.unique(keys + (key_count + 1) * ordering_keys, return_inverse=True)
        groups, count = groups.astype(np.int64), len(found)
        if found[0] == 0:
            count -= 1
            groups = np.where(groups == 0, count, groups - 1)
        return groups, count

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
        size = self.count * field.WORST_METADATA_SIZE
        for array in (self.value, self.key, self.ordering_key):
            if array is not None:
                offsets, _ = _raw_binary(array)
                size += int(offsets[-1]) - int(offsets[0])
        if self.properties is not None:
            size += 20 * len(self.properties.keys) + len(maps[2]) + len(maps[4])
        return int(size)

    def encode(
        self, k: Any, order: Int64s, bounds: Int64s, first_partition: int, max_messages: int, max_bytes: int
    ) -> list[EncodedBatch]:
        maps = self._map_input()
        out = np.empty(self._worst_size(maps), np.uint8)
        # Never touched beyond the batches that are made, so that the worst case costs nothing.
        batches = np.empty((self.count, field.BATCH_FIELDS), np.int64)
        columns = (
            self._binary_input(self.key), self.key_flags, self._binary_input(self.ordering_key),
            self.event_times, maps,
        )  # fmt: skip
        count, size = k.encode_rows(
            (order, bounds), first_partition, (max_messages, max_bytes),
            self._binary_input(self.value), columns, batches, out,
        )  # fmt: skip
        body = out.data[:size]
        return [self._batch(row, order, body) for row in batches[:count].tolist()]

    def _batch(self, fields: list[int], order: Int64s, body: memoryview) -> EncodedBatch:
        first, count = fields[field.BATCH_FIRST], fields[field.BATCH_ROWS]
        start = self.first_row + first
        rows: Any = (
            order[first : first + count] + self.first_row if len(order) else range(start, start + count)
        )
        row = int(order[first]) if len(order) else first
        return EncodedBatch(
            partition=fields[field.BATCH_PARTITION],
            body=body[fields[field.BATCH_START] : fields[field.BATCH_END]],
            count=count,
            rows=rows,
            keyed=bool(fields[field.BATCH_IS_KEYED]),
            partition_key=None if self.key is None else self.key[row].as_py(),
            partition_key_b64=len(self.key_flags) > 0 and bool(self.key_flags[row]),
            ordering_key=None if self.ordering_key is None else self.ordering_key[row].as_py(),
        )


def by_delivery(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each delivery time, in milliseconds since 1970: first those without one (0), in their
    order, then time after time.

    The column ``deliver_at`` (timestamp, or milliseconds) says which. A message's entry carries its time, so
    that messages of different times can't share one. Raises `InvalidMessage` for a time before 1970.
    """
    if "deliver_at" not in table.column_names:
        yield 0, table
        return
    column = table.column("deliver_at")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    array = _column(pa.table({"deliver_at": column}), "deliver_at", pa.int64())
    rest = table.drop_columns(["deliver_at"])
    if array is None:
        yield 0, rest
        return
    times = array.fill_null(0).to_numpy(zero_copy_only=False)
    if len(times) and times.min() < 0:
        raise InvalidMessage(f"deliver_at {times.min()} ms lies before 1970")
    found, counts = np.unique(times, return_counts=True)
    ordered = rest if len(found) == 1 else rest.take(np.argsort(times, kind="stable"))
    first = 0
    for time_ms, count in zip(found.tolist(), counts.tolist(), strict=True):
        yield time_ms, ordered.slice(first, count)
        first += count


def table_bytes(table: pa.Table) -> int:
    """Return the size of a table in bytes."""
    try:
        return int(table.nbytes)
    except pa.ArrowTypeError:  # a column of views, in pyarrow before 24
        return int(table.get_total_buffer_size())


_PIECE_BYTES = 512 * 1024 * 1024


def encode_table(
    table: pa.Table | pa.RecordBatch,
    *,
    partitions: int = 1,
    hashing: str = "JavaStringHash",
    first_partition: int = 0,
    max_messages: int = 1000,
    max_bytes: int = 128 * 1024,
    by_key: bool = False,
) -> list[EncodedBatch]:
    """Serialise the rows of ``table`` into batches.

    Columns used: ``value`` (binary or text, null for a null value; required), ``key`` (text, or binary:
    values that are no UTF-8 travel as flagged base64, as those of Java's ``keyBytes``), ``ordering_key``
    (binary), ``properties`` (map of text to text), ``event_time`` (timestamp, or milliseconds since 1970).
    Rows with a key go to ``hash(key) mod partitions``, in the table's order within a partition; the others
    are spread a batch at a time from ``first_partition`` on.

    A batch closes at ``max_messages`` messages, or before its payloads (metadata not counted, as in
    the official clients) exceed ``max_bytes``; a larger message travels alone. Messages carry no sequence
    ids. With ``by_key`` a batch holds rows of one key and ordering key, for Key_Shared consumers; rows keep
    the table's order within them then. Raises `InvalidMessage` for a column that can't be carried.
    """
    _check_arguments(partitions, hashing, max_messages)
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if table.num_rows == 0:
        return []
    kernels = _kernels()
    piece_rows = max(1, table.num_rows * _PIECE_BYTES // max(table_bytes(table), _PIECE_BYTES))
    batches: list[EncodedBatch] = []
    turn = first_partition
    for first_row in range(0, table.num_rows, piece_rows):
        encoder = _Encoder(table.slice(first_row, piece_rows), first_row)
        order, bounds, places = encoder.route(kernels, partitions, _SCHEMES[hashing], by_key)
        made = encoder.encode(
            kernels, order, bounds, turn, max_messages, max_bytes if max_bytes > 0 else _INT32_MAX
        )
        if by_key:
            made = _placed(made, places, first_row, partitions, turn)
        turn += sum(not batch.keyed for batch in made)
        batches += made
    return batches


def _check_arguments(partitions: int, hashing: str, max_messages: int) -> None:
    if hashing not in _SCHEMES:
        raise InvalidConfiguration(
            f"hashing={hashing!r}{suggestion(hashing, _SCHEMES)}; allowed: {', '.join(_SCHEMES)}"
        )
    if partitions < 1 or max_messages < 1:
        raise InvalidConfiguration(f"partitions={partitions} and max_messages={max_messages} must be >= 1")


def _placed(
    batches: list[EncodedBatch], places: Int64s, first_row: int, partitions: int, turn: int
) -> list[EncodedBatch]:
    """Batches that were made for groups of rows, with the partitions of their keys; the others in turn."""
    placed = []
    for batch in batches:
        partition = int(places[batch.first_row - first_row])
        keyed = partition >= 0
        if not keyed:
            partition, turn = turn % partitions, turn + 1
        placed.append(replace(batch, partition=partition, keyed=keyed))
    return placed
