"""Offload of a ledger: from its entries in the store to a complete file that manifest and store record.

Each step is durable before the next one begins:

1. a suspicion in the store's keys that names the file (`geminga.ledger.tier.catalog`);
2. the file, written, synced and opened again;
3. the manifest that names it;
4. the record in the store's keys, which replaces the suspicion.

The ledger's own entries stay until they are deleted later. A crash between two steps leaves the suspicion,
by which the file is found and deleted; an error deletes the file at once.

The entries are read by the store, in pieces, at a limited rate; all other steps run on the worker's thread,
or in a worker process (`geminga.ledger.tier.offload_worker`).
"""

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator
from functools import partial
from uuid import uuid4

from geminga.errors import StoreBusy, StoreError
from geminga.ledger.api import Done, ReadAhead, StoredLedger
from geminga.ledger.steps import Begin, follow
from geminga.ledger.store import FileStore
from geminga.ledger.tier.catalog import OrphanCandidate
from geminga.ledger.tier.files import TierFiles
from geminga.ledger.tier.offload_worker import OffloadWriters
from geminga.ledger.tier.writing import OffloadRequest, OffloadWriting
from geminga.offload import manifest
from geminga.offload.file import WrittenFile
from geminga.offload.manifest import OffloadedLedger
from geminga.offload.storage import folder_of, ledger_file

logger = logging.getLogger("geminga.ledger")

PIECE_ENTRIES = 4096
PIECE_BYTES = 2 * 1024 * 1024
"""Limit of one read from the store."""
BUSY_PAUSE_SECONDS = 0.1
RATE_CHECKED_SECONDS = 1.0
"""Longest wait for the rate limit, which may be lifted meanwhile."""


class OffloadFailed(StoreError):
    """A ledger could not be offloaded; its entries stay in the store."""


def fetch_piece(
    store: FileStore,
    ledger_id: int,
    first: int,
    entries_max: int,
    piece: list[bytes],
    resume: Callable[[Exception | None], None],
) -> None:
    """Read the next entries of a ledger into ``piece``, as a step of `geminga.ledger.steps.follow`."""

    def taken(entries: list[bytes], error: StoreError | None) -> None:
        piece.extend(entries)
        resume(error)

    found = store.fetch(
        ledger_id, first, entries_max=entries_max, bytes_max=PIECE_BYTES,
        ahead=ReadAhead(entries_max, PIECE_BYTES), done=taken,
    )  # fmt: skip
    if found is not None:
        taken(found, None)


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
        self._done = done
        self.uuid = uuid4().hex
        self.file = ledger_file(self.info.ledger_id, self.uuid)
        self.path = f"{folder_of(self.owner)}/{self.file}"
        self._suspect = OrphanCandidate(self.owner, self.info.ledger_id, self.uuid, self.file)
        self._next = 0
        self._cancelled: OffloadFailed | None = None
        self._making: OffloadWriting | None = None
        self._written: WrittenFile | None = None

    # --- the owner's thread ---
    def begin(self) -> None:
        """Start the offload. Raises `StoreError`."""
        self._files.catalog.suspect(self._suspect, lambda error: follow(self._run(error)))
        self._files.pending[self.uuid] = self.owner, None

    def cancel(self, why: str) -> None:
        """Stop at the next step and delete the partial file."""
        self._cancelled = self._cancelled or OffloadFailed(why)

    def _run(self, error: Exception | None) -> Generator[Begin, None, None]:
        """Offload the ledger, after the suspicion was stored or not: ``error``. Each step is yielded, and an
        error of it is raised here."""
        files = self._files
        try:
            if error := error or self._cancelled:
                raise error
            yield from self._step(partial(files.work, self._create))
            while self._next < self.info.entries:
                yield from self._move_piece()
            yield from self._step(partial(files.work, self._finish))
            record = self._record()
            self.bytes_written = record.file_bytes
            files.pending[self.uuid] = self.owner, record
            yield from self._step(partial(files.work, files.listing(self.owner)))
            if files.local.owner_of(self.info.ledger_id) != self.owner:
                raise OffloadFailed(f"ledger {self.info.ledger_id} was deleted meanwhile")
            yield partial(files.catalog.put, self.owner, record)  # too late to cancel
        except Exception as failure:  # also those of a storage library
            with contextlib.suppress(Exception):
                yield partial(files.work, self._abandon)
            del files.pending[self.uuid]
            files.remove_files(self.owner, [self._suspect])
            if not isinstance(failure, StoreError):
                ledger_id, location = self.info.ledger_id, files.storage.location
                failure = OffloadFailed(f"ledger {ledger_id} cannot be offloaded to {location}: {failure}")
            self._done(failure)
        else:
            del files.pending[self.uuid]
            self._done(None)

    def _step(self, begin: Begin) -> Iterator[Begin]:
        """Run a step that the offload may be cancelled in."""
        yield begin
        if self._cancelled is not None:
            raise self._cancelled

    def _move_piece(self) -> Iterator[Begin]:
        """Read the next entries, at the limited rate, and add them to the file."""
        while wait := self._writers.rate.wait_seconds():
            yield from self._step(self._pause(min(wait, RATE_CHECKED_SECONDS)))
        count, piece = min(self.info.entries - self._next, PIECE_ENTRIES), list[bytes]()
        try:
            fetch = partial(fetch_piece, self._files.local, self.info.ledger_id, self._next, count, piece)
            yield from self._step(fetch)
        except StoreBusy:
            yield from self._step(self._pause(BUSY_PAUSE_SECONDS))
            return
        if not piece:
            raise OffloadFailed(
                f"ledger {self.info.ledger_id} has no entry {self._next}: it is being deleted"
            )
        self._next += len(piece)
        self._writers.rate.take(sum(map(len, piece)))
        assert self._making is not None
        yield from self._step(partial(self._files.work, partial(self._making.add, piece)))

    def _pause(self, seconds: float) -> Begin:
        return lambda resume: self._files.call_in(seconds, partial(resume, None))

    def _record(self) -> OffloadedLedger:
        assert self._written is not None
        summary = self._written.summary
        return OffloadedLedger(
            self.info.ledger_id, self._offset, self.file, self._written.size, self._written.crc, self.uuid,
            summary.entries, summary.messages, summary.closed, summary.entry_bytes, summary.publish,
            summary.event, self._now_ms, summary.plain, self._written.tail,
        )  # fmt: skip

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

    def _abandon(self) -> None:
        if self._making is not None:
            self._making.abandon()

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
