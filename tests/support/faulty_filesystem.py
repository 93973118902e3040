"""A simulated disk in memory with faults: power loss, errors, short writes and lost unsynced data.

`SimulatedDisk` holds for each file the durable content, the visible content, and the changes in between.
`FaultyFileSystem` is the file system of one process run on that disk: every changing operation is numbered,
and a plan defines at which number the power fails, an error is returned or a write is cut short.
`SimulatedDisk.crash` returns the disk after a power loss: a `Fate` determines which unsynced changes survive,
in any order and torn anywhere.

    disk = SimulatedDisk()
    filesystem = FaultyFileSystem(disk, crash_at=17)
    try:
        ...
    except PowerLoss:
        disk = disk.crash(Fate.random(random.Random(1)))
"""

from __future__ import annotations

import errno
import os.path
import random as random_module
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from geminga.ledger.files.filesystem import Buffer

SECTOR_BYTES = 512


class PowerLoss(BaseException):
    """Power loss of the simulated machine. ``except Exception`` does not catch it."""


@dataclass(frozen=True, slots=True)
class Fate:
    """Fate of unsynced changes at a crash.

    ``data``: "none", "all" or "some" (each sector of each write by chance, so that later writes may survive
    earlier ones) of the unsynced bytes. ``names``: "none", "all" or "some" of the unsynced creations, renames
    and deletions. ``databases``: "last", "first" or "some" of the database commits since the start.
    """

    data: str = "none"
    names: str = "none"
    databases: str = "last"
    random: random_module.Random = field(default_factory=lambda: random_module.Random(0))

    @classmethod
    def by_chance(cls, random: random_module.Random) -> Fate:
        choices = ("none", "all", "some")
        return cls(
            random.choice(choices), random.choice(choices), random.choice(("last", "first", "some")), random
        )


_numbers = count(1)


@dataclass(slots=True)
class _Inode:
    durable: bytearray = field(default_factory=bytearray)
    visible: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: truncated to the offset
    number: int = field(default_factory=_numbers.__next__)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    size = offset if data is None else offset + len(data)
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


class SimulatedDisk:
    """Files by path, with their durable and their visible content."""

    def __init__(self) -> None:
        self.names: dict[str, _Inode] = {}
        self.durable_names: dict[str, _Inode] = {}
        self.name_changes: list[tuple[str, _Inode | None]] = []
        self.folders: set[str] = {"/"}
        self.durable_folders: set[str] = {"/"}
        self.databases: dict[str, list[bytes]] = {}
        self.locks: dict[str, str] = {}
        self.capacity_bytes = 1 << 40
        self.others_bytes = 0
        """Bytes used by other programs on the disk."""

    @property
    def used_bytes(self) -> int:
        """Return the bytes used by files and databases."""
        files = sum(len(inode.visible) for inode in self.names.values())
        return files + sum(len(images[-1]) for images in self.databases.values() if images)

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.others_bytes - self.used_bytes

    def crash(self, fate: Fate) -> SimulatedDisk:
        """Return the disk after a power loss."""
        after = SimulatedDisk()
        after.capacity_bytes, after.others_bytes = self.capacity_bytes, self.others_bytes
        kept = self.folders if fate.names == "all" else self.durable_folders
        folders = {each for each in kept if _ancestors(each) <= kept}
        after.folders, after.durable_folders = set(folders), set(folders)
        names = dict(self.durable_names)
        for path, inode in self.name_changes:
            if fate.names == "none" or (fate.names == "some" and fate.random.random() < 0.5):
                continue
            if inode is None:
                names.pop(path, None)
            else:
                names[path] = inode
        names = {path: inode for path, inode in names.items() if os.path.dirname(path) in folders}
        survivors = {id(inode): self._survive(inode, fate) for inode in names.values()}
        for path, inode in names.items():
            content = survivors[id(inode)]
            after.names[path] = _Inode(bytearray(content), bytearray(content), number=inode.number)
        after.durable_names = dict(after.names)
        for path, images in self.databases.items():
            if os.path.dirname(path) not in folders:
                continue
            index = {"last": len(images) - 1, "first": 0}.get(fate.databases, -1)
            after.databases[path] = [images[fate.random.randrange(len(images)) if index < 0 else index]]
        return after

    @staticmethod
    def _survive(inode: _Inode, fate: Fate) -> bytes:
        content = bytearray(inode.durable)
        for offset, data in inode.unsynced:
            if fate.data == "none":
                break
            if fate.data == "all":
                _apply(content, offset, data)
            elif data is None:
                if fate.random.random() < 0.5:
                    _apply(content, offset, None)
            else:
                _survive_by_sector(content, offset, data, fate.random)
        return bytes(content)

    def kill(self) -> SimulatedDisk:
        """Return the disk after the process was killed: nothing is lost, nothing more is durable."""
        self.locks.clear()
        return self

    # --- changes that tests make while nothing is written ---
    def content(self, path: str) -> bytearray:
        """Return the bytes of a file, to inspect and damage them."""
        inode = self.names[path]
        inode.durable = inode.visible
        return inode.visible

    def remove(self, path: str) -> None:
        del self.names[path]
        self.durable_names.pop(path, None)

    def copy(self) -> SimulatedDisk:
        """Return a copy of the disk, as after a clean stop."""
        return self.crash(Fate("all", "all", "last"))


