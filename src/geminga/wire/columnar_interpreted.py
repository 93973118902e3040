"""The loops of `columnar_kernels` and `columnar_encoding_kernels` without a compiler, function by function.

They convert a process's first tables, until compiled loops are available (`geminga.wire.compiled`): about a
microsecond per message instead of a tenth, but without waiting for a compiler. Both have the same contract,
which `tests/wire/test_columnar.py` checks.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from geminga.wire import columnar_fields as field
from geminga.wire.hashing import boost_hash, java_string_hash, murmur3_32
from geminga.wire.varint import read_varint, varint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

_MAGIC_CHECKSUM, _MAGIC_BROKER = b"\x0e\x01", b"\x0e\x02"


class _DamagedError(ValueError):
    """Invalid bytes."""


# --- reading ----------------------------------------------------------------------------------------


def _number(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return a varint as a signed 64-bit number, and the position after it."""
    try:
        value, position = read_varint(data, position)
    except IndexError:
        raise _DamagedError from None
    except ValueError:
        # More bits than 64 are cut off, as long as there are ten bytes at most.
        value, shift = 0, 0
        while shift < 70:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        else:
            raise _DamagedError from None
        value &= (1 << 64) - 1
    if position > end:
        raise _DamagedError
    return value - (1 << 64) if value >> 63 else value, position


