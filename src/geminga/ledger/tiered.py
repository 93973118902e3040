"""Store with offloaded ledgers: `TieredStore`, a `FileStore` with an offload storage behind it.

To readers a ledger is in the store, whether its entries are in the log or in an offloaded file
(`geminga.offload`): the log is read first, because it is local, and damaged entries are read from the file.
Readers of the files have their own threads. `geminga.ledger.tier` moves ledgers, and deletes their files.
"""

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from geminga._util import exits
from geminga.errors import LedgerNotFound, StoreError
from geminga.ledger.api import Done, Fetched, ReadAhead, StoredLedger, never
from geminga.ledger.callbacks import run_callback
from geminga.ledger.completions import WakeUp
from geminga.ledger.damage import Damage, EntriesDamaged
from geminga.ledger.reading.pool import ReadPool
from geminga.ledger.store import FileStore
from geminga.ledger.tier.offloading import OffloadFailed
from geminga.ledger.tier.reading import OffloadedRead
from geminga.ledger.tier.tier import OffloadTier
from geminga.ledger.upkeep.damage import FileStoreDamage
from geminga.ledger.worker import Worker
from geminga.offload.manifest import OffloadedLedger
from geminga.offload.storage import OffloadStorage, folder_of

logger = logging.getLogger("geminga.ledger")

READ_THREADS = 2
READS_WAITING_MAX = 1024
READ_AHEAD_BYTES_MAX = 32 * 1024 * 1024
READ_WAIT_SECONDS = 0.02
"""Time that the owner waits for a read that cannot be deferred; after `StoreBusy` it asks again."""
LOOKS_BYTES_MAX = 8 * 1024 * 1024
"""Size of remembered entries that were read alone: a search that has to retry finds them again."""
STOP_SECONDS_MAX = 10.0


class TieredDamage:
    """Implements `geminga.ledger.api.StoreDamage`."""

    def __init__(self, local: FileStoreDamage, tier: OffloadTier) -> None:
        self._local = local
        self._tier = tier
        self.settle = local.settle
        self.adopt_ledger = local.adopt_ledger
        # Entries lost before the offload are not in the file either.
        self.lost_entries_max = local.lost_entries_max

    @property
    def found(self) -> list[Damage]:
        return self._local.found

    def entries_of(self, ledger_id: int) -> list[tuple[int, int]]:
        found = self._local.entries_of(ledger_id)
        return [] if found and self._tier.record(ledger_id) is not None else found


