"""List of a topic's ledgers, with the offset at which each begins.

Stored under ``ledgers/<topic>``, a record per ledger. No offset is reused after damage, because
acknowledgements are stored as offsets:

* A ledger that lost its owner, but is listed, is adopted by the topic.
* A ledger whose record is lost begins where the one before it ends, or ends where the next begins. A ledger
  with neither begins far behind every used offset: its entries are redelivered.
* Offsets of entries that may be lost at the end of the last ledger are skipped.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from geminga.broker.entries.records import RecordReader, put_varint
from geminga.errors import StoreDamaged
from geminga.ledger.api import EntryStore, StoredLedger

log = logging.getLogger("geminga.broker")

END_MARKER = (1 << 63) - 1
"""Replaces a ledger id in the list: its base is an offset that must not be reused."""
_FAR_BITS = 40
"""No topic has as many entries: ``ledger id << 40`` is behind all entries before the ledger."""

Place = tuple[int, int]
"""(offset of its first entry, creation time in milliseconds)."""


@dataclass(slots=True, eq=False, repr=False)
class LedgerList:
    """A topic's ledgers with entries, in order, with offsets and creation times.

    ``end`` is the next free offset; ``empty`` are ledgers without entries; ``was_mended`` is true if the list
    had to be rebuilt and must be stored.
    """

    ledgers: list[tuple[StoredLedger, Place]] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)
    end: int = 0
    was_mended: bool = False


def load(store: EntryStore, owner: str, now_ms: int) -> LedgerList:
    """Load the stored list; raises `StoreDamaged` if it is contradictory.

    A ledger whose creation time is lost counts as created ``now_ms``: retention keeps the one before it.
    """
    known = _read(store, owner)
    infos = _with_adopted(store, owner, known)
    found = LedgerList()
    found.empty = [info.ledger_id for info in infos if not info.entries]
    infos = [info for info in infos if info.entries]
    found.was_mended = _find_places(infos, known, now_ms)
    for info in infos:
        base, created_ms = known[info.ledger_id]
        if found.ledgers and base < found.end:
            raise StoreDamaged(f"topic {owner}: ledger {info.ledger_id} overlaps the one before")
        found.ledgers.append((info, (base, created_ms)))
        found.end = base + info.entries
    if found.was_mended:
        log.error("topic %s: its list of ledgers was damaged; rebuilding it from the stored ledgers", owner)
    found.end = max(found.end, *(base for base, _ in known.values()), 0)
    for ledger_id, (base, _) in known.items():
        lost = store.damage.lost_entries_max(ledger_id) if ledger_id != END_MARKER else 0
        if lost:
            entries = next((info.entries for info in infos if info.ledger_id == ledger_id), 0)
            found.end = max(found.end, base + entries + lost)
    return found


def _read(store: EntryStore, owner: str) -> dict[int, Place]:
    value = store.keys.get(key_of(owner))
    known: dict[int, Place] = {}
    for part in () if value is None else (value.base, *value.deltas):
        reader = RecordReader(part, f"ledger list of {owner}")
        while reader:
            ledger_id, base, created_ms = reader.varint(), reader.varint(), reader.varint()
            known[ledger_id] = (base, created_ms)
    return known


def _with_adopted(store: EntryStore, owner: str, known: Iterable[int]) -> list[StoredLedger]:
    """Return the topic's ledgers, and those that lost their owner to damage."""
    infos = store.ledgers(owner)
    if not store.damage.found:
        return infos
    listed = {info.ledger_id for info in infos}
    adopted = [each for each in known if each not in listed and store.damage.adopt_ledger(each, owner)]
    if adopted:
        log.warning("topic %s: adopted its ledgers %s, which had lost their owner", owner, adopted)
    return store.ledgers(owner) if adopted else infos


def _find_places(infos: list[StoredLedger], known: dict[int, Place], now_ms: int) -> bool:
    """Determine the offsets of ledgers that lost them; return whether there were any."""
    lost = [index for index, info in enumerate(infos) if info.ledger_id not in known]
    for index in lost:
        ledger_id = infos[index].ledger_id
        following = next((each for each in infos[index:] if each.ledger_id in known), None)
        created_ms = known[following.ledger_id][1] if following is not None else now_ms
        if index:
            before = infos[index - 1]
            base = known[before.ledger_id][0] + before.entries
        elif following is not None:
            entries = sum(each.entries for each in infos if each.ledger_id < following.ledger_id)
            base = max(0, known[following.ledger_id][0] - entries)
        else:
            base = (ledger_id + 1) << _FAR_BITS
        known[ledger_id] = (base, created_ms)
    return bool(lost)


def key_of(owner: str) -> str:
    return f"ledgers/{owner}"


def put_ledger(record: bytearray, ledger_id: int, base: int, created_ms: int) -> None:
    """Append a ledger's record."""
    put_varint(record, ledger_id)
    put_varint(record, base)
    put_varint(record, max(0, created_ms))
