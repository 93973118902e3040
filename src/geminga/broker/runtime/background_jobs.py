"""Long background work: in slices with pauses, or one piece after the other."""

from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Final, Protocol

from geminga.broker.runtime.cooperative import SUSPENDED, CooperativeScheduler, Job
from geminga.broker.runtime.scheduler import Scheduler

SLICE_SECONDS: Final = 0.005
SLICE_STEPS_MAX: Final = 500
"""A slice ends at the first of these limits."""
PAUSE_SECONDS: Final = 0.01
"""Pause until the next slice: the work takes at most a third of the time."""


def start_in_background(
    scheduler: Scheduler,
    slices: CooperativeScheduler,
    about: object,
    work: Job,
    over: Callable[[], None] = lambda: None,
    *,
    pause_seconds: float = PAUSE_SECONDS,
) -> None:
    """Start ``work`` as a job of ``slices`` with pauses after each slice; with a pause of 0 the event loop
    runs once.

    ``over`` is called when the work is done, or has failed, which is logged with ``about``.
    """
    slices.start(_paced(scheduler, slices, about, work, over, pause_seconds), about)


def _paced(
    scheduler: Scheduler,
    slices: CooperativeScheduler,
    about: object,
    work: Job,
    over: Callable[[], None],
    pause_seconds: float,
) -> Job:
    clock = slices.clock
    began, steps = clock(), 0
    try:
        for is_suspended in work:
            steps += 1
            if is_suspended:
                yield SUSPENDED
            elif steps >= SLICE_STEPS_MAX or clock() - began >= SLICE_SECONDS:
                # The scheduler's time is that at which the slice began.
                pause = clock() - began + pause_seconds
                yield from slices.wait(partial(resume_after, scheduler, pause, about))
            else:
                continue
            began, steps = clock(), 0
    except Exception as error:
        scheduler.failed("housekeeping", about, error)
    over()


def resume_after(scheduler: Scheduler, seconds: float, about: object, resume: Callable[[None], None]) -> None:
    """Continue a job after ``seconds``; for `CooperativeScheduler.wait`."""
    scheduler.after(seconds, partial(resume, None), about)


class JobStatus(StrEnum):
    """Status of long work, as ``pulsar-admin topics compaction-status`` and ``offload-status`` report it."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class LongWork(Protocol):
    """Interface of a piece of work for `WorkQueue`."""

    def begin(self) -> None:
        """Start the work; it leaves the queue when it has ended."""


class WorkQueue:
    """Queue of long work, such as compactions of topics: one at a time, in order."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[LongWork, None] = OrderedDict()
        self._running: LongWork | None = None

    def enter(self, work: LongWork) -> None:
        self._waiting[work] = None
        self._next()

    def leave(self, work: LongWork) -> None:
        if self._running is work:
            self._running = None
        else:
            self._waiting.pop(work, None)
        self._next()

    def _next(self) -> None:
        if self._running is None and self._waiting:
            self._running, _ = self._waiting.popitem(last=False)
            self._running.begin()
