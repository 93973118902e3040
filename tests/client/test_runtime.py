import asyncio
import gc
import selectors
import signal
import sys
import threading
import warnings

import pytest
from waiting import Blocked, eventually

from geminga._util.event_loops import new_event_loop
from geminga.client.io import runtime as module
from geminga.client.io.runtime import LoopThread, _Loop
from geminga.errors import AlreadyClosed, Timeout, UsageError


@pytest.fixture
def runtime():
    runtime = LoopThread("test-io")
    yield runtime
    runtime.close()


async def value(result):
    return result


async def failing(error):
    raise error


async def for_ever():
    await asyncio.Event().wait()


def test_a_time_out_cancels_the_coroutine(runtime):
    cancelled = threading.Event()

    async def wait():
        try:
            await for_ever()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(Timeout, match=r"0\.01 s"):
        runtime.call(wait(), 0.01)
    assert cancelled.wait(60)


def test_the_coroutines_own_time_out_is_kept(runtime):
    with pytest.raises(Timeout, match="mine"):
        runtime.call(failing(Timeout("mine")), 5)


def test_close_ends_waiting_calls(runtime):
    waiting = Blocked(lambda: runtime.call(for_ever()))
    eventually(lambda: runtime.call(calls_of(runtime)))
    runtime.close()
    assert isinstance(waiting.ended(), AlreadyClosed)
    with pytest.raises(AlreadyClosed):
        runtime.call(value(1))
    runtime.close()


def test_a_blocking_call_from_the_loop_is_refused(runtime):
    async def call():
        runtime.call(value(1))

    with pytest.raises(UsageError, match="own I/O thread"):
        runtime.call(call())


def test_uvloop_is_used_when_installed():
    uvloop = pytest.importorskip("uvloop")
    loop = new_event_loop()
    assert isinstance(loop, uvloop.Loop)
    loop.close()


def test_a_signal_handler_may_call_in_the_middle_of_a_call(runtime):
    """A waiting thread holds no lock, so that a call in the signal handler completes."""
    results = []

    def handler(number, frame):
        results.append(runtime.call(value(1)))

    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(20):

            async def kill_and_wait():
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                await asyncio.sleep(0.001)
                return 2

            assert runtime.call(kill_and_wait(), 5) == 2
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert results == [1] * 20


def test_a_result_without_a_waiter_is_discarded(runtime):
    discarded = []
    given = threading.Event()

    def discard(result):
        discarded.append(result)
        given.set()

    async def stubborn():
        """Finishes although it was cancelled, as what opens a consumer may."""
        try:
            await for_ever()
        except asyncio.CancelledError:
            return "late"

    with pytest.raises(Timeout):
        runtime.call(stubborn(), 0.01, discard=discard)
    assert given.wait(60)
    assert discarded == ["late"]


def test_dropping_a_closed_runtime_warns_of_nothing(recwarn):
    gc.collect()
    recwarn.clear()  # drop the warnings about objects of other tests
    runtime = LoopThread("test-io")
    runtime.close()
    del runtime
    gc.collect()
    assert [w for w in recwarn if w.category is ResourceWarning] == []


@pytest.mark.filterwarnings("ignore:.*not closed:ResourceWarning")
def test_a_runtime_that_is_dropped_while_its_thread_begins():
    for _ in range(300):
        inner = _Loop("dropped-io")
        inner.thread.start()
        inner.dropped()
        inner.thread.join(30)
        assert not inner.thread.is_alive()


@pytest.mark.parametrize("locked", [True, False])
def test_an_interpreter_without_its_lock_is_warned_of(monkeypatch, locked):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: locked, raising=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        LoopThread().close()
    assert [w.category for w in said if "interpreter lock" in str(w.message)] == [RuntimeWarning] * (
        not locked
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_broken_loop_ends_and_fails_all_calls(monkeypatch, caplog):
    """A program that closes descriptors that are not its own, say: nothing would ever come to its turn."""
    selector = selectors.DefaultSelector()
    loop = asyncio.SelectorEventLoop(selector)
    monkeypatch.setattr(module, "new_event_loop", lambda: loop)
    runtime = LoopThread("test-io")
    steps = []

    async def farewell():
        steps.append("farewell")

    runtime.at_end("a runtime", farewell, lambda: steps.append("drop"), lambda: steps.append("sweep"))

    waiting = Blocked(lambda: runtime.call(for_ever()))
    eventually(lambda: runtime.call(calls_of(runtime)))

    class Broken:
        def __getattr__(self, name):
            raise OSError(9, "Bad file descriptor")

    runtime.post(setattr, loop, "_selector", Broken())
    assert isinstance(waiting.ended(), AlreadyClosed)
    runtime.thread.join(60)
    assert steps == ["drop", "sweep"]
    assert runtime.closed
    assert len(caplog.records) == 1, "a line for each iteration would fill the disk"
    with pytest.raises(AlreadyClosed):
        runtime.call(value(1))
    loop._selector = selector
    loop.close()


async def calls_of(runtime):
    """Return whether another thread waits for a call."""
    return len(runtime._inner.calls) > 1


def test_a_call_that_outlives_its_cancellation_fails_at_the_end(runtime):
    """The caller waits no longer than the thread runs."""
    begun = threading.Event()

    async def stubborn():
        begun.set()
        while True:
            try:
                await for_ever()
            except asyncio.CancelledError:
                continue
            except GeneratorExit:  # dropped
                return

    waiting = Blocked(lambda: runtime.call(stubborn()))
    assert begun.wait(60)
    runtime.close()
    assert isinstance(waiting.ended(), AlreadyClosed)
