"""Group commit: the list of pending records, and the thread that writes them.

The owner appends records to ``pending``; the writer takes all of them (up to a limit), writes them as one
group, syncs it, and returns it through ``completed``. Records need no lock: a list's append and the deletion
of its front are atomic, and only the writer takes from the front. The writer waits on a queue only when
nothing is pending, and only then does the owner have to wake it.

`Journal.commit` is one round of the writer without a thread; tests that need every step in order call it
through `geminga.ledger.store.FileStore.poll`.
"""

import contextlib
import logging
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from queue import Empty, SimpleQueue

from geminga.errors import StoreError, StoreStopped
from geminga.ledger.api import Buffer, Done
from geminga.ledger.files.format import RecordKind
from geminga.ledger.files.space import NO_SPACE, RETRY_SECONDS
from geminga.ledger.log.log import Group, LogWriter, Record, SyncFailed

logger = logging.getLogger("geminga.ledger")

_RECORDS_PER_GROUP_MAX = 8192
_data_of = itemgetter(3)
_kind_of = itemgetter(0)


@dataclass(slots=True, eq=False, repr=False)
class FailedRecords:
    """Records that were not written, and the error."""

    records: list[Record]
    error: StoreError


class Journal:
    """Pending records and finished groups, between the owner's thread and the writer's."""

    def __init__(
        self,
        writer: LogWriter,
        *,
        sync: str,
        sync_interval_seconds: float,
        group_bytes_max: int,
        signal: Callable[[], None],
        wrote: Callable[[int], None] = lambda size_bytes: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``wrote`` is called on the writer's thread with the number of bytes added to the log."""
        self.writer = writer
        self.pending: list[Record] = []
        self.completed: deque[Group | FailedRecords] = deque()
        self.idle = False
        self.active = False
        self.checkpoint_pending = False
        self.syncs = 0
        self.sync_seconds_total = 0.0
        self._sync = sync
        self._sync_interval_seconds = sync_interval_seconds
        self._group_bytes_max = group_bytes_max
        self._signal = signal
        self._wrote = wrote
        self._clock = clock or time.monotonic
        self._held: list[Record] = []
        self.full: OSError | None = None
        self._writing = False
        self._synced_at = self._clock()
        self._error: StoreError | None = None
        self._gate: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._thread: threading.Thread | None = None

    # --- the owner's side ---
    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="geminga-store-writer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Call after appending to ``pending`` when ``idle`` is set."""
        self.idle = False
        self._gate.put(None)

    @property
    def busy(self) -> bool:
        """Whether any record waits, is being written, or waits for the owner (checked in this order)."""
        return bool(self.pending or self._held or self.active or self.completed)

    @property
    def will_report(self) -> bool:
        """Whether the owner will be signaled: records are pending, and the disk is not full."""
        # In the order in which a group passes through them.
        return self.full is None and bool(self.pending or self._writing or self.completed)

    def stop(self) -> None:
        """Write the pending records and end the writer's thread."""
        self._stopping = True
        self._gate.put(None)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # --- the writer's side ---
    def commit(self) -> bool:
        """Write one group of pending records; False without pending records, or if the disk is full."""
        self.active = True
        try:
            return self._commit() if self._error is None else self._refuse_pending()
        finally:
            self.active = False

    def _commit(self) -> bool:
        if not (self._held or self.pending):
            return False
        self._writing = True
        batch = self._held or self._take()
        try:
            try:
                group = self.writer.write(batch)
            except OSError as error:
                if error.errno not in NO_SPACE or self._stopping:
                    raise
                self._hold(batch, error)
                self._writing = False
                return False
            if self.full is not None:
                self._release()
            is_marked = RecordKind.CHECKPOINT in group.kinds or RecordKind.DROP_FILE in group.kinds
            if self._sync_is_due() or is_marked:
                # In every `sync` mode: a checkpoint or a file deletion must never be ahead of the log.
                self._sync_now()
        except Exception as error:
            self._fail(error, batch)
        else:
            self.completed.append(group)
            self._wrote(max(group.end - group.position, 0))
        self._writing = False
        self._signal()
        if not self.pending and self._error is None:
            self._note_mark()
        return True

    def _hold(self, batch: list[Record], error: OSError) -> None:
        """Keep a group that the disk is too full for; it and all later records wait."""
        is_news = self.full is None
        self._held, self.full = batch, error
        self._wrote(0)
        if is_news:
            logger.error(
                "no space for the store's log (%s): %d writes wait for it and are not confirmed",
                error, len(batch),
            )  # fmt: skip
            self._signal()

    def _release(self) -> None:
        self._held, self.full = [], None
        logger.warning("the disk has space for the store's log again: pending writes resume")

    def _note_mark(self) -> None:
        try:
            self.writer.note_mark()
        except Exception as error:
            self._fail(error, [])
            self._signal()

    def _sync_is_due(self) -> bool:
        if self._sync == "interval":
            return self._clock() - self._synced_at >= self._sync_interval_seconds
        return self._sync == "always"

    def _take(self) -> list[Record]:
        """Remove the next group's records from ``pending``."""
        pending = self.pending
        batch = pending[:_RECORDS_PER_GROUP_MAX]
        if self.checkpoint_pending:
            for index, kind in enumerate(map(_kind_of, batch)):
                if kind == RecordKind.CHECKPOINT:
                    del batch[index + 1 :]
                    self.checkpoint_pending = False
                    break
        ends = list(accumulate(map(len, map(_data_of, batch))))
        if ends and ends[-1] > self._group_bytes_max:
            cut = max(1, bisect_right(ends, self._group_bytes_max))
            if cut < len(batch):
                if batch[-1][0] == RecordKind.CHECKPOINT:
                    self.checkpoint_pending = True
                del batch[cut:]
        del pending[: len(batch)]
        return batch

    def _sync_now(self) -> None:
        started = time.perf_counter()
        self.writer.sync()
        self.sync_seconds_total += time.perf_counter() - started
        self.syncs += 1
        self._synced_at = self._clock()

    def _fail(self, error: Exception, batch: list[Record]) -> None:
        """Stop writing: after a failed write or sync the content of the disk is unknown."""
        if isinstance(error, SyncFailed) and isinstance(error.__cause__, OSError):
            error = error.__cause__
        self._error = StoreStopped(
            f"the store stopped: writing its log failed ({type(error).__name__}: {error}); "
            "confirmed writes are safe, free space or replace the disk and open the store again"
        )
        self._error.__cause__ = error
        self._held, self.full = [], None
        logger.error("%s", self._error)
        self.completed.append(FailedRecords(batch, self._error))

    def _refuse_pending(self) -> bool:
        assert self._error is not None
        count = len(self.pending)
        if not count:
            return False
        batch = self.pending[:count]
        del self.pending[:count]
        self.completed.append(FailedRecords(batch, self._error))
        self._signal()
        return True

    def _run(self) -> None:
        while True:
            if self.commit():
                continue
            if self._held:
                with contextlib.suppress(Empty):
                    self._gate.get(timeout=RETRY_SECONDS)
                continue
            if self._stopping and not self.pending:
                return
            self.idle = True
            if self.pending:
                self.idle = False
                continue
            self._wait()
            self.idle = False

    def _wait(self) -> None:
        """Sleep until woken; with sync="interval", until the last group's sync is due."""
        due = self._sync == "interval" and self._error is None
        if not due or self.writer.synced_through == self.writer.position:
            self._gate.get()
            return
        rest = self._sync_interval_seconds - (self._clock() - self._synced_at)
        try:
            self._gate.get(timeout=max(0.0, rest))
        except Empty:
            try:
                self._sync_now()
                self.writer.note_mark()
            except Exception as error:
                self._fail(error, [])
                self._signal()


class StoreWrites:
    """Passes records to the journal in the order of the calls. Used on the owner's thread."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.pending = journal.pending
        self.failure: StoreError | None = None
        """Error that stopped the store; None while it works."""
        self.refusal: StoreError | None = None
        """Error that refuses entries: ``failure``, or the one that the owner gave."""
        self.is_closed = False

    def check(self) -> None:
        """Raise the error that stopped the store."""
        if self.failure is not None:
            raise self.failure

    def submit(self, kind: int, first: int, second: int, data: Buffer, done: Done | None) -> None:
        """Pass on a record; ``done`` is called when it is on the disk, or with the error."""
        self.pending.append((kind, first, second, data, done))
        if self.journal.idle:
            self.journal.wake()

    def refuse_entries(self, why: StoreError | None) -> None:
        self.refusal = self.failure or why

    def end(self, failure: StoreError) -> StoreError:
        """Refuse writes from now on, with the first error that ended them; returns that error."""
        self.failure = self.refusal = self.failure or failure
        return self.failure

    def stop(self, failure: StoreError, cause: Exception | None) -> None:
        """Refuse writes from now on because of an error, and log it."""
        if self.failure is None:
            failure.__cause__ = cause
            logger.error("%s", failure)
            self.end(failure)
