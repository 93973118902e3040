"""The thread behind the sync API: one daemon thread with an event loop for each sync client.

The calling thread hands coroutines over with `LoopThread.call` and sleeps. Nothing is locked on the way: a
signal's handler may interrupt any call, make others and raise, and the loop goes on meanwhile. After
``fork`` the child has no such thread any more: every call there raises `ForkedProcessError` instead of
waiting for ever.

Whoever uses the loop holds the `LoopThread`; the thread itself does not. When the last user has gone without
`close`, the thread says so with a ``ResourceWarning``, sends what is pending and ends.
Nobody waits for that: what a signal's handler raises in a finalizer is swallowed, so none may last.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import select
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from geminga.client import forks
from geminga.client.tasks import run_task
from geminga.client.waiter import Waiter
from geminga.errors import AlreadyClosed, ForkedProcessError, Timeout, UsageError
from geminga.event_loops import new_event_loop
from geminga.exits import at_exit

T = TypeVar("T")

logger = logging.getLogger("geminga")

_CLOSE_TIMEOUT_SECONDS = 5.0

FAREWELL_SECONDS_MAX = 2.0
"""How long the end of the interpreter, of a loop, or of an abandoned client waits for what is pending."""

Farewell = Callable[[], Coroutine[Any, Any, None]]


class _Call:
    """A coroutine that a thread waits for. `start`, `give_up` and `ended` run on the loop's thread."""

    __slots__ = ("_coroutine", "_discard", "_given_up", "_task", "_told", "error", "result", "waiter")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], discard: Callable[[Any], object] | None) -> None:
        self.waiter = Waiter()
        self.result: Any = None
        self.error: BaseException | None = None
        self._coroutine = coroutine
        self._discard = discard
        self._given_up = False
        self._told = False
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        if self._given_up:
            self._coroutine.close()
            return
        self._task = run_task(asyncio.get_running_loop(), self._coroutine)
        self._task.add_done_callback(self._done)

    def give_up(self) -> None:
        """Nobody waits any more. A result that is there already, or comes in spite of it, is discarded."""
        self._given_up = True
        if self._task is None:
            return
        if not self._task.done():
            self._task.cancel()
        elif self._discard is not None and not self._task.cancelled() and self._task.exception() is None:
            self._discard(self._task.result())

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._told = True
        if task.cancelled():
            self.error = AlreadyClosed("the client was closed during the call")
        elif (error := task.exception()) is not None:
            self.error = error
        else:
            self.result = task.result()
            if self._given_up and self._discard is not None:
                self._discard(self.result)
        self.waiter.wake()

    def ended(self) -> None:
        """The loop has ended: it will not be started, or not be finished."""
        if self._told:
            return
        if self._task is not None and self._task.done():
            self._done(self._task)
            return
        if self._task is None or inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CREATED:
            self._coroutine.close()  # it never ran: no word of that either
        self.error = AlreadyClosed("the client was closed during the call")
        self.waiter.wake()


