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

from geminga.wire import columnar_fields as col
from geminga.wire.columnar_kernels import (
    big_endian_32,
    inlined,
    kernel,
    memcpy,
    put_big_endian_32,
    put_bytes,
    put_property,
    put_varint,
    read_field,
    read_number,
)

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
        field, wire_type, size, position = read_field(buffer, position, end)
        if position < 0:
            return np.int64(-1)
        if wire_type == 2:
            position += size
        stop = position
        if _is_outer_hole(field) if is_outer else _is_inner_hole(field):
            _, stop = read_number(buffer, field_start, end)
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
        batch_count = heads[i, col.BATCH_COUNT]
        first, last = heads[i, col.METADATA_START], heads[i, col.PAYLOAD_START]
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
                size = big_endian_32(buffer, position)
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
        field, wire_type, value, position = read_field(buffer, position, end)
        if position < 0:
            return np.int64(-1)
        if wire_type == 2:
            position += value
        elif field == 3 and wire_type == 0:
            found = value
    return found


@inlined
def _join_part(envelope, position, end, is_outer, row, columns, out, at):
    """Write one metadata to ``out`` at ``at``; returns its end, or -1 if sizes do not fit."""
    numbers, offsets, _, keys, ordering_keys, property_rows, property_keys, property_values = columns
    room = len(out)
    next_property = property_rows[row]
    while position < end:
        tag, stop = read_number(envelope, position, end)
        if stop < 0 or at + _TAG_BYTES + _VARINT_BYTES > room:
            return np.int64(-1)
        field = tag >> 3
        is_hole = _is_outer_hole(field) if is_outer else _is_inner_hole(field)
        if not is_hole:
            _, wire_type, size, stop = read_field(envelope, position, end)
            if wire_type == 2 and stop >= 0:
                stop += size
            if stop < 0 or at + stop - position > room:
                return np.int64(-1)
        memcpy(out, at, envelope, position, stop - position)
        at += stop - position
        position = stop
        if not is_hole:
            continue
        if field == (6 if is_outer else 2):
            size = offsets[row + 1, 0] - offsets[row, 0]
            if at + _VARINT_BYTES + size > room:
                return np.int64(-1)
            at = put_bytes(out, at, keys, offsets[row, 0], size)
        elif field == (18 if is_outer else 7):
            size = offsets[row + 1, 1] - offsets[row, 1]
            if at + _VARINT_BYTES + size > room:
                return np.int64(-1)
            at = put_bytes(out, at, ordering_keys, offsets[row, 1], size)
        elif field == (4 if is_outer else 1):
            if next_property >= property_rows[row + 1]:
                return np.int64(-1)
            key_start, value_start = property_keys[1][next_property], property_values[1][next_property]
            key_size = property_keys[1][next_property + 1] - key_start
            value_size = property_values[1][next_property + 1] - value_start
            next_property += 1
            if at + 3 * _VARINT_BYTES + 2 + key_size + value_size > room:
                return np.int64(-1)
            at = put_property(
                out, at, property_keys[0], key_start, key_size, property_values[0], value_start, value_size
            )
        elif field == (9 if is_outer else 3):
            at = put_varint(out, at, offsets[row + 1, 2] - offsets[row, 2])
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


@inlined
def _join_value(row, columns, out, at):
    """Write a message's value to ``out`` at ``at``; returns its end, or -1 if it does not fit."""
    offsets, values = columns[1], columns[2]
    size = offsets[row + 1, 2] - offsets[row, 2]
    if at < 0 or at + size > len(out):
        return np.int64(-1)
    memcpy(out, at, values, offsets[row, 2], size)
    return at + size


@inlined
def _join_batch(envelope, position, end, row, last_row, columns, out, at):
    """Write the messages of a batch to ``out`` at ``at``; returns their end, or -1."""
    while row < last_row:
        stop = _part_end(envelope, position, end)
        if stop < 0 or at + 4 > len(out):
            return np.int64(-1)
        head = at
        at = _join_part(envelope, position + 2, stop, False, row, columns, out, at + 4)
        if at < 0:
            return at
        put_big_endian_32(out, head, at - head - 4)
        at = _join_value(row, columns, out, at)
        if at < 0:
            return at
        position = stop
        row += 1
    return at


@kernel
def join(envelope, ends, is_batch, counts, columns, out, metadata_ends, payload_ends):
    """Write metadata and payload of every entry that has an envelope to ``out``, one after the other.

    ``columns`` are those of `geminga.offload.entry_envelope._Columns`. Fills in the ends of each entry's
    metadata and payload in ``out``; an entry without envelope is empty there, and an entry that cannot be
    joined has -1 in ``payload_ends``. Never writes beyond ``out``.
    """
    row = np.int64(0)
    at = np.int64(0)
    position = np.int64(0)
    for i in range(len(ends)):
        end = ends[i]
        first_row = row
        row += counts[i]
        start = at
        metadata_ends[i] = at
        payload_ends[i] = at
        if position == end:
            continue
        stop = _part_end(envelope, position, end)
        if stop < 0 or row >= len(columns[1]) or (not is_batch[i] and counts[i] != 1):
            at = np.int64(-1)
        elif not is_batch[i]:
            at = _join_part(envelope, position + 2, stop, True, first_row, columns, out, at)
            metadata_ends[i] = at
            at = _join_value(first_row, columns, out, at)
        elif at + stop - position - 2 > len(out):
            at = np.int64(-1)
        else:
            memcpy(out, at, envelope, position + 2, stop - position - 2)
            at += stop - position - 2
            metadata_ends[i] = at
            at = _join_batch(envelope, stop, end, first_row, row, columns, out, at)
        position = end
        payload_ends[i] = at
        if at < 0:
            at = start
            metadata_ends[i] = start


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
            first, last = heads[i, col.METADATA_START], heads[i, col.PAYLOAD_START]
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
