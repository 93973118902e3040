"""State of a store: ledgers, keys, and their changes that are not in the catalog yet.

The state changes in two ways. A call of the owner (create, append, delete, put ...) changes it at once, as
its order among the writes is fixed then. When the group with the call's record is on disk, `settle` adds the
positions of the bytes. After a restart `replay` does both from the log alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

from geminga.errors import LedgerNotFound
from geminga.ledger.api import StoredLedger
from geminga.ledger.catalog import PAGE_LEDGERS, Catalog, CheckpointSnapshot, EntryChunk
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.format import (
    CREATE,
    DELETE_KEY,
    DELETE_LEDGER,
    DROP_FILE,
    ENTRY,
    GIVE_UP,
    MANIFEST,
    MERGE,
    MOVED,
    OFFSET_BITS,
    OFFSET_MASK,
    PUT,
    RECORD_BYTES,
    REMAINS,
    RESTATE,
    SETTLE,
    Directory,
    decode_remains,
    decode_value,
    file_name,
    unpack_numbers,
)
from geminga.ledger.index import GIVEN_UP, Index, LedgerState
from geminga.ledger.key_bloom_filter import KeyBloomFilter
from geminga.ledger.keys import KeyMap
from geminga.ledger.log import Group
from geminga.ledger.quarantine import Quarantine
from geminga.ledger.settings import StoreSettings
from geminga.ledger.steps import emptied, parts, taken

_LEDGER_BYTES = 900
"""Memory of a changed ledger, in bytes."""
_ENTRY_BYTES = 16

RELEASED = -1
"""Generation of a released ledger: lower than that of every checkpoint."""
NOBODY = ""
"""Owner of a ledger whose own owner is lost to damage."""


class StoreCounts(NamedTuple):
    """Numbers of log files, ledgers and keys in a store."""

    log_files: int
    log_bytes: int
    ledgers: int
    keys: int


@dataclass(slots=True, eq=False, repr=False)
class LostTail:
    """Ledgers below an id may have lost ``entries_max`` entries at their end, whose ids `append` skips."""

    ledgers_below: int = 0
    entries_max: int = 0


class StoreState:
    """The state of an open store. Used on the owner's thread only."""

    def __init__(self, catalog: Catalog, index_cache_bytes: int) -> None:
        self._catalog = catalog
        self.index = Index(catalog, index_cache_bytes)
        self.quarantine = Quarantine()
        self.bloom_filter = KeyBloomFilter()
        self.keys = KeyMap(catalog, self.quarantine, self.bloom_filter)
        self.ledgers: dict[int, LedgerState] = {}
        self.next_ledger_id = 0
        self.checkpoint = 0
        self.doubt = LostTail()
        self.files: set[int] = set()
        self.dropped_files: set[int] = set()
        self.unsaved_records = 0
        self.settled_groups = 0
        self._uncataloged: dict[str, list[int]] = {}
        self._dying: dict[int, LedgerState] = {}
        self._deleted: set[int] = set()
        self._deleted_frozen: set[int] = set()
        self._changed: list[LedgerState] = []
        self._live_bytes: Counter[int] = Counter()
        self._dropped: list[EntryChunk] = []
        self._frozen_next_ledger_id = 0
        self._orphans: dict[int, LedgerState] = {}

    # --- the owner's calls ---
    def create_ledger(self, owner: str) -> LedgerState:
        ledger = LedgerState(self.next_ledger_id, owner, 0, 0)
        self.next_ledger_id += 1
        ledger.since = self.settled_groups
        self._add_ledger(ledger)
        return ledger

    def _add_ledger(self, ledger: LedgerState) -> None:
        ledger.generation = self.checkpoint
        self.ledgers[ledger.ledger_id] = ledger
        self._uncataloged.setdefault(ledger.owner, []).append(ledger.ledger_id)
        self.bloom_filter.add_owner(ledger.owner)

    def adopt_ledger(self, ledger_id: int, owner: str) -> bool:
        """Give an owner to a ledger whose owner was lost to damage; False for other ledgers."""
        if not self.exists(ledger_id) or self.ledgers[ledger_id].owner != NOBODY:
            return False
        self._uncatalog(NOBODY, ledger_id)
        self.ledgers[ledger_id].owner = owner
        self._add_ledger(self.ledgers[ledger_id])
        self.quarantine.ledger_has_owner(ledger_id)
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
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._load(ledger_id)
        ledger.generation = self.checkpoint
        return ledger

    def _load(self, ledger_id: int) -> LedgerState:
        found = None
        if ledger_id not in self._deleted and ledger_id not in self._deleted_frozen:
            found = self._catalog.ledger(ledger_id) if 0 <= ledger_id < self.next_ledger_id else None
        if found is None:
            raise LedgerNotFound(f"ledger {ledger_id} does not exist or was trimmed away")
        owner, entries, size_bytes = found
        ledger = self.ledgers[ledger_id] = LedgerState(ledger_id, owner, entries, size_bytes)
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
            ledger = self.ledgers.get(ledger_id)
            if ledger is None:
                continue
            ledger.generation = RELEASED
            self._let_go(ledger)

    def _let_go(self, ledger: LedgerState) -> None:
        """Unload a ledger if the catalog has its whole state."""
        ledger_id = ledger.ledger_id
        is_known = ledger.is_idle and ledger_id not in self._uncataloged.get(ledger.owner, ())
        if is_known and ledger_id not in self.index.moved and ledger_id not in self.index.moved_frozen:
            self.index.forget(ledger)
            del self.ledgers[ledger_id]

    def lost_entries_max(self, ledger_id: int) -> int:
        """Return how many entries at the end of a ledger, which may be deleted, damage may have destroyed."""
        ledger = self.ledgers.get(ledger_id)
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

    def count_ledgers(self) -> int:
        ids = self._catalog.ledger_ids()
        for uncataloged in self._uncataloged.values():
            ids.update(uncataloged)
        return len(ids - self._deleted - self._deleted_frozen)

    def owned(self, owner: str) -> list[StoredLedger]:
        cataloged = self._catalog.owned(owner) if self.bloom_filter.may_own(owner) else ()
        ids = {*cataloged, *self._uncataloged.get(owner, ())}
        infos = []
        for ledger_id in sorted(ids - self._deleted - self._deleted_frozen):
            ledger = self.ledgers.get(ledger_id)
            if ledger is not None:
                if ledger.owner == owner:
                    infos.append(StoredLedger(ledger_id, owner, ledger.next_entry, ledger.size_bytes))
                continue
            found = self._catalog.ledger(ledger_id)
            if found is not None:
                infos.append(StoredLedger(ledger_id, owner, found[1], found[2]))
        return infos

    def position_of(self, ledger_id: int, entry_id: int) -> tuple[str, int, int, int] | None:
        """Return (file name, offset, size, checksum) of an entry; None if it has no position."""
        located = self.index.locate(self.ledger(ledger_id), entry_id) if self.exists(ledger_id) else None
        if located is None:
            return None
        chunk, index = located
        position = self.index.position(ledger_id, chunk, index)
        name = file_name(position >> OFFSET_BITS)
        return (name, position & OFFSET_MASK, chunk.sizes[index], chunk.crcs[index]) if position else None

    def ledgers_page(self, after: int) -> tuple[list[StoredLedger], int | None]:
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
            infos += [StoredLedger(each, "", 0, 0) for each in young if each in self.ledgers]
            after_next = young[-1] if len(young) == PAGE_LEDGERS else None
        gone = (self._deleted, self._deleted_frozen)
        infos = [info for info in infos if not any(info.ledger_id in each for each in gone)]
        return [self._newest(info) for info in infos], after_next

    def _newest(self, info: StoredLedger) -> StoredLedger:
        """Return the current state of a ledger, as the catalog may have an older one."""
        ledger = self.ledgers.get(info.ledger_id)
        if ledger is None:
            return info
        return StoredLedger(ledger.ledger_id, ledger.owner, ledger.next_entry, ledger.size_bytes)

    def delete_ledger(self, ledger_id: int) -> bool:
        """Delete a ledger; False if it does not exist.

        Its positions are kept until the deletion is on disk, as a checkpoint before that still includes them.
        """
        try:
            ledger = self.ledger(ledger_id)
        except LedgerNotFound:
            return False
        self._dying[ledger_id] = self.ledgers.pop(ledger_id)
        self._uncatalog(ledger.owner, ledger_id)
        self._deleted.add(ledger_id)
        self.quarantine.ledger_is_gone(ledger_id)
        return True

    def _settle_deletion(self, ledger_id: int) -> None:
        ledger = self._dying.pop(ledger_id, None)
        if ledger is not None:
            self.index.forget(ledger)
            if len(ledger.tail):
                self._dropped.append(ledger.tail)

    # --- written groups ---
    def settle(self, group: Group) -> tuple[dict[int, int], int]:
        """Add the positions of a group's entries; returns the entries per ledger, and their total size."""
        self.unsaved_records += len(group.kinds)
        self.settled_groups += 1
        if group.kinds.count(ENTRY) == len(group.kinds):
            first = group.firsts[0]
            if group.firsts.count(first) == len(group.kinds):
                self._settle_run(first, group)
                return {first: len(group.kinds)}, group.payload_bytes
        return self._settle_mixed(group)

    def _settle_run(self, ledger_id: int, group: Group) -> None:
        """Settle a group that contains only entries of one ledger."""
        ledger = self.ledgers.get(ledger_id) or self._dying.get(ledger_id)
        if ledger is None:
            return
        tail = ledger.tail
        if group.seconds[0] == tail.first + len(tail.positions):
            tail.positions.extend(group.positions)
            tail.sizes.extend(group.sizes)
            tail.crcs.extend(group.crcs)
        else:
            for entry_id, position, size, crc in zip(
                group.seconds, group.positions, group.sizes, group.crcs, strict=True
            ):
                ledger.set_position(entry_id, position, size, crc)
        ledger.written_bytes += group.payload_bytes
        self._live_bytes[group.position >> OFFSET_BITS] += (
            group.payload_bytes + len(group.kinds) * RECORD_BYTES
        )
        if not ledger.changed:
            ledger.changed = True
            self._changed.append(ledger)

    def _settle_mixed(self, group: Group) -> tuple[dict[int, int], int]:
        counts: dict[int, int] = {}
        ledgers = self.ledgers
        live_bytes = moved_bytes = records = 0
        for kind, first, second, position, size, crc in zip(
            group.kinds, group.firsts, group.seconds, group.positions, group.sizes, group.crcs, strict=True
        ):
            if kind == ENTRY:
                ledger = ledgers.get(first) or self._dying.get(first)
                if ledger is None:
                    continue
                tail = ledger.tail
                if second == tail.first + len(tail.positions):
                    tail.positions.append(position)
                    tail.sizes.append(size)
                    tail.crcs.append(crc)
                else:
                    ledger.set_position(second, position, size, crc)
                ledger.written_bytes += size
                live_bytes += size
                records += 1
                counts[first] = counts.get(first, 0) + 1
                if not ledger.changed:
                    ledger.changed = True
                    self._changed.append(ledger)
            elif kind == CREATE:
                self._mark_changed(first)
            elif kind == DELETE_LEDGER:
                self._settle_deletion(first)
            elif kind == MOVED and self.exists(first):
                self.index.moved.setdefault(first, {})[second] = position
                moved_bytes += size + RECORD_BYTES
            elif kind == GIVE_UP:
                self.give_up(first, second)
        self._live_bytes[group.position >> OFFSET_BITS] += live_bytes + records * RECORD_BYTES + moved_bytes
        return counts, live_bytes

    def _mark_changed(self, ledger_id: int) -> None:
        ledger = self.ledgers.get(ledger_id) or self._dying.get(ledger_id)
        if ledger is not None and not ledger.changed:
            ledger.changed = True
            self._changed.append(ledger)

    # --- replay ---
    def replay_group(
        self,
        directory: Directory,
        positions: list[int],
        payload: memoryview,
        bad: Set[int] = frozenset(),
        report: Callable[[int], None] | None = None,
    ) -> None:
        """Replay a group of the log, as the calls and their settling did originally.

        ``report`` is called for each of the ``bad`` records in its turn, as a later write of the key makes it
        whole again.
        """
        ledgers = self.ledgers
        live_bytes = start = 0
        for index, (kind, first, second, size, crc, position) in enumerate(
            zip(
                directory.kinds,
                directory.firsts,
                directory.seconds,
                directory.sizes,
                directory.crcs,
                positions,
                strict=True,
            )
        ):
            end = start + size
            if report is not None and index in bad:
                report(index)
                start = end
                continue
            ledger = ledgers.get(first) if kind == ENTRY else None
            if ledger is not None and second == ledger.tail.first + len(ledger.tail.positions):
                ledger.tail.positions.append(position)
                ledger.tail.sizes.append(size)
                ledger.tail.crcs.append(crc)
                ledger.written_bytes += size
                live_bytes += size + RECORD_BYTES
                if not ledger.changed:
                    ledger.changed = True
                    self._changed.append(ledger)
            else:
                self.replay(kind, first, second, payload[start:end], position, crc)
            start = end
        self._live_bytes[positions[0] >> OFFSET_BITS] += live_bytes
        self.unsaved_records += len(positions)

    def replay(
        self, kind: int, first: int, second: int, payload: memoryview, position: int, crc: int
    ) -> None:
        if kind in (ENTRY, MOVED):
            self.replay_entry(kind, first, second, position, len(payload), crc)
        elif kind == MERGE:
            self.keys.merge(str(payload[:first], "utf-8"), bytes(payload[first:]))
        elif kind == PUT:
            self.keys.put(str(payload[:first], "utf-8"), bytes(payload[first:]))
        elif kind == DELETE_KEY:
            self.keys.delete(str(payload[:first], "utf-8"))
        elif kind == RESTATE:
            key = str(payload[:first], "utf-8")
            self.keys.restate(key, *decode_value(payload[first:]))
            self.quarantine.key_is_whole(key)
        elif kind == REMAINS:
            self._replay_remains(str(payload[:first], "utf-8"), payload[first:], position)
        elif kind == CREATE:
            self.replay_create(first, str(payload, "utf-8"))
        elif kind == GIVE_UP:
            self._replay_give_up(first, second)
        elif kind == SETTLE:
            self.quarantine.settle(str(payload, "utf-8"))
        elif kind == DELETE_LEDGER:
            self._orphans.pop(first, None)
            self.quarantine.ledger_is_gone(first)
            self.delete_ledger(first)
            self._settle_deletion(first)
            self._deleted.add(first)
        elif kind == MANIFEST:
            self.files = set(unpack_numbers("Q", payload))
            self.next_ledger_id = max(self.next_ledger_id, first)
        elif kind == DROP_FILE:
            self.files.discard(first)
            self.dropped_files.add(first)

    def is_at(self, ledger_id: int, entry_id: int, position: int) -> bool:
        """Whether the index has the entry at this position."""
        if not self.exists(ledger_id):
            return False
        located = self.index.locate(self.ledgers[ledger_id], entry_id)
        return located is not None and self.index.position(ledger_id, *located) == position

    def replay_entry(self, kind: int, first: int, second: int, position: int, size: int, crc: int) -> None:
        ledger = self.ledgers.get(first) or self._orphans.get(first)
        if ledger is None:
            if first in self._deleted:
                return
            try:
                ledger = self.ledger(first)
            except LedgerNotFound:
                # Its creation may follow later in the log (rewritten), or its deletion.
                ledger = self._orphans[first] = LedgerState(first, "", 0, 0)
        self._live_bytes[position >> OFFSET_BITS] += size + RECORD_BYTES
        if second < ledger.tail.first:
            if kind == MOVED:
                self.index.moved.setdefault(first, {})[second] = position
            return
        before = ledger.set_position(second, position, size, crc)
        if before is None or before[0] == 0:
            ledger.written_bytes += size
        else:
            self._live_bytes[before[0] >> OFFSET_BITS] -= size + RECORD_BYTES
        if not ledger.changed:
            ledger.changed = True
            self._changed.append(ledger)

    def _replay_remains(self, key: str, payload: memoryview, position: int) -> None:
        values, deltas, base, rest = decode_remains(payload)
        self.keys.restate(key, base, rest)
        self.quarantine.key_is_whole(key)
        name, offset = file_name(position >> OFFSET_BITS), position & OFFSET_MASK
        for number in range(values + deltas):
            lost = DamageLoss.VALUE if number < values else DamageLoss.DELTA
            self.quarantine.add(
                Damage(name, offset + number, f"a {lost} was lost before", lost=lost, key=key)
            )

    def _replay_give_up(self, ledger_id: int, entry_id: int) -> None:
        ledger = self.ledgers.get(ledger_id) or self._orphans.get(ledger_id)
        if ledger is None:
            if not self.exists(ledger_id):
                return
            ledger = self.ledgers[ledger_id]
        if entry_id < ledger.tail.first:
            self.index.moved.setdefault(ledger_id, {})[entry_id] = GIVEN_UP
        else:
            ledger.give_up(entry_id)
            self._mark_changed(ledger_id)

    def replay_create(self, ledger_id: int, owner: str) -> None:
        """Replay a ledger's creation or adoption. `NOBODY` if the owner is lost."""
        self.next_ledger_id = max(self.next_ledger_id, ledger_id + 1)
        if ledger_id in self._deleted:
            return
        if self.exists(ledger_id):
            if owner != NOBODY and self.adopt_ledger(ledger_id, owner):
                self._mark_changed(ledger_id)
            return
        ledger = self._orphans.pop(ledger_id, None) or LedgerState(ledger_id, owner, 0, 0)
        ledger.owner = owner
        self._add_ledger(ledger)
        self._mark_changed(ledger_id)

    def end_replay(self) -> list[LedgerState]:
        """End the replay; returns the ledgers with entries whose creation is lost, owned by `NOBODY`."""
        orphans = [orphan for orphan in self._orphans.values() if orphan.ledger_id not in self._deleted]
        self._orphans.clear()
        for orphan in orphans:
            self.next_ledger_id = max(self.next_ledger_id, orphan.ledger_id + 1)
            self._add_ledger(orphan)
        self._changed = [ledger for ledger in self._changed if ledger.ledger_id in self.ledgers]
        for ledger in self._changed:
            ledger.next_entry = ledger.recent_first = ledger.tail.first + len(ledger.tail)
            ledger.size_bytes = ledger.written_bytes
        return orphans

    # --- checkpoints ---
    @property
    def unsaved_bytes(self) -> int:
        """Approximate memory of the changes since the last checkpoint."""
        return (
            self.keys.unsaved_bytes + _LEDGER_BYTES * len(self._changed) + _ENTRY_BYTES * self.unsaved_records
        )

    def outgrows(self, settings: StoreSettings) -> bool:
        """Whether the unsaved changes are large enough for a checkpoint."""
        return (
            self.unsaved_records >= settings.checkpoint_records
            or self.unsaved_bytes >= settings.checkpoint_state_bytes
        )

    def freeze_calls(self) -> int:
        """Freeze the changes of the owner's calls so far; returns the checkpoint's number."""
        self.checkpoint += 1
        self.keys.freeze(self.checkpoint)
        self._deleted_frozen, self._deleted = self._deleted, set()
        self._frozen_next_ledger_id = self.next_ledger_id
        return self.checkpoint

    def freeze_positions(
        self, position: int, sequence: int, file_sizes: dict[int, int]
    ) -> tuple[CheckpointSnapshot, list[LedgerState]]:
        """Freeze the settled positions so far, all of which the checkpoint must write.

        `freeze_ledgers` adds the returned ledgers. No group may be settled before all are added.
        """
        changed, self._changed = self._changed, []
        self.index.moved_frozen, self.index.moved = self.index.moved, {}
        dropped, self._dropped = self._dropped, []
        live_bytes, self._live_bytes = dict(self._live_bytes), Counter()
        self.unsaved_records = 0
        snapshot = CheckpointSnapshot(
            number=self.checkpoint,
            position=position,
            sequence=sequence,
            next_ledger_id=self._frozen_next_ledger_id,
            ledgers=[],
            deleted=self._deleted_frozen,
            dropped=dropped,
            moved=self.index.moved_frozen,
            keys=self.keys.frozen,
            file_sizes=file_sizes,
            live_bytes=live_bytes,
            damage=list(self.quarantine),
            settled=self.quarantine.settled,
            doubt=(self.doubt.ledgers_below, self.doubt.entries_max),
        )
        return snapshot, changed

    def freeze_ledgers(self, ledgers: Iterable[LedgerState], snapshot: CheckpointSnapshot) -> None:
        """Add the changes of some ledgers to the snapshot."""
        for ledger in ledgers:
            lives = ledger.ledger_id in self.ledgers or ledger.ledger_id in self._dying
            if lives and ledger.changed:
                snapshot.ledgers.append(ledger.freeze())

    def thaw(self, snapshot: CheckpointSnapshot) -> Iterator[object]:
        """Free the changes that the catalog has, in steps."""
        yield from self.keys.thaw()
        self._deleted_frozen = set()
        yield from emptied(snapshot.deleted)
        yield from emptied(snapshot.dropped)
        for changes in taken(snapshot.ledgers):
            for change in changes:
                ledger = self.ledgers.get(change.ledger_id) or self._dying.get(change.ledger_id)
                if ledger is not None:
                    ledger.frozen = None
                self._uncatalog(change.owner, change.ledger_id)
            yield None
        for part in parts(snapshot.moved):
            for ledger in filter(None, map(self.ledgers.get, part)):
                self.index.forget(ledger)
            yield None
        self.index.moved_frozen = {}
        yield from emptied(snapshot.moved)
        yield from self._evict()

    def _evict(self) -> Iterator[None]:
        """Unload ledgers that are released, or unused since the checkpoint before the last.

        Their recent entries are unloaded with them.
        """
        before = self.checkpoint - 1
        for part in parts(list(self.ledgers.values())):
            for ledger in part:
                if ledger.generation < before and self.ledgers.get(ledger.ledger_id) is ledger:
                    self._let_go(ledger)
            yield None

    def cast_doubt(self, records_max: int) -> None:
        """Note that damage may have destroyed this many records: last entries of any ledger, or creations."""
        if records_max:
            self.next_ledger_id += records_max
            self.doubt = LostTail(self.next_ledger_id, max(records_max, self.doubt.entries_max))
            for ledger in self.ledgers.values():
                ledger.doubted = True

    def load(self) -> None:
        """Load the catalog's numbers, before the log behind it is replayed."""
        catalog = self._catalog
        self.checkpoint = catalog.number("number")
        self.next_ledger_id = catalog.number("next_ledger_id")
        self.keys.resume(self.checkpoint)
        for name in catalog.settled():
            self.quarantine.settle(name)
        for damage in catalog.damage():
            self.quarantine.add(damage)
        self.files = set(catalog.files())
        self.doubt = LostTail(catalog.number("doubt_below"), catalog.number("doubt_entries"))
