"""Happenings: what the broker did by itself, for people who ask afterwards where their messages are.

Compensation, expiry, quotas, retention and what gives way to a full disk act without being asked. Each tells
here, in a sentence; the newest of each kind are kept, whatever else happens, and repetitions are one line.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

What = Literal["pushed-again", "expired", "quota", "evicted", "retention", "gave-way", "forgotten"]
KEPT_OF_A_KIND: Final = 100
ONE_LINE_SECONDS: Final = 300
"""What happens to the same thing again within this is added to its line."""
_LOOKED_BACK = 8
"""Lines among which it is looked for."""


@dataclass(slots=True, eq=False, repr=False)
class BrokerEvent:
    """``count`` is of what ``unit`` says, over ``times`` happenings from ``first_ms`` to ``last_ms``."""

    kind: What
    topic: str
    subscription: str
    count: int
    unit: str
    text: str
    """The newest of them, in words."""
    first_ms: int
    last_ms: int
    times: int = 1


class BrokerEventLog:
    """See the module."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[What, deque[BrokerEvent]] = {}

    def tell(
        self, kind: What, now_ms: int, topic: str, subscription: str = "", *, count: int = 0, unit: str = "",
        text: str = "",
    ) -> None:  # fmt: skip
        """Something was done. ``text`` says why, where ``count`` of ``unit`` does not say all."""
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
        """The newest of all kinds, those first."""
        every = [line for kept in self._kept.values() for line in kept]
        return sorted(every, key=lambda line: -line.last_ms)[:count_max]
