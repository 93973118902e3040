"""What the broker reads in an entry without opening it: its metadata, its count, its key."""

from __future__ import annotations

import base64
import binascii

from geminga.errors import CorruptPayload
from geminga.ledger.api import Buffer
from geminga.wire.metadata import EntryHead, peek_entry

MESSAGES_MAX = 1 << 22
"""No entry holds more messages than this: each takes a byte at least, and entries are a few MiB."""
_NONE_KEY = b"NONE_KEY"


def head_of(entry: Buffer) -> EntryHead | None:
    """The metadata of an entry; None when it cannot be read (it is delivered as one message then)."""
    try:
        return peek_entry(entry)
    except CorruptPayload:
        return None


def count_of(head: EntryHead | None) -> int:
    """How many messages an entry holds by its metadata; 1 where that cannot be true.

    The number is the producer's claim and goes into the permits of consumers, so a lie is bounded.
    """
    return head.num_messages if head is not None and 1 <= head.num_messages <= MESSAGES_MAX else 1


def message_count(entry: Buffer) -> int:
    """How many messages are in an entry."""
    return count_of(head_of(entry))


def backlog_count(entry: Buffer) -> int:
    """How many messages an entry counts for in a backlog: of a chunked message only the last chunk counts."""
    return backlog_count_of(head_of(entry))


def backlog_count_of(head: EntryHead | None) -> int:
    """The same of an entry whose metadata were read."""
    if head is not None and head.num_chunks > 1 and head.chunk_id < head.num_chunks - 1:
        return 0
    return count_of(head)


def sticky_key(head: EntryHead | None) -> bytes:
    """What Key_Shared hashes; of a batch that is in the outer metadata."""
    if head is None:
        return _NONE_KEY
    if head.ordering_key is not None:
        return bytes(head.ordering_key)
    if head.partition_key is not None:
        if head.partition_key_b64:
            try:
                return base64.b64decode(head.partition_key, validate=True)
            except (binascii.Error, ValueError):
                pass
        return head.partition_key.encode("utf-8", "surrogatepass")
    if head.producer_name:
        return f"{head.producer_name}-{head.sequence_id}".encode("utf-8", "surrogatepass")
    return _NONE_KEY
