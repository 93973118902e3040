"""Offloading: which closed ledgers of a topic go to cheap storage, and when their copies here go.

The store's tier does the work and keeps it safe (`geminga.ledger.tiered`); this says what and when. A ledger
goes when the topic's newer ledgers together reach the threshold in bytes, when all of it is older than the
threshold in time, or when an administrator says up to where. The copy here goes when it has been offloaded
for the deletion lag. One ledger of a broker is on its way at a time: publishing comes first.
"""

from __future__ import annotations

import logging
from collections import deque
from enum import StrEnum
from typing import Final, Protocol

from geminga.broker.managed_ledger import ManagedLedger, Segment
from geminga.broker.rules.policies import Policies
from geminga.broker.scheduler import Scheduler
from geminga.errors import StoreError
from geminga.ledger.api import EntryStore, Tier, TieredLedger

log = logging.getLogger("geminga.broker")

FAILED_RETRY_MS: Final = 60_000
"""What failed is tried again by itself after this: offloading, or letting go of what is offloaded."""
_NEVER: Final = 1 << 62


class OffloadStatus(StrEnum):
    """As ``pulsar-admin topics offload-status`` has it."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class AlreadyOffloading(Exception):
    """The topic is being offloaded."""

    def __init__(self) -> None:
        super().__init__("Offload already in progress")


class OffloadNotConfigured(Exception):
    """The broker was started without cheap storage."""

    def __init__(self) -> None:
        super().__init__(
            "This broker has nowhere to offload to: start it with --offload-location "
            "(a folder, or a URL such as s3://bucket/path)"
        )


class OffloadedTopic(Protocol):
    """What is offloaded."""

    text: str
    scheduler: Scheduler
    policies: Policies
    ledger: ManagedLedger
    offload: Offload | None

    @property
    def store(self) -> EntryStore: ...

    @property
    def offloads(self) -> OffloadQueue: ...

    def cover(self, segment: Segment) -> None:
        """Write down what only a ledger's entries say: they are far away soon. Raises `StoreError`."""

    def touch(self) -> None: ...


class OffloadQueue:
    """Who is on its way, and who waits: one at a time."""

    def __init__(self) -> None:
        self._waiting: deque[Offload] = deque()
        self._running: Offload | None = None

    def enter(self, offload: Offload) -> None:
        self._waiting.append(offload)
        self._next()

    def leave(self, offload: Offload) -> None:
        if self._running is offload:
            self._running = None
        elif offload in self._waiting:
            self._waiting.remove(offload)
        self._next()

    def _next(self) -> None:
        if self._running is None and self._waiting:
            self._running = self._waiting.popleft()
            self._running.begin()


