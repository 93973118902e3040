"""Compiled loops over whole batches of messages, for `geminga.wire.columnar`.

Pulsar's batch layout is a chain of varints, so that every step depends on the one before it: array operations
cannot split it. numba compiles these loops at first use, which takes some seconds, and caches them on disk
(``docs/decisions/columnar-kernels.md`` has the figures). Without numba, or with ``NUMBA_DISABLE_JIT=1``,
Python runs them as they are, a hundred times slower.

Every offset is an ``int64`` index into one flat ``uint8`` buffer. Kernels never raise: they return ``-1`` for
success or the index of the damaged entry, which the caller names.
"""

# numba infers the types of these functions; annotations would neither be read nor checked.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg"

import importlib
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from geminga.wire import columnar_fields as col

numba: Any = None
with suppress(ImportError):
    numba = importlib.import_module("numba")

F = TypeVar("F", bound=Callable[..., Any])

COMPILES = numba is not None and not numba.config.DISABLE_JIT

KEPT = True
"""Whether compiled code is cached on disk."""


def kernel(function: F) -> F:
    """Compile a function that Python calls; cache it on disk, if a folder is writable."""
    global KEPT
    if not COMPILES:
        # As in compiled loops, numbers wrap around.
        return np.errstate(over="ignore")(function)
    # nogil: several tasks of one process decode side by side.
    try:
        compiled: F = numba.njit(function, cache=True, nogil=True)
    except RuntimeError:
        # Neither the package's folder nor the user's cache can be written: compile in every process.
        compiled = numba.njit(function, nogil=True)
        if KEPT:
            logging.getLogger("geminga").warning(
                "loops over tables cannot be cached, so every process compiles them, which takes some "
                "seconds. Set NUMBA_CACHE_DIR to a writable folder, or NUMBA_DISABLE_JIT=1 to run them "
                "without a compiler, which is slower"
            )
        KEPT = False
    return compiled


def inlined(function: F) -> F:
    """Compile a function that only kernels call: it is inlined in them, and needs no cache of its own."""
    compiled: F = numba.njit(function, nogil=True) if COMPILES else function
    return compiled


def inlined_first(function: F) -> F:
    """As `inlined`, but inlined before types are inferred: passing a dozen arrays to each call takes longer
    than most of these functions."""
    compiled: F = numba.njit(function, nogil=True, inline="always") if COMPILES else function
    return compiled


def memcpy(out, position, buffer, start, size):
    """``out[position:position + size] = buffer[start:start + size]`` for arrays that never overlap."""
    out[position : position + size] = buffer[start : start + size]


if COMPILES:
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    @intrinsic
    def memcpy(typing_context, out, position, buffer, start, size):
        """Compile to a call of ``memcpy``: numba's handling of negative indexes makes a loop over the bytes
        ten times slower."""

        def generate(context, builder, signature, arguments):
            target = context.make_array(signature.args[0])(context, builder, arguments[0])
            source = context.make_array(signature.args[2])(context, builder, arguments[2])
            cgutils.raw_memcpy(
                builder,
                builder.gep(target.data, [arguments[1]]),
                builder.gep(source.data, [arguments[3]]),
                arguments[4],
                1,
            )
            return context.get_dummy_value()

        return types.void(out, types.int64, buffer, types.int64, types.int64), generate


_MAGIC_CHECKSUM = 0x0E01
_MAGIC_BROKER = 0x0E02


@inlined
def read_varint(buffer, position, end):
    """Return (value as int64, next position); next position is -1 when the varint is cut or too long."""
    value = np.int64(0)
    shift = np.int64(0)
    while position < end and shift < 70:
        byte = np.int64(buffer[position])
        position += 1
        if shift < 64:
            value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    return value, np.int64(-1)


@inlined
def read_number(buffer, position, end):
    """As `read_varint`, which this inlines for numbers of one byte: nearly all have one."""
    if position < end and buffer[position] < 0x80:
        return np.int64(buffer[position]), position + 1
    return read_varint(buffer, position, end)


