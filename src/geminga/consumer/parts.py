"""Delivered messages that are not an entry of their own: batches, and messages in chunks."""

from __future__ import annotations

from typing import Any

from geminga.consumer.message import EntryAcks, EntryKey

KNOWN_BATCHES_MAX = 100_000
"""Maximum partly acknowledged batches that are remembered; the oldest is forgotten first."""


class DeliveredParts:
    """The unfinished batches and the chunked messages that one consumer received."""

    def __init__(self) -> None:
        self.batches: dict[EntryKey, EntryAcks] = {}
        """Acknowledgement states of the unfinished batches."""
        self.chunks: dict[EntryKey, list[EntryKey]] = {}
        """Entries of each chunked message, by the last one's."""

    def batch_of(self, key: EntryKey, count: int) -> EntryAcks:
        """Return the acknowledgement state of a batch: the known one when the entry is redelivered."""
        acks = self.batches.get(key)
        if acks is None or len(acks.flags) != count:
            acks = self.batches[key] = EntryAcks(key[0], key[1], count)
            if len(self.batches) > KNOWN_BATCHES_MAX:
                del self.batches[next(iter(self.batches))]
        return acks

    def chunked(self, key: EntryKey, chunk_ids: list[EntryKey]) -> None:
        """Register the chunks of a message, which are acknowledged together; ``key`` is the last chunk's."""
        self.chunks[key] = chunk_ids
        if len(self.chunks) > KNOWN_BATCHES_MAX:
            del self.chunks[next(iter(self.chunks))]

    def entries_of(self, key: EntryKey) -> list[EntryKey]:
        """Return the entries of a message: its own, or all chunks of a chunked one."""
        return self.chunks.get(key) or [key]

    def drop_through(self, key: EntryKey, inclusive: bool) -> None:
        """Forget what is below an entry, and the entry itself if ``inclusive``."""
        drop_through(self.batches, key, inclusive)
        drop_through(self.chunks, key, inclusive)

    def forget(self) -> None:
        """Forget everything. Later acknowledgements do not complete these batches."""
        for acks in self.batches.values():
            acks.reopen()
        self.batches.clear()
        self.chunks.clear()


def drop_through(table: dict[EntryKey, Any], key: EntryKey, inclusive: bool) -> None:
    """Remove the keys below ``key``, and ``key`` itself if ``inclusive``. Tables are mostly ordered by key: a
    covered key after one that is not covered stays a while, which is harmless."""
    covered = []
    for known in table:
        if not (known < key or (inclusive and known == key)):
            break
        covered.append(known)
    for known in covered:
        del table[known]
