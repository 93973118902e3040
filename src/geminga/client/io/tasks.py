"""Tasks of the client, which end with their loop, without a message if it is closed under them.

`OnceTask` is a task that several callers wait for and none cancels.
"""

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


def seen(task: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved: the waiting caller may be cancelled."""
    if not task.cancelled():
        task.exception()


def resolve(future: asyncio.Future[Any], error: Exception | None = None, result: Any = None) -> None:
    """Set the result of a future, or its error; it is done already if its waiter was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # mark it as retrieved: the waiter may be cancelled
