"""Liveness probes of a peer that holds a producer name or subscription wanted by another client."""

from collections.abc import Callable, Sequence
from typing import Final

from geminga.broker.runtime.cooperative import CooperativeScheduler, Job
from geminga.broker.runtime.scheduler import Scheduler, Timer

PROBE_SECONDS: Final = 5.0
"""Seconds of silence after a PING until a holder of a wanted name or subscription is disconnected."""
Decided = Callable[[], None]


class LivenessProbes:
    """Callers waiting for the result of probing one peer."""

    __slots__ = ("_scheduler", "_slices", "_timer", "_waiting")

    def __init__(self, scheduler: Scheduler, slices: CooperativeScheduler) -> None:
        self._scheduler = scheduler
        self._slices = slices
        self._waiting: list[Decided] = []
        self._timer: Timer | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, decided: Decided, expired: Callable[[], None], peer: object) -> None:
        """Add a caller; ``expired`` is called after a time-out that starts with the first one."""
        if not self._waiting:
            self._timer = self._scheduler.after(PROBE_SECONDS, expired, peer)
        self._waiting.append(decided)

    def answer(self, peer: object) -> Job:
        """Return a job that calls the waiting callers, of which there may be very many."""
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