@inlined_first
def read_field(buffer, position, end):
    """Return (number, wire type, value, next position) of the field at ``position``.

    Of bytes, the value is their size, and the next position their start. The next position is -1 if the field
    is cut or of an unknown wire type.
    """
    tag, position = read_number(buffer, position, end)
    value = np.int64(0)
    wire_type = tag & 7
    if position < 0:
        pass
    elif wire_type == 0:
        value, position = read_number(buffer, position, end)
    elif wire_type == 2:
        value, position = read_number(buffer, position, end)
        if value < 0 or value > end - position:
            position = np.int64(-1)
    elif wire_type == 1 and end - position >= 8:
        position += 8
    elif wire_type == 5 and end - position >= 4:
        position += 4
    else:
        position = np.int64(-1)
    return tag >> 3, wire_type, value, position


@inlined
def _big_endian_16(buffer, position):
    return (np.int64(buffer[position]) << 8) | np.int64(buffer[position + 1])


@inlined
def big_endian_32(buffer, position):
    return (
        (np.int64(buffer[position]) << 24)
        | (np.int64(buffer[position + 1]) << 16)
        | (np.int64(buffer[position + 2]) << 8)
        | np.int64(buffer[position + 3])
    )


@inlined
def put_big_endian_32(out, position, value):
    out[position] = (value >> 24) & 0xFF
    out[position + 1] = (value >> 16) & 0xFF
    out[position + 2] = (value >> 8) & 0xFF
    out[position + 3] = value & 0xFF


@inlined
def _parse_head_metadata(buffer, position, end, head):
    """Read the fields of ``MessageMetadata`` that decide how an entry is decoded."""
    seen = 0
    while position < end:
        field, wire_type, value, position = read_field(buffer, position, end)
        if position < 0:
            return False
        if wire_type == 0:
            if field == 2:
                head[col.SEQUENCE_ID] = value
                seen |= 2
            elif field == 3:
                head[col.PUBLISH_TIME] = value
                seen |= 4
            elif field == 8:
                head[col.COMPRESSION] = value
            elif field == 9:
                head[col.UNCOMPRESSED_SIZE] = value
            elif field == 11:
                if value < 1:
                    return False
                head[col.BATCH_COUNT] = value
            elif field == 20:
                head[col.MARKER_TYPE] = value
            elif field == 27:
                head[col.CHUNK_COUNT] = value
            elif field == 28:
                head[col.CHUNKED_SIZE] = value
            elif field == 29:
                head[col.CHUNK_ID] = value
        elif wire_type == 2:
            if field == 1:
                head[col.PRODUCER_START] = position
                head[col.PRODUCER_SIZE] = value
                seen |= 1
            elif field == 13:
                head[col.IS_ENCRYPTED] = 1
            elif field == 16:
                head[col.SCHEMA_VERSION_START] = position
                head[col.SCHEMA_VERSION_SIZE] = value
            elif field == 26:
                head[col.UUID_START] = position
                head[col.UUID_SIZE] = value
            position += value
    return seen == 7


@kernel
def parse_heads(buffer, bounds, heads):
    """Read entry ``i``, ``bounds[i]:bounds[i + 1]``, into ``heads[i]``."""
    for i in range(len(bounds) - 1):
        position = bounds[i]
        end = bounds[i + 1]
        head = heads[i]
        head[:] = 0
        head[col.CHECKSUM] = -1
        head[col.BATCH_COUNT] = -1
        head[col.MARKER_TYPE] = -1
        head[col.CHUNK_ID] = -1
        if end - position >= 6 and _big_endian_16(buffer, position) == _MAGIC_BROKER:
            size = big_endian_32(buffer, position + 2)
            position += 6
            if size > end - position:
                return i
            position += size
        if end - position >= 6 and _big_endian_16(buffer, position) == _MAGIC_CHECKSUM:
            head[col.CHECKSUM] = big_endian_32(buffer, position + 2)
            position += 6
        head[col.CHECKSUM_START] = position
        if end - position < 4:
            return i
        size = big_endian_32(buffer, position)
        position += 4
        if size > end - position:
            return i
        head[col.METADATA_START] = position
        head[col.PAYLOAD_START] = position + size
        head[col.PAYLOAD_END] = end
        if not _parse_head_metadata(buffer, position, position + size, head):
            return i
    return -1


