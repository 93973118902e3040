"""Reading entries: from memory while they are recent, else from the log, with their checksums verified."""

from __future__ import annotations

from collections.abc import Callable

from geminga.errors import StoreDamaged
from geminga.ledger.damage import Damage, EntriesDamaged, Loss
from geminga.ledger.format import OFFSET_BITS, OFFSET_MASK, describe, file_name
from geminga.ledger.index import GIVEN_UP, MISSING, LedgerState
from geminga.ledger.log import LogFiles
from geminga.ledger.state import StoreState
from geminga.wire.checksum import crc32c

_GAP_BYTES_MAX = 16 * 1024  # reading over so much foreign data is cheaper than another read
_RUN_BYTES_MAX = 4 * 1024 * 1024

Place = tuple[int, int, int, int]
"""(entry id, position, size, checksum)."""


class EntryReader:
    """Reads entries of ledgers. Used on the owner's thread only."""

    def __init__(self, state: StoreState, files: LogFiles, note_damage: Callable[[Damage], None]) -> None:
        self._state = state
        self._files = files
        self._note_damage = note_damage

    def read(self, ledger: LedgerState, first: int, entries_max: int, bytes_max: int) -> list[bytes]:
        """Entries from ``first`` on within both limits, at least one if it is there."""
        first = max(first, 0)
        if first >= ledger.recent_first:
            return _recent(ledger, first, entries_max, bytes_max)
        places = self._places(ledger, first, min(entries_max, ledger.recent_first - first), bytes_max)
        entries = self._read_places(ledger, places)
        more = entries_max - len(entries)
        if more > 0 and first + len(entries) == ledger.recent_first and ledger.recent:
            rest = bytes_max - sum(map(len, entries))
            if rest >= len(ledger.recent[0]):
                entries += _recent(ledger, ledger.recent_first, more, rest)
        return entries

    def _places(self, ledger: LedgerState, first: int, count: int, bytes_max: int) -> list[Place]:
        index = self._state.index
        places: list[Place] = []
        total = 0
        entry_id, end = first, first + count
        while entry_id < end:
            located = index.locate(ledger, entry_id)
            if located is None:
                # Ids that were stepped over, because damage may have taken them.
                places.append((entry_id, MISSING, 0, 0))
                return places
            chunk, start = located
            for at in range(start, min(len(chunk), start + end - entry_id)):
                size = chunk.sizes[at]
                total += size
                if total > bytes_max and places:
                    return places
                places.append((entry_id, index.position(ledger.ledger_id, chunk, at), size, chunk.crcs[at]))
                entry_id += 1
        return places

    def _read_places(self, ledger: LedgerState, places: list[Place]) -> list[bytes]:
        """The entries before the first damaged one, in few reads; `EntriesDamaged` if there are none."""
        entries: list[bytes] = []
        start = 0
        while start < len(places):
            stop = _run_end(places, start)
            try:
                self._read_run(ledger, places[start:stop], entries)
            except StoreDamaged:
                if not entries:
                    raise
                return entries
            start = stop
        return entries

    def _read_run(self, ledger: LedgerState, run: list[Place], entries: list[bytes]) -> None:
        base = run[0][1]
        if base <= GIVEN_UP:
            raise self._lost(ledger, run)
        size = run[-1][1] + run[-1][2] - base
        try:
            data = self._files.get(base >> OFFSET_BITS).read(size, base & OFFSET_MASK)
        except StoreDamaged as error:
            raise self._damaged(ledger, run[0], str(error)) from None
        except OSError as error:
            raise self._damaged(ledger, run[0], f"the entry cannot be read ({error})") from error
        if len(run) == 1:
            if len(data) != size or crc32c(data) != run[0][3]:
                raise self._damaged(ledger, run[0], "entry fails its checksum")
            entries.append(data)
            return
        for place in run:
            _, position, length, crc = place
            entry = data[position - base : position - base + length]
            if len(entry) != length or crc32c(entry) != crc:
                raise self._damaged(ledger, place, "entry fails its checksum")
            entries.append(entry)

    def _damaged(self, ledger: LedgerState, place: Place, what: str) -> EntriesDamaged:
        entry_id, position = place[:2]
        damage = Damage(
            file_name(position >> OFFSET_BITS),
            position & OFFSET_MASK,
            what,
            ledger.ledger_id,
            entry_id,
            entry_id,
            Loss.ENTRIES,
        )
        self._note_damage(damage)
        return EntriesDamaged(
            f"ledger {ledger.ledger_id}, entry {entry_id} ({describe(position)}): {what}; "
            "the store's other data is not affected",
            damage,
        )

    def _lost(self, ledger: LedgerState, run: list[Place]) -> EntriesDamaged:
        """For entries that the log does not have; they are listed unless somebody gave them up."""
        first, last = run[0][0], run[-1][0]
        what = "entries lost to damage" if run[0][1] == MISSING else "entries lost to damage and given up"
        damage = Damage("log", 0, what, ledger.ledger_id, first, last, Loss.ENTRIES)
        if run[0][1] == MISSING:
            self._note_damage(damage)
        return EntriesDamaged(f"{damage.thing}: {what}; the store's other data is not affected", damage)


def _run_end(places: list[Place], start: int) -> int:
    """Where the run of entries ends that one read fetches, or that are lost in the same way."""
    first = places[start][1]
    end = first + places[start][2]
    stop = start + 1
    while stop < len(places):
        _, position, size, _ = places[stop]
        if first <= GIVEN_UP:
            if position != first:
                break
            stop += 1
            continue
        if not end <= position <= end + _GAP_BYTES_MAX or position >> OFFSET_BITS != first >> OFFSET_BITS:
            break
        if position + size - first > _RUN_BYTES_MAX:
            break
        end = position + size
        stop += 1
    return stop


def _recent(ledger: LedgerState, first: int, entries_max: int, bytes_max: int) -> list[bytes]:
    start = first - ledger.recent_first
    entries: list[bytes] = []
    total = 0
    recent = ledger.recent
    for at in range(start, min(len(recent), start + entries_max)):
        entry = recent[at]
        total += len(entry)
        if total > bytes_max and entries:
            break
        if not isinstance(entry, bytes):
            # Made once for all readers.
            recent[at] = entry = bytes(entry)
        entries.append(entry)
    return entries