def _region(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the start and size of bytes that follow their size."""
    size, position = _number(data, position, end)
    if not 0 <= size <= end - position:
        raise _DamagedError
    return position, size


def _skip(data: bytes, position: int, end: int, wire_type: int) -> int:
    if wire_type == 0:
        return _number(data, position, end)[1]
    if wire_type == 2:
        start, size = _region(data, position, end)
        return start + size
    if wire_type not in (1, 5):
        raise _DamagedError
    position += 8 if wire_type == 1 else 4
    if position > end:
        raise _DamagedError
    return position


_HEAD_NUMBERS = {
    2: field.SEQUENCE_ID,
    3: field.PUBLISH_TIME,
    8: field.COMPRESSION,
    9: field.UNCOMPRESSED_SIZE,
    11: field.BATCH_COUNT,
    20: field.MARKER_TYPE,
    27: field.CHUNK_COUNT,
    28: field.CHUNKED_SIZE,
    29: field.CHUNK_ID,
}
_HEAD_REGIONS = {
    1: (field.PRODUCER_START, field.PRODUCER_SIZE),
    16: (field.SCHEMA_VERSION_START, field.SCHEMA_VERSION_SIZE),
    26: (field.UUID_START, field.UUID_SIZE),
}


def _read_head(data: bytes, position: int, end: int) -> list[int]:
    head = [0] * field.HEAD_FIELDS
    head[field.CHECKSUM] = head[field.BATCH_COUNT] = head[field.MARKER_TYPE] = head[field.CHUNK_ID] = -1
    if end - position >= 6 and data[position : position + 2] == _MAGIC_BROKER:
        position += 6 + int.from_bytes(data[position + 2 : position + 6], "big")
        if position > end:
            raise _DamagedError
    if end - position >= 6 and data[position : position + 2] == _MAGIC_CHECKSUM:
        head[field.CHECKSUM] = int.from_bytes(data[position + 2 : position + 6], "big")
        position += 6
    head[field.CHECKSUM_START] = position
    metadata_size = int.from_bytes(data[position : position + 4], "big")
    position += 4
    if metadata_size > end - position:
        raise _DamagedError
    head[field.METADATA_START] = position
    head[field.PAYLOAD_START] = metadata_end = position + metadata_size
    head[field.PAYLOAD_END] = end
    seen = set()
    while position < metadata_end:
        tag, position = _number(data, position, metadata_end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = _number(data, position, metadata_end)
            slot = _HEAD_NUMBERS.get(number)
            if number == 11 and value < 1:
                raise _DamagedError
            if slot is not None:
                head[slot] = value
        elif wire_type == 2:
            start, size = _region(data, position, metadata_end)
            if number == 13:
                head[field.IS_ENCRYPTED] = 1
            elif number in _HEAD_REGIONS:
                first, second = _HEAD_REGIONS[number]
                head[first], head[second] = start, size
            position = start + size
        else:
            position = _skip(data, position, metadata_end, wire_type)
            continue
        seen.add((number, wire_type))
    if not {(1, 2), (2, 0), (3, 0)} <= seen:
        raise _DamagedError
    return head


def parse_heads(buffer: Bytes, bounds: Int64s, heads: Int64s) -> int:
    """See `columnar_kernels`."""
    data = buffer.tobytes()
    places: list[int] = bounds.tolist()
    for index in range(len(places) - 1):
        try:
            heads[index] = _read_head(data, places[index], places[index + 1])
        except _DamagedError:
            return index
    return -1


def _property(data: bytes, position: int, end: int) -> tuple[int, int, int, int]:
    """Return start and size of the key, and of the value, of one ``KeyValue``."""
    key = value = None
    while position < end:
        tag, position = _number(data, position, end)
        if tag in (10, 18):
            start, size = _region(data, position, end)
            if tag == 10:
                key = (start, size)
            else:
                value = (start, size)
            position = start + size
        else:
            position = _skip(data, position, end, tag & 7)
    if key is None or value is None:
        raise _DamagedError
    return (*key, *value)


_INNER = (1, 2, 5, 6, 7, 9, 3, 8, 4, 10)
_OUTER = (4, 6, 12, 17, 18, 25, -1, -1, -1, 30)
_NO_MESSAGE = [0] * field.MESSAGE_FIELDS
_NO_MESSAGE[field.KEY_SIZE] = _NO_MESSAGE[field.ORDERING_KEY_SIZE] = -1


def _read_message(
    data: bytes, position: int, end: int, numbers: Sequence[int]
) -> tuple[list[int], int, bool, bool]:
    """A message's own fields; the payload size that it announces, -1 for none; whether its value is null,
    and whether it is compacted out."""
    properties, key, event_time, base64, ordering_key, null_value, payload_size = numbers[:7]
    sequence_id, compacted_out, null_key = numbers[7:]
    message = _NO_MESSAGE.copy()
    message[field.PROPERTIES_START], message[field.PROPERTIES_END] = position, end
    message[field.PROPERTY_FIELD] = properties
    announced = -1
    is_null = compacted = key_is_null = False
    while position < end:
        tag, position = _number(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = _number(data, position, end)
            if number == payload_size:
                announced = value
                if value < 0:
                    raise _DamagedError
            elif number == sequence_id:
                message[field.MESSAGE_SEQUENCE_ID] = value
                message[field.BATCH_INDEX] = 1  # told apart from none; overwritten by the caller
            elif number == event_time:
                message[field.EVENT_TIME] = value
            elif number == base64:
                message[field.KEY_IS_BASE64] = value
            elif number == null_value:
                is_null = value != 0
            elif number == compacted_out:
                compacted = value != 0
            elif number == null_key:
                key_is_null = value != 0
        elif wire_type == 2:
            start, size = _region(data, position, end)
            position = start + size
            if number == key:
                message[field.KEY_START], message[field.KEY_SIZE] = start, size
            elif number == ordering_key:
                message[field.ORDERING_KEY_START], message[field.ORDERING_KEY_SIZE] = start, size
            elif number == properties:
                _, key_size, _, value_size = _property(data, start, position)
                message[field.PROPERTY_COUNT] += 1
                message[field.PROPERTY_KEY_BYTES] += key_size
                message[field.PROPERTY_VALUE_BYTES] += value_size
        else:
            position = _skip(data, position, end, wire_type)
    if key_is_null:
        message[field.KEY_SIZE] = -1
    return message, announced, is_null, compacted


def _even(buffer: Bytes, position: int, end: int, count: int, sequence_id: int) -> dict[int, Any] | None:
    """Return the columns of a batch of plain messages of one size; None for any other."""
    if count < 2 or (end - position) % count:
        return None
    rows = buffer[position:end].reshape(count, -1)
    first = rows[0, :32].tobytes()
    if len(first) < 8 or first[4] != 0x18:
        return None
    metadata_size = int.from_bytes(first[:4], "big")
    try:
        payload_size, at = _number(first, 5, min(len(first), 4 + metadata_size))
    except (_DamagedError, IndexError):
        return None
    head_end = 4 + metadata_size
    if payload_size < 0 or head_end + payload_size != rows.shape[1] or head_end > len(first):
        return None
    if (rows[:, :at] != rows[0, :at]).any():
        return None
    ids = np.full(count, sequence_id, np.int64)
    if at < head_end:
        if (rows[:, at] != 0x40).any():
            return None
        digits = rows[:, at + 1 : head_end]
        if not 0 < digits.shape[1] <= 9 or (digits[:, :-1] < 0x80).any() or (digits[:, -1] > 0x7F).any():
            return None
        ids[:] = 0
        for place in range(digits.shape[1]):
            ids |= (digits[:, place].astype(np.int64) & 0x7F) << (7 * place)
    starts = position + head_end + np.arange(count, dtype=np.int64) * rows.shape[1]
    return {
        field.VALUE_START: starts,
        field.VALUE_SIZE: payload_size,
        field.KEY_SIZE: -1,
        field.ORDERING_KEY_SIZE: -1,
        field.MESSAGE_SEQUENCE_ID: ids,
        field.BATCH_INDEX: np.arange(count, dtype=np.int64),
    }


def _one_by_one(data: bytes, position: int, end: int, count: int, sequence_id: int) -> Int64s:
    """Return the messages of a batch that are not compacted out, a row each."""
    messages: list[list[int]] = []
    for index in range(count):
        if end - position < 4:
            raise _DamagedError
        metadata_end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if metadata_end > end:
            raise _DamagedError
        message, size, is_null, compacted = _read_message(data, position + 4, metadata_end, _INNER)
        if not 0 <= size <= end - metadata_end:
            raise _DamagedError
        position = metadata_end + size
        if compacted:
            continue
        if not message[field.BATCH_INDEX]:
            message[field.MESSAGE_SEQUENCE_ID] = sequence_id
        message[field.BATCH_INDEX] = index
        message[field.VALUE_START] = metadata_end
        message[field.VALUE_SIZE] = -1 if is_null else size
        messages.append(message)
    if position != end:
        raise _DamagedError
    return np.array(messages, np.int64).reshape(-1, field.MESSAGE_FIELDS)


def scan_messages(
    buffer: Bytes,
    data: Int64s,
    heads: Int64s,
    ack_words: Int64s,
    ack_bounds: Int64s,
    fields: Int64s,
    rows: Int64s,
    counts: Int64s,
) -> tuple[int, int]:
    """See `columnar_kernels`."""
    content = buffer.tobytes()
    wanted: list[int] = fields.tolist()
    row = 0
    for index, (position, end) in enumerate(data.tolist()):
        counts[index] = 0
        if position < 0:
            continue
        head = heads[index].tolist()
        try:
            found = _entry_messages(buffer, content, position, end, head)
        except _DamagedError:
            return row, index
        open_places = ack_words[ack_bounds[index] : ack_bounds[index + 1]]
        kept = _kept(found[field.BATCH_INDEX], open_places) if head[field.BATCH_COUNT] >= 0 else None
        indexes = found[field.BATCH_INDEX]
        count = len(indexes) if kept is None else int(kept.sum())
        for slot, number in enumerate(wanted):
            column = found.get(number, 0)
            if kept is not None and isinstance(column, np.ndarray):
                column = column[kept]
            rows[slot, row : row + count] = column
        counts[index] = count
        row += count
    return row, -1


def _entry_messages(
    buffer: Bytes, content: bytes, position: int, end: int, head: list[int]
) -> dict[int, Any]:
    """The fields of an entry's messages: a column each, or a number for all of them."""
    count, sequence_id = head[field.BATCH_COUNT], head[field.SEQUENCE_ID]
    if count < 0:
        message, _, is_null, _ = _read_message(
            content, head[field.METADATA_START], head[field.PAYLOAD_START], _OUTER
        )
        message[field.MESSAGE_SEQUENCE_ID] = sequence_id
        message[field.BATCH_INDEX] = -1
        message[field.VALUE_START] = position
        message[field.VALUE_SIZE] = -1 if is_null else end - position
        return {number: np.array([value], np.int64) for number, value in enumerate(message)}
    found = _even(buffer, position, end, count, sequence_id)
    if found is None:
        messages = _one_by_one(content, position, end, count, sequence_id)
        found = dict(enumerate(messages.T))
    return found


def _kept(indexes: Int64s, words: Int64s) -> NDArray[np.bool_] | None:
    """Return the mask of messages in a ``java.util.BitSet`` of unacknowledged ones; None for all."""
    if not len(words):
        return None
    word = indexes >> 6
    inside = word < len(words)
    bits: NDArray[np.bool_] = (words[np.where(inside, word, 0)] >> (indexes & 63)) & 1 != 0
    return bits & inside


def gather(buffer: Bytes, starts: Int64s, sizes: Int64s, offsets: NDArray[np.int32], out: Bytes) -> None:
    """See `columnar_kernels`."""
    offsets[0] = 0
    np.cumsum(np.maximum(sizes, 0), out=offsets[1:])
    data = buffer.tobytes()
    places = zip(starts.tolist(), sizes.tolist(), strict=True)
    joined = b"".join([data[start : start + size] for start, size in places if size > 0])
    out[: len(joined)] = np.frombuffer(joined, np.uint8)


def gather_keys(
    buffer: Bytes,
    starts: Int64s,
    sizes: Int64s,
    is_base64: Int64s,
    offsets: NDArray[np.int32],
    out: Bytes,
) -> int:
    """See `columnar_kernels`."""
    data = buffer.tobytes()
    keys: list[bytes] = []
    columns = zip(starts.tolist(), sizes.tolist(), is_base64.tolist(), strict=True)
    for row, (start, size, flag) in enumerate(columns):
        key = data[start : start + size] if size > 0 else b""
        if flag and key:
            key = key.partition(b"=")[0].translate(_FROM_URL_SAFE)
            if key.translate(None, _BASE64):
                return row
            # A last digit alone has no whole byte.
            key = b64decode(key[: -1 if len(key) % 4 == 1 else None] + b"=" * (-len(key) % 4))
        keys.append(key)
    offsets[0] = 0
    np.cumsum([len(key) for key in keys], out=offsets[1:])
    joined = b"".join(keys)
    out[: len(joined)] = np.frombuffer(joined, np.uint8)
    return -1


_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def gather_properties(
    buffer: Bytes,
    starts: Int64s,
    ends: Int64s,
    fields: Int64s,
    counts: Int64s,
    row_offsets: NDArray[np.int32],
    key_offsets: NDArray[np.int32],
    keys: Bytes,
    value_offsets: NDArray[np.int32],
    values: Bytes,
) -> None:
    """See `columnar_kernels`."""
    data = buffer.tobytes()
    found_keys: list[bytes] = []
    found_values: list[bytes] = []
    row_offsets[0] = 0
    columns = zip(starts.tolist(), ends.tolist(), fields.tolist(), counts.tolist(), strict=True)
    for row, (position, end, number, left) in enumerate(columns):
        while left > 0 and position < end:
            tag, position = _number(data, position, end)
            if tag != number << 3 | 2:
                position = _skip(data, position, end, tag & 7)
                continue
            start, size = _region(data, position, end)
            position = start + size
            key_start, key_size, value_start, value_size = _property(data, start, position)
            found_keys.append(data[key_start : key_start + key_size])
            found_values.append(data[value_start : value_start + value_size])
            left -= 1
        row_offsets[row + 1] = len(found_keys)
    for found, bounds, out in ((found_keys, key_offsets, keys), (found_values, value_offsets, values)):
        bounds[0] = 0
        np.cumsum([len(each) for each in found], out=bounds[1:])
        joined = b"".join(found)
        out[: len(joined)] = np.frombuffer(joined, np.uint8)


def message_ids(
    ledgers: Int64s,
    entries: Int64s,
    partitions: Int64s,
    batch_indexes: Int64s,
    batch_sizes: Int64s,
    offsets: NDArray[np.int32],
    out: Bytes,
) -> None:
    """See `columnar_kernels`."""
    columns = (ledgers, entries, partitions, batch_indexes, batch_sizes)
    ids: list[bytes] = []
    for ledger, entry, partition, index, size in zip(*(each.tolist() for each in columns), strict=True):
        encoded = b"\x08" + varint(ledger) + b"\x10" + varint(entry)
        if partition >= 0:
            encoded += b"\x18" + varint(partition)
        if index >= 0:
            encoded += b"\x20" + varint(index)
        if size > 0:
            encoded += b"\x30" + varint(size)
        ids.append(encoded)
    offsets[0] = 0
    np.cumsum([len(each) for each in ids], out=offsets[1:])
    joined = b"".join(ids)
    out[: len(joined)] = np.frombuffer(joined, np.uint8)


# --- writing ----------------------------------------------------------------------------------------

_HASHES: tuple[Callable[[bytes], int], ...] = (
    lambda key: java_string_hash(_text(key)),
    murmur3_32,
    boost_hash,
)


def _text(key: bytes) -> str:
    try:
        return key.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return key.decode("utf-8", "replace")


def hash_keys(buffer: Bytes, offsets: NDArray[np.int32], scheme: int, out: Int64s) -> None:
    """See `columnar_encoding_kernels`."""
    out[:] = list(map(_HASHES[scheme], _words(buffer, offsets)))


def _words(buffer: Bytes, offsets: NDArray[np.int32]) -> list[bytes]:
    """Return the values of a binary column."""
    data, bounds = buffer.tobytes(), offsets.tolist()
    return [data[start:end] for start, end in pairwise(bounds)]


def group_rows(groups: Int64s, group_count: int, order: Int64s, bounds: Int64s) -> None:
    """See `columnar_encoding_kernels`."""
    order[:] = np.argsort(groups, kind="stable")
    bounds[0] = 0
    np.cumsum(np.bincount(groups, minlength=group_count), out=bounds[1 : group_count + 1])


class _Plain(dict[int, bytes]):
    """Cache from a payload size to the bytes before the payload of a plain message."""

    def __missing__(self, size: int) -> bytes:
        metadata = b"\x18" + varint(size)
        prefix = self[size] = len(metadata).to_bytes(4, "big") + metadata
        return prefix


def encode_rows(
    order: Int64s,
    bounds: Int64s,
    first_partition: int,
    sequence_ids: Int64s,
    max_messages: int,
    max_bytes: int,
    *columns: Any,
) -> tuple[int, int]:
    """See `columnar_encoding_kernels`."""
    *inputs, batches, out = columns
    rows = _Rows(*inputs)
    places: list[int] = bounds.tolist()
    rows_of: Sequence[int] = order.tolist() if len(order) else range(places[-1])
    partitions = len(places) - 2
    turn, position = first_partition, 0
    pieces: list[bytes] = []
    made: list[list[int]] = []
    for group in range(partitions + 1):
        left = room = 0
        partition = group
        for place in range(places[group], places[group + 1]):
            row = rows_of[place]
            value = rows.values[row]
            size = len(value)
            if left == 0 or size > room:
                if group == partitions:
                    partition = turn % partitions
                    turn += 1
                batch = [0] * field.BATCH_FIELDS
                batch[field.BATCH_PARTITION], batch[field.BATCH_FIRST] = partition, place
                batch[field.BATCH_START] = position
                batch[field.BATCH_SEQUENCE_ID] = int(sequence_ids[partition]) if len(sequence_ids) else -1
                batch[field.BATCH_IS_KEYED] = group < partitions
                made.append(batch)
                left, room = max_messages, max_bytes
            sequence_id = None
            if len(sequence_ids):
                sequence_id = int(sequence_ids[partition])
                sequence_ids[partition] += 1
            prefix = rows.prefix(row, sequence_id)
            pieces += (prefix, value)
            position += len(prefix) + size
            batch[field.BATCH_ROWS] += 1
            batch[field.BATCH_END] = position
            left -= 1
            room -= size
    if made:
        batches[: len(made)] = made
    joined = b"".join(pieces)
    out[:position] = np.frombuffer(joined, np.uint8)
    return len(made), position


class _Rows:
    """The input columns of `encode_rows`, as Python values."""

    def __init__(
        self, value_offsets: Any, values: Any, value_nulls: Any, key_offsets: Any, keys: Any, key_nulls: Any,
        ordering_offsets: Any, ordering_keys: Any, ordering_nulls: Any, event_times: Any,
        map_offsets: Any, map_key_offsets: Any, map_keys: Any, map_value_offsets: Any, map_values: Any,
        map_nulls: Any,
    ) -> None:  # fmt: skip
        self.values = _words(values, value_offsets)
        self._nulls = set(np.flatnonzero(value_nulls).tolist())
        for row in self._nulls:
            self.values[row] = b""
        self._keys = _present(key_offsets, keys, key_nulls)
        self._ordering_keys = _present(ordering_offsets, ordering_keys, ordering_nulls)
        self._event_times: list[int] = event_times.tolist()
        self._maps: list[int] = map_offsets.tolist()
        self._map_nulls = set(np.flatnonzero(map_nulls).tolist())
        if self._maps:
            self._map_keys = _words(map_keys, map_key_offsets)
            self._map_values = _words(map_values, map_value_offsets)
        self._is_plain = not (
            self._nulls or self._keys or self._ordering_keys or self._event_times or self._maps
        )
        self._plain = _Plain()

    def prefix(self, row: int, sequence_id: int | None) -> bytes:
        """Return the bytes before a row's payload."""
        size = len(self.values[row])
        if self._is_plain and sequence_id is None:
            return self._plain[size]
        parts: list[bytes] = []
        if self._maps and row not in self._map_nulls:
            for slot in range(self._maps[row], self._maps[row + 1]):
                key, value = self._map_keys[slot], self._map_values[slot]
                pair = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(value)) + value
                parts += (b"\x0a", varint(len(pair)), pair)
        key_of_row = self._keys[row] if self._keys else None
        if key_of_row is not None:
            parts += (b"\x12", varint(len(key_of_row)), key_of_row)
        parts += (b"\x18", varint(size))
        if self._event_times and self._event_times[row] > 0:
            parts += (b"\x28", varint(self._event_times[row]))
        ordering_key = self._ordering_keys[row] if self._ordering_keys else None
        if ordering_key is not None:
            parts += (b"\x3a", varint(len(ordering_key)), ordering_key)
        if sequence_id is not None:
            parts += (b"\x40", varint(sequence_id))
        if row in self._nulls:
            parts.append(b"\x48\x01")
        metadata = b"".join(parts)
        return len(metadata).to_bytes(4, "big") + metadata


def _present(offsets: Any, data: Any, nulls: Any) -> list[bytes | None]:
    """Return the values of a binary column, None where one is null; empty without a column."""
    if not len(offsets):
        return []
    words: list[bytes | None] = [*_words(data, offsets)]
    for row in np.flatnonzero(nulls).tolist():
        words[row] = None
    return words
