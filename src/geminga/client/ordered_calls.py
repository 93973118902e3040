"""Calls of asyncio programs that run on executor threads, one after the other, in order."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class OrderedCalls:
    """Ordered calls for one producer on one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = asyncio.Lock()  # asyncio locks are first in, first out

    async def submit(
        self, check: Callable[[], None], submit: Callable[[], concurrent.futures.Future[T]]
    ) -> T:
        """Call ``submit`` on a thread of the loop's default executor when all earlier submits have returned,
        and wait for the result of its future. Raises the errors of ``check``, which runs before and after
        waiting. A call that is cancelled during ``submit`` is still carried out."""
        check()
        await self._free.acquire()
        try:
            check()
            submitted = self._loop.run_in_executor(None, submit)
        except BaseException:
            self._free.release()
            raise
        submitted.add_done_callback(self._next)
        return await asyncio.wrap_future(await asyncio.shield(submitted))

    def _next(self, submitted: asyncio.Future[Any]) -> None:
        self._free.release()
        if not submitted.cancelled():
            submitted.exception()  # mark it as retrieved: the caller may be cancelled
