"""I/O thread of the synchronous API: one daemon thread with an event loop for each client.

The calling thread passes coroutines to `LoopThread.call` and sleeps, without a lock: a signal handler may
make other calls meanwhile, or raise, while the loop continues. After ``fork`` the child has no such thread:
every call raises `ForkedProcessError` instead of waiting forever.

Users of the loop refer to the `LoopThread`; the thread itself does not. When the last reference is dropped
without `close`, the thread emits a ``ResourceWarning``, sends pending messages and ends. No caller waits for
that: errors of a signal handler in a finalizer are swallowed, so finalizers must not block.
"""

import asyncio
import contextlib
import inspect
import logging
import os
import select
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from geminga._util.event_loops import new_event_loop
from geminga._util.exits import at_exit
from geminga.client.io import forks
from geminga.client.io.tasks import run_task
from geminga.client.io.waiter import Waiter
from geminga.errors import AlreadyClosed, ForkedProcessError, Timeout, UsageError

T = TypeVar("T")

logger = logging.getLogger("geminga")

_CLOSE_TIMEOUT_SECONDS = 5.0

FAREWELL_SECONDS_MAX = 2.0
"""Time that the end of the interpreter, of a loop, or of an abandoned client waits for pending messages."""

Farewell = Callable[[], Coroutine[Any, Any, None]]


class _Call:
    """A coroutine that a thread waits for. `start`, `give_up` and `ended` run on the loop's thread."""

    __slots__ = ("_abandoned", "_coroutine", "_discard", "_finished", "_task", "error", "result", "waiter")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], discard: Callable[[Any], object] | None) -> None:
        self.waiter = Waiter()
        self.result: Any = None
        self.error: BaseException | None = None
        self._coroutine = coroutine
        self._discard = discard
        self._abandoned = False
        self._finished = False
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        if self._abandoned:
            self._coroutine.close()
            return
        self._task = run_task(asyncio.get_running_loop(), self._coroutine)
        self._task.add_done_callback(self._done)

    def give_up(self) -> None:
        """Cancel, as the caller stopped waiting. A result that exists or arrives anyway is discarded."""
        self._abandoned = True
        if self._task is None:
            return
        if not self._task.done():
            self._task.cancel()
        elif self._discard is not None and not self._task.cancelled() and self._task.exception() is None:
            self._discard(self._task.result())

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._finished = True
        if task.cancelled():
            self.error = AlreadyClosed("the client was closed during the call")
        elif (error := task.exception()) is not None:
            self.error = error
        else:
            self.result = task.result()
            if self._abandoned and self._discard is not None:
                self._discard(self.result)
        self.waiter.wake()

    def ended(self) -> None:
        """Fail the call, as the loop ended before it started or finished."""
        if self._finished:
            return
        if self._task is not None and self._task.done():
            self._done(self._task)
            return
        if self._task is None or inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CREATED:
            self._coroutine.close()  # it never ran; suppress the warning about that
        self.error = AlreadyClosed("the client was closed during the call")
        self.waiter.wake()


