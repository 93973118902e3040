"""Compiled loop that rewrites JSON payloads to a form that Arrow's parser reads, for `json_text`.

A map ``{"a":1}`` becomes ``[{"key":"a","value":1}]``, and in a field that holds any value as text, an object,
an array, a number or a boolean becomes a string with its text. A payload whose result could differ from that
of Python's parser becomes ``!``, which no parser accepts.
"""

# numba infers the types of these functions; annotations would neither be read nor checked.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

import numpy as np

from geminga.wire.columnar_kernels import inlined as compiled
from geminga.wire.columnar_kernels import kernel, memcpy

TEXT, RECORD, ARRAY, MAP = range(4)
"""Operations of the nodes that are rewritten or contain such nodes; all other values are copied."""
COPIED = -1
"""Number of the node of such values."""
DEPTH_MAX = 64
KEYS_MAX = 256
"""Maximum keys of the open maps and text objects of a payload: each is compared with all in its object."""
GROWTH_MAX = 5
"""Maximum bytes written for a byte read, apart from `ROOM` for each payload. An entry of a map has 5 bytes
at the least (``"":0,``), and 16 more are written."""
ROOM = 16
_QUOTE, _BACKSLASH, _COMMA, _COLON, _ZERO, _MINUS, _DOT = 34, 92, 44, 58, 48, 45, 46
_OPEN_LIST, _CLOSE_LIST, _OPEN, _CLOSE = 91, 93, 123, 125
_ESCAPES = (34, 92, 98, 102, 110, 114, 116)
"""Escaped characters that Python's encoder writes in the same way."""
_KEY, _VALUE = np.frombuffer(b'{"key":', np.uint8), np.frombuffer(b',"value":', np.uint8)
_WORDS = np.frombuffer(b"nulltruefalse", np.uint8)
_DIGITS_MAX, _DECIMALS_MAX = 100, 6
"""Maximum digits before and after the point of a number that Python writes with the same digits."""


@compiled
def _blank_end(data, at, end):
    while at < end and data[at] in (32, 10, 13, 9):
        at += 1
    return at


@compiled
def _string_end(data, at, end):
    """Return the end of the string that begins at ``at``, or -1 if Python could write it otherwise."""
    at += 1
    while at < end and data[at] != _QUOTE:
        if data[at] < 32:
            return -1
        if data[at] == _BACKSLASH:
            at += 1
            if at == end or data[at] not in _ESCAPES:
                return -1
        at += 1
    return at + 1 if at < end else -1


@compiled
def _raw_string_end(data, at, end):
    """Return the end of the string that begins at ``at``, or -1; its escapes are not checked."""
    at += 1
    while at < end and data[at] != _QUOTE:
        at += 2 if data[at] == _BACKSLASH else 1
    return at + 1 if at < end else -1


@compiled
def _equal(data, start, size, other, other_start):
    i = 0
    while i < size and data[start + i] == other[other_start + i]:
        i += 1
    return i == size


@compiled
def _is_word(data, start, end):
    size = end - start
    return (size == 4 and (_equal(data, start, 4, _WORDS, 0) or _equal(data, start, 4, _WORDS, 4))) or (
        size == 5 and _equal(data, start, 5, _WORDS, 8)
    )


@compiled
def _is_number(data, at, end):
    """Return whether this is a number that Python writes with the same digits."""
    start = at
    if at < end and data[at] == _MINUS:
        at += 1
    first = at
    while at < end and data[at] >= _ZERO and data[at] < _COLON:
        at += 1
    if at == first or at - first > _DIGITS_MAX or (data[first] == _ZERO and at - first > 1):
        return False
    if at == end:
        return data[start] != _MINUS or data[first] != _ZERO
    point = at
    at += 1
    while at < end and data[at] >= _ZERO and data[at] < _COLON:
        at += 1
    return data[point] == _DOT and at == end and 1 < at - point <= _DECIMALS_MAX + 1


@compiled
def _put(data, start, end, out, position, is_quoted):
    """Write a token; inside of a string, with its quotation marks and backslashes escaped."""
    if not is_quoted:
        memcpy(out, position, data, start, end - start)
        return position + end - start
    for i in range(start, end):
        if data[i] == _QUOTE or data[i] == _BACKSLASH:
            out[position] = _BACKSLASH
            position += 1
        out[position] = data[i]
        position += 1
    return position


@compiled
def _byte(out, position, value):
    out[position] = value
    return position + 1


@compiled
def _scalar(data, start, end, op, is_quoted, out, position):
    """Write a value that is no container; return (its end, or -1, and the end of what is written)."""
    if data[start] == _QUOTE:
        at = _string_end(data, start, end) if is_quoted else _raw_string_end(data, start, end)
        if at < 0 or op > TEXT:
            return -1, position
        return at, _put(data, start, at, out, position, is_quoted)
    at = start
    while at < end and data[at] not in (_COMMA, _CLOSE, _CLOSE_LIST, 32, 10, 13, 9):
        at += 1
    is_null = at - start == 4 and _equal(data, start, 4, _WORDS, 0)
    if op > TEXT and not is_null:
        return -1, position
    is_text = is_quoted or op == TEXT
    if is_text and not (_is_word(data, start, at) or _is_number(data, start, at)):
        return -1, position
    wraps = op == TEXT and not is_null
    if wraps:
        position = _byte(out, position, _QUOTE)
    position = _put(data, start, at, out, position, is_quoted)
    return at, _byte(out, position, _QUOTE) if wraps else position


