"""Joining of entries: from the columns of their messages and the tags in their envelopes.

Plain Python, as a broker that reads offloaded ledgers should not load the compiled loops that split entries:
they take 130 MB for good. Most messages of a ledger have the same tags, so their metadata is made column by
column instead of message by message. `docs/decisions/offloaded-ledgers.md` has the figures.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise, repeat
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.errors import CorruptPayload
from geminga.wire.varint import SHORT, U64_MASK, varint, varints

JOINED_COLUMNS = (
    "value", "key", "ordering_key", "properties", "event_time", "publish_time", "sequence_id",
)  # fmt: skip
"""Columns that entries are joined from."""

_IN_BATCH = {
    1: "properties", 2: "key", 3: "value", 5: "event_time", 7: "ordering_key", 8: "sequence_id",
}  # fmt: skip
"""Columns by the field of SingleMessageMetadata; of the value, the field is the size."""
_ALONE = {
    2: "sequence_id", 3: "publish_time", 4: "properties", 6: "key", 9: "value", 12: "event_time",
    18: "ordering_key",
}  # fmt: skip
"""Columns by the field of MessageMetadata, for a message that is alone in its entry."""
PIECE_ROWS = 4096
"""Messages that are joined together."""
_PAUSE_SECONDS = 0.0001
"""Pause between pieces, for the event loop: it would wait for the interpreter's switch interval of 5 ms."""
_SIZE = Struct(">I")
_NUMBER, _BYTES, _FIXED_64, _FIXED_32 = 0, 2, 1, 5

_Entry = tuple[int, bool, int]
"""Size of an entry's tags, whether it is a batch, and its number of messages."""
_Tags = tuple[bytes, bool]
"""Tags of a message's metadata, and whether the message is alone in its entry."""


