import signal
import threading
import time

import pytest
from waiting import start_thread

from geminga.client.waiter import Waiter


def test_a_wake_before_the_wait_is_not_lost():
    waiter = Waiter()
    waiter.wake()
    assert waiter.wait(0)


def test_a_thread_is_woken():
    waiter = Waiter()
    results: list[bool] = []
    thread = start_thread(lambda: results.append(waiter.wait(60)))
    waiter.wake()
    thread.join(60)
    assert results == [True]


def test_a_wait_returns_false_at_its_timeout():
    assert not Waiter().wait(0)
    assert not Waiter().wait(-1.0)


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