class _Loop:
    """The thread, its loop, and the pending calls. It has no reference to its users."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, name: str) -> None:
        self.name = name
        self.forked = False
        self.closed = False
        self.calls: set[_Call] = set()
        self.farewell: Farewell | None = None
        self.drop: Callable[[], None] | None = None
        self.fail_leftovers: Callable[[], None] | None = None
        self._stopped = False
        self._broken = False
        self._begun = False
        self._ready = Waiter()
        self._refused: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises the error of creating the loop."""
        try:
            self.thread.start()
            self._ready.wait()
        except BaseException:
            # A signal handler raised: the thread stays unused.
            self.stop()
            raise
        if self._refused is not None:
            raise self._refused

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Schedule a callback. Raises ``RuntimeError`` if the loop has ended, or has not started."""
        if not self._begun:
            raise RuntimeError("the loop has not started")
        self.loop.call_soon_threadsafe(callback, *arguments)

    def stop(self) -> None:
        """End soon and cancel running calls. From any thread, any number of times."""
        self.closed = True
        with contextlib.suppress(RuntimeError):
            self.post(self._stop_once)

    def _stop_once(self) -> None:
        # A second stop would interrupt the steps that still run at the end.
        if not self._stopped:
            self._stopped = True
            self.loop.stop()

    def dropped(self) -> None:
        """End after the last user dropped the thread without closing it. The garbage collector may call this
        on any thread, at any moment."""
        if self.closed or self.forked:
            return
        begun = self._begun  # else a caller was interrupted while creating it
        if begun:
            _leaving.add(self)
        # Before the request to end: a thread that starts only now checks this first.
        self.closed = True
        try:
            if begun:
                warnings.warn(
                    f"{self.name} was not closed: call close(), or use it in a with statement",
                    ResourceWarning,
                    stacklevel=2,
                )
        finally:  # also if the warning is an error
            with contextlib.suppress(RuntimeError):
                self.post(self._take_leave)

    def _take_leave(self) -> None:
        task = self.loop.create_task(self.say_farewell())
        task.add_done_callback(lambda _: self._stop_once())

    async def say_farewell(self) -> None:
        """Send pending messages, for at most `FAREWELL_SECONDS_MAX`."""
        farewell, self.farewell = self.farewell, None
        if farewell is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(FAREWELL_SECONDS_MAX):
                    await farewell()

    def _run(self) -> None:
        # Created on this thread, which no signal handler interrupts, so that it is closed in any case.
        try:
            self.loop = new_event_loop()
        except BaseException as error:
            self._refused, self.closed = error, True
            self._ready.wake()
            return
        asyncio.set_event_loop(self.loop)
        _here.is_io = True
        self._begun = True
        if self.closed and self not in _leaving:
            self.loop.call_soon(self._stop_once)  # `stop` found no loop to post to
        self._ready.wake()
        try:
            while not self._stopped:
                self._turn()
        finally:
            self.closed = True
            try:
                for step in (self.drop, *(() if self._broken else (self._cancel_all, self._end_others))):
                    try:
                        if step is not None:
                            step()
                    except Exception:
                        logger.debug("closing the I/O loop", exc_info=True)
            finally:
                asyncio.set_event_loop(None)
                with contextlib.suppress(Exception):  # the loop is broken
                    self.loop.close()
                # From here on no thread can post; calls posted just before are failed.
                for call in list(self.calls):
                    call.ended()
                if self.fail_leftovers is not None:
                    self.fail_leftovers()
                # Release the client's objects for those that still refer to this, as finalizers do forever.
                self.farewell = self.drop = self.fail_leftovers = None
                _leaving.discard(self)

    def _turn(self) -> None:
        """Run until stopped, or until an exception is raised that was not caught."""
        try:
            self.loop.run_forever()
        except Exception:  # of the loop itself, as errors of callbacks are caught
            logger.exception("%s: the I/O loop is broken; the client is closed", self.name)
            self.closed = self._stopped = self._broken = True
        except BaseException:
            # For example SystemExit: it would only end this thread.
            logger.exception("%s: unexpected error on the I/O thread, which continues", self.name)
        if self.forked:
            logger.error("a callback forked and returned in the child, which ends: end it with os._exit()")
            os._exit(1)

    def _end_others(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))


_here = threading.local()


def on_io_thread() -> bool:
    """Return whether the caller runs on the I/O thread of a client."""
    return getattr(_here, "is_io", False)


WITHOUT_LOCK = (
    "the interpreter lock is off: geminga's client supports that, but not every release is tested with it, "
    "and 3.13t makes it slower; PYTHON_GIL=1 switches the lock on"
)
"""Warning on free-threaded interpreters; see docs/decisions/free-threaded-cpython.md."""


class LoopThread:
    """An event loop that runs in a separate thread.

    ``loop`` is the loop. Everything that belongs to it is used on its thread only; `call` and `post` may be
    used from any other thread, and from a signal handler at any moment. ``name`` is the thread's name.
    """

    def __init__(self, name: str = "geminga-io") -> None:
        if hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled():
            warnings.warn(WITHOUT_LOCK, RuntimeWarning, stacklevel=2)
        self._inner = _Loop(name)
        # Before the start: if a signal handler interrupts from here on, the finalizer ends the thread.
        self._finalizer = weakref.finalize(self, self._inner.dropped)
        self._finalizer.atexit = False  # the end of the interpreter is not the application's mistake
        self._inner.start()
        self.loop = self._inner.loop
        _live.add(self)
        forks.inherited.add(self)

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def forked(self) -> bool:
        """Whether this is a child process, which lacks the thread."""
        return self._inner.forked

    def _after_fork(self) -> None:
        """Refuse calls in a child process. If the child runs on the loop's thread, end the loop after this
        iteration, and replace its selector, which is the parent's: the child would take wake-ups from it, and
        the parent would hang."""
        self._inner.forked = True
        if self.is_here:
            if hasattr(select, "epoll"):  # kqueue descriptors are not inherited
                loop: Any = self.loop
                uvloops = getattr(loop, "_get_backend_id", None)
                with select.epoll() as nothing:
                    selector = uvloops() if uvloops is not None else loop._selector.fileno()
                    os.dup2(nothing.fileno(), selector, inheritable=False)
            self.loop.stop()

    def __reduce__(self) -> NoReturn:
        raise UsageError("a client and its handles cannot be pickled: create a client in the other process")

    @property
    def thread(self) -> threading.Thread:
        """The I/O thread, on which no blocking call may be made."""
        return self._inner.thread

    @property
    def is_here(self) -> bool:
        """Whether the caller is on the I/O thread."""
        return threading.current_thread() is self._inner.thread

    def at_end(
        self,
        name: str,
        farewell: Farewell,
        drop: Callable[[], None] | None = None,
        fail_leftovers: Callable[[], None] | None = None,
    ) -> None:
        """Set the functions for the end: ``farewell`` runs, for at most `FAREWELL_SECONDS_MAX`, when this is
        dropped or the interpreter ends without `close`; the warning uses ``name``. ``drop`` runs when the
        loop ends for any reason, and ``fail_leftovers`` after its end."""
        self._inner.name = name
        self._inner.farewell = farewell
        self._inner.drop = drop
        self._inner.fail_leftovers = fail_leftovers

    def check(self) -> None:
        """Raise `ForkedProcessError` in a forked child and `AlreadyClosed` after `close`."""
        if self._inner.forked:
            raise ForkedProcessError(
                "this client was created before fork(); its I/O thread does not exist in this process. "
                "Create a client in the child process"
            )
        if self._inner.closed:
            raise AlreadyClosed("the client is closed")

    def call(
        self,
        coroutine: Coroutine[Any, Any, T],
        timeout: float | None = None,
        *,
        discard: Callable[[T], object] | None = None,
    ) -> T:
        """Run a coroutine on the loop and wait for its result, at most ``timeout`` seconds.

        If the wait ends early (time-out, KeyboardInterrupt) the coroutine is cancelled; a result that arrives
        anyway is passed to ``discard``, on the loop's thread. Raises `Timeout`, `AlreadyClosed`,
        `ForkedProcessError`, or the coroutine's error.
        """
        inner = self._inner
        call = _Call(coroutine, discard)
        try:
            self.check()
            if self.is_here:
                raise UsageError(
                    "a blocking call was made from the client's own I/O thread; use another thread"
                )
            inner.calls.add(call)
            self.post(call.start)
        except BaseException:
            inner.calls.discard(call)
            coroutine.close()
            raise
        try:
            finished = call.waiter.wait(timeout)
            inner.calls.discard(call)
        except BaseException:
            self._give_up(call)
            raise
        if not finished:
            self._give_up(call)
            raise Timeout(f"no result within {timeout:g} s")
        try:
            if call.error is not None:
                raise call.error
            return call.result  # type: ignore[no-any-return]
        finally:
            del call  # the error's traceback refers to this frame: a cycle that would keep the client

    def _give_up(self, call: _Call) -> None:
        self._inner.calls.discard(call)
        with contextlib.suppress(RuntimeError):
            self._inner.post(call.give_up)

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Run a plain function on the loop soon; for the hot path, where no result is awaited. Raises
        `ForkedProcessError` and `AlreadyClosed`."""
        if self._inner.forked:
            self.check()  # the wake-up would reach the parent's loop: both share its pipe
        try:
            self._inner.loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            self.check()
            raise

    def close(self) -> None:
        """Cancel running calls, stop the loop, end the thread. May be called again; harmless after fork."""
        inner = self._inner
        if inner.forked:
            return
        _live.discard(self)
        self._finalizer.detach()
        inner.stop()
        if not self.is_here:
            inner.thread.join(_CLOSE_TIMEOUT_SECONDS)
            if inner.thread.is_alive():
                logger.warning("the I/O thread did not end within %g s", _CLOSE_TIMEOUT_SECONDS)


_live: weakref.WeakSet[LoopThread] = weakref.WeakSet()

_leaving: set[_Loop] = set()
"""Dropped threads that still send pending messages; the end of the interpreter waits for them."""


def end_all() -> None:
    """Send pending messages of all open clients, for a limited time, at the interpreter's end."""
    # A signal handler that raises asks to end at once, without a traceback: the threads are daemons.
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        for runtime in list(_live):
            with contextlib.suppress(Exception):
                if runtime._inner.farewell is not None and not runtime.closed:
                    runtime.call(runtime._inner.say_farewell(), FAREWELL_SECONDS_MAX + 1.0)
                runtime.close()
        for inner in list(_leaving):
            inner.thread.join(FAREWELL_SECONDS_MAX + 1.0)


at_exit("clients", end_all)
