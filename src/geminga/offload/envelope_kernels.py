"""Compiled loops that split entries into message columns and envelopes, and join them again.

The envelope of an entry has the tags of its metadata and of each message's metadata, and all fields without a
column. Of a field with a column it has the tag alone. Each part of the envelope (the entry's metadata, then
each message's) is preceded by its size, two bytes, big endian.

`cut` does not verify its result: its caller joins it again and compares. An entry that comes out differently
is stored whole.
"""

# numba infers the types of these functions; annotations would neither be read nor checked.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg"

from __future__ import annotations

import numpy as np

from geminga.wire.columnar_fields import BATCH_COUNT, METADATA_START, PAYLOAD_START
from geminga.wire.columnar_kernels import _skip, _varint, inlined, kernel, memcpy, put_varint

_PART_BYTES_MAX = 0xFFFF
_VARINT_BYTES = 10
_TAG_BYTES = 5


@inlined
def _is_inner_hole(field):
    """Whether a column holds this field of SingleMessageMetadata."""
    return field == 1 or field == 2 or field == 3 or field == 5 or field == 7 or field == 8


@inlined
def _is_outer_hole(field):
    """Whether a column holds this field of MessageMetadata, for a message that is alone in its entry."""
    return field == 2 or field == 3 or field == 4 or field == 6 or field == 9 or field == 12 or field == 18


@inlined
def _cut_part(buffer, position, end, is_outer, out, at):
    """Write the envelope of one metadata to ``out`` at ``at``; returns its end, or -1."""
    start = at
    at += 2
    while position < end:
        field_start = position
        tag, position = _varint(buffer, position, end)
        if position < 0:
            return np.int64(-1)
        value_start = position
        position = _skip(buffer, position, end, tag & 7)
        if position < 0:
            return np.int64(-1)
        field = tag >> 3
        is_hole = _is_outer_hole(field) if is_outer else _is_inner_hole(field)
        stop = value_start if is_hole else position
        memcpy(out, at, buffer, field_start, stop - field_start)
        at += stop - field_start
    size = at - start - 2
    if size > _PART_BYTES_MAX:
        return np.int64(-1)
    out[start] = size >> 8
    out[start + 1] = size & 0xFF
    return at


@kernel
def cut(buffer, heads, data, counts, is_kept_whole, out, ends):
    """Write the envelopes of entries to ``out``; ``ends[i]`` is the end of entry ``i``'s.

    ``data[i]`` is (start, end) of its payload in ``buffer``, uncompressed. For an entry that cannot be cut,
    sets ``is_kept_whole`` and writes no envelope.
    """
    at = np.int64(0)
    for i in range(len(heads)):
        ends[i] = at
        if is_kept_whole[i]:
            continue
        begin = at
        batch_count = heads[i, BATCH_COUNT]
        first, last = heads[i, METADATA_START], heads[i, PAYLOAD_START]
        if batch_count < 0:
            at = _cut_part(buffer, first, last, True, out, at)
        elif last - first > _PART_BYTES_MAX or counts[i] != batch_count:
            at = np.int64(-1)
        else:
            size = last - first
            out[at] = size >> 8
            out[at + 1] = size & 0xFF
            memcpy(out, at + 2, buffer, first, size)
            at += 2 + size
            position, end = data[i, 0], data[i, 1]
            for _ in range(batch_count):
                size = (
                    (np.int64(buffer[position]) << 24)
                    | (np.int64(buffer[position + 1]) << 16)
                    | (np.int64(buffer[position + 2]) << 8)
                    | np.int64(buffer[position + 3])
                )
                position += 4
                at = _cut_part(buffer, position, position + size, False, out, at)
                if at < 0:
                    break
                # The sizes were verified when messages were scanned; the payload's size is in a field.
                payload = _payload_size(buffer, position, position + size)
                position += size + payload
                if payload < 0 or position > end:
                    at = np.int64(-1)
                    break
        if at < 0:
            is_kept_whole[i] = True
            at = begin
        ends[i] = at


