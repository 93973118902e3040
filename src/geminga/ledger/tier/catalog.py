"""Records of offloaded ledgers in the store's keys.

``offloaded/<owner>\\0<ledger>``
    The record of a ledger whose file is complete, as in the manifest. The ledger may be read from the file,
    whether its entries are in the store too or not.
``offloaded-by/<ledger>``
    The ledger's owner, to find a record by ledger id.
``offloading/<uuid>``
    A file that may exist and belongs to no ledger, unless a record names it: written before the file is
    created, and before the record of a file to delete is removed. So no file is ever forgotten.

Writes reach the log in order, and a crash keeps a prefix of them, so their order makes this safe.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from geminga.ledger.api import Done, EntryStore
from geminga.offload.manifest import ManifestUnreadable, OffloadedLedger

logger = logging.getLogger("geminga.ledger")

_OWNED_MAX = 8192
"""Maximum number of remembered records, plus one for each owner: most owners have no record."""
_RECORDS, _OWNERS, _SUSPECTS = "offloaded/", "offloaded-by/", "offloading/"


@dataclass(frozen=True, slots=True)
class OrphanCandidate:
    """File that belongs to no ledger, unless a record names it."""

    owner: str
    ledger: int
    uuid: str
    file: str


def _key(owner: str, ledger_id: int) -> str:
    return f"{_RECORDS}{owner}\x00{ledger_id:016x}"


def _owner_key(ledger_id: int) -> str:
    return f"{_OWNERS}{ledger_id:016x}"


class TierCatalog:
    """Records of offloaded ledgers; on the owner's thread. Writes are ordered with the store's own."""

    def __init__(self, store: EntryStore) -> None:
        self._store = store
        self._owners: OrderedDict[str, dict[int, OffloadedLedger]] = OrderedDict()
        """Cache of all records by owner, for the owners requested last."""
        self._owned = 0
        """Number of owners and records in ``_owners`` together."""

    def record(self, ledger_id: int) -> OffloadedLedger | None:
        """Return the record of a ledger, None if it is not offloaded."""
        owner = self.owner_of(ledger_id)
        if owner is None:
            return None
        known = self._owners.get(owner)
        if known is not None:
            return known.get(ledger_id)
        # Only this record: the owner may have thousands, and too many owners to remember all may be read.
        value = self._store.keys.get(_key(owner, ledger_id))
        return None if value is None else _record(value.base)

    def owner_of(self, ledger_id: int) -> str | None:
        owner = self._store.keys.get(_owner_key(ledger_id))
        return None if owner is None else owner.base.decode()

    def of_owner(self, owner: str) -> list[OffloadedLedger]:
        """Return the records of an owner, in order."""
        known = self._owners.get(owner)
        if known is None:
            found = (_record(value.base) for _, value in self._store.keys.scan(f"{_RECORDS}{owner}\x00"))
            known = self._owners[owner] = {each.ledger: each for each in found if each is not None}
            self._owned += 1 + len(known)
        self._owners.move_to_end(owner)
        # A single owner may exceed the limit, so that its records are not scanned for each ledger.
        while len(self._owners) > 1 and self._owned > _OWNED_MAX:
            self._owned -= 1 + len(self._owners.popitem(last=False)[1])
        return sorted(known.values(), key=lambda each: each.ledger)

    def everything(self) -> Iterator[tuple[str, OffloadedLedger]]:
        """Iterate over (owner, record) of all offloaded ledgers, in steps, as `EntryStore.scan` does."""
        for key, value in self._store.keys.scan(_RECORDS):
            record = _record(value.base)
            if record is not None:
                yield key[len(_RECORDS) :].rpartition("\x00")[0], record

    # --- changes ---
    def suspect(self, suspect: OrphanCandidate, done: Done | None = None) -> None:
        """Note that a file may exist from now on that belongs to no ledger."""
        value = json.dumps({"owner": suspect.owner, "ledger": suspect.ledger, "file": suspect.file}).encode()
        self._store.keys.put(_SUSPECTS + suspect.uuid, value, done)

    def put(self, owner: str, record: OffloadedLedger, done: Done | None = None) -> None:
        """Record that the file is complete, and belongs to the ledger."""
        self._store.keys.put(_owner_key(record.ledger), owner.encode())
        self._store.keys.put(_key(owner, record.ledger), json.dumps(record.as_json()).encode())
        self._store.keys.delete(_SUSPECTS + record.uuid, done)
        owned = self._owners.get(owner)
        if owned is not None:
            self._owned += record.ledger not in owned
            owned[record.ledger] = record

    def give_up(self, owner: str, record: OffloadedLedger, file: str, done: Done | None = None) -> None:
        """Remove the record of a ledger whose file is to be deleted."""
        self.suspect(OrphanCandidate(owner, record.ledger, record.uuid, file))
        self._store.keys.delete(_key(owner, record.ledger))
        self._store.keys.delete(_owner_key(record.ledger), done)
        owned = self._owners.get(owner)
        if owned is not None and owned.pop(record.ledger, None) is not None:
            self._owned -= 1

    def cleared(self, uuid: str) -> None:
        """Note that the file does not exist."""
        self._store.keys.delete(_SUSPECTS + uuid)

    def all_suspects(self) -> list[OrphanCandidate]:
        """Return files that may belong to no ledger."""
        found = []
        for key, value in list(self._store.keys.scan(_SUSPECTS)):
            try:
                kept = json.loads(value.base)
                uuid = key[len(_SUSPECTS) :]
                found.append(OrphanCandidate(kept["owner"], kept["ledger"], uuid, kept["file"]))
            except (ValueError, KeyError, TypeError):
                logger.error("%s cannot be read: a file of an offloaded ledger may be left over", key)
        return found

    def suspects(self) -> list[OrphanCandidate]:
        """Return files that belong to no ledger. Removes suspicions about files that belong to one."""
        found = []
        for suspect in self.all_suspects():
            record = self.record(suspect.ledger)
            if record is not None and record.uuid == suspect.uuid:
                self.cleared(suspect.uuid)
            else:
                found.append(suspect)
        return found


def _record(value: bytes) -> OffloadedLedger | None:
    try:
        return OffloadedLedger.of_json(json.loads(value))
    except (ValueError, ManifestUnreadable) as error:
        logger.error("the record of an offloaded ledger cannot be read: %s", error)
        return None
