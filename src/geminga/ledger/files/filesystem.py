"""File system interface: the few calls that the store makes, and their real implementation.

The simulated implementation (`tests/support/faulty_filesystem.py`) tears, drops, reorders and fails these
calls, so the store uses the disk only through this interface. Paths are strings.

A write may be short: callers finish it with `write_fully`.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview

FILE_MODE = 0o600
FOLDER_MODE = 0o700
BUFFERS_PER_WRITE_MAX = 512  # below IOV_MAX (1024 on Linux)


class File(Protocol):
    """An open file, read and written at given offsets."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write ``buffers`` at ``offset``, perhaps in part; returns the bytes written."""

    def read(self, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    def sync(self) -> None:
        """Return once data and size are on the disk (fdatasync)."""

    def allocate(self, offset: int, size: int) -> None:
        """Reserve zero bytes; raises OSError where that is impossible (an optimisation only)."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock on a file, released by `release` and by the death of the process."""

    def is_in_place(self) -> bool:
        """Whether the path still names the file that is locked."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """File system calls that the store uses."""

    def make_folder(self, path: str) -> None:
        """Create a folder, private to the user, in an existing parent; no error if the folder exists."""

    def list_folder(self, path: str) -> list[str]:
        """Return the names in the folder; raises FileNotFoundError if the folder does not exist."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; ``create`` makes an empty file, private to the user, if absent."""

    def open_to_read(self, path: str) -> File:
        """Open for reading only, which also works on a disk mounted read-only."""

    def identity_of(self, path: str) -> str:
        """Return an id that differs between a file and its copies on this file system: its inode."""

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None:
        """Return once creations, renames and deletions in the folder are on the disk."""

    def space(self, path: str) -> tuple[int, int]:
        """Return the size of the folder's file system, and the bytes that we may still write."""

    def folder_bytes(self, path: str) -> int:
        """Return the bytes that the files of a folder take on the disk."""

    def lock(
        self, path: str, *, write_pid: bool = True, leave_no_trace: bool = False
    ) -> tuple[Lock | None, str]:
        """Take the lock without waiting: (lock, "") or (None, the start of the file).

        ``write_pid``: the file's content becomes the process id.
        ``leave_no_trace``: neither make the file nor write into it.
        """

    def connect(self, path: str) -> sqlite3.Connection:
        """Open the embedded database at ``path``; its commits are atomic, and durable in order."""

    def copy_database(self, path: str) -> sqlite3.Connection:
        """Copy the database at ``path`` (an empty one if the file is missing) and open the copy."""


def write_fully(file: File, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all bytes of ``buffers``, through short writes; returns how many."""
    total = 0
    for start in range(0, len(buffers), BUFFERS_PER_WRITE_MAX):
        part = buffers[start : start + BUFFERS_PER_WRITE_MAX]
        while any(map(len, part)):
            written = file.write(part, offset + total)
            if written <= 0:
                raise OSError(errno.EIO, "a write of the store's log took no bytes")
            total += written
            part = _after(part, written)
    return total


def read_start(filesystem: FileSystem, path: str, size: int) -> bytes:
    """Return the first ``size`` bytes of a file, or all of a shorter one."""
    with contextlib.closing(filesystem.open_to_read(path)) as file:
        return file.read(size, 0)


def _after(buffers: Sequence[Buffer], skip: int) -> list[Buffer]:
    """The rest of ``buffers`` behind the first ``skip`` bytes."""
    rest: list[Buffer] = []
    for buffer in buffers:
        if skip >= len(buffer):
            skip -= len(buffer)
            continue
        rest.append(memoryview(buffer)[skip:] if skip else buffer)
        skip = 0
    return rest


def open_file(path: str, flags: int) -> int:
    """Open a file; the descriptor is never 0 to 2: a program started without standard streams may print all
    the same (a fatal error of Python, say), which must not end up in a file of the store."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    if fd > 2:
        return fd
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def _close(fd: int) -> None:
    """Close a descriptor, never twice: it is closed even if `os.close` raises, and a second call could close
    another file or socket that has the same number by then."""
    if fd >= 0:
        os.close(fd)


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(self._fd, buffers, offset)

    def read(self, size: int, offset: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (data := os.pread(self._fd, size, offset)):
            parts.append(data)
            size, offset = size - len(data), offset + len(data)
        return b"".join(parts)

    def sync(self) -> None:
        getattr(os, "fdatasync", os.fsync)(self._fd)

    def allocate(self, offset: int, size: int) -> None:
        allocate = getattr(os, "posix_fallocate", None)
        if allocate is None:
            raise OSError(errno.EOPNOTSUPP, "files cannot be allocated ahead on this system")
        allocate(self._fd, offset, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        _close(fd)


class RealLock:
    """A flock on the file at ``path``; none on a file that does not exist (``fd`` is -1)."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.lstat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        _close(fd)


class RealFileSystem:
    """The operating system's files."""

    def make_folder(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, FOLDER_MODE)

    def list_folder(self, path: str) -> list[str]:
        return os.listdir(path)

    def open(self, path: str, *, create: bool = False) -> RealFile:
        return RealFile(open_file(path, os.O_RDWR | (os.O_CREAT if create else 0)))

    def open_to_read(self, path: str) -> RealFile:
        return RealFile(open_file(path, os.O_RDONLY))

    def identity_of(self, path: str) -> str:
        return f"{os.lstat(path).st_ino}."  # earlier versions wrote the inode's generation behind the dot

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def folder_bytes(self, path: str) -> int:
        total = 0
        with os.scandir(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # it was just deleted
                    found = entry.stat(follow_symlinks=False)
                    blocks = getattr(found, "st_blocks", None)
                    total += found.st_size if blocks is None else blocks * 512
        return total

    def lock(
        self, path: str, *, write_pid: bool = True, leave_no_trace: bool = False
    ) -> tuple[RealLock | None, str]:
        import fcntl

        flags = os.O_RDONLY if leave_no_trace else os.O_RDWR | os.O_CREAT
        try:
            fd = open_file(path, flags)
        except FileNotFoundError:
            return RealLock(-1, path), ""  # a store that has none was never open
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 64, 0).decode("ascii", "replace").strip()
            os.close(fd)
            return None, holder
        except BaseException:
            os.close(fd)
            raise
        if leave_no_trace or not write_pid:
            return RealLock(fd, path), ""
        with contextlib.suppress(OSError):  # a full disk must not keep a store from being opened for reading
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return RealLock(fd, path), ""

    def connect(self, path: str) -> sqlite3.Connection:
        if not os.path.exists(path):
            # sqlite3 creates files with the process's umask: ours are private to the user.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE))
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")  # a commit that returned stays
        except BaseException:
            connection.close()
            raise
        return connection

    def copy_database(self, path: str) -> sqlite3.Connection:
        # A start does not wait for what only looking at a store needs.
        import shutil
        import tempfile

        with tempfile.TemporaryDirectory(prefix="geminga-catalog-") as folder:
            copy = f"{folder}/{os.path.basename(path)}"
            for suffix in ("", "-wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(path + suffix, copy + suffix)
            with contextlib.closing(self.connect(copy)) as source:
                connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
                with contextlib.suppress(sqlite3.DatabaseError):  # a damaged one: as if there were none
                    source.backup(connection)
        return connection
