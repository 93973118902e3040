"""Offload of a ledger: from its entries in the store to a complete file that manifest and store record.

Each step is durable before the next one begins:

1. a suspicion in the store's keys that names the file (`geminga.ledger.tier_catalog`);
2. the file, written, synced and opened again;
3. the manifest that names it;
4. the record in the store's keys, which replaces the suspicion.

The ledger's own entries stay until they are deleted later. A crash between two steps leaves the suspicion,
by which the file is found and deleted; an error deletes the file at once.

The entries are read on the owner's thread, in pieces; all other steps run on the worker's thread, or in a
worker process (`geminga.ledger.offload_worker`), which then also reads the log. When that process is lost the
ledger is offloaded once more, and only once, as the cause may end the next process, too. Entries that the
process cannot read are read by the store itself, which reports the cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol
from uuid import uuid4

from geminga.errors import StoreBusy, StoreError
from geminga.ledger.api import Done, EntryStore, ReadAhead, StoredLedger
from geminga.ledger.catalog import EntryChunk
from geminga.ledger.cpu_throttle import CpuThrottle
from geminga.ledger.offload_worker import OffloadWriters, WorkerLost
from geminga.ledger.offload_writing import EntriesUnreadable, OffloadRequest, OffloadWriting
from geminga.ledger.tier_catalog import OrphanCandidate, TierCatalog
from geminga.ledger.tier_claim import StorageClaim
from geminga.offload import manifest
from geminga.offload.file import LedgerFile, WrittenFile
from geminga.offload.manifest import OffloadedLedger
from geminga.offload.storage import OffloadStorage, folder_of, ledger_file

logger = logging.getLogger("geminga.ledger")

PIECE_ENTRIES = 4096
PIECE_BYTES = 2 * 1024 * 1024
"""Limit of one read from the store."""
PIECES_WAITING_MAX = 2
"""Most pieces that are read ahead of the worker."""
BUSY_PAUSE_SECONDS = 0.1
ENTRY_PAUSE_SECONDS = 20e-6
"""Pause of the worker for each entry that this process reads: reading takes the GIL, which the owner's thread
needs. If another process writes the file, the worker pauses only while clients publish."""
SHARING_REST_TIMES = 3.0, 20.0
"""While clients publish, the worker pauses for these multiples of its working time, if the owner's thread is
idle or busy: a busy owner notices any time taken. The worker never stops entirely, and it does not pause
when disk space is short: otherwise published entries would fill the disk, and retention would delete the
entries that are to be offloaded."""
APART_REST_TIMES = 0.0, 10.0
"""The multiples if another process works with idle processor time. A busy owner notices that too: memory
bandwidth is shared, and a busy processor is available later than an idle one."""
IDLE_LOAD, BUSY_LOAD = 0.3, 0.7
"""Shares of time in which the owner's thread wants the processor, for idle and busy."""
REST_SECONDS_MAX = 2.0
"""Longest pause after a piece: a piece that took longer has waited for slow storage, which is not work."""
PUBLISHING_BYTES_MIN = 64 * 1024
"""Bytes appended since the last piece from which on clients count as publishing."""


def rest_times(load: float | None, times: tuple[float, float]) -> float:
    """Return the pause as a multiple of the working time while clients publish: interpolates ``times`` by the
    share of time in which the owner's thread wants the processor."""
    idle, busy = times
    if load is None:
        return (idle + busy) / 2
    share = min(1.0, max(0.0, (load - IDLE_LOAD) / (BUSY_LOAD - IDLE_LOAD)))
    return idle + share * (busy - idle)


class OffloadFailed(StoreError):
    """A ledger could not be offloaded; its entries stay in the store."""