@inlined
def _payload_size(buffer, position, end):
    found = np.int64(-1)
    while position < end:
        tag, position = _varint(buffer, position, end)
        if position < 0:
            return np.int64(-1)
        if tag == 0x18:
            found, position = _varint(buffer, position, end)
        else:
            position = _skip(buffer, position, end, tag & 7)
        if position < 0:
            return np.int64(-1)
    return found


@inlined
def _varint_size(value):
    if value < 0:
        return np.int64(10)
    size = np.int64(1)
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@inlined
def _join_part(
    envelope, position, end, is_outer, row, payload_size, numbers, offsets, keys, ordering_keys,
    property_rows, property_keys, property_values, out, at,
):  # fmt: skip
    """Write one metadata to ``out`` at ``at``; returns its end, or -1 if sizes do not fit.

    ``numbers``: rows of (sequence id, publish time, event time). ``offsets``: rows of bounds in ``keys`` and
    ``ordering_keys``.
    """
    room = len(out)
    next_property = property_rows[row]
    while position < end:
        tag_start = position
        tag, position = _varint(envelope, position, end)
        if position < 0 or at + _TAG_BYTES + _VARINT_BYTES > room:
            return np.int64(-1)
        memcpy(out, at, envelope, tag_start, position - tag_start)
        at += position - tag_start
        field = tag >> 3
        is_hole = _is_outer_hole(field) if is_outer else _is_inner_hole(field)
        if not is_hole:
            start = position
            position = _skip(envelope, position, end, tag & 7)
            if position < 0 or at + position - start > room:
                return np.int64(-1)
            memcpy(out, at, envelope, start, position - start)
            at += position - start
        elif field == (6 if is_outer else 2):
            size = offsets[row + 1, 0] - offsets[row, 0]
            if at + _VARINT_BYTES + size > room:
                return np.int64(-1)
            at = put_varint(out, at, size)
            memcpy(out, at, keys, offsets[row, 0], size)
            at += size
        elif field == (18 if is_outer else 7):
            size = offsets[row + 1, 1] - offsets[row, 1]
            if at + _VARINT_BYTES + size > room:
                return np.int64(-1)
            at = put_varint(out, at, size)
            memcpy(out, at, ordering_keys, offsets[row, 1], size)
            at += size
        elif field == (4 if is_outer else 1):
            if next_property >= property_rows[row + 1]:
                return np.int64(-1)
            key_start, value_start = property_keys[1][next_property], property_values[1][next_property]
            key_size = property_keys[1][next_property + 1] - key_start
            value_size = property_values[1][next_property + 1] - value_start
            next_property += 1
            size = 2 + _varint_size(key_size) + key_size + _varint_size(value_size) + value_size
            if at + _VARINT_BYTES + size > room:
                return np.int64(-1)
            at = put_varint(out, at, size)
            out[at] = 0x0A
            at = put_varint(out, at + 1, key_size)
            memcpy(out, at, property_keys[0], key_start, key_size)
            at += key_size
            out[at] = 0x12
            at = put_varint(out, at + 1, value_size)
            memcpy(out, at, property_values[0], value_start, value_size)
            at += value_size
        elif field == (9 if is_outer else 3):
            at = put_varint(out, at, payload_size)
        elif field == (12 if is_outer else 5):
            at = put_varint(out, at, numbers[2, row])
        elif field == 3:
            at = put_varint(out, at, numbers[1, row])
        else:
            at = put_varint(out, at, numbers[0, row])
    return at


@inlined
def _part_end(envelope, position, end):
    """Return the end of the part at ``position``; -1 if the part is cut."""
    if end - position < 2:
        return np.int64(-1)
    stop = position + 2 + (np.int64(envelope[position]) << 8 | np.int64(envelope[position + 1]))
    return stop if stop <= end else np.int64(-1)


