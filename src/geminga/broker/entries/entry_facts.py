"""Facts about an entry without decompressing it: its metadata, its message count, its key."""

import base64
import binascii
import re

from geminga.errors import CorruptPayload
from geminga.ledger.api import Buffer
from geminga.wire.metadata import EntryHead, metadata_of, peek_entry

MESSAGES_MAX = 1 << 22
"""Maximum messages in an entry: each takes a byte at least, and entries are a few MiB."""
_NONE_KEY = b"NONE_KEY"
_DELAY_OR_CHUNKS = re.compile(b"[\x98\xd8][\x01\x81]").search
"""Searches the tags of ``deliver_at_time`` and ``num_chunks_from_msg``, also if they have more bytes than
needed."""


def head_of(entry: Buffer) -> EntryHead | None:
    """Return the metadata of an entry; None if it cannot be parsed (it is delivered as one message then)."""
    try:
        return peek_entry(entry)
    except CorruptPayload:
        return None


def may_be_delayed_or_chunk(entry: Buffer) -> bool:
    """Return False if the metadata surely have neither a delivery time nor chunks, without parsing them."""
    # They have a checksum before them, are shorter than 256 bytes, and as many bytes hold the tags nowhere.
    return entry[:2] != b"\x0e\x01" or entry[6:9] != b"\0\0\0" or _DELAY_OR_CHUNKS(entry, 10, 265) is not None


def count_of(head: EntryHead | None) -> int:
    """Return the number of messages by an entry's metadata; 1 if that is impossible."""
    return 1 if head is None else _bounded(head.num_messages)


def message_count(entry: Buffer) -> int:
    """Return the number of messages in an entry, as `count_of` does."""
    try:
        return _bounded(metadata_of(entry).num_messages_in_batch)
    except CorruptPayload:
        return 1


def _bounded(count: int) -> int:
    """Return ``count``, or 1 if it is impossible: producers set it, and it changes consumers' permits."""
    return count if 1 <= count <= MESSAGES_MAX else 1


def backlog_count(entry: Buffer) -> int:
    """Return an entry's number of messages in a backlog: of a chunked message only the last chunk counts."""
    return backlog_count_of(head_of(entry))


def backlog_count_of(head: EntryHead | None) -> int:
    """Like `backlog_count`, with parsed metadata."""
    if head is not None and head.num_chunks > 1 and head.chunk_id < head.num_chunks - 1:
        return 0
    return count_of(head)


def sticky_key(head: EntryHead | None) -> bytes:
    """Return the key that Key_Shared hashes; a batch has it in the outer metadata."""
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