@inlined_first
def _property_sizes(buffer, position, end):
    """(key start, key size, value start, value size) of one ``KeyValue``; key start -1 if damaged."""
    key_start = value_start = np.int64(-1)
    key_size = value_size = np.int64(0)
    while position < end:
        field, wire_type, size, position = read_field(buffer, position, end)
        if position < 0:
            return np.int64(-1), key_size, value_start, value_size
        if wire_type == 2:
            if field == 1:
                key_start, key_size = position, size
            elif field == 2:
                value_start, value_size = position, size
            position += size
    if value_start < 0:
        key_start = np.int64(-1)
    return key_start, key_size, value_start, value_size


@inlined
def _parse_message_metadata(buffer, position, end, outer, message):
    """Read a message's own fields; returns (ok, compacted out).

    ``outer`` tells a plain message's ``MessageMetadata`` from a ``SingleMessageMetadata``: the same
    fields under other numbers. ``message[col.VALUE_SIZE]`` becomes the announced payload size (-1 when
    missing), or -2 for a null value.
    """
    if outer:
        properties, key, event_time, base64, ordering_key, null_value = 4, 6, 12, 17, 18, 25
        payload_size, sequence_id, compacted_out, null_key = -1, -1, -1, 30
    else:
        properties, key, event_time, base64, ordering_key, null_value = 1, 2, 5, 6, 7, 9
        payload_size, sequence_id, compacted_out, null_key = 3, 8, 4, 10
    start = position
    compacted = False
    is_null = False
    key_is_null = False
    announced = np.int64(-1)
    message[col.KEY_SIZE] = -1
    message[col.KEY_IS_BASE64] = 0
    message[col.ORDERING_KEY_SIZE] = -1
    message[col.EVENT_TIME] = 0
    message[col.PROPERTY_COUNT] = 0
    message[col.PROPERTY_KEY_BYTES] = 0
    message[col.PROPERTY_VALUE_BYTES] = 0
    message[col.PROPERTIES_START] = start
    message[col.PROPERTIES_END] = end
    message[col.PROPERTY_FIELD] = properties
    while position < end:
        field, wire_type, value, position = read_field(buffer, position, end)
        if position < 0:
            return False, False
        if wire_type == 0:
            if field == payload_size:
                announced = value
                if value < 0:
                    return False, False
            elif field == sequence_id:
                message[col.MESSAGE_SEQUENCE_ID] = value
            elif field == event_time:
                message[col.EVENT_TIME] = value
            elif field == base64:
                message[col.KEY_IS_BASE64] = value
            elif field == null_value:
                is_null = value != 0
            elif field == compacted_out:
                compacted = value != 0
            elif field == null_key:
                key_is_null = value != 0
        elif wire_type == 2:
            if field == key:
                message[col.KEY_START] = position
                message[col.KEY_SIZE] = value
            elif field == ordering_key:
                message[col.ORDERING_KEY_START] = position
                message[col.ORDERING_KEY_SIZE] = value
            elif field == properties:
                key_start, key_size, _, value_size = _property_sizes(buffer, position, position + value)
                if key_start < 0:
                    return False, False
                message[col.PROPERTY_COUNT] += 1
                message[col.PROPERTY_KEY_BYTES] += key_size
                message[col.PROPERTY_VALUE_BYTES] += value_size
            position += value
    if key_is_null:
        message[col.KEY_SIZE] = -1
    message[col.VALUE_SIZE] = -2 if is_null else announced
    # A null value should announce no bytes; what it does announce must still be stepped over.
    message[col.VALUE_START] = announced
    return True, compacted