@kernel
def join(
    envelope, ends, is_batch, counts, numbers, offsets, values, keys, ordering_keys, property_rows,
    property_keys, property_values, out, metadata_ends, payload_ends,
):  # fmt: skip
    """Write metadata and payload of every entry that has an envelope to ``out``, one after the other.

    ``offsets`` are bounds per row: of key, ordering key, value. Fills in the ends of each entry's metadata
    and payload in ``out``; an entry without envelope is empty there, and an entry that cannot be joined has
    -1 in ``payload_ends``. Properties are (bytes, bounds) pairs. Never writes beyond ``out``.
    """
    row = np.int64(0)
    at = np.int64(0)
    begin = np.int64(0)
    room = len(out)
    for i in range(len(ends)):
        end = ends[i]
        position = begin
        begin = end
        rows = counts[i]
        first_row = row
        row += rows
        metadata_ends[i] = at
        payload_ends[i] = at
        if position == end:
            continue
        start = at
        stop = _part_end(envelope, position, end)
        is_well = stop >= 0 and row < len(offsets)
        if is_well and not is_batch[i]:
            is_well = rows == 1
            if is_well:
                size = offsets[row, 2] - offsets[first_row, 2]
                at = _join_part(
                    envelope, position + 2, stop, True, first_row, size, numbers, offsets, keys,
                    ordering_keys, property_rows, property_keys, property_values, out, at,
                )  # fmt: skip
                metadata_ends[i] = at
                is_well = at >= 0 and at + size <= room
            if is_well:
                memcpy(out, at, values, offsets[first_row, 2], size)
                at += size
        elif is_well:
            size = stop - position - 2
            is_well = at + size <= room
            if is_well:
                memcpy(out, at, envelope, position + 2, size)
                at += size
                metadata_ends[i] = at
            each = first_row
            while is_well and each < row:
                position = stop
                stop = _part_end(envelope, position, end)
                is_well = stop >= 0 and at + 4 <= room
                if not is_well:
                    break
                size = offsets[each + 1, 2] - offsets[each, 2]
                head = at
                at = _join_part(
                    envelope, position + 2, stop, False, each, size, numbers, offsets, keys, ordering_keys,
                    property_rows, property_keys, property_values, out, at + 4,
                )  # fmt: skip
                is_well = at >= 0 and at + size <= room
                if is_well:
                    length = at - head - 4
                    out[head] = (length >> 24) & 0xFF
                    out[head + 1] = (length >> 16) & 0xFF
                    out[head + 2] = (length >> 8) & 0xFF
                    out[head + 3] = length & 0xFF
                    memcpy(out, at, values, offsets[each, 2], size)
                    at += size
                each += 1
        if not is_well:
            at = start
            metadata_ends[i] = at
            payload_ends[i] = -1
        else:
            payload_ends[i] = at


@inlined
def _are_same(one, at, other, start, size):
    """Whether two ranges are equal. Compares all bytes without a branch, so that the loop is vectorized.
    Unsigned indexes spare numba a check for negative ones per byte."""
    different = np.uint8(0)
    for j in range(np.uint64(size)):
        different |= one[np.uint64(at) + j] ^ other[np.uint64(start) + j]
    return different == 0


@kernel
def compare(out, metadata_ends, payload_ends, buffer, heads, data, is_kept_whole):
    """Set ``is_kept_whole`` for entries that were joined differently; returns their number."""
    begin = np.int64(0)
    wrong = 0
    for i in range(len(heads)):
        if is_kept_whole[i]:
            continue
        end = payload_ends[i]
        is_same = end >= 0
        if is_same:
            middle = metadata_ends[i]
            first, last = heads[i, METADATA_START], heads[i, PAYLOAD_START]
            is_same = middle - begin == last - first and end - middle == data[i, 1] - data[i, 0]
            if is_same:
                is_same = _are_same(out, begin, buffer, first, last - first) and _are_same(
                    out, middle, buffer, data[i, 0], end - middle
                )
            begin = end  # an entry that could not be joined is empty
        if not is_same:
            is_kept_whole[i] = True
            wrong += 1
    return wrong
