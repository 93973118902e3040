"""Log of automatic actions of the broker, which explain missing or repeated messages.

Compensation, expiry, quotas, retention and early deletion report here, in a sentence; the newest events of
each kind are kept, regardless of other kinds, and repetitions are merged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

What = Literal["pushed-again", "expired", "quota", "evicted", "retention", "gave-way", "forgotten"]
KEPT_OF_A_KIND: Final = 100
ONE_LINE_SECONDS: Final = 300
"""Period in which repeated events of a subscription or topic are merged."""
_LOOKED_BACK = 8
"""Newest events that are searched for one to merge with."""


@dataclass(slots=True, eq=False, repr=False)
class BrokerEvent:
    """``count`` in ``unit``, over ``times`` events from ``first_ms`` to ``last_ms``."""

    kind: What
    topic: str
    subscription: str
    count: int
    unit: str
    text: str
    """Text of the newest of them."""
    first_ms: int
    last_ms: int
    times: int = 1


class BrokerEventLog:
    """Newest automatic actions by kind."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[What, deque[BrokerEvent]] = {}

    def tell(
        self, kind: What, now_ms: int, topic: str, subscription: str = "", *, count: int = 0, unit: str = "",
        text: str = "",
    ) -> None:  # fmt: skip
        """Add an event. ``text`` is the reason, in addition to ``count`` and ``unit``."""
        kept = self._kept.get(kind)
        if kept is None:
            kept = self._kept[kind] = deque(maxlen=KEPT_OF_A_KIND)
        for _, line in zip(range(_LOOKED_BACK), reversed(kept), strict=False):
            is_same = line.topic == topic and line.subscription == subscription
            if is_same and now_ms - line.first_ms < ONE_LINE_SECONDS * 1000:
                line.count += count
                line.times += 1
                line.last_ms, line.text = now_ms, text
                return
        kept.append(BrokerEvent(kind, topic, subscription, count, unit, text, now_ms, now_ms))

    def newest(self, count_max: int) -> list[BrokerEvent]:
        """Return the newest events of all kinds, newest first."""
        every = [line for kept in self._kept.values() for line in kept]
        return sorted(every, key=lambda line: -line.last_ms)[:count_max]
