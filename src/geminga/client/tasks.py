"""Tasks of the client, which end with their loop, without a message if it is closed under them.

`OnceTask` is a task that several callers wait for and none cancels. `TimeLimits` cancels tasks in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str | None = None
) -> asyncio.Task[T]:
    """Run a coroutine on the loop as a task.

    If Ctrl+C ends ``asyncio.run``, the loop is closed under running tasks. That is no error to report on
    stderr for each task; ``asyncio.gather`` also creates its tasks this way.
    """
    task = loop.create_task(coroutine, name=name)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


class OnceTask:
    """A shutdown that runs once. All callers wait for the same run; a cancelled caller stops waiting, and the
    run continues: half a shutdown would leave the handle attached to the broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether it was started; it may be complete."""
        return self._task is not None

    @property
    def under_way(self) -> bool:
        """Whether it is running."""
        return self._task is not None and not self._task.done()

    async def wait(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start it with ``end``, unless it was started, and wait."""
        # ``end`` is not stored: it refers to this object's owner.
        if self._task is None:
            self._task = run_task(self._loop, end())
            self._task.add_done_callback(seen)
        await asyncio.shield(self._task)


class TimeLimits:
    """Time limits of tasks on one loop, as ``asyncio.timeout`` sets them, but with one timer for all: a timer
    costs more than an attempt that succeeds at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer_at = float("inf")
        self.running: set[TimeLimit] = set()
        """Limits of running tasks; a limit that is removed leaves the timer as it is, for the next ones."""

    def arm(self, when: float) -> None:
        """Cancel at ``when`` the tasks whose time has come."""
        if when < self._timer_at:
            self._timer_at = when
            self._loop.call_at(when, self._expire, when)

    def _expire(self, when: float) -> None:
        if when == self._timer_at:  # else an earlier timer was set meanwhile
            self._timer_at = float("inf")
            now = self._loop.time()
            for limit in [each for each in self.running if each.when <= now]:
                limit.expire()
            self.arm(min((each.when for each in self.running), default=float("inf")))


class TimeLimit:
    """Time limit of the current task in a ``with`` block, which raises `TimeoutError` at ``when``, a time of
    the loop's clock."""

    __slots__ = ("_cancelling", "_expired", "_limits", "_task", "when")

    def __init__(self, limits: TimeLimits, when: float) -> None:
        self.when = when
        self._limits = limits
        self._expired = False

    def __enter__(self) -> None:
        self._task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        self._cancelling = self._task.cancelling()
        self._limits.running.add(self)
        self._limits.arm(self.when)

    def expire(self) -> None:
        """Cancel the task, as the time has come."""
        self._limits.running.discard(self)
        self._expired = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._limits.running.discard(self)
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


def seen(task: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved: the waiting caller may be cancelled."""
    if not task.cancelled():
        task.exception()