class Offload:
    """What is offloaded of a topic, and the run that may be going on. Times are milliseconds; 0 is never."""

    def __init__(self, topic: OffloadedTopic, tier: Tier) -> None:
        self.topic = topic
        self.tier = tier
        self.status = OffloadStatus.NOT_RUN
        self.last_error = ""
        self.last_ledger = 0
        self.succeeded_ms = self.failed_ms = 0
        self._offloads_from_ms = self._drops_from_ms = 0
        """When they are tried again; 0 where they have not failed since they were last tried."""
        self._records: dict[int, TieredLedger] | None = None
        self._here: set[int] = set()
        self._queue: deque[tuple[int, bool]] = deque()
        """(ledger, whether it goes; else what is here of it does), in the order of the work."""
        self._done: set[bool] = set()
        """Which of both has been done since something is on its way."""
        self._went_wrong: bool | None = None
        """Which of both the status tells the error of."""
        self._is_asked_for = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"Offload({self.topic.text!r})"

    # --- what there is ---
    @property
    def records(self) -> dict[int, TieredLedger]:
        """What is offloaded, by ledger; read when it is first asked for."""
        if self._records is None:
            owner = self.topic.text
            self._records = {each.ledger: each for each in self.tier.offloaded(owner)}
            self._here = self.tier.local_ledgers(owner) & self._records.keys()
        return self._records

    def has(self, ledger_id: int) -> bool:
        return ledger_id in self.records

    def is_here(self, ledger_id: int) -> bool:
        """Whether an offloaded ledger has a copy here."""
        return self.has(ledger_id) and ledger_id in self._here

    @property
    def is_borrowed(self) -> bool:
        """Whether the files are another store's: what is here is not to go for them."""
        return bool(self.tier.borrowed)

    @property
    def size_bytes(self) -> int:
        """What the offloaded ledgers' entries take, as the topic counts them."""
        ledger = self.topic.ledger
        return sum(
            each.entry_bytes for each in self.records.values() if ledger.segment(each.ledger) is not None
        )

    @property
    def is_running(self) -> bool:
        return bool(self._queue)

    def deleted(self, ledgers: list[int]) -> None:
        """Ledgers were deleted, here and there."""
        if self._records is not None:
            for each in ledgers:
                self._records.pop(each, None)
                self._here.discard(each)

    # --- what is to be done ---
    def _candidates(self) -> list[Segment]:
        """Ledgers that nothing is appended to any more and that are here alone, the oldest first."""
        ledger = self.topic.ledger
        return [
            each
            for each in ledger.segments
            if each.entries
            and not ledger.is_open(each)
            and each.end <= ledger.confirmed
            and each.ledger_id not in self.records
            and not _is_damaged(ledger, each)
        ]

    def _wanted(self) -> list[int]:
        """The ledgers that the thresholds want gone."""
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
        """The offloaded ledgers whose copies here have been kept for long enough."""
        lag_ms = self.topic.policies.offload_deletion_lag_ms
        if lag_ms < 0:
            return []
        until_ms = self.topic.scheduler.now_ms - lag_ms
        records = self.records
        return sorted(each for each in self._here if records[each].offloaded_ms <= until_ms)

    @property
    def due_ms(self) -> int:
        """When something is to be done if nothing happens until then."""
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
            offload = 0  # what failed was due, and nothing may come that tells so again
        return min(max(drop, self._drops_from_ms), max(offload, self._offloads_from_ms))

    @property
    def first_unoffloaded(self) -> tuple[int, int]:
        """The first position that is not offloaded; (-1, -1) for none."""
        for segment in self.topic.ledger.segments:
            if segment.ledger_id not in self.records:
                return segment.ledger_id, 0
        return -1, -1

    # --- doing it ---
    def start(self, before_ledger: int) -> None:
        """Offload the ledgers before one, as an administrator wants. Raises `AlreadyOffloading`."""
        if self.is_running and self._is_asked_for:
            raise AlreadyOffloading
        ids = [each.ledger_id for each in self._candidates() if each.ledger_id < before_ledger]
        self._is_asked_for = True
        self.status, self.last_error = OffloadStatus.RUNNING, ""
        if not ids and not self.is_running:
            self._end()
            return
        self._add([(each, True) for each in ids])

    def check(self) -> None:
        """Begin what the policies want by now."""
        if self.is_running or self.tier.borrowed:
            return  # which the store has said; a copy keeps what it has
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
        """Room is short: let the copy here go at once, if there is another; whether that is so."""
        if not self.is_here(ledger_id) or self.is_borrowed:
            return False
        self._add([(ledger_id, False)])
        return True

    def _add(self, work: list[tuple[int, bool]]) -> None:
        was_running = self.is_running
        self._queue.extend(each for each in work if each not in self._queue)
        if not was_running:
            self.topic.offloads.enter(self)

    def begin(self) -> None:
        """Its turn has come."""
        while self._queue and not self._is_over:
            ledger_id, is_going = self._queue[0]
            topic = self.topic
            try:
                if is_going:
                    segment = topic.ledger.segment(ledger_id)
                    if segment is not None and not self.has(ledger_id):
                        self.tier.offload(
                            topic.text,
                            ledger_id,
                            topic.scheduler.now_ms,
                            self._offloaded,
                            offset=segment.base,
                        )
                        return
                elif ledger_id in self._here:
                    segment = topic.ledger.segment(ledger_id)
                    if segment is not None:
                        topic.cover(segment)
                    self.tier.drop_local(topic.text, ledger_id, self._dropped)
                    return
            except StoreError as error:
                self._fail(error, is_going)
                return
            self._queue.popleft()
        self._end()

    def _offloaded(self, error: StoreError | None) -> None:
        self.topic.scheduler.isolated("store", self, self._went, error, True)

    def _dropped(self, error: StoreError | None) -> None:
        self.topic.scheduler.isolated("store", self, self._went, error, False)

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
            self._records = None  # read anew when it can be
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
        """What failed waits. A file that is not what was written is made anew, which waits too; to let go of
        other ledgers only takes reading theirs, whatever keeps new files from being written."""
        log.error("%r failed: %s", self, error)
        self.failed_ms, self.last_error = self.topic.scheduler.now_ms, str(error)
        self.status, self._went_wrong = OffloadStatus.ERROR, is_going
        self._offloads_from_ms = self.failed_ms + FAILED_RETRY_MS
        if not is_going:
            self._drops_from_ms = self._offloads_from_ms
        self._ended()

    def _end(self) -> None:
        is_mended = self._went_wrong is None or self._went_wrong in self._done
        if self._is_asked_for or (self.status is not OffloadStatus.NOT_RUN and is_mended):
            self.status, self.last_error, self._went_wrong = OffloadStatus.SUCCESS, "", None
        self._ended()

    def _ended(self) -> None:
        self._queue.clear()
        self._done.clear()
        self._is_asked_for = False
        self.topic.offloads.leave(self)
        self.topic.touch()
        try:
            self.tier.sweep()
        except StoreError as stopped:
            log.warning("%r: leftover files are searched for later: %s", self, stopped)
        if not self._is_over:
            # What was just offloaded may be unneeded here at once, also where the next ledger could not go.
            self.topic.scheduler.after(0.0, self._check_again, self)

    def _check_again(self) -> None:
        if not self._is_over:
            self.check()

    def leave(self, why: str) -> None:
        """The topic goes, or leaves memory: what is on its way is given up."""
        self._is_over = True
        if self._queue:
            self._queue.clear()
            self.tier.cancel(self.topic.text, why)
            self.topic.offloads.leave(self)


def _is_damaged(ledger: ManagedLedger, segment: Segment) -> bool:
    return any(start < segment.end and stop > segment.base for start, stop in ledger.damaged)


def offload_of(topic: OffloadedTopic) -> Offload | None:
    """What a topic that is loaded begins with; None where the store has no tier."""
    tier = topic.store.tier
    return None if tier is None else Offload(topic, tier)


def is_running(topic: OffloadedTopic) -> bool:
    """Whether something of the topic is on its way."""
    return topic.offload is not None and topic.offload.is_running


def forget(topic: OffloadedTopic, count: int) -> None:
    """So many of the oldest ledgers are deleted, here and there."""
    if topic.offload is not None:
        topic.offload.deleted([each.ledger_id for each in topic.ledger.segments[:count]])


def leave(topic: OffloadedTopic, why: str) -> None:
    """The topic goes, or leaves memory."""
    if topic.offload is not None:
        topic.offload.leave(why)


def of(topic: OffloadedTopic) -> Offload:
    """The topic's; raises `OffloadNotConfigured`."""
    if topic.offload is None:
        raise OffloadNotConfigured
    return topic.offload


def check(topic: OffloadedTopic) -> None:
    """Offload, and let copies go, as the policies want."""
    if topic.offload is not None:
        topic.offload.check()
