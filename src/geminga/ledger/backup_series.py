"""Series of backups in one folder, each complete, in which unchanged log files take space once.

A backup is a folder named by the time when it began, in UTC. Closed log files never change, so a backup has
hard links to those that the previous backup of the same store has, recognised by size and time of change, as
rsync does. Links are made between backups only, never to the store: damage of its files does not reach them.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from geminga.errors import NotAStore, StoreError
from geminga.ledger.backup import BackupResult, Say, backup, check_outside, store_id_of
from geminga.ledger.filesystem import FOLDER_MODE, RealFileSystem
from geminga.ledger.folder import LOCK_FILE, SUPERBLOCK_FILE
from geminga.ledger.inspection import InspectionReport, inspect

logger = logging.getLogger("geminga.ledger")

_NAME: Final = "%Y-%m-%dT%H-%M-%SZ"


def backup_into(
    folder: str | os.PathLike[str],
    backups: str | os.PathLike[str],
    *,
    keep: int,
    verify: bool = False,
    now: dt.datetime | None = None,
    say: Say = lambda done, total: None,
) -> tuple[Path, BackupResult, InspectionReport | None]:
    """Back up the store in ``folder`` to a new folder in ``backups``, which is created if missing.

    Of the backups of this store the newest ``keep`` stay, this one included; older ones, and those that were
    interrupted, are deleted. A backup whose superblock is damaged is neither used nor deleted. With
    ``verify``, the new backup is read; if it is damaged, no complete one is deleted, and the next one copies
    the damaged files again.

    Returns the new folder, its size, and the report of ``verify``. Raises as `backup`, and `StoreError` while
    another backup is being written there.
    """
    if keep < 1:
        raise StoreError(f"keep={keep}: at least 1 backup is kept")
    filesystem, root = RealFileSystem(), Path(os.path.abspath(backups))
    store_id = store_id_of(filesystem, os.path.abspath(folder))
    if (root / SUPERBLOCK_FILE).exists():
        raise StoreError(f"{root} is a single backup or a store: name a folder of backups")
    check_outside(str(root), os.fspath(folder))
    root.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    lock, holder = filesystem.lock(f"{root}/{LOCK_FILE}")
    if lock is None:
        raise StoreError(f"another backup is being written to {root}, by process {holder}")
    try:
        for unfinished in set(_named(root)) - set(complete(root)):
            _delete(root / unfinished)
        earlier = [name for name in complete(root) if _is_of(store_id, f"{root}/{name}")]
        target = root / (now or dt.datetime.now(dt.UTC)).strftime(_NAME)
        if earlier and target.name <= earlier[-1]:
            raise StoreError(f"{root} has the backup {earlier[-1]}, which is not older than {target.name}")
        before = _Earlier(Path(folder), root / earlier[-1] if earlier else None)
        result = backup(folder, target, say=say, earlier=before)
        report = inspect(target) if verify else None
        if report is None or report.is_well:
            for name in earlier[: len(earlier) + 1 - keep]:
                _delete(root / name)
        else:
            for name in {finding.damage.file for finding in report.findings}:
                with suppress(OSError):
                    os.utime(target / name)  # no longer that of the store's file: see `_Earlier.link`
        return target, result, report
    finally:
        lock.release()


def complete(backups: Path) -> list[str]:
    """Return the names of the complete backups in a folder, the oldest first."""
    return [name for name in _named(backups) if (backups / name / SUPERBLOCK_FILE).exists()]


def chosen(source: Path, to_time: dt.datetime | None) -> Path:
    """Return the backup to restore: ``source`` itself, or of a series the newest one begun by ``to_time``.

    Raises `NotAStore` if no backup fits, `StoreError` for a time with a single backup.
    """
    if (source / SUPERBLOCK_FILE).exists():
        if to_time is not None:
            raise StoreError(f"{source} is a single backup: a time chooses one of a folder of backups")
        return source
    names = complete(source) if source.is_dir() else []
    latest = "~" if to_time is None else to_time.astimezone(dt.UTC).strftime(_NAME)
    found = [name for name in names if name <= latest]
    if found:
        return source / found[-1]
    if names:
        raise NotAStore(f"the oldest backup in {source} is {names[0]}: there is none of {latest} or before")
    raise NotAStore(f"{source} is neither a backup nor a folder of backups")


class _Earlier:
    """Previous backup of the series; None for the first one."""

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


def _is_of(store_id: bytes, folder: str) -> bool:
    """Return whether a folder holds a backup of the store; False if that cannot be read."""
    try:
        return store_id_of(RealFileSystem(), folder) == store_id
    except (StoreError, OSError) as error:
        logger.warning("a backup is left alone: %s", error)
        return False


def _named(backups: Path) -> list[str]:
    found = []
    for entry in backups.iterdir():
        with suppress(ValueError):
            dt.datetime.strptime(entry.name, _NAME)
            if entry.is_dir():
                found.append(entry.name)
    return sorted(found)


def _delete(folder: Path) -> None:
    """Delete a backup; the first step makes it invalid, even if the power fails afterwards."""
    (folder / SUPERBLOCK_FILE).unlink(missing_ok=True)
    RealFileSystem().sync_folder(str(folder))
    shutil.rmtree(folder)