class _Loop:
    """The thread, its loop, and the calls on their way. It knows nothing of whoever uses it."""

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
        self._turned = False
        self._broken = False
        self._leaving = False
        self._begun = False
        self._ready = Waiter()
        self._refused: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Raises what making a loop fails with."""
        try:
            self.thread.start()
            self._ready.wait()
        except BaseException:
            # A signal's handler raised: nobody will use it.
            self.stop()
            raise
        if self._refused is not None:
            raise self._refused

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Raises ``RuntimeError`` when the loop has ended, or has not begun."""
        if not self._begun:
            raise RuntimeError("the loop has not begun")
        self.loop.call_soon_threadsafe(callback, *arguments)

    def stop(self) -> None:
        """End soon; what runs is cancelled. From any thread, any number of times."""
        self.closed = True
        with contextlib.suppress(RuntimeError):
            self.post(self._stop_once)

    def _stop_once(self) -> None:
        # A second one would come in the midst of what is still run at the end.
        if not self._stopped:
            self._stopped = True
            self.loop.stop()

    def dropped(self) -> None:
        """Nobody can use it any more, and nobody has closed it. From any thread, in the middle of anything:
        the garbage collector calls."""
        if self.closed or self.forked:
            return
        try:
            is_used = self._begun  # else somebody was interrupted who was just making it
            # Before it is asked to end: a thread that begins only now looks here first.
            self.closed = True
            if is_used:
                _leaving.add(self)
                warnings.warn(
                    f"{self.name} was not closed: call close(), or use it in a with statement",
                    ResourceWarning,
                    stacklevel=2,
                )
            self._ask_to_leave()
        except BaseException:
            # A signal's handler raised here, or the warning is an error: the thread is to end all the same.
            self._ask_to_leave()
            raise

    def _ask_to_leave(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.post(self._take_leave)

    def _take_leave(self) -> None:
        if self._leaving:
            return
        self._leaving = True
        task = self.loop.create_task(self.say_farewell())
        task.add_done_callback(lambda _: self._stop_once())

    async def say_farewell(self) -> None:
        """Send what is pending, for a little while."""
        farewell, self.farewell = self.farewell, None
        if farewell is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(FAREWELL_SECONDS_MAX):
                    await farewell()

    def _run(self) -> None:
        # Made here, where no signal's handler interrupts: it is closed in any case.
        try:
            self.loop = new_event_loop()
        except BaseException as error:
            self._refused, self.closed = error, True
            self._ready.wake()
            return
        asyncio.set_event_loop(self.loop)
        _here.is_io = True
        forks.thread_is_ours()
        self._begun = True
        self._ready.wake()
        try:
            while not self.closed:
                self._turn()
        finally:
            self.closed = True
            try:
                for step in (self.drop, self._cancel_all, self._end_others):
                    if step is None or (self._broken and step != self.drop):
                        continue  # what needs turns of the loop
                    try:
                        step()
                    except Exception:
                        logger.debug("closing the I/O loop", exc_info=True)
            finally:
                asyncio.set_event_loop(None)
                with contextlib.suppress(Exception):  # a loop that is broken
                    self.loop.close()
                # From here on nobody can post; those who could, just before, are told.
                for call in list(self.calls):
                    call.ended()
                if self.fail_leftovers is not None:
                    self.fail_leftovers()
                # Whoever still holds this (a finalizer does, for ever) holds nothing of the client's.
                self.farewell = self.drop = self.fail_leftovers = None
                _leaving.discard(self)

    def _turn(self) -> None:
        """Run until it is stopped, or something is raised that nobody caught."""
        self._turned = False
        self.loop.call_soon(self._has_turned)
        try:
            self.loop.run_forever()
            forks.returned()
        except Exception:
            forks.returned()
            # The loop's own: what a callback raises stays there. Where it cannot even begin, it never will.
            if self._turned:
                logger.exception("%s: something raised on the I/O thread, which goes on", self.name)
            else:
                logger.exception("%s: the I/O loop is broken; the client is closed", self.name)
                self.closed = self._broken = True
        except BaseException as error:
            forks.returned(error)
            # SystemExit, say: it would end this thread, and nothing else.
            logger.exception("%s: something raised on the I/O thread, which goes on", self.name)

    def _has_turned(self) -> None:
        self._turned = True

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
    """Whether this is the I/O thread of some client for threads."""
    return getattr(_here, "is_io", False) and forks.stray != threading.get_ident()


WITHOUT_LOCK = (
    "the interpreter lock is off: geminga's client is made for that, but not every release is tested so, and "
    "3.13t makes it slower; PYTHON_GIL=1 switches the lock on"
)
"""See docs/decisions/free-threaded-cpython.md."""


class LoopThread:
    """An event loop that runs in a thread of its own.

    ``loop`` is the loop. Everything that belongs to it is touched on its thread only; `call` and `post` are
    the ways in and may be used from any other thread, and from a signal's handler at any moment. ``name``
    tells people whose thread it is.
    """

    def __init__(self, name: str = "geminga-io") -> None:
        if hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled():
            warnings.warn(WITHOUT_LOCK, RuntimeWarning, stacklevel=2)
        self._inner = _Loop(name)
        # Before it starts: whatever a signal's handler interrupts from here on, it ends.
        self._finalizer = weakref.finalize(self, self._inner.dropped)
        self._finalizer.atexit = False  # the end of the interpreter is no mistake of the application's
        self._inner.start()
        self.loop = self._inner.loop
        _live.add(self)

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def forked(self) -> bool:
        """This is a child process: the thread is not here."""
        return self._inner.forked

    @property
    def thread(self) -> threading.Thread:
        """The I/O thread: no blocking call may be made on it."""
        return self._inner.thread

    @property
    def is_here(self) -> bool:
        """The caller is on the I/O thread."""
        return threading.current_thread() is self._inner.thread

    def at_end(
        self,
        name: str,
        farewell: Farewell,
        drop: Callable[[], None] | None = None,
        fail_leftovers: Callable[[], None] | None = None,
    ) -> None:
        """``farewell`` is what is to be done, in `FAREWELL_SECONDS_MAX`, when this is dropped or the
        interpreter ends without `close`; ``name`` is what the warning calls it. ``drop`` is called where the
        loop ends, however it came to that, and ``fail_leftovers`` after its very end."""
        self._inner.name = name
        self._inner.farewell = farewell
        self._inner.drop = drop
        self._inner.fail_leftovers = fail_leftovers

    def check(self) -> None:
        """Raises `ForkedProcessError` in a forked child and `AlreadyClosed` after `close`."""
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

        When the wait ends early (time-out, KeyboardInterrupt) the coroutine is cancelled; a result that came
        in spite of that goes to ``discard``, on the loop's thread. Raises `Timeout`, `AlreadyClosed`,
        `ForkedProcessError`, or what the coroutine raised.
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
            del call  # the error's traceback holds this frame: it would hold itself, and the client

    def _give_up(self, call: _Call) -> None:
        self._inner.calls.discard(call)
        with contextlib.suppress(RuntimeError):
            self._inner.post(call.give_up)

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Run a plain function on the loop soon; for the hot path, where no result is awaited.

        Raises `ForkedProcessError` and `AlreadyClosed`.
        """
        if self._inner.forked:
            self.check()  # the wake-up would reach the parent's loop: both share its pipe
        try:
            self._inner.loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            self.check()
            raise

    def close(self) -> None:
        """Cancel what runs, stop the loop, end the thread. May be called again; harmless after fork."""
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
"""Those that were dropped and still send what is pending: the end of the interpreter waits for them."""


def _after_fork_in_child() -> None:
    _leaving.clear()  # their threads are not here
    for runtime in list(_live):
        runtime._inner.forked = True
        if runtime.thread is threading.current_thread():
            # What forked may be something else than a callback whose return is seen: this turn is the last.
            _let_go(runtime._inner.loop)
            runtime._inner.loop.stop()


def _let_go(loop: Any) -> None:
    """In a child on the loop's own thread. The selector and what wakes it are the parent's: a look at them in
    the rest of this turn would take a wake-up from it. Their descriptors become others, of nothing."""
    if not hasattr(select, "epoll"):
        return  # kqueue's is no child's
    backend = loop._get_backend_id() if hasattr(loop, "_get_backend_id") else loop._selector.fileno()
    with select.epoll() as nothing:
        os.dup2(nothing.fileno(), backend, inheritable=False)
    waker = getattr(loop, "_ssock", None)  # asyncio's own loop may be about to read from it
    if waker is not None:
        ours, other = socket.socketpair()
        ours.setblocking(False)
        os.dup2(ours.fileno(), waker.fileno(), inheritable=False)
        ours.close()
        other.close()


def end_all() -> None:
    """At the interpreter's end: every client that is open sends what is pending, for a little while."""
    impatient = False
    left: list[LoopThread] | None = None
    while True:
        try:
            if left is None:
                left = list(_live)
            while left:
                _end(left[-1], impatient)
                left.pop()
            for inner in () if impatient else list(_leaving):
                inner.thread.join(FAREWELL_SECONDS_MAX + 1.0)
            return
        except (KeyboardInterrupt, SystemExit):
            # A signal's handler: whoever interrupts the end wants it at once, and no traceback.
            impatient = True


def _end(runtime: LoopThread, impatient: bool) -> None:
    """At the interpreter's end; may be called again when it was interrupted."""
    if impatient:
        runtime._inner.stop()
        return
    with contextlib.suppress(Exception):
        if runtime._inner.farewell is not None and not runtime.closed:
            runtime.call(runtime._inner.say_farewell(), FAREWELL_SECONDS_MAX + 1.0)
        runtime.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
at_exit("clients", end_all)
