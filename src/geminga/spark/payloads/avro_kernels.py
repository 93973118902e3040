"""Compiled loops over Avro payloads, for `geminga.spark.payloads.avro` and `avro_writing`.

A definition is a table of nodes; the loop reads each payload along it and appends each value to its node's
own numbers. It runs twice: first to count and to find damaged payloads, then to write. Nothing is recursive,
and no size in a payload is trusted before its bytes are verified to be there.
"""

# numba infers the types of these functions; annotations would neither be read nor checked.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, assignment"

import numpy as np

from geminga.wire.columnar_kernels import inlined as compiled
from geminga.wire.columnar_kernels import inlined_first as inlined
from geminga.wire.columnar_kernels import kernel, memcpy

(NULL, BOOLEAN, INT, LONG, MILLIS, FLOAT, DOUBLE, BYTES, FIXED, DECIMAL, ENUM, RECORD, ARRAY, MAP, UNION) = (
    range(15)
)
"""Operations. A leaf appends one number, BYTES and FIXED two (start and size), DECIMAL two (the low and the
high 8 bytes of its unscaled value); ARRAY and MAP append how many items they have, UNION its branch; RECORD
and NULL append nothing. MILLIS is a LONG of milliseconds that appends microseconds.

The argument of DECIMAL is its precision plus 64 times the size of its fixed, 0 for bytes."""

_POWERS_LOW = np.array([10**digits & 0xFFFFFFFFFFFFFFFF for digits in range(39)], np.uint64)
_POWERS_HIGH = np.array([10**digits >> 64 for digits in range(39)], np.uint64)
_MILLIS_MAX = (1 << 63) // 1000

FREE_ITEMS = 1024
"""Maximum array items of one payload beyond its bytes: items of types without bytes."""


@inlined
def _number(buffer, position, end):
    """Return (value, next position) of a zigzag varint; the next position is -1 for damage."""
    value = np.int64(0)
    shift = np.int64(0)
    while position < end and shift < 64:
        byte = np.int64(buffer[position])
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position
        shift += 7
    return np.int64(0), np.int64(-1)


@inlined
def _little_endian(buffer, position, size):
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(buffer[position + i]) << (8 * i)
    return value


@compiled
def _unscaled(buffer, position, size, precision):
    """Return (low, high, next position) of a big-endian integer; -1 for one with more digits."""
    fill = np.int64(-1 if size > 0 and buffer[position] >= 0x80 else 0)
    low, high = fill, fill
    for i in range(size):
        byte = np.int64(buffer[position + i])
        if size - i > 16 and byte != fill & 0xFF:
            return low, high, np.int64(-1)
        high = (high << 8) | ((low >> 56) & 0xFF)
        low = (low << 8) | byte
    if (high ^ fill) < 0:
        return low, high, np.int64(-1)
    magnitude_low, magnitude_high = np.uint64(low), np.uint64(high)
    if fill:
        magnitude_low, magnitude_high = np.uint64(-low), np.uint64(~high + (1 if low == 0 else 0))
    if magnitude_high > _POWERS_HIGH[precision] or (
        magnitude_high == _POWERS_HIGH[precision] and magnitude_low >= _POWERS_LOW[precision]
    ):
        return low, high, np.int64(-1)
    return low, high, position + size


