"""Deduplication: one copy of each (producer name, sequence id), over reconnects and restarts.

The entries themselves are the record: each contains its producer's name and sequence id. A snapshot covers
the entries up to an offset, and loading reads the entries behind it. So publishing writes nothing extra, and
the known ids always agree with the stored entries. A snapshot must cover entries before they are deleted
(`Deduplication.cover`).
"""

from __future__ import annotations

import logging
from enum import Enum

from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.entries.records import RecordReader, put_bytes, put_varint
from geminga.errors import CorruptPayload, StoreError
from geminga.ledger.api import EntryStore
from geminga.wire.metadata import peek_entry

log = logging.getLogger("geminga.broker")

SNAPSHOT_ENTRIES = 1000
"""Entries between snapshots, about the most that loading a topic reads."""
_VERSION = 1
_READ_ENTRIES = 500
_READ_BYTES = 16 * 1024 * 1024


class DedupVerdict(Enum):
    """Result of checking an entry's sequence id."""

    UNCHECKED = "unchecked"
    """Without deduplication, and for chunks before the last one: nothing is recorded."""
    NEW = "new"
    """The id is recorded when the entry is durable."""
    DUPLICATE = "duplicate"
    """The entry is not stored; its receipt waits for those of earlier entries."""
    UNKNOWN = "unknown"
    """A copy is pending in the store, so the result is not known yet."""


