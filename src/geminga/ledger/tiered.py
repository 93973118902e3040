"""Store with offloaded ledgers: `TieredStore`, a `FileStore` with an offload storage behind it.

To readers a ledger is in the store, whether its entries are in the log or in an offloaded file
(`geminga.offload`): the log is read first, because it is local, and damaged entries are read from the file.
Deleting a ledger deletes its file too. The owner moves ledgers: with `offload` (`geminga.ledger.offloading`
has the order of its steps) and `drop_local`, which reads the file once more and compares its checksum before
the store deletes the entries.

All requests to the storage run on other threads. One worker writes, deletes and checks, in order; readers
have their own threads. Only the store that holds the claim on the storage changes it
(`geminga.ledger.tier_claim`): changes wait until the claim is decided, and a copy of a store only reads.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence, Set

from geminga import exits
from geminga.errors import LedgerNotFound, StoreError
from geminga.ledger.api import (
    Done,
    EntryStore,
    Fetched,
    FreeSpace,
    PrefetchRequest,
    ReadAhead,
    StoredLedger,
    StoredValue,
    StoreStats,
    TierStats,
    never,
)
from geminga.ledger.callbacks import run_callback
from geminga.ledger.catalog import EntryChunk
from geminga.ledger.cpu_throttle import CpuThrottle
from geminga.ledger.damage import Damage, EntriesDamaged
from geminga.ledger.filesystem import RealFileSystem
from geminga.ledger.offload_worker import OffloadWriters
from geminga.ledger.offloading import PIECE_BYTES, PIECE_ENTRIES, OffloadFailed, Offloading
from geminga.ledger.read_pool import ReadPool
from geminga.ledger.store import FileStore
from geminga.ledger.thread_load import ThreadLoad, lower_priority
from geminga.ledger.tier_catalog import OrphanCandidate, TierCatalog
from geminga.ledger.tier_claim import ClaimState, StorageClaim, StorageNotClaimed
from geminga.ledger.tier_orphans import OrphanSweeper
from geminga.ledger.tier_reading import OffloadedRead, TierReader
from geminga.ledger.worker import Worker
from geminga.offload import manifest
from geminga.offload.manifest import ManifestWriter, OffloadedLedger
from geminga.offload.storage import OffloadStorage, check_file, folder_of

logger = logging.getLogger("geminga.ledger")

READ_THREADS = 2
READS_WAITING_MAX = 1024
READ_AHEAD_BYTES_MAX = 32 * 1024 * 1024
READ_WAIT_SECONDS = 0.02
"""Time that the owner waits for a read that cannot be deferred; after `StoreBusy` it asks again."""
LOOKS_BYTES_MAX = 8 * 1024 * 1024
"""Size of remembered entries that were read alone: a search that has to retry finds them again."""
STOP_SECONDS_MAX = 10.0


class TieredStore:
    """`geminga.ledger.api.EntryStore` over another store, and `geminga.ledger.api.Tier`."""

    def __init__(
        self,
        local: FileStore,
        storage: OffloadStorage,
        *,
        wakeup: Callable[[], None] | None = None,
        threads: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wakeup`` is called from any thread when `poll` has work, as that of the store is.

        Without ``threads`` all work runs inside `poll`. Leftovers of a crash are deleted.
        """
        self._local = local
        self.storage = storage
        self.store_name = local.store_id.hex()
        self._wakeup = wakeup
        self._finished: deque[Callable[[], None]] = deque()
        self._worker = Worker(self._finished, self._signal)
        self._pool: ReadPool[OffloadedRead] | None = None
        self.catalog = TierCatalog(local)
        self._reader = TierReader(storage)
        self.claim = StorageClaim(storage, local.filesystem, local.folder, self.store_name, clock=clock)
        self.claim.has_files = bool(self.catalog.all_suspects()) or any(
            True for _ in self.catalog.everything()
        )
        self._manifests = ManifestWriter(storage, self.store_name)
        self._load: ThreadLoad | None = None
        """Load of the owner's thread."""
        self._undecided: list[Callable[[], None]] = []
        """Changes that wait until the claim on the storage is decided."""
        self._under_way: dict[int, Offloading] = {}
        self._sweeper = OrphanSweeper(self)
        self._looks: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()
        self._looks_bytes = 0
        self._is_closing = False
        self.rests = CpuThrottle(threads=threads)
        has_disk = isinstance(local.filesystem, RealFileSystem)
        self.makers = OffloadWriters(storage, local.folder, is_alone=not (threads and has_disk))
        self._clock = clock
        self._due: dict[Callable[[], None], float] = {}
        """Functions for `poll` to call, and when."""
        self._ledgers_offloaded = self._bytes_offloaded = self._failures = 0
        # The most frequent calls go straight to the store.
        self.append = local.append
        self.append_run = local.append_run
        self.merge = local.merge
        self.put = local.put
        self.get = local.get
        if threads:
            self._pool = ReadPool(
                self._finished,
                self._signal,
                threads=READ_THREADS,
                wait_seconds=READ_WAIT_SECONDS,
                waiting_max=READS_WAITING_MAX,
                undelivered_bytes_max=READ_AHEAD_BYTES_MAX,
            )
            self._pool.start()
            self._worker.start("geminga-offload")
            self._worker.submit(lower_priority, lambda _: None)
            self.claim.start(self._claim_changed)

    # --- the tier ---
    @property
    def tier(self) -> TieredStore:
        return self

    @property
    def local(self) -> EntryStore:
        return self._local

    @property
    def location(self) -> str:
        """Return the address of the offload storage, without secrets."""
        return self.storage.location

    @property
    def borrowed(self) -> str:
        """Return why this store may not change the storage; empty if it may, or the claim is undecided."""
        return self.claim.why if self.claim.state is ClaimState.BORROWED else ""

    def _claim_changed(self) -> None:
        """Schedule `_decided` for the next poll; on any thread."""
        self._finished.append(self._decided)
        self._signal()

    def _decided(self) -> None:
        waiting, self._undecided = self._undecided, []
        for each in waiting:
            run_callback(each)
        self._sweeper.sweep_again()

    def _when_decided(self, change: Callable[[StoreError | None], None]) -> None:
        """Call ``change`` when the claim is decided: with None if this store holds it, or with an error."""
        claim = self.claim
        if claim.state is not ClaimState.ASKING:
            change(StorageNotClaimed(self.borrowed) if self.borrowed else None)
        elif claim.problem:
            change(StorageNotClaimed(f"cannot find out who may change {self.location}: {claim.problem}"))
        else:
            self._undecided.append(lambda: self._when_decided(change))

    def offloaded(self, owner: str) -> list[OffloadedLedger]:
        """Return the offloaded ledgers of an owner, in the order of their ids."""
        return self.catalog.of_owner(owner)

    def record(self, ledger_id: int) -> OffloadedLedger | None:
        """Return the record of an offloaded ledger; None if the ledger is not offloaded."""
        return self.catalog.record(ledger_id)

    def is_local(self, ledger_id: int) -> bool:
        return self._local.owner_of(ledger_id) is not None

    def local_ledgers(self, owner: str) -> set[int]:
        """Return the ledgers of an owner whose entries are in the log."""
        return {info.ledger_id for info in self._local.ledgers(owner)}

    def offload(self, owner: str, ledger_id: int, now_ms: int, done: Done, *, offset: int) -> None:
        """Offload a closed ledger; ``done`` is called when the file is durable.

        Raises `StoreError`; `OffloadFailed` if the ledger is offloaded already or the offload is pending.
        """
        if self._is_closing:
            raise OffloadFailed("the store is being closed")
        if ledger_id in self._under_way or self.catalog.record(ledger_id) is not None:
            raise OffloadFailed(f"ledger {ledger_id} is offloaded already, or being offloaded")
        info = next((each for each in self._local.ledgers(owner) if each.ledger_id == ledger_id), None)
        if info is None or not info.entries:
            raise LedgerNotFound(f"ledger {ledger_id} of {owner} does not exist or is empty")

        def ended(error: StoreError | None) -> None:
            if self._under_way.pop(ledger_id, None) is not None and error is None:
                self.claim.has_files = True
                self._ledgers_offloaded += 1
                self._bytes_offloaded += way.bytes_written
            elif error is not None:
                self._failures += 1
            self.call_in(self.makers.idle_seconds_max, self._let_makers_rest)
            done(error)

        if self._load is None:
            self._load = ThreadLoad()
        way = Offloading(self, owner, info, offset, now_ms, ended)
        self._check_not_borrowed()
        if self.claim.state is ClaimState.HELD:
            way.begin()
            self._under_way[ledger_id] = way
        else:
            self._under_way[ledger_id] = way
            self._when_decided(way.begin_or_end)

    def _check_not_borrowed(self) -> None:
        if self.borrowed:
            raise StorageNotClaimed(self.borrowed)

    def cancel(self, owner: str, why: str) -> None:
        """Cancel the pending offloads of an owner."""
        for each in list(self._under_way.values()):
            if each.owner == owner:
                each.cancel(why)

    def drop_local(self, owner: str, ledger_id: int, done: Done) -> None:
        """Delete a ledger's entries from the log, if its file is intact.

        Otherwise reports the fault, and the ledger counts as not offloaded: its entries stay in the store.
        """
        record = self.catalog.record(ledger_id)
        if record is None:
            raise OffloadFailed(f"ledger {ledger_id} is not offloaded")
        self._check_not_borrowed()
        path = f"{folder_of(owner)}/{record.file}"
        wrong: list[str] = []

        def check() -> None:
            try:
                read, close = self.storage.reader(path)
            except FileNotFoundError:
                self.claim.check()  # raises if the storage is not mounted
                wrong.append("it is not there")
                return
            try:
                wrong.append(check_file(read, record.file_bytes, record.crc32c))
            finally:
                close()
            self.claim.check()  # without the claim, another store may delete the file

        def found_wrong(is_whole: bool) -> None:
            text = f"{self.location}/{path} is not what was offloaded: {wrong[0]}"
            if not is_whole:
                done(OffloadFailed(f"{text}; it is kept, as the store cannot read the whole ledger itself"))
                return
            try:
                if self.catalog.record(ledger_id) == record:
                    logger.error(
                        "%s; ledger %d stays in the store and will be offloaded again", text, ledger_id
                    )
                    self._give_up(owner, [record])
                done(OffloadFailed(text))
            except StoreError as refused:
                done(refused)

        def checked(error: Exception | None) -> None:
            if error is not None:
                refused = OffloadFailed(f"{self.location}/{path} cannot be checked now: {error}")
                done(error if isinstance(error, StorageNotClaimed) else refused)
                return
            try:
                if self.catalog.record(ledger_id) != record:
                    done(None)  # it was deleted meanwhile
                elif wrong[0]:
                    self._failures += 1
                    self._read_here(owner, record, 0, found_wrong)
                else:
                    self._local.delete_ledgers([ledger_id], done)
            except StoreError as refused:
                done(refused)

        def decided(refused: StoreError | None) -> None:
            if refused is not None:
                done(refused)
            else:
                self.work(check, checked)

        self._when_decided(decided)

    def _read_here(self, owner: str, record: OffloadedLedger, at: int, then: Callable[[bool], None]) -> None:
        """Read a ledger in the store from an entry on; ``then`` receives whether it is complete and intact.

        If not, its file must be kept, even a damaged one.
        """
        ahead = ReadAhead(PIECE_ENTRIES, PIECE_BYTES)

        def taken(entries: list[bytes], error: StoreError | None) -> None:
            if error is not None or not entries:
                then(False)
            else:
                self._read_here(owner, record, at + len(entries), then)

        try:
            while at < record.entries:
                found = self._local.fetch(
                    record.ledger, at, entries_max=PIECE_ENTRIES, bytes_max=PIECE_BYTES, ahead=ahead,
                    done=taken,
                )  # fmt: skip
                if found is None:
                    return
                if not found:
                    break
                at += len(found)
        except StoreError as error:
            logger.debug("ledger %d cannot be read in the store: %s", record.ledger, error)
            at = 0
        then(at >= record.entries and self._local.owner_of(record.ledger) == owner)

    def _give_up(self, owner: str, records: list[OffloadedLedger]) -> None:
        """Remove the records, and delete the files once that is durable."""
        suspects = [OrphanCandidate(owner, each.ledger, each.uuid, each.file) for each in records]

        def given_up(error: StoreError | None) -> None:
            if error is None:
                self.remove_files(owner, suspects)

        for number, record in enumerate(records):
            self._reader.forget(f"{folder_of(owner)}/{record.file}")
            self.catalog.give_up(owner, record, record.file, given_up if number == len(records) - 1 else None)

    def listing(self, owner: str, without: Set[str] = frozenset()) -> Callable[[], None]:
        """Return a job for the worker that updates the manifest, and leaves out the files in ``without``.

        The manifest lists recorded ledgers and finished ones whose record is pending. If the store has
        damage, it also keeps ledgers whose record the store has lost, as nothing else names them.
        """
        known = {each.ledger: each for each in self.catalog.of_owner(owner)}
        for way in self._under_way.values():
            if way.owner == owner and way.record is not None and way.uuid not in without:
                known.setdefault(way.info.ledger_id, way.record)
        may_be_lost = bool(self._local.damage)
        suspected = {each.uuid for each in self.catalog.all_suspects()} if may_be_lost else set()
        here = self.local_ledgers(owner) if may_be_lost else set()

        def is_lost(record: OffloadedLedger) -> bool:
            there_is = record.ledger in known or record.ledger in here
            return not there_is and record.uuid not in suspected and record.uuid not in without

        def save() -> None:
            self.claim.check()
            found = manifest.load(self.storage, owner) if may_be_lost else None
            is_ours = found is not None and (found.store, found.topic) == (self.store_name, owner)
            lost = [each for each in found.ledgers if is_lost(each)] if found is not None and is_ours else []
            self._manifests.save(owner, [*known.values(), *lost])

        return save

    def remove_files(self, owner: str, suspects: list[OrphanCandidate]) -> None:
        self._sweeper.remove_files(owner, suspects)

    def sweep(self) -> None:
        """Delete files that belong to no ledger, left by a crash or by storage that did not answer."""
        self._sweeper.sweep()

    @property
    def may_sweep(self) -> bool:
        return self._local.failure is None and not self._is_closing and self.claim.state is ClaimState.HELD

    def under_way(self) -> Set[str]:
        return {each.uuid for each in self._under_way.values()}

    @property
    def tier_stats(self) -> TierStats:
        return TierStats(
            self._ledgers_offloaded, self._bytes_offloaded, self._failures, self._reader.bytes_read,
            len(self._under_way), bool(self.borrowed),
        )  # fmt: skip

    def work(self, job: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        self._worker.submit(job, then)

    def load(self) -> float | None:
        return None if self._load is None else self._load.take()

    def pause(self, seconds: float) -> None:
        if self._pool is not None:
            time.sleep(seconds)

    def positions(
        self,
        ledger_id: int,
        first: int,
        entries_max: int,
        bytes_max: int,
        done: Callable[[EntryChunk | None], None],
    ) -> bool:
        return self._local.positions(
            ledger_id, first, entries_max=entries_max, bytes_max=bytes_max, done=done
        )

    def _signal(self) -> None:
        if self._wakeup is not None:
            try:
                self._wakeup()
            except RuntimeError as error:  # the owner's event loop is closed, it will not poll again
                logger.debug("cannot wake the store's owner: %s", error)

    # --- reading ---
    def _path(self, record: OffloadedLedger) -> str:
        owner = self.catalog.owner_of(record.ledger)
        if owner is None:
            raise LedgerNotFound(f"ledger {record.ledger} does not exist or was trimmed away")
        return f"{folder_of(owner)}/{record.file}"

    def read(self, ledger_id: int, first_entry_id: int, *, entries_max: int, bytes_max: int) -> list[bytes]:
        try:
            entries = self._local.read(
                ledger_id, first_entry_id, entries_max=entries_max, bytes_max=bytes_max
            )
            record = None if entries else self._cut_here(ledger_id, first_entry_id)
            if record is None:
                return entries
        except (LedgerNotFound, EntriesDamaged):
            record = self.catalog.record(ledger_id)
            if record is None:
                raise
        if entries_max == 1:
            found = self._looks.get((ledger_id, first_entry_id))
            if found is not None:
                return found
        path = self._path(record)
        at_hand = self._reader.at_hand(path, first_entry_id, entries_max, bytes_max)
        if at_hand is not None:
            return at_hand
        job = self._reader.job(path, record, first_entry_id, entries_max, bytes_max)
        key = (ledger_id, first_entry_id, entries_max, bytes_max)
        found = _taken(job() if self._pool is None else self._pool.ask(key, job))
        if entries_max == 1 and found:
            self._remember((ledger_id, first_entry_id), found)
        return found

    def _cut_here(self, ledger_id: int, entry_id: int) -> OffloadedLedger | None:
        """Return the record of a ledger whose end damage has cut here, if its file has the entry."""
        record = self.catalog.record(ledger_id)
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
                    record = self.catalog.record(ledger_id)
                    if record is not None:
                        self._fetch(record, first_entry_id, ahead, done)
                        return
                except StoreError as refused:
                    error = refused
            done(entries, error)

        try:
            entries = self._local.fetch(
                ledger_id, first_entry_id, entries_max=entries_max, bytes_max=bytes_max, ahead=ahead,
                done=local_done,
            )  # fmt: skip
            record = None if entries or entries is None else self._cut_here(ledger_id, first_entry_id)
            if record is None:
                return entries
        except (LedgerNotFound, EntriesDamaged):
            record = self.catalog.record(ledger_id)
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
                if self.catalog.record(record.ledger) is None and not self.is_local(record.ledger):
                    raise LedgerNotFound(f"ledger {record.ledger} was trimmed away")
            except StoreError as problem:
                entries, error = [], problem
            done(entries, error)

        if self._pool is None:
            deliver(job())
        else:
            self._pool.submit((record.ledger, first, ahead), job, deliver)

    def ledgers(self, owner: str) -> list[StoredLedger]:
        found = {info.ledger_id: info for info in self._local.ledgers(owner)}
        for record in self.catalog.of_owner(owner):
            info = found.get(record.ledger)
            if info is None or info.entries < record.entries:  # damage may have cut it
                found[record.ledger] = StoredLedger(record.ledger, owner, record.entries, record.entry_bytes)
        return [found[ledger_id] for ledger_id in sorted(found)]

    def owner_of(self, ledger_id: int) -> str | None:
        found = self._local.owner_of(ledger_id)
        return self.catalog.owner_of(ledger_id) if found is None else found

    def damaged_entries(self, ledger_id: int) -> list[tuple[int, int]]:
        found = self._local.damaged_entries(ledger_id)
        return [] if found and self.catalog.record(ledger_id) is not None else found

    def lost_entries_max(self, ledger_id: int) -> int:
        # Also for an offloaded ledger: entries lost before the offload are not in the file either.
        return self._local.lost_entries_max(ledger_id)

    def delete_ledgers(self, ledger_ids: Sequence[int], done: Done | None = None) -> None:
        owners: dict[str, list[OffloadedLedger]] = {}
        for ledger_id in ledger_ids:
            way = self._under_way.get(ledger_id)
            if way is not None:
                way.cancel(f"ledger {ledger_id} is deleted")
            record = self.catalog.record(ledger_id)
            owner = None if record is None else self.catalog.owner_of(ledger_id)
            if record is not None and owner is not None:
                owners.setdefault(owner, []).append(record)
        for owner, records in owners.items():
            self._give_up(owner, records)
        self._local.delete_ledgers(ledger_ids, done)

    # --- calls of the store ---
    @property
    def failure(self) -> StoreError | None:
        return self._local.failure

    @property
    def is_writing(self) -> bool:
        return self._local.is_writing

    @property
    def is_behind(self) -> bool:
        return self._local.is_behind

    @property
    def space(self) -> FreeSpace | None:
        return self._local.space

    def measure_space(self) -> None:
        self._local.measure_space()

    def refuse_entries(self, why: StoreError | None) -> None:
        self._local.refuse_entries(why)

    def give_back(self, *, eagerly: bool) -> None:
        self.rests.hurry(eagerly)
        self._local.give_back(eagerly=eagerly)

    @property
    def gives_back(self) -> bool:
        return self._local.gives_back

    @property
    def damage(self) -> list[Damage]:
        return self._local.damage

    def settle_damage(self, name: str, done: Done | None = None) -> bool:
        return self._local.settle_damage(name, done)

    def adopt_ledger(self, ledger_id: int, owner: str) -> bool:
        return self._local.adopt_ledger(ledger_id, owner)

    def create_ledger(self, owner: str) -> int:
        return self._local.create_ledger(owner)

    def delete(self, key: str, done: Done | None = None) -> None:
        self._local.delete(key, done)

    def scan(self, prefix: str, *, after: str = "") -> Iterator[tuple[str, StoredValue]]:
        return self._local.scan(prefix, after=after)

    def names(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return self._local.names(prefix, after=after)

    def names_page(self, prefix: str, *, after: str = "") -> tuple[list[str], str | None]:
        return self._local.names_page(prefix, after=after)

    def release(self, ledger_ids: Sequence[int]) -> None:
        self._local.release(ledger_ids)

    def ledgers_page(self, after: int) -> tuple[list[StoredLedger], int | None]:
        return self._local.ledgers_page(after)

    def bring(self, wanted: PrefetchRequest, done: Done) -> bool:
        return self._local.bring(wanted, done)

    def stats(self) -> StoreStats:
        return self._local.stats()

    def poll(self, enough: Callable[[], bool] = never) -> int:
        ran = self._local.poll(enough)
        if self._pool is None:
            if self.claim.keep():
                self._claim_changed()
            self._worker.run_queued()
        if self._due:
            self._call_what_is_due()
        while self._finished:
            run_callback(self._finished.popleft())
            if enough():
                break
        return ran

    def call_in(self, seconds: float, what: Callable[[], None]) -> None:
        """Schedule ``what`` to be called by `poll` in ``seconds``; replaces an earlier schedule of it."""
        self._due[what] = self._clock() + seconds
        self._worker.alarm(seconds)

    def _call_what_is_due(self) -> None:
        now = self._clock()
        due = [what for what, when in self._due.items() if when <= now]
        for what in due:
            del self._due[what]
            run_callback(what)
        if due and self._due:
            self._worker.alarm(min(self._due.values()) - now)  # the single alarm has expired

    def _let_makers_rest(self) -> None:
        if not self._under_way:
            self._worker.submit(self.makers.rest, lambda _: None)

    def close(self) -> None:
        """Close the store. Pending offloads are cancelled; the next start deletes their files."""
        if self._is_closing:
            return
        self._is_closing = True
        self.rests.end()
        for each in list(self._under_way.values()):
            each.cancel("the store is being closed")
        self.makers.end()
        until = time.monotonic() + STOP_SECONDS_MAX
        is_done = self._worker.stop(STOP_SECONDS_MAX)
        if is_done:
            self.makers.rest()
        self.claim.close(is_done=is_done, seconds_max=max(0.0, until - time.monotonic()))
        refusal = OffloadedRead([], error=OffloadFailed("the store is closed"))
        has_read = self._pool is None or self._pool.stop(refusal, max(0.0, until - time.monotonic()))
        if not (is_done and has_read and self.claim.is_over):
            logger.warning("%s does not answer: closing without waiting for it", self.location)
            exits.unfinished.add(self.location)
        while self._finished:
            run_callback(self._finished.popleft())
        self._local.close()
        self._reader.close()


def _taken(answer: OffloadedRead) -> list[bytes]:
    if answer.error is not None:
        raise answer.error
    if answer.damage is not None and not answer.entries:
        raise EntriesDamaged(f"{answer.damage.thing}: {answer.damage.what}", answer.damage)
    return answer.entries
