"""Common base of dispatchers: they read the next entries, a little at a time.

A dispatcher reads durable open entries from the topic's ledger and writes them to consumers that have permits
and whose connection takes more bytes. `dispatch` is called whenever one of these changes; a dispatcher never
waits and holds no entries, only offsets.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.cursor import Cursor
from geminga.broker.delivery.delivery_times import DeliveryTimes
from geminga.broker.delivery.limits import RateLimit
from geminga.broker.delivery.pending_acks import PendingAcks
from geminga.broker.delivery.ranges import RangeSet
from geminga.broker.entries.compacted_view import CompactedLedger, Position
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.runtime.scheduler import Scheduler, Timer
from geminga.broker.settings import BrokerSettings
from geminga.errors import StoreBusy, StoreError
from geminga.wire.frames import ENTRY_COPY_BYTES_MAX

log = logging.getLogger("geminga.broker")

ENTRIES_PER_READ_MAX = 100
BYTES_PER_READ_MAX = 4 * 1024 * 1024
ENTRIES_PER_CALL_MAX = 500
BYTES_PER_CALL_MAX = 4 * 1024 * 1024
"""Entries and bytes that a dispatcher sends in one call. What one call sends leaves together; so a consumer
with 1,000 permits reads the first half while the second is sent."""
LIMIT_LOOK_SECONDS = 1.0
"""Longest wait of dispatching that a rate limit delays before it tries again."""
LEAVING_SECONDS_MAX = 1.0
"""Longest wait for further consumers to leave before the entries of those that left are redelivered."""
READ_RETRY_SECONDS = 5.0
"""Delay of the next try after the store failed to read ..."""
BUSY_RETRY_SECONDS = 0.1
"""... and after it was only overloaded."""
RUN_FROM = 4
"""Smallest number of entries that are sent with a single write."""
ENTRIES_PER_FETCH_MAX = 1_000
BYTES_PER_FETCH_MAX = 1024 * 1024
"""Bytes that are read from the disk at once, ahead of the consumers' requests."""
FETCHES_MAX = 8
"""Concurrent reads of a topic for one subscription."""


class SubscribedTopic(Protocol):
    """Interface of a topic for subscriptions and dispatchers."""

    text: str
    scheduler: Scheduler
    policies: Policies
    ledger: ManagedLedger
    compacted: CompactedLedger | None
    delivery_times: DeliveryTimes

    @property
    def settings(self) -> BrokerSettings: ...


class DispatchedSubscription(Protocol):
    """Interface of a subscription for dispatchers; they set ``last_consumed_ms``."""

    cursor: Cursor
    pending: PendingAcks | None
    partition: int
    last_consumed_ms: int
    dispatch_limits: tuple[RateLimit, ...]
    start_position: Position | None

    @property
    def topic(self) -> SubscribedTopic: ...


TooOld = Callable[[int], bool]
"""Returns whether the entry at an offset is too old to be redelivered."""


@dataclass(slots=True, eq=False, repr=False)
class RedeliveryRound:
    """Result of one round."""

    messages: int = 0
    given_up: int = 0
    """Entries that are too old and not redelivered."""


