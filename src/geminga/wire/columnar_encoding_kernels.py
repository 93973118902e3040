"""Compiled loops that hash keys and serialise rows, for `columnar_encoding`.

See `geminga.wire.columnar_kernels` for the rules that these functions follow.
"""

# numba infers the types of these functions; annotations would neither be read nor checked.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg"

import numpy as np

from geminga.wire import columnar_fields as col
from geminga.wire.columnar_kernels import (
    inlined,
    inlined_first,
    kernel,
    memcpy,
    put_big_endian_32,
    put_bytes,
    put_property,
    put_varint,
)

# --- key hashes (algorithms.md section 1) ----------------------------------------------------------


@inlined
def _java_string_hash(buffer, position, end):
    """``String.hashCode`` over UTF-16 code units, read from UTF-8."""
    h = np.uint32(0)
    factor = np.uint32(31)
    while position < end:
        byte = np.uint32(buffer[position])
        if byte < 0x80:
            h = np.uint32(h * factor + byte)
            position += 1
        elif byte < 0xE0:
            unit = (byte & np.uint32(0x1F)) << np.uint32(6)
            if position + 1 < end:
                unit |= np.uint32(buffer[position + 1]) & np.uint32(0x3F)
            h = np.uint32(h * factor + unit)
            position += 2
        else:
            more = 2 if byte < 0xF0 else 3
            point = byte & np.uint32(0x0F if more == 2 else 0x07)
            for j in range(1, more + 1):
                low = (
                    np.uint32(buffer[position + j]) & np.uint32(0x3F) if position + j < end else np.uint32(0)
                )
                point = (point << np.uint32(6)) | low
            if more == 2:
                h = np.uint32(h * factor + point)
            else:
                point = np.uint32(point - np.uint32(0x10000))
                h = np.uint32(h * factor + (np.uint32(0xD800) + (point >> np.uint32(10))))
                h = np.uint32(h * factor + (np.uint32(0xDC00) + (point & np.uint32(0x3FF))))
            position += more + 1
    return np.int64(h & np.uint32(0x7FFFFFFF))


@inlined
def _rotate_32(value, count):
    return np.uint32((value << np.uint32(count)) | (value >> np.uint32(32 - count)))


@inlined
def _murmur3_32(buffer, position, end):
    c1 = np.uint32(0xCC9E2D51)
    c2 = np.uint32(0x1B873593)
    size = end - position
    h = np.uint32(0)
    while end - position >= 4:
        k = np.uint32(
            np.uint32(buffer[position])
            | np.uint32(buffer[position + 1]) << np.uint32(8)
            | np.uint32(buffer[position + 2]) << np.uint32(16)
            | np.uint32(buffer[position + 3]) << np.uint32(24)
        )
        k = np.uint32(_rotate_32(np.uint32(k * c1), 15) * c2)
        h = np.uint32(_rotate_32(np.uint32(h ^ k), 13) * np.uint32(5) + np.uint32(0xE6546B64))
        position += 4
    k = np.uint32(0)
    for j in range(end - position):
        k = np.uint32(k | np.uint32(buffer[position + j]) << np.uint32(8 * j))
    h = np.uint32(h ^ np.uint32(_rotate_32(np.uint32(k * c1), 15) * c2))
    h = np.uint32(h ^ np.uint32(size))
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    h = np.uint32(h ^ (h >> np.uint32(16)))
    return np.int64(h & np.uint32(0x7FFFFFFF))


@inlined
def _mulx(a, b):
    """Low half XOR high half of the 128-bit product of two 64-bit numbers."""
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a0 = a & mask
    a1 = a >> half
    b0 = b & mask
    b1 = b >> half
    p00 = np.uint64(a0 * b0)
    p01 = np.uint64(a0 * b1)
    p10 = np.uint64(a1 * b0)
    middle = np.uint64((p00 >> half) + (p01 & mask) + (p10 & mask))
    high = np.uint64(np.uint64(a1 * b1) + (p01 >> half) + (p10 >> half) + (middle >> half))
    return np.uint64(np.uint64(a * b) ^ high)


@inlined
def _little_endian(buffer, position, count):
    value = np.uint64(0)
    for j in range(count):
        value |= np.uint64(buffer[position + j]) << np.uint64(8 * j)
    return value


@inlined
def _boost_hash(buffer, position, end):
    q = np.uint64(0x9E3779B97F4A7C15)
    k = np.uint64(0xDF442D22CE4859B9)
    w = _mulx(q, k)
    h = np.uint64(w ^ np.uint64(end - position))
    while end - position >= 8:
        v = _little_endian(buffer, position, 8)
        w = np.uint64(w + q)
        h = np.uint64(h ^ _mulx(np.uint64(v + w), k))
        position += 8
    rest = end - position
    v = np.uint64(0)
    if rest >= 4:
        last = _little_endian(buffer, end - 4, 4)
        v = np.uint64((last << np.uint64(8 * (rest - 4))) | _little_endian(buffer, position, 4))
    elif rest > 0:
        x1 = (rest - 1) & 2
        x2 = rest >> 1
        v = np.uint64(
            (np.uint64(buffer[position + x1]) << np.uint64(8 * x1))
            | (np.uint64(buffer[position + x2]) << np.uint64(8 * x2))
            | np.uint64(buffer[position])
        )
    w = np.uint64(w + q)
    h = np.uint64(h ^ _mulx(np.uint64(v + w), k))
    return np.int64(_mulx(np.uint64(h + w), k) & np.uint64(0x7FFFFFFF))


