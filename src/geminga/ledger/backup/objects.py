"""Series of backups in an object store, in which unchanged log files are stored once.

::

    2026-11-28T09-00-00Z.json                        backup: its files, and the objects that hold them
    files/2026-11-28T09-00-00Z-5f3a91c2-log-0000000001
                                                     file of the store, named by the backup that uploaded it
    deleted/2026-11-29T09-00-00Z-2026-11-28T09-00-00Z.json
                                                     list of a deleted backup, after the time of the deletion

The first is written last and makes the backup complete. Object stores have no locks, so backups may be
written at the same time, and each must find the objects that it shares. An object that no backup lists is
deleted a day after its backup began and a day after the last backup with it was deleted. The random part of
the name keeps backups apart that begin in the same second.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import logging
import os
import secrets
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from geminga.errors import StoreDamaged, StoreError
from geminga.ledger.backup.backup import EarlierBackup, is_name, name_at
from geminga.ledger.files.filesystem import Buffer, FileSystem, Lock, RealLock
from geminga.offload.storage import OffloadStorage, StorageWriter

logger = logging.getLogger("geminga.ledger")

_FILES: Final = "files"
_DELETED: Final = "deleted"
_VERSION: Final = 1
_SUFFIX: Final = ".json"
_NAME_LENGTH: Final = len("2026-11-28T09-00-00Z")
_READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a request that reads a part of an object."""
_UNLISTED: Final = dt.timedelta(days=1)


class BackupObject(NamedTuple):
    """Object that holds a file of a backup."""

    name: str
    size: int
    changed: int = 0
    """Time of change of the store's file, in ns; 0: unknown, and not used again."""


class ObjectSeries:
    """Implements `geminga.ledger.backup.series.BackupSeries` in an object store."""

    def __init__(self, storage: OffloadStorage) -> None:
        self.location = storage.location
        self._storage = storage
        self._objects = ObjectFileSystem(storage)
        self._offset = dt.timedelta()  # of the caller's clock
        self.filesystem: FileSystem = self._objects

    def names(self) -> list[str]:
        found = (each.removesuffix(_SUFFIX) for each in self._storage.names("") if each.endswith(_SUFFIX))
        return sorted(name for name in found if is_name(name))

    def folder_of(self, name: str) -> str:
        return f"/{name}"

    @contextmanager
    def writing(self, store: Path, now: dt.datetime) -> Iterator[None]:
        self._offset = now - dt.datetime.now(dt.UTC)
        yield
        oldest = name_at(now - _UNLISTED)

        def is_old(name: str) -> bool:
            return is_name(name[:_NAME_LENGTH]) and name < oldest

        stored = filter(is_old, self._storage.names(_FILES))
        lists = self.names()  # before the lists of deleted ones, which a deletion writes first
        deleted = self._storage.names(_DELETED)
        lists += [f"{_DELETED}/{name.removesuffix(_SUFFIX)}" for name in deleted if not is_old(name)]
        try:
            listed = {each.name for name in lists for each in self._objects.files(name).values()}
        except (StoreError, FileNotFoundError) as error:
            logger.warning("no objects are deleted in %s: %s", self.location, error)
            return
        for name in set(stored) - listed:
            self._storage.delete(f"{_FILES}/{name}")
        for name in filter(is_old, deleted):
            self._storage.delete(f"{_DELETED}/{name}")

    def earlier(self, store: Path, previous: str) -> EarlierObjects:
        if not previous:
            return EarlierObjects(store, self._objects, {})
        stored = set(self._storage.names(_FILES))
        files = self._objects.files(previous)
        return EarlierObjects(
            store, self._objects, {name: each for name, each in files.items() if each.name in stored}
        )

    def distrust(self, name: str, files: Iterable[str]) -> None:
        listed = self._objects.files(name)
        for each in listed.keys() & set(files):
            listed[each] = listed[each]._replace(changed=0)
        self._objects.save(name)

    def delete(self, name: str) -> None:
        self._objects.forget(name)
        data = self._storage.read(f"{name}{_SUFFIX}")
        if data is not None:
            deletion = name_at(dt.datetime.now(dt.UTC) + self._offset)
            self._storage.replace(f"{_DELETED}/{deletion}-{name}{_SUFFIX}", data)
            self._storage.delete(f"{name}{_SUFFIX}")


class EarlierObjects(EarlierBackup):
    """Previous backup of the same store, of which the objects still exist."""

    def __init__(self, store: Path, objects: ObjectFileSystem, files: dict[str, BackupObject]) -> None:
        self._store = store
        self._objects = objects
        self._files = files

    def link(self, name: str, size: int, path: str) -> bool:
        old = self._files.get(name)
        if old is None or (old.size, old.changed) != (size, self._changed(name)):
            return False
        self._objects.add(path, old)
        return True

    def copied(self, name: str, path: str) -> None:
        self._objects.add(path, self._objects.of(path)._replace(changed=self._changed(name)))

    def _changed(self, name: str) -> int:
        with suppress(OSError):  # the store has deleted it
            return (self._store / name).stat().st_mtime_ns
        return -1


