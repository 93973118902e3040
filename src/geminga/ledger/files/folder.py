"""Store folder: whether a folder holds a store, its lock files, and its superblock.

::

    superblock           format version and the store's id; written last into a new store or backup
    lock                 locked while the store is open, as the superblock is; names the process
    synced               the synced-through mark
    log-0000000001 ...   the log
    catalog.db*          the catalog; may be deleted while the store is closed, it is rebuilt
    version              the program version that wrote the store last, as text
    identity             identifies this copy of the store (`geminga.ledger.tier.identity`); never copied
    catalog.damaged      present when the catalog was found damaged: the next opening rebuilds it
"""

import contextlib
import errno
import logging
import os
from collections.abc import Collection

from geminga._version import __version__
from geminga.errors import NotAStore, StoreDamaged, StoreError, StoreLocked
from geminga.ledger.files.filesystem import FileSystem, Lock, read_start, write_fully
from geminga.ledger.files.format import (
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    SUPERBLOCK_BYTES,
    decode_file_header,
    decode_superblock,
    encode_superblock,
    file_number,
)

logger = logging.getLogger("geminga.ledger")

SUPERBLOCK_FILE = "superblock"
LOCK_FILE = "lock"
VERSION_FILE = "version"
CATALOG_FILE = "catalog.db"
CATALOG_DAMAGED_FILE = "catalog.damaged"
_UNFINISHED = frozenset((LOCK_FILE, SUPERBLOCK_FILE + ".new"))
_HARMLESS = frozenset(("lost+found",))  # in every new ext4 file system
_STORE_ID_BYTES = 16


class StoreLock:
    """Locks of an open store: on the lock file and, because people delete lock files, on the superblock."""

    def __init__(self, filesystem: FileSystem, folder: str) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._locks: dict[str, Lock] = {}

    def take(self, name: str) -> None:
        """Lock a file of the folder; releases the lock on an earlier such file. Raises `StoreLocked`."""
        if name in self._locks:
            self._locks.pop(name).release()
        lock, holder = self._filesystem.lock(f"{self._folder}/{name}", write_pid=name == LOCK_FILE)
        if lock is None:
            process = f"process {holder}" if holder.isdecimal() else "another process"
            raise StoreLocked(
                f"the store in {self._folder} is open in {process}: stop it first, or use another folder"
            )
        self._locks[name] = lock

    def check(self) -> None:
        """Raise `StoreError` when a locked file was deleted, moved or replaced."""
        for name, lock in self._locks.items():
            if not lock.is_in_place():
                raise file_gone(self._folder, name)

    def release(self) -> None:
        while self._locks:
            self._locks.popitem()[1].release()


def file_gone(folder: str, name: str) -> StoreError:
    """Return the error of an open store of which a file is no longer in its folder."""
    return StoreError(
        f"{folder}/{name} was deleted, moved or replaced while the store was open: the store stops before "
        "more is lost; put the file back if it was moved, then start again, which reports what is missing"
    )


def _is_store(names: Collection[str]) -> bool:
    """Return whether a folder with these files is a store.

    Unfinished backups have log files and no superblock. A store that was open has a lock file, too, which
    keeps other processes out: it gets a deleted superblock back.
    """
    has_log = any(file_number(name) is not None for name in names)
    return SUPERBLOCK_FILE in names or (has_log and LOCK_FILE in names)


def check_is_store(filesystem: FileSystem, folder: str) -> None:
    """Raise `NotAStore` for a folder without a store; changes nothing."""
    try:
        names = filesystem.list_folder(folder)
    except (FileNotFoundError, NotADirectoryError):
        names = []
    if not _is_store(names):
        raise NotAStore(f"{folder} is no store: name the folder that the broker was given as --data-dir")


def open_folder(filesystem: FileSystem, folder: str) -> tuple[StoreLock, bytes]:
    """Lock the store and read its superblock, creating both in an empty folder; returns (lock, store id)."""
    _check_may_be_store(filesystem, folder)
    lock = StoreLock(filesystem, folder)
    try:
        lock.take(LOCK_FILE)
        names = filesystem.list_folder(folder)
        if SUPERBLOCK_FILE not in names and _is_store(names):
            _rebuild_superblock(filesystem, folder)
        elif SUPERBLOCK_FILE not in names:
            logger.info("%s held no store: a new one is created there", folder)
            sync_parents(filesystem, folder)
            _write_superblock(filesystem, folder, os.urandom(_STORE_ID_BYTES))
        else:
            filesystem.sync_folder(folder)  # the start that wrote the superblock may have failed in this step
        lock.take(SUPERBLOCK_FILE)
        store_id = _read_superblock(filesystem, folder, lock)
        _write_version(filesystem, folder)
        return lock, store_id
    except BaseException:
        lock.release()
        raise


