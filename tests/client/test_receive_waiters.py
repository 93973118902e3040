import asyncio
import signal
import threading
import time

import pytest
from doubles import raising
from waiting import eventually_async, loop_turns, start_thread

from geminga.client.io.waiter import Waiter
from geminga.client.receive.receive_waiters import ReceiveWaiters
from geminga.consumer.message import ALONE, ConsumerOrigin, ReceivedEntry
from geminga.consumer.queue import ReceiveQueue

ENTRY = ReceivedEntry(ConsumerOrigin("t", -1), 1, 0, None)


def made() -> tuple[ReceiveQueue, ReceiveWaiters]:
    queue = ReceiveQueue()
    return queue, ReceiveWaiters(queue, asyncio.get_running_loop())


async def turns(count: int = 5) -> None:
    await loop_turns(count)


async def test_as_many_are_woken_as_there_are_items():
    queue, receive_waiters = made()
    tasks = [asyncio.create_task(receive_waiters.wait(None)) for _ in range(3)]
    await turns()
    queue.add(ENTRY, range(2))
    await turns()
    assert [task.done() for task in tasks] == [True, True, False]
    receive_waiters.wake_all()
    await turns()
    assert all(task.done() for task in tasks)
    assert len(receive_waiters) == 0


async def test_a_receiver_whose_time_ends_as_it_is_woken_passes_the_wake_on():
    queue, receive_waiters = made()
    first = asyncio.create_task(receive_waiters.wait(0))
    second = asyncio.create_task(receive_waiters.wait(None))
    await loop_turns()
    queue.add(ENTRY, ALONE)
    await turns()
    assert first.done()
    assert first.result() or second.done()


async def test_threads_and_tasks_share_one_wait_queue():
    queue, receive_waiters = made()
    results: list[bool] = []
    thread = start_thread(lambda: results.append(receive_waiters.wait_here(10, lambda: None)))
    await eventually_async(lambda: len(receive_waiters))
    task = asyncio.create_task(receive_waiters.wait(None))
    await turns()
    queue.add(ENTRY, ALONE)
    await asyncio.get_running_loop().run_in_executor(None, thread.join, 10)
    assert results == [True]
    assert not task.done()
    task.cancel()


async def test_a_thread_that_finds_something_does_not_sleep():
    queue, receive_waiters = made()
    queue.add(ENTRY, ALONE)
    assert receive_waiters.wait_here(None, lambda: pytest.fail("there is something"))
    assert len(receive_waiters) == 0


async def test_an_error_of_the_check_leaves_no_receiver_waiting():
    _queue, receive_waiters = made()
    with pytest.raises(ValueError, match="the end"):
        receive_waiters.wait_here(None, raising(ValueError("the end")))
    assert len(receive_waiters) == 0


async def test_a_thread_that_is_woken_and_leaves_by_a_signal_passes_the_wake_on(monkeypatch):
    """The handler raises when the thread was woken and has not looked."""
    queue, receive_waiters = made()
    other = asyncio.get_running_loop().create_future()

    def interrupted(waiter: Waiter, timeout: float | None = None) -> bool:
        receive_waiters._wake_ready()  # it had to wait: now something comes, and it is woken
        receive_waiters._waiting.append(other)
        raise KeyboardInterrupt

    monkeypatch.setattr(Waiter, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        receive_waiters.wait_here(None, lambda: queue.lots.append((ENTRY, iter(ALONE))))
    await turns()
    assert other.done()


def test_a_signal_that_reached_another_thread_ends_the_wait():
    thread = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    begin = time.monotonic()

    def wait() -> None:
        thread.start()  # in here: it may come before the wait has begun
        Waiter().wait(60)

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() - begin < 30
    thread.join(60)
