"""File system that overlays another one and keeps all changes in memory.

Opening a store may cut a torn tail, write a mark, or rebuild the catalog. Through the overlay, opening and
reading a store changes nothing on the disk: writes stay in memory and are lost with the object. Meant for
reading; write only small amounts.
"""

import errno
import os
import sqlite3
from collections.abc import Sequence

from geminga.ledger.files.filesystem import Buffer, File, FileSystem, Lock


class OverlayFile:
    """File of the lower file system with changes in memory; see `geminga.ledger.files.filesystem.File`."""

    def __init__(self, below: File | None) -> None:
        self._below = below
        self._size = below.size() if below is not None else 0
        self._shown_below = self._size
        self._written: list[tuple[int, bytes]] = []

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        self._written.append((offset, data))
        self._size = max(self._size, offset + len(data))
        return len(data)

    def read(self, size: int, offset: int) -> bytes:
        size = max(0, min(size, self._size - offset))
        data = b""
        if self._below is not None:
            data = self._below.read(max(0, min(size, self._shown_below - offset)), offset)
        if not self._written:
            return data
        found = bytearray(data.ljust(size, b"\0"))
        for start, written in self._written:
            first, last = max(start, offset), min(start + len(written), offset + size)
            if first < last:
                found[first - offset : last - offset] = written[first - start : last - start]
        return bytes(found)

    def sync(self) -> None:
        """Do nothing: changes are never made durable."""

    def allocate(self, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "nothing is allocated in an overlay")

    def truncate(self, size: int) -> None:
        self._size = size
        self._shown_below = min(self._shown_below, size)
        self._written = [(start, data[: size - start]) for start, data in self._written if start < size]

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        """Do nothing: opening the file again must show the changes."""


class OverlayFileSystem:
    """Implements `geminga.ledger.files.filesystem.FileSystem` over another file system."""

    def __init__(self, below: FileSystem) -> None:
        self._below = below
        self._files: dict[str, OverlayFile] = {}
        self._hidden: set[str] = set()

    def make_folder(self, path: str) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def space(self, path: str) -> tuple[int, int]:
        return self._below.space(path)

    def folder_bytes(self, path: str) -> int:
        return self._below.folder_bytes(path)

    def list_folder(self, path: str) -> list[str]:
        names = {name for name in self._below.list_folder(path) if f"{path}/{name}" not in self._hidden}
        names.update(os.path.basename(own) for own in self._files if os.path.dirname(own) == path)
        return sorted(names)

    def open(self, path: str, *, create: bool = False) -> OverlayFile:
        file = self._files.get(path)
        if file is None:
            below = None
            try:
                if path not in self._hidden:
                    below = self._below.open_to_read(path)
            except FileNotFoundError:
                pass
            if below is None and not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            file = self._files[path] = OverlayFile(below)
        return file

    def open_to_read(self, path: str) -> OverlayFile:
        return self.open(path)

    def identity_of(self, path: str) -> str:
        try:
            return self._below.identity_of(path)
        except FileNotFoundError:
            if path in self._files:  # created in the overlay
                return ""
            raise

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self.open(old)
        del self._files[old]
        self._hidden.add(old)

    def unlink(self, path: str) -> None:
        if os.path.basename(path) not in self.list_folder(os.path.dirname(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._files.pop(path, None)
        self._hidden.add(path)

    def sync_folder(self, path: str) -> None:
        """Do nothing: changes are never made durable."""

    def lock(
        self, path: str, *, write_pid: bool = False, leave_no_trace: bool = True
    ) -> tuple[Lock | None, str]:
        return self._below.lock(path, leave_no_trace=True)

    def connect(self, path: str) -> sqlite3.Connection:
        if path in self._hidden:
            return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        return self._below.copy_database(path)

    def copy_database(self, path: str) -> sqlite3.Connection:
        return self.connect(path)
