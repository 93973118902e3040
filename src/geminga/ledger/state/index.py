"""Positions of entries: the ledgers in use, and the catalog's chunks that were read last.

An entry has three stages. A new entry is in its ledger's ``recent`` list, with its bytes. Once its group is
on disk, its position, size and checksum are in the ledger's ``tail`` columns. A checkpoint moves these into
the catalog, from which they are loaded in chunks when entries are read.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from geminga.ledger.api import Buffer
from geminga.ledger.catalog.catalog import Catalog, EntryChunk, LedgerChange

MISSING = 0
"""The position of an entry that the log does not have any more (damage)."""
GIVEN_UP = 1
"""The position of an entry that is lost to damage, and whose loss is accepted."""

CHUNKS_MAX = 64
"""Chunks of the catalog that an index caches: 64 KiB each at most."""


def empty_chunk(first: int) -> EntryChunk:
    return EntryChunk(first, array("Q"), array("I"), array("I"))


@dataclass(slots=True, eq=False, repr=False)
class LedgerState:
    """Ledger in use. Entries below ``recent_first`` are found by position, others in ``recent``."""

    ledger_id: int
    owner: str
    next_entry: int
    size_bytes: int
    written_bytes: int = field(init=False)
    recent: list[Buffer] = field(init=False, default_factory=list)
    recent_first: int = field(init=False)
    tail: EntryChunk = field(init=False)
    frozen: EntryChunk | None = None
    changed: bool = False
    doubted: bool = False
    generation: int = 0
    since: int = 0
    """Number of groups settled when the state was loaded into memory."""

    def __post_init__(self) -> None:
        self.written_bytes = self.size_bytes
        self.recent_first = self.next_entry
        self.tail = empty_chunk(self.next_entry)

    def take(self, entries: Sequence[Buffer]) -> range:
        """Append entries; returns their ids."""
        first = self.next_entry
        self.next_entry = first + len(entries)
        self.size_bytes += sum(map(len, entries))
        self.recent.extend(entries)
        return range(first, self.next_entry)

    def set_position(self, entry_id: int, position: int, size: int, crc: int) -> tuple[int, int] | None:
        """Set the position of an entry of the tail; gaps before it become `MISSING`.

        Returns the (position, size) that the entry had before, if any.
        """
        tail = self.tail
        index = entry_id - tail.first
        while len(tail.positions) < index:
            tail.positions.append(MISSING)
            tail.sizes.append(0)
            tail.crcs.append(0)
        if index == len(tail.positions):
            tail.positions.append(position)
            tail.sizes.append(size)
            tail.crcs.append(crc)
            return None
        before = tail.positions[index], tail.sizes[index]
        tail.positions[index], tail.sizes[index], tail.crcs[index] = position, size, crc
        return before

    def give_up(self, entry_id: int) -> None:
        """Mark an entry of the tail as lost for good."""
        at = entry_id - self.tail.first
        if at >= len(self.tail):
            self.set_position(entry_id, GIVEN_UP, 0, 0)
        self.tail.positions[at] = GIVEN_UP

    @property
    def is_idle(self) -> bool:
        """Whether the catalog has the ledger's whole state."""
        is_known = self.next_entry == self.tail.first
        return is_known and not (self.changed or self.frozen is not None or len(self.tail))

    def freeze(self) -> LedgerChange:
        """Take the changes since the last checkpoint, for the next one."""
        self.frozen = self.tail
        self.tail = empty_chunk(self.frozen.first + len(self.frozen))
        self.changed = False
        return LedgerChange(self.ledger_id, self.owner, self.tail.first, self.written_bytes, self.frozen)


class Index:
    """Entry lookup. The owner's thread has one, the reader threads have another, for their own connection
    to the catalog, so that the owner never waits for their reads.

    The order of lookups finds an entry at each stage of a checkpoint: tail, frozen, catalog; and new moves
    before those that the checkpoint saves. Cached positions may be outdated once an entry was moved: its old
    file is then gone, and after `forget` the next lookup finds the new position.
    """

    def __init__(self, catalog: Catalog, owners: Index | None = None) -> None:
        """``owners``: index of the owner's thread, which has the new positions; None: this is that index."""
        self._catalog = catalog
        self.moved: dict[int, dict[int, int]] = {}
        """New positions of rewritten entries, by ledger and entry, since the last checkpoint was begun."""
        self.moved_frozen: dict[int, dict[int, int]] = {}
        """Positions that the checkpoint writes."""
        self._moves = self if owners is None else owners
        self._reading = threading.Lock()
        """Held while the catalog is read, as long as the disk takes."""
        self._lock = threading.Lock()
        """Guards the fields below; held briefly."""
        self._chunks: OrderedDict[int, EntryChunk] = OrderedDict()
        """Chunk of the catalog read last, by ledger."""
        self._forgets = 0

    def locate(self, ledger: LedgerState, entry_id: int) -> tuple[EntryChunk, int] | None:
        """Return the chunk that holds the entry, and its index in the chunk; None if the entry is unknown.
        Raises `CatalogDamaged`."""
        for chunk in (ledger.tail, ledger.frozen):
            if chunk is not None and 0 <= entry_id - chunk.first < len(chunk):
                return chunk, entry_id - chunk.first
        ledger_id = ledger.ledger_id
        found = self._kept(ledger_id, entry_id)
        if found is None:
            with self._reading:
                found = self._kept(ledger_id, entry_id)  # another thread may have asked for it
                if found is None:
                    forgets = self._forgets
                    found = self._catalog.chunk(ledger_id, entry_id)
                    if found is None:
                        return None
                    self._keep(ledger_id, found, forgets)
        return found, entry_id - found.first

    def _kept(self, ledger_id: int, entry_id: int) -> EntryChunk | None:
        with self._lock:
            chunk = self._chunks.get(ledger_id)
            if chunk is None or not 0 <= entry_id - chunk.first < len(chunk):
                return None
            self._chunks.move_to_end(ledger_id)
            return chunk

    def _keep(self, ledger_id: int, chunk: EntryChunk, forgets: int) -> None:
        """Cache a chunk from the catalog, unless the catalog may have changed since."""
        with self._lock:
            if forgets == self._forgets:
                self._chunks[ledger_id] = chunk
                if len(self._chunks) > CHUNKS_MAX:
                    self._chunks.popitem(last=False)

    def position(self, ledger_id: int, chunk: EntryChunk, index: int) -> int:
        """Return an entry's position, after any rewriting that is not in the catalog yet."""
        for moved in (self._moves.moved, self._moves.moved_frozen):
            moves = moved.get(ledger_id)
            if moves is not None:
                position = moves.get(chunk.first + index)
                if position is not None:
                    return position
        return chunk.positions[index]

    def forget(self, ledger_id: int) -> None:
        """Drop the cached chunk of a ledger whose catalog rows changed. Does not wait for catalog reads."""
        with self._lock:
            self._forgets += 1
            self._chunks.pop(ledger_id, None)
