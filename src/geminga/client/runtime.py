"""The thread behind the sync API: one daemon thread with an event loop for each sync client.

The calling thread hands coroutines over with `LoopThread.call` and waits. After ``fork`` the child has
no such thread any more: every call there raises `ForkedProcessError` instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from geminga.errors import AlreadyClosed, ForkedProcessError, Timeout, UsageError

T = TypeVar("T")

logger = logging.getLogger("geminga")

_CLOSE_TIMEOUT_SECONDS = 5.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's event loop when it is installed, asyncio's otherwise."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """An event loop that runs in a thread of its own.

    ``loop`` is the loop. Everything that belongs to it is touched on its thread only; `call`, `submit`
    and `post` are the ways in and may be used from any other thread.
    """

    def __init__(self, name: str = "geminga-io") -> None:
        self.loop = new_event_loop()
        self.forked = False
        self._closed = False
        self._closing_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _live.add(self)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def thread(self) -> threading.Thread:
        """The I/O thread: no blocking call may be made on it."""
        return self._thread

    def check(self) -> None:
        """Raises `ForkedProcessError` in a forked child and `AlreadyClosed` after `close`."""
        if self.forked:
            raise ForkedProcessError(
                "this client was created before fork(); its I/O thread does not exist in this process. "
                "Create a client in the child process"
            )
        if self._closed:
            raise AlreadyClosed("the client is closed")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop and return at once."""
        try:
            self.check()
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException:
            coroutine.close()
            raise

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result, at most ``timeout`` seconds.

        When the wait ends early (time-out, KeyboardInterrupt) the coroutine is cancelled. Raises
        `Timeout`, `AlreadyClosed`, `ForkedProcessError`, or what the coroutine raised.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError("a blocking call was made from the client's own I/O thread; use another thread")
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:
            raise AlreadyClosed("the client was closed during the call") from None
        except BaseException as error:
            if future.done() and not future.cancelled():
                raise  # the coroutine's own error, a TimeoutError included
            future.cancel()
            if isinstance(error, concurrent.futures.TimeoutError):
                raise Timeout(f"no result within {timeout:g} s") from None
            raise

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Run a plain function on the loop soon; for the hot path, where no result is awaited.

        Raises `ForkedProcessError` and `AlreadyClosed`.
        """
        if self.forked:
            self.check()  # the wake-up would reach the parent's loop: both share its pipe
        try:
            self.loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            self.check()
            raise

    def close(self) -> None:
        """Cancel what runs, stop the loop, end the thread. May be called again; harmless after fork."""
        with self._closing_lock:
            if self._closed or self.forked:
                return
            self._closed = True
        _live.discard(self)
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_TIMEOUT_SECONDS)
            if self._thread.is_alive():
                logger.warning("the I/O thread did not end within %g s", _CLOSE_TIMEOUT_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            try:
                self._cancel_all()
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
            except Exception:
                logger.debug("closing the I/O loop", exc_info=True)
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))


_live: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for runtime in list(_live):
        runtime.forked = True


def _at_exit() -> None:
    for runtime in list(_live):
        with contextlib.suppress(Exception):
            runtime.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