class OffloadingTier(Protocol):
    """Parts of the tiered store that an offload uses."""

    storage: OffloadStorage
    catalog: TierCatalog
    store_name: str
    claim: StorageClaim
    makers: OffloadWriters

    @property
    def local(self) -> EntryStore:
        """Return the store that the ledger is in."""

    def work(self, job: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        """Run a job on the worker's thread, ``then`` on the owner's."""

    def pause(self, seconds: float) -> None:
        """Wait; on the worker's thread."""

    @property
    def rests(self) -> CpuThrottle:
        """Return the worker's throttle; it is off while disk space is short."""

    def load(self) -> float | None:
        """Return the share of time since the last call in which the owner's thread wanted the processor; None
        if unknown; on the worker's thread."""

    def listing(self, owner: str) -> Callable[[], None]:
        """Return a job that updates the owner's manifest, for the worker's thread."""

    def positions(
        self,
        ledger_id: int,
        first: int,
        entries_max: int,
        bytes_max: int,
        done: Callable[[EntryChunk | None], None],
    ) -> bool:
        """Call ``done`` with the positions of entries; see `geminga.ledger.store.FileStore.positions`."""

    def remove_files(self, owner: str, suspects: list[OrphanCandidate]) -> None:
        """Remove files from the manifest and delete them."""


class Offloading:
    """Pending offload of one ledger. ``done`` is called at its end, from `EntryStore.poll`."""

    def __init__(
        self, tier: OffloadingTier, owner: str, info: StoredLedger, offset: int, now_ms: int, done: Done
    ) -> None:
        self.owner = owner
        self.info = info
        self.bytes_written = 0
        self.record: OffloadedLedger | None = None
        """Record of the ledger, once the file is complete."""
        self._tier = tier
        self._offset = offset
        self._now_ms = now_ms
        self._done: Done | None = done
        self._published = tier.local.stats().appended_bytes
        self._is_cancelled = self._is_second = False
        self._by_positions = True
        """Whether the worker process may read entries by their positions."""
        self._start()

    def _start(self) -> None:
        """Start with a new file name, of which no file exists yet."""
        self.uuid = uuid4().hex
        self.file = ledger_file(self.info.ledger_id, self.uuid)
        self.path = f"{folder_of(self.owner)}/{self.file}"
        self._next = 0
        self._waiting = 0
        self._is_reading = False
        self._failure: Exception | None = None
        self._making: OffloadWriting | None = None
        self._written: WrittenFile | None = None

    # --- the owner's thread ---
    def begin(self) -> None:
        """Start the offload. Raises `StoreError`."""
        self._tier.catalog.suspect(
            OrphanCandidate(self.owner, self.info.ledger_id, self.uuid, self.file), self._suspected
        )

    def begin_or_end(self, refused: StoreError | None) -> None:
        """Start an offload that had to wait; reports errors to ``done``."""
        try:
            if refused is not None:
                raise refused
            self.begin()
        except StoreError as error:
            self._end(error)

    def cancel(self, why: str) -> None:
        """Stop at the next step and delete the partial file."""
        self._is_cancelled = True
        if self._failure is None:
            self._failure = OffloadFailed(why)

    def _suspected(self, error: StoreError | None) -> None:
        if error is not None:
            self._end(error)
        else:
            self._tier.work(self._create, self._created)

    def _created(self, error: Exception | None) -> None:
        if error is not None or self._failure is not None:
            self._fail(error)
        else:
            self._pump()

    def _pump(self) -> None:
        """Read more pieces, as far as the worker keeps up."""
        try:
            while not self._is_reading and self._waiting < PIECES_WAITING_MAX and not self._failure:
                left = self.info.entries - self._next
                if not left:
                    if not self._waiting:
                        self._waiting = 1
                        self._tier.work(self._finish, self._finished)
                    return
                self._is_reading = True
                count = min(left, PIECE_ENTRIES)
                if self._asks_for_positions(count):
                    continue
                found = self._tier.local.fetch(
                    self.info.ledger_id, self._next, entries_max=count, bytes_max=PIECE_BYTES,
                    ahead=ReadAhead(count, PIECE_BYTES), done=self._fetched,
                )  # fmt: skip
                if found is not None:
                    self._take(found)
        except StoreBusy:
            self._tier.work(lambda: self._tier.pause(BUSY_PAUSE_SECONDS), self._paused)
            return
        except StoreError as error:
            self._failure = self._failure or error
            self._is_reading = False
        if self._failure is not None and not self._waiting and not self._is_reading:
            self._fail(None)

    def _asks_for_positions(self, count: int) -> bool:
        making = self._making
        if making is None or making.shares_lock or not self._by_positions:
            return False
        return self._tier.positions(
            self.info.ledger_id, self._next, count, PIECE_BYTES, self._positions_found
        )

    def _positions_found(self, positions: EntryChunk | None) -> None:
        self._is_reading = False
        if positions is None:
            self._by_positions = False
        else:
            self._give(len(positions), positions)
        self._pump()

    def _paused(self, _: Exception | None) -> None:
        self._is_reading = False
        self._pump()

    def _fetched(self, entries: list[bytes], error: StoreError | None) -> None:
        if isinstance(error, StoreBusy):
            self._tier.work(lambda: self._tier.pause(BUSY_PAUSE_SECONDS), self._paused)
            return
        if error is not None:
            self._failure = self._failure or error
            self._is_reading = False
        else:
            self._take(entries)
        self._pump()

    def _take(self, entries: list[bytes]) -> None:
        self._is_reading = False
        if not entries:
            self._failure = self._failure or OffloadFailed(
                f"ledger {self.info.ledger_id} has no entry {self._next}: it is being deleted"
            )
            return
        self._give(len(entries), entries)

    def _give(self, count: int, piece: list[bytes] | EntryChunk) -> None:
        """Submit the next entries, or their positions, to the worker."""
        self._next += count
        self._waiting += 1
        published, self._published = self._published, self._tier.local.stats().appended_bytes
        is_published = self._published - published > PUBLISHING_BYTES_MIN
        making = self._making
        assert making is not None

        def add() -> None:
            hurries = self._tier.rests.hurries
            if isinstance(piece, EntryChunk):
                worked = making.add_positions(self.info.ledger_id, piece, hurries=hurries)
            else:
                worked = making.add(piece, hurries=hurries)
            costs = making.shares_lock or (is_published and not isinstance(piece, EntryChunk))
            pause = count * ENTRY_PAUSE_SECONDS if costs else 0.0
            self._tier.pause(pause)
            if is_published:
                between = SHARING_REST_TIMES if making.shares_processor else APART_REST_TIMES
                times = rest_times(self._tier.load(), between)
                self._tier.rests.rest(min(worked * times, REST_SECONDS_MAX) - pause)

        self._tier.work(add, self._added)

    def _added(self, error: Exception | None) -> None:
        self._waiting -= 1
        self._failure = self._failure or error
        self._pump()

    def _finished(self, error: Exception | None) -> None:
        self._waiting = 0
        if error is not None or self._failure is not None:
            self._fail(error)
            return
        assert self._written is not None
        summary = self._written.summary
        record = self.record = OffloadedLedger(
            self.info.ledger_id, self._offset, self.file, self._written.size, self._written.crc, self.uuid,
            summary.entries, summary.messages, summary.closed, summary.entry_bytes, summary.publish,
            summary.event, self._now_ms, summary.plain, self._written.tail,
        )  # fmt: skip
        self.bytes_written = self._written.size
        try:
            listing = self._tier.listing(self.owner)
        except StoreError as unread:
            self._fail(unread)
            return
        self._tier.work(listing, lambda problem: self._listed(problem, record))

    def _listed(self, error: Exception | None, record: OffloadedLedger) -> None:
        if error is not None or self._failure is not None:
            self._fail(error)
            return
        try:
            if self._tier.local.owner_of(self.info.ledger_id) != self.owner:
                raise OffloadFailed(f"ledger {self.info.ledger_id} was deleted meanwhile")
            self._tier.catalog.put(self.owner, record, self._end)
        except StoreError as refused:
            self._fail(refused)

    def _fail(self, error: Exception | None) -> None:
        self._failure = self._failure or error
        making, self._making = self._making, None
        suspect = OrphanCandidate(self.owner, self.info.ledger_id, self.uuid, self.file)

        def abandoned(_: Exception | None) -> None:
            self._tier.remove_files(self.owner, [suspect])
            cause = self._failure
            assert cause is not None
            if isinstance(cause, WorkerLost) and not self._is_second and not self._is_cancelled:
                logger.warning("%s; retrying with a new file", _said(self.info.ledger_id, self._tier, cause))
                self._is_second = True
                self._start()
                self.begin_or_end(None)
                return
            if isinstance(cause, EntriesUnreadable) and not self._is_cancelled:
                logger.info("ledger %d is read by the store itself: %s", self.info.ledger_id, cause)
                self._by_positions = False
                self._start()
                self.begin_or_end(None)
                return
            self._end(
                cause
                if isinstance(cause, StoreError)
                else OffloadFailed(_said(self.info.ledger_id, self._tier, cause))
            )

        self._tier.work(making.abandon if making is not None else lambda: None, abandoned)

    def _end(self, error: StoreError | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(error)

    # --- the worker's thread ---
    def _create(self) -> None:
        tier = self._tier
        tier.claim.check()
        found = manifest.replaceable_head(tier.storage, self.owner)
        if found is not None and (found.store, found.topic) != (tier.store_name, self.owner):
            raise OffloadFailed(
                f"{tier.storage.location}/{folder_of(self.owner)} holds ledgers of {found.topic} from "
                f"another store ({found.store}): each store needs an offload location of its own"
            )
        self._making = tier.makers.begin(
            OffloadRequest(self.path, self.owner, _partition(self.owner), self.info.ledger_id, self.uuid),
            self.info.entries,
            self.info.size_bytes,
        )

    def _finish(self) -> None:
        assert self._making is not None
        self._written = self._making.finish()
        self._making = None
        if self._written.summary.entries != self.info.entries:
            raise OffloadFailed(
                f"ledger {self.info.ledger_id} has {self.info.entries} entries, "
                f"{self._written.summary.entries} were written"
            )
        source = self._tier.storage.open(self.path)
        try:
            if LedgerFile(source).summary != self._written.summary:
                raise OffloadFailed(f"{self.path} does not say what was written to it")
        finally:
            source.close()


def _said(ledger_id: int, tier: OffloadingTier, error: Exception) -> str:
    return f"ledger {ledger_id} cannot be offloaded to {tier.storage.location}: {error}"


def _partition(topic: str) -> int:
    _, separator, number = topic.rpartition("-partition-")
    return int(number) if separator and number.isascii() and number.isdecimal() else -1
