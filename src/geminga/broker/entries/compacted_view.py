"""Compacted ledger: the newest message of each key, below a horizon, with the original message ids.

Its entries are those of the topic with a message that was kept, in the topic's order. Each is preceded by its
offset and its ids, so that it can be read after the topic's own ledgers were deleted::

    offset  ledger id  entry id        8 bytes each, big endian
    the entry, as it is delivered

The last one is its *seal*: a JSON object, written after all others. A ledger without seal was left by a
crash, and is deleted.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from geminga.broker.entries.entry_facts import head_of
from geminga.errors import StoreError
from geminga.ledger.api import EntryStore, ReadAhead
from geminga.ledger.damage import EntriesDamaged

log = logging.getLogger("geminga.broker")

_HEAD = Struct(">QQQ")
_SEAL = (1 << 64) - 1
"""Value of a seal's offset field."""
_ENTRY_BYTES_MAX = 1 << 30
ENTRIES_PER_FETCH = 1_000
BYTES_PER_FETCH = 1024 * 1024
"""Bytes that are read from the disk at once."""

Position = tuple[int, int]
"""Ledger and entry id."""
EARLIEST, LATEST = (-1, -1), ((1 << 63) - 1, (1 << 63) - 1)
"""Before and behind all other positions."""


class CompactedEntry(NamedTuple):
    """An entry with its offset and ids in the topic."""

    offset: int
    ledger_id: int
    entry_id: int
    entry: bytes


class Seal(NamedTuple):
    """Content of a compacted ledger's seal. ``horizon`` is the first offset that was not compacted.

    ``last`` is the id of its newest message, with the index in its batch; -1 if it is empty.
    """

    horizon: int
    last: tuple[int, int, int]


def owner_of(topic: str) -> str:
    """Return the owner's name of a topic's compacted ledgers in the store, which is no topic's name."""
    return f"compacted\x00{topic}"


def framed(offset: int, ledger_id: int, entry_id: int, entry: bytes) -> bytes:
    return _HEAD.pack(offset, ledger_id, entry_id) + entry


def unframed(data: bytes) -> CompactedEntry:
    offset, ledger_id, entry_id = _HEAD.unpack_from(data)
    return CompactedEntry(offset, ledger_id, entry_id, data[_HEAD.size :])


def sealed(seal: Seal) -> bytes:
    return framed(_SEAL, 0, 0, json.dumps(seal._asdict()).encode())


def seal_of(store: EntryStore, ledger_id: int, entries: int) -> Seal | None:
    """Return the seal of a ledger with ``entries`` entries; None if it has none. Raises `StoreBusy`."""
    if not entries:
        return None
    try:
        found = store.read(ledger_id, entries - 1, entries_max=1, bytes_max=_ENTRY_BYTES_MAX)
    except EntriesDamaged as error:
        log.error("compacted ledger %d has lost its seal: %s", ledger_id, error)
        return None
    if not found or len(found[0]) < _HEAD.size:
        return None
    entry = unframed(found[0])
    if entry.offset != _SEAL:
        return None
    kept = json.loads(entry.entry)
    ledger, entry_id, batch_index = kept["last"]
    return Seal(kept["horizon"], (ledger, entry_id, batch_index))


