"""Receivers: the threads and tasks that wait for a message of one consumer, in one line.

Whoever finds the queue empty stands in line, looks once more, and sleeps. After something was added the loop
wakes as many from the front as there are items, once for all that arrived together: nobody could run before.
To be woken is no promise: another receiver may take the item first, and who was woken stands in line again.
Whoever leaves without looking (its time is over, it was cancelled, a signal's handler raised) and had been
woken has the loop wake the next one instead, so that no wake-up is lost.

The line is a deque that everybody appends to; only the loop's thread wakes. Nothing is locked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from geminga.client.waiter import Waiter
from geminga.consumer.queue import ReceiveQueue


class WaitingReceiver(Protocol):
    """Who stands in line and is not a task."""

    def wake(self) -> None:
        """On the loop's thread, or on the one that calls `ReceiveWaiters.tell`: must not block."""


class ReceiveWaiters:
    """The line in front of ``queue``. Made on the loop."""

    def __init__(self, queue: ReceiveQueue, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._loop = loop
        self._line: deque[WaitingReceiver | asyncio.Future[None]] = deque()
        self._scheduled = False
        queue.waiting = self._line
        queue.wake = self._wake

    def __len__(self) -> int:
        return len(self._line)

    # --- waking, on the loop ---------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        self._scheduled = False
        self._wake_first(self._queue.ready(len(self._line)))

    def wake_all(self) -> None:
        """Nothing more will come: everybody is to see why."""
        self._wake_first(len(self._line))

    def _wake_first(self, count: int) -> None:
        while count > 0 and self._line:
            try:
                waiter = self._line.popleft()
            except IndexError:  # the last one has just left
                return
            if not isinstance(waiter, asyncio.Future):
                waiter.wake()
            elif waiter.done():
                continue  # cancelled, and not yet gone
            else:
                waiter.set_result(None)
            count -= 1

    # --- waiting ---------------------------------------------------------------------------------

    async def wait(self, timeout: float | None) -> bool:
        """As a task on the loop: until the queue may hold something; False when the time is over."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._line.append(waiter)
        looks = False
        try:
            async with asyncio.timeout(timeout):
                await waiter
            looks = True
        except TimeoutError:
            pass
        finally:
            if self._left_line(waiter) and not looks and not self._loop.is_closed():
                self._wake()
        return looks

    def wait_here(self, timeout: float | None, check: Callable[[], None]) -> bool:
        """On any other thread: `wait`. ``check`` is called when the queue is still empty and raises when
        nothing will come any more."""
        waiter = Waiter()
        looks = False
        try:
            self._line.append(waiter)
            # In line first: whoever adds from now on wakes this thread.
            if not self._queue:
                check()
                if not waiter.wait(timeout):
                    return False
            looks = True
            return True
        finally:
            try:
                self._leave(waiter, looks)
            except BaseException:
                # A signal's handler raised: somebody who has gone must not stay in line.
                self._leave(waiter, looks=False)
                raise

    def tell(self, waiter: WaitingReceiver) -> None:
        """On any thread: ``waiter.wake()`` is called once, when the queue may hold something."""
        self._line.append(waiter)
        if self._queue and not self._left_line(waiter):
            waiter.wake()

    def _leave(self, waiter: Waiter, looks: bool) -> None:
        if self._left_line(waiter) and not looks:
            with suppress(RuntimeError):  # the loop has ended, and everybody was woken
                self._loop.call_soon_threadsafe(self._hand_out)

    def _left_line(self, waiter: WaitingReceiver | asyncio.Future[None]) -> bool:
        """Whether it had been woken before it left."""
        try:
            self._line.remove(waiter)
        except ValueError:
            return True
        return False
