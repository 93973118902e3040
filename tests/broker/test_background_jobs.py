"""Background work runs in slices with pauses, and waits without blocking other work."""

from collections.abc import Callable

import pytest

from geminga.broker.runtime.background_jobs import (
    PAUSE_SECONDS,
    SLICE_SECONDS,
    SLICE_STEPS_MAX,
    WorkQueue,
    start_in_background,
)
from geminga.broker.runtime.cooperative import CooperativeScheduler, Job
from geminga.broker.runtime.scheduler import Scheduler


class Shell:
    """A clock that work moves, and a scheduler that runs by it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(0.0, 0)
        self.jobs = CooperativeScheduler(lambda: self.now, lambda: None, lambda about, error: None)
        self.steps = 0
        self.slices: list[tuple[float, float]] = []
        self.over = 0

    def start(self, work: Job) -> None:
        self._run(lambda: start_in_background(self.scheduler, self.jobs, "work", work, self.is_over))

    def is_over(self) -> None:
        self.over += 1

    def _run(self, call: Callable[[], None]) -> None:
        began = self.now
        self.scheduler.enter(self.now)
        call()
        self.jobs.turn()
        self.slices.append((began, self.now))

    def run_due(self) -> bool:
        """Run the next timer; return False if no timer is set."""
        if self.scheduler.deadline == float("inf"):
            return False
        self.now = max(self.now, self.scheduler.deadline)
        self._run(self.scheduler.run_timers)
        return True

    def work(self, steps: int, seconds: float) -> Job:
        for _ in range(steps):
            self.now += seconds
            self.steps += 1
            yield None


@pytest.fixture
def shell():
    return Shell()


def test_background_jobs_take_a_third_of_the_time(shell):
    shell.start(shell.work(1_000, 0.001))
    assert shell.over == 0
    while shell.run_due():
        pass
    assert (shell.steps, shell.over) == (1_000, 1)
    assert all(end - begin <= SLICE_SECONDS + 0.0011 for begin, end in shell.slices)
    assert shell.now > 1.0 + 150 * PAUSE_SECONDS


def test_without_a_clock_steps_are_counted(shell):
    shell.start(shell.work(2 * SLICE_STEPS_MAX + 1, 0.0))
    assert shell.steps == SLICE_STEPS_MAX
    while shell.run_due():
        pass
    assert (shell.steps, len(shell.slices)) == (2 * SLICE_STEPS_MAX + 1, 3)


def test_a_waiting_job_sets_no_timer(shell):
    report: list[Callable[[str], None]] = []
    found: list[str] = []

    def work() -> Job:
        found.append((yield from shell.jobs.wait(lambda tell: tell("at once"))))
        found.append((yield from shell.jobs.wait(report.append)))

    shell.start(work())
    assert found == ["at once"]
    assert not shell.run_due()
    report[0]("later")
    assert (found, shell.over) == (["at once", "later"], 1)


def test_a_failing_job_ends_and_is_logged(shell, caplog):
    def work() -> Job:
        yield None
        raise RuntimeError("broken")

    shell.start(work())
    assert (shell.over, shell.scheduler.failures["housekeeping"]) == (1, 1)
    assert "'work': housekeeping failed" in caplog.text
    shell.start(shell.work(1, 0.0))
    assert shell.over == 2


def test_queued_work_runs_one_at_a_time_in_order():
    queue, begun = WorkQueue(), list[str]()

    class Work:
        def __init__(self, name: str) -> None:
            self.name = name

        def begin(self) -> None:
            begun.append(self.name)

    a, b, c, d = map(Work, "abcd")
    for work in (a, b, c, d):
        queue.enter(work)
    assert begun == ["a"]
    queue.leave(b)
    assert begun == ["a"], "one that waits may leave"
    queue.leave(a)
    queue.leave(c)
    assert begun == ["a", "c", "d"]
