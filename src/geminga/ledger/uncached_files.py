"""Files that are read once, without changing what the operating system caches.

An offloaded ledger is old. Reading it must not evict pages that are read repeatedly from the page cache.
"""

from __future__ import annotations

import contextlib
import os

from geminga.ledger.filesystem import RealFile, RealFileSystem, open_file

_CAN_TELL = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")
"""Whether the system reports which pages are cached, as Linux does."""


class UncachedFile(RealFile):
    """File for reading once, in large pieces."""

    __slots__ = ()

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        if _CAN_TELL:
            # No read-ahead, as its pages would look like pages cached before.
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, size: int, offset: int) -> bytes:
        was_there = not _CAN_TELL or self.is_in_memory(offset, size)
        data = super().read(size, offset)
        if not was_there:
            self.let_go(offset, size)
        return data

    def is_in_memory(self, offset: int, size: int) -> bool:
        """Whether start, middle and end of a range are cached; also True if the system cannot report it."""
        probe = bytearray(1)
        for at in (offset, offset + size // 2, offset + max(size - 1, 0)):
            try:
                os.preadv(self._fd, [probe], at, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:  # this file system cannot report it
                return True
        return True


class UncachedFileSystem(RealFileSystem):
    """The operating system's files, opened as `UncachedFile` for reading."""

    def open_to_read(self, path: str) -> UncachedFile:
        return UncachedFile(open_file(path, os.O_RDONLY))
