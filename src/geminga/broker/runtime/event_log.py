"""Log of what happened: automatic actions of the broker, changes by clients and administrators, connections.

Compensation, expiry, quotas, retention and early deletion report here, in a sentence, and the audit log
reports every change with its role and address. The newest events of each kind are kept, regardless of other
kinds, and repetitions are merged.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

What = Literal[
    "pushed-again", "expired", "quota", "evicted", "retention", "gave-way", "forgotten", "changed",
    "connected",
]  # fmt: skip
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
    """Unit of ``count``, in the singular: ``entry``, ``message``, ``connection``."""
    text: str
    """Text of the newest of them."""
    first_ms: int
    last_ms: int
    times: int = 1
    who: str = ""
    """Role and host that caused them; empty for the broker itself."""


class BrokerEventLog:
    """Newest events by kind."""

    def __init__(self) -> None:
        self._kept: dict[What, deque[BrokerEvent]] = {}

    def tell(
        self, kind: What, now_ms: int, topic: str, subscription: str = "", *, count: int = 0, unit: str = "",
        text: str = "",
    ) -> None:  # fmt: skip
        """Add an automatic action. ``text`` is the reason, in addition to ``count`` and ``unit``."""
        self.add(BrokerEvent(kind, topic, subscription, count, unit, text, now_ms, now_ms))

    def add(self, event: BrokerEvent) -> None:
        """Add an event, or merge it with one of the newest of its kind."""
        kept = self._kept.get(event.kind)
        if kept is None:
            kept = self._kept[event.kind] = deque(maxlen=KEPT_OF_A_KIND)
        for _, line in zip(range(_LOOKED_BACK), reversed(kept), strict=False):
            is_same = (line.topic, line.subscription) == (event.topic, event.subscription)
            is_same = is_same and line.who == event.who
            is_same = is_same and (event.kind != "changed" or line.text == event.text)
            if is_same and event.last_ms - line.first_ms < ONE_LINE_SECONDS * 1000:
                line.count += event.count
                line.times += 1
                line.last_ms, line.text = event.last_ms, event.text
                return
        kept.append(event)

    def newest(self, count_max: int) -> list[BrokerEvent]:
        """Return the newest events of all kinds, newest first."""
        every = [line for kept in self._kept.values() for line in kept]
        return sorted(every, key=lambda line: -line.last_ms)[:count_max]
