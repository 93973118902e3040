"""Offload storage of a store: moves closed ledgers there, and deletes their files with them.

The order of the steps of an offload is in `geminga.ledger.tier.offloading`. Entries are deleted from the
store only after the file was read once more and its checksum compared.

All requests to the storage run on one worker thread, in order. Only the store that holds the claim on the
storage changes it (`geminga.ledger.tier.claim`); a copy of a store only reads.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial

from geminga.errors import LedgerNotFound, StoreError
from geminga.ledger.api import Done, TierStats
from geminga.ledger.callbacks import run_callback
from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.steps import Begin, follow
from geminga.ledger.store import FileStore
from geminga.ledger.tier.claim import StorageClaim, StorageNotClaimed
from geminga.ledger.tier.files import TierFiles
from geminga.ledger.tier.offload_worker import IDLE_SECONDS_MAX, ByteRate, OffloadWriters
from geminga.ledger.tier.offloading import PIECE_ENTRIES, OffloadFailed, Offloading, fetch_piece
from geminga.ledger.tier.reading import TierReader
from geminga.ledger.worker import Worker
from geminga.offload.manifest import OffloadedLedger
from geminga.offload.storage import OffloadStorage, check_file, folder_of

logger = logging.getLogger("geminga.ledger")


class OffloadTier:
    """`geminga.ledger.api.Tier`. Used on the owner's thread."""

    def __init__(
        self,
        local: FileStore,
        storage: OffloadStorage,
        worker: Worker,
        *,
        rate_bytes: int = -1,
        threads: bool = True,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """``rate_bytes``: limit per second of the bytes of entries that are offloaded; -1: no limit.
        ``sleep`` replaces the waits of `StorageClaim`."""
        self.storage = storage
        self.location = storage.location
        self.reader = TierReader(storage)
        self._local = local
        self._worker = worker
        claim = StorageClaim(
            storage, local.filesystem, local.folder, local.store_id.hex(), clock=clock, sleep=sleep
        )
        self.claim = claim
        self.files = TierFiles(local, storage, claim, self._worker.submit, self._call_in)
        self.catalog = self.files.catalog
        self.offloaded, self.record = self.catalog.of_owner, self.catalog.record
        self.sweep = self.files.sweep
        has_disk = isinstance(local.filesystem, RealFileSystem)
        self.writers = OffloadWriters(
            storage, ByteRate(rate_bytes, clock), is_alone=not (threads and has_disk)
        )
        self._offloads: dict[int, Offloading] = {}
        """Pending offloads by ledger."""
        self._threads = threads
        self._clock = clock or time.monotonic
        self._due: dict[Callable[[], None], float] = {}
        """Functions for `poll` to call, and when."""
        self._ledgers_offloaded = self._bytes_offloaded = self._failures = 0
        if threads:
            self._worker.start("geminga-offload")
            claim.start()
        self.files.open()

    @property
    def borrowed(self) -> str:
        """Return why this store may not change the storage; empty if it may, or that is not known yet."""
        return self.claim.refusal

    def local_ledgers(self, owner: str) -> set[int]:
        return {info.ledger_id for info in self._local.ledgers(owner)}

    def offload(self, owner: str, ledger_id: int, now_ms: int, done: Done, *, offset: int) -> None:
        """Offload a closed ledger; ``done`` is called when the file is durable.

        Raises `StoreError`; `OffloadFailed` if the ledger is offloaded already or the offload is pending.
        """
        if self.files.is_closing:
            raise OffloadFailed("the store is being closed")
        if ledger_id in self._offloads or self.catalog.record(ledger_id) is not None:
            raise OffloadFailed(f"ledger {ledger_id} is offloaded already, or being offloaded")
        info = next((each for each in self._local.ledgers(owner) if each.ledger_id == ledger_id), None)
        if info is None or not info.entries:
            raise LedgerNotFound(f"ledger {ledger_id} of {owner} does not exist or is empty")
        self._check_not_borrowed()

        def ended(error: StoreError | None) -> None:
            del self._offloads[ledger_id]
            if error is None:
                self.claim.has_files = True
                self._ledgers_offloaded += 1
                self._bytes_offloaded += offloading.bytes_written
            else:
                self._failures += 1
            self._call_in(IDLE_SECONDS_MAX, self._end_idle_process)
            done(error)

        offloading = Offloading(self.files, self.writers, owner, info, offset, now_ms, ended)
        offloading.begin()
        self._offloads[ledger_id] = offloading

    def _check_not_borrowed(self) -> None:
        if self.borrowed:
            raise StorageNotClaimed(self.borrowed)

    def _end_idle_process(self) -> None:
        if not self._offloads:
            self._worker.submit(self.writers.rest, lambda _: None)

    def cancel(self, owner: str, why: str) -> None:
        """Cancel the pending offloads of an owner."""
        for each in list(self._offloads.values()):
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
        follow(self._drop_local(owner, record, done))

    def _drop_local(self, owner: str, record: OffloadedLedger, done: Done) -> Generator[Begin, None, None]:
        path, ledger_id, wrong = f"{folder_of(owner)}/{record.file}", record.ledger, list[str]()
        try:
            try:
                yield partial(self._worker.submit, partial(self._check_file, path, record, wrong))
            except StorageNotClaimed:
                raise
            except Exception as error:
                raise OffloadFailed(f"{self.location}/{path} cannot be checked now: {error}") from error
            if self.catalog.record(ledger_id) != record:
                done(None)  # it was deleted meanwhile
            elif not wrong[0]:
                self._local.delete_ledgers([ledger_id], done)
            else:
                self._failures += 1
                text = f"{self.location}/{path} is not what was offloaded: {wrong[0]}"
                if not (yield from self._is_whole_here(owner, record)):
                    text += "; it is kept, as the store cannot read the whole ledger itself"
                    raise OffloadFailed(text)
                if self.catalog.record(ledger_id) == record:
                    line = "%s; ledger %d stays in the store and will be offloaded again"
                    logger.error(line, text, ledger_id)
                    self._give_up(owner, [record])
                raise OffloadFailed(text)
        except StoreError as refused:
            done(refused)

    def _check_file(self, path: str, record: OffloadedLedger, wrong: list[str]) -> None:
        """Append the fault of a file, empty without one; on the worker's thread."""
        try:
            with contextlib.closing(self.storage.open(path)) as file:
                wrong.append(check_file(file, record.file_bytes, record.crc32c))
        except FileNotFoundError:
            wrong.append("it is not there")
        # Raises if the storage is not mounted; and without the claim, another store may delete the file.
        self.claim.check()

    def _is_whole_here(self, owner: str, record: OffloadedLedger) -> Generator[Begin, None, bool]:
        """Read a ledger in the store; return whether it is complete and intact.

        If not, its file must be kept, even a damaged one.
        """
        at = 0
        try:
            while at < record.entries:
                piece: list[bytes] = []
                yield partial(fetch_piece, self._local, record.ledger, at, PIECE_ENTRIES, piece)
                if not piece:
                    return False
                at += len(piece)
        except StoreError as error:
            logger.debug("ledger %d cannot be read in the store: %s", record.ledger, error)
            return False
        return self._local.owner_of(record.ledger) == owner

    def give_up(self, ledger_ids: Sequence[int]) -> None:
        """Cancel the offloads of deleted ledgers, and delete their files. Raises `StoreError`."""
        owners: dict[str, list[OffloadedLedger]] = {}
        for ledger_id in ledger_ids:
            offloading = self._offloads.get(ledger_id)
            if offloading is not None:
                offloading.cancel(f"ledger {ledger_id} is deleted")
            record = self.catalog.record(ledger_id)
            owner = None if record is None else self.catalog.owner_of(ledger_id)
            if record is not None and owner is not None:
                owners.setdefault(owner, []).append(record)
        for owner, records in owners.items():
            self._give_up(owner, records)

    def _give_up(self, owner: str, records: list[OffloadedLedger]) -> None:
        for record in records:
            self.reader.forget(f"{folder_of(owner)}/{record.file}")
        self.files.give_up(owner, records)

    @property
    def tier_stats(self) -> TierStats:
        return TierStats(
            self._ledgers_offloaded, self._bytes_offloaded, self._failures, self.reader.bytes_read,
            len(self._offloads), bool(self.borrowed),
        )  # fmt: skip

    # --- life ---
    def poll(self) -> None:
        """Run what is due, and without threads the worker's jobs."""
        # If space is short, entries are offloaded as fast as possible: otherwise published entries would fill
        # the disk, and retention would delete the entries that are to be offloaded.
        self.writers.rate.is_lifted = self._local.rewriter.is_eager
        if not self._threads:
            self.claim.renew()
            self._worker.run_queued()
        now = self._clock()
        due = [what for what, when in self._due.items() if when <= now]
        for what in due:
            del self._due[what]
            run_callback(what)
        if due and self._due:
            self._worker.alarm(min(self._due.values()) - now)  # the single alarm has expired

    def _call_in(self, seconds: float, what: Callable[[], None]) -> None:
        """Schedule ``what`` to be called by `poll` in ``seconds``; replaces an earlier schedule of it."""
        self._due[what] = self._clock() + seconds
        self._worker.alarm(seconds)

    def close(self, seconds_max: float) -> bool:
        """Cancel pending offloads, whose files the next start deletes. Returns whether no request to the
        storage is pending; waits up to ``seconds_max`` for that."""
        until = time.monotonic() + seconds_max
        self.files.is_closing = True
        self.claim.stop_waiting()
        for each in list(self._offloads.values()):
            each.cancel("the store is being closed")
        self.writers.end()
        is_done = self._worker.stop(seconds_max)
        if is_done:
            self.writers.rest()
        self.claim.close(is_done=is_done, seconds_max=max(0.0, until - time.monotonic()))
        return is_done and self.claim.is_over
