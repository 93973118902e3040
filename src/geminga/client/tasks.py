"""Tasks of the client's own: they end with their loop, and say nothing when it is closed under them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
