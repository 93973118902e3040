"""`Waiter`: wait of one thread for one event."""

import threading
import time

SIGNAL_CHECK_SECONDS = 0.2
"""Interval at which a waiting main thread lets the interpreter handle signals that reached another thread of
the process: those do not interrupt a lock, and on Windows no signal does."""


class Waiter:
    """A thread sleeps in `wait` until `wake` was called once, on any thread. Cheaper than an Event, and
    without a shared lock: the waking thread never waits for the sleeping one."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Wake the thread; to be called once."""
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep, at most ``timeout`` seconds; return whether it was woken."""
        if threading.current_thread() is not threading.main_thread():
            return self._lock.acquire(True, -1 if timeout is None else max(0.0, timeout))
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SIGNAL_CHECK_SECONDS
            if deadline is not None:
                left = min(left, max(0.0, deadline - time.monotonic()))
            if self._lock.acquire(True, left):
                return True
            if left < SIGNAL_CHECK_SECONDS:
                return False
