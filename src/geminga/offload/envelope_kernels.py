"""Compiled loop that makes the envelopes of entries, `cut`.

The envelope of an entry has the tags of its metadata and of each message's metadata, and all fields without a
column. Of a field with a column it has the tag alone. Each part of the envelope (the entry's metadata, then
each message's) is preceded by its size, two bytes, big endian.

`cut` does not verify its result: its caller joins it (`geminga.offload.entry_joining`) and compares. An entry
that comes out differently is stored whole.
"""

# numba infers the types of these functions; annotations would neither be read nor checked.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg"

import numpy as np

from geminga.wire import columnar_fields as col
from geminga.wire.columnar_kernels import big_endian_32, inlined, kernel, memcpy, read_field, read_number

_PART_BYTES_MAX = 0xFFFF


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
