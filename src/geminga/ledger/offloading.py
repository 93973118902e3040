"""A ledger's way out of the store: from its entries to a file that is complete, listed and recorded.

Each step is durable before the next one begins:

1. a suspicion in the store's keys that names the file (`geminga.ledger.tier_catalog`);
2. the file, written, synced and opened again;
3. the manifest that names it;
4. the record in the store's keys, which takes the suspicion away in the same breath.

The ledger's own entries stay until somebody lets go of them, later. A crash between any two steps leaves a
suspicion, by which the file is found and deleted. So does an error; then it is done at once.

The entries are read on the owner's thread, a piece at a time, and everything else happens on the worker's,
or in another process on its behalf (`geminga.ledger.offload_worker`), which then reads the log, too. When
that process is lost the ledger is begun anew, once: whatever ended it may have meant another one, or will end
the next one, too. What it cannot read the store itself is asked for, which knows what is in the way.
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
"""What is read from the store at once."""
PIECES_WAITING_MAX = 2
"""Pieces that are read ahead of the worker."""
BUSY_PAUSE_SECONDS = 0.1
ENTRY_PAUSE_SECONDS = 20e-6
"""The worker rests so long for each entry that is read here: what it costs is Python, which the owner's
thread needs. Where another process makes the file it only does so while others publish."""
SHARING_REST_TIMES = 3.0, 20.0
"""While others publish, it rests so many times as long as it has worked, where the owner's thread idles, and
where that is busy: who has no room left feels whatever is taken. The worker goes on always, if slowly, and
does not rest where the disk has little room: else what is published fills it, and what is to be offloaded is
what gives way."""
APART_REST_TIMES = 0.0, 10.0
"""The same where another process does the work with the time that nobody else wants. Also that is felt by who
is busy: there is one memory, and a processor that works is not as soon at hand as one that idles."""
IDLE_LOAD, BUSY_LOAD = 0.3, 0.7
"""Parts of its time that the owner's thread wants the processor, for either."""
REST_SECONDS_MAX = 2.0
"""So long at most, for each piece: one that took longer has waited for a slow place, which is not work."""
PUBLISHING_BYTES_MIN = 64 * 1024
"""So much since the last piece is publishing."""


def rest_times(load: float | None, times: tuple[float, float]) -> float:
    """How many times as long as it has worked the worker rests while others publish, by the part of its time
    that the owner's thread wants the processor; between the two of ``times``."""
    idle, busy = times
    if load is None:
        return (idle + busy) / 2
    share = min(1.0, max(0.0, (load - IDLE_LOAD) / (BUSY_LOAD - IDLE_LOAD)))
    return idle + share * (busy - idle)


class OffloadFailed(StoreError):
    """A ledger could not be offloaded; it stays where it is."""


class OffloadingTier(Protocol):
    """What the way out needs of the tiered store."""

    place: OffloadStorage
    catalog: TierCatalog
    store_name: str
    claim: StorageClaim
    makers: OffloadWriters

    @property
    def local(self) -> EntryStore:
        """The store that the ledger is in."""

    def work(self, job: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        """Run a job on the worker's thread, ``then`` on the owner's."""

    def pause(self, seconds: float) -> None:
        """Wait; on the worker's thread."""

    @property
    def rests(self) -> CpuThrottle:
        """The worker's: it hurries while room is short on the disk."""

    def load(self) -> float | None:
        """The part of its time since the last call that the owner's thread wanted the processor, as far as
        that is known; on the worker's thread."""

    def listing(self, owner: str) -> Callable[[], None]:
        """What brings the manifest up to what there is, to be run on the worker's thread."""

    def places(
        self,
        ledger_id: int,
        first: int,
        entries_max: int,
        bytes_max: int,
        done: Callable[[EntryChunk | None], None],
    ) -> bool:
        """Tell ``done`` where entries lie; see `geminga.ledger.store.FileStore.places`."""

    def remove_files(self, owner: str, suspects: list[OrphanCandidate]) -> None:
        """Take files out of the manifest and delete them."""


class Offloading:
    """See the module. ``done`` is told in the end, from `EntryStore.poll`."""

    def __init__(
        self, tier: OffloadingTier, owner: str, info: StoredLedger, offset: int, now_ms: int, done: Done
    ) -> None:
        self.owner = owner
        self.info = info
        self.bytes_written = 0
        self.record: OffloadedLedger | None = None
        """What there is to record, since the file is complete."""
        self._tier = tier
        self._offset = offset
        self._now_ms = now_ms
        self._done: Done | None = done
        self._published = tier.local.stats().appended_bytes
        self._is_cancelled = self._is_second = False
        self._by_places = True
        """Whether another process may read what it is told the places of."""
        self._start()

    def _start(self) -> None:
        """With a file of another name: there is nothing of it yet."""
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
        """Raises `StoreError`."""
        self._tier.catalog.suspect(
            OrphanCandidate(self.owner, self.info.ledger_id, self.uuid, self.file), self._suspected
        )

    def begin_or_end(self, refused: StoreError | None) -> None:
        """The same for one that had to wait."""
        try:
            if refused is not None:
                raise refused
            self.begin()
        except StoreError as error:
            self._end(error)

    def cancel(self, why: str) -> None:
        """Stop at the next step. What was written is deleted."""
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
        """Read on, as far as the worker follows."""
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
                if self._asks_for_places(count):
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

    def _asks_for_places(self, count: int) -> bool:
        making = self._making
        if making is None or making.shares_lock or not self._by_places:
            return False
        return self._tier.places(self.info.ledger_id, self._next, count, PIECE_BYTES, self._placed)

    def _placed(self, places: EntryChunk | None) -> None:
        self._is_reading = False
        if places is None:
            self._by_places = False
        else:
            self._give(len(places), places)
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
        """Have the next entries, or what lies at these places, added."""
        self._next += count
        self._waiting += 1
        published, self._published = self._published, self._tier.local.stats().appended_bytes
        is_published = self._published - published > PUBLISHING_BYTES_MIN
        making = self._making
        assert making is not None

        def add() -> None:
            hurries = self._tier.rests.hurries
            if isinstance(piece, EntryChunk):
                worked = making.add_places(self.info.ledger_id, piece, hurries=hurries)
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
                logger.warning("%s; it is begun anew", _said(self.info.ledger_id, self._tier, cause))
                self._is_second = True
                self._start()
                self.begin_or_end(None)
                return
            if isinstance(cause, EntriesUnreadable) and not self._is_cancelled:
                logger.info("ledger %d is read by the store itself: %s", self.info.ledger_id, cause)
                self._by_places = False
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
        found = manifest.replaceable_head(tier.place, self.owner)
        if found is not None and (found.store, found.topic) != (tier.store_name, self.owner):
            raise OffloadFailed(
                f"{tier.place.location}/{folder_of(self.owner)} holds ledgers of {found.topic} from another "
                f"store ({found.store}): each store needs an offload location of its own"
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
        source = self._tier.place.open(self.path)
        try:
            if LedgerFile(source).summary != self._written.summary:
                raise OffloadFailed(f"{self.path} does not say what was written to it")
        finally:
            source.close()


def _said(ledger_id: int, tier: OffloadingTier, error: Exception) -> str:
    return f"ledger {ledger_id} cannot be offloaded to {tier.place.location}: {error}"


def _partition(topic: str) -> int:
    _, separator, number = topic.rpartition("-partition-")
    return int(number) if separator and number.isascii() and number.isdecimal() else -1
