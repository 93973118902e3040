"""Damage that a recovery finds: reported, listed in the quarantine, and counted."""

import dataclasses
import logging

from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.files.format import (
    KIND_NAMES,
    OFFSET_BITS,
    OFFSET_MASK,
    RECORD_BYTES,
    Directory,
    GroupHeader,
    RecordKind,
    file_name,
    file_number,
    key_name,
)
from geminga.ledger.log.log import Gap
from geminga.ledger.recovery.replay import LogReplay
from geminga.ledger.state.index import MISSING
from geminga.ledger.state.ledger_table import NOBODY
from geminga.ledger.state.state import StoreState
from geminga.wire.checksum import crc32c

logger = logging.getLogger("geminga.ledger")


class RecoveryDamage:
    """Reports the damage of one recovery.

    ``unwritten_keys`` and ``unwritten_ledgers`` are in the catalog, but damaged in the log: the store must
    write them again, as the log must hold everything.
    """

    def __init__(self, folder: str, state: StoreState, replay: LogReplay) -> None:
        self._folder = folder
        self._state = state
        self._replay = replay
        self.lost_records = 0
        """Maximum records that may be lost without a trace of what they were."""
        self.from_beginning = False
        """Whether the whole log is replayed, because the catalog is lost."""
        self.unwritten_keys: set[str] = set()
        self.unwritten_ledgers: set[int] = set()

    def report(self, damage: Damage) -> bool:
        """List the damage; False if it is listed already."""
        is_new = self._state.quarantine.add(damage)
        if is_new:
            logger.error("damage in the store %s: %s", self._folder, damage)
        return is_new

    def at(
        self,
        position: int,
        what: str,
        ledger_id: int | None = None,
        first_entry_id: int | None = None,
        last_entry_id: int | None = None,
        *,
        lost: DamageLoss = DamageLoss.RECORDS,
    ) -> Damage:
        """Return the damage of what is at a position of the log."""
        return Damage(
            file_name(position >> OFFSET_BITS),
            position & OFFSET_MASK,
            what,
            ledger_id,
            first_entry_id,
            last_entry_id,
            lost,
        )

    def report_corrected_bits(self, header: GroupHeader, directory: Directory) -> None:
        """Report a corrected bit in a group's header or directory; nothing is lost."""
        for part, was_mended in (("header", header.was_mended), ("directory", directory.was_mended)):
            if was_mended:
                self.report(
                    self.at(header.position, f"one bit of a group's {part} is wrong", lost=DamageLoss.NOTHING)
                )

    def report_gap(self, gap: Gap, synced: int) -> None:
        end = min(gap.end, synced) if synced >> OFFSET_BITS == gap.position >> OFFSET_BITS else gap.end
        size = max(0, end - gap.position)
        self.lost_records += size // RECORD_BYTES + 1
        self.report(self.at(gap.position, f"{size} synced bytes that are no group of records"))

    def report_record(
        self, directory: Directory, index: int, position: int, payload: memoryview, *, is_cataloged: bool
    ) -> None:
        """List the damage of a record in the quarantine.

        ``is_cataloged``: the record is before the checkpoint, so that the catalog has its content.
        """
        kind, first, second = directory.kinds[index], directory.firsts[index], directory.seconds[index]
        state = self._state
        what = f"{KIND_NAMES.get(kind, f'record of kind {kind}')} fails its checksum"
        if kind in (RecordKind.ENTRY, RecordKind.MOVED):
            if not is_cataloged:
                self._replay.entry(
                    kind, first, second, position, directory.sizes[index], directory.crcs[index]
                )
            if not is_cataloged or state.ledgers.is_at(first, second, position):
                self.report(self.at(position, what, first, second, second, lost=DamageLoss.ENTRIES))
            return
        if kind in RecordKind.OF_KEYS:
            start = sum(directory.sizes[:index])
            body = payload[start : start + directory.sizes[index]]
            name = key_name(body[:first], second)
            if name is not None and crc32c(whole := name + body[first:]) == directory.crcs[index]:
                # One bit of the name is wrong: both checksums confirm the corrected name.
                if not is_cataloged:
                    crc = directory.crcs[index]
                    self._replay.record(kind, first, second, memoryview(whole), position, crc)
                self.report(self.at(position, "one bit of a key's name is wrong", lost=DamageLoss.NOTHING))
                return
            self._report_key(kind, name, second, position, what, is_cataloged)
            return
        if kind == RecordKind.CREATE:
            if is_cataloged or state.ledgers.exists(first):
                if self.report(self.at(position, what, first, lost=DamageLoss.NOTHING)):
                    self.unwritten_ledgers.add(first)
            else:
                self._replay.create(first, NOBODY)
                self.report(self.at(position, what, first, lost=DamageLoss.OWNER))
            return
        self.report(self.at(position, what, lost=DamageLoss.NOTHING))

    def _report_key(
        self, kind: int, name: bytes | None, fingerprint: int, position: int, what: str, is_cataloged: bool
    ) -> None:
        """List a damaged write of a key, whose name may be damaged too."""
        keys = self._state.keys
        key = name.decode("utf-8", "replace") if name is not None else None
        lost = DamageLoss.DELTA if kind == RecordKind.MERGE else DamageLoss.VALUE
        if is_cataloged or (kind == RecordKind.RESTATE and not self.from_beginning):
            lost = DamageLoss.NOTHING  # the catalog has the value
        damage = dataclasses.replace(
            self.at(position, what, lost=lost), key=key, fingerprint=fingerprint if key is None else None
        )
        if lost == DamageLoss.DELTA and key is not None:
            keys.change(key).deltas.append(b"")  # keeps the positions of the other deltas
        if self.report(damage) and lost == DamageLoss.NOTHING:
            found = [key] if key is not None else keys.named({fingerprint}).get(fingerprint, [])
            self.unwritten_keys.update(found)

    def resolve_names(self) -> None:
        """Find the keys of losses whose names are lost, among the known keys."""
        quarantine = self._state.quarantine
        if quarantine.nameless:
            quarantine.resolve(self._state.keys.named(quarantine.nameless))

    def forget_moved(self) -> None:
        """Remove damage of entries that were rewritten since, and are intact."""
        quarantine = self._state.quarantine
        for damage in quarantine:
            number = file_number(damage.file)
            if damage.lost != DamageLoss.ENTRIES or number is None or damage.ledger_id is None:
                continue
            first, last = damage.first_entry_id or 0, damage.last_entry_id or 0
            position = number << OFFSET_BITS | damage.offset
            if first == last and not self._state.ledgers.is_at(damage.ledger_id, first, position):
                quarantine.discard(damage)

    def report_missing_entries(self) -> None:
        """Report the entries whose records are lost, known by the gap in their ledger's ids."""
        for ledger in self._state.ledgers.loaded.values():
            tail = ledger.tail
            first: int | None = None
            for index, position in enumerate(tail.positions):
                if position == MISSING and first is None:
                    first = index
                elif position != MISSING and first is not None:
                    self.report(
                        self.at(
                            position,
                            "entries before this position are lost",
                            ledger.ledger_id,
                            tail.first + first,
                            tail.first + index - 1,
                            lost=DamageLoss.ENTRIES,
                        )
                    )
                    first = None
