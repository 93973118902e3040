import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading

import pytest

from geminga.client.runtime import LoopThread, new_event_loop
from geminga.errors import AlreadyClosed, ForkedProcessError, Timeout, UsageError


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


def test_call_returns_and_raises(runtime):
    assert runtime.call(value(7)) == 7
    with pytest.raises(ZeroDivisionError):
        runtime.call(failing(ZeroDivisionError()))


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
    assert cancelled.wait(5)


def test_the_coroutines_own_time_out_is_kept(runtime):
    with pytest.raises(Timeout, match="mine"):
        runtime.call(failing(Timeout("mine")), 5)


def test_close_ends_waiting_calls(runtime):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(runtime.call, for_ever())
        runtime.call(asyncio.sleep(0.01))
        runtime.close()
        with pytest.raises(AlreadyClosed):
            waiting.result(10)
    with pytest.raises(AlreadyClosed):
        runtime.call(value(1))
    runtime.close()


def test_a_blocking_call_from_the_loop_is_refused(runtime):
    async def call():
        runtime.call(value(1))

    with pytest.raises(UsageError, match="own I/O thread"):
        runtime.call(call())


def test_post(runtime):
    done = threading.Event()
    runtime.post(done.set)
    assert done.wait(5)


def test_uvloop_is_used_when_installed():
    uvloop = pytest.importorskip("uvloop")
    loop = new_event_loop()
    assert isinstance(loop, uvloop.Loop)
    loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told(runtime):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ForkedProcessError):
                runtime.call(value(1))
            with pytest.raises(ForkedProcessError):
                runtime.post(print)
            runtime.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert runtime.call(value(2)) == 2


def test_the_interpreter_ends_with_an_open_runtime():
    program = (
        "from geminga.client.runtime import LoopThread\n"
        "import asyncio\n"
        "r = LoopThread()\n"
        "r.submit(asyncio.sleep(1000))\n"
        "print('end')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
