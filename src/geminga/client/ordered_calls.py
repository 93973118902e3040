"""Calls of asyncio programs that run on other threads, and begin one after the other, in their order."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class OrderedCalls:
    """For one producer on one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = asyncio.Lock()  # whoever has waited longest gets it

    async def submit(
        self, check: Callable[[], None], submit: Callable[[], concurrent.futures.Future[T]]
    ) -> T:
        """Call ``submit`` on a thread of the loop's default executor when all calls before have come back
        from theirs, and wait for the result of its future. Raises what ``check`` raises, before and when its
        turn has come. A call that is cancelled during ``submit`` is carried out all the same."""
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
            submitted.exception()  # whoever called may have gone