@inlined
def _plain_metadata(buffer, position, end):
    """(payload size, sequence id or -1) of metadata that holds nothing else; payload size -1 otherwise.

    Nearly all messages of most topics look like this: it saves half of the scan.
    """
    if end - position < 2 or buffer[position] != 0x18:
        return np.int64(-1), np.int64(-1)
    payload_size = np.int64(buffer[position + 1])
    position += 2
    if payload_size >= 0x80:
        payload_size, position = read_varint(buffer, position - 1, end)
        if position < 0 or payload_size < 0:
            return np.int64(-1), np.int64(-1)
    if position == end:
        return payload_size, np.int64(-1)
    if buffer[position] != 0x40:
        return np.int64(-1), np.int64(-1)
    sequence_id, position = read_varint(buffer, position + 1, end)
    if position != end or sequence_id < 0:
        return np.int64(-1), np.int64(-1)
    return payload_size, sequence_id


@inlined
def _clear(message):
    """A message with neither key nor properties nor event time."""
    message[:] = 0
    message[col.KEY_SIZE] = -1
    message[col.ORDERING_KEY_SIZE] = -1


@inlined
def _store(message, fields, rows, row):
    for slot in range(len(fields)):
        rows[slot, row] = message[fields[slot]]


@inlined
def _is_acknowledged(ack_words, first, last, index):
    """Return whether ``index`` is missing in the java.util.BitSet ``ack_words[first:last]``."""
    if first == last:
        return False
    word = first + (index >> 6)
    return word >= last or (ack_words[word] >> (index & 63)) & 1 == 0


@kernel
def scan_messages(buffer, data, heads, ack_words, ack_bounds, fields, rows, counts):
    """Walk the messages of every entry and keep the wanted fields of those to deliver.

    ``data[i]`` is the (start, end) of entry ``i``'s uncompressed payload in ``buffer``, with a start of
    -1 for an entry that delivers nothing. ``rows[i]`` takes the field ``fields[i]`` of every message.
    ``counts[i]`` becomes the number of messages delivered from entry ``i``. Returns (number of rows,
    index of a damaged entry or -1).
    """
    row = 0
    message = np.zeros(col.MESSAGE_FIELDS, np.int64)
    is_clear = False
    for i in range(len(heads)):
        counts[i] = 0
        position = data[i, 0]
        end = data[i, 1]
        if position < 0:
            continue
        first_word = ack_bounds[i]
        last_word = ack_bounds[i + 1]
        batch_count = heads[i, col.BATCH_COUNT]
        message[col.MESSAGE_SEQUENCE_ID] = heads[i, col.SEQUENCE_ID]
        if batch_count < 0:
            is_clear = False
            ok, _ = _parse_message_metadata(
                buffer, heads[i, col.METADATA_START], heads[i, col.PAYLOAD_START], True, message
            )
            if not ok:
                return row, i
            message[col.BATCH_INDEX] = -1
            message[col.VALUE_START] = position
            message[col.VALUE_SIZE] = -1 if message[col.VALUE_SIZE] == -2 else end - position
            _store(message, fields, rows, row)
            row += 1
            counts[i] = 1
            continue
        delivered = 0
        for index in range(batch_count):
            if end - position < 4:
                return row, i
            size = big_endian_32(buffer, position)
            position += 4
            if size > end - position:
                return row, i
            payload_size, sequence_id = _plain_metadata(buffer, position, position + size)
            if payload_size >= 0:
                if not is_clear:
                    _clear(message)
                    is_clear = True
                message[col.MESSAGE_SEQUENCE_ID] = (
                    sequence_id if sequence_id >= 0 else heads[i, col.SEQUENCE_ID]
                )
                compacted = False
                is_null = False
            else:
                is_clear = False
                message[col.MESSAGE_SEQUENCE_ID] = heads[i, col.SEQUENCE_ID]
                ok, compacted = _parse_message_metadata(buffer, position, position + size, False, message)
                if not ok:
                    return row, i
                is_null = message[col.VALUE_SIZE] == -2
                payload_size = message[col.VALUE_START] if is_null else message[col.VALUE_SIZE]
            position += size
            if payload_size < 0 or payload_size > end - position:
                return row, i
            message[col.VALUE_START] = position
            message[col.VALUE_SIZE] = -1 if is_null else payload_size
            position += payload_size
            if compacted or _is_acknowledged(ack_words, first_word, last_word, index):
                continue
            message[col.BATCH_INDEX] = index
            _store(message, fields, rows, row)
            row += 1
            delivered += 1
        if position != end:
            return row, i
        counts[i] = delivered
    return row, -1


