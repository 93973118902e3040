"""Durable store: `FileStore`.

Every byte is written once, into a log that all ledgers and keys share (`log`), by group commit off the
owner's thread (`journal`). The resulting state is in memory (`state`), checkpoints save it in the catalog
(`catalog`), recovery (`recovery`) replays the log behind the last checkpoint, and rewriting (`rewriting`)
frees the space of deleted records. docs/decisions/store-layout.md gives the reasons.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from geminga.errors import StoreError, StoreStopped
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
from geminga.ledger.bloom_filter_builder import BloomFilterBuilder
from geminga.ledger.callbacks import run_callback
from geminga.ledger.catalog import EntryChunk
from geminga.ledger.catalog_database import CatalogDamaged
from geminga.ledger.catalog_file import CatalogFile
from geminga.ledger.checkpoints import CheckpointParts, Checkpoints
from geminga.ledger.damage import Damage
from geminga.ledger.damage_recording import DamageRecorder
from geminga.ledger.filesystem import FileSystem, RealFileSystem
from geminga.ledger.folder import StoreLock, open_folder
from geminga.ledger.format import (
    CHECKPOINT,
    CREATE,
    DELETE_KEY,
    DELETE_LEDGER,
    DROP_FILE,
    ENTRY,
    MERGE,
    NOTHING,
    PUT,
    RESTATE,
    encode_value,
)
from geminga.ledger.index import SharedIndex
from geminga.ledger.journal import FailedRecords, Journal
from geminga.ledger.log import Group, LogFiles, LogWriter
from geminga.ledger.prefetcher import Prefetcher
from geminga.ledger.read_pool import ReadPool
from geminga.ledger.reading import ReadEntries, StoreEntryReader
from geminga.ledger.recovery import CatalogOutdatedError, Recovered, Recovery
from geminga.ledger.rewriting import LogRewriter
from geminga.ledger.settings import StoreSettings
from geminga.ledger.space import SpaceGauge, is_no_space
from geminga.ledger.state import StoreState
from geminga.ledger.steps import reported
from geminga.ledger.tail_cache import TailCache
from geminga.ledger.worker import Worker

logger = logging.getLogger("geminga.ledger")

_AHEAD_CACHE_KIB = 128
"""Cache of connections that read ahead: small, as they only fill the operating system's cache."""


class StoreCounts(NamedTuple):
    """Numbers of log files, ledgers and keys in a store."""

    log_files: int
    log_bytes: int
    ledgers: int
    keys: int


