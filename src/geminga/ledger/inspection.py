"""Check and repair of a store that no process has open: ``geminga store check`` and ``repair``.

`inspect` reads and verifies the whole log, changes nothing, and reports for each damage what is lost and
whether it can be corrected: if only one bit is wrong, the checksum shows which (`bit_correction`).
`repair` flips such bits back in the files, rebuilds the catalog from the log afterwards, and settles other
damage: losses are accepted, so that subscriptions skip them and their space can be freed. A ledger without
owner stays listed, as the broker finds its owner by itself when the topic is used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from geminga.errors import StoreError
from geminga.ledger.bit_correction import flipped_bit
from geminga.ledger.damage import Damage, DamageLoss
from geminga.ledger.filesystem import File, FileSystem, RealFileSystem, write_fully
from geminga.ledger.folder import (
    LOCK_FILE,
    SUPERBLOCK_FILE,
    StoreLock,
    check_is_store,
    discard_catalog,
    read_version,
)
from geminga.ledger.format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
    OFFSET_MASK,
    GroupHeader,
    file_number,
)
from geminga.ledger.log import SequentialReader, read_directory, scan_headers
from geminga.ledger.overlay import OverlayFileSystem
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.ledger.tier_catalog import TierCatalog
from geminga.ledger.tier_claim import whose
from geminga.ledger.tier_inspection import UnrecordedLedger, check_storage, forgotten
from geminga.offload.storage import OffloadStorage
from geminga.wire.checksum import crc32c

LOOKED_FOR_MAX = 10_000
"""Number of damaged records in which the wrong bit is searched."""
CORRECTED_BYTES_MAX = 64 * 1024
"""Larger records are not corrected: in these, bytes that are entirely wrong too often look like one wrong bit
(one time in 8,000)."""


@dataclass(frozen=True, slots=True)
class WrongBit:
    """One bit of a file that is wrong according to its checksum."""

    file: str
    offset: int
    bit: int


@dataclass(frozen=True, slots=True)
class DamageFinding:
    """Damage, the ledger's owner if known, and the bits whose flipping corrects it (empty: data is lost)."""

    damage: Damage
    owner: str | None
    wrong_bits: tuple[WrongBit, ...] = ()

    @property
    def fate(self) -> str:
        """Describe how `repair` handles the damage."""
        if self.wrong_bits:
            return "can be corrected: one bit is wrong"
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
    forgotten: list[UnrecordedLedger] = field(default_factory=list)
    """Ledgers in the storage location whose record the store has lost."""
    borrowed: str = ""
    """Owner of the offloaded files, if it is another store (as for a copy of a store); no fault."""
    written_by: str = ""
    """Program version that wrote the store last, such as ``geminga 0.2.0``; empty if unknown."""

    @property
    def is_well(self) -> bool:
        return not (self.findings or self.tier_findings or self.forgotten)


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
        bits = _WrongBits(filesystem, folder, store)
        for damage in store.damage.found:
            owner = store.owner_of(damage.ledger_id) if damage.ledger_id is not None else None
            report.findings.append(DamageFinding(damage, owner, tuple(bits.of(damage))))
        catalog = TierCatalog(store)
        for _, record in catalog.everything():
            report.offloaded_ledgers += 1
            report.offloaded_bytes += record.file_bytes
        if storage is not None:
            name = store.store_id.hex()
            report.forgotten.extend(forgotten(storage, store, catalog, name))
            report.borrowed = whose(storage, filesystem, folder, name)
            lost = {each.record.file for each in report.forgotten}
            found = check_storage(storage, catalog, name, is_borrowed=bool(report.borrowed))
            report.tier_findings.extend(each for each in found if not any(file in each for file in lost))
        return report
    finally:
        store.abandon()


