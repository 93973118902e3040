"""Offloading: choice of the closed ledgers that are moved to offload storage, and deletion of local copies.

The store's tier does the work and keeps it safe (`geminga.ledger.tiered`); this module decides when. A ledger
is offloaded when the topic's newer ledgers together reach the threshold in bytes, when all of it is older
than the threshold in time, or on an administrator's request. The local copy is deleted the deletion lag after
that. A broker offloads one ledger at a time, because publishing has priority.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import Final, Protocol

from geminga.broker.entries.managed_ledger import ManagedLedger, Segment
from geminga.broker.runtime.background_jobs import JobStatus
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics.delivery_expiry import DeliveryExpiry
from geminga.broker.topics.topic import StoredTopic
from geminga.errors import StoreError
from geminga.ledger.api import Tier
from geminga.offload.manifest import OffloadedLedger
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.broker")

FAILED_RETRY_MS: Final = 60_000
"""Delay after which failed offloads and deletions of local copies are retried."""
_NEVER: Final = 1 << 62


class OffloadedTopic(StoredTopic, Protocol):
    """Interface of a topic for offloading."""

    offload: Offload | None
    delivery_expiry: DeliveryExpiry | None

    def cover(self, segment: Segment) -> None:
        """Store what only a ledger's entries contain, before they are remote. Raises `StoreError`."""


