"""Compiled loops over Protobuf payloads, for `geminga.spark.payloads.protobuf_columns`.

A message type is a table of nodes, one for each field, those of one message next to each other. The loop
reads each payload along it. It runs twice: first to count, then to write. Cases that Protobuf's library
treats specially (damage, groups, a message in two parts, a second member of a oneof, invalid UTF-8 ...) are
not decided here: such a payload is *odd*, and the library reads it.
"""

# numba infers the types of these functions; annotations would neither be read nor checked.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, assignment"

from __future__ import annotations

import numba
import numpy as np

from geminga.wire.columnar_kernels import _skip, _varint, kernel, memcpy

inlined = numba.njit(nogil=True, inline="always")

(BOOL, INT32, UINT32, SINT32, INT64, SINT64, ENUM) = range(7)
(UNSIGNED_4, SIGNED_4, BYTES_8, FLOAT_4, BYTES, TEXT, MESSAGE) = range(7, 14)
"""Operations. Those up to ENUM are varints, the next ones have a fixed size."""
(VARINT, EIGHT, SIZED, FOUR) = (0, 1, 2, 5)
"""Wire types."""


@inlined
def _is_text(buffer, position, end):
    while position < end:
        byte = buffer[position]
        if byte < 0x80:
            position += 1
            continue
        low = 0x80
        high = 0xBF
        if byte < 0xC2 or byte > 0xF4:
            return False
        if byte < 0xE0:
            more = 1
        elif byte < 0xF0:
            more = 2
            low = 0xA0 if byte == 0xE0 else 0x80
            high = 0x9F if byte == 0xED else 0xBF
        else:
            more = 3
            low = 0x90 if byte == 0xF0 else 0x80
            high = 0x8F if byte == 0xF4 else 0xBF
        if more > end - position - 1:
            return False
        if buffer[position + 1] < low or buffer[position + 1] > high:
            return False
        for i in range(2, more + 1):
            if buffer[position + i] & 0xC0 != 0x80:
                return False
        position += more + 1
    return True


@inlined
def _scalar(buffer, position, end, op, first_symbol, symbol_count, symbols):
    """Return (number, next position) of one value without a size; the next position is -1 for an odd one."""
    value = np.int64(0)
    if op <= ENUM:
        value, position = _varint(buffer, position, end)
        if op == BOOL:
            value = np.int64(1) if value != 0 else np.int64(0)
        elif op == UINT32:
            value &= 0xFFFFFFFF
        elif op == SINT32:
            value &= 0xFFFFFFFF
            value = (value >> 1) ^ -(value & 1)
        elif op == SINT64:
            value = ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1)
        elif op != INT64:
            value = ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
            if op == ENUM and symbol_count >= 0 and position >= 0:
                is_known = False
                for i in range(first_symbol, first_symbol + symbol_count):
                    if symbols[i] == value:
                        is_known = True
                        break
                if not is_known:
                    position = np.int64(-1)
        return value, position
    size = 8 if op == BYTES_8 else 4
    if size > end - position:
        return value, np.int64(-1)
    for i in range(size):
        value |= np.int64(buffer[position + i]) << (8 * i)
    if op == SIGNED_4:
        value = (value ^ 0x80000000) - 0x80000000
    return value, position + size


@inlined
def _wire_type(op):
    if op <= ENUM:
        return VARINT
    if op == BYTES_8:
        return EIGHT
    return FOUR if op <= FLOAT_4 else SIZED