@compiled
def _is_known(data, start, end, keys, first, known):
    """Return whether a key is among those from ``first`` to ``known``."""
    for i in range(first, known):
        if keys[i, 1] - keys[i, 0] == end - start and _equal(data, start, end - start, data, keys[i, 0]):
            return True
    return False


@compiled
def _child(data, start, end, node, first, children, names, bounds):
    """Return the number of the node of a record's key."""
    for i in range(first[node], first[node + 1]):
        size = bounds[i + 1] - bounds[i]
        if size == end - start and _equal(data, start, size, names, bounds[i]):
            return children[i]
    return COPIED


@compiled
def _key(data, start, end, op, is_quoted, out, position):
    """Write a key and its colon; return (the end of both, or -1, the end of the key, and that of what is
    written)."""
    if start == end or data[start] != _QUOTE:
        return -1, -1, position
    is_copied = not is_quoted and op < 0
    key_end = _raw_string_end(data, start, end) if is_copied else _string_end(data, start, end)
    at = _blank_end(data, key_end, end) if key_end > 0 else end
    if at == end or data[at] != _COLON:
        return -1, -1, position
    if op == MAP:
        position = _put(_KEY, 0, len(_KEY), out, position, False)
    position = _put(data, start, key_end, out, position, is_quoted)
    if op == MAP:
        return at + 1, key_end, _put(_VALUE, 0, len(_VALUE), out, position, False)
    return at + 1, key_end, _byte(out, position, _COLON)


@compiled
def _payload(data, at, end, nodes, out, position, buffers):
    """Write a payload; return the end of what is written, or -1."""
    ops, first, children, names, bounds = nodes
    stack, closing, base, keys = buffers
    node, depth, quoted_from, known = np.int64(0), -1, DEPTH_MAX, np.int64(0)
    while True:
        at = _blank_end(data, at, end)
        if at == end:
            return -1
        op = -1 if depth >= quoted_from or node < 0 else ops[node]
        is_open = data[at] in (_OPEN, _OPEN_LIST)
        if is_open:
            if depth + 1 == DEPTH_MAX or (op > TEXT and (op == ARRAY) != (data[at] == _OPEN_LIST)):
                return -1
            depth += 1
            if op == TEXT:
                position = _byte(out, position, _QUOTE)
                quoted_from = depth
            stack[depth], closing[depth], base[depth] = node, data[at] + 2, known
            position = _byte(out, position, _OPEN_LIST if op == MAP else data[at])
            at += 1
        else:
            at, position = _scalar(data, at, end, op, depth >= quoted_from, out, position)
            if at < 0:
                return -1
        # After a value, or after an opening bracket: close containers until there is another value.
        while True:
            at = _blank_end(data, at, end)
            if depth < 0 or at == end:
                return position if depth < 0 and at == end else -1
            is_quoted, node = depth >= quoted_from, stack[depth]
            op = -1 if is_quoted or node < 0 else ops[node]
            if op == MAP and not is_open:
                position = _byte(out, position, _CLOSE)
            if data[at] != closing[depth]:
                break
            position = _byte(out, position, _CLOSE_LIST if op == MAP else data[at])
            if depth == quoted_from:
                position = _byte(out, position, _QUOTE)
                quoted_from = DEPTH_MAX
            known, depth, at, is_open = base[depth], depth - 1, at + 1, False
        if not is_open:
            if data[at] != _COMMA:
                return -1
            position = _byte(out, position, _COMMA)
            at = _blank_end(data, at + 1, end)
        if closing[depth] == _CLOSE:
            start = at
            at, key_end, position = _key(data, start, end, op, is_quoted, out, position)
            if at < 0:
                return -1
            if is_quoted or op == MAP:
                if known == KEYS_MAX or _is_known(data, start, key_end, keys, base[depth], known):
                    return -1
                keys[known, 0], keys[known, 1] = start, key_end
                known += 1
        if op == RECORD:
            node = _child(data, start, key_end, node, first, children, names, bounds)
        else:
            node = children[first[node]] if op > RECORD else COPIED


@kernel
def rewrite(data, starts, ends, nodes, out, offsets):
    """Write payload after payload to ``out``; ``offsets`` has their bounds.

    ``nodes``, numbered from 0, the root: their operations, the bounds of each one's children, these children,
    their keys as JSON texts, and the keys' bounds.
    """
    buffers = (
        np.zeros(DEPTH_MAX, np.int64), np.zeros(DEPTH_MAX, np.uint8), np.zeros(DEPTH_MAX, np.int64),
        np.zeros((KEYS_MAX, 2), np.int64),
    )  # fmt: skip
    position = np.int64(0)
    for row in range(len(starts)):
        done = _payload(data, starts[row], ends[row], nodes, out, position, buffers)
        position = _byte(out, position, 33) if done < 0 else done
        offsets[row + 1] = position
