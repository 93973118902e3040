"""Local folder for offloaded ledgers: errors of its disk leave no descriptor open and no file behind."""

import errno
import os
from collections.abc import Sequence

import pytest

from geminga.ledger.files.filesystem import Buffer, RealFile, RealFileSystem
from geminga.ledger.tier.folder_storage import FolderStorage


class File(RealFile):
    """File of which one call fails."""

    __slots__ = ("fails",)

    def _may_fail(self, what: str, code: int) -> None:
        if what == self.fails:
            raise OSError(code, os.strerror(code))

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._may_fail("write", errno.ENOSPC)
        return super().write(buffers, offset)

    def sync(self) -> None:
        self._may_fail("sync", errno.EIO)
        super().sync()

    def truncate(self, size: int) -> None:
        self._may_fail("truncate", errno.EIO)
        super().truncate(size)

    def close(self) -> None:
        super().close()
        self._may_fail("close", getattr(errno, "EDQUOT", errno.ENOSPC))


class FileSystem(RealFileSystem):
    """Disk on which one kind of call fails."""

    def __init__(self) -> None:
        self.fails = ""
        self.opened: list[File] = []

    def open(self, path: str, *, create: bool = False) -> File:
        found = super().open(path, create=create)
        file = File(found._fd)
        file.fails = self.fails
        self.opened.append(file)
        return file

    def rename(self, old: str, new: str) -> None:
        if self.fails == "rename":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().rename(old, new)


@pytest.mark.parametrize("fails", ["truncate", "write", "sync", "close", "rename"])
def test_a_failed_replacement_keeps_the_old_file_and_leaks_nothing(tmp_path, fails):
    """A claim is renewed every 15 s: a leaked descriptor each time would end the broker."""
    filesystem = FileSystem()
    place = FolderStorage(filesystem, str(tmp_path))
    place.replace("a/b", b"before")
    filesystem.fails = fails
    for _ in range(3):
        with pytest.raises(OSError, match=r"Errno"):
            place.replace("a/b", b"after")
    assert [each._fd for each in filesystem.opened] == [-1] * 4
    assert place.read("a/b") == b"before"
    assert place.names("a") == ["b"]
    filesystem.fails = ""
    place.replace("a/b", b"after")
    assert place.read("a/b") == b"after"
