"""Deadlines of the broker: callbacks that run from `Broker.tick` when their time has come."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

INFINITY = float("inf")


class Timer:
    """One pending callback; `cancel` is cheap and may be repeated."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """Timers ordered by time, then by the order of their creation. Times are monotonic seconds."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(when, callback)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        return timer

    @property
    def deadline(self) -> float:
        """When `run` has something to do; infinity when nothing is pending."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else INFINITY

    def run(self, now: float) -> None:
        """Run every callback whose time has come; those that they set for now wait for the next run."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        for timer in due:
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
