"""What dispatchers are, and what they share: reading what is next, a little at a time.

A dispatcher reads entries that are durable and open from the topic's ledger and writes them to
consumers that have permits and whose connection takes more bytes. It is asked to go on (`dispatch`)
whenever one of these changes; it never waits and holds no entries, only offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from geminga.broker.compacted_view import CompactedLedger, Position
from geminga.broker.delivery.compensation import RedeliveryRound, TooOld
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.cursor import Cursor
from geminga.broker.delivery.limits import RateLimit
from geminga.broker.managed_ledger import ManagedLedger
from geminga.broker.rules.policies import Policies
from geminga.broker.scheduler import Scheduler, Timer
from geminga.broker.settings import BrokerSettings
from geminga.errors import StoreBusy, StoreError

log = logging.getLogger("geminga.broker")

ENTRIES_PER_READ_MAX = 100
BYTES_PER_READ_MAX = 4 * 1024 * 1024
ENTRIES_PER_CALL_MAX = 1_000
BYTES_PER_CALL_MAX = 4 * 1024 * 1024
"""A dispatcher sends at most this much in one go; then everybody else has a turn before it goes on."""
LIMIT_LOOK_SECONDS = 1.0
"""What is held up by a limit is tried again so soon at the latest."""
READ_RETRY_SECONDS = 5.0
"""After a failed read of the store a dispatcher tries again so much later ..."""
BUSY_RETRY_SECONDS = 0.1
"""... and so much later when it only had too much to do."""
ENTRIES_PER_FETCH_MAX = 1_000
BYTES_PER_FETCH_MAX = 1024 * 1024
"""So much is read from the disk at once, ahead of what consumers want."""
FETCHES_MAX = 8
"""So many places of a topic are read for one subscription at the same time."""


class SubscribedTopic(Protocol):
    """What subscriptions and dispatchers see of their topic."""

    text: str
    scheduler: Scheduler
    policies: Policies
    ledger: ManagedLedger
    compacted: CompactedLedger | None

    @property
    def settings(self) -> BrokerSettings: ...


class DispatchedSubscription(Protocol):
    """What dispatchers see of their subscription; ``last_consumed_ms`` is theirs to set."""

    cursor: Cursor
    partition: int
    last_consumed_ms: int
    dispatch_limits: tuple[RateLimit, ...]
    start_position: Position | None

    @property
    def topic(self) -> SubscribedTopic: ...


class Dispatcher(Protocol):
    """What a subscription asks of the way its type hands out entries."""

    read_offset: int
    """The next entry that was not read yet."""

    @property
    def reading_fails(self) -> bool:
        """Whether the store could not be read, and is tried again later."""

    def add(self, consumer: Consumer) -> None:
        """Take a consumer in; raises `Refused` when its ranges clash with another's."""

    def started(self, consumer: Consumer) -> None:
        """The consumer knows that it is subscribed: it may be sent notices."""

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer go; what it has pending is delivered again."""

    def dispatch(self) -> None:
        """Send what can be sent now."""

    def new_entries(self) -> None:
        """The same, when nothing has changed but that there are new entries."""

    def flowed(self, consumer: Consumer) -> None:
        """A consumer was given permits; `dispatch` follows."""

    def settle(self, consumer: Consumer | None, offset: int, still_open: int) -> None:
        """An entry was acknowledged, or all but ``still_open`` of its messages."""

    def acknowledged(self) -> None:
        """Acknowledgements were taken in: what they unblocked may go on."""

    def skipped_below(self, offset: int) -> None:
        """Everything below ``offset`` is no longer to be delivered."""

    def redeliver(self, consumer: Consumer, offsets: Iterable[int]) -> None:
        """The consumer wants these entries again."""

    def redeliver_all(self, consumer: Consumer) -> None:
        """The consumer wants everything again that it has not acknowledged."""

    def note_deliveries(self, seconds: float) -> None:
        """See `compensation.RedeliveringDispatcher`."""

    def push_again(self, delivered_before: float, messages_max: int, too_old: TooOld) -> RedeliveryRound:
        """See `compensation.RedeliveringDispatcher`."""

    def close(self) -> None:
        """The last consumer left."""


class ReadingDispatcher:
    """What all dispatchers share: a read position, and care for a store that fails to read."""

    def __init__(self, subscription: DispatchedSubscription) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.scheduler = subscription.topic.scheduler
        self.cursor = subscription.cursor
        self.read_offset = self.cursor.next_open(self.cursor.mark)
        self._retry: Timer | None = None
        self._continuation: Timer | None = None
        self._fetching: dict[int, int] = {}
        self._waits = False
        self._closed = False
        self._dispatching = False
        self._entries_left = 0
        self._bytes_left = 0
        self._unsent = 0
        """Entries that used up a part of this call and were not sent: limits do not count them."""

    def _read(self, offset: int, entries_max: int) -> tuple[int, list[tuple[bytes, int]]]:
        """The next open entries from ``offset`` on, and the offset of the first; empty at the end.

        Empty too when they are not at hand now (`_waits`): dispatching goes on when they are.
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
        return self._retry is not None

    def _fetch(self, offset: int, stop: int) -> list[tuple[bytes, int]] | None:
        """Entries from ``offset`` on; None while the disk, or the next try, has to be waited for."""
        ledger = self.topic.ledger
        for start, end in self._fetching.items():
            if start <= offset < end:
                return None
        if len(self._fetching) >= FETCHES_MAX:
            return None
        # Between many holes it is cheaper to read over what is acknowledged.
        end = self.cursor.open_run(offset, min(ledger.confirmed, offset + ENTRIES_PER_FETCH_MAX))
        end = max(end, min(ledger.confirmed, offset + ENTRIES_PER_READ_MAX))
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
        """What was to be waited for is in the topic's cache now."""
        self._fetching.pop(offset, None)
        if self._closed:
            return
        if error is not None:
            self._reading_failed(error)
        else:
            self.scheduler.isolated("dispatch", self.subscription, self.dispatch)

    def _reading_failed(self, error: StoreError) -> None:
        if self._retry is None:
            seconds = BUSY_RETRY_SECONDS if isinstance(error, StoreBusy) else READ_RETRY_SECONDS
            log.error("%r: reading failed, retrying in %g s: %s", self.subscription, seconds, error)
            self._retry = self.scheduler.after(seconds, self._try_again, self.subscription)

    def _try_again(self) -> None:
        self._retry = None
        self.dispatch()

    def dispatch(self) -> None:
        # Sending may cause a flush, which may tell us that the connection is writable again.
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
            # What could not be sent is still to be sent, and perhaps nothing else happens that asks for it.
            self._continue_in(READ_RETRY_SECONDS)
            raise
        finally:
            self._dispatching = False

    @property
    def _exhausted(self) -> bool:
        """Whether this call has sent as much as one call may."""
        return self._entries_left <= 0 or self._bytes_left <= 0

    def _continue_in(self, seconds: float) -> None:
        if self._continuation is None and not self._closed:
            self._continuation = self.scheduler.after(seconds, self._go_on, self.subscription)

    def _go_on(self) -> None:
        self._continuation = None
        self.dispatch()

    def new_entries(self) -> None:
        self.dispatch()

    def flowed(self, consumer: Consumer) -> None:
        return

    def _dispatch(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._closed = True
        for timer in (self._retry, self._continuation):
            if timer is not None:
                timer.cancel()
        self._retry = self._continuation = None
