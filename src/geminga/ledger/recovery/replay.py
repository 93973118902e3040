"""Replay of the log into the state of a store, after a restart."""

from collections.abc import Callable, Set

from geminga.errors import LedgerNotFound
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.files.format import (
    OFFSET_BITS,
    OFFSET_MASK,
    RECORD_BYTES,
    Directory,
    RecordKind,
    decode_remains,
    decode_value,
    file_name,
    unpack_numbers,
)
from geminga.ledger.state.index import GIVEN_UP, LedgerState
from geminga.ledger.state.ledger_table import NOBODY
from geminga.ledger.state.state import StoreState


class LogReplay:
    """Applies records of the log to a state, as the owner's calls and their settling did originally."""

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self._ledgers = state.ledgers
        self._orphans: dict[int, LedgerState] = {}
        """Ledgers with entries whose creation was not replayed yet."""

    def group(
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
        start = 0
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
            else:
                self.record(kind, first, second, payload[start:end], position, crc)
            start = end
        self._state.unsaved_records += len(positions)

    def record(
        self, kind: int, first: int, second: int, payload: memoryview, position: int, crc: int
    ) -> None:
        """Replay one intact record."""
        if kind in (RecordKind.ENTRY, RecordKind.MOVED):
            self.entry(kind, first, second, position, len(payload), crc)
        elif kind == RecordKind.MERGE:
            self._state.keys.merge(str(payload[:first], "utf-8"), bytes(payload[first:]))
        elif kind == RecordKind.PUT:
            self._state.keys.put(str(payload[:first], "utf-8"), bytes(payload[first:]))
        elif kind == RecordKind.DELETE_KEY:
            self._state.keys.delete(str(payload[:first], "utf-8"))
        elif kind == RecordKind.RESTATE:
            key = str(payload[:first], "utf-8")
            self._state.keys.restate(key, *decode_value(payload[first:]))
            self._state.quarantine.key_is_whole(key)
        elif kind == RecordKind.REMAINS:
            self._replay_remains(str(payload[:first], "utf-8"), payload[first:], position)
        elif kind == RecordKind.CREATE:
            self.create(first, str(payload, "utf-8"))
        elif kind == RecordKind.GIVE_UP:
            self._replay_give_up(first, second)
        elif kind == RecordKind.SETTLE:
            self._state.quarantine.settle(str(payload, "utf-8"))
        elif kind == RecordKind.DELETE_LEDGER:
            self._orphans.pop(first, None)
            self._state.quarantine.ledger_is_gone(first)
            self._ledgers.delete(first)
            self._ledgers.settle_deletion(first)
            self._ledgers.deleted.add(first)
        elif kind == RecordKind.MANIFEST:
            self._state.files = set(unpack_numbers("Q", payload))
            self._ledgers.next_id = max(self._ledgers.next_id, first)
        elif kind == RecordKind.DROP_FILE:
            self._state.files.discard(first)
            self._state.dropped_files.add(first)

    def entry(self, kind: int, first: int, second: int, position: int, size: int, crc: int) -> None:
        """Replay the position of an entry, whose bytes may be damaged."""
        ledger = self._ledgers.loaded.get(first) or self._orphans.get(first)
        if ledger is None:
            if first in self._ledgers.deleted:
                return
            try:
                ledger = self._ledgers.ledger(first)
            except LedgerNotFound:
                # Its creation may follow later in the log (rewritten), or its deletion.
                ledger = self._orphans[first] = LedgerState(first, "", 0, 0)
        self._state.live_bytes[position >> OFFSET_BITS] += size + RECORD_BYTES
        if second < ledger.tail.first:
            if kind == RecordKind.MOVED:
                self._ledgers.index.moved.setdefault(first, {})[second] = position
            return
        before = ledger.set_position(second, position, size, crc)
        if before is None or before[0] == 0:
            ledger.written_bytes += size
        else:
            self._state.live_bytes[before[0] >> OFFSET_BITS] -= size + RECORD_BYTES
        self._ledgers.mark_changed(ledger)

    def _replay_remains(self, key: str, payload: memoryview, position: int) -> None:
        values, deltas, base, rest = decode_remains(payload)
        self._state.keys.restate(key, base, rest)
        self._state.quarantine.key_is_whole(key)
        name, offset = file_name(position >> OFFSET_BITS), position & OFFSET_MASK
        for number in range(values + deltas):
            lost = DamageLoss.VALUE if number < values else DamageLoss.DELTA
            self._state.quarantine.add(
                Damage(name, offset + number, f"a {lost} was lost before", lost=lost, key=key)
            )

    def _replay_give_up(self, ledger_id: int, entry_id: int) -> None:
        ledger = self._ledgers.loaded.get(ledger_id) or self._orphans.get(ledger_id)
        if ledger is None:
            if not self._ledgers.exists(ledger_id):
                return
            ledger = self._ledgers.loaded[ledger_id]
        if entry_id < ledger.tail.first:
            self._ledgers.index.moved.setdefault(ledger_id, {})[entry_id] = GIVEN_UP
        else:
            ledger.give_up(entry_id)
            self._ledgers.mark_changed(ledger)

    def create(self, ledger_id: int, owner: str) -> None:
        """Replay a ledger's creation or adoption. `NOBODY` if the owner is lost."""
        self._ledgers.next_id = max(self._ledgers.next_id, ledger_id + 1)
        if ledger_id in self._ledgers.deleted:
            return
        if self._ledgers.exists(ledger_id):
            if owner != NOBODY and self._ledgers.adopt(ledger_id, owner):
                self._ledgers.mark_changed(self._ledgers.held(ledger_id))
            return
        ledger = self._orphans.pop(ledger_id, None) or LedgerState(ledger_id, owner, 0, 0)
        ledger.owner = owner
        self._ledgers.add(ledger)
        self._ledgers.mark_changed(ledger)

    def end(self) -> list[LedgerState]:
        """End the replay; returns the ledgers with entries whose creation is lost, owned by `NOBODY`."""
        ledgers = self._ledgers
        orphans = [orphan for orphan in self._orphans.values() if orphan.ledger_id not in ledgers.deleted]
        self._orphans.clear()
        for orphan in orphans:
            ledgers.next_id = max(ledgers.next_id, orphan.ledger_id + 1)
            ledgers.add(orphan)
        ledgers.changed = [ledger for ledger in ledgers.changed if ledger.ledger_id in ledgers.loaded]
        for ledger in ledgers.changed:
            ledger.next_entry = ledger.recent_first = ledger.tail.first + len(ledger.tail)
            ledger.size_bytes = ledger.written_bytes
        return orphans
