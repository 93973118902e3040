"""Check and repair of a store that no process has open: ``geminga store check`` and ``repair``.

`inspect` reads and verifies the whole log, changes nothing, and reports for each damage what is lost.
`repair` settles the damage: losses are accepted, so that subscriptions skip them and their space can be
freed. A ledger without owner stays listed, as the broker finds its owner by itself when the topic is used.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from geminga.errors import StoreError
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.files.filesystem import FileSystem, RealFileSystem
from geminga.ledger.files.folder import check_is_store, read_version
from geminga.ledger.files.overlay import OverlayFileSystem
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.ledger.tier.catalog import TierCatalog
from geminga.ledger.tier.claim import whose
from geminga.offload import manifest
from geminga.offload.manifest import ManifestUnreadable, OffloadedLedger
from geminga.offload.storage import MANIFEST, OffloadStorage, check_file, folder_of


@dataclass(frozen=True, slots=True)
class DamageFinding:
    """Damage, and the ledger's owner if known."""

    damage: Damage
    owner: str | None

    @property
    def fate(self) -> str:
        """Describe how `repair` handles the damage."""
        return FATES[self.damage.lost]


FATES = {
    DamageLoss.NOTHING: "nothing is lost",
    DamageLoss.ENTRIES: "lost: they are given up, and subscriptions continue behind them",
    DamageLoss.DELTA: "lost: one change; the key keeps the others",
    DamageLoss.VALUE: "lost: its last value; the key keeps what was there before, if anything",
    DamageLoss.OWNER: "lost: its owner; its entries are kept until the broker finds the topic that lists it",
    DamageLoss.RECORDS: "lost: unknown records; their bytes stay in the log file",
}
"""Outcome of damage, by the kind of loss."""


@dataclass(slots=True)
class InspectionReport:
    """Result of `inspect`."""

    folder: str
    log_files: int
    log_bytes: int
    ledgers: int
    keys: int
    findings: list[DamageFinding] = field(default_factory=list)
    offloaded_ledgers: int = 0
    """Offloaded ledgers, whether their entries are still in the store or not."""
    offloaded_bytes: int = 0
    """Size of their files in the storage location."""
    tier_findings: list[str] = field(default_factory=list)
    """Faults found in the storage location, if it was checked."""
    borrowed: str = ""
    """Owner of the offloaded files, if it is another store (as for a copy of a store); no fault."""
    written_by: str = ""
    """Program version that wrote the store last, such as ``geminga 0.2.0``; empty if unknown."""

    @property
    def is_well(self) -> bool:
        return not (self.findings or self.tier_findings)


def inspect(
    folder: str | os.PathLike[str],
    *,
    filesystem: FileSystem | None = None,
    place: OffloadStorage | None = None,
) -> InspectionReport:
    """Read and verify a whole store that no process has open; changes nothing.

    With ``place``, the storage location of its offloaded ledgers, the files in it are verified too.
    Raises `NotAStore`, `StoreLocked` while a process has it open, `StoreError` when it cannot be read.
    """
    return _inspect(OverlayFileSystem(filesystem or RealFileSystem()), _path_of(folder), place)


def _path_of(folder: str | os.PathLike[str]) -> str:
    return os.path.abspath(os.fspath(folder))


def _inspect(filesystem: FileSystem, folder: str, storage: OffloadStorage | None = None) -> InspectionReport:
    check_is_store(filesystem, folder)
    written_by = read_version(filesystem, folder)
    store = FileStore.open(
        folder, settings=StoreSettings(verify_on_open=True), filesystem=filesystem, threads=False
    )
    try:
        report = InspectionReport(folder, *_census(store), written_by=written_by)
        for damage in store.damage.found:
            owner = store.owner_of(damage.ledger_id) if damage.ledger_id is not None else None
            report.findings.append(DamageFinding(damage, owner))
        catalog = TierCatalog(store)
        for _, record in catalog.everything():
            report.offloaded_ledgers += 1
            report.offloaded_bytes += record.file_bytes
        if storage is not None:
            name = store.store_id.hex()
            report.borrowed = whose(storage, filesystem, folder, name)
            report.tier_findings += check_storage(storage, catalog, name, is_borrowed=bool(report.borrowed))
        return report
    finally:
        store.abandon()


def repair(
    folder: str | os.PathLike[str], report: InspectionReport, *, filesystem: FileSystem | None = None
) -> list[Damage]:
    """Repair the findings of ``report``; returns the remaining damage.

    Raises `StoreLocked` while a process has the store open, `StoreError` when it changed since the report.
    """
    filesystem = filesystem or RealFileSystem()
    path = _path_of(folder)
    if _inspect(OverlayFileSystem(filesystem), path) != report:
        raise StoreError(f"the store in {path} changed since it was checked: check it again")
    names = {finding.damage.name for finding in report.findings}
    settings = StoreSettings(verify_on_open=True)
    with FileStore.open(path, settings=settings, filesystem=filesystem, threads=False) as store:
        store.rewriter.stop()
        for damage in store.damage.found:
            if damage.name in names and damage.lost != DamageLoss.OWNER:
                store.damage.settle(damage.name)
        return store.damage.found


def _census(store: FileStore) -> tuple[int, int, int, int]:
    """Count log files and their bytes, ledgers and keys. Reads all keys."""
    keys = sum(1 for _ in store.keys.scan(""))
    return len(store.state.files), sum(store.log_sizes().values()), store.state.ledgers.count(), keys


def check_storage(
    storage: OffloadStorage, catalog: TierCatalog, store_name: str, *, is_borrowed: bool = False
) -> Iterator[str]:
    """Describe the faults of the files of a store's ledgers, a sentence each. Reads all files.

    If the files are borrowed (`geminga.ledger.tier.claim`), other files in the storage are not checked.
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