class FileStore:
    """Implements `geminga.ledger.api.EntryStore` in a folder. Create it with `FileStore.open`."""

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        sync: str | None = None,
        wakeup: Callable[[], None] | None = None,
        settings: StoreSettings | None = None,
        filesystem: FileSystem | None = None,
        threads: bool = True,
    ) -> FileStore:
        """Open the store in ``folder``, which is created if it does not exist or is empty.

        ``sync`` overrides ``settings.sync``. ``wakeup`` is called from any thread when `poll` has work.
        Without ``threads`` all writing happens inside `poll`, in a deterministic order.

        Raises `StoreLocked` when another process has it open, `NotAStore` when the folder holds other
        files, `StoreDamaged` when its superblock is unreadable, `StoreError` when the system refuses. Damage
        in the log does not keep the store from opening: see `damage`."""
        settings = settings or StoreSettings()
        if sync is not None:
            settings = dataclasses.replace(settings, sync=sync)
        filesystem = filesystem or RealFileSystem()
        path = os.path.abspath(os.fspath(folder))
        try:
            lock, store_id = open_folder(filesystem, path)
            try:
                return cls(path, store_id, lock, settings, filesystem, wakeup, threads)
            except BaseException:
                lock.release()
                raise
        except (OSError, sqlite3.OperationalError) as error:
            advice = "; free a few MiB of its disk first" if is_no_space(error) else ""
            raise StoreError(f"the store in {path} cannot be opened: {error}{advice}") from error

    def __init__(
        self,
        folder: str,
        store_id: bytes,
        lock: StoreLock,
        settings: StoreSettings,
        filesystem: FileSystem,
        wakeup: Callable[[], None] | None,
        threads: bool,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.store_id = store_id
        self._lock = lock
        self.filesystem = filesystem
        self._wakeup = wakeup
        self._threads = threads
        self._signaled = False
        self._polling = False
        self._close_wanted = False
        self._closed = False
        self._failure: StoreError | None = None
        self._files = LogFiles(filesystem, folder)
        self._catalog_file = CatalogFile(filesystem, folder, store_id)
        try:
            self._start(store_id)
        except BaseException:
            self._files.close()
            self._catalog_file.close()
            raise

    def _start(self, store_id: bytes) -> None:
        settings = self.settings
        self._gauge = SpaceGauge(self.filesystem, self.folder, settings.folder_bytes_max)
        self._gauge.measure()
        self._catalog = self._catalog_file.open()
        try:
            recovered = self._recover(store_id)
        except (CatalogOutdatedError, CatalogDamaged) as error:
            self._catalog = self._catalog_file.replace(str(error))
            recovered = self._recover(store_id)
        self._writer = LogWriter(
            self.filesystem, self.folder, store_id, position=recovered.position,
            sequence=recovered.sequence, live_files=set(self._state.files),
            next_ledger_id=self._ledgers.next_id, file_bytes_max=settings.log_file_bytes,
            preallocate_bytes=settings.preallocate_bytes,
        )  # fmt: skip
        self._journal = Journal(
            self._writer,
            sync=settings.sync,
            sync_interval_seconds=settings.sync_interval_seconds,
            group_bytes_max=settings.group_bytes_max,
            signal=self._signal,
            wrote=self._gauge.wrote,
        )
        self._pending = self._journal.pending
        self._completing: Iterator[int] | None = None
        self._finished: deque[Callable[[], None]] = deque()
        self._worker = Worker(self._finished, self._signal)
        worker_catalog = self._catalog
        self._pool: ReadPool[ReadEntries] | None = None
        self._shared_index: SharedIndex | None = None
        self._prefetcher: Prefetcher | None = None
        self._filter_builder: BloomFilterBuilder | None = None
        if self._threads:
            worker_catalog = self._catalog_file.connect()
            self._shared_index = SharedIndex(self._state.index, self._catalog_file.connect())
            self._pool = ReadPool(
                self._finished,
                self._signal,
                threads=settings.read_threads,
                wait_seconds=settings.read_wait_seconds,
                waiting_max=settings.reads_waiting_max,
                undelivered_bytes_max=settings.read_ahead_bytes_max,
            )
            self._prefetcher = Prefetcher(
                self._pool,
                [self._catalog_file.connect(_AHEAD_CACHE_KIB) for _ in range(settings.read_threads)],
                lambda error: StoreError(f"the store's catalog cannot be read: {error}"),
            )
            self._filter_builder = BloomFilterBuilder(
                self._state.bloom_filter,
                self._pool,
                self._catalog_file.connect(_AHEAD_CACHE_KIB),
                lambda error: logger.warning("cannot add the store's catalog to its Bloom filter: %s", error),
            )
        self._reader = StoreEntryReader(
            self._state,
            self._files,
            self._note_damage,
            self._pool,
            self._shared_index,
            unreadable_seconds=settings.unreadable_seconds,
        )
        self._rewriter = LogRewriter(
            filesystem=self.filesystem,
            folder=self.folder,
            store_id=store_id,
            settings=settings,
            state=self._state,
            files=self._files,
            catalog=worker_catalog,
            worker=self._worker,
            submit=self._submit,
            sizes=self._sizes,
            freed=self._gauge.measure,
        )
        self._tails = TailCache(self._ledgers, settings.cache_bytes)
        self._settling = DamageRecorder(
            self._state, self._submit, self.delete_ledgers, self._rewriter.look_again
        )
        self._refusal: StoreError | None = None
        self._measuring = False
        self._appended_entries = 0
        self._appended_bytes = 0
        self._checkpoints = Checkpoints(
            CheckpointParts(
                settings=settings,
                state=self._state,
                journal=self._journal,
                worker=self._worker,
                catalog=worker_catalog,
                rewriter=self._rewriter,
                shared_index=self._shared_index,
                sizes=self._sizes,
                submit=self._submit,
                has_threads=self._threads,
                is_well=lambda: self._failure is None and not self._closed,
                stop=self._stop,
                full=self._gauge.measure,
            )
        )
        if self._threads:
            self._journal.start()
            self._worker.start()
        if self._pool is not None:
            self._pool.start()
        # The log must hold everything, including records whose bytes in the log are damaged now.
        found = self._recovery.damage
        self._settling.write_again(found.unwritten_keys, found.unwritten_ledgers)
        if recovered.replayed_groups > 1 or len(self._state.quarantine):
            self._checkpoints.begin()

    def _recover(self, store_id: bytes) -> Recovered:
        """Restore the state from the catalog and the log behind it."""
        state = self._state = StoreState(self._catalog, self.settings.index_cache_bytes)
        self._ledgers = state.ledgers
        position = sequence = 0
        sizes: dict[int, int] = {}
        if self._catalog.meta("position") is None:
            state.bloom_filter.stock_is_taken()
        else:
            state.load()
            position, sequence = self._catalog.number("position"), self._catalog.number("sequence")
            sizes = self._catalog.files()
        recovery = self._recovery = Recovery(self.filesystem, self.folder, store_id, self._files, state)
        if self.settings.verify_on_open:
            recovery.verify(position)
        recovered = recovery.run(position, sequence, sizes)
        sizes.update(recovered.file_sizes)
        self._sizes = {number: size for number, size in sizes.items() if number in state.files}
        return recovered

    tier = None

    # --- faults ---
    @property
    def failure(self) -> StoreError | None:
        """Return why the store stopped; None while it works."""
        return self._failure

    @property
    def damage(self) -> list[Damage]:
        """Return the known damage, found when opening and when reading."""
        return list(self._state.quarantine)

    @property
    def is_writing(self) -> bool:
        return self._completing is not None or self._journal.will_report

    @property
    def is_behind(self) -> bool:
        return self._checkpoints.is_behind

    # --- disk space ---
    @property
    def space(self) -> FreeSpace | None:
        space, is_full = self._gauge.space, self._journal.full is not None or self._checkpoints.lacks_room
        return dataclasses.replace(space, free_bytes=0) if is_full and space is not None else space

    def measure_space(self) -> None:
        if self._measuring or self._closed:
            return
        self._measuring = True

        def look() -> None:
            self._gauge.measure()
            self._lock.check()
            self._writer.check_in_place()

        def looked(error: Exception | None) -> None:
            self._measuring = False
            if isinstance(error, StoreError):
                self._stop(error, None)

        self._worker.submit(look, looked)

    def refuse_entries(self, why: StoreError | None) -> None:
        self._refusal = self._failure or why

    def give_back(self, *, eagerly: bool) -> None:
        self._rewriter.is_eager = eagerly
        self._checkpoints.deletions_wait = self._checkpoints.deletions_wait or eagerly

    @property
    def gives_back(self) -> bool:
        checkpoints = self._checkpoints
        return checkpoints.deletions_wait or checkpoints.is_running or self._rewriter.is_running

    def _note_damage(self, damage: Damage) -> None:
        if self._state.quarantine.add(damage):
            logger.error("damage in the store %s: %s", self.folder, damage)

    def damaged_entries(self, ledger_id: int) -> list[tuple[int, int]]:
        return self._state.quarantine.entries_of(ledger_id)

    def settle_damage(self, name: str, done: Done | None = None) -> bool:
        self._check_running()
        return self._settling.settle(name, done)

    def forget_damage(self, name: str) -> None:
        """Remove damage whose bytes were corrected from the list."""
        for damage in self._state.quarantine.named(name):
            self._state.quarantine.discard(damage)

    # --- ledgers ---
    def owner_of(self, ledger_id: int) -> str | None:
        if not self._ledgers.exists(ledger_id):
            return None
        return self._ledgers.ledger(ledger_id).owner or None

    def adopt_ledger(self, ledger_id: int, owner: str) -> bool:
        self._check_running()
        if not self._ledgers.adopt(ledger_id, owner):
            return False
        self._submit(CREATE, ledger_id, 0, owner.encode(), None)
        return True

    def create_ledger(self, owner: str) -> int:
        self._check_running()
        name = owner.encode()
        ledger = self._ledgers.create(owner)
        self._submit(CREATE, ledger.ledger_id, 0, name, None)
        return ledger.ledger_id

    def append(self, ledger_id: int, entry: Buffer, done: Done) -> int:
        ledger = self._ledgers.loaded.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers.ledger(ledger_id)
        if self._refusal is not None:
            raise self._refusal
        if ledger.doubted:
            self._ledgers.step_over_doubt(ledger)
        size = len(entry)
        entry_id = ledger.next_entry
        ledger.next_entry = entry_id + 1
        ledger.size_bytes += size
        ledger.recent.append(entry)
        self._pending.append((ENTRY, ledger_id, entry_id, entry, done))
        if self._journal.idle:
            self._journal.wake()
        return entry_id

    def append_run(self, ledger_id: int, entries: Sequence[bytes], done: Done) -> int:
        ledger = self._ledgers.ledger(ledger_id)
        if self._refusal is not None:
            raise self._refusal
        if ledger.doubted:
            self._ledgers.step_over_doubt(ledger)
        ids = ledger.take(entries)
        dones = chain(repeat(None, len(ids) - 1), (done,))
        # A list first: the writer takes from the front meanwhile, and extending by a list is atomic.
        self._pending.extend(list(zip(repeat(ENTRY), repeat(ledger_id), ids, entries, dones)))
        if self._journal.idle:
            self._journal.wake()
        return ids[0]

    def read(self, ledger_id: int, first_entry_id: int, *, entries_max: int, bytes_max: int) -> list[bytes]:
        return self._reader.read(self._ledgers.ledger(ledger_id), first_entry_id, entries_max, bytes_max)

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
        ledger = self._ledgers.ledger(ledger_id)
        return self._reader.fetch(ledger, first_entry_id, entries_max, bytes_max, ahead, done)

    def positions(
        self,
        ledger_id: int,
        first_entry_id: int,
        *,
        entries_max: int,
        bytes_max: int,
        done: Callable[[EntryChunk | None], None],
    ) -> bool:
        """Call ``done`` with the positions of entries in the log's files, for reading them without the store:
        within both limits, at least one. Entries may be moved, and their file deleted, before they are read.

        If the entries are in memory, or missing, returns False or calls ``done`` with None: use `fetch` then.
        Raises `StoreError`."""
        ledger = self._ledgers.ledger(ledger_id)
        return self._reader.positions(ledger, first_entry_id, entries_max, bytes_max, done)

    def bring(self, wanted: PrefetchRequest, done: Done) -> bool:
        if self._prefetcher is None or not self._state.bloom_filter.may_have_any(wanted):
            return True
        if self._closed:
            done(self._failure)
        else:
            self._prefetcher.bring(wanted, done)
        return False

    def ledgers(self, owner: str) -> list[StoredLedger]:
        return self._ledgers.owned(owner)

    def ledgers_page(self, after: int) -> tuple[list[StoredLedger], int | None]:
        return self._ledgers.page(after)

    def release(self, ledger_ids: Sequence[int]) -> None:
        self._ledgers.release(ledger_ids)

    def lost_entries_max(self, ledger_id: int) -> int:
        return self._ledgers.lost_entries_max(ledger_id)

    def delete_ledgers(self, ledger_ids: Sequence[int], done: Done | None = None) -> None:
        self._check_running()
        existing = [ledger_id for ledger_id in ledger_ids if self._ledgers.delete(ledger_id)]
        for ledger_id in existing[:-1]:
            self._submit(DELETE_LEDGER, ledger_id, 0, b"", None)
        if existing:
            self._checkpoints.deletions_wait = True
            self._submit(DELETE_LEDGER, existing[-1], 0, b"", done)
        elif done is not None:
            # Nothing to write, but the callback keeps its order.
            self._submit(NOTHING, 0, 0, b"", done)

    # --- key-value map ---
    def put(self, key: str, value: bytes, done: Done | None = None, *, same: bool = False) -> None:
        self._check_running()
        value = bytes(value)
        change = self._state.keys.put(key, value)
        key_bytes = change.key_bytes
        data = encode_value(key_bytes, value, ()) if same else key_bytes + value
        self._submit(RESTATE if same else PUT, len(key_bytes), change.fingerprint, data, done)

    def merge(self, key: str, delta: bytes, done: Done | None = None) -> None:
        if self._failure is not None:
            raise self._failure
        change = self._state.keys.merge(key, bytes(delta))
        key_bytes = change.key_bytes
        data = key_bytes + delta
        self._pending.append((MERGE, len(key_bytes), change.fingerprint, data, done))
        if self._journal.idle:
            self._journal.wake()

    def delete(self, key: str, done: Done | None = None) -> None:
        self._check_running()
        change = self._state.keys.delete(key)
        self._submit(DELETE_KEY, len(change.key_bytes), change.fingerprint, change.key_bytes, done)

    def get(self, key: str) -> StoredValue | None:
        return self._state.keys.get(key)

    def scan(self, prefix: str, *, after: str = "") -> Iterator[tuple[str, StoredValue]]:
        return self._state.keys.scan(prefix, after)

    def names(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return self._state.keys.names(prefix, after)

    def names_page(self, prefix: str, *, after: str = "") -> tuple[list[str], str | None]:
        return self._state.keys.names_page(prefix, after)

    def _check_running(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _submit(self, kind: int, first: int, second: int, data: Buffer, done: Done | None) -> None:
        self._pending.append((kind, first, second, data, done))
        if self._journal.idle:
            self._journal.wake()

    # --- completion ---
    def _signal(self) -> None:
        """Wake the owner: called by the writer and the worker when `poll` has work."""
        if self._signaled:
            return
        self._signaled = True
        if self._wakeup is not None:
            try:
                self._wakeup()
            except RuntimeError as error:  # the owner's event loop is closed, it will not poll again
                logger.debug("cannot wake the store's owner: %s", error)

    def poll(self, enough: Callable[[], bool] = never) -> int:
        if self._polling:
            return 0
        self._polling = True
        try:
            return self._poll(enough)
        finally:
            self._polling = False
            if self._close_wanted:
                self.close()

    def _poll(self, enough: Callable[[], bool]) -> int:
        self._signaled = False
        if not self._threads:
            while self._journal.commit():
                pass
            self._worker.run_queued()
        ran = 0
        completed = self._journal.completed
        while self._completing is not None or completed:
            if self._completing is None:
                self._completing = self._complete(completed.popleft())
            count = next(self._completing, None)
            if count is None:
                self._completing = None
                continue
            ran += count
            if enough():
                break
        while self._finished:
            run_callback(self._finished.popleft())
            if enough():
                break
        if self._failure is None and not self._closed:
            self._checkpoints.keep(enough)
            if self._filter_builder is not None:
                self._filter_builder.keep()
        return ran

    def _complete(self, outcome: Group | FailedRecords) -> Iterator[int]:
        """Process a result of the writer. Each step yields how many callbacks it ran."""
        if isinstance(outcome, FailedRecords):
            self._failure = self._refusal = self._failure or outcome.error
            yield from reported([record[4] for record in outcome.records], outcome.error)
            return
        self._settle(outcome)
        if outcome.kinds[-1] == CHECKPOINT:
            yield from self._checkpoints.reached(outcome)
        yield from reported(outcome.dones, None)

    def _settle(self, group: Group) -> None:
        """Record that a group is on the disk."""
        counts, size_bytes = self._state.settle(group)
        self._checkpoints.wrote(group)
        if counts:
            entries = sum(counts.values())
            self._appended_entries += entries
            self._appended_bytes += size_bytes
            self._tails.holds(counts, entries, size_bytes)
        if group.sealed is not None:
            self._sizes[group.sealed[0]] = group.sealed[1]
        self._rewriter.earn(group.payload_bytes)
        if DROP_FILE in group.kinds:
            for kind, number in zip(group.kinds, group.firsts, strict=True):
                if kind == DROP_FILE:
                    self._sizes.pop(number, None)
                    self._state.files.discard(number)

    def _stop(self, failure: StoreError, cause: Exception | None) -> None:
        if self._failure is None:
            failure.__cause__ = cause
            logger.error("%s", failure)
            self._failure = self._refusal = failure

    # --- life ---
    def stats(self) -> StoreStats:
        return StoreStats(
            appended_entries=self._appended_entries,
            appended_bytes=self._appended_bytes,
            syncs=self._journal.syncs,
            sync_seconds_total=self._journal.sync_seconds_total,
            disk_bytes=self._disk_bytes(),
            pending_writes=len(self._pending),
        )

    def _disk_bytes(self) -> int:
        """Return the size of the written part of the log's files."""
        number = self._writer.number
        return sum(size for n, size in self._sizes.items() if n != number) + self._writer.offset

    def checkpoint(self) -> None:
        """Make a checkpoint now and wait for it, as a clean close does; for tests and tools."""
        self._check_running()
        self._drain()
        if self._failure is None:
            self._checkpoints.begin()
            self._drain()

    def _drain(self) -> None:
        """Wait until nothing is pending and the worker is done, running callbacks meanwhile.

        Does not wait for records blocked by a full disk."""
        while True:
            self.poll()
            checkpoints = self._checkpoints
            if self._journal.full is not None or (checkpoints.lacks_room and not self._journal.busy):
                return
            checkpointing = checkpoints.is_running and self._failure is None
            if not (self._journal.busy or self._worker.busy or self._finished or checkpointing):
                return
            if self._threads:
                time.sleep(0.0002)

    def close(self) -> None:
        """Close the store; called from a callback, it closes when the current callbacks have run."""
        if self._closed:
            return
        if self._polling:
            self._close_wanted = True
            return
        self._close_wanted = False
        self._rewriter.stop()
        try:
            self._drain()
            if self._failure is None and self._state.unsaved_records and not self._checkpoints.is_running:
                self.checkpoint()
        finally:
            self._closed = True
            clean = self._failure is None
            self._failure = self._refusal = self._failure or StoreStopped("the store is closed")
            self._journal.stop()
            self._worker.stop()
            still_read = self._pool is not None and not self._pool.stop(ReadEntries(error=self._failure))
            if self._prefetcher is not None:
                self._prefetcher.refuse(self._failure)
            self.poll()
            with contextlib.suppress(OSError):
                self._writer.close(clean=clean)
            self._files.close()
            # A thread stuck in a disk read uses its connection, which then ends with the process.
            if not still_read:
                self._catalog_file.close()
            self._lock.release()

    def keep_files(self) -> None:
        """Rewrite and delete no log file from now on."""
        self._rewriter.stop()

    def abandon(self) -> None:
        """Close the files as if the process had died, for inspection. The store must have no threads."""
        self._closed = True
        self._failure = StoreStopped("the store is closed")
        self._files.close()
        self._catalog_file.close()
        self._lock.release()

    # --- inspection ---
    def has_given(self, ledger_id: int) -> bool:
        """Whether a ledger with this id exists or existed."""
        return ledger_id < self._ledgers.next_id

    def census(self) -> StoreCounts:
        """Count log files, ledgers and keys. Reads all keys."""
        sizes = {**self._sizes, self._writer.number: self._writer.offset}
        keys = sum(1 for _ in self.scan(""))
        return StoreCounts(len(self._state.files), sum(sizes.values()), self._ledgers.count(), keys)

    def position_of(self, ledger_id: int, entry_id: int) -> tuple[str, int, int, int] | None:
        """Return (file name, offset, size, checksum) of an entry, for reading its bytes; None without one."""
        return self._ledgers.position_of(ledger_id, entry_id)

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
