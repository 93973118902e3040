"""Reading of offloaded ledgers, on separate threads, so that remote storage does not delay reads of the disk.

A few files stay open, and the groups of entries read last stay in memory, as readers usually continue. Errors
of a file are reported; a file that is missing or does not answer is never skipped. Entries with wrong bytes
are reported as damaged.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from geminga.errors import CorruptPayload, StoreError
from geminga.ledger.damage import Damage, DamageLoss
from geminga.offload.file import LedgerFile, NotOffloaded
from geminga.offload.manifest import OffloadedLedger
from geminga.offload.storage import OffloadStorage

logger = logging.getLogger("geminga.ledger")

FILES_MAX = 8
"""Files that stay open."""
GROUPS_BYTES_MAX = 32 * 1024 * 1024
"""Size of the groups that stay in memory, besides the one read last."""
UNREADABLE_SECONDS = 30.0
"""Time for which wrong bytes are read again: the network may be at fault, not the file."""
SUSPECTS_MAX = 1_000

_Group = tuple[int, list[bytes], frozenset[int], int]
"""First entry, entries, indexes of the lost ones, size in bytes."""


@dataclass(slots=True)
class OffloadedRead:
    """Result of a read: entries, or an error. Implements `geminga.ledger.reading.pool.ReadResult`."""

    entries: list[bytes]
    damage: Damage | None = None
    error: StoreError | None = None

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.entries))


class _OpenFile:
    """Open file. ``lock`` is held while it is read, which may take long; only other readers wait for it."""

    __slots__ = ("file", "is_unwanted", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file: LedgerFile | None = None
        self.is_unwanted = False

    def let_go(self) -> None:
        """Close the file now, or when its reader is done; never waits."""
        self.is_unwanted = True
        if self.lock.acquire(blocking=False):
            self.close()
            self.lock.release()

    def close(self) -> None:
        """Close the file; the caller holds the lock."""
        file, self.file = self.file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                logger.debug("cannot close an offloaded ledger's file: %s", error)


class TierReader:
    """Reads offloaded ledgers. Its calls are for any thread, and wait for the storage."""

    def __init__(self, storage: OffloadStorage) -> None:
        self._storage = storage
        self._suspects: OrderedDict[tuple[str, int | None], tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], _Group] = OrderedDict()
        self._groups_bytes = 0
        self.bytes_read = 0

    def job(
        self, path: str, record: OffloadedLedger, first: int, entries_max: int, bytes_max: int
    ) -> Callable[[], OffloadedRead]:
        """Return a job that reads entries from ``first`` on, within both limits, at least one."""
        return lambda: self._read(path, record, max(first, 0), entries_max, bytes_max)

    def _read(
        self, path: str, record: OffloadedLedger, first: int, entries_max: int, bytes_max: int
    ) -> OffloadedRead:
        where = f"ledger {record.ledger} is offloaded to {self._storage.location}/{path}"
        if first >= record.entries or entries_max <= 0:
            return OffloadedRead([])
        try:
            begin, entries, lost, _ = self._group(path, record, first)
        except FileNotFoundError:
            return OffloadedRead([], error=StoreError(f"{where}, which is not there"))
        except NotOffloaded as error:
            return OffloadedRead([], error=StoreError(f"{where}: {error}"))
        except _GroupDamaged as error:
            return self._wrong(where, error.damage)
        except Exception as error:
            logger.debug("reading an offloaded ledger failed", exc_info=True)
            return OffloadedRead([], error=StoreError(f"{where}, which cannot be read now: {error}"))
        at = first - begin
        if at in lost:
            return self._wrong(where, _damage(path, record, first, first, "the entry fails its checksum"))
        return OffloadedRead(_cut(entries, lost, at, entries_max, bytes_max))

    def _wrong(self, where: str, damage: Damage) -> OffloadedRead:
        """Return an error for wrong bytes; damage once they were wrong in all reads of UNREADABLE_SECONDS."""
        key, now = (damage.file, damage.first_entry_id), time.monotonic()
        with self._lock:
            since, last = self._suspects.pop(key, (now, now))
            if now - last > UNREADABLE_SECONDS:
                since = now  # they were intact meanwhile, or not read
            self._suspects[key] = since, now
            while len(self._suspects) > SUSPECTS_MAX:
                self._suspects.popitem(last=False)
        if now - since >= UNREADABLE_SECONDS:
            return OffloadedRead([], damage=damage)
        return OffloadedRead([], error=StoreError(f"{where}, which cannot be read now: {damage.what}"))

    def _group(self, path: str, record: OffloadedLedger, entry_id: int) -> _Group:
        with self._lock:
            opened = self._files.get(path)
            if opened is None:
                opened = self._files[path] = _OpenFile()
            self._files.move_to_end(path)
            unused = [self._files.popitem(last=False)[1] for _ in range(len(self._files) - FILES_MAX)]
        for each in unused:
            each.let_go()
        try:
            with opened.lock:
                number, group, is_held = self._read_group(opened, path, record, entry_id)
        finally:
            if opened.is_unwanted:
                opened.let_go()
        if is_held:
            return group
        key = (path, number)
        with self._lock:
            if not group[2]:
                self._suspects.pop((path, group[0]), None)
            if key not in self._groups and not group[2] and not opened.is_unwanted:
                self._groups[key] = group
                self._groups_bytes += group[3]
                self.bytes_read += group[3]
            while self._groups_bytes > GROUPS_BYTES_MAX and len(self._groups) > 1:
                self._groups_bytes -= self._groups.popitem(last=False)[1][3]
        return group

    def _read_group(
        self, opened: _OpenFile, path: str, record: OffloadedLedger, entry_id: int
    ) -> tuple[int, _Group, bool]:
        """Return the group of an entry: its number, its content, and whether it was in memory."""
        if opened.file is None:
            opened.file = self._open(path, record)
        number = opened.file.group_of(entry_id)
        with self._lock:
            held = self._groups.get((path, number))
            if held is not None:
                self._groups.move_to_end((path, number))
                return number, held, True
        try:
            return number, self._load(opened.file, record, path, number), False
        except BaseException:
            opened.close()
            raise

    def _open(self, path: str, record: OffloadedLedger) -> LedgerFile:
        source = self._storage.open(path)
        try:
            file = LedgerFile(source)
        except BaseException:
            source.close()
            raise
        if (file.summary.uuid, file.summary.entries) != (record.uuid, record.entries):
            file.close()
            raise NotOffloaded("the file belongs to another ledger")
        return file

    def _load(self, file: LedgerFile, record: OffloadedLedger, path: str, number: int) -> _Group:
        first = file.first_of(number)
        last = first + file.summary.groups[number][1] - 1
        found = None
        for is_again in (False, True):
            try:
                found = file.entries(number)
                break
            except CorruptPayload as error:
                if is_again:
                    raise _GroupDamaged(_damage(path, record, first, last, str(error))) from error
        assert found is not None
        if found.other:
            logger.warning(
                "%s: %d entries of ledger %d are delivered uncompressed: their codec now compresses "
                "differently than when they were offloaded", path, len(found.other), record.ledger,
            )  # fmt: skip
        return first, found.entries, frozenset(found.bad), sum(map(len, found.entries))

    def forget(self, path: str) -> None:
        """Drop a file that is deleted, or is to be deleted. Does not wait for its readers."""
        with self._lock:
            opened = self._files.pop(path, None)
            if opened is not None:
                opened.is_unwanted = True
            for key in [each for each in self._groups if each[0] == path]:
                self._groups_bytes -= self._groups.pop(key)[3]
        if opened is not None:
            opened.let_go()

    def close(self) -> None:
        """Close all files. Does not wait for readers."""
        with self._lock:
            files = list(self._files.values())
            self._files.clear()
            self._groups.clear()
        for each in files:
            each.let_go()


class _GroupDamaged(Exception):
    def __init__(self, damage: Damage) -> None:
        super().__init__(damage.what)
        self.damage = damage


def _cut(
    entries: list[bytes], lost: frozenset[int], at: int, entries_max: int, bytes_max: int
) -> list[bytes]:
    """Return the entries from an index on within both limits, at least one, up to the first lost one."""
    found: list[bytes] = []
    size = 0
    for index in range(at, min(len(entries), at + entries_max)):
        size += len(entries[index])
        if index in lost or (found and size > bytes_max):
            break
        found.append(entries[index])
    return found


def _damage(path: str, record: OffloadedLedger, first: int, last: int, what: str) -> Damage:
    return Damage(path, 0, what, record.ledger, first, last, DamageLoss.ENTRIES)
