"""Files that are read once, in passing: what the system keeps of them in memory is what it kept before.

A ledger that is offloaded is old. To read it must not push out of memory what others read again and again.
"""

from __future__ import annotations

import contextlib
import os

from geminga.ledger.filesystem import RealFile, RealFileSystem, open_file

_CAN_TELL = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")
"""Whether the system tells what it has in memory, as Linux does."""


class UncachedFile(RealFile):
    """To be read in large pieces, each once."""

    __slots__ = ()

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        if _CAN_TELL:
            # Nothing is read ahead: it would count as what was there before.
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, size: int, offset: int) -> bytes:
        was_there = not _CAN_TELL or self.is_in_memory(offset, size)
        data = super().read(size, offset)
        if not was_there:
            self.let_go(offset, size)
        return data

    def is_in_memory(self, offset: int, size: int) -> bool:
        """Whether a piece of the file is in memory, by its ends and its middle; also where nobody tells."""
        probe = bytearray(1)
        for place in (offset, offset + size // 2, offset + max(size - 1, 0)):
            try:
                os.preadv(self._fd, [probe], place, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:  # this file system does not tell
                return True
        return True


class UncachedFileSystem(RealFileSystem):
    """The operating system's files, to be read in passing."""

    def open_to_read(self, path: str) -> UncachedFile:
        return UncachedFile(open_file(path, os.O_RDONLY))
