"""Ledgers of an open store: those in memory with their changes, layered over the catalog."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest

from geminga.errors import LedgerNotFound
from geminga.ledger.api import StoredLedger
from geminga.ledger.catalog.catalog import PAGE_LEDGERS, Catalog, EntryChunk
from geminga.ledger.state.index import GIVEN_UP, Index, LedgerState
from geminga.ledger.state.quarantine import Quarantine
from geminga.ledger.steps import parts

RELEASED = -1
"""Generation of a released ledger: lower than that of every checkpoint."""
NOBODY = ""
"""Owner of a ledger whose own owner is lost to damage."""
_RECORD_OVERHEAD_BYTES = 200
"""Memory of an entry besides its bytes."""


@dataclass(slots=True, eq=False, repr=False)
class LostTail:
    """Ledgers below an id may have lost ``entries_max`` entries at their end, whose ids `append` skips."""

    ledgers_below: int = 0
    entries_max: int = 0


class LedgerTable:
    """Ledgers of an open store. Used on the owner's thread only."""

    def __init__(self, catalog: Catalog, index: Index, quarantine: Quarantine) -> None:
        self._catalog = catalog
        self._quarantine = quarantine
        self.index = index
        self.loaded: dict[int, LedgerState] = {}
        """Ledgers in memory, by id."""
        self.next_id = 0
        self.checkpoint = 0
        """Number of the last checkpoint that was begun."""
        self.settled_groups = 0
        """Groups of the log that are on the disk, since the store was opened."""
        self.doubt = LostTail()
        self.changed: list[LedgerState] = []
        """Ledgers with positions that the catalog does not have yet."""
        self.dying: dict[int, LedgerState] = {}
        """Ledgers whose deletion is not on the disk yet."""
        self.deleted: set[int] = set()
        """Ledgers deleted since the last checkpoint was begun; `deleted_frozen` has those that it writes."""
        self.deleted_frozen: set[int] = set()
        self.dropped: list[EntryChunk] = []
        """Positions of deleted ledgers that no checkpoint has saved."""
        self._uncataloged: dict[str, list[int]] = {}

    def create(self, owner: str) -> LedgerState:
        ledger = LedgerState(self.next_id, owner, 0, 0)
        self.next_id += 1
        ledger.since = self.settled_groups
        self.add(ledger)
        return ledger

    def add(self, ledger: LedgerState) -> None:
        ledger.generation = self.checkpoint
        self.loaded[ledger.ledger_id] = ledger
        self._uncataloged.setdefault(ledger.owner, []).append(ledger.ledger_id)

    def adopt(self, ledger_id: int, owner: str) -> bool:
        """Give an owner to a ledger whose owner was lost to damage; False for other ledgers."""
        if not self.exists(ledger_id) or self.loaded[ledger_id].owner != NOBODY:
            return False
        self._uncatalog(NOBODY, ledger_id)
        self.loaded[ledger_id].owner = owner
        self.add(self.loaded[ledger_id])
        self._quarantine.ledger_has_owner(ledger_id)
        return True

    def _uncatalog(self, owner: str, ledger_id: int) -> None:
        """Remove a ledger from the list of those that the catalog does not have under their owner."""
        siblings = self._uncataloged.get(owner)
        if siblings is not None and ledger_id in siblings:
            siblings.remove(ledger_id)
            if not siblings:
                del self._uncataloged[owner]

    def ledger(self, ledger_id: int) -> LedgerState:
        """Return the ledger, loaded if necessary; raises `LedgerNotFound`."""
        ledger = self.loaded.get(ledger_id)
        if ledger is None:
            ledger = self._load(ledger_id)
        ledger.generation = self.checkpoint
        return ledger

    def _load(self, ledger_id: int) -> LedgerState:
        found = None
        if ledger_id not in self.deleted and ledger_id not in self.deleted_frozen:
            found = self._catalog.ledger(ledger_id) if 0 <= ledger_id < self.next_id else None
        if found is None:
            raise LedgerNotFound(f"ledger {ledger_id} does not exist or was trimmed away")
        owner, entries, size_bytes = found
        ledger = self.loaded[ledger_id] = LedgerState(ledger_id, owner, entries, size_bytes)
        ledger.doubted = ledger_id < self.doubt.ledgers_below
        ledger.since = self.settled_groups
        return ledger

    def step_over_doubt(self, ledger: LedgerState) -> None:
        """Skip the ids that may be lost, before the first append to a ledger that damage may have cut."""
        ledger.doubted = False
        ledger.next_entry += self.doubt.entries_max
        if not ledger.recent:
            ledger.recent_first = ledger.next_entry

    def release(self, ledger_ids: Iterable[int]) -> None:
        """Unload ledgers that are not in use, at once or when the catalog has their whole state."""
        for ledger_id in ledger_ids:
            ledger = self.loaded.get(ledger_id)
            if ledger is None:
                continue
            ledger.generation = RELEASED
            self._let_go(ledger)

    def _let_go(self, ledger: LedgerState) -> None:
        """Unload a ledger if the catalog has its whole state."""
        ledger_id = ledger.ledger_id
        is_known = ledger.is_idle and ledger_id not in self._uncataloged.get(ledger.owner, ())
        if is_known and ledger_id not in self.index.moved and ledger_id not in self.index.moved_frozen:
            del self.loaded[ledger_id]

    def lost_entries_max(self, ledger_id: int) -> int:
        """Return how many entries at the end of a ledger, which may be deleted, damage may have destroyed."""
        ledger = self.loaded.get(ledger_id)
        is_doubted = ledger.doubted if ledger is not None else ledger_id < self.doubt.ledgers_below
        return self.doubt.entries_max if is_doubted else 0

    def give_up(self, ledger_id: int, entry_id: int) -> None:
        """Mark a lost entry whose loss is accepted."""
        if self.exists(ledger_id):
            self.index.moved.setdefault(ledger_id, {})[entry_id] = GIVEN_UP

    def exists(self, ledger_id: int) -> bool:
        try:
            self.ledger(ledger_id)
        except LedgerNotFound:
            return False
        return True

    def count(self) -> int:
        ids = self._catalog.ledger_ids()
        for uncataloged in self._uncataloged.values():
            ids.update(uncataloged)
        return len(ids - self.deleted - self.deleted_frozen)

    def owned(self, owner: str) -> list[StoredLedger]:
        ids = {*self._catalog.owned(owner), *self._uncataloged.get(owner, ())}
        infos = []
        for ledger_id in sorted(ids - self.deleted - self.deleted_frozen):
            ledger = self.loaded.get(ledger_id)
            if ledger is not None:
                if ledger.owner == owner:
                    infos.append(StoredLedger(ledger_id, owner, ledger.next_entry, ledger.size_bytes))
                continue
            found = self._catalog.ledger(ledger_id)
            if found is not None:
                infos.append(StoredLedger(ledger_id, owner, found[1], found[2]))
        return infos

    def page(self, after: int) -> tuple[list[StoredLedger], int | None]:
        """Return the next ledgers behind an id in order, and the id to continue after: None at the end."""
        after_next: int | None
        infos = self._catalog.ledgers_after(after, PAGE_LEDGERS)
        if len(infos) == PAGE_LEDGERS:
            after_next = infos[-1].ledger_id
        else:
            # Ledgers that are not in the catalog were created after all that are.
            after = infos[-1].ledger_id if infos else after
            ids = (each for ids in self._uncataloged.values() for each in ids if each > after)
            young = nsmallest(PAGE_LEDGERS, ids)
            infos += [StoredLedger(each, "", 0, 0) for each in young if each in self.loaded]
            after_next = young[-1] if len(young) == PAGE_LEDGERS else None
        gone = (self.deleted, self.deleted_frozen)
        infos = [info for info in infos if not any(info.ledger_id in each for each in gone)]
        for index, info in enumerate(infos):
            ledger = self.loaded.get(info.ledger_id)
            if ledger is not None:  # the catalog may have an older state
                infos[index] = StoredLedger(
                    ledger.ledger_id, ledger.owner, ledger.next_entry, ledger.size_bytes
                )
        return infos, after_next

    def delete(self, ledger_id: int) -> bool:
        """Delete a ledger; False if it does not exist.

        Its positions are kept until the deletion is on disk, as a checkpoint before that still includes them.
        """
        try:
            ledger = self.ledger(ledger_id)
        except LedgerNotFound:
            return False
        self.dying[ledger_id] = self.loaded.pop(ledger_id)
        self._uncatalog(ledger.owner, ledger_id)
        self.deleted.add(ledger_id)
        self._quarantine.ledger_is_gone(ledger_id)
        return True

    def settle_deletion(self, ledger_id: int) -> None:
        ledger = self.dying.pop(ledger_id, None)
        if ledger is not None:
            self.index.forget(ledger_id)
            if len(ledger.tail):
                self.dropped.append(ledger.tail)

    def held(self, ledger_id: int) -> LedgerState | None:
        """Return a ledger that is in memory, also while its deletion is not on the disk yet."""
        return self.loaded.get(ledger_id) or self.dying.get(ledger_id)

    def mark_changed(self, ledger: LedgerState | None) -> None:
        if ledger is not None and not ledger.changed:
            ledger.changed = True
            self.changed.append(ledger)

    def is_at(self, ledger_id: int, entry_id: int, position: int) -> bool:
        """Whether the index has the entry at this position."""
        if not self.exists(ledger_id):
            return False
        located = self.index.locate(self.loaded[ledger_id], entry_id)
        return located is not None and self.index.position(ledger_id, *located) == position

    def evict(self) -> Iterator[None]:
        """Unload ledgers that are released, or unused since the checkpoint before the last.

        Their recent entries are unloaded with them.
        """
        before = self.checkpoint - 1
        for part in parts(list(self.loaded.values())):
            for ledger in part:
                if ledger.generation < before and self.loaded.get(ledger.ledger_id) is ledger:
                    self._let_go(ledger)
            yield None

    def mark_saved(self, owner: str, ledger_id: int) -> None:
        """Free the frozen changes of a ledger, which the catalog has now."""
        ledger = self.held(ledger_id)
        if ledger is not None:
            ledger.frozen = None
        self._uncatalog(owner, ledger_id)

    def cast_doubt(self, records_max: int) -> None:
        """Note that damage may have destroyed this many records: last entries of any ledger, or creations."""
        if records_max:
            self.next_id += records_max
            self.doubt = LostTail(self.next_id, max(records_max, self.doubt.entries_max))
            for ledger in self.loaded.values():
                ledger.doubted = True


