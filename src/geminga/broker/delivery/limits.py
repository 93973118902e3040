"""Rate limits: smooth token buckets of messages and of bytes, on the scheduler's clock.

A bucket may be overdrawn: if any tokens are left, a caller takes as many as its batch or entry needs, and the
next waits until they are repaid. So the rate is exact in the long run for any sizes, a large batch is never
stuck, and an idle bucket saves no more than `BURST_SECONDS` of tokens.
"""

from typing import Final

from geminga.broker.rules.effective_policies import Policies
from geminga.policies import DispatchRate, PublishRate

BURST_SECONDS: Final = 0.1
"""Capacity of a bucket: tokens of this time can be used at once after a pause, at least one message."""
_STEP: Final = 0.25
"""Shortest wait as a part of that, to avoid a wake-up for every single message."""


Rate = PublishRate | DispatchRate


class _Bucket:
    __slots__ = ("_at", "_burst", "_rate", "tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._burst = self.tokens = max(1.0, rate * BURST_SECONDS)
        self._at = now

    def fill(self, now: float) -> None:
        if now > self._at:
            self.tokens = min(self._burst, self.tokens + (now - self._at) * self._rate)
            self._at = now

    def wait(self) -> float:
        return 0.0 if self.tokens > 0 else (_STEP * self._burst - self.tokens) / self._rate


class RateLimit:
    """Rate limit that several topics may share. Without a rate nothing is delayed.

    ``held_by_messages`` and ``held_by_bytes`` count how often the bucket was found empty.
    """

    __slots__ = ("_bytes", "_messages", "_rate", "held_by_bytes", "held_by_messages")

    def __init__(self) -> None:
        self._rate: Rate = DispatchRate()
        self._messages: _Bucket | None = None
        self._bytes: _Bucket | None = None
        self.held_by_messages = 0
        self.held_by_bytes = 0

    @property
    def is_set(self) -> bool:
        return self._messages is not None or self._bytes is not None

    def set(self, rate: Rate, now: float) -> None:
        """Set the rate; tokens overdrawn under the previous rate are forgiven."""
        if rate == self._rate:
            return
        self._rate = rate
        period = rate.period_seconds if isinstance(rate, DispatchRate) else 1
        self._messages = _Bucket(rate.messages / period, now) if rate.messages > 0 else None
        self._bytes = _Bucket(rate.bytes / period, now) if rate.bytes > 0 else None

    def take(self, messages: int, size: int, now: float) -> None:
        """Take tokens for ``messages`` and ``size`` bytes."""
        if self._messages is not None:
            self._messages.fill(now)
            self._messages.tokens -= messages
        if self._bytes is not None:
            self._bytes.fill(now)
            self._bytes.tokens -= size

    def wait(self, now: float) -> float:
        """Return the seconds until tokens are available; 0 if they are."""
        longest = 0.0
        for bucket in (self._messages, self._bytes):
            if bucket is not None:
                bucket.fill(now)
                longest = max(longest, bucket.wait())
        return longest

    def check(self, now: float) -> float:
        """Like `wait`, and count the delay."""
        seconds = self.wait(now)
        if seconds > 0:
            if self._messages is not None and self._messages.tokens <= 0:
                self.held_by_messages += 1
            else:
                self.held_by_bytes += 1
        return seconds

    def left(self, messages: int, size: int) -> tuple[int, int]:
        """Return how many of these messages and bytes may pass at once; at least one message."""
        if self._messages is not None:
            messages = min(messages, max(1, int(self._messages.tokens)))
        if self._bytes is not None:
            size = min(size, max(1, int(self._bytes.tokens)))
        return messages, size


def with_rate(limit: RateLimit | None, rate: Rate, now: float) -> RateLimit | None:
    """Return the limit with that rate, created at its first use: most topics never have one."""
    if limit is None:
        if not _limits(rate):
            return None
        limit = RateLimit()
    limit.set(rate, now)
    return limit


def _limits(rate: Rate) -> bool:
    return rate.messages > 0 or rate.bytes > 0


def in_force(*limits: RateLimit | None) -> tuple[RateLimit, ...]:
    """Return the limits that have a rate."""
    return tuple(limit for limit in limits if limit is not None and limit.is_set)


class TopicLimits:
    """Rate limits of a topic: its own, by its policies, and those that all topics of the broker share."""

    __slots__ = ("_own_publish", "_shared", "dispatch", "own_dispatch", "publish")

    def __init__(self, shared: tuple[RateLimit, RateLimit]) -> None:
        """``shared`` are the limits of publishing and of dispatching."""
        self._shared = shared
        self._own_publish: RateLimit | None = None
        self.own_dispatch: RateLimit | None = None
        self.publish: tuple[RateLimit, ...] = ()
        self.dispatch: tuple[RateLimit, ...] = ()

    @property
    def shared_dispatch(self) -> RateLimit:
        return self._shared[1]

    def set(self, policies: Policies, now: float) -> None:
        """Apply policies."""
        self._own_publish = with_rate(self._own_publish, policies.publish_rate, now)
        self.own_dispatch = with_rate(self.own_dispatch, policies.dispatch_rate, now)
        self.publish = in_force(self._own_publish, self._shared[0])
        self.dispatch = in_force(self.own_dispatch, self._shared[1])
