"""Check of a store's offload storage: whether all files exist, are intact, and belong to a ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from geminga.ledger.tier_catalog import TierCatalog
from geminga.offload import manifest
from geminga.offload.manifest import ManifestUnreadable, OffloadedLedger
from geminga.offload.storage import MANIFEST, OffloadStorage, check_file, folder_of


def check_storage(
    storage: OffloadStorage, catalog: TierCatalog, store_name: str, *, is_borrowed: bool = False
) -> Iterator[str]:
    """Describe the faults of the files of a store's ledgers, a sentence each. Reads all files.

    If the files are borrowed (`geminga.ledger.tier_claim`), other files in the storage are not checked.
    """
    owners: dict[str, list[OffloadedLedger]] = {}
    for owner, record in catalog.everything():
        owners.setdefault(owner, []).append(record)
    suspected = {suspect.file for suspect in catalog.all_suspects()}
    for owner, records in owners.items():
        folder = folder_of(owner)
        where = f"{storage.location}/{folder}"
        for record in records:
            wrong = _wrong(storage, f"{folder}/{record.file}", record)
            if wrong:
                yield f"{owner}: ledger {record.ledger} is not whole in {where}/{record.file}: {wrong}"
        if is_borrowed:
            continue
        try:
            found = manifest.load(storage, owner)
            own, names = manifest.files_of(storage, owner), storage.names(folder)
        except (OSError, ManifestUnreadable) as error:
            yield f"{owner}: {error}"
            continue
        if found is None or found.store != store_name or list(found.ledgers) != records:
            yield f"{where}/{MANIFEST} does not list the offloaded ledgers; the next offload repairs it"
        kept = {*own, *(record.file for record in records)}
        for name in names:
            if name not in kept:
                fate = "the broker deletes it" if name in suspected else "the store has no record of it"
                yield f"{where}/{name} belongs to no ledger; {fate}"


def _wrong(storage: OffloadStorage, path: str, record: OffloadedLedger) -> str:
    try:
        with contextlib.closing(storage.open(path)) as file:
            return check_file(file, record.file_bytes, record.crc32c)
    except FileNotFoundError:
        return "the file is missing"
    except OSError as error:
        return str(error)
