"""`Waiter`: one thread that waits for one thing."""

from __future__ import annotations

import threading


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
        """Sleep, at most ``timeout`` seconds; whether it was woken."""
        return self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
