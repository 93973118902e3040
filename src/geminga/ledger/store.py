"""Durable store: `FileStore`.

Every byte is written once, into a log that all ledgers and keys share (`log`), by group commit off the
owner's thread (`log.journal`). The resulting state is in memory (`state`), checkpoints save it in the catalog
(`catalog`), recovery (`recovery`) replays the log behind the last checkpoint, and rewriting
(`upkeep.rewriting`) frees the space of deleted records. docs/decisions/store-layout.md gives the reasons.

`FileStore` connects the parts: `log.journal` orders the writes and `completions` reports them, `reading`
reads, and `state.keys`, `upkeep.disk` and `upkeep.damage` have the store's ``keys``, ``disk`` and ``damage``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, repeat

from geminga.errors import StoreError, StoreStopped
from geminga.ledger.api import Buffer, Done, StoreStats, never
from geminga.ledger.catalog.catalog import CatalogFile
from geminga.ledger.catalog.database import CatalogDamaged
from geminga.ledger.completions import Completions, WakeUp
from geminga.ledger.files.filesystem import FileSystem, RealFileSystem
from geminga.ledger.files.folder import StoreLock, open_folder
from geminga.ledger.files.format import RecordKind
from geminga.ledger.files.space import SpaceGauge, is_no_space
from geminga.ledger.log.journal import Journal, StoreWrites
from geminga.ledger.log.log import LogEnd, LogFiles, LogWriter
from geminga.ledger.reading.reading import StoreReading
from geminga.ledger.recovery.recovery import CatalogOutdatedError, Recovered, Recovery
from geminga.ledger.settings import StoreSettings
from geminga.ledger.state.keys import FileStoreKeys
from geminga.ledger.state.state import StoreState
from geminga.ledger.store_parts import StoreParts
from geminga.ledger.upkeep.checkpoints import Checkpoints
from geminga.ledger.upkeep.damage import FileStoreDamage
from geminga.ledger.upkeep.disk import FileStoreDisk
from geminga.ledger.upkeep.rewriting import LogRewriter
from geminga.ledger.worker import Worker


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
        self._wake_up = WakeUp(wakeup)
        self._threads = threads
        self._polling = False
        self._close_wanted = False
        self._files = LogFiles(filesystem, folder)
        self._catalog_file = CatalogFile(filesystem, folder, store_id)
        try:
            self._start()
        except BaseException:
            self._files.close()
            self._catalog_file.close()
            raise

    def _start(self) -> None:
        self._gauge = SpaceGauge(self.filesystem, self.folder, self.settings.folder_bytes_max)
        self._gauge.measure()
        self._catalog = self._catalog_file.open()
        try:
            recovered = self._recover()
        except (CatalogOutdatedError, CatalogDamaged) as error:
            self._catalog = self._catalog_file.replace(str(error))
            recovered = self._recover()
        self._open_journal(recovered)
        self._connect_parts()
        if self._threads:
            self._journal.start()
            self._worker.start()
        if self.reading.pool is not None:
            self.reading.pool.start()
        # The log must hold everything, including records whose bytes in the log are damaged now.
        found = self._recovery.damage
        self.damage.write_again(found.unwritten_keys, found.unwritten_ledgers)
        if recovered.replayed_groups > 1 or len(self.state.quarantine):
            self._checkpoints.begin()

    def _open_journal(self, recovered: Recovered) -> None:
        """Create what writes: the log's writer, its thread's queue, and the worker."""
        settings = self.settings
        self._writer = LogWriter(
            self.filesystem,
            self.folder,
            self.store_id,
            end=LogEnd(recovered.position, recovered.sequence, self.state.files, self._ledgers.next_id),
            file_bytes_max=settings.log_file_bytes,
            preallocate_bytes=settings.preallocate_bytes,
        )
        self._journal = Journal(
            self._writer,
            sync=settings.sync,
            sync_interval_seconds=settings.sync_interval_seconds,
            group_bytes_max=settings.group_bytes_max,
            signal=self._wake_up.signal,
            wrote=self._gauge.wrote,
        )
        self._writes = StoreWrites(self._journal)
        self._pending = self._journal.pending
        self._finished: deque[Callable[[], None]] = deque()
        self._worker = Worker(self._finished, self._wake_up.signal)

    def _connect_parts(self) -> None:
        """Create what reads, frees space, saves the state, and completes writes."""
        parts = StoreParts(
            filesystem=self.filesystem,
            folder=self.folder,
            store_id=self.store_id,
            settings=self.settings,
            state=self.state,
            files=self._files,
            sizes=self._sizes,
            gauge=self._gauge,
            writes=self._writes,
            worker=self._worker,
            catalog=self._catalog_file.connect() if self._threads else self._catalog,
        )
        self.rewriter = LogRewriter(parts)
        self.damage = FileStoreDamage(parts, self.delete_ledgers, self.rewriter.look_again)
        self.reading = StoreReading(parts, self.damage.note)
        if self._threads:
            self.reading.use_threads(self._catalog_file, self._finished, self._wake_up.signal)
        self._checkpoints = Checkpoints(parts, self.rewriter, self.reading.index, has_threads=self._threads)
        self.keys = FileStoreKeys(self._writes, self.state.keys)
        self.disk = FileStoreDisk(
            parts, self.rewriter, self._checkpoints, self._check_files, self.damage.note
        )
        self._completions = Completions(parts, self.rewriter, self._checkpoints, self._finished)
        self.read = self.reading.read
        self.fetch = self.reading.fetch
        self.bring = self.reading.bring
        self.ledgers = self._ledgers.owned
        self.ledgers_page = self._ledgers.page
        self.release = self._ledgers.release

    def _check_files(self) -> None:
        """Raise `StoreError` if a file that the store locks or writes to is no longer in its folder."""
        self._lock.check()
        self._writer.check_in_place()

    def _recover(self) -> Recovered:
        """Restore the state from the catalog and the log behind it."""
        state = self.state = StoreState(self._catalog)
        self._ledgers = state.ledgers
        position = sequence = 0
        sizes: dict[int, int] = {}
        if self._catalog.meta("position") is not None:
            state.load()
            position, sequence = self._catalog.number("position"), self._catalog.number("sequence")
            sizes = self._catalog.files()
        recovery = self._recovery = Recovery(
            self.filesystem, self.folder, self.store_id, self._files, state, self.settings.log_file_bytes
        )
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
        return self._writes.failure

    @property
    def is_writing(self) -> bool:
        return self._completions.is_completing or self._journal.will_report

    @property
    def is_behind(self) -> bool:
        return self._checkpoints.is_behind

    # --- ledgers ---
    def owner_of(self, ledger_id: int) -> str | None:
        if not self._ledgers.exists(ledger_id):
            return None
        return self._ledgers.ledger(ledger_id).owner or None

    def create_ledger(self, owner: str) -> int:
        self._writes.check()
        name = owner.encode()
        ledger = self._ledgers.create(owner)
        self._writes.submit(RecordKind.CREATE, ledger.ledger_id, 0, name, None)
        return ledger.ledger_id

    def append(self, ledger_id: int, entry: Buffer, done: Done) -> int:
        ledger = self._ledgers.loaded.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers.ledger(ledger_id)
        refusal = self._writes.refusal
        if refusal is not None:
            raise refusal
        if ledger.doubted:
            self._ledgers.step_over_doubt(ledger)
        size = len(entry)
        entry_id = ledger.next_entry
        ledger.next_entry = entry_id + 1
        ledger.size_bytes += size
        ledger.recent.append(entry)
        self._pending.append((RecordKind.ENTRY, ledger_id, entry_id, entry, done))
        if self._journal.idle:
            self._journal.wake()
        return entry_id

    def append_run(self, ledger_id: int, entries: Sequence[bytes], done: Done) -> int:
        ledger = self._ledgers.ledger(ledger_id)
        refusal = self._writes.refusal
        if refusal is not None:
            raise refusal
        if ledger.doubted:
            self._ledgers.step_over_doubt(ledger)
        ids = ledger.take(entries)
        dones = chain(repeat(None, len(ids) - 1), (done,))
        # A list first: the writer takes from the front meanwhile, and extending by a list is atomic.
        self._pending.extend(list(zip(repeat(RecordKind.ENTRY), repeat(ledger_id), ids, entries, dones)))
        if self._journal.idle:
            self._journal.wake()
        return ids[0]

    def delete_ledgers(self, ledger_ids: Sequence[int], done: Done | None = None) -> None:
        self._writes.check()
        existing = [ledger_id for ledger_id in ledger_ids if self._ledgers.delete(ledger_id)]
        for ledger_id in existing[:-1]:
            self._writes.submit(RecordKind.DELETE_LEDGER, ledger_id, 0, b"", None)
        if existing:
            self._checkpoints.deletions_wait = True
            self._writes.submit(RecordKind.DELETE_LEDGER, existing[-1], 0, b"", done)
        elif done is not None:
            # Nothing to write, but the callback keeps its order.
            self._writes.submit(RecordKind.NOTHING, 0, 0, b"", done)

    # --- life ---
    def poll(self, enough: Callable[[], bool] = never) -> int:
        if self._polling:
            return 0
        self._polling = True
        try:
            self._wake_up.is_signaled = False
            if not self._threads:
                while self._journal.commit():
                    pass
                self._worker.run_queued()
            ran = self._completions.run(enough)
            if self._writes.failure is None and not self._writes.is_closed:
                self._checkpoints.keep(enough)
            return ran
        finally:
            self._polling = False
            if self._close_wanted:
                self.close()

    def stats(self) -> StoreStats:
        return StoreStats(
            appended_entries=self._completions.appended_entries,
            appended_bytes=self._completions.appended_bytes,
            syncs=self._journal.syncs,
            sync_seconds_total=self._journal.sync_seconds_total,
            disk_bytes=sum(self.log_sizes().values()),
            pending_writes=len(self._pending),
        )

    def log_sizes(self) -> dict[int, int]:
        """Return the size of the written part of each log file, by number."""
        return {**self._sizes, self._writer.number: self._writer.offset}

    def checkpoint(self) -> None:
        """Make a checkpoint now and wait for it, as a clean close does; for tests and tools."""
        self._writes.check()
        self._drain()
        if self._writes.failure is None:
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
            checkpointing = checkpoints.is_running and self._writes.failure is None
            if not (self._journal.busy or self._worker.busy or self._finished or checkpointing):
                return
            if self._threads:
                time.sleep(0.0002)

    def close(self) -> None:
        """Close the store; called from a callback, it closes when the current callbacks have run."""
        if self._writes.is_closed:
            return
        if self._polling:
            self._close_wanted = True
            return
        self._close_wanted = False
        self.rewriter.stop()
        writes = self._writes
        try:
            self._drain()
            try:
                self._check_files()  # records since the last check may be in a deleted file
            except StoreError as gone:
                writes.stop(gone, None)
            if writes.failure is None and self.state.unsaved_records and not self._checkpoints.is_running:
                self.checkpoint()
        finally:
            writes.is_closed = True
            clean = writes.failure is None
            error = writes.end(StoreStopped("the store is closed"))
            self._journal.stop()
            self._worker.stop()
            has_read = self.reading.stop(error)
            self.poll()
            with contextlib.suppress(OSError):
                self._writer.close(clean=clean)
            self._files.close()
            # A thread stuck in a disk read uses its connection, which then ends with the process.
            if has_read:
                self._catalog_file.close()
            self._lock.release()

    def abandon(self) -> None:
        """Close the files as if the process had died, for inspection. The store must have no threads."""
        self._writes.is_closed = True
        self._writes.end(StoreStopped("the store is closed"))
        self._files.close()
        self._catalog_file.close()
        self._lock.release()

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
