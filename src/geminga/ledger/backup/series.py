"""Series of backups in one folder or object store, each complete, with unchanged log files stored once.

A backup is named by the time when it began, in UTC. Closed log files never change, so a backup shares those
that the previous backup of the same store has, recognised by size and time of change, as rsync does: by hard
links in a folder, by reference in an object store (`geminga.ledger.backup.objects`). Files are shared between
backups only, never with the store: damage of its files does not reach them.
"""

import contextlib
import datetime as dt
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from geminga.errors import NotAStore, StoreError
from geminga.ledger.backup.backup import (
    BackupResult,
    EarlierBackup,
    Say,
    backup,
    check_outside,
    is_name,
    name_at,
    store_id_of,
)
from geminga.ledger.backup.objects import ObjectSeries
from geminga.ledger.files.filesystem import FOLDER_MODE, FileSystem, RealFileSystem
from geminga.ledger.files.folder import LOCK_FILE, SUPERBLOCK_FILE, check_is_store
from geminga.ledger.inspection import InspectionReport, inspect
from geminga.locations import url_parts

logger = logging.getLogger("geminga.ledger")


class BackupSeries(Protocol):
    """Backups by name at one location."""

    location: str
    """Folder or URL, without secrets."""
    filesystem: FileSystem
    """File system in which each backup is a folder."""

    def names(self) -> list[str]:
        """Return the names of the complete backups, the oldest first."""

    def folder_of(self, name: str) -> str:
        """Return the path of a backup in `filesystem`."""

    def writing(self, store: Path, now: dt.datetime) -> AbstractContextManager[None]:
        """Enclose the writing of a backup; delete what interrupted ones left. Raises `StoreError`."""

    def earlier(self, store: Path, previous: str) -> EarlierBackup: ...

    def distrust(self, name: str, files: Iterable[str]) -> None:
        """Have the next backup copy files of this one again."""

    def delete(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredBackup:
    """One backup of a series, or a single one."""

    filesystem: FileSystem
    folder: str
    location: str
    """Folder or URL, without secrets."""
    is_single: bool = False


def series_at(location: str | os.PathLike[str]) -> BackupSeries:
    """Return the series of backups in a folder, or at a URL that Arrow or fsspec support.

    Raises `InvalidConfiguration` for a wrong URL.
    """
    location = os.fspath(location)
    if url_parts(location):
        from geminga.ledger.tier.folder_storage import FolderStorage
        from geminga.ledger.tier.storage import place_at

        storage = place_at(location, fails_soon=False)
        if not isinstance(storage, FolderStorage):
            return ObjectSeries(storage)
        location = storage.location
    return FolderSeries(Path(os.path.abspath(location)))


def backup_into(
    folder: str | os.PathLike[str],
    backups: str | os.PathLike[str],
    *,
    keep: int,
    verify: bool = False,
    now: dt.datetime | None = None,
    say: Say = lambda done, total: None,
) -> tuple[StoredBackup, BackupResult, InspectionReport | None]:
    """Back up the store in ``folder`` to ``backups``: a folder, created if missing, or an object store's URL.

    Of the backups of this store the newest ``keep`` stay, this one included; older ones, and those that were
    interrupted, are deleted. A backup whose superblock is damaged is neither used nor deleted. With
    ``verify``, the new backup is read; if it is damaged, no complete one is deleted, and the next one copies
    the damaged files again.

    Returns the new backup, its size, and the report of ``verify``. Raises as `backup`, and `StoreError` while
    another backup is being written to the folder.
    """
    if keep < 1:
        raise StoreError(f"keep={keep}: at least 1 backup is kept")
    store, now = Path(os.path.abspath(folder)), now or dt.datetime.now(dt.UTC)
    store_id = store_id_of(RealFileSystem(), str(store))
    series = series_at(backups)
    with series.writing(store, now):
        earlier = [name for name in series.names() if _is_of(store_id, series, name)]
        name = name_at(now)
        if earlier and name <= earlier[-1]:
            raise StoreError(
                f"{series.location} has the backup {earlier[-1]}, which is not older than {name}"
            )
        result = backup(
            store,
            series.folder_of(name),
            target_filesystem=series.filesystem,
            say=say,
            earlier=series.earlier(store, earlier[-1] if earlier else ""),
        )
        made = _stored(series, name)
        report = inspect(made.folder, filesystem=made.filesystem) if verify else None
        if report is None or report.is_well:
            for old in earlier[: max(0, len(earlier) + 1 - keep)]:
                series.delete(old)
        else:
            series.distrust(name, {finding.damage.file for finding in report.findings})
        return made, result, report


def chosen(source: str | os.PathLike[str], to_time: dt.datetime | None) -> StoredBackup:
    """Return the backup to restore: ``source`` itself, or of a series the newest one begun by ``to_time``.

    Raises `NotAStore` if no backup fits, `StoreError` for a time with a single backup and for a series of
    several stores without a time, `InvalidConfiguration` for a wrong URL.
    """
    series = series_at(source)
    single = _single(series, os.fspath(source))
    if single is not None:
        if to_time is not None:
            raise StoreError(f"{single.location} is a single backup: a time chooses one of several")
        return single
    names = series.names()
    if to_time is None:
        _check_one_store(series, names)
    latest = "~" if to_time is None else name_at(to_time)
    found = [name for name in names if name <= latest]
    if found:
        return _stored(series, found[-1])
    if names:
        raise NotAStore(
            f"the oldest backup in {series.location} is {names[0]}: there is none of {latest} or before"
        )
    raise NotAStore(
        f"{series.location} holds no store and no backups: name a data folder, a backup, or the folder or "
        "URL of several"
    )


def _single(series: BackupSeries, source: str) -> StoredBackup | None:
    """Return the backup that ``source`` itself is, as `backup_into` names it; None for a series."""
    if isinstance(series, FolderSeries):
        whole = StoredBackup(series.filesystem, series.location, series.location, is_single=True)
        return whole if series.is_store() else None
    url, separator, options = source.partition("?")
    parent, _, name = url.rstrip("/").rpartition("/")
    if not is_name(name):
        return None
    series = series_at(f"{parent}{separator}{options}")
    return _stored(series, name) if name in series.names() else None


def _check_one_store(series: BackupSeries, names: Iterable[str]) -> None:
    """Raise `StoreError` for backups of several stores: the newest may be that of another broker."""
    newest: dict[bytes, str] = {}
    for name in names:
        with suppress(StoreError, OSError):  # damaged
            newest[store_id_of(series.filesystem, series.folder_of(name))] = name
    if len(newest) > 1:
        times = " and ".join(f"{name[:13]}:{name[14:16]}:{name[17:]}" for name in sorted(newest.values()))
        raise StoreError(
            f"{series.location} has backups of {len(newest)} stores, the newest of {times}: "
            "choose by --to-time"
        )


def _stored(series: BackupSeries, name: str) -> StoredBackup:
    return StoredBackup(series.filesystem, series.folder_of(name), f"{series.location.rstrip('/')}/{name}")


class FolderSeries:
    """Implements `BackupSeries` in a local folder, with a folder for each backup."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)
        self.filesystem: FileSystem = RealFileSystem()

    def is_store(self) -> bool:
        """Return whether the folder is one backup, or a store."""
        with suppress(NotAStore):
            check_is_store(self.filesystem, self.location)
            return True
        return False

    def names(self) -> list[str]:
        return [name for name in self._folders() if (self.root / name / SUPERBLOCK_FILE).exists()]

    def folder_of(self, name: str) -> str:
        return f"{self.root}/{name}"

    @contextlib.contextmanager
    def writing(self, store: Path, now: dt.datetime) -> Iterator[None]:
        if self.is_store():
            raise StoreError(f"{self.root} is a single backup or a store: name a folder of backups")
        check_outside(self.location, os.fspath(store))
        self.root.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        lock, holder = self.filesystem.lock(f"{self.root}/{LOCK_FILE}")
        if lock is None:
            raise StoreError(f"another backup is being written to {self.root}, by process {holder}")
        try:
            for unfinished in set(self._folders()) - set(self.names()):
                self.delete(unfinished)
            yield
        finally:
            lock.release()

    def earlier(self, store: Path, previous: str) -> EarlierBackup:
        return _EarlierFolder(store, self.root / previous if previous else None)

    def distrust(self, name: str, files: Iterable[str]) -> None:
        for each in files:
            with suppress(OSError):
                os.utime(self.root / name / each)  # no longer that of the store's file

    def delete(self, name: str) -> None:
        # The first step makes the backup invalid, even if the power fails afterwards.
        (self.root / name / SUPERBLOCK_FILE).unlink(missing_ok=True)
        self.filesystem.sync_folder(self.folder_of(name))
        shutil.rmtree(self.root / name)

    def _folders(self) -> list[str]:
        if not self.root.is_dir():
            return []
        return sorted(each.name for each in self.root.iterdir() if is_name(each.name) and each.is_dir())


class _EarlierFolder(EarlierBackup):
    """Previous backup of a series in a folder; None for the first one."""

    def __init__(self, store: Path, previous: Path | None) -> None:
        self._store = store
        self._previous = previous

    def link(self, name: str, size: int, path: str) -> bool:
        if self._previous is None:
            return False
        old = self._previous / name
        with suppress(OSError):  # it has none, the store has deleted it, or links are not possible
            found = old.stat()
            if (found.st_size, found.st_mtime_ns) == (size, (self._store / name).stat().st_mtime_ns):
                os.link(old, path)
                return True
        return False

    def copied(self, name: str, path: str) -> None:
        with suppress(OSError):
            changed = (self._store / name).stat().st_mtime_ns
            os.utime(path, ns=(changed, changed))


def _is_of(store_id: bytes, series: BackupSeries, name: str) -> bool:
    """Return whether a backup is one of the store; False if that cannot be read."""
    try:
        return store_id_of(series.filesystem, series.folder_of(name)) == store_id
    except (StoreError, OSError) as error:
        logger.warning("a backup is left alone: %s", error)
        return False
