"""Cooperative scheduling: limits the work in one iteration of the event loop.

Long work is a *job*: a generator that does a little at each step and ends when it is done. It waits, above
all for the disk, in `CooperativeScheduler.wait`, without blocking others. Jobs take turns, one step each;
when `TURN_SECONDS` of a turn are used up the rest waits for the next one, and in between the loop reads
sockets and runs timers. So a peer with very many commands, or with a command that reads every topic, slows
down itself and not the others.

A turn is the time between two calls of `turn`. The server reports the time of entries into the core (`begin`,
`end`) and calls `turn` soon after ``wake`` was called. Entries in between count against that turn, up to half
of it: the loop may just have read sockets. The clock is injected: in simulations it is virtual.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from geminga.errors import StoreError, StoreStopped
from geminga.ledger.api import Done

TURN_SECONDS: Final = 0.02
"""Core's working time in one iteration of the event loop."""
STEP_SECONDS: Final = 0.002
"""Duration of a job's step while others wait; see `CooperativeScheduler.should_yield`."""
JOBS_MAX: Final = 100_000
"""Maximum waiting jobs, far above one for each connection and resource: more are a broken invariant."""

SUSPENDED: Final = True
"""Yielded by a job that waits for an event: its callback starts the job again."""

DONE: Final = object()
"""Returned by `CooperativeScheduler.first_step` when a job is done."""

Job = Generator[bool | None, None, None]
T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in steps, and its result."""


def at_once(steps: Steps[T]) -> T:
    """Run all of ``steps`` and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class CooperativeScheduler:
    """Scheduler of jobs in turns of limited duration."""

    def __init__(
        self,
        clock: Callable[[], float],
        wake: Callable[[], None],
        failed: Callable[[object, Exception], None],
    ) -> None:
        """``wake`` requests a `turn`; ``failed(about, error)`` receives a job's exception."""
        self._clock = clock
        self._wake = wake
        self._failed = failed
        self._jobs: deque[tuple[Job, object]] = deque()
        self._spent = 0.0
        self._began = self._step_began = clock()
        self._woken = False
        self._asked_at = 0.0
        self._running: tuple[Job, object] | None = None
        self._owed: dict[Job, Done] = {}
        self._suspended: set[Job] = set()
        """Suspended jobs. The reporter may be gone with the only reference: a job and its parts, which refer
        to each other, must not be freed before they have ended."""
        self.steps = 0
        self.longest_seconds = 0.0

    # --- entries into the core ---
    def begin(self, now: float) -> None:
        """Begin an entry into the core; ``now`` is the clock's time."""
        self._began = self._step_began = now

    def end(self) -> None:
        """End the entry; its duration counts."""
        now = self._clock()
        took = now - self._began
        if took > self.longest_seconds:
            self.longest_seconds = took
        self._spent += took
        self._began = now
        if self._spent > TURN_SECONDS / 4:
            self._ask()

    @property
    def clock(self) -> Callable[[], float]:
        """Clock that measures the duration of work."""
        return self._clock

    @property
    def turn_used_up(self) -> bool:
        """Whether this turn's time is used up, so that deferrable work should `wait`."""
        return self._spent + self._clock() - self._began >= TURN_SECONDS

    @property
    def should_yield(self) -> bool:
        """Whether the running job should yield: its step took long and others wait, or the turn is over."""
        now = self._clock()
        if self._spent + now - self._began >= TURN_SECONDS:
            return True
        return now - self._step_began >= STEP_SECONDS and bool(self._jobs)

    # --- jobs ---
    @property
    def waiting(self) -> int:
        """Number of unfinished jobs."""
        return len(self._jobs)

    def start(self, job: Job, about: object, done: Done | None = None) -> None:
        """Start ``job`` at once if there is time; it takes turns until it is done or suspended.

        A job passes its result to ``done``, if given, which receives an error at a failure or `close`.
        """
        if len(self._jobs) >= JOBS_MAX:
            raise AssertionError(f"{JOBS_MAX} jobs wait")
        if done is not None:
            self._owed[job] = done
        if not self._jobs and not self.turn_used_up and not self._step(job, about):
            return
        self._jobs.append((job, about))
        self._ask()

    def turn(self) -> None:
        """Run a turn of the loop: steps of all jobs, repeatedly while there is time."""
        self._woken = False
        self._spent = max(0.0, min(self._spent - self._asked_at, TURN_SECONDS / 2))
        self._began = self._clock()
        jobs = self._jobs
        try:
            while jobs:
                job, about = jobs.popleft()
                if self._step(job, about):
                    jobs.append((job, about))
                if self.turn_used_up:
                    break
        finally:
            if jobs:
                self._ask()

    def _step(self, job: Job, about: object) -> bool:
        """Run one step; return whether there are more."""
        self.steps += 1
        self._step_began = self._clock()
        before, self._running = self._running, (job, about)
        try:
            return next(job) is not SUSPENDED
        except StopIteration:
            self._owed.pop(job, None)
            return False
        except Exception as error:
            self._failed(about, error)
            done = self._owed.pop(job, None)
            if done is not None:
                self._tell(done, about, error if isinstance(error, StoreError) else _failure_of(about, error))
            return False
        finally:
            self._running = before

    def first_step(self, job: Job, about: object) -> object:
        """Run a job's first step now; return what it yields, or `DONE` if that was all.

        By that the caller decides whether the job has to `start`. Exceptions propagate.
        """
        before, self._running = self._running, (job, about)
        try:
            return next(job, DONE)
        finally:
            self._running = before

    def run(self, job: Job, about: object) -> None:
        """Run a job's `first_step` now, even if the turn's time is used up, and `start` the rest."""
        if self.first_step(job, about) is not DONE:
            self.start(job, about)

    def wait(self, begin: Callable[[Callable[[T], None]], object]) -> Generator[bool | None, None, T]:
        """Wait, as a part of a job, for the call of the callback given to ``begin``; return its argument."""
        assert self._running is not None
        job, about = self._running
        reports: list[T] = []
        is_parked = False

        def report(found: T) -> None:
            reports.append(found)
            if is_parked:
                self._suspended.discard(job)
                self.start(job, about)

        begin(report)
        while not reports:
            is_parked = True
            self._suspended.add(job)
            yield SUSPENDED
        return reports[0]

    def close(self) -> None:
        """Stop all jobs and report an error to those waiting for them."""
        self._jobs.clear()
        owed, self._owed = self._owed, {}
        for job, done in owed.items():
            try:
                job.close()
            except Exception as error:
                self._failed(job, error)
            ends = StoreStopped("the broker ends before this was done; it may be done in part")
            self._tell(done, job, ends)

    def _tell(self, done: Done, about: object, error: StoreError) -> None:
        """Call ``done``; its exception is logged and does not stop other jobs or the broker's end."""
        try:
            done(error)
        except Exception as failure:
            self._failed(about, failure)

    def _ask(self) -> None:
        if not self._woken:
            self._woken = True
            self._asked_at = self._spent + self._clock() - self._began
            self._wake()


def _failure_of(about: object, error: Exception) -> StoreError:
    failure = StoreError(f"{about}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
