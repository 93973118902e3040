"""Delayed delivery: entries that are not due yet, by their offsets."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from geminga.broker.scheduler import Scheduler, Timer

DELAYED_MAX = 1_000_000
"""Limit of a subscription's delayed entries; above it no new entries are read until some are due."""
LOOK_SECONDS = 10.0
"""Longest interval of checks of the wall clock: it may be set, or the machine may have been suspended."""

DUE_AT_ONCE_MAX = 2_000
"""Entries that become due in one run of the timer; the next ones wait for the next run, after other work."""


def _nobody_waits(_offsets: list[int]) -> None:
    """Called for the entries of closed `DelayedEntries`."""


class DelayedEntries:
    """Offsets in the order of their times; ``due(offsets)`` receives those that are due by the wall clock."""

    __slots__ = ("_about", "_due", "_heap", "_offsets", "_scheduler", "_timer")

    def __init__(self, scheduler: Scheduler, due: Callable[[list[int]], None], about: object) -> None:
        self._scheduler = scheduler
        self._due = due
        self._about = about
        self._heap: list[tuple[int, int]] = []
        self._offsets: set[int] = set()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= DELAYED_MAX

    @property
    def next_ms(self) -> int:
        """Time at which the first of them is due, in milliseconds since 1970; 0 without any."""
        return self._heap[0][0] if self._heap else 0

    def add(self, offset: int, deliver_at_ms: int) -> None:
        heapq.heappush(self._heap, (deliver_at_ms, offset))
        self._offsets.add(offset)
        self._arm()

    def skip_below(self, offset: int) -> None:
        """Drop the entries below ``offset``."""
        if any(at < offset for at in self._offsets):
            self._offsets = {at for at in self._offsets if at >= offset}
            self._heap = [each for each in self._heap if each[1] >= offset]
            heapq.heapify(self._heap)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = _nobody_waits  # drop the reference back to the owner

    def _arm(self) -> None:
        timer, scheduler = self._timer, self._scheduler
        when = scheduler.now + min(max(0.0, (self._heap[0][0] - scheduler.now_ms) / 1000), LOOK_SECONDS)
        if timer is not None and timer.callback is not None:
            if timer.when <= when:
                return
            timer.cancel()
        self._timer = scheduler.at(when, self._run, self._about)

    def _run(self) -> None:
        self._timer = None
        now_ms = self._scheduler.now_ms
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < DUE_AT_ONCE_MAX:
            offset = heapq.heappop(self._heap)[1]
            self._offsets.discard(offset)
            due.append(offset)
        if self._heap:
            self._arm()
        if due:
            self._due(due)