@inlined
def _leaf(buffer, position, end, op, argument):
    """Return (number, size of its bytes, next position) of one leaf; the next position is -1 for damage."""
    value = np.int64(0)
    size = np.int64(0)
    if op in (INT, LONG, MILLIS, ENUM):
        value, position = _number(buffer, position, end)
        if (
            (op == INT and (value > 2147483647 or value < -2147483648))
            or (op == ENUM and (value < 0 or value >= argument))
            or (op == MILLIS and (value >= _MILLIS_MAX or value <= -_MILLIS_MAX))
        ):
            position = np.int64(-1)
        elif op == MILLIS:
            value *= 1000
    elif op == DECIMAL:
        size = np.int64(argument >> 6)
        if size == 0:
            size, position = _number(buffer, position, end)
        if position < 0 or size < 0 or size > end - position:
            position = np.int64(-1)
        else:
            value, size, position = _unscaled(buffer, position, size, argument & 63)
    elif op in (BYTES, FIXED):
        size = np.int64(argument)
        if op == BYTES:
            size, position = _number(buffer, position, end)
        value = position
        if position < 0 or size < 0 or size > end - position:
            position = np.int64(-1)
        else:
            position += size
    elif op == BOOLEAN:
        if position >= end or buffer[position] > 1:
            position = np.int64(-1)
        else:
            value = np.int64(buffer[position])
            position += 1
    elif op != NULL:
        width = np.int64(4 if op == FLOAT else 8)
        if width > end - position:
            position = np.int64(-1)
        else:
            value = _little_endian(buffer, position, width)
            position += width
    return value, size, position


@inlined
def _value(
    buffer, position, end, ops, arguments, first, children, keep, base, counts, out, stack, left, writing
):  # fmt: skip
    """Read one payload; return the position of its end, -1 for damage."""
    items_left = end - position + FREE_ITEMS
    depth = -1
    node = 0
    while node >= 0:
        op = ops[node]
        if op < RECORD:
            value, size, position = _leaf(buffer, position, end, op, arguments[node])
            if position < 0:
                break
            if writing and keep[node]:
                if op in (BYTES, FIXED, DECIMAL):
                    place = base[node] + 2 * counts[node]
                    out[place] = value
                    out[place + 1] = size
                elif op != NULL:
                    out[base[node] + counts[node]] = value
            counts[node] += 1
        elif op == UNION:
            value, position = _number(buffer, position, end)
            if position < 0 or value < 0 or value >= arguments[node]:
                position = np.int64(-1)
                break
            if writing and keep[node]:
                out[base[node] + counts[node]] = value
            counts[node] += 1
            node = children[first[node] + value]
            continue
        else:
            depth += 1
            stack[depth] = node
            left[depth] = 0
            if op != RECORD and writing and keep[node]:
                out[base[node] + counts[node]] = 0
            counts[node] += 1
        # Continue with the innermost open type that has values left.
        node = -1
        while depth >= 0 and node < 0:
            open_node = stack[depth]
            op = ops[open_node]
            if op == RECORD:
                if left[depth] == arguments[open_node]:
                    depth -= 1
                else:
                    node = children[first[open_node] + left[depth]]
                    left[depth] += 1
                continue
            if left[depth] == 0:
                count, position = _number(buffer, position, end)
                if position >= 0 and count < 0:
                    count = -count
                    size, position = _number(buffer, position, end)
                    if size < 0 or size > end - position:
                        position = np.int64(-1)
                if position < 0 or count < 0 or count > items_left:
                    return np.int64(-1)
                if count == 0:
                    depth -= 1
                    continue
                items_left -= count
                left[depth] = count
                if writing and keep[open_node]:
                    out[base[open_node] + counts[open_node] - 1] += count
            left[depth] -= 1
            node = children[first[open_node]]
            if op == MAP:
                value, size, position = _leaf(buffer, position, end, BYTES, 0)
                if position < 0:
                    return position
                if writing and keep[node]:
                    place = base[node] + 2 * counts[node]
                    out[place] = value
                    out[place + 1] = size
                counts[node] += 1
                node = children[first[open_node] + 1]
    return position


@kernel
def walk(
    buffer, starts, ends, ops, arguments, first, children, keep, base, good, counts, out, writing
):  # fmt: skip
    """Read payload ``i``, ``buffer[starts[i]:ends[i]]``, where ``good[i]``.

    Without ``writing``, count the numbers that each node appends, and make ``good`` false where a payload is
    damaged or has bytes left over; return the number of those, in which case the counts are wrong. With
    ``writing``, write the numbers to ``out``, those of a node from ``base`` on, where ``keep``.
    """
    stack = np.zeros(len(ops) + 1, np.int64)
    left = np.zeros(len(ops) + 1, np.int64)
    damaged = 0
    for i in range(len(starts)):
        if good[i]:
            position = _value(
                buffer, starts[i], ends[i], ops, arguments, first, children, keep, base, counts, out, stack,
                left, writing,
            )  # fmt: skip
            if position != ends[i]:
                good[i] = False
                damaged += 1
    return damaged


