"""Active compensation: redelivery of messages that stay unacknowledged too long.

A consumer that forgets acknowledgements, or whose acknowledgements get lost, leaves *holes*: messages that
stay pending on it while it is connected, so that no other consumer gets them. They hold back the
subscription's mark-delete position, and with it the backlog quota, until producers are stopped. With
compensation the broker searches for such messages before the read position and redelivers them to any
connected consumer with permits, with a redelivery count: at least once, as after a negative acknowledgement.

It is off unless the broker, the namespace, the topic or the subscription sets a time in seconds. A
subscription sets its own with the property `PROPERTY`; ``0`` keeps compensation off. Consumers that need
longer than that for a message get it twice: the time must exceed the slowest consumer's processing time.
"""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from geminga.broker.delivery.dispatcher import Dispatcher
from geminga.broker.rules.json_values import number_of
from geminga.broker.runtime.scheduler import Scheduler, Timer
from geminga.policies import RedeliverUnacked

log = logging.getLogger("geminga.broker")

PROPERTY = "redeliver-unacked-after-seconds"
"""Property of a subscription with its own time in seconds."""
ROUND_SECONDS_MIN, ROUND_SECONDS_MAX = 1.0, 15.0
"""Interval of rounds: a quarter of the time after which messages are redelivered, within these bounds."""
LOG_SECONDS = 60.0
MARKS_MAX = 64
"""Number of marks that record a single active consumer's delivery times, per redelivery time."""

_OFF = RedeliverUnacked()


class CompensatedSubscription(Protocol):
    """Interface of a subscription for compensation."""

    scheduler: Scheduler
    name: str

    @property
    def topic_text(self) -> str: ...

    @property
    def dispatcher(self) -> Dispatcher | None: ...

    def published_before(self, offset: int, moment_ms: int) -> bool:
        """Return whether an entry's publish time is earlier than ``moment_ms``."""


class Compensation:
    """Compensation of one subscription. ``messages`` and ``given_up`` count since the topic was loaded."""

    __slots__ = (
        "_logged_at", "_logged_messages", "_rule", "_subscription", "_timer", "given_up", "last_ms",
        "messages",
    )  # fmt: skip

    def __init__(self, subscription: CompensatedSubscription) -> None:
        self._subscription = subscription
        self._rule = _OFF
        self._timer: Timer | None = None
        self._logged_at = 0.0
        self._logged_messages = 0
        self.messages = 0
        self.given_up = 0
        self.last_ms = 0

    @property
    def after_seconds(self) -> float:
        """Time after which messages are redelivered; 0: never."""
        return self._rule.after_seconds

    def apply(self, rule: RedeliverUnacked, properties: Mapping[str, str]) -> None:
        """Apply changed policies, properties or consumers."""
        own = properties.get(PROPERTY)
        if own is not None:
            seconds = number_of(own)
            if seconds is None or seconds < 0:
                log.warning(
                    "%r: property %s=%r is not a number of seconds", self._subscription, PROPERTY, own
                )
            else:
                rule = replace(rule, after_seconds=seconds)
        self._rule = rule
        dispatcher = self._subscription.dispatcher
        if dispatcher is not None:
            dispatcher.note_deliveries(rule.after_seconds)
        wanted = dispatcher is not None and rule.after_seconds > 0
        if not wanted:
            self.stop()
        elif self._timer is None:
            self._timer = self._subscription.scheduler.after(
                self._round_seconds, self._run, self._subscription
            )

    def close(self) -> None:
        """Cancel the timer when the subscription leaves memory, so that it can be garbage-collected."""
        self.stop()
        del self._subscription

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _round_seconds(self) -> float:
        return min(max(self._rule.after_seconds / 4, ROUND_SECONDS_MIN), ROUND_SECONDS_MAX)

    def _run(self) -> None:
        self._timer = None
        subscription, rule = self._subscription, self._rule
        dispatcher, scheduler = subscription.dispatcher, subscription.scheduler
        if dispatcher is None or rule.after_seconds <= 0:
            return
        self._timer = scheduler.after(self._round_seconds, self._run, subscription)
        most = max(1, int(rule.messages_per_second_max * self._round_seconds))
        oldest_ms = scheduler.now_ms - rule.age_seconds_max * 1000 if rule.age_seconds_max else 0
        pushed = dispatcher.push_again(
            scheduler.now - rule.after_seconds,
            most,
            lambda offset: bool(oldest_ms) and subscription.published_before(offset, oldest_ms),
        )
        self.given_up += pushed.given_up
        if pushed.messages:
            self.messages += pushed.messages
            self.last_ms = scheduler.now_ms
            scheduler.event_log.tell(
                "pushed-again", scheduler.now_ms, subscription.topic_text, subscription.name,
                count=pushed.messages, unit="message",
                text=f"not acknowledged within {rule.after_seconds:g} s",
            )  # fmt: skip
            self._log(scheduler.now)

    def _log(self, now: float) -> None:
        if self._logged_messages and now - self._logged_at < LOG_SECONDS:
            return
        log.info(
            "%r: redelivered %d messages that were not acknowledged within %g s",
            self._subscription,
            self.messages - self._logged_messages,
            self._rule.after_seconds,
        )
        self._logged_at, self._logged_messages = now, self.messages


class DeliveryMarks:
    """Times at which a single active consumer had been sent entries up to an offset, in a few marks."""

    __slots__ = ("_marks", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._marks: deque[tuple[float, float, int]] = deque()

    def note(self, now: float, offset: int) -> None:
        """Record that everything below ``offset`` has been sent by now."""
        marks = self._marks
        if marks and now - marks[-1][0] < self._seconds / MARKS_MAX:
            marks[-1] = marks[-1][0], now, offset
        else:
            marks.append((now, now, offset))
            if len(marks) > 2 * MARKS_MAX:
                marks.popleft()

    def sent_before(self, moment: float) -> int:
        """Return the offset below which everything was sent at ``moment`` or earlier."""
        marks, found = self._marks, 0
        while marks and marks[0][1] <= moment:
            found = marks[0][2]
            if (len(marks) > 1 and marks[1][1] > moment) or len(marks) == 1:
                break
            marks.popleft()
        return found

    def clear(self) -> None:
        self._marks.clear()
