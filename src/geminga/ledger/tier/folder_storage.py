"""Local folder as a storage location for offloaded ledgers, through the store's file system interface.

Files and the folders above them are synced before they are used.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from geminga.ledger.files.filesystem import File, FileSystem, RealFileSystem, write_fully
from geminga.ledger.files.folder import make_folders, sync_parents

_GATHERED_BYTES = 1024 * 1024
_SYNCED_BYTES = 16 * 1024 * 1024
"""Bytes written between syncs, as a long sync delays the syncs of others on this disk."""
_NEW = ".new"


class FolderStorage:
    """Implements `geminga.offload.storage.OffloadStorage` in a local folder, which it creates."""

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self.location = root
        self.worker_location = root if isinstance(filesystem, RealFileSystem) else None
        self._filesystem = filesystem
        self._durable: set[str] = set()
        """Folders that this process has synced in their parents."""

    def _path(self, path: str) -> str:
        return f"{self.location.rstrip('/')}/{path}"

    def _make_folders(self, folder: str) -> None:
        """Create a folder and those above it, all synced in their parents.

        Existing ones are synced too: they may have been created just before a crash or a failed sync.
        """
        try:
            self._filesystem.list_folder(folder)
        except FileNotFoundError:
            self._durable.discard(folder)
            make_folders(self._filesystem, folder)
        if folder not in self._durable:
            sync_parents(self._filesystem, folder)
            self._durable.add(folder)

    def create(self, path: str) -> FolderWriter:
        full = self._path(path)
        self._make_folders(os.path.dirname(full))
        return FolderWriter(self._filesystem, full)

    def open(self, path: str) -> FolderReader:
        return FolderReader(self._filesystem.open_to_read(self._path(path)))

    def read(self, path: str) -> bytes | None:
        try:
            with contextlib.closing(self._filesystem.open_to_read(self._path(path))) as file:
                return file.read(file.size(), 0)
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        full = self._path(path)
        try:
            self._write_whole(path + _NEW, data)
            self._filesystem.rename(full + _NEW, full)
        except Exception:
            # The new file may take the last space on the disk.
            with contextlib.suppress(OSError):
                self._filesystem.unlink(full + _NEW)
            raise
        self._filesystem.sync_folder(os.path.dirname(full))

    def _write_whole(self, path: str, data: bytes) -> None:
        writing = self.create(path)
        try:
            writing.write(data)
            writing.finish()
        except BaseException:
            writing.abandon()
            raise

    def overwrite(self, path: str, data: bytes) -> None:
        with contextlib.closing(self._filesystem.open(self._path(path))) as file:
            write_fully(file, [data], 0)
            file.sync()

    def delete(self, path: str) -> None:
        full = self._path(path)
        was_there = False
        for each in (full, full + _NEW):
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.unlink(each)
                was_there = True
        if was_there:
            self._filesystem.sync_folder(os.path.dirname(full))

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(self._filesystem.list_folder(self._path(folder)))
        except FileNotFoundError:
            return []


class FolderWriter:
    """New file, which replaces a partial one of that name from before a crash."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._file = filesystem.open(path, create=True)
        try:
            self._file.truncate(0)
        except BaseException:
            self._file.close()
            raise
        self._at = self._synced = 0
        self._gathered = bytearray()

    def write(self, data: Any) -> object:
        self._gathered += data
        if len(self._gathered) >= _GATHERED_BYTES:
            self._write()
        return None

    def _write(self) -> None:
        data, self._gathered = bytes(self._gathered), bytearray()
        self._at += write_fully(self._file, [data], self._at)
        if self._at - self._synced >= _SYNCED_BYTES:
            self._sync()

    def _sync(self) -> None:
        self._file.sync()
        self._synced = self._at

    def finish(self) -> None:
        if self._gathered:
            self._write()
        self._sync()
        self._file.close()
        self._filesystem.sync_folder(os.path.dirname(self._path))

    def abandon(self) -> None:
        self._gathered.clear()
        with contextlib.suppress(OSError):
            self._file.close()


class FolderReader:
    """File for reading, with the methods that Arrow needs."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size()
        self._at = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        size = self._size - self._at if size < 0 else size
        data = self._file.read(size, self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.close()

    def flush(self) -> None: ...

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True
