"""Turns: how long one turn of the event loop may work before others are heard again.

Whatever may take long is a *job*: an iterator that works a little at each step and says by ending that it
is done. What it has to wait for, the disk above all, it waits for in `CooperativeScheduler.wait`, and nobody with it. Jobs
take turns, one step each; when `TURN_SECONDS` of a turn are used up the rest waits for the next one, and in
between the loop reads sockets and runs timers. So a peer with a heap of commands, or with one that walks over
every topic, slows itself down and not the others.

A turn is what happens between two calls of `turn`. The shell tells what it spends on entries into the
core (`begin`, `end`) and calls `turn` soon after ``wake`` was called. What entries spend in between counts
against that turn, up to half of it: the loop may have looked at sockets just before. The clock is handed in,
as chance and time are elsewhere: in simulations it is virtual.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from geminga.errors import StoreError, StoreStopped
from geminga.ledger.api import Done

TURN_SECONDS: Final = 0.02
"""What one turn of the loop may work for the core before the loop looks at everybody again."""
STEP_SECONDS: Final = 0.002
"""What one step of a job should take while others wait; `CooperativeScheduler.should_yield` says when it is used up."""
JOBS_MAX: Final = 100_000
"""Jobs that may wait, far above one for each connection and resource: more is a broken invariant."""

SUSPENDED: Final = True
"""Yielded by a job that cannot go on until something happens: whoever waits for that starts it again."""

DONE: Final = object()
"""What `CooperativeScheduler.first_step` gives when a job is done."""

Job = Generator[bool | None, None, None]
T = TypeVar("T")


class CooperativeScheduler:
    """See the module."""

    __slots__ = (
        "_asked_at",
        "_began",
        "_clock",
        "_failed",
        "_jobs",
        "_owed",
        "_running",
        "_spent",
        "_step_began",
        "_suspended",
        "_wake",
        "_woken",
        "longest_seconds",
        "steps",
    )  # fmt: skip

    def __init__(
        self,
        clock: Callable[[], float],
        wake: Callable[[], None],
        failed: Callable[[object, Exception], None],
    ) -> None:
        """``wake`` asks the shell for a `turn`; ``failed(about, error)`` is told what a job raised."""
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
        """Those that wait for a report. Whoever is to report may be gone, with the only reference: of a job
        and its parts, which refer to each other, the job must not be let go of before they have ended."""
        self.steps = 0
        self.longest_seconds = 0.0

    # --- entries into the core ---
    def begin(self, now: float) -> None:
        """An entry into the core begins; ``now`` is the clock's time."""
        self._began = self._step_began = now

    def end(self) -> None:
        """It ends: what it took counts."""
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
        """What measures how long work takes."""
        return self._clock

    @property
    def over(self) -> bool:
        """Whether this turn's time is used up: what can wait should `wait`."""
        return self._spent + self._clock() - self._began >= TURN_SECONDS

    @property
    def should_yield(self) -> bool:
        """Whether the job that runs should yield: its step took long and others wait, or the turn is over."""
        now = self._clock()
        if self._spent + now - self._began >= TURN_SECONDS:
            return True
        return now - self._step_began >= STEP_SECONDS and bool(self._jobs)

    # --- jobs ---
    @property
    def waiting(self) -> int:
        """Jobs that are not done."""
        return len(self._jobs)

    def start(self, job: Job, about: object, done: Done | None = None) -> None:
        """Begin with ``job`` at once if there is time; it takes turns until it is done or parked.

        ``done``, if given, is what the job itself tells its outcome to. It is told why here when the job does
        not get that far: because it failed, or at `close`.
        """
        if len(self._jobs) >= JOBS_MAX:
            raise AssertionError(f"{JOBS_MAX} jobs wait")
        if done is not None:
            self._owed[job] = done
        if not self._jobs and not self.over and not self._step(job, about):
            return
        self._jobs.append((job, about))
        self._ask()

    def turn(self) -> None:
        """A new turn of the loop: every job has a step, again and again while there is time."""
        self._woken = False
        self._spent = max(0.0, min(self._spent - self._asked_at, TURN_SECONDS / 2))
        self._began = self._clock()
        jobs = self._jobs
        try:
            while jobs:
                job, about = jobs.popleft()
                if self._step(job, about):
                    jobs.append((job, about))
                if self.over:
                    break
        finally:
            if jobs:
                self._ask()

    def _step(self, job: Job, about: object) -> bool:
        """One step; whether there are more."""
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
        """A job's first step, here and now: what it yields, or `DONE` when that was all.

        Whoever asks for it decides by that whether the job has to `start`. What it raises comes through.
        """
        before, self._running = self._running, (job, about)
        try:
            return next(job, DONE)
        finally:
            self._running = before

    def wait(self, begin: Callable[[Callable[[T], None]], object]) -> Generator[bool | None, None, T]:
        """A part of a job: gives what is reported to what ``begin`` is handed, once; parked until then."""
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
        """No job goes on: whoever waits for one is told so."""
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
        """What that raises keeps nobody else from going on, nor the broker from ending."""
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
