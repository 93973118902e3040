import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

from doubles import raising
from waiting import eventually

from geminga.ledger.worker import Worker


def test_jobs_run_in_order_and_finish_on_the_owners_thread():
    finished: deque[Callable[[], None]] = deque()
    ready = threading.Event()
    worker = Worker(finished, ready.set)
    worker.start()
    seen: list[object] = []
    threads: set[str] = set()

    def job(number: int) -> None:
        threads.add(threading.current_thread().name)
        if number == 1:
            raise OSError("the job's own fault")

    for number in range(3):
        worker.submit(
            lambda number=number: job(number), lambda error, number=number: seen.append((number, type(error)))
        )
    worker.stop()
    assert ready.is_set()
    assert not worker.busy
    assert seen == []
    while finished:
        finished.popleft()()
    assert seen == [(0, type(None)), (1, OSError), (2, type(None))]
    assert threads == {"geminga-store-worker"}


def test_without_a_thread_jobs_wait_for_their_owner():
    finished: deque[Callable[[], None]] = deque()
    worker = Worker(finished, lambda: None)
    ran: list[int] = []
    worker.submit(lambda: ran.append(1), lambda error: None)
    assert worker.busy
    assert ran == []
    worker.run_queued()
    assert ran == [1]
    assert not worker.busy
    worker.alarm(0.0)  # without a thread the alarm has no effect


def test_the_alarm_signals_once():
    ready = threading.Event()
    worker = Worker(deque(), ready.set)
    worker.start()
    worker.alarm(0.01)
    worker.alarm(30.0)  # an earlier alarm is set
    assert ready.wait(60)
    worker.stop()


def test_a_job_is_freed_before_the_next_one():
    class Much:
        pass

    finished: deque[Callable[[], None]] = deque()
    done = threading.Event()
    worker = Worker(finished, done.set)
    worker.start()
    much = Much()
    gone = weakref.ref(much)
    worker.submit(partial(id, much), lambda error: None)
    assert done.wait(60)
    del much
    while finished:
        finished.popleft()()
    eventually(lambda: gone() is None)
    worker.stop()


def test_the_next_job_runs_after_any_exception():
    """A panic of a compiled library is no Exception; the caller of the job must not wait for ever."""

    class Panic(BaseException): ...

    finished: deque[Callable[[], None]] = deque()
    signalled = threading.Event()
    worker = Worker(finished, signalled.set)
    reported: list[Exception | None] = []
    worker.start()
    worker.submit(raising(Panic("out of bounds")), reported.append)
    worker.submit(lambda: None, reported.append)
    assert worker.stop(10)
    while finished:
        finished.popleft()()
    assert not worker.busy
    assert "Panic('out of bounds')" in str(reported[0])
    assert reported[1] is None
