"""Long background work that takes at most a third of the time.

The work is a job of `geminga.broker.cooperative`, run in slices with pauses between them. It waits only in
`BackgroundJobs.wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeVar

from geminga.broker.cooperative import SUSPENDED, CooperativeScheduler, Job
from geminga.broker.scheduler import Scheduler

SLICE_SECONDS: Final = 0.005
SLICE_STEPS_MAX: Final = 500
"""A slice ends at the first of these limits."""
PAUSE_SECONDS: Final = 0.01
"""Pause until the next slice."""

T = TypeVar("T")


class BackgroundJobs:
    """One piece of background work at a time. ``about`` names it in the log."""

    def __init__(self, scheduler: Scheduler, slices: CooperativeScheduler, about: object) -> None:
        self._scheduler = scheduler
        self._slices = slices
        self._about = about
        self._work: Job | None = None
        self._over: Callable[[], None] = lambda: None
        self.worked_seconds = 0.0

    @property
    def is_busy(self) -> bool:
        return self._work is not None

    def start(self, work: Job, over: Callable[[], None]) -> None:
        """Start the work now; ``over`` is called when it is done, or has failed, which is logged."""
        assert self._work is None
        self._work, self._over = work, over
        self._slice()

    def _slice(self) -> None:
        work, clock = self._work, self._slices.clock
        assert work is not None
        began, left = clock(), SLICE_STEPS_MAX
        try:
            for is_parked in work:
                left -= 1
                if is_parked:
                    return
                if not left or clock() - began >= SLICE_SECONDS:
                    # The agenda's time is that at which the slice began.
                    pause = clock() - began + PAUSE_SECONDS
                    self._scheduler.after(pause, self._slice, self._about)
                    return
        except Exception as error:
            self._scheduler.failed("housekeeping", self._about, error)
        finally:
            self.worked_seconds += clock() - began
        self._work = None
        self._over()

    def wait(self, begin: Callable[[Callable[[T], None]], object]) -> Generator[bool | None, None, T]:
        """Wait, as a part of the work, for what ``begin`` reports. See `CooperativeScheduler.wait`."""
        reports: list[T] = []
        is_parked = False

        def report(found: T) -> None:
            reports.append(found)
            if is_parked:
                self._scheduler.after(0.0, self._slice, self._about)

        begin(report)
        while not reports:
            is_parked = True
            yield SUSPENDED
        return reports[0]