class TieredStore:
    """`geminga.ledger.api.EntryStore` over another store and its offload storage."""

    def __init__(
        self,
        local: FileStore,
        storage: OffloadStorage,
        *,
        rate_bytes: int = -1,
        wakeup: Callable[[], None] | None = None,
        threads: bool = True,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """``wakeup`` is called from any thread when `poll` has work, as that of the store is. ``rate_bytes``
        and ``sleep`` as for `OffloadTier`.

        Without ``threads`` all work runs inside `poll`. Leftovers of a crash are deleted.
        """
        self.local = local
        self._wake_up = WakeUp(wakeup)
        self._finished: deque[Callable[[], None]] = deque()
        self._pool: ReadPool[OffloadedRead] | None = None
        self._looks: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()
        self._looks_bytes = 0
        self._is_closing = False
        self.tier = OffloadTier(
            local, storage, Worker(self._finished, self._wake_up.signal),
            rate_bytes=rate_bytes, threads=threads, clock=clock, sleep=sleep,
        )  # fmt: skip
        self._reader = self.tier.reader
        # Calls that offloading does not change go straight to the store.
        self.keys = local.keys
        self.disk = local.disk
        self.damage = TieredDamage(local.damage, self.tier)
        self.create_ledger = local.create_ledger
        self.append = local.append
        self.append_run = local.append_run
        self.release = local.release
        self.ledgers_page = local.ledgers_page
        self.bring = local.bring
        self.stats = local.stats
        if threads:
            self._pool = ReadPool(
                self._finished,
                self._wake_up.signal,
                threads=READ_THREADS,
                wait_seconds=READ_WAIT_SECONDS,
                waiting_max=READS_WAITING_MAX,
                undelivered_bytes_max=READ_AHEAD_BYTES_MAX,
            )
            self._pool.start()

    @property
    def failure(self) -> StoreError | None:
        return self.local.failure

    @property
    def is_writing(self) -> bool:
        return self.local.is_writing

    @property
    def is_behind(self) -> bool:
        return self.local.is_behind

    # --- reading ---
    def _path(self, record: OffloadedLedger) -> str:
        owner = self.tier.catalog.owner_of(record.ledger)
        if owner is None:
            raise LedgerNotFound(f"ledger {record.ledger} does not exist or was trimmed away")
        return f"{folder_of(owner)}/{record.file}"

    def read(self, ledger_id: int, first_entry_id: int, *, entries_max: int, bytes_max: int) -> list[bytes]:
        try:
            entries = self.local.read(ledger_id, first_entry_id, entries_max=entries_max, bytes_max=bytes_max)
            record = None if entries else self._cut_here(ledger_id, first_entry_id)
            if record is None:
                return entries
        except (LedgerNotFound, EntriesDamaged):
            record = self.tier.record(ledger_id)
            if record is None:
                raise
        if entries_max == 1:
            found = self._looks.get((ledger_id, first_entry_id))
            if found is not None:
                return found
        job = self._reader.job(self._path(record), record, first_entry_id, entries_max, bytes_max)
        key = (ledger_id, first_entry_id, entries_max, bytes_max)
        found = _taken(job() if self._pool is None else self._pool.ask(key, job))
        if entries_max == 1 and found:
            self._remember((ledger_id, first_entry_id), found)
        return found

    def _cut_here(self, ledger_id: int, entry_id: int) -> OffloadedLedger | None:
        """Return the record of a ledger whose end damage has cut here, if its file has the entry."""
        record = self.tier.record(ledger_id)
        return record if record is not None and entry_id < record.entries else None

    def _remember(self, key: tuple[int, int], found: list[bytes]) -> None:
        self._looks[key] = found
        self._looks_bytes += len(found[0])
        while self._looks_bytes > LOOKS_BYTES_MAX and len(self._looks) > 1:
            self._looks_bytes -= len(self._looks.popitem(last=False)[1][0])

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
        def local_done(entries: list[bytes], error: StoreError | None) -> None:
            # It may have been deleted locally while the disk was read.
            if isinstance(error, LedgerNotFound | EntriesDamaged):
                try:
                    record = self.tier.record(ledger_id)
                    if record is not None:
                        self._fetch(record, first_entry_id, ahead, done)
                        return
                except StoreError as refused:
                    error = refused
            done(entries, error)

        try:
            entries = self.local.fetch(
                ledger_id, first_entry_id, entries_max=entries_max, bytes_max=bytes_max, ahead=ahead,
                done=local_done,
            )  # fmt: skip
            record = None if entries or entries is None else self._cut_here(ledger_id, first_entry_id)
            if record is None:
                return entries
        except (LedgerNotFound, EntriesDamaged):
            record = self.tier.record(ledger_id)
            if record is None:
                raise
        if self._pool is None:
            job = self._reader.job(self._path(record), record, first_entry_id, entries_max, bytes_max)
            return _taken(job())
        self._fetch(record, first_entry_id, ahead, done)
        return None

    def _fetch(self, record: OffloadedLedger, first: int, ahead: ReadAhead | None, done: Fetched) -> None:
        if ahead is None:
            return
        job = self._reader.job(self._path(record), record, first, ahead.entries_max, ahead.bytes_max)

        def deliver(answer: OffloadedRead) -> None:
            entries: list[bytes] = []
            error: StoreError | None = None
            try:
                entries = _taken(answer)
                if self.tier.record(record.ledger) is None and self.local.owner_of(record.ledger) is None:
                    raise LedgerNotFound(f"ledger {record.ledger} was trimmed away")
            except StoreError as problem:
                entries, error = [], problem
            done(entries, error)

        if self._pool is None:
            deliver(job())
        else:
            self._pool.submit((record.ledger, first, ahead), job, deliver)

    def ledgers(self, owner: str) -> list[StoredLedger]:
        found = {info.ledger_id: info for info in self.local.ledgers(owner)}
        for record in self.tier.catalog.of_owner(owner):
            info = found.get(record.ledger)
            if info is None or info.entries < record.entries:  # damage may have cut it
                found[record.ledger] = StoredLedger(record.ledger, owner, record.entries, record.entry_bytes)
        return [found[ledger_id] for ledger_id in sorted(found)]

    def owner_of(self, ledger_id: int) -> str | None:
        found = self.local.owner_of(ledger_id)
        return self.tier.catalog.owner_of(ledger_id) if found is None else found

    def delete_ledgers(self, ledger_ids: Sequence[int], done: Done | None = None) -> None:
        self.tier.give_up(ledger_ids)
        self.local.delete_ledgers(ledger_ids, done)

    # --- life ---
    def poll(self, enough: Callable[[], bool] = never) -> int:
        self._wake_up.is_signaled = False
        ran = self.local.poll(enough)
        self.tier.poll()
        while self._finished:
            run_callback(self._finished.popleft())
            if enough():
                break
        return ran

    def close(self) -> None:
        """Close the store. Pending offloads are cancelled; the next start deletes their files."""
        if self._is_closing:
            return
        self._is_closing = True
        until = time.monotonic() + STOP_SECONDS_MAX
        is_done = self.tier.close(STOP_SECONDS_MAX)
        refusal = OffloadedRead([], error=OffloadFailed("the store is closed"))
        has_read = self._pool is None or self._pool.stop(refusal, max(0.0, until - time.monotonic()))
        if not (is_done and has_read):
            logger.warning("%s does not answer: closing without waiting for it", self.tier.location)
            exits.unfinished.add(self.tier.location)
        while self._finished:
            run_callback(self._finished.popleft())
        self.local.close()
        self._reader.close()


def _taken(answer: OffloadedRead) -> list[bytes]:
    if answer.error is not None:
        raise answer.error
    if answer.damage is not None and not answer.entries:
        raise EntriesDamaged(f"{answer.damage.thing}: {answer.damage.what}", answer.damage)
    return answer.entries
