"""Looking at what a store has in cheap storage: whether all of it is there, whole, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from geminga.ledger.store import FileStore
from geminga.ledger.tier_catalog import TierCatalog
from geminga.offload import manifest
from geminga.offload.manifest import ManifestUnreadable, OffloadedLedger
from geminga.offload.storage import MANIFEST, OffloadStorage, check_file, folder_of

_TOPICS = "topic/"


class UnrecordedLedger(NamedTuple):
    """A ledger that is offloaded, and that the store knows nothing of."""

    owner: str
    record: OffloadedLedger

    def __str__(self) -> str:
        return (
            f"{self.owner}: ledger {self.record.ledger} is in {self.record.file}, and the store has lost the "
            "record of it: repair puts it back"
        )


def check_place(
    place: OffloadStorage, catalog: TierCatalog, store_name: str, *, is_borrowed: bool = False
) -> Iterator[str]:
    """What is wrong with the files of a store's ledgers, a sentence each. Reads all of them.

    Where they are borrowed (`geminga.ledger.tier_claim`) what else lies there is another store's.
    """
    owners: dict[str, list[OffloadedLedger]] = {}
    for owner, record in catalog.everything():
        owners.setdefault(owner, []).append(record)
    suspected = {suspect.file for suspect in catalog.all_suspects()}
    for owner, records in owners.items():
        folder = folder_of(owner)
        where = f"{place.location}/{folder}"
        for record in records:
            wrong = _wrong(place, f"{folder}/{record.file}", record)
            if wrong:
                yield f"{owner}: ledger {record.ledger} is not whole in {where}/{record.file}: {wrong}"
        if is_borrowed:
            continue
        try:
            found = manifest.load(place, owner)
            own, names = manifest.files_of(place, owner), place.names(folder)
        except (OSError, ManifestUnreadable) as error:
            yield f"{owner}: {error}"
            continue
        if found is None or found.store != store_name or list(found.ledgers) != records:
            yield f"{where}/{MANIFEST} does not name what is offloaded; the next offload mends it"
        kept = {*own, *(record.file for record in records)}
        for name in names:
            if name not in kept:
                fate = "the broker deletes it" if name in suspected else "nobody knows it"
                yield f"{where}/{name} is of no ledger; {fate}"


def forgotten(
    place: OffloadStorage, store: FileStore, catalog: TierCatalog, store_name: str
) -> Iterator[UnrecordedLedger]:
    """Ledgers that a manifest names, of which the store has lost the record: nothing but damage does that.

    What is deleted on purpose is suspected first (`geminga.ledger.tier_catalog`), and then left out of the
    manifest. A store that was brought back from a backup never had what the manifest says of its later life:
    an id that was not given to a ledger yet, or again to another one, is none of these. Asks the place for
    the manifest of every topic; raises `OSError`.
    """
    suspected = {suspect.uuid for suspect in catalog.all_suspects()}
    for key in store.names(_TOPICS):
        owner = key[len(_TOPICS) :]
        if not owner.startswith("persistent://"):
            continue
        found = manifest.load(place, owner)
        if found is None or (found.store, found.topic) != (store_name, owner):
            continue
        known = {record.uuid for record in catalog.of_owner(owner)}
        for record in found.ledgers:
            is_its_own = store.has_given(record.ledger) and store.owner_of(record.ledger) is None
            if is_its_own and record.uuid not in known and record.uuid not in suspected:
                yield UnrecordedLedger(owner, record)


def _wrong(place: OffloadStorage, path: str, record: OffloadedLedger) -> str:
    try:
        read, close = place.reader(path)
    except FileNotFoundError:
        return "it is not there"
    except OSError as error:
        return str(error)
    try:
        return check_file(read, record.file_bytes, record.crc32c)
    except OSError as error:
        return str(error)
    finally:
        close()