class TailCache:
    """Account of the recent entries that `LedgerTable` has in memory, by the groups that added them: beyond
    the limit, the oldest of all ledgers are evicted first.

    The account is in a few arrays: small for topics that left memory long ago, and not scattered among the
    memory that they have freed.
    """

    def __init__(self, table: LedgerTable, bytes_max: int) -> None:
        self._table = table
        self._bytes_max = bytes_max
        self._bytes = 0
        self._groups = array("Q")
        """For each group in memory, oldest first: number of ledgers, bytes, and groups settled by then."""
        self._ledgers = array("Q")
        """Ledgers of the groups, and their number of entries in each."""
        self._entries = array("Q")
        self._first_group = self._first_ledger = 0

    def add(self, counts: dict[int, int], entries: int, size_bytes: int) -> None:
        """Add a settled group with its entries per ledger; evicts the oldest entries if necessary."""
        size_held = size_bytes + entries * _RECORD_OVERHEAD_BYTES
        self._groups.extend((len(counts), size_held, self._table.settled_groups))
        self._ledgers.extend(counts)
        self._entries.extend(counts.values())
        self._bytes += size_held
        if self._bytes > self._bytes_max:
            self._trim()

    def _trim(self) -> None:
        ledgers = self._table.loaded
        while self._bytes > self._bytes_max and self._first_group < len(self._groups):
            count, size_bytes, settled = self._groups[self._first_group : self._first_group + 3]
            self._bytes -= size_bytes
            for at in range(self._first_ledger, self._first_ledger + count):
                ledger = ledgers.get(self._ledgers[at])
                if ledger is not None and ledger.since < settled:  # else it was unloaded and loaded since
                    entries = self._entries[at]
                    del ledger.recent[:entries]
                    ledger.recent_first += entries
            self._first_group += 3
            self._first_ledger += count
        if self._first_group > len(self._groups) // 2:
            del self._groups[: self._first_group]
            del self._ledgers[: self._first_ledger], self._entries[: self._first_ledger]
            self._first_group = self._first_ledger = 0
