"""Receivers: the threads and tasks that wait for a message of one consumer, in one queue.

A receiver that finds the message queue empty joins the wait queue, checks once more, and sleeps. After
messages were added the loop wakes as many receivers from the front as there are messages, once for all that
arrived together. A woken receiver may find that another one took the message, and waits again. A woken
receiver that leaves without checking (time-out, cancellation, a signal handler's error) has the loop wake the
next one instead, so that no wake-up is lost.

The wait queue is a deque that all threads append to; only the loop's thread wakes. Nothing takes a lock.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from geminga.client.io.waiter import Waiter
from geminga.consumer.queue import ReceiveQueue


class WaitingReceiver(Protocol):
    """A waiting receiver other than a task."""

    def wake(self) -> None:
        """Wake the receiver, on the loop's thread or the one that calls `ReceiveWaiters.tell`; must not
        block."""


class ReceiveWaiters:
    """Wait queue for the messages of ``queue``. Created on the loop."""

    def __init__(self, queue: ReceiveQueue, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._loop = loop
        self._waiting: deque[WaitingReceiver | asyncio.Future[None]] = deque()
        self._scheduled = False
        queue.waiting = self._waiting
        queue.wake = self._wake

    def __len__(self) -> int:
        return len(self._waiting)

    # --- waking, on the loop ---------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._wake_ready)

    def _wake_ready(self) -> None:
        self._scheduled = False
        self._wake_first(self._queue.ready(len(self._waiting)))

    def wake_all(self) -> None:
        """Wake all receivers, as no more messages will arrive."""
        self._wake_first(len(self._waiting))

    def _wake_first(self, count: int) -> None:
        while count > 0 and self._waiting:
            try:
                waiter = self._waiting.popleft()
            except IndexError:  # the last one has just left
                return
            if not isinstance(waiter, asyncio.Future):
                waiter.wake()
            elif waiter.done():
                continue  # cancelled, and not removed yet
            else:
                waiter.set_result(None)
            count -= 1

    # --- waiting ---------------------------------------------------------------------------------

    async def wait(self, timeout: float | None) -> bool:
        """Wait until the queue may hold a message, as a task on the loop; return False on a time-out."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        checks = False
        try:
            async with asyncio.timeout(timeout):
                await waiter
            checks = True
        except TimeoutError:
            pass
        finally:
            if self._was_woken(waiter) and not checks and not self._loop.is_closed():
                self._wake()
        return checks

    def wait_here(self, timeout: float | None, check: Callable[[], None]) -> bool:
        """Block a thread other than the loop's until the queue may have a message; False on a time-out.
        ``check`` is called when the queue is still empty and raises if no more messages will arrive."""
        waiter = Waiter()
        found = False
        try:
            self._waiting.append(waiter)
            # Waiting first: messages added from now on wake this thread.
            if self._queue:
                found = True
            else:
                check()
                if waiter.wait(timeout):
                    return True  # woken, and so in the wait queue no more
        except BaseException:
            self._leave(waiter, False)
            raise
        self._leave(waiter, found)
        return found

    def tell(self, waiter: WaitingReceiver) -> None:
        """Have ``waiter.wake()`` called once, when the queue may hold a message; on any thread."""
        self._waiting.append(waiter)
        if self._queue and not self._was_woken(waiter):
            waiter.wake()

    def _leave(self, waiter: Waiter, checks: bool) -> None:
        if self._was_woken(waiter) and not checks:
            with suppress(RuntimeError):  # the loop has ended, and all receivers were woken
                self._loop.call_soon_threadsafe(self._wake_ready)

    def _was_woken(self, waiter: WaitingReceiver | asyncio.Future[None]) -> bool:
        """Remove a receiver; return whether it had been woken before."""
        try:
            self._waiting.remove(waiter)
        except ValueError:
            return True
        return False
