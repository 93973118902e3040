"""Batches in compaction: parsed for the keys of their messages, and rewritten with fewer messages.

A few kilobytes may hold a million messages: slow work is a generator of steps, which the caller runs.
"""

import logging
import re
from array import array
from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from geminga.broker.runtime.cooperative import Steps
from geminga.errors import CorruptPayload
from geminga.wire.metadata import build_entry, parse_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import parse

log = logging.getLogger("geminga.broker")

BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest decompressed size of a batch that is parsed; larger ones are kept whole."""
BATCH_MESSAGES_MAX: Final = 1_000_000
"""Maximum messages of a batch that is parsed, more than any client of Geminga makes."""
STEP_MESSAGES: Final = 1_000
"""Messages that are processed in a step."""
_SIZE = Struct(">I")
_MARK_OUT = pb.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_EMPTIED = _SIZE.pack(len(_MARK_OUT)) + _MARK_OUT
_ONES = re.compile("1+")


class OpenedBatch(NamedTuple):
    """Parsed batch."""

    metadata: pb.MessageMetadata
    body: bytes
    starts: Sequence[int]
    """Offset of each message, and the end of the last."""
    keys: list[bytes | None]
    """None for a message without a key, and for one that was compacted out before."""
    is_emptied: Sequence[int]
    """For each message whether it has a key and no value."""
    unkeyed: Sequence[int]
    """Indexes of messages without a key that were not compacted out."""


def opened(entry: bytes) -> Steps[OpenedBatch | None]:
    """Parse the messages of a batch; None if it is unreadable."""
    try:
        parsed = parse_entry(entry, verify=False)
        metadata = parsed.metadata
        if metadata.encryption_keys:
            return None
        if metadata.compression:
            from geminga.wire.compression import (
                decompress_in_steps,  # with all codecs: no start waits for them
            )

            body = yield from decompress_in_steps(
                metadata.compression, parsed.payload, metadata.uncompressed_size, limit=BATCH_BYTES_MAX
            )
        else:
            body = bytes(parsed.payload)
        return (yield from _walk(metadata, body))
    except (CorruptPayload, StructError) as error:
        log.debug("cannot parse a batch: %s", error)
        return None


def _walk(metadata: pb.MessageMetadata, body: bytes) -> Steps[OpenedBatch]:
    size, count = len(body), metadata.num_messages_in_batch
    if not 0 < count <= min(size // 4, BATCH_MESSAGES_MAX):
        raise CorruptPayload(f"{count} messages announced in a batch of {size} bytes")
    starts = array("Q", (0,))
    keys: list[bytes | None] = []
    is_emptied, unkeyed = bytearray(count), array("I")
    position = 0
    for number in range(count):
        if number and not number % STEP_MESSAGES:
            yield
        end = position + 4 + _SIZE.unpack_from(body, position)[0]
        if end > size:
            raise CorruptPayload(f"a message's metadata end at byte {end} of {size}")
        single = parse(
            pb.SingleMessageMetadata, body[position + 4 : end], "a message's metadata", CorruptPayload
        )
        if single.payload_size < 0:
            raise CorruptPayload(f"a message of {single.payload_size} bytes")
        key = None
        if single.HasField("partition_key") and not single.compacted_out:
            key = key_bytes(single.partition_key)
            is_emptied[number] = not single.payload_size
        elif not single.compacted_out:
            unkeyed.append(number)
        keys.append(key)
        position = end + single.payload_size
        starts.append(position)
    if position != size:
        raise CorruptPayload(f"{count} messages end at byte {position} of a batch of {size} bytes")
    return OpenedBatch(metadata, body, starts, keys, is_emptied, unkeyed)


def key_bytes(key: str | bytes) -> bytes:
    """Return a key in wire format: protobuf returns bytes for invalid UTF-8."""
    return key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")


def rebatched(entry: bytes, kept: int) -> Steps[bytes]:
    """Return a batch with only the messages whose bits are set in ``kept``; the others are marked."""
    batch = yield from opened(entry)
    if batch is None:
        return entry
    body, starts = batch.body, batch.starts
    parts: list[bytes] = []
    behind = 0
    for run in _ONES.finditer(format(kept, "b")[::-1]):
        if parts and not len(parts) % STEP_MESSAGES:
            yield
        first, end = run.span()
        parts += _EMPTIED * (first - behind), body[starts[first] : starts[end]]
        behind = end
    parts.append(_EMPTIED * (len(batch.keys) - behind))
    found = b"".join(parts)
    metadata = batch.metadata
    metadata.uncompressed_size = len(found)
    payload = found
    if metadata.compression:
        from geminga.wire.compression import compress_in_steps

        payload = yield from compress_in_steps(metadata.compression, found)
    return build_entry(metadata.SerializeToString(), payload)