class _WrongBits:
    """Finds the wrong bit in a damaged record or a group's header."""

    def __init__(self, filesystem: FileSystem, folder: str, store: FileStore) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._store = store
        self._seed = crc32c(store.store_id)
        self._headers: dict[str, list[GroupHeader]] = {}
        self._looked_for = 0

    def of(self, damage: Damage) -> list[WrongBit]:
        """Return the wrong bits at the damaged position; empty if too many are wrong, or unknown."""
        try:
            if damage.ledger_id is None or damage.first_entry_id is None or damage.last_entry_id is None:
                return self._of_record(damage)
            found = []
            for entry_id in range(damage.first_entry_id, damage.last_entry_id + 1):
                position = self._store.state.ledgers.position_of(damage.ledger_id, entry_id)
                bit = None if position is None else self._of_bytes(*position)
                if bit is None:
                    return []
                found.append(bit)
            return found
        except OSError:
            return []

    def _of_record(self, damage: Damage) -> list[WrongBit]:
        for header in self._heads(damage.file):
            position, end = header.position & OFFSET_MASK, header.end & OFFSET_MASK
            if not position <= damage.offset < end:
                continue
            directory = read_directory(self._open(damage.file), header)
            if directory is None:
                return []
            if damage.offset == position:
                return self._of_head(damage.file, header)
            for index, start in enumerate(directory.positions(header.payload_position)):
                size = directory.sizes[index]
                if start & OFFSET_MASK == damage.offset and size:
                    bit = self._of_bytes(damage.file, damage.offset, size, directory.crcs[index])
                    return [] if bit is None else [bit]
        return []

    def _open(self, name: str) -> File:
        return self._filesystem.open_to_read(f"{self._folder}/{name}")

    def _heads(self, name: str) -> list[GroupHeader]:
        number = file_number(name)
        if number is None:
            return []
        if name not in self._headers:
            items = scan_headers(SequentialReader(self._open(name)), number, FILE_HEADER_BYTES, self._seed)
            self._headers[name] = [item for item in items if isinstance(item, GroupHeader)]
        return self._headers[name]

    def _of_head(self, name: str, header: GroupHeader) -> list[WrongBit]:
        start = header.position & OFFSET_MASK
        file = self._open(name)
        data = file.read(GROUP_HEADER_BYTES, start)
        directory = file.read(header.directory_bytes, start + GROUP_HEADER_BYTES)
        parts = [
            (start, data[:-4], int.from_bytes(data[-4:], "little"), self._seed),
            (start + GROUP_HEADER_BYTES, directory, header.directory_crc, 0),
        ]
        found = []
        for offset, part, stored, seed in parts:
            bit = flipped_bit(part, stored, seed)
            if bit is not None and bit < 0:
                # A bit of the checksum, which follows the header; the directory's is in the header.
                bit = len(part) * 8 + (crc32c(part, seed) ^ stored).bit_length() - 1
            if bit is not None:
                found.append(WrongBit(name, offset + (bit >> 3), bit & 7))
        return found

    def _of_bytes(self, name: str, offset: int, size: int, stored: int) -> WrongBit | None:
        if self._looked_for >= LOOKED_FOR_MAX or size > CORRECTED_BYTES_MAX:
            return None
        self._looked_for += 1
        bit = flipped_bit(self._open(name).read(size, offset), stored)
        return None if bit is None or bit < 0 else WrongBit(name, offset + (bit >> 3), bit & 7)


def repair(
    folder: str | os.PathLike[str],
    report: InspectionReport,
    *,
    filesystem: FileSystem | None = None,
    place: OffloadStorage | None = None,
) -> list[Damage]:
    """Repair the findings of ``report``; returns the remaining damage. ``place``: as for `inspect`.

    Raises `StoreLocked` while a process has the store open, `StoreError` when it changed since the report.
    """
    filesystem = filesystem or RealFileSystem()
    path = _path_of(folder)
    if _inspect(OverlayFileSystem(filesystem), path, place) != report:
        raise StoreError(f"the store in {path} changed since it was checked: check it again")
    mended = [finding.damage for finding in report.findings if finding.wrong_bits]
    if mended:
        # First write what only the catalog has to the log, as the catalog may have to be discarded.
        with _open(filesystem, path):
            pass
        must_rebuild = any(damage.lost not in (DamageLoss.NOTHING, DamageLoss.ENTRIES) for damage in mended)
        bits = {bit for finding in report.findings for bit in finding.wrong_bits}
        _flip_back(filesystem, path, bits, must_rebuild=must_rebuild)
    names = {finding.damage.name for finding in report.findings}
    with _open(filesystem, path) as store:
        for damage in mended:
            store.damage.forget(damage.name)
        for damage in store.damage.found:
            if damage.name in names and damage.lost != DamageLoss.OWNER:
                store.damage.settle(damage.name)
        catalog = TierCatalog(store)
        for owner, record in report.forgotten:
            catalog.put(owner, record)
        return store.damage.found


def _open(filesystem: FileSystem, path: str) -> FileStore:
    settings = StoreSettings(verify_on_open=True)
    store = FileStore.open(path, settings=settings, filesystem=filesystem, threads=False)
    store.rewriter.stop()
    return store


def _flip_back(filesystem: FileSystem, path: str, bits: set[WrongBit], *, must_rebuild: bool) -> None:
    """Correct the wrong bits in the files, and have the catalog rebuilt from the corrected log."""
    lock = StoreLock(filesystem, path)
    try:
        lock.take(LOCK_FILE)
        lock.take(SUPERBLOCK_FILE)
        for bit in sorted(bits, key=lambda bit: (bit.file, bit.offset)):
            file = filesystem.open(f"{path}/{bit.file}")
            try:
                (byte,) = file.read(1, bit.offset)
                write_fully(file, [bytes((byte ^ 1 << bit.bit,))], bit.offset)
                file.sync()
            finally:
                file.close()
        if must_rebuild:
            discard_catalog(filesystem, path)
    finally:
        lock.release()


def _census(store: FileStore) -> tuple[int, int, int, int]:
    """Count log files and their bytes, ledgers and keys. Reads all keys."""
    keys = sum(1 for _ in store.keys.scan(""))
    return len(store.state.files), sum(store.log_sizes().values()), store.state.ledgers.count(), keys
