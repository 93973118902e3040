"""Active compensation: redelivery of messages that stay unacknowledged too long.

A consumer that forgets acknowledgements, or whose acknowledgements get lost, leaves *holes*: messages that
stay pending on it while it is connected, so that no other consumer gets them. They hold back the
subscription's mark-delete position, and with it the backlog quota, until producers are stopped. With
compensation the broker searches for such messages before the read position and redelivers them to any
connected consumer with permits, with a redelivery count: at least once, as after a negative acknowledgement.

Exclusive and Failover subscriptions have none: their messages would arrive out of order.

It is off unless the broker, the namespace, the topic or the subscription sets a time in seconds. A
subscription sets its own with the property `PROPERTY`; ``0`` keeps compensation off. Consumers that need
longer than that for a message get it twice: the time must exceed the slowest consumer's processing time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from geminga.broker.delivery.dispatcher import Dispatcher
from geminga.broker.delivery.shared import SharedDispatcher
from geminga.broker.rules.effective_policies import UnackedRedelivery
from geminga.broker.rules.json_values import number_of
from geminga.broker.scheduler import Scheduler, Timer

log = logging.getLogger("geminga.broker")

PROPERTY = "redeliver-unacked-after-seconds"
"""Property of a subscription with its own time in seconds."""
ROUND_SECONDS_MIN, ROUND_SECONDS_MAX = 1.0, 15.0
"""Interval of rounds: a quarter of the time after which messages are redelivered, within these bounds."""
LOG_SECONDS = 60.0

_OFF = UnackedRedelivery()


class CompensatedSubscription(Protocol):
    """Interface of a subscription for compensation."""

    scheduler: Scheduler
    name: str

    @property
    def topic_text(self) -> str: ...

    @property
    def dispatcher(self) -> Dispatcher | None: ...


class Compensation:
    """Compensation of one subscription. ``messages`` counts since the topic was loaded."""

    __slots__ = ("_logged_at", "_logged_messages", "_rule", "_subscription", "_timer", "last_ms", "messages")

    def __init__(self, subscription: CompensatedSubscription) -> None:
        self._subscription = subscription
        self._rule = _OFF
        self._timer: Timer | None = None
        self._logged_at = 0.0
        self._logged_messages = 0
        self.messages = 0
        self.last_ms = 0

    @property
    def after_seconds(self) -> float:
        """Time after which messages are redelivered; 0: never."""
        return self._rule.after_seconds

    def apply(self, rule: UnackedRedelivery, properties: Mapping[str, str]) -> None:
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
        dispatcher = self._subscription.dispatcher
        is_shared = isinstance(dispatcher, SharedDispatcher)
        self._rule = rule if is_shared or dispatcher is None else _OFF
        if isinstance(dispatcher, SharedDispatcher):
            dispatcher.note_deliveries(rule.after_seconds)
        if not is_shared or rule.after_seconds <= 0:
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
        if not isinstance(dispatcher, SharedDispatcher) or rule.after_seconds <= 0:
            return
        self._timer = scheduler.after(self._round_seconds, self._run, subscription)
        most = max(1, int(rule.messages_per_second_max * self._round_seconds))
        pushed = dispatcher.push_again(scheduler.now - rule.after_seconds, most)
        if pushed:
            self.messages += pushed
            self.last_ms = scheduler.now_ms
            scheduler.event_log.tell(
                "pushed-again", scheduler.now_ms, subscription.topic_text, subscription.name,
                count=pushed, unit="messages",
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
