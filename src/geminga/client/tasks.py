"""Tasks of the client's own: they end with their loop, and say nothing when it is closed under them.

`OnceTask` is one that everybody may wait for and nobody takes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], name: str | None = None
) -> asyncio.Task[T]:
    """Run a coroutine on the loop, as long as that runs.

    Where Ctrl+C comes while ``asyncio.run`` ends, the loop is closed under all that still runs. That is
    nobody's mistake, and no line on stderr for each task; ``asyncio.gather`` makes its tasks in the same way.
    """
    task = loop.create_task(coroutine, name=name)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


class OnceTask:
    """The end of something, begun once. Whoever asks for it waits for the same; one who is cancelled does not
    wait any longer, and it goes on: half an end would stay attached to the broker, with nobody left to say
    so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Somebody has asked for it, and it may be done."""
        return self._task is not None

    @property
    def under_way(self) -> bool:
        """It was begun and is not done."""
        return self._task is not None and not self._task.done()

    async def wait(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin it with ``end``, if nobody has, and wait."""
        # It is not kept: what ends holds this, and would hold itself.
        if self._task is None:
            self._task = run_task(self._loop, end())
            self._task.add_done_callback(seen)
        await asyncio.shield(self._task)


def seen(task: asyncio.Task[Any]) -> None:
    """Mark the exception as seen: whoever asked may have gone, for example cancelled."""
    if not task.cancelled():
        task.exception()
