"""`Waiter`: one thread that waits for one thing."""

from __future__ import annotations

import threading
import time

from geminga.client import forks
from geminga.errors import ForkedProcessError

LOOK_SECONDS = 0.2
"""So often a waiting main thread lets the interpreter see signals that reached another thread of the process:
no lock is told of those, and on Windows of none."""


class Waiter:
    """A thread sleeps in `wait` until `wake` was called once, on whichever thread. Cheaper than an Event,
    and nothing is held meanwhile: whoever wakes never waits for whoever sleeps."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """To be called once."""
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep, at most ``timeout`` seconds; whether it was woken.

        Raises `ForkedProcessError` in a child that a signal's handler has forked meanwhile: whoever would
        wake it is not there.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        deadline = None if timeout is None else time.monotonic() + timeout
        generation = forks.generation
        while True:
            if forks.generation != generation:
                raise ForkedProcessError("this is a child process; what the call waits for is its parent's")
            left = LOOK_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
            if self._lock.acquire(timeout=min(left, LOOK_SECONDS)):
                return True
            if left < LOOK_SECONDS:
                return False