class CompactedLedger:
    """Sealed compacted ledger. ``entries`` excludes the seal. It is kept while it is read (`pinned`)."""

    __slots__ = ("_store", "_to_go", "entries", "ledger_id", "pinned", "seal", "size_bytes", "topic")

    def __init__(
        self, store: EntryStore, topic: str, ledger_id: int, entries: int, size_bytes: int, seal: Seal
    ) -> None:
        self._store = store
        self._to_go = False
        self.topic = topic
        self.ledger_id = ledger_id
        self.entries = entries
        self.size_bytes = size_bytes
        self.seal = seal
        self.pinned = 0

    @property
    def horizon(self) -> int:
        """The offset from which the topic's own entries are to be read."""
        return self.seal.horizon

    def find(self, *, offset: int = -1, position: Position | None = None) -> int:
        """Return the index of the first entry at or behind an offset, or an id. Raises `StoreError`.

        It reads a few entries.
        """
        if position is None and offset <= 0:
            return 0
        if position is not None and position[0] < 0:
            return 0
        if position is not None and position > self.seal.last[:2]:
            return self.entries
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            found = self._look(middle)
            if found is None:
                # Readers skip damaged entries: continue to the left.
                high = middle
                continue
            behind = found.offset < offset if position is None else found[1:3] < position
            low, high = (middle + 1, high) if behind else (low, middle)
        return low

    def _look(self, index: int) -> CompactedEntry | None:
        try:
            found = self._store.read(self.ledger_id, index, entries_max=1, bytes_max=_ENTRY_BYTES_MAX)
        except EntriesDamaged:
            return None
        return unframed(found[0]) if found else None

    def fetch(self, index: int, done: Callable[[list[bytes], StoreError | None], None]) -> list[bytes] | None:
        """Return entries from ``index`` on, in their frames, or None and call ``done`` later."""
        count = min(ENTRIES_PER_FETCH, self.entries - index)
        return self._store.fetch(
            self.ledger_id,
            index,
            entries_max=count,
            bytes_max=BYTES_PER_FETCH,
            ahead=ReadAhead(count, BYTES_PER_FETCH),
            done=done,
        )

    def behind_damage(self, index: int, error: StoreError) -> int | None:
        """Return the index behind damage found at ``index``, and log it; None if the error is another one."""
        damage = error.damage if isinstance(error, EntriesDamaged) else None
        if damage is None or damage.last_entry_id is None:
            return None
        behind = max(index, damage.last_entry_id) + 1
        log.error(
            "topic %s: entries %d to %d of its compacted ledger %d are lost: %s",
            self.topic, index, behind - 1, self.ledger_id, error,
        )  # fmt: skip
        return behind

    def is_below(self, *, position: Position | None = None, moment_ms: int | None = None) -> bool:
        """Return whether all its entries are before an id, or were published before a moment."""
        if position is not None:
            return position > self.seal.last[:2]
        if not self.entries:
            return True
        newest = self._look(self.entries - 1)
        head = None if newest is None else head_of(newest.entry)
        return head is not None and moment_ms is not None and head.publish_time < moment_ms

    # --- retention ---
    def pin(self) -> None:
        self.pinned += 1

    def unpin(self) -> None:
        self.pinned -= 1
        if self._to_go and not self.pinned:
            self._delete()

    def replaced(self) -> None:
        """Delete the ledger after its last read, because a newer one replaces it."""
        self._to_go = True
        if not self.pinned:
            self._delete()

    def _delete(self) -> None:
        try:
            self._store.delete_ledgers([self.ledger_id])
        except StoreError as error:
            log.error("topic %s: cannot delete compacted ledger %d: %s", self.topic, self.ledger_id, error)


class CompactedScan:
    """Scan of a compacted ledger by one reader, a little at a time, without waiting for the disk."""

    __slots__ = ("_buffer", "_fetching", "_index", "_offset", "_position", "ledger")

    def __init__(
        self, ledger: CompactedLedger, *, offset: int = -1, position: Position | None = None
    ) -> None:
        """Start at or behind an offset, or an id."""
        self.ledger = ledger
        ledger.pin()
        self._offset, self._position = offset, position
        self._index = -1
        self._buffer: deque[CompactedEntry] = deque()
        self._fetching = False

    def next(self, arrived: Callable[[StoreError | None], None]) -> CompactedEntry | None:
        """Return the next entry, which stays until `take`. None at the end, and while the disk is read.

        ``arrived`` is called after that. Raises `StoreError`.
        """
        if self._index < 0:
            self._index = self.ledger.find(offset=self._offset, position=self._position)
        while not (self._buffer or self._fetching or self.is_over):
            index = self._index

            def done(entries: list[bytes], error: StoreError | None, index: int = index) -> None:
                self._fetching = False
                if error is not None:
                    behind = self.ledger.behind_damage(index, error)
                    if behind is not None:
                        self._index, error = behind, None
                self._add(entries)
                arrived(error)

            self._fetching = True
            try:
                found = self.ledger.fetch(index, done)
            except StoreError as error:
                self._fetching = False
                behind = self.ledger.behind_damage(index, error)
                if behind is None:
                    raise
                self._index = behind
                continue
            if found is not None:
                self._fetching = False
                self._add(found)
        return self._buffer[0] if self._buffer else None

    def _add(self, entries: list[bytes]) -> None:
        self._index += len(entries)
        self._buffer.extend(map(unframed, entries))

    def take(self) -> None:
        self._buffer.popleft()

    @property
    def is_over(self) -> bool:
        """Whether all entries were taken."""
        return self._index >= self.ledger.entries and not self._buffer and not self._fetching

    def close(self) -> None:
        self._buffer.clear()
        self.ledger.unpin()
