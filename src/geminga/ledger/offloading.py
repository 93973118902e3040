"""Offload of a ledger: from its entries in the store to a complete file that manifest and store record.

Each step is durable before the next one begins:

1. a suspicion in the store's keys that names the file (`geminga.ledger.tier_catalog`);
2. the file, written, synced and opened again;
3. the manifest that names it;
4. the record in the store's keys, which replaces the suspicion.

The ledger's own entries stay until they are deleted later. A crash between two steps leaves the suspicion,
by which the file is found and deleted; an error deletes the file at once.

The entries are read by the store, in pieces, at a limited rate; all other steps run on the worker's thread,
or in a worker process (`geminga.ledger.offload_worker`).
"""

from __future__ import annotations

import logging
from functools import partial
from uuid import uuid4

from geminga.errors import StoreBusy, StoreError
from geminga.ledger.api import Done, ReadAhead, StoredLedger
from geminga.ledger.offload_worker import OffloadWriters
from geminga.ledger.offload_writing import OffloadRequest, OffloadWriting
from geminga.ledger.tier_catalog import OrphanCandidate
from geminga.ledger.tier_files import TierFiles
from geminga.offload import manifest
from geminga.offload.file import WrittenFile
from geminga.offload.manifest import OffloadedLedger
from geminga.offload.storage import folder_of, ledger_file

logger = logging.getLogger("geminga.ledger")

PIECE_ENTRIES = 4096
PIECE_BYTES = 2 * 1024 * 1024
"""Limit of one read from the store."""
PIECES_WAITING_MAX = 2
"""Most pieces that are read ahead of the worker."""
BUSY_PAUSE_SECONDS = 0.1
RATE_CHECKED_SECONDS = 1.0
"""Longest wait for the rate limit, which may be lifted meanwhile."""


class OffloadFailed(StoreError):
    """A ledger could not be offloaded; its entries stay in the store."""


class Offloading:
    """Pending offload of one ledger. ``done`` is called at its end, from `EntryStore.poll`."""

    def __init__(
        self,
        files: TierFiles,
        writers: OffloadWriters,
        owner: str,
        info: StoredLedger,
        offset: int,
        now_ms: int,
        done: Done,
    ) -> None:
        self.owner = owner
        self.info = info
        self.bytes_written = 0
        self._files = files
        self._writers = writers
        self._offset = offset
        self._now_ms = now_ms
        self._done: Done | None = done
        self.uuid = uuid4().hex
        self.file = ledger_file(self.info.ledger_id, self.uuid)
        self.path = f"{folder_of(self.owner)}/{self.file}"
        self._suspect = OrphanCandidate(self.owner, self.info.ledger_id, self.uuid, self.file)
        self._files.pending[self.uuid] = self.owner, None
        self._next = 0
        self._waiting = 0
        self._is_reading = False
        self._failure: Exception | None = None
        self._making: OffloadWriting | None = None
        self._written: WrittenFile | None = None

    # --- the owner's thread ---
    def begin(self) -> None:
        """Start the offload. Raises `StoreError`."""
        try:
            self._files.catalog.suspect(self._suspect, self._suspected)
        except StoreError:
            del self._files.pending[self.uuid]
            raise

    def cancel(self, why: str) -> None:
        """Stop at the next step and delete the partial file."""
        if self._failure is None:
            self._failure = OffloadFailed(why)

    def _suspected(self, error: StoreError | None) -> None:
        if error is not None:
            self._end(error)
        else:
            self._files.work(self._create, self._created)

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
                        self._files.work(self._finish, self._finished)
                    return
                self._is_reading = True
                wait = self._writers.rate.wait_seconds()
                if wait:
                    self._files.call_in(min(wait, RATE_CHECKED_SECONDS), self._read_on)
                    return
                count = min(left, PIECE_ENTRIES)
                found = self._files.local.fetch(
                    self.info.ledger_id, self._next, entries_max=count, bytes_max=PIECE_BYTES,
                    ahead=ReadAhead(count, PIECE_BYTES), done=self._fetched,
                )  # fmt: skip
                if found is not None:
                    self._take(found)
        except StoreBusy:
            self._files.call_in(BUSY_PAUSE_SECONDS, self._read_on)
            return
        except StoreError as error:
            self._failure = self._failure or error
            self._is_reading = False
        if self._failure is not None and not self._waiting and not self._is_reading:
            self._fail(None)

    def _read_on(self) -> None:
        self._is_reading = False
        self._pump()

    def _fetched(self, entries: list[bytes], error: StoreError | None) -> None:
        if isinstance(error, StoreBusy):
            self._files.call_in(BUSY_PAUSE_SECONDS, self._read_on)
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
        self._next += len(entries)
        self._waiting += 1
        self._writers.rate.take(sum(map(len, entries)))
        assert self._making is not None
        self._files.work(partial(self._making.add, entries), self._added)

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
        record = OffloadedLedger(
            self.info.ledger_id, self._offset, self.file, self._written.size, self._written.crc, self.uuid,
            summary.entries, summary.messages, summary.closed, summary.entry_bytes, summary.publish,
            summary.event, self._now_ms, summary.plain, self._written.tail,
        )  # fmt: skip
        self.bytes_written = self._written.size
        self._files.pending[self.uuid] = self.owner, record
        try:
            listing = self._files.listing(self.owner)
        except StoreError as unread:
            self._fail(unread)
            return
        self._files.work(listing, lambda problem: self._listed(problem, record))

    def _listed(self, error: Exception | None, record: OffloadedLedger) -> None:
        if error is not None or self._failure is not None:
            self._fail(error)
            return
        try:
            if self._files.local.owner_of(self.info.ledger_id) != self.owner:
                raise OffloadFailed(f"ledger {self.info.ledger_id} was deleted meanwhile")
            self._files.catalog.put(self.owner, record, self._end)
        except StoreError as refused:
            self._fail(refused)

    def _fail(self, error: Exception | None) -> None:
        self._failure = self._failure or error
        making, self._making = self._making, None
        self._files.work(making.abandon if making is not None else lambda: None, self._abandoned)

    def _abandoned(self, _: Exception | None) -> None:
        """Delete the file."""
        del self._files.pending[self.uuid]
        self._files.remove_files(self.owner, [self._suspect])
        cause = self._failure
        assert cause is not None
        if not isinstance(cause, StoreError):
            ledger_id, location = self.info.ledger_id, self._files.storage.location
            cause = OffloadFailed(f"ledger {ledger_id} cannot be offloaded to {location}: {cause}")
        self._end(cause)

    def _end(self, error: StoreError | None) -> None:
        self._files.pending.pop(self.uuid, None)
        done, self._done = self._done, None
        if done is not None:
            done(error)

    # --- the worker's thread ---
    def _create(self) -> None:
        files = self._files
        files.claim.check()
        found = manifest.replaceable_head(files.storage, self.owner)
        if found is not None and (found.store, found.topic) != (files.store_name, self.owner):
            raise OffloadFailed(
                f"{files.storage.location}/{folder_of(self.owner)} holds ledgers of {found.topic} from "
                f"another store ({found.store}): each store needs an offload location of its own"
            )
        self._making = self._writers.begin(
            OffloadRequest(self.path, self.owner, _partition(self.owner), self.info.ledger_id, self.uuid)
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


def _partition(topic: str) -> int:
    _, separator, number = topic.rpartition("-partition-")
    return int(number) if separator and number.isascii() and number.isdecimal() else -1