def _ancestors(path: str) -> set[str]:
    found = set()
    while path != "/":
        path = os.path.dirname(path)
        found.add(path)
    return found


def _survive_by_sector(content: bytearray, offset: int, data: bytes, random: random_module.Random) -> None:
    """Write each sector's part by chance; missing parts of an extended file read as zeros."""
    if random.random() < 0.3:
        return
    start = 0
    while start < len(data):
        stop = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        if random.random() < 0.6:
            piece = data[start:stop]
            if random.random() < 0.1:
                piece = piece[: random.randrange(len(piece) + 1)]
            _apply(content, offset + start, piece)
        start = stop


@dataclass(slots=True)
class Plan:
    """Planned faults, by the number of the operation (the first is 1)."""

    crash_at: int = 0
    torn_bytes: int | None = None  # of the write at the power loss: number of bytes written
    errors: dict[int, int] = field(default_factory=dict)  # number: errno
    short_writes: dict[int, int] = field(default_factory=dict)  # number: bytes taken


class FaultyFileSystem:
    """The file system of one process run on a `SimulatedDisk`; see the module's docstring.

    ``operations`` counts the operations; ``history`` names them, for choosing where to put faults.
    """

    def __init__(self, disk: SimulatedDisk, plan: Plan | None = None, *, process: str = "1") -> None:
        self.disk = disk
        self.plan = plan or Plan()
        self.operations = 0
        self.history: list[tuple[str, str]] = []
        self.is_dead = False
        self.last_write_bytes = 0
        self.answers = threading.Event()
        """While cleared, the disk stalls: reads, writes and syncs, also of databases, wait until it is
        set."""
        self.answers.set()
        self.database_errors: list[str] = []
        """Errors of the next reads of databases, the last one first."""
        self._process = process

    def step(self, what: str, path: str) -> int:
        """Count an operation; raise its planned fault."""
        if self.is_dead:
            raise PowerLoss
        self.operations += 1
        self.history.append((what, path))
        number = self.operations
        if number == self.plan.crash_at and not (what == "write" and self.plan.torn_bytes is not None):
            self.die()
        code = self.plan.errors.get(number)
        if code is not None:
            raise OSError(code, os.strerror(code), path)
        return number

    def die(self) -> None:
        self.is_dead = True
        raise PowerLoss

    # --- room ---
    def space(self, path: str) -> tuple[int, int]:
        return self.disk.capacity_bytes, max(0, self.disk.free_bytes)

    def folder_bytes(self, path: str) -> int:
        return self.disk.used_bytes

    def check_room(self, size: int, path: str) -> None:
        """Raise ENOSPC if this many more bytes do not fit."""
        if size > max(0, self.disk.free_bytes):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    # --- folders and names ---
    def make_folder(self, path: str) -> None:
        if os.path.dirname(path) not in self.disk.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        if path not in self.disk.folders:
            self.step("make folder", path)
            self.disk.folders.add(path)

    def list_folder(self, path: str) -> list[str]:
        if path not in self.disk.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        names = {*self.disk.names, *self.disk.databases}
        return sorted(os.path.basename(name) for name in names if os.path.dirname(name) == path)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        inode = self.disk.names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.step("create", path)
            self.check_room(1, path)
            inode = self.disk.names[path] = _Inode()
            self.disk.name_changes.append((path, inode))
        return FaultyFile(self, inode, path)

    def open_to_read(self, path: str) -> FaultyFile:
        return self.open(path)

    def identity_of(self, path: str) -> str:
        if path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return f"{self.disk.names[path].number}."

    def rename(self, old: str, new: str) -> None:
        self.step("rename", new)
        inode = self.disk.names.pop(old)
        self.disk.names[new] = inode
        self.disk.name_changes += [(new, inode), (old, None)]

    def unlink(self, path: str) -> None:
        if path in self.disk.databases:
            del self.disk.databases[path]
            return
        if path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.step("unlink", path)
        del self.disk.names[path]
        self.disk.name_changes.append((path, None))

    def sync_folder(self, path: str) -> None:
        self.step("sync folder", path)
        self.disk.durable_folders |= {each for each in self.disk.folders if os.path.dirname(each) == path}
        self.disk.durable_names = dict(self.disk.names)
        self.disk.name_changes = []

    def lock(
        self, path: str, *, write_pid: bool = True, leave_no_trace: bool = False
    ) -> tuple[SimulatedLock | None, str]:
        holder = self.disk.locks.get(path)
        if holder is not None:
            return None, holder
        if not leave_no_trace:
            self.open(path, create=True)
        self.disk.locks[path] = self._process
        return SimulatedLock(self.disk, path), ""

    def connect(self, path: str) -> sqlite3.Connection:
        images = self.disk.databases.setdefault(path, [])
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=_Connection
        )
        connection.filesystem, connection.path, connection.images = self, path, images
        if not images:
            images.append(b"")
        if images[-1]:
            connection.deserialize(images[-1])
        return connection

    def copy_database(self, path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        images = self.disk.databases.get(path)
        if images and images[-1]:
            connection.deserialize(images[-1])
        return connection


class _Cursor(sqlite3.Cursor):
    connection: _Connection

    def execute(self, statement: str, *parameters: Any) -> _Cursor:
        if statement == "COMMIT":
            connection, filesystem = self.connection, self.connection.filesystem
            filesystem.step("commit", connection.path)
            if filesystem.disk.free_bytes <= 0:
                raise sqlite3.OperationalError("database or disk is full")
            super().execute(statement, *parameters)
            connection.images.append(connection.serialize())
            return self
        if statement.startswith("SELECT"):
            filesystem = self.connection.filesystem
            if not filesystem.answers.is_set():
                filesystem.answers.wait()
            if filesystem.database_errors:
                raise sqlite3.OperationalError(filesystem.database_errors.pop())
        super().execute(statement, *parameters)
        return self


class _Connection(sqlite3.Connection):
    """A connection to an in-memory database; each commit stores an image of it."""

    filesystem: FaultyFileSystem
    path: str
    images: list[bytes]

    def cursor(self, *_: Any, **__: Any) -> Any:
        return super().cursor(_Cursor)

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        return _Cursor(self).execute(statement, *parameters)


class SimulatedLock:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._inode = disk.names.get(path)

    def is_in_place(self) -> bool:
        return self._disk.names.get(self._path) is self._inode

    def release(self) -> None:
        self._disk.locks.pop(self._path, None)


class FaultyFile:
    """An open file; see `geminga.ledger.files.filesystem.File`."""

    def __init__(self, filesystem: FaultyFileSystem, inode: _Inode, path: str) -> None:
        self._filesystem = filesystem
        self._inode = inode
        self._path = path

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        filesystem = self._filesystem
        filesystem.answers.wait()
        number = filesystem.step("write", self._path)
        data = b"".join(buffers)
        filesystem.last_write_bytes = len(data)
        taken = filesystem.plan.short_writes.get(number)
        if taken is not None:
            data = data[:taken]
        torn = filesystem.plan.torn_bytes
        if number == filesystem.plan.crash_at and torn is not None:
            # The written part is on the disk: the fate affects earlier writes only.
            _apply(self._inode.durable, offset, data[:torn])
            self._inode.unsynced.append((offset, data[:torn]))
            filesystem.die()
        data = data[: self._room(offset, len(data))]
        _apply(self._inode.visible, offset, data)
        self._inode.unsynced.append((offset, data))
        return len(data)

    def _room(self, offset: int, size: int) -> int:
        """Return how many bytes of a write fit; raises ENOSPC for none, as a full disk does."""
        grows = offset + size - len(self._inode.visible)
        missing = grows - max(0, self._filesystem.disk.free_bytes) if grows > 0 else 0
        if missing >= size > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        return size - max(0, missing)

    def read(self, size: int, offset: int) -> bytes:
        self._filesystem.answers.wait()
        if self._filesystem.is_dead:
            raise PowerLoss
        return bytes(self._inode.visible[offset : offset + size])

    def sync(self) -> None:
        inode = self._inode
        self._filesystem.answers.wait()
        try:
            self._filesystem.step("sync", self._path)
        except OSError:
            # As in Linux: the pages count as clean from now on, though they were not written.
            inode.unsynced = []
            raise
        for offset, data in inode.unsynced:
            _apply(inode.durable, offset, data)
        inode.unsynced = []

    def allocate(self, offset: int, size: int) -> None:
        self._filesystem.step("allocate", self._path)
        self._filesystem.check_room(offset + size - len(self._inode.visible), self._path)
        if len(self._inode.visible) < offset + size:
            grown = bytes(offset + size - len(self._inode.visible))
            self._inode.unsynced.append((len(self._inode.visible), grown))
            self._inode.visible.extend(grown)

    def truncate(self, size: int) -> None:
        self._filesystem.step("truncate", self._path)
        _apply(self._inode.visible, size, None)
        self._inode.unsynced.append((size, None))

    def size(self) -> int:
        return len(self._inode.visible)

    def close(self) -> None:
        pass
