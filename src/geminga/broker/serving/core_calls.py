"""Calls of the event loop into the broker core, with the core's timer, turns and store completions.

Calls may be nested. When the outermost call ends, ready completions of the store run, the output of the core
is sent, and the timer is set to the core's next deadline. An idle broker does not wake up. The store
reports from its own threads; however many completions a group commit brings, the loop is woken once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from geminga.broker.core import Broker

T = TypeVar("T")


class CoreCalls:
    """Calls into a core on the running event loop. ``polled`` is called after each poll of the store."""

    broker: Broker
    """Set when the broker is open, before the loop runs again."""

    def __init__(self, polled: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._polled = polled
        self._depth = 0
        self._entry = _Entry(self)
        self._dirty: list[Callable[[], None]] = []
        self._flush_scheduled = False
        self._poll_scheduled = False
        self._poll_now = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._is_stopping = False
        self._has_ended = False

    # --- calls ---
    def entry(self) -> _Entry:
        """Return a context manager for a call into the core."""
        return self._entry

    def call(self, function: Callable[[], T]) -> T:
        """Run an administrative function as a call into the core."""
        with self._entry:
            self.broker.scheduler.enter(time.monotonic(), time.time_ns() // 1_000_000)
            try:
                return function()
            finally:
                self.broker.scheduler.leave()

    def enter(self, now: float) -> None:
        """Begin a call into the core."""
        if not self._depth:
            self.broker.slices.begin(now)
        self._depth += 1

    def leave(self) -> None:
        """End a call; the outermost one runs ready completions, sends the output, and sets the timer."""
        if self._depth == 1:
            while self._poll_now:
                self._poll_now = self._poll_scheduled = False
                self.broker.poll(time.monotonic(), time.time_ns() // 1_000_000)
        self._depth -= 1
        if self._depth:
            return
        if self._dirty:
            self._flush_dirty()
        self.broker.slices.end()
        if self.broker.deadline < self._timer_at:
            self._arm(self.broker.deadline)

    def mark_dirty(self, flush: Callable[[], None]) -> None:
        """Schedule ``flush``, which sends a connection's output, for the end of the outermost call."""
        self._dirty.append(flush)
        if not self._depth and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_dirty)

    def _flush_dirty(self) -> None:
        self._flush_scheduled = False
        dirty, self._dirty = self._dirty, []
        for flush in dirty:
            flush()

    # --- store completions ---
    def wakeup(self) -> None:
        """Wake up the loop for completions; called from any thread."""
        if self._poll_scheduled:
            return
        self._poll_scheduled = True
        if threading.get_ident() == self._thread_id:
            if self._depth:
                self._poll_now = True
            else:
                self._loop.call_soon(self._poll)
            return
        # The loop may be closed already when the store reports its last writes at shutdown.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._poll)

    def _poll(self) -> None:
        self._poll_scheduled = False
        if self._has_ended:
            return
        with self._entry:
            self.broker.poll(time.monotonic(), time.time_ns() // 1_000_000)
        self._polled()

    # --- turns and time ---
    def ask_for_turn(self) -> None:
        """Continue the core's unfinished work in the next iteration of the loop."""
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if not self._has_ended:
            with self._entry:
                self.broker.turn(time.monotonic(), time.time_ns() // 1_000_000)

    def tick(self) -> None:
        """Run the core's due timers, and set the timer of the loop."""
        self._timer, self._timer_at = None, float("inf")
        with self._entry:
            self.broker.tick(time.monotonic(), time.time_ns() // 1_000_000)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline != float("inf") and not self._is_stopping:
            self._timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), self.tick)

    def stop_timer(self) -> None:
        """Cancel the timer, and set no further one."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Ignore scheduled turns and later completions."""
        self.stop_timer()
        self._has_ended = True


class _Entry:
    """Context manager of `CoreCalls.entry`; it holds no state, so one object serves all calls."""

    __slots__ = ("_calls",)

    def __init__(self, calls: CoreCalls) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        self._calls.enter(time.monotonic())

    def __exit__(self, *_: object) -> None:
        self._calls.leave()
