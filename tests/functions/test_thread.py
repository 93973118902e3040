"""The thread of plain callables."""

import asyncio
import threading
import weakref
from typing import Any

import pytest
from interpreter import run_python

from geminga.functions.thread import CallingThread


class Thing:
    pass


async def test_calls_run_in_order_and_raise_their_exceptions():
    thread = CallingThread("calls")
    assert await asyncio.gather(*(thread.run(int, str(n)) for n in range(5))) == list(range(5))
    assert await thread.run(threading.current_thread) is thread.thread
    with pytest.raises(ValueError, match="invalid literal"):
        await thread.run(int, "x")
    thread.end()
    await asyncio.to_thread(thread.thread.join, 30)
    assert not thread.thread.is_alive()


async def test_a_finished_call_is_freed_before_the_next_one():
    thread = CallingThread("calls")
    thing = Thing()
    gone = weakref.ref(thing)
    assert await thread.run(lambda each: isinstance(each, Thing), thing)
    del thing
    done = await thread.run(lambda: True)  # the thread has come round
    assert done
    assert gone() is None
    thread.end()


def test_the_result_of_a_cancelled_call_is_dropped():
    entered, leave = threading.Event(), threading.Event()

    def held(_: Any = None) -> None:
        entered.set()
        leave.wait(30)

    async def main() -> CallingThread:
        thread = CallingThread("calls")
        call = thread.run(held)
        await asyncio.to_thread(entered.wait, 30)
        call.cancel()
        entered.clear()
        leave.set()
        assert await thread.run(lambda: 7) == 7
        leave.clear()
        thread.run(held)
        await asyncio.to_thread(entered.wait, 30)
        thread.end()
        return thread

    thread = asyncio.run(main())
    leave.set()  # after the loop has ended
    thread.thread.join(30)
    assert not thread.thread.is_alive()


def test_a_call_that_never_returns_does_not_keep_the_process_alive():
    program = """
import asyncio, threading
from geminga.functions.thread import CallingThread

async def main():
    CallingThread("calls").run(threading.Event().wait)

asyncio.run(main())
"""
    done = run_python(program)
    assert (done.returncode, done.stderr) == (0, "")