def _number(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it; of any size, as the loop that cuts entries
    takes fields of other programs."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value & U64_MASK, position


def _fields(tags: _Tags) -> tuple[list[tuple[bytes, str]], bytes]:
    """Return (bytes before it, column) of each field with a column, and the bytes after the last one."""
    data, is_alone = tags
    columns = _ALONE if is_alone else _IN_BATCH
    found = []
    start = position = 0
    while position < len(data):
        tag, position = _number(data, position)
        column, wire_type = columns.get(tag >> 3), tag & 7
        if column is not None:
            found.append((data[start:position], column))
            start = position
        elif wire_type in (_NUMBER, _BYTES):
            value, position = _number(data, position)
            position += value if wire_type == _BYTES else 0
        else:
            position += {_FIXED_64: 8, _FIXED_32: 4}[wire_type]
    return found, data[start:]


class MessageColumns:
    """Columns of messages; null is read as an empty value or 0."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Raises `CorruptPayload` if the properties are no map."""
        table = pa.Table.from_batches([batch.select(JOINED_COLUMNS) for batch in batches])
        whole = {name: _one_array(table.column(name)) for name in JOINED_COLUMNS}
        self.numbers = {
            name: _numbers_of(whole[name]) for name in ("sequence_id", "publish_time", "event_time")
        }
        self.bytes = {name: _bytes_of(whole[name]) for name in ("value", "key", "ordering_key")}
        properties = whole["properties"]
        if len(properties) and properties.buffers()[1] is None:
            raise CorruptPayload("column 'properties' has no offsets")
        if properties.null_count:
            raise CorruptPayload("column 'properties' holds a null")
        offsets = (
            np.frombuffer(properties.buffers()[1], np.int32) if len(properties) else np.zeros(1, np.int32)
        )
        self.property_bounds = offsets[properties.offset : properties.offset + len(properties) + 1]
        self.properties = _bytes_of(properties.keys), _bytes_of(properties.items)


class _Rows:
    """Consecutive rows. A column is encoded when a field needs it: each row's field without its tag."""

    def __init__(self, columns: MessageColumns, start: int, stop: int) -> None:
        self.values = _slices(*columns.bytes["value"], start, stop)
        self._columns, self._start, self._stop = columns, start, stop
        bounds = columns.property_bounds[start : stop + 1]
        self._bounds = (bounds - bounds[0]).tolist()
        self._encoded: dict[str, list[bytes]] = {}

    def metadata(self, tags: _Tags | None, rows: Sequence[int]) -> list[bytes]:
        """Return the metadata of rows with the same tags; empty ones if the rows do not fit the tags."""
        if tags is None:
            return [b""] * len(rows)
        try:
            fields, rest = _fields(tags)
            properties = self._properties(rows, [name for _, name in fields].count("properties"))
            pieces: list[Any] = []
            for before, name in fields:
                field = next(properties) if name == "properties" else self._column(name, rows)
                pieces += (repeat(before), field)
            return list(map(b"".join, zip(*pieces, repeat(rest, len(rows)), strict=False)))
        except (IndexError, KeyError, ValueError):
            return [b""] * len(rows)

    def _properties(self, rows: Sequence[int], count: int) -> Iterator[list[bytes]]:
        """Yield the first property of all rows, the second and so on, of rows that have ``count`` each.
        Raises `ValueError` for others."""
        if count:
            starts = [self._bounds[row] for row in rows]
            if [self._bounds[row + 1] for row in rows] != [start + count for start in starts]:
                raise ValueError("the rows have another number of properties than their tags")
            for number in range(count):
                yield self._column("properties", [start + number for start in starts])

    def _column(self, name: str, rows: Sequence[int]) -> list[bytes]:
        if name not in self._encoded:
            self._encoded[name] = self._encode(name)
        found = self._encoded[name]
        return found if isinstance(rows, range) else [found[row] for row in rows]

    def _encode(self, name: str) -> list[bytes]:
        columns, start, stop = self._columns, self._start, self._stop
        if name == "value":
            return list(map(SHORT.__getitem__, map(len, self.values)))
        if name in columns.numbers:
            numbers = columns.numbers[name][start:stop]
            if numbers[0] >= 0 and (np.diff(numbers) == 1).all():  # as sequence ids nearly always are
                return varints(int(numbers[0]), len(numbers))
            return list(map(varint, numbers.tolist()))
        if name != "properties":
            return [SHORT[len(each)] + each for each in _slices(*columns.bytes[name], start, stop)]
        first, last = columns.property_bounds[[start, stop]].tolist()
        keys, values = (_slices(*each, first, last) for each in columns.properties)
        pairs = [
            b"".join((b"\x0a", SHORT[len(key)], key, b"\x12", SHORT[len(value)], value))
            for key, value in zip(keys, values, strict=True)
        ]
        return [SHORT[len(pair)] + pair for pair in pairs]


def joined_parts(
    columns: MessageColumns, tags: bytes, entries: Sequence[_Entry]
) -> Iterator[tuple[bytes, bytes] | None]:
    """Yield the metadata and the uncompressed payload of each entry; None for an entry that has no tags, or
    whose tags do not fit its messages."""
    pieces = _joined_pieces(columns, tags, entries)
    for _, _, count in entries:
        if count <= PIECE_ROWS:
            yield next(pieces)
            continue
        number = _pieces_of(count)
        found = [part for part in islice(pieces, number) if part is not None]
        yield (found[0][0], b"".join([part[1] for part in found])) if len(found) == number else None


def _pieces_of(count: int) -> int:
    """Return the number of pieces of an entry with ``count`` messages: the lists of a million small messages
    would take half a gigabyte."""
    return max(1, -(-count // PIECE_ROWS))


def _joined_pieces(
    columns: MessageColumns, tags: bytes, entries: Sequence[_Entry]
) -> Iterator[tuple[bytes, bytes] | None]:
    """Yield as `joined_parts` does, but each entry in pieces of `PIECE_ROWS` messages."""
    position = row = 0
    waiting: list[tuple[bytes, bool, int]] = []
    found: list[_Tags | None] = []
    for number, (size, is_batch, count) in enumerate(entries, 1):
        metadata, each = _tags_of(tags[position : position + size], is_batch, count)
        position += size
        for start in range(0, _pieces_of(count) * PIECE_ROWS, PIECE_ROWS):
            piece = each[start : start + PIECE_ROWS]
            waiting.append((metadata, is_batch, len(piece)))
            found += piece
            if len(found) >= PIECE_ROWS or number == len(entries):
                if row:
                    time.sleep(_PAUSE_SECONDS)
                yield from _joined_rows(_Rows(columns, row, row + len(found)), found, waiting)
                row += len(found)
                waiting, found = [], []


def _joined_rows(
    rows: _Rows, tags: Sequence[_Tags | None], entries: Sequence[tuple[bytes, bool, int]]
) -> Iterator[tuple[bytes, bytes] | None]:
    """Join the pieces of entries in some rows: each one's metadata, if it is a batch, and its rows."""
    if tags and tags.count(tags[0]) == len(tags):  # as nearly always
        heads = rows.metadata(tags[0], range(len(tags)))
    else:
        heads = [b""] * len(tags)
        alike = defaultdict[_Tags | None, list[int]](list)
        for row, each in enumerate(tags):
            alike[each].append(row)
        for each, found in alike.items():
            for row, head in zip(found, rows.metadata(each, found), strict=True):
                heads[row] = head
    start = 0
    for metadata, is_batch, count in entries:
        stop = start + count
        own, values = heads[start:stop], rows.values[start:stop]
        start = stop
        if not own or not all(own):
            yield None
        elif is_batch:
            sizes = map(_SIZE.pack, map(len, own))
            yield metadata, b"".join(chain.from_iterable(zip(sizes, own, values, strict=True)))
        else:
            yield own[0], values[0]


def _tags_of(data: bytes, is_batch: bool, count: int) -> tuple[bytes, Sequence[_Tags | None]]:
    """Return an entry's own metadata, if it is a batch, and the tags of its messages; None for each if there
    are no tags, or as many as other messages would have."""
    size = int.from_bytes(data[:2], "big") + 2
    if not is_batch:
        return b"", ([(data[2:], True)] if len(data) == size and count == 1 else [None] * count)
    metadata, rest = data[2:size], data[size:]
    size = int.from_bytes(rest[:2], "big") + 2
    # As nearly always; the sizes come first: long tags times a million messages would not fit into memory.
    if size * count == len(rest) and rest == rest[:size] * count:
        return metadata, [(rest[2:size], False)] * count
    found: list[_Tags | None] = []
    position = 0
    while position < len(rest):
        size = int.from_bytes(rest[position : position + 2], "big") + 2
        found.append((rest[position + 2 : position + size], False))
        position += size
    return metadata, found if (position, len(found)) == (len(rest), count) else [None] * count


def _slices(data: memoryview, offsets: NDArray[np.int32], start: int, stop: int) -> list[bytes]:
    bounds = offsets[start : stop + 1]
    piece = bytes(data[bounds[0] : bounds[-1]])
    return [piece[first:last] for first, last in pairwise((bounds - bounds[0]).tolist())]


def _bytes_of(array: pa.Array) -> tuple[memoryview, NDArray[np.int32]]:
    """Return (bytes, bounds) of an array of bytes or text; a null is empty."""
    if array.null_count == len(array):
        return memoryview(b""), np.zeros(len(array) + 1, np.int32)
    buffers = array.buffers()
    offsets = np.frombuffer(buffers[1], np.int32)[array.offset : array.offset + len(array) + 1]
    if array.null_count:
        # The range of a null may contain bytes.
        sizes = np.diff(offsets)
        if int(sizes[_nulls(array)].sum()):
            return _bytes_of(array.fill_null(b"" if pa.types.is_binary(array.type) else ""))
    return memoryview(b"" if buffers[2] is None else buffers[2]).cast("B"), offsets


def _nulls(array: pa.Array) -> NDArray[np.bool_]:
    """Return which elements are null, of an array with nulls. `pa.Array.to_numpy` would import pandas, which
    takes 40 MB."""
    is_valid = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    return np.asarray(is_valid[array.offset : array.offset + len(array)] == 0)


def _numbers_of(array: pa.Array) -> NDArray[np.int64]:
    buffers = array.buffers()
    values = np.frombuffer(buffers[1], np.int64)[array.offset : array.offset + len(array)]
    if array.null_count:
        values = np.where(_nulls(array), 0, values)
    return values


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