class ObjectFileSystem:
    """Implements `geminga.ledger.files.filesystem.FileSystem` as far as backups use it.

    ``/NAME`` is the folder of a backup. Files are written once, from start to end.
    """

    def __init__(self, storage: OffloadStorage) -> None:
        self._storage = storage
        self._backups: dict[str, dict[str, BackupObject]] = {}
        self._random = secrets.token_hex(4)

    def files(self, backup: str) -> dict[str, BackupObject]:
        """Return the files of a backup. Raises `StoreError`, `FileNotFoundError`."""
        if backup not in self._backups:
            data = self._storage.read(f"{backup}{_SUFFIX}")
            if data is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{backup}{_SUFFIX}")
            try:
                kept = json.loads(data)
                if kept["version"] > _VERSION:
                    raise StoreError(
                        f"{self._storage.location}/{backup}{_SUFFIX} has version {kept['version']}, this "
                        f"version of geminga knows up to {_VERSION}: use a newer version"
                    )
                files = {name: BackupObject(*each) for name, each in kept["files"].items()}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise StoreDamaged(
                    f"{self._storage.location}/{backup}{_SUFFIX} does not list the files of a backup: {error}"
                ) from None
            self._backups[backup] = files
        return self._backups[backup]

    def save(self, backup: str) -> None:
        """Write the list of a backup's files."""
        text = json.dumps({"version": _VERSION, "files": self._backups[backup]}, indent=1)
        self._storage.replace(f"{backup}{_SUFFIX}", text.encode())

    def forget(self, backup: str) -> None:
        self._backups.pop(backup, None)

    def of(self, path: str) -> BackupObject:
        """Return the object of a file. Raises `FileNotFoundError`."""
        backup, name = path[1:].split("/", 1)
        try:
            return self.files(backup)[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def add(self, path: str, found: BackupObject) -> None:
        """Add a file to a backup that is being written."""
        backup, name = path[1:].split("/", 1)
        self._backups[backup][name] = found

    def make_folder(self, path: str) -> None:
        self._backups[path[1:]] = {}

    def list_folder(self, path: str) -> list[str]:
        return sorted(self.files(path[1:]))

    def open(self, path: str, *, create: bool = False) -> Any:
        name = self._object_of(path)
        writer = self._storage.create(f"{_FILES}/{name}")
        return _Upload(writer, lambda size: self.add(path, BackupObject(name, size)))

    def open_to_read(self, path: str) -> Any:
        found = self.of(path)
        return _Download(self._storage.open(f"{_FILES}/{found.name}"), found.size)

    def identity_of(self, path: str) -> str:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def rename(self, old: str, new: str) -> None:
        """Rename the file that completes the backup. Raises `StoreError` if there is one of this name."""
        backup = new[1:].split("/", 1)[0]
        if f"{backup}{_SUFFIX}" in self._storage.names(""):
            raise StoreError(f"{self._storage.location} has got another backup {backup} meanwhile: try again")
        self.add(new, self._backups[backup].pop(old[1:].split("/", 1)[1]))
        self.save(backup)

    def unlink(self, path: str) -> None:
        """Delete what this backup has uploaded; objects of earlier ones stay."""
        self._storage.delete(f"{_FILES}/{self._object_of(path)}")

    def _object_of(self, path: str) -> str:
        """Return the name of the object that a new file is uploaded to."""
        backup, name = path[1:].split("/", 1)
        return f"{backup}-{self._random}-{name.removesuffix('.new')}"

    def sync_folder(self, path: str) -> None:
        """Do nothing: objects are durable once they exist."""

    def space(self, path: str) -> tuple[int, int]:
        return sys.maxsize, sys.maxsize

    def folder_bytes(self, path: str) -> int:
        return 0

    def lock(
        self, path: str, *, write_pid: bool = True, leave_no_trace: bool = False
    ) -> tuple[Lock | None, str]:
        return RealLock(-1, path), ""  # none: complete backups do not change

    def connect(self, path: str) -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

    def copy_database(self, path: str) -> sqlite3.Connection:
        return self.connect(path)


class _Upload:
    """New file, of `geminga.ledger.files.filesystem.File` as far as backups use it."""

    def __init__(self, writer: StorageWriter, finished: Callable[[int], None]) -> None:
        self._writer: StorageWriter | None = writer
        self._finished = finished
        self._size = 0

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        assert self._writer is not None
        for each in buffers:
            self._writer.write(each)
            self._size += len(each)
        return self._size - offset

    def sync(self) -> None:
        """Complete the object, which makes it durable."""
        if self._writer is not None:
            self._writer.finish()
            self._writer = None
            self._finished(self._size)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None


class _Download:
    """Stored file, of `geminga.ledger.files.filesystem.File` as far as reading a backup uses it."""

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._size = size
        self._start = 0
        self._window = b""

    def read(self, size: int, offset: int) -> bytes:
        size = max(0, min(size, self._size - offset))
        if not self._start <= offset <= offset + size <= self._start + len(self._window):
            self._file.seek(offset)
            self._start, self._window = offset, bytes(self._file.read(max(size, _READ_BYTES)))
        first = offset - self._start
        found = self._window[first : first + size]
        if offset + size == self._size:
            self._window = b""  # read to its end: many files may be open
        return found

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        self._file.close()