class Dispatcher(ABC):
    """Base of all dispatchers, one per subscription type: a read position, and retries of failed reads."""

    read_offset: int
    """Offset of the next entry to read."""

    def __init__(self, subscription: DispatchedSubscription) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.scheduler = subscription.topic.scheduler
        self.cursor: Cursor | PendingAcks = subscription.pending or subscription.cursor
        self.read_offset = self.cursor.next_open(self.cursor.mark)
        self._retry: Timer | None = None
        self._continuation: Timer | None = None
        self._has_left, self._leaving_since = False, 0.0
        self._fetching: dict[int, int] = {}
        self._not_due = RangeSet()
        """Entries that wait for their time: they are not read ahead."""
        self._waits = False
        self._closed = False
        self._dispatching = False
        self._entries_left = 0
        self._bytes_left = 0
        self._unsent = 0
        """Entries that were read in this call but not sent, which rate limits do not count."""

    def _read(self, offset: int, entries_max: int) -> tuple[int, list[bytes]]:
        """Return the next open entries from ``offset`` on, and the offset of the first; empty at the end.

        Also empty while they are read from the disk (`_waits`): dispatching resumes afterwards.
        """
        self._waits = self._retry is not None
        if self._waits:
            return offset, []
        entries_max = min(entries_max, max(1, self._entries_left))
        ledger = self.topic.ledger
        cursor = self.cursor
        while True:
            offset = cursor.next_open(offset)
            stop = cursor.open_run(offset, min(ledger.confirmed, offset + entries_max))
            if offset >= stop:
                return offset, []
            cached = ledger.in_memory(offset, stop, BYTES_PER_READ_MAX)
            if cached:
                return offset, cached
            found = self._fetch(offset, stop)
            if found is None:
                self._waits = True
                return offset, []
            if found:
                return offset, found
            skipped = ledger.skip_gap(offset)
            if skipped == offset:
                return offset, []
            offset = skipped

    @property
    def reading_fails(self) -> bool:
        """Whether the last read of the store failed; it is retried later."""
        return self._retry is not None

    def _fetch(self, offset: int, stop: int) -> list[bytes] | None:
        """Return entries from ``offset`` on; None while the disk or the next try is awaited."""
        ledger = self.topic.ledger
        for start, end in self._fetching.items():
            if start <= offset < end:
                return None
        if len(self._fetching) >= FETCHES_MAX:
            return None
        end = self.cursor.open_run(offset, min(ledger.confirmed, offset + ENTRIES_PER_FETCH_MAX))
        end = max(stop, self._not_due.next_present(offset, end))
        # Between many holes it is cheaper to read acknowledged entries, too, and few delayed ones.
        near = min(ledger.confirmed, offset + ENTRIES_PER_READ_MAX)
        if 2 * self._not_due.bits(offset, near).bit_count() <= near - offset:
            end = max(end, near)
        self._fetching[offset] = end
        try:
            found = ledger.fetch(
                offset,
                stop,
                bytes_max=BYTES_PER_READ_MAX,
                ahead_stop=end,
                ahead_bytes_max=BYTES_PER_FETCH_MAX,
                done=lambda error: self._fetched(offset, error),
            )
        except StoreError as error:
            del self._fetching[offset]
            self._reading_failed(error)
            return None
        except BaseException:
            del self._fetching[offset]
            raise
        if found is not None:
            del self._fetching[offset]
        return found

    def _fetched(self, offset: int, error: StoreError | None) -> None:
        """Resume dispatching: entries from ``offset`` on (-1: of a compacted ledger) are in memory now."""
        self._fetching.pop(offset, None)
        if self._closed:
            return
        if error is not None:
            self._reading_failed(error)
        else:
            self.scheduler.isolated("dispatch", self.subscription, self.dispatch)

    def _reading_failed(self, error: StoreError) -> None:
        def again() -> None:
            self._retry = None
            self.dispatch()

        if self._retry is None:
            seconds = BUSY_RETRY_SECONDS if isinstance(error, StoreBusy) else READ_RETRY_SECONDS
            log.error("%r: reading failed, retrying in %g s: %s", self.subscription, seconds, error)
            self._retry = self.scheduler.after(seconds, again, self.subscription)

    def dispatch(self) -> None:
        """Send the entries that consumers can take now."""
        # Sending may cause a flush, after which the connection may be writable again.
        if self._dispatching:
            return
        entries, size = ENTRIES_PER_CALL_MAX, BYTES_PER_CALL_MAX
        limits = self.subscription.dispatch_limits
        if limits:
            now = self.scheduler.now
            wait = max([limit.check(now) for limit in limits])
            if wait > 0:
                # A limit may be another one soon.
                self._continue_in(min(wait, LIMIT_LOOK_SECONDS))
                return
            for limit in limits:
                entries, size = limit.left(entries, size)
        self._dispatching = True
        self._entries_left, self._bytes_left, self._unsent = entries, size, 0
        try:
            self._dispatch()
            if limits:
                for limit in limits:
                    limit.take(
                        entries - self._entries_left - self._unsent,
                        size - self._bytes_left,
                        self.scheduler.now,
                    )
            if self._exhausted:
                self._continue_in(0.0)
        except Exception:
            # Unsent entries remain, and perhaps no other event triggers dispatching them.
            self._continue_in(READ_RETRY_SECONDS)
            raise
        finally:
            self._dispatching = False

    @property
    def _exhausted(self) -> bool:
        """Return whether this dispatch has sent its maximum of entries or bytes."""
        return self._entries_left <= 0 or self._bytes_left <= 0

    def _send_run(self, consumer: Consumer, offset: int, found: list[bytes], count_max: int) -> int:
        """Send consecutive small entries of one message each with one write, at most ``count_max``; return
        their number: 0 if there are too few."""
        if min(len(found), count_max) < RUN_FROM or self.cursor.batches:
            return 0
        ledger = self.topic.ledger
        segment = ledger.segment_of(offset)
        if segment is None:
            return 0
        count = min(len(found), count_max, segment.end - offset)
        if count >= RUN_FROM:
            count = ledger.counts.singles(offset, offset + count)
        if count < RUN_FROM:
            return 0
        entries = found[:count]
        size = sum(map(len, entries))
        if size > count * ENTRY_COPY_BYTES_MAX:
            return 0
        consumer.send_run(segment.ledger_id, offset - segment.base, entries)
        self.read_offset = offset + count
        self._bytes_left -= size
        return count

    def dispatch_soon(self) -> None:
        """Dispatch soon: entries of consumers that leave together are redelivered together, once."""
        if self._continuation is None:
            self._leaving_since = self.scheduler.now
        self._has_left = True
        self._continue_in(0.0)

    def _continue_in(self, seconds: float) -> None:
        if self._closed:
            return
        if self._continuation is not None:
            if self._continuation.when <= self.scheduler.now + seconds:
                return
            self._continuation.cancel()
        self._continuation = self.scheduler.after(seconds, self._go_on, self.subscription)

    def _go_on(self) -> None:
        self._continuation = None
        had_left, self._has_left = self._has_left, False
        if had_left and self.scheduler.now - self._leaving_since < LEAVING_SECONDS_MAX:
            self._continue_in(0.0)
        else:
            self.dispatch()

    # --- each type of subscription ---
    def acknowledged(self) -> None:
        """Resume what the acknowledgements unblocked."""
        return

    def flowed(self, consumer: Consumer) -> None:
        """Record that a consumer received permits, or that its connection takes more; `dispatch` follows."""
        return

    @abstractmethod
    def _dispatch(self) -> None: ...

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """Add a consumer; raises `Refused` if its ranges overlap another's."""

    @abstractmethod
    def started(self, consumer: Consumer) -> None:
        """Allow notices to a consumer whose SUCCESS was sent."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; its pending entries are redelivered."""

    @abstractmethod
    def settle(self, consumer: Consumer | None, offsets: Sequence[int], still_open: int) -> None:
        """Record an acknowledgement of entries, or of all but ``still_open`` of their messages."""

    @abstractmethod
    def skipped_below(self, offset: int) -> None:
        """Drop everything below ``offset``."""

    @abstractmethod
    def redeliver(self, consumer: Consumer | None, offsets: Iterable[int]) -> None:
        """Redeliver these entries: those that ``consumer`` asked for or, with None, those that a transaction
        had acknowledged before it was aborted."""

    @abstractmethod
    def redeliver_all(self, consumers: Collection[Consumer]) -> None:
        """Redeliver everything that these consumers have not acknowledged."""

    @abstractmethod
    def note_deliveries(self, seconds: float) -> None:
        """Keep the times of deliveries for ``seconds`` from now on; 0 discards them."""

    @abstractmethod
    def push_again(self, delivered_before: float, messages_max: int, too_old: TooOld) -> RedeliveryRound:
        """Redeliver messages that are unacknowledged since this time, within permits and ``messages_max``."""

    def close(self) -> None:
        """Release everything after the last consumer has left."""
        self._closed = True
        for timer in (self._retry, self._continuation):
            if timer is not None:
                timer.cancel()
        self._retry = self._continuation = None