@inlined
def _message(
    buffer, position, end, ops, numbers, repeated, first, children, groups, needs, first_symbols,
    symbol_counts, symbols, keep, base, marks_base, counts, out, marks, nodes, ends, instances, hints, seen,
    writing,
):  # fmt: skip
    """Read one payload; return False for an odd one."""
    depth = 0
    nodes[0], ends[0], instances[0], hints[0] = 0, end, counts[0], 0
    for i in range(seen.shape[1]):
        seen[0, i] = False
    counts[0] += 1
    while depth >= 0:
        node = nodes[depth]
        limit = ends[depth]
        if position == limit:
            for i in range(needs[node]):
                if not seen[depth, i]:
                    return False
            depth -= 1
            continue
        tag, after = _varint(buffer, position, limit)
        if after < 0 or after - position > 5 or tag < 8 or tag > 0xFFFFFFFF:
            return False
        position = after
        wire = tag & 7
        number = tag >> 3
        child = -1
        place = hints[depth]
        for _ in range(children[node]):
            if place >= children[node]:
                place = 0
            if numbers[first[node] + place] == number:
                child = first[node] + place
                break
            place += 1
        if child < 0:
            if needs[node] > 0:
                return False  # an entry of a map with an unexpected field
            position = _skip(buffer, position, limit, wire)
            if position < 0:
                return False
            continue
        # A field is usually followed by the next one, or by itself.
        hints[depth] = place if repeated[child] else place + 1
        op = ops[child]
        group = groups[child]
        if group >= 0:
            if seen[depth, group]:
                return False
            seen[depth, group] = True
        written = writing and keep[child]
        mark = marks_base[child] + instances[depth]
        size = np.int64(0)
        if wire == SIZED:
            size, position = _varint(buffer, position, limit)
            if position < 0 or size < 0 or size > limit - position:
                return False
        if wire == SIZED and op < BYTES:
            if not repeated[child]:
                return False
            stop = position + size
            before = counts[child]
            while position < stop:
                value, position = _scalar(
                    buffer, position, stop, op, first_symbols[child], symbol_counts[child], symbols
                )
                if position < 0:
                    return False
                if written:
                    out[base[child] + counts[child]] = value
                counts[child] += 1
            if written:
                marks[mark] += counts[child] - before
            continue
        if wire != _wire_type(op):
            return False
        if op == MESSAGE:
            if written:
                marks[mark] += 1
            depth += 1
            nodes[depth], ends[depth], instances[depth], hints[depth] = (
                child, position + size, counts[child], 0,
            )  # fmt: skip
            for i in range(seen.shape[1]):
                seen[depth, i] = False
            counts[child] += 1
            continue
        slot = instances[depth]
        if repeated[child]:
            slot = counts[child]
            counts[child] += 1
        if op >= BYTES:
            if not writing and op == TEXT and not _is_text(buffer, position, position + size):
                return False
            if written:
                out[base[child] + 2 * slot] = position
                out[base[child] + 2 * slot + 1] = size
            position += size
        else:
            value, position = _scalar(
                buffer, position, limit, op, first_symbols[child], symbol_counts[child], symbols
            )
            if position < 0:
                return False
            if written:
                out[base[child] + slot] = value
        if written:
            if repeated[child]:
                marks[mark] += 1
            else:
                marks[mark] = 1
    return True


@kernel
def walk(
    buffer, starts, ends, ops, numbers, repeated, first, children, groups, needs, first_symbols,
    symbol_counts, symbols, keep, base, marks_base, depth_max, groups_max, good, counts, out, marks, writing,
):  # fmt: skip
    """Read payload ``i``, ``buffer[starts[i]:ends[i]]``, where ``good[i]``.

    Without ``writing``, count the messages and items of each node, and make ``good`` false where a payload is
    odd; return the number of those, in which case the counts are wrong. With ``writing``, write the numbers
    of a node to ``out`` from ``base`` on: one for each message of a field that is not repeated, otherwise one
    for each item (bytes: start and size). ``marks``, from ``marks_base`` on, has for each message of a field
    whether the field is present, or its number of items.
    """
    nodes = np.zeros(depth_max, np.int64)
    limits = np.zeros(depth_max, np.int64)
    instances = np.zeros(depth_max, np.int64)
    hints = np.zeros(depth_max, np.int64)
    seen = np.zeros((depth_max, groups_max), np.bool_)
    odd = 0
    for i in range(len(starts)):
        if good[i] and not _message(
            buffer, starts[i], ends[i], ops, numbers, repeated, first, children, groups, needs,
            first_symbols, symbol_counts, symbols, keep, base, marks_base, counts, out, marks, nodes, limits,
            instances, hints, seen, writing,
        ):  # fmt: skip
            good[i] = False
            odd += 1
    return odd


# --- writing -------------------------------------------------------------------------------------


@inlined
def _put(out, position, value):
    """Write a varint; return the next position."""
    while value & ~0x7F:
        out[position] = (value & 0x7F) | 0x80
        position += 1
        value = (value >> 7) & 0x01FFFFFFFFFFFFFF
    out[position] = value
    return position + 1


@kernel
def put_numbers(tag, values, present, size, offsets, out):
    """Write each present value after its tag: a varint for size 0, else ``size`` little-endian bytes. ``tag``
    0: no tag, as in a packed field. ``offsets`` gets the bounds of each; return their end."""
    position = np.int64(0)
    for i in range(len(values)):
        if present[i]:
            if tag:
                position = _put(out, position, tag)
            if size == 0:
                position = _put(out, position, values[i])
            else:
                for j in range(size):
                    out[position + j] = (values[i] >> (8 * j)) & 0xFF
                position += size
        offsets[i + 1] = position
    return position


@kernel
def put_sized(tag, starts, ends, data, present, offsets, out):
    """Write each present slice of ``data`` after its tag and size; return the end."""
    position = np.int64(0)
    for i in range(len(starts)):
        if present[i]:
            size = ends[i] - starts[i]
            position = _put(out, position, tag)
            position = _put(out, position, size)
            memcpy(out, position, data, starts[i], size)
            position += size
        offsets[i + 1] = position
    return position
