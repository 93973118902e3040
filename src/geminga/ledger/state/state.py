"""State of a store: ledgers, keys, and their changes that are not in the catalog yet.

The state changes in two ways. A call of the owner (create, append, delete, put ...) changes it at once, as
its order among the writes is fixed then. When the group with the call's record is on disk, `settle` adds the
positions of the bytes. After a restart `geminga.ledger.recovery.replay` does both from the log alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from geminga.ledger.catalog.catalog import Catalog, CheckpointSnapshot
from geminga.ledger.files.format import OFFSET_BITS, RECORD_BYTES, RecordKind
from geminga.ledger.log.log import Group
from geminga.ledger.state.index import Index, LedgerState
from geminga.ledger.state.keys import KeyMap
from geminga.ledger.state.ledger_table import LedgerTable, LostTail
from geminga.ledger.state.quarantine import Quarantine
from geminga.ledger.steps import emptied, parts, taken

_LEDGER_BYTES = 900
"""Memory of a changed ledger, in bytes."""
_ENTRY_BYTES = 16


class StoreState:
    """The state of an open store. Used on the owner's thread only."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.index = Index(catalog)
        self.quarantine = Quarantine()
        self.keys = KeyMap(catalog, self.quarantine)
        self.ledgers = LedgerTable(catalog, self.index, self.quarantine)
        self.files: set[int] = set()
        self.dropped_files: set[int] = set()
        self.unsaved_records = 0
        self.live_bytes: Counter[int] = Counter()
        """Bytes of entries and their records that each log file gained since the last checkpoint."""
        self._frozen_next_ledger_id = 0

    # --- written groups ---
    def settle(self, group: Group) -> tuple[dict[int, int], int]:
        """Add the positions of a group's entries; returns the entries per ledger, and their total size."""
        self.unsaved_records += len(group.kinds)
        self.ledgers.settled_groups += 1
        counts: dict[int, int] = {}
        table = self.ledgers
        size_bytes = moved_bytes = 0
        for kind, first, second, position, size, crc in zip(
            group.kinds, group.firsts, group.seconds, group.positions, group.sizes, group.crcs, strict=True
        ):
            if kind == RecordKind.ENTRY:
                ledger = table.held(first)
                if ledger is not None:
                    ledger.set_position(second, position, size, crc)
                    ledger.written_bytes += size
                    size_bytes += size
                    counts[first] = counts.get(first, 0) + 1
                    table.mark_changed(ledger)
            elif kind == RecordKind.CREATE:
                table.mark_changed(table.held(first))
            elif kind == RecordKind.DELETE_LEDGER:
                table.settle_deletion(first)
            elif kind == RecordKind.MOVED and table.exists(first):
                self.index.moved.setdefault(first, {})[second] = position
                moved_bytes += size + RECORD_BYTES
            elif kind == RecordKind.GIVE_UP:
                table.give_up(first, second)
        records_bytes = sum(counts.values()) * RECORD_BYTES
        self.live_bytes[group.position >> OFFSET_BITS] += size_bytes + records_bytes + moved_bytes
        return counts, size_bytes

    # --- checkpoints ---
    @property
    def unsaved_bytes(self) -> int:
        """Approximate memory of the changes since the last checkpoint."""
        changed_bytes = _LEDGER_BYTES * len(self.ledgers.changed) + _ENTRY_BYTES * self.unsaved_records
        return self.keys.unsaved_bytes + changed_bytes

    def freeze_calls(self) -> int:
        """Freeze the changes of the owner's calls so far; returns the checkpoint's number."""
        ledgers = self.ledgers
        ledgers.checkpoint += 1
        self.keys.freeze(ledgers.checkpoint)
        ledgers.deleted_frozen, ledgers.deleted = ledgers.deleted, set()
        self._frozen_next_ledger_id = ledgers.next_id
        return ledgers.checkpoint

    def freeze_positions(
        self, position: int, sequence: int, file_sizes: dict[int, int]
    ) -> tuple[CheckpointSnapshot, list[LedgerState]]:
        """Freeze the settled positions so far, all of which the checkpoint must write.

        `freeze_ledgers` adds the returned ledgers. No group may be settled before all are added.
        """
        changed, self.ledgers.changed = self.ledgers.changed, []
        self.index.moved_frozen, self.index.moved = self.index.moved, {}
        dropped, self.ledgers.dropped = self.ledgers.dropped, []
        live_bytes, self.live_bytes = dict(self.live_bytes), Counter()
        self.unsaved_records = 0
        snapshot = CheckpointSnapshot(
            number=self.ledgers.checkpoint,
            position=position,
            sequence=sequence,
            next_ledger_id=self._frozen_next_ledger_id,
            ledgers=[],
            deleted=self.ledgers.deleted_frozen,
            dropped=dropped,
            moved=self.index.moved_frozen,
            keys=self.keys.frozen,
            file_sizes=file_sizes,
            live_bytes=live_bytes,
            damage=list(self.quarantine),
            settled=self.quarantine.settled,
            doubt=(self.ledgers.doubt.ledgers_below, self.ledgers.doubt.entries_max),
        )
        return snapshot, changed

    def freeze_ledgers(self, ledgers: Iterable[LedgerState], snapshot: CheckpointSnapshot) -> None:
        """Add the changes of some ledgers to the snapshot."""
        for ledger in ledgers:
            if ledger.changed and self.ledgers.held(ledger.ledger_id) is not None:
                snapshot.ledgers.append(ledger.freeze())

    def thaw(self, snapshot: CheckpointSnapshot) -> Iterator[object]:
        """Free the frozen changes that the catalog now contains, in steps."""
        yield from self.keys.thaw()
        self.ledgers.deleted_frozen = set()
        yield from emptied(snapshot.deleted)
        yield from emptied(snapshot.dropped)
        for changes in taken(snapshot.ledgers):
            for change in changes:
                self.ledgers.mark_saved(change.owner, change.ledger_id)
            yield None
        for part in parts(snapshot.moved):
            for ledger_id in part:
                self.index.forget(ledger_id)
            yield None
        self.index.moved_frozen = {}
        yield from emptied(snapshot.moved)
        yield from self.ledgers.evict()

    def load(self) -> None:
        """Load the catalog's numbers, before the log behind it is replayed."""
        catalog = self._catalog
        self.ledgers.checkpoint = catalog.number("number")
        self.ledgers.next_id = catalog.number("next_ledger_id")
        self.keys.resume(self.ledgers.checkpoint)
        for name in catalog.settled():
            self.quarantine.settle(name)
        for damage in catalog.damage():
            self.quarantine.add(damage)
        self.files = set(catalog.files())
        self.ledgers.doubt = LostTail(catalog.number("doubt_below"), catalog.number("doubt_entries"))