class Offload:
    """Offloaded ledgers of a topic, and the run in progress. Times are milliseconds; 0 is never."""

    def __init__(self, topic: OffloadedTopic, tier: Tier) -> None:
        self.topic = topic
        self.tier = tier
        self.status = JobStatus.NOT_RUN
        self.last_error = ""
        self.last_ledger = 0
        self.succeeded_ms = self.failed_ms = 0
        self._offloads_from_ms = self._drops_from_ms = 0
        """Times of the next tries; 0 if the last try did not fail."""
        self._records: dict[int, OffloadedLedger] | None = None
        self._here: set[int] = set()
        self._queue: deque[tuple[int, bool]] = deque()
        """(ledger, whether to offload it or to delete its local copy), in the order of the work."""
        self._done: set[bool] = set()
        """Kinds of work completed in this run."""
        self._went_wrong: bool | None = None
        """Kind of work whose error the status shows."""
        self._is_asked_for = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"Offload({self.topic.text!r})"

    # --- state ---
    @property
    def records(self) -> dict[int, OffloadedLedger]:
        """Offloaded ledgers by id; read at the first use."""
        if self._records is None:
            owner = self.topic.text
            self._records = {each.ledger: each for each in self.tier.offloaded(owner)}
            self._here = self.tier.local_ledgers(owner) & self._records.keys()
        return self._records

    def has(self, ledger_id: int) -> bool:
        return ledger_id in self.records

    def is_here(self, ledger_id: int) -> bool:
        """Return whether an offloaded ledger has a local copy."""
        return self.has(ledger_id) and ledger_id in self._here

    @property
    def is_borrowed(self) -> bool:
        """Whether the files are another store's: local copies are then kept."""
        return bool(self.tier.borrowed)

    @property
    def size_bytes(self) -> int:
        """Size of the offloaded ledgers' entries, as the topic counts it."""
        ledger = self.topic.ledger
        return sum(
            each.entry_bytes for each in self.records.values() if ledger.segment(each.ledger) is not None
        )

    @property
    def is_running(self) -> bool:
        return bool(self._queue)

    def deleted(self, ledgers: list[int]) -> None:
        """Forget ledgers that were deleted, locally and in offload storage."""
        if self._records is not None:
            for each in ledgers:
                self._records.pop(each, None)
                self._here.discard(each)

    # --- choice of ledgers ---
    def _candidates(self) -> list[Segment]:
        """Return the closed ledgers that are not offloaded, the oldest first."""
        ledger = self.topic.ledger
        return [
            each
            for each in ledger.segments
            if each.entries
            and not ledger.is_open(each)
            and each.end <= ledger.confirmed
            and each.ledger_id not in self.records
            and not _is_damaged(ledger, each)
            and (ledger.aborted is None or ledger.aborted.next_present(each.base, each.end) == each.end)
        ]

    def _wanted(self) -> list[int]:
        """Return the ledgers to offload by the thresholds."""
        policies, ledger, now_ms = self.topic.policies, self.topic.ledger, self.topic.scheduler.now_ms
        if policies.offload_threshold_bytes < 0 and policies.offload_threshold_seconds < 0:
            return []
        before_ms = now_ms - policies.offload_threshold_seconds * 1000
        newer, wanted = 0, []
        movable = {each.ledger_id for each in self._candidates()}
        for index in range(len(ledger.segments) - 1, -1, -1):
            segment = ledger.segments[index]
            too_large = 0 <= policies.offload_threshold_bytes <= newer
            too_old = policies.offload_threshold_seconds >= 0 and ledger.written_ms(index) <= before_ms
            if segment.ledger_id in movable and (too_large or too_old):
                wanted.append(segment.ledger_id)
            newer += segment.size_bytes
        return wanted[::-1]

    def _unneeded_here(self) -> list[int]:
        """Return the offloaded ledgers whose local copies are older than the deletion lag."""
        lag_ms = self.topic.policies.offload_deletion_lag_ms
        if lag_ms < 0:
            return []
        until_ms = self.topic.scheduler.now_ms - lag_ms
        records = self.records
        return sorted(each for each in self._here if records[each].offloaded_ms <= until_ms)

    @property
    def due_ms(self) -> int:
        """Return when work is due if nothing happens until then."""
        if self.tier.borrowed:
            return _NEVER
        policies, ledger, records = self.topic.policies, self.topic.ledger, self.records
        drop = offload = _NEVER
        if self._here and policies.offload_deletion_lag_ms >= 0:
            drop = min(records[each].offloaded_ms for each in self._here) + policies.offload_deletion_lag_ms
        if policies.offload_threshold_seconds >= 0:
            for index, segment in enumerate(ledger.segments):
                if segment.ledger_id not in records and not ledger.is_open(segment):
                    offload = ledger.written_ms(index) + policies.offload_threshold_seconds * 1000
                    break
        if self._offloads_from_ms and policies.offload_threshold_bytes >= 0:
            offload = 0  # failed work was due, and perhaps no other event triggers it
        return min(max(drop, self._drops_from_ms), max(offload, self._offloads_from_ms))

    @property
    def first_unoffloaded(self) -> tuple[int, int]:
        """Return the first position that is not offloaded; (-1, -1) if there is no such entry."""
        for segment in self.topic.ledger.segments:
            if segment.ledger_id not in self.records:
                return segment.ledger_id, 0
        return -1, -1

    # --- doing it ---
    def start(self, before_ledger: int) -> None:
        """Offload the ledgers before one on request. Raises `Refused` while a request is running."""
        if self.is_running and self._is_asked_for:
            raise Refused(pb.NotAllowedError, "Offload already in progress")
        ids = [each.ledger_id for each in self._candidates() if each.ledger_id < before_ledger]
        self._is_asked_for = True
        self.status, self.last_error = JobStatus.RUNNING, ""
        if not ids and not self.is_running:
            self._end()
            return
        self._add([(each, True) for each in ids])

    def check(self) -> None:
        """Start the work that is due by the policies."""
        if self._is_over or self.is_running or self.tier.borrowed:
            return  # the store logs that; a copy keeps its files
        now_ms, work = self.topic.scheduler.now_ms, list[tuple[int, bool]]()
        if now_ms >= self._drops_from_ms:
            self._drops_from_ms = 0
            work += [(each, False) for each in self._unneeded_here()]
        if now_ms >= self._offloads_from_ms:
            self._offloads_from_ms = 0
            work += [(each, True) for each in self._wanted()]
        if work:
            self._is_asked_for = False
            self._add(work)

    def give_way(self, ledger_id: int) -> bool:
        """Delete the local copy of an offloaded ledger to free space; return whether there was one."""
        if not self.is_here(ledger_id) or self.is_borrowed:
            return False
        self._add([(ledger_id, False)])
        return True

    def _add(self, work: list[tuple[int, bool]]) -> None:
        was_running = self.is_running
        self._queue.extend(each for each in work if each not in self._queue)
        if not was_running:
            self.topic.services.offloads.enter(self)

    def begin(self) -> None:
        """Start, when the topic is first in the queue."""
        while self._queue and not self._is_over:
            ledger_id, is_going = self._queue[0]
            topic = self.topic
            try:
                if is_going:
                    segment = topic.ledger.segment(ledger_id)
                    if segment is not None and not self.has(ledger_id):
                        now_ms, done = topic.scheduler.now_ms, partial(self._reported, True)
                        self.tier.offload(topic.text, ledger_id, now_ms, done, offset=segment.base)
                        return
                elif ledger_id in self._here:
                    segment = topic.ledger.segment(ledger_id)
                    if segment is not None:
                        topic.cover(segment)
                    self.tier.drop_local(topic.text, ledger_id, partial(self._reported, False))
                    return
            except StoreError as error:
                self._fail(error, is_going)
                return
            self._queue.popleft()
        self._end()

    def _reported(self, is_going: bool, error: StoreError | None) -> None:
        self.topic.scheduler.isolated("store", self, self._went, error, is_going)

    def _went(self, error: StoreError | None, is_going: bool) -> None:
        if self._is_over:
            return
        ledger_id, _ = self._queue[0]
        try:
            record = self.tier.record(ledger_id)
            if record is None:
                self.deleted([ledger_id])
            else:
                self.records[ledger_id] = record
                if is_going or error is not None:
                    self._here.add(ledger_id)
                else:
                    self._here.discard(ledger_id)
        except StoreError as unread:
            self._records = None  # read again later
            self._fail(error or unread, is_going)
            return
        if error is not None and self.topic.ledger.segment(ledger_id) is not None:
            self._fail(error, is_going)
            return
        self._done.add(is_going)
        if error is None and is_going:
            self._offloads_from_ms = 0
            self.last_ledger = ledger_id
            self.succeeded_ms = self.topic.scheduler.now_ms
            log.info("%r: ledger %d offloaded to %s", self, ledger_id, self.tier.location)
        self._queue.popleft()
        self.begin()

    def _fail(self, error: StoreError, is_going: bool) -> None:
        """Delay work after a failure. A file with wrong contents is written again after the same delay;
        deleting local copies of other ledgers continues, because it does not write files."""
        log.error("%r failed: %s", self, error)
        self.failed_ms, self.last_error = self.topic.scheduler.now_ms, str(error)
        self.status, self._went_wrong = JobStatus.ERROR, is_going
        self._offloads_from_ms = self.failed_ms + FAILED_RETRY_MS
        if not is_going:
            self._drops_from_ms = self._offloads_from_ms
        self._ended()

    def _end(self) -> None:
        is_mended = self._went_wrong is None or self._went_wrong in self._done
        if self._is_asked_for or (self.status is not JobStatus.NOT_RUN and is_mended):
            self.status, self.last_error, self._went_wrong = JobStatus.SUCCESS, "", None
        self._ended()

    def _ended(self) -> None:
        self._queue.clear()
        self._done.clear()
        self._is_asked_for = False
        self.topic.services.offloads.leave(self)
        self.topic.touch()
        try:
            self.tier.sweep()
        except StoreError as stopped:
            log.warning("%r: leftover files are searched for later: %s", self, stopped)
        # A just offloaded ledger may be unneeded here at once, also if the next one failed.
        self.topic.scheduler.after(0.0, self.check, self)

    def leave(self, why: str) -> None:
        """Cancel the work of a topic that is deleted or leaves memory."""
        self._is_over = True
        if self._queue:
            self._queue.clear()
            self.tier.cancel(self.topic.text, why)
            self.topic.services.offloads.leave(self)


def _is_damaged(ledger: ManagedLedger, segment: Segment) -> bool:
    return any(start < segment.end and stop > segment.base for start, stop in ledger.damaged)


def check(topic: OffloadedTopic) -> None:
    """Start offloads and deletions of local copies that the policies want."""
    if topic.offload is not None:
        topic.offload.check()
