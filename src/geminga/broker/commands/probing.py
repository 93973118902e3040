"""Who wants a place that a peer holds, and waits until it is known whether that peer lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from geminga.broker.cooperative import CooperativeScheduler, Job
from geminga.broker.scheduler import Scheduler, Timer

PROBE_SECONDS: Final = 5.0
"""A connection whose place somebody else wants is dropped when it is silent for so long after a PING."""
Decided = Callable[[], None]


class LivenessProbes:
    """Those who wait to hear of one peer."""

    __slots__ = ("_scheduler", "_slices", "_timer", "_waiting")

    def __init__(self, scheduler: Scheduler, slices: CooperativeScheduler) -> None:
        self._scheduler = scheduler
        self._slices = slices
        self._waiting: list[Decided] = []
        self._timer: Timer | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, decided: Decided, expired: Callable[[], None], peer: object) -> None:
        """One more; ``expired`` is called when it takes too long from the first on."""
        if not self._waiting:
            self._timer = self._scheduler.after(PROBE_SECONDS, expired, peer)
        self._waiting.append(decided)

    def answer(self, peer: object) -> Job:
        """It is decided now. A job tells them: there may be as many as there are peers, and more."""
        waiting, self._waiting = self._waiting, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._tell(waiting, peer)

    def _tell(self, waiting: Sequence[Decided], peer: object) -> Job:
        for number, decided in enumerate(waiting, 1):
            self._scheduler.isolated("session", peer, decided)
            if number < len(waiting) and self._slices.should_yield:
                yield None
