"""Turns of the loop: long work is done in steps, and everybody has one before anybody has the next."""

import gc
from collections.abc import Callable

import pytest

from geminga.broker.runtime.cooperative import SUSPENDED, TURN_SECONDS, CooperativeScheduler, Job
from geminga.errors import StoreError, StoreStopped


class Shell:
    """A clock that jobs move, and a loop that counts how often it was asked for a turn."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0
        self.failures: list[tuple[object, Exception]] = []
        self.done: list[str] = []
        self.slices = CooperativeScheduler(
            lambda: self.now, self.wake, lambda about, error: self.failures.append((about, error))
        )

    def wake(self) -> None:
        self.asked += 1

    def job(self, name: str, steps: int, seconds: float = 0.002) -> Job:
        for _ in range(steps):
            self.now += seconds
            self.done.append(name)
            yield None
        self.done.append(f"{name} ends")


@pytest.fixture
def shell():
    return Shell()


def test_jobs_take_turns(shell):
    shell.slices.start(shell.job("a", 3), "a")
    shell.slices.start(shell.job("b", 2), "b")
    shell.slices.turn()
    assert shell.done == ["a", "a", "b", "a", "b", "a ends", "b ends"]
    assert shell.slices.waiting == 0


def test_a_turn_ends_when_its_time_is_used_up(shell):
    shell.slices.start(shell.job("long", 1_000), "long")
    before = shell.now
    for number in range(1, 4):
        shell.slices.turn()
        assert shell.asked == 1 + number
    assert 3 * TURN_SECONDS <= shell.now - before + 1e-6 < 3 * (TURN_SECONDS + 0.002) + 1e-6
    assert shell.slices.waiting == 1


def test_entries_and_jobs_share_a_turn(shell):
    shell.slices.begin(shell.now)
    shell.now += TURN_SECONDS + 0.001
    assert shell.slices.turn_used_up
    shell.slices.start(shell.job("late", 1), "late")
    assert shell.done == []
    shell.slices.end()
    assert shell.asked == 1
    shell.slices.turn()
    assert shell.done == ["late", "late ends"]
    assert not shell.slices.turn_used_up


def test_many_short_entries_request_a_new_turn(shell):
    for _ in range(100):
        shell.slices.begin(shell.now)
        shell.now += TURN_SECONDS / 50
        shell.slices.end()
    assert shell.slices.turn_used_up
    assert shell.asked == 1
    shell.slices.turn()
    assert not shell.slices.turn_used_up


def test_time_spent_by_entries_counts_against_a_turn(shell):
    """Sockets are looked at right before it: both together are not to take twice as long."""
    shell.slices.start(shell.job("long", 1_000), "long")

    def turn() -> float:
        """As the shell does it; how long it took."""
        before = shell.now
        shell.slices.begin(before)
        shell.slices.turn()
        shell.slices.end()
        return shell.now - before

    turn()
    assert turn() == pytest.approx(TURN_SECONDS, abs=0.0021), "nobody else did anything"
    for spent in (TURN_SECONDS / 4, 5 * TURN_SECONDS):
        shell.slices.begin(shell.now)
        shell.now += spent
        shell.slices.end()
        left = TURN_SECONDS - min(spent, TURN_SECONDS / 2)
        assert turn() == pytest.approx(left, abs=0.0021), "at least half of it"


def test_a_step_sees_when_its_time_is_used_up(shell):
    def walk(steps: list[int], length: int) -> Job:
        count = 0
        for _ in range(length):
            shell.now += 0.00051
            count += 1
            if shell.slices.should_yield:
                steps.append(count)
                count = 0
                yield None

    alone: list[int] = []
    shell.slices.start(walk(alone, 100), "walk")
    while shell.slices.waiting:
        shell.slices.turn()
    # Alone it has whole turns, of which the first began earlier.
    assert alone == [40, 40]
    first, second = list[int](), list[int]()
    shell.slices.turn()
    shell.slices.begin(shell.now)
    shell.now += TURN_SECONDS * 2
    shell.slices.start(walk(first, 16), "first")
    shell.slices.start(walk(second, 16), "second")
    shell.slices.end()
    while shell.slices.waiting:
        shell.slices.turn()
    assert first == [4, 4, 4, 4]
    assert second[:3] == [4, 4, 4]


# --- waiting ---
def test_a_waiting_job_costs_nothing_and_resumes_when_notified(shell):
    report: list[Callable[[str], None]] = []

    def waiter() -> Job:
        shell.done.append("asks")
        found = yield from shell.slices.wait(report.append)
        shell.done.append(found)
        yield None
        at_once: str = yield from shell.slices.wait(lambda tell: tell("at once"))
        shell.done.append(at_once)

    shell.slices.start(waiter(), "waiter")
    shell.slices.start(shell.job("other", 2), "other")
    shell.slices.turn()
    assert shell.done == ["asks", "other", "other", "other ends"]
    assert shell.slices.waiting == 0
    report[0]("told")
    shell.slices.turn()
    assert shell.done[4:] == ["told", "at once"]
    assert shell.slices.waiting == 0


def test_a_job_that_starts_another_one_waits_for_itself(shell):
    report: list[Callable[[str], None]] = []

    def waiter(name: str) -> Job:
        if name == "outer":
            shell.slices.start(waiter("inner"), "inner")
        shell.done.append((yield from shell.slices.wait(report.append)) + f" to {name}")

    assert shell.slices.first_step(waiter("outer"), "outer") is SUSPENDED
    for tell in report[::-1]:
        tell("told")
    assert shell.done == ["told to outer", "told to inner"]


def test_a_report_to_a_cancelled_job_is_ignored(shell):
    report: list[Callable[[None], None]] = []
    job = (lambda: (yield from shell.slices.wait(report.append)))()
    assert shell.slices.first_step(job, "job") is SUSPENDED
    job.close()
    report[0](None)
    assert shell.failures == []
    assert shell.slices.waiting == 0


# --- answers to callers ---
def test_the_caller_of_a_failing_job_gets_its_error(shell):
    told: list[object] = []

    def bad() -> Job:
        yield None
        raise KeyError("a fault of ours")

    shell.slices.start(bad(), "settling x", told.append)
    shell.slices.start(shell.job("good", 0), "good", told.append)
    shell.slices.turn()
    assert [str(error) for error in told] == ["settling x: KeyError: 'a fault of ours'"]
    assert [about for about, _ in shell.failures] == ["settling x"]
    assert shell.done[-1] == "good ends"


def test_callers_of_jobs_get_an_error_at_close(shell):
    told: list[object] = []
    ended: list[str] = []

    def parked() -> Job:
        try:
            yield from shell.slices.wait(lambda tell: None)
        finally:
            ended.append("parked")

    shell.slices.start(parked(), "parked", told.append)
    shell.slices.start(shell.job("long", 1_000), "long", told.append)
    shell.slices.start(shell.job("nobody waits", 1_000), "nobody waits")
    shell.slices.close()
    assert [type(error) for error in told] == [StoreStopped, StoreStopped]
    assert ended == ["parked"]
    assert shell.slices.waiting == 0
    shell.slices.close()
    assert len(told) == 2


def test_an_answer_that_raises_does_not_stop_other_answers(shell):
    told: list[object] = []

    def refuses(error: object) -> None:
        told.append(error)
        raise ValueError("nobody listens")

    def bad() -> Job:
        yield None
        raise KeyError("a fault of ours")

    def stubborn() -> Job:
        try:
            yield None
        finally:
            raise OSError("not now")

    shell.slices.start(bad(), "bad", refuses)
    shell.slices.start(shell.job("good", 1), "good", told.append)
    shell.slices.turn()
    assert shell.done == ["good", "good ends"]
    shell.slices.start(stubborn(), "stubborn", refuses)
    shell.slices.start(shell.job("long", 1_000), "long", refuses)
    shell.slices.start(shell.job("last", 1_000), "last", told.append)
    shell.slices.close()
    assert [type(error) for error in told] == [StoreError, StoreStopped, StoreStopped, StoreStopped]
    assert [str(error) for _, error in shell.failures].count("nobody listens") == 3


def test_an_exception_in_a_turn_requests_another_turn(shell):
    def interrupted() -> Job:
        yield None
        raise KeyboardInterrupt

    shell.slices.start(interrupted(), "interrupted")
    shell.slices.start(shell.job("good", 1), "good")
    asked = shell.asked
    with pytest.raises(KeyboardInterrupt):
        shell.slices.turn()
    assert shell.asked == asked + 1
    shell.slices.turn()
    assert shell.done[-1] == "good ends"


def test_a_suspended_job_without_a_report_ends_silently(shell):
    """The generators refer to each other: Python may close the inner one first and collect the outer one
    meanwhile, which then gets the error "generator already executing"."""
    slices, told = shell.slices, list[Exception]()

    def part() -> Job:
        yield from slices.wait(lambda _: None)

    def job() -> Job:
        try:
            yield from part()
        except Exception as error:
            told.append(error)

    slices.start(shell.job("long", 3, TURN_SECONDS), "long")
    slices.start(job(), "a job")
    # The job is what the collector comes to last.
    gc.freeze()
    slices.turn()
    slices.turn()
    slices.turn()
    gc.collect()
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as it was before: see tests/conftest.py
    assert not told
