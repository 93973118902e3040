"""Expiry of messages whose TTL counts from their delivery time: the policy ``ttl_from_delivery``.

A message expires when the TTL is over since its publish time and since its delivery time. So entries that
were published before the TTL are *examined* in a background job. Most expire. Those that wait for their time
are in the index of delivery times, which reports when it has come, or are added to it. Those whose time has
come less than a TTL ago are examined again when the TTL is over. No entry that waits is read.

The entry decides, not the type of the subscription: Exclusive and Failover consumers get messages before
their delivery time, and what they leave unacknowledged expires no sooner than on a Shared subscription.

Nothing is stored. A topic that is loaded examines its entries from the mark-delete positions on, except those
in the index.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final, Protocol

from geminga.broker.delivery.delivery_times import DeliveryTimes
from geminga.broker.delivery.ranges import RangeSet, add_set, remove_set
from geminga.broker.delivery.subscription import COMPACTION, PersistentSubscription
from geminga.broker.entries.entry_facts import head_of, may_be_delayed_or_chunk
from geminga.broker.runtime.background_jobs import start_in_background
from geminga.broker.runtime.cooperative import Job
from geminga.broker.topics.expiry_index import NEVER
from geminga.broker.topics.topic import StoredTopic
from geminga.errors import StoreBusy, StoreError

log = logging.getLogger("geminga.broker")

ENTRIES_AT_ONCE: Final = 100
"""Entries that a step of the job reads ..."""
BYTES_AT_ONCE: Final = 1 << 20
"""... and their size."""
TOGETHER_MS_MIN: Final = 15_000
"""Entries whose TTL ends within this time are examined together, when it is over for all of them ..."""
TOGETHER_PARTS: Final = 256
"""... or within this part of the TTL, if that is longer."""
EXPIRY_LOG_SECONDS = 60
"""Interval of log lines about expired messages of a subscription."""

_Read = list[bytes] | StoreError | None
"""Entries: none if they are lost, and None if they are in memory now."""


class DelayedTopic(StoredTopic, Protocol):
    """Interface of a topic for this module."""

    delivery_times: DeliveryTimes


class DeliveryExpiry:
    """Expiry of a topic. Entries below ``examined`` are not new to it."""

    __slots__ = ("_due", "_topic", "_wanted", "examined", "is_running")

    def __init__(self, topic: DelayedTopic) -> None:
        self._topic = topic
        self.examined = 0
        self._wanted = RangeSet()
        """Entries that are to be examined."""
        self._due: dict[int, RangeSet] = {}
        """Entries whose delivery time has come less than a TTL ago, by that time, rounded up."""
        self.is_running = False
        topic.delivery_times.attach(self)

    def __repr__(self) -> str:
        return f"DeliveryExpiry({self._topic.text!r})"

    @property
    def next_ms(self) -> int:
        """Time from which the TTL of the next entry below ``examined`` counts; `NEVER` without one."""
        waiting_ms = self._topic.delivery_times.next_ms or NEVER
        return 0 if self.is_running or self._wanted else min([waiting_ms, *self._due])

    # --- reports of the index of delivery times ---
    def became_due(self, offsets: Sequence[int]) -> None:
        self._wanted.add_all(offset for offset in offsets if offset < self.examined)

    def skip_below(self, offset: int) -> None:
        self._wanted.remove_range(0, offset)

    # --- the job ---
    def expire(self, start: int, stop: int) -> None:
        """Examine the entries below ``stop``, which were published before the TTL, if they are new or due.

        No subscription has open entries below ``start``.
        """
        topic, before_ms = self._topic, self._before_ms
        fresh = RangeSet()
        fresh.add_range(max(start, self.examined), stop)
        remove_set(fresh, topic.delivery_times.offsets)
        add_set(self._wanted, fresh)
        for due_ms in [each for each in self._due if each <= before_ms]:
            add_set(self._wanted, self._due.pop(due_ms))
        # It was behind this if the TTL is longer now, or the clock was set back.
        self.examined = stop
        self._wanted.remove_range(0, start)
        self._wanted.remove_range(stop, topic.ledger.confirmed)
        if self._wanted and not self.is_running:
            self.is_running = True
            services = topic.services
            start_in_background(services.scheduler, services.slices, self, self._work(), self._over)

    def _over(self) -> None:
        self.is_running = False
        self._topic.touch()

    @property
    def _before_ms(self) -> int:
        return self._topic.scheduler.now_ms - self._topic.policies.message_ttl_seconds * 1000

    def _work(self) -> Job:
        topic, part, at = self._topic, RangeSet(), 0
        policies = topic.policies
        try:
            while self._wanted:
                part, self._wanted, at = self._wanted, RangeSet(), 0
                for start, stop in part.ranges():
                    at = start
                    while at < stop:
                        if topic.policies is not policies:
                            return
                        at = yield from self._examine(at, min(stop, at + ENTRIES_AT_ONCE))
        except StoreError as error:
            log.info("%r: expiry waits for the disk: %s", topic, error)
        finally:
            part.remove_range(0, at)
            add_set(self._wanted, part)

    def _examine(self, start: int, stop: int) -> Generator[bool | None, None, int]:
        """Examine the first of these entries; return the offset behind them. Raises `StoreError`."""
        topic, ledger = self._topic, self._topic.ledger
        waiting = waiting_for(topic)  # one that is added meanwhile has all its entries examined (`rearm`)
        first_open = min((each.cursor.next_open(start) for each in waiting), default=stop)
        if first_open > start:
            return min(first_open, stop)
        found: _Read = ledger.in_memory(start, stop, BYTES_AT_ONCE)
        if not found:
            found = yield from topic.services.slices.wait(partial(self._fetch, start, stop))
        if isinstance(found, StoreError):
            raise found
        if found is None:
            return start
        at = start
        for entry in found:
            if not self._is_over(at, entry):
                yield from self._give_up(waiting, start, at)
                start = at + 1
            at += 1
        if not found:
            at = min(ledger.skip_gap(start), stop)
            if at == start:
                raise StoreBusy(f"entry {start} of {topic.text} cannot be read")
        yield from self._give_up(waiting, start, at)
        return at

    def _fetch(self, start: int, stop: int, report: Callable[[_Read], None]) -> None:
        found = self._topic.ledger.fetch(
            start, stop, bytes_max=BYTES_AT_ONCE, ahead_stop=stop, ahead_bytes_max=BYTES_AT_ONCE, done=report
        )
        if found is not None:
            report(found)

    def _is_over(self, offset: int, entry: bytes) -> bool:
        """Return whether the TTL is over since an entry's delivery time; if not, examine it again then."""
        head = head_of(entry) if may_be_delayed_or_chunk(entry) else None
        due_ms = 0 if head is None else head.deliver_at_time
        if due_ms <= self._before_ms:
            return True
        if due_ms > self._topic.scheduler.now_ms:
            self._topic.delivery_times.add(offset, due_ms)
        else:
            step_ms = max(TOGETHER_MS_MIN, self._topic.policies.message_ttl_seconds * 1000 // TOGETHER_PARTS)
            self._due.setdefault(due_ms + -due_ms % step_ms, RangeSet()).add(offset)
        return False

    def _give_up(self, waiting: Sequence[PersistentSubscription], start: int, stop: int) -> Job:
        """Expire entries on these subscriptions."""
        topic = self._topic
        for each in waiting if start < stop else ():
            if topic.subscriptions.get(each.name) is each:
                report_expired(topic, each, each.expire(stop, start=start))
            yield None


def waiting_for(topic: StoredTopic) -> list[PersistentSubscription]:
    """Return the subscriptions with open entries that may expire."""
    return [
        each
        for each in topic.subscriptions.values()
        if each.durable and each.backlog and each.name != COMPACTION
    ]


def report_expired(topic: StoredTopic, subscription: PersistentSubscription, expired: int) -> None:
    """Log the number of entries that expired, if there are any."""
    seconds, now_ms = topic.policies.message_ttl_seconds, topic.scheduler.now_ms
    if not expired:
        return
    if now_ms - subscription.expiry_logged_ms >= EXPIRY_LOG_SECONDS * 1000:
        subscription.expiry_logged_ms = now_ms
        line = "%r: %d entries expired after %d s, %d messages since it was loaded"
        log.info(line, subscription, expired, seconds, subscription.messages_expired)
    topic.scheduler.event_log.tell(
        "expired", now_ms, topic.text, subscription.name, count=expired, unit="entry",
        text=f"older than the time to live of {seconds} s",
    )  # fmt: skip
