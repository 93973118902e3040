"""Claim an offload storage location for a copy of a store whose original is gone: ``geminga store claim``."""

from __future__ import annotations

import os

from geminga.errors import NotAStore
from geminga.ledger.filesystem import FileSystem, RealFileSystem
from geminga.ledger.folder import SUPERBLOCK_FILE, open_folder
from geminga.ledger.tier_claim import take_over, whose
from geminga.offload.claim import ClaimUnreadable
from geminga.offload.storage import OffloadStorage


def holder(
    folder: str | os.PathLike[str], storage: OffloadStorage, *, filesystem: FileSystem | None = None
) -> str:
    """Return who holds a storage location, in a sentence; empty if the store in ``folder`` does, or no store.

    Raises `NotAStore`, `StoreLocked` while a process has the store open, `OSError` of the storage location.
    """
    files = filesystem or RealFileSystem()
    path, store_id = _locked(folder, files)
    try:
        return whose(storage, files, path, store_id)
    except ClaimUnreadable as error:
        return str(error)


def claim(
    folder: str | os.PathLike[str], storage: OffloadStorage, *, filesystem: FileSystem | None = None
) -> None:
    """Claim a storage location for the store in ``folder``; see `geminga.ledger.tier_claim.take_over`.

    Raises `StorageNotClaimed` while the holder runs, and as `holder` does.
    """
    files = filesystem or RealFileSystem()
    path = os.path.abspath(os.fspath(folder))
    _check_is_store(path, files)
    lock, store_id = open_folder(files, path)
    try:
        take_over(storage, files, path, store_id.hex())
    finally:
        lock.release()


def _locked(folder: str | os.PathLike[str], files: FileSystem) -> tuple[str, str]:
    """Return (path, store id) of a store that no process has open."""
    path = os.path.abspath(os.fspath(folder))
    _check_is_store(path, files)
    lock, store_id = open_folder(files, path)
    lock.release()
    return path, store_id.hex()


def _check_is_store(path: str, files: FileSystem) -> None:
    try:
        names = files.list_folder(path)
    except (FileNotFoundError, NotADirectoryError):
        names = []
    if SUPERBLOCK_FILE not in names:
        raise NotAStore(f"{path} is no store: name the folder that the broker was given as --data-dir")
