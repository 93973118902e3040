"""`LongRunning`, by a worker that does nothing but what a test needs."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from geminga.client.io.long_running import LongRunning
from geminga.errors import AlreadyClosed

SECONDS = 60


class Work:
    """Something that a run holds on to."""


class Worker(LongRunning[str]):
    """Runs until it is stopped, or fails; calls ``within`` when it is ready."""

    def __init__(
        self, *, early: Exception | None = None, late: Exception | None = None,
        within: Callable[[Worker], Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__("worker")
        self.early, self.late, self.within = early, late, within
        self.held: weakref.ref[Work] | None = None
        self.ended = threading.Event()

    async def _work(self) -> str:
        work = Work()
        self.held = weakref.ref(work)
        if self.early is not None:
            raise self.early
        self._ready.set()
        if self.within is not None:
            self.within(self)
        if self.late is not None:
            raise self.late
        await self._stopping.wait()
        return "done"

    def _has_ended(self) -> None:
        super()._has_ended()
        self.ended.set()


def test_run_blocks_until_another_thread_stops_the_worker():
    worker = Worker(within=lambda worker: threading.Thread(target=worker.stop).start())
    assert worker.run(signals=False) == "done"
    assert worker.ended.is_set()


def test_a_worker_in_a_with_block_runs_on_its_own_thread():
    with Worker() as worker:
        assert not worker.ended.is_set()
        assert not worker.wait(0.01)
    assert worker.ended.is_set()
    assert worker.wait(0)
    worker.close()


@pytest.mark.parametrize("first", ["run", "start"])
@pytest.mark.parametrize("second", ["run", "start"])
def test_a_second_run_or_start_is_refused(first, second):
    worker = Worker()
    worker.stop()
    getattr(worker, first)()
    with pytest.raises(AlreadyClosed, match="worker runs once"):
        getattr(worker, second)()
    worker.close()


def test_a_stop_before_the_start_ends_it_at_once():
    worker = Worker()
    worker.stop()
    assert worker.run(signals=False) == "done"
    Worker().close()


def test_an_error_at_the_start_is_raised_once():
    worker = Worker(early=ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        worker.start()
    worker.close()
    with pytest.raises(ValueError, match="no"):
        Worker(early=ValueError("no")).run(signals=False)


@pytest.mark.parametrize("asked", ["close", "wait"])
def test_an_early_failure_is_raised_once_and_keeps_no_frames(asked):
    worker = Worker(late=ValueError("later"))
    # `start` or the later call raises the error, depending on the threads' order.
    with pytest.raises(ValueError, match="later"):
        getattr(worker.start(), asked)()
    worker.late = None
    worker.close()
    assert worker.wait(0)
    gc.collect()
    assert worker.held is not None
    assert worker.held() is None, "the failure's frames are kept"


@pytest.mark.parametrize("call", ["close", "wait"])
def test_no_thread_waits_for_an_end_that_waits_for_it(call):
    told: list[Any] = []

    def within(worker: Worker) -> None:
        told.append(getattr(worker, call)())
        worker.stop()

    worker = Worker(within=within).start()
    assert worker.wait(SECONDS)
    assert told == [None if call == "close" else False]


def test_ctrl_c_during_start_stops_the_worker():
    class Slow(Worker):
        async def _work(self) -> str:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await self._stopping.wait()
            return "done"

    worker = Slow()
    with pytest.raises(KeyboardInterrupt):
        worker.start()
    assert worker.wait(SECONDS)
    assert worker.ended.is_set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_and_the_previous_handler_is_restored(number):
    def mine(*_: object) -> None:
        """Not called."""

    async def later(worker: Worker) -> None:
        os.kill(os.getpid(), number)

    tasks: list[asyncio.Task[None]] = []
    before = signal.signal(number, mine)
    try:
        worker = Worker(within=lambda worker: tasks.append(asyncio.create_task(later(worker))))
        assert worker.run() == "done"
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)


PROGRAM = """
import os, signal, sys, time
from geminga.client.io.long_running import LongRunning

class Worker(LongRunning[None]):
    async def _work(self):
        self._ready.set()
        if sys.argv[1] == "fork":
            return await self._stopping.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        if sys.argv[1] == "busy":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)  # the loop gets no turn
        await self._stopping.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await __import__("asyncio").sleep(600)

if sys.argv[1] in ("signals", "busy"):
    Worker("worker").run()
with Worker("worker") as worker:
    child = os.fork()
    if child == 0:
        worker.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not worker.wait(0.1)
"""


@pytest.mark.parametrize(
    ("what", "code"), [("signals", 128 + signal.SIGTERM), ("busy", 128 + signal.SIGTERM), ("fork", 0)]
)
def test_the_second_signal_ends_the_process_and_a_forked_child_waits_for_nothing(what, code):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, what], capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (code, "")
