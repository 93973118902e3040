"""Store that keeps all data in memory: for tests, demos and ``geminga standalone --memory``.

Nothing is durable, so every write is complete at once; its ``done`` still runs only from `MemoryStore.poll`,
in the order of the calls, so that code written for it works on a `FileStore` too.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from geminga.errors import LedgerNotFound, StoreError, StoreStopped
from geminga.ledger.api import (
    Buffer,
    Done,
    Fetched,
    FreeSpace,
    PrefetchRequest,
    ReadAhead,
    StoredLedger,
    StoredValue,
    StoreStats,
    never,
)
from geminga.ledger.callbacks import run_callbacks
from geminga.ledger.damage import Damage

_PAGE_NAMES = 512
_REPORTED_AT_ONCE = 64


@dataclass(slots=True, eq=False, repr=False)
class _Ledger:
    owner: str
    entries: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


class MemoryReports:
    """Callbacks of the writes, in the order of the calls."""

    def __init__(self, wakeup: Callable[[], None] | None) -> None:
        self._wakeup = wakeup
        self.ready: list[Done] = []
        self.reporting: deque[Done] = deque()
        """Callbacks that were ready at the last poll and have not run yet."""
        self.is_closed = False

    @property
    def pending(self) -> int:
        return len(self.reporting) + len(self.ready)

    def check_open(self) -> None:
        if self.is_closed:
            raise StoreStopped("the store is closed")

    def complete(self, done: Done | None) -> None:
        if done is None:
            return
        self.ready.append(done)
        if len(self.ready) == 1 and self._wakeup is not None:
            self._wakeup()

    def run(self, enough: Callable[[], bool]) -> int:
        reporting = self.reporting
        reporting.extend(self.ready)
        self.ready.clear()
        ran = 0
        while reporting:
            part = [reporting.popleft() for _ in range(min(len(reporting), _REPORTED_AT_ONCE))]
            ran += run_callbacks(part, None)
            if reporting and enough():
                break
        return ran


class MemoryKeys:
    """Implements `geminga.ledger.api.StoreKeys`."""

    def __init__(self, reports: MemoryReports) -> None:
        self._reports = reports
        self._names: list[str] = []
        self._values: dict[str, tuple[bytes, list[bytes]]] = {}

    def put(self, key: str, value: bytes, done: Done | None = None, *, same: bool = False) -> None:
        self._reports.check_open()
        if key not in self._values:
            insort(self._names, key)
        self._values[key] = (bytes(value), [])
        self._reports.complete(done)

    def merge(self, key: str, delta: bytes, done: Done | None = None) -> None:
        self._reports.check_open()
        if key not in self._values:
            insort(self._names, key)
            self._values[key] = (b"", [])
        self._values[key][1].append(bytes(delta))
        self._reports.complete(done)

    def delete(self, key: str, done: Done | None = None) -> None:
        self._reports.check_open()
        if self._values.pop(key, None) is not None:
            del self._names[bisect_left(self._names, key)]
        self._reports.complete(done)

    def get(self, key: str) -> StoredValue | None:
        found = self._values.get(key)
        return None if found is None else StoredValue(found[0], tuple(found[1]))

    def scan(self, prefix: str, *, after: str = "") -> Iterator[tuple[str, StoredValue]]:
        keys = self._names
        index = max(bisect_left(keys, prefix), bisect_right(keys, after))
        while index < len(keys) and keys[index].startswith(prefix):
            key = keys[index]
            found = self._values[key]
            yield key, StoredValue(found[0], tuple(found[1]))
            # Keys put or deleted meanwhile have shifted the others.
            index = index + 1 if index < len(keys) and keys[index] == key else bisect_right(keys, key)

    def names(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return (key for key, _ in self.scan(prefix, after=after))

    def names_page(self, prefix: str, *, after: str = "") -> tuple[list[str], str | None]:
        names = list(islice(self.names(prefix, after=after), _PAGE_NAMES))
        return names, names[-1] if len(names) == _PAGE_NAMES else None


class _NoDisk:
    """Implements `geminga.ledger.api.StoreDisk`: there is no disk, and memory is freed at once."""

    space: FreeSpace | None = None
    gives_back = False

    def __init__(self) -> None:
        self.refusal: StoreError | None = None

    def measure(self) -> None:
        """Do nothing."""

    def refuse_entries(self, why: StoreError | None) -> None:
        self.refusal = why

    def give_back(self, *, eagerly: bool) -> None:
        """Do nothing."""


class _NoDamage:
    """Implements `geminga.ledger.api.StoreDamage`: memory has no damage."""

    def __init__(self, reports: MemoryReports) -> None:
        self._reports = reports

    @property
    def found(self) -> list[Damage]:
        return []

    def entries_of(self, ledger_id: int) -> list[tuple[int, int]]:
        return []

    def settle(self, name: str, done: Done | None = None) -> bool:
        self._reports.check_open()
        self._reports.complete(done)
        return False

    def adopt_ledger(self, ledger_id: int, owner: str) -> bool:
        self._reports.check_open()
        return False

    def lost_entries_max(self, ledger_id: int) -> int:
        return 0


class MemoryStore:
    """Implements `geminga.ledger.api.EntryStore` in memory.

    ``wakeup`` is called (on the owner's thread) when callbacks become ready while none were.
    """

    def __init__(self, wakeup: Callable[[], None] | None = None) -> None:
        self.reports = MemoryReports(wakeup)
        self.keys = MemoryKeys(self.reports)
        self.disk = _NoDisk()
        self.damage = _NoDamage(self.reports)
        self._ledgers: dict[int, _Ledger] = {}
        self._owners: dict[str, list[int]] = {}
        self._next_ledger_id = 0
        self._appended_entries = 0
        self._appended_bytes = 0

    tier = None

    @property
    def failure(self) -> StoreError | None:
        """Return None until the store is closed: memory does not fail."""
        return StoreStopped("the store is closed") if self.reports.is_closed else None

    @property
    def is_writing(self) -> bool:
        """Return False: writes are complete at once."""
        return False

    @property
    def is_behind(self) -> bool:
        """Return False: there is no disk to wait for."""
        return False

    # --- ledgers ---
    def owner_of(self, ledger_id: int) -> str | None:
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.owner

    def create_ledger(self, owner: str) -> int:
        self.reports.check_open()
        ledger_id = self._next_ledger_id
        self._next_ledger_id += 1
        self._ledgers[ledger_id] = _Ledger(owner)
        self._owners.setdefault(owner, []).append(ledger_id)
        return ledger_id

    def append(self, ledger_id: int, entry: Buffer, done: Done) -> int:
        self._check_entries()
        ledger = self._ledger(ledger_id)
        entry_id = len(ledger.entries)
        ledger.entries.append(bytes(entry))
        ledger.size_bytes += len(entry)
        self._appended_entries += 1
        self._appended_bytes += len(entry)
        self.reports.complete(done)
        return entry_id

    def append_run(self, ledger_id: int, entries: Sequence[bytes], done: Done) -> int:
        self._check_entries()
        ledger = self._ledger(ledger_id)
        entry_id = len(ledger.entries)
        size = sum(map(len, entries))
        ledger.entries.extend(entries)
        ledger.size_bytes += size
        self._appended_entries += len(entries)
        self._appended_bytes += size
        self.reports.complete(done)
        return entry_id

    def read(self, ledger_id: int, first_entry_id: int, *, entries_max: int, bytes_max: int) -> list[bytes]:
        first = max(first_entry_id, 0)
        entries = self._ledger(ledger_id).entries[first : first + entries_max]
        size_bytes = 0
        for count, entry in enumerate(entries):
            size_bytes += len(entry)
            if size_bytes > bytes_max and count:
                return entries[:count]
        return entries

    def fetch(
        self,
        ledger_id: int,
        first_entry_id: int,
        *,
        entries_max: int,
        bytes_max: int,
        ahead: ReadAhead | None,
        done: Fetched,
    ) -> list[bytes] | None:
        return self.read(ledger_id, first_entry_id, entries_max=entries_max, bytes_max=bytes_max)

    def bring(self, wanted: PrefetchRequest, done: Done) -> bool:
        return True

    def ledgers(self, owner: str) -> list[StoredLedger]:
        return [
            StoredLedger(ledger_id, owner, len(ledger.entries), ledger.size_bytes)
            for ledger_id in self._owners.get(owner, ())
            for ledger in (self._ledgers[ledger_id],)
        ]

    def ledgers_page(self, after: int) -> tuple[list[StoredLedger], int | None]:
        ids = nsmallest(_PAGE_NAMES, (each for each in self._ledgers if each > after))
        found = [(ledger_id, self._ledgers[ledger_id]) for ledger_id in ids]
        infos = [
            StoredLedger(number, each.owner, len(each.entries), each.size_bytes) for number, each in found
        ]
        return infos, ids[-1] if len(ids) == _PAGE_NAMES else None

    def release(self, ledger_ids: Sequence[int]) -> None:
        """Do nothing: the entries are only in memory."""

    def delete_ledgers(self, ledger_ids: Sequence[int], done: Done | None = None) -> None:
        self.reports.check_open()
        for ledger_id in ledger_ids:
            ledger = self._ledgers.pop(ledger_id, None)
            if ledger is not None:
                siblings = self._owners[ledger.owner]
                siblings.remove(ledger_id)
                if not siblings:
                    del self._owners[ledger.owner]
        self.reports.complete(done)

    # --- life ---
    def poll(self, enough: Callable[[], bool] = never) -> int:
        return self.reports.run(enough)

    def stats(self) -> StoreStats:
        held = sum(ledger.size_bytes for ledger in self._ledgers.values())
        return StoreStats(self._appended_entries, self._appended_bytes, 0, 0.0, held, self.reports.pending)

    def close(self) -> None:
        while self.reports.pending:
            self.poll()
        self.reports.is_closed = True

    def _ledger(self, ledger_id: int) -> _Ledger:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            raise LedgerNotFound(f"ledger {ledger_id} does not exist or was trimmed away")
        return ledger

    def _check_entries(self) -> None:
        self.reports.check_open()
        if self.disk.refusal is not None:
            raise self.disk.refusal