@kernel
def gather(buffer, starts, sizes, offsets, out):
    """Copy ``buffer[starts[i]:][:sizes[i]]`` one after the other into ``out``; fills ``offsets``."""
    position = 0
    offsets[0] = 0
    for i in range(len(starts)):
        size = sizes[i]
        if size > 0:
            memcpy(out, position, buffer, starts[i], size)
            position += size
        offsets[i + 1] = position


@kernel
def gather_properties(buffer, starts, ends, fields, counts, row_offsets, keys, values):
    """Fill an Arrow map: a slot a property, in the order of the wire.

    ``keys`` and ``values``: (offsets, bytes).
    """
    key_offsets, key_bytes = keys
    value_offsets, value_bytes = values
    slot = 0
    key_position = 0
    value_position = 0
    row_offsets[0] = 0
    key_offsets[0] = 0
    value_offsets[0] = 0
    for i in range(len(starts)):
        left = counts[i]
        position = starts[i]
        while left > 0 and position < ends[i]:
            field, wire_type, size, position = read_field(buffer, position, ends[i])
            if wire_type != 2:
                continue
            if field == fields[i]:
                key_start, key_size, value_start, value_size = _property_sizes(
                    buffer, position, position + size
                )
                memcpy(key_bytes, key_position, buffer, key_start, key_size)
                memcpy(value_bytes, value_position, buffer, value_start, value_size)
                key_position += key_size
                value_position += value_size
                slot += 1
                key_offsets[slot] = key_position
                value_offsets[slot] = value_position
                left -= 1
            position += size
        row_offsets[i + 1] = slot


@inlined
def put_varint(out, position, value):
    """Write a varint; a negative value travels as 2^64 plus it, in ten bytes."""
    written = 0
    while written < 9 and (value > 0x7F or value < 0):
        out[position] = (value & 0x7F) | 0x80
        # The first shift of a negative number is made logical by cutting the sign's copies.
        value = (value >> 7) & 0x01FFFFFFFFFFFFFF
        position += 1
        written += 1
    out[position] = value & 0x7F
    return position + 1


@inlined
def varint_size(value):
    if value < 0:
        return np.int64(10)
    size = np.int64(1)
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@inlined_first
def put_bytes(out, position, buffer, start, size):
    """Write a size and that many bytes of ``buffer``."""
    position = put_varint(out, position, size)
    memcpy(out, position, buffer, start, size)
    return position + size


@inlined_first
def put_property(out, position, keys, key_start, key_size, values, value_start, value_size):
    """Write the size and the fields of a ``KeyValue``."""
    size = 2 + varint_size(key_size) + key_size + varint_size(value_size) + value_size
    position = put_varint(out, position, size)
    out[position] = 0x0A
    position = put_bytes(out, position + 1, keys, key_start, key_size)
    out[position] = 0x12
    return put_bytes(out, position + 1, values, value_start, value_size)


@kernel
def message_ids(ledgers, entries, partitions, batch_indexes, batch_sizes, offsets, out):
    """The bytes of ``MessageIdData`` a row, as `geminga.ids.MessageId.serialize` writes them."""
    position = 0
    offsets[0] = 0
    for i in range(len(ledgers)):
        out[position] = 0x08
        position = put_varint(out, position + 1, ledgers[i])
        out[position] = 0x10
        position = put_varint(out, position + 1, entries[i])
        if partitions[i] >= 0:
            out[position] = 0x18
            position = put_varint(out, position + 1, partitions[i])
        if batch_indexes[i] >= 0:
            out[position] = 0x20
            position = put_varint(out, position + 1, batch_indexes[i])
        if batch_sizes[i] > 0:
            out[position] = 0x30
            position = put_varint(out, position + 1, batch_sizes[i])
        offsets[i + 1] = position