def _check_may_be_store(filesystem: FileSystem, folder: str) -> None:
    try:
        names = set(filesystem.list_folder(folder))
    except FileNotFoundError:
        make_folders(filesystem, folder)
        return
    except NotADirectoryError:
        raise NotAStore(f"{folder} is a file, not the folder of a store") from None
    if _is_store(names):
        return
    others = sorted(names - _UNFINISHED - _HARMLESS)
    if others:
        raise NotAStore(
            f"{folder} is no store and not empty (it holds {', '.join(others[:3])}"
            f"{' and more' if len(others) > 3 else ''}): nothing was touched, name an empty or a new folder"
        )


def make_folders(filesystem: FileSystem, folder: str) -> None:
    """Create a folder with its missing parents; no error if it exists."""
    parent = os.path.dirname(folder)
    try:
        filesystem.make_folder(folder)
    except FileNotFoundError:
        if parent == folder:
            raise
        make_folders(filesystem, parent)
        filesystem.make_folder(folder)


def sync_parents(filesystem: FileSystem, folder: str) -> None:
    """Return once the names of the folder and of all its parents are on the disk.

    All of them, as an earlier attempt to create them may have died before syncing. A parent that we may not
    read, or that does not support syncing, was not created by us.
    """
    while (parent := os.path.dirname(folder)) != folder:
        try:
            filesystem.sync_folder(parent)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP):
                raise
        folder = parent


def _write_superblock(filesystem: FileSystem, folder: str, store_id: bytes) -> None:
    """Write the superblock that makes the folder a store, all or nothing."""
    path = f"{folder}/{SUPERBLOCK_FILE}"
    with contextlib.closing(filesystem.open(path + ".new", create=True)) as file:
        file.truncate(0)
        write_fully(file, [encode_superblock(store_id)], 0)
        file.sync()
    filesystem.rename(path + ".new", path)
    filesystem.sync_folder(folder)


def _read_superblock(filesystem: FileSystem, folder: str, lock: StoreLock) -> bytes:
    superblock = decode_superblock(
        read_start(filesystem, f"{folder}/{SUPERBLOCK_FILE}", SUPERBLOCK_BYTES + 1)
    )
    if superblock is None:
        store_id = _rebuild_superblock(filesystem, folder)
        lock.take(SUPERBLOCK_FILE)
        return store_id
    version, store_id = superblock
    check_format(filesystem, folder, version)
    if version < FORMAT_VERSION:
        # From now on the store may have records that programs of the older format do not know.
        _write_superblock(filesystem, folder, store_id)
        lock.take(SUPERBLOCK_FILE)
    return store_id


def check_format(filesystem: FileSystem, folder: str, version: int) -> None:
    """Raise `StoreError` for a format that only newer programs know."""
    if version > FORMAT_VERSION:
        by = read_version(filesystem, folder)
        written = f"written by {by}; " if by else ""
        raise StoreError(
            f"the store in {folder} has format {version}, {written}this version of geminga knows up to "
            f"{FORMAT_VERSION}: open it with a newer version; nothing was touched"
        )


def read_version(filesystem: FileSystem, folder: str) -> str:
    """Return the program version that wrote the store last, such as ``geminga 0.2.0``; empty if unknown."""
    try:
        return read_start(filesystem, f"{folder}/{VERSION_FILE}", 100).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _write_version(filesystem: FileSystem, folder: str) -> None:
    """Write this program's version if another one wrote the store last. A full disk does not matter."""
    own, before = f"geminga {__version__}", read_version(filesystem, folder)
    if before == own:
        return
    if before:
        logger.info("the store in %s was last written by %s; this is %s", folder, before, own)
    path = f"{folder}/{VERSION_FILE}"
    with contextlib.suppress(OSError), contextlib.closing(filesystem.open(path, create=True)) as file:
        file.truncate(0)
        write_fully(file, [f"{own}\n".encode()], 0)


def _rebuild_superblock(filesystem: FileSystem, folder: str) -> bytes:
    """Write the superblock again with the store id that the log files agree on."""
    path = f"{folder}/{SUPERBLOCK_FILE}"
    ids = set()
    for name in filesystem.list_folder(folder):
        number = file_number(name)
        if number is not None:
            header = decode_file_header(read_start(filesystem, f"{folder}/{name}", FILE_HEADER_BYTES))
            if header is not None and header[0] == number:
                ids.add(header[1])
    if len(ids) != 1:
        raise StoreDamaged(
            f"{path} is missing or fails its checksum, and the log files do not tell whose it is: restore "
            "this small file from a backup; nothing else was touched"
        )
    (store_id,) = ids
    logger.error("%s is missing or fails its checksum: the store's id is taken from the log files", path)
    _write_superblock(filesystem, folder, store_id)
    return store_id


def discard_catalog(filesystem: FileSystem, folder: str) -> None:
    """Remove the catalog's files, so that it is rebuilt."""
    names = [f"{CATALOG_FILE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    for name in (*names, CATALOG_DAMAGED_FILE):
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(f"{folder}/{name}")
    filesystem.sync_folder(folder)
