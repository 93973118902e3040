"""Thread that calls plain callables outside the event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class CallingThread:
    """Daemon thread that runs one call after the other. Unlike an executor's threads, it does not keep the
    process alive if a call never returns."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._queue = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def run(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run ``call`` on the thread and return its result. Awaited on the event loop."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((future, call, arguments))
        return future

    def end(self) -> None:
        """End the thread after the current call."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, call, arguments = item
            result = error = None
            try:
                result = call(*arguments)
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            del item, future, call, arguments, result, error  # else the references live until the next call


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # the waiter was cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