class Deduplication:
    """Highest sequence ids of a topic's producers; at most ``producers_max`` names are kept."""

    __slots__ = (
        "_before", "_key", "_ledger", "_producers_max", "_pushed", "_since_snapshot", "_snapshot_offset",
        "_store", "_stored",
    )  # fmt: skip

    def __init__(self, store: EntryStore, topic: str, ledger: ManagedLedger, producers_max: int) -> None:
        self._store = store
        self._key = dedup_key(topic)
        self._ledger = ledger
        self._producers_max = producers_max
        self._stored: dict[str, int] = {}
        self._pushed: dict[str, int] = {}
        self._before: int | None = None
        self._since_snapshot = 0
        self._snapshot_offset = -1

    @staticmethod
    def load(store: EntryStore, topic: str, ledger: ManagedLedger, producers_max: int) -> Deduplication:
        """Load the ids of a topic; they are empty without a snapshot (deduplication was just enabled)."""
        found = Deduplication(store, topic, ledger, producers_max)
        value = store.keys.get(found._key)
        if value is None:
            found.save()
            return found
        if not value.base:
            # Damage took the snapshot: the entries are the record.
            found._replay(ledger.start)
            found._pushed = dict(found._stored)
            found.save()
            return found
        reader = RecordReader(value.base, f"deduplication snapshot of {topic}")
        version = reader.varint()
        if version != _VERSION:
            raise reader.damaged(f"version {version}, this program knows {_VERSION}")
        found._snapshot_offset = offset = reader.varint()
        for _ in range(reader.varint()):
            name = reader.blob().decode("utf-8", "surrogatepass")
            found._stored[name] = reader.varint()
        found._replay(max(offset, ledger.start))
        found._pushed = dict(found._stored)
        return found

    def _replay(self, offset: int) -> None:
        ledger = self._ledger
        while offset < ledger.confirmed:
            entries = ledger.read(offset, ledger.confirmed, entries_max=_READ_ENTRIES, bytes_max=_READ_BYTES)
            if not entries:
                skipped = ledger.skip_gap(offset)
                if skipped == offset:
                    return
                offset = skipped
            for entry in entries:
                self._take(entry)
                offset += 1
                self._since_snapshot += 1

    def _take(self, entry: bytes) -> None:
        try:
            head = peek_entry(entry)
        except CorruptPayload:
            return
        if head.num_chunks and head.chunk_id != head.num_chunks - 1:
            return
        highest = max(head.sequence_id, head.highest_sequence_id)
        if highest > self._stored.get(head.producer_name, -1):
            self._stored[head.producer_name] = highest

    # --- publishing ---
    def check(self, producer: str, sequence_id: int, highest: int) -> DedupVerdict:
        """Check a sequence id before its entry is stored; a new one counts as pushed from now on."""
        self._before = pushed = self._pushed.get(producer)
        if pushed is not None and sequence_id <= pushed:
            if sequence_id <= self._stored.get(producer, -1):
                return DedupVerdict.DUPLICATE
            return DedupVerdict.UNKNOWN
        self._pushed[producer] = highest
        return DedupVerdict.NEW

    def stored(self, producer: str, highest: int) -> None:
        """Record that the entry is durable."""
        if highest > self._stored.get(producer, -1):
            # Taken out and put back: the order of the names is the order of their last use.
            self._stored.pop(producer, None)
            self._stored[producer] = highest
        self._since_snapshot += 1
        if self._since_snapshot >= SNAPSHOT_ENTRIES:
            self.save()

    def refused(self, producer: str) -> None:
        """Revert the last `check`: its entry was refused, and pending entries before it still count."""
        if self._before is None:
            self._pushed.pop(producer, None)
        else:
            self._pushed[producer] = self._before

    def last_sequence_id(self, producer: str) -> int:
        """Return the highest stored sequence id of a producer, -1 if it is unknown."""
        return self._stored.get(producer, -1)

    def last_pushed(self, producer: str) -> int:
        """Return the highest sequence id of a producer, stored or pending, -1 if it is unknown."""
        return max(self._pushed.get(producer, -1), self._stored.get(producer, -1))

    def has_pending(self, producer: str) -> bool:
        """Return whether an entry of a producer is not durable yet."""
        return self._pushed.get(producer, -1) > self._stored.get(producer, -1)

    # --- durable form ---
    def save(self) -> None:
        """Write a snapshot if it changed; if the store refuses, the next load reads more entries."""
        if not self._since_snapshot and self._snapshot_offset == self._ledger.confirmed:
            return
        try:
            # If this write is damaged later, an older snapshot and more entries give the same result.
            self._write_snapshot(same=True)
        except StoreError as error:
            log.warning("cannot write deduplication snapshot %s: %s", self._key, error)

    def cover(self, offset: int) -> None:
        """Ensure a snapshot that covers the entries below ``offset`` before they are deleted or offloaded.

        Raises `StoreError` if it cannot be written.
        """
        if self._snapshot_offset < offset:
            self._write_snapshot(same=False)

    def _write_snapshot(self, *, same: bool) -> None:
        """Write a snapshot that covers every confirmed entry."""
        self._forget_oldest()
        out = bytearray([_VERSION])
        put_varint(out, self._ledger.confirmed)
        put_varint(out, len(self._stored))
        for name, sequence_id in self._stored.items():
            put_bytes(out, name.encode("utf-8", "surrogatepass"))
            put_varint(out, sequence_id)
        self._store.keys.put(self._key, bytes(out), same=same)
        self._since_snapshot = 0
        self._snapshot_offset = self._ledger.confirmed

    def _forget_oldest(self) -> None:
        excess = len(self._stored) - self._producers_max
        if excess > 0:
            for name in list(self._stored)[:excess]:
                if self._pushed.get(name) == self._stored[name]:
                    del self._stored[name]
                    self._pushed.pop(name, None)

    def forget(self) -> None:
        """Delete the snapshot: deduplication was switched off, or the topic is being deleted."""
        self._store.keys.delete(self._key)


def forget_stale(store: EntryStore, topic: str) -> None:
    """Delete an earlier snapshot while deduplication is off: it would be outdated if enabled again."""
    if store.keys.get(dedup_key(topic)) is not None:
        store.keys.delete(dedup_key(topic))


def dedup_key(topic: str) -> str:
    return f"dedup/{topic}"