@kernel
def hash_keys(buffer, offsets, scheme, out):
    """``out[i]`` = hash of key ``i``: scheme 0 JavaStringHash, 1 Murmur3_32Hash, 2 BoostHash."""
    for i in range(len(offsets) - 1):
        start = np.int64(offsets[i])
        end = np.int64(offsets[i + 1])
        if scheme == 0:
            out[i] = _java_string_hash(buffer, start, end)
        elif scheme == 1:
            out[i] = _murmur3_32(buffer, start, end)
        else:
            out[i] = _boost_hash(buffer, start, end)


# --- encoding ------------------------------------------------------------------------------------


@kernel
def group_rows(groups, group_count, order, bounds):
    """Stable counting sort: ``order[bounds[g]:bounds[g + 1]]`` are the rows of group ``g``."""
    bounds[:] = 0
    for i in range(len(groups)):
        bounds[groups[i] + 1] += 1
    for g in range(group_count):
        bounds[g + 1] += bounds[g]
    position = bounds[:group_count].copy()
    for i in range(len(groups)):
        group = groups[i]
        order[position[group]] = i
        position[group] += 1


@inlined_first
def _put_properties(out, position, row, map_offsets, key_offsets, keys, value_offsets, values):
    for slot in range(map_offsets[row], map_offsets[row + 1]):
        key_start = np.int64(key_offsets[slot])
        value_start = np.int64(value_offsets[slot])
        key_size = np.int64(key_offsets[slot + 1]) - key_start
        value_size = np.int64(value_offsets[slot + 1]) - value_start
        out[position] = 0x0A
        position = put_property(out, position + 1, keys, key_start, key_size, values, value_start, value_size)
    return position


@kernel
def encode_rows(rows, first_partition, limits, values, columns, batches, out):
    """Serialise every row in one pass, closing batches by count and by payload bytes.

    ``rows``: (rows in the order of sending, empty as they stand; bounds of the groups in it); the last group
    has no keys. ``limits``: (messages, bytes) of a batch. ``values``: (offsets, bytes, nulls). ``columns``:
    key, flags of keys that are base64, ordering key, event times, and properties. Absent columns are empty
    arrays; nulls are empty where a column has no null. Returns the number of batches and the number of bytes
    written.
    """
    # Unpacked here, as unpacking a tuple for each row takes longer than writing it.
    order, bounds = rows
    value_offsets, value_bytes, value_nulls = values
    key, key_flags, ordering_key, event_times, properties = columns
    key_offsets, keys, key_nulls = key
    ordering_offsets, ordering_keys, ordering_nulls = ordering_key
    map_offsets, map_key_offsets, map_keys, map_value_offsets, map_values, map_nulls = properties
    partitions = len(bounds) - 2
    position = 0
    batch = -1
    turn = first_partition
    for group in range(partitions + 1):
        left = 0
        room = np.int64(0)
        partition = group
        for place in range(bounds[group], bounds[group + 1]):
            row = order[place] if len(order) else place
            is_null = len(value_nulls) > 0 and value_nulls[row]
            start = np.int64(value_offsets[row])
            value_size = np.int64(0) if is_null else np.int64(value_offsets[row + 1]) - start
            if left == 0 or value_size > room:
                if group == partitions:
                    partition = turn % partitions
                    turn += 1
                batch += 1
                batches[batch, col.BATCH_PARTITION] = partition
                batches[batch, col.BATCH_FIRST] = place
                batches[batch, col.BATCH_ROWS] = 0
                batches[batch, col.BATCH_START] = position
                batches[batch, col.BATCH_IS_KEYED] = group < partitions
                left, room = limits
            at = position + 4
            if len(map_offsets) and not (len(map_nulls) > 0 and map_nulls[row]):
                at = _put_properties(
                    out, at, row, map_offsets, map_key_offsets, map_keys, map_value_offsets, map_values
                )
            if len(key_offsets) and not (len(key_nulls) > 0 and key_nulls[row]):
                out[at] = 0x12
                size = np.int64(key_offsets[row + 1] - key_offsets[row])
                at = put_bytes(out, at + 1, keys, np.int64(key_offsets[row]), size)
            out[at] = 0x18
            at = put_varint(out, at + 1, value_size)
            if len(event_times) and event_times[row] > 0:
                out[at] = 0x28
                at = put_varint(out, at + 1, event_times[row])
            if len(key_flags) and key_flags[row]:
                out[at] = 0x30
                out[at + 1] = 1
                at += 2
            if len(ordering_offsets) and not (len(ordering_nulls) > 0 and ordering_nulls[row]):
                out[at] = 0x3A
                size = np.int64(ordering_offsets[row + 1] - ordering_offsets[row])
                at = put_bytes(out, at + 1, ordering_keys, np.int64(ordering_offsets[row]), size)
            if is_null:
                out[at] = 0x48
                out[at + 1] = 1
                at += 2
            put_big_endian_32(out, position, at - position - 4)
            memcpy(out, at, value_bytes, start, value_size)
            position = at + value_size
            batches[batch, col.BATCH_ROWS] += 1
            batches[batch, col.BATCH_END] = position
            left -= 1
            room -= value_size
    return batch + 1, position