@inlined
def _put(out, position, value):
    """Write a zigzag varint; return the next position."""
    rest = (value << 1) ^ (value >> 63)
    while rest & ~0x7F:
        out[position] = (rest & 0x7F) | 0x80
        position += 1
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
    out[position] = rest
    return position + 1


@compiled
def _put_unscaled(out, position, size, low, high):
    """Write an integer in ``size`` big-endian bytes; for ``size`` 0 in the fewest, after their number."""
    if size == 0:
        size = 1
        while size < 16 and not (
            (low >> (8 * size - 1) in (0, -1) and high == low >> 63)
            if size < 9
            else high >> (8 * (size - 8) - 1) in (0, -1)
        ):
            size += 1
        position = _put(out, position, size)
    for i in range(size - 1, -1, -1):
        if i < 8:
            out[position] = (low >> (8 * i)) & 0xFF
        else:
            out[position] = (high >> min(8 * (i - 8), 63)) & 0xFF
        position += 1
    return position


@inlined
def _put_leaf(out, position, op, argument, numbers, place, data):
    if op in (INT, LONG, MILLIS, ENUM):
        return _put(out, position, numbers[place])
    if op == DECIMAL:
        return _put_unscaled(out, position, np.int64(argument >> 6), numbers[place], numbers[place + 1])
    if op == BOOLEAN:
        out[position] = numbers[place]
        return position + 1
    if op in (FLOAT, DOUBLE):
        size = 4 if op == FLOAT else 8
        for i in range(size):
            out[position + i] = (numbers[place] >> (8 * i)) & 0xFF
        return position + size
    if op in (BYTES, FIXED):
        start = numbers[place]
        size = numbers[place + 1]
        if op == BYTES:
            position = _put(out, position, size)
        memcpy(out, position, data, start, size)
        return position + size
    return position


@kernel
def write(numbers, data, base, ops, arguments, first, children, offsets, out):
    """Write payload after payload to ``out``; ``offsets`` has their bounds.

    ``numbers`` has, from ``base`` on, the numbers that each node appends when payloads are read; those of
    BYTES and FIXED refer to ``data``.
    """
    stack = np.zeros(len(ops) + 1, np.int64)
    left = np.zeros(len(ops) + 1, np.int64)
    at = base.copy()
    position = np.int64(0)
    for row in range(len(offsets) - 1):
        depth = -1
        node = 0
        while True:
            op = ops[node]
            if op == UNION:
                branch = numbers[at[node]]
                at[node] += 1
                position = _put(out, position, branch)
                node = children[first[node] + branch]
                continue
            if op >= RECORD:
                depth += 1
                stack[depth] = node
                left[depth] = arguments[node]
                if op != RECORD:
                    left[depth] = numbers[at[node]]
                    at[node] += 1
                    if left[depth] > 0:
                        position = _put(out, position, left[depth])
            else:
                position = _put_leaf(out, position, op, arguments[node], numbers, at[node], data)
                at[node] += 2 if op in (BYTES, FIXED, DECIMAL) else 1
            node = -1
            while depth >= 0 and node < 0:
                open_node = stack[depth]
                op = ops[open_node]
                if left[depth] == 0:
                    if op != RECORD:
                        out[position] = 0
                        position += 1
                    depth -= 1
                    continue
                if op == RECORD:
                    node = children[first[open_node] + arguments[open_node] - left[depth]]
                elif op == ARRAY:
                    node = children[first[open_node]]
                else:
                    keys = children[first[open_node]]
                    position = _put_leaf(out, position, BYTES, 0, numbers, at[keys], data)
                    at[keys] += 2
                    node = children[first[open_node] + 1]
                left[depth] -= 1
            if node < 0:
                break
        offsets[row + 1] = position
