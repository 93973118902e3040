"""`LongRunning`: the life of what runs until it is told to stop, here or on a thread of its own.

A failure is told once: by `LongRunning.run` or `LongRunning.start`, or by the next
`LongRunning.wait` or `LongRunning.close`. So closing twice is harmless, as everywhere, and nobody holds the
frames of a run that is long over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

from geminga.errors import AlreadyClosed

R_co = TypeVar("R_co", covariant=True)

logger = logging.getLogger("geminga")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class LongRunning(ABC, Generic[R_co]):
    """Runs once, on an event loop of its own. ``name`` is its thread's, and what people are told."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stopping = asyncio.Event()
        """Set on the loop, by which `_work` ends soon."""
        self._own_threads: set[threading.Thread] = set()
        """Threads that the end waits for: none of them can wait for it."""
        self._begun = threading.Lock()  # taken for ever: whoever takes it runs this
        self._ready = threading.Event()
        self._asked = False
        self._signalled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    # --- what is run ----------------------------------------------------------------------------------

    @abstractmethod
    async def _work(self) -> R_co:
        """Everything, until it is done or `_stopping` is set; `_ready` is set when it is under way."""

    def _stop_here(self) -> None:
        """On the loop: have `_work` end. May be called again."""
        self._stopping.set()

    def _has_ended(self) -> None:
        """On the thread that ran: nothing runs any more, or ever will."""
        self._ready.set()

    # --- its life -------------------------------------------------------------------------------------

    def run(self, *, signals: bool = True) -> R_co:
        """Run until `stop`, or with ``signals`` until Ctrl-C or SIGTERM; the second of them ends the process.

        Raises what ends it early, and `AlreadyClosed` when it has run before.
        """
        self._begin()
        try:
            return self._run_here(signals)
        finally:
            self._has_ended()

    def start(self) -> Self:
        """Run on a thread of its own; returns when it is under way. Raises what `run` raises before."""
        self._begin()
        thread = self._thread = threading.Thread(target=self._in_background, name=self._name, daemon=True)
        self._own_threads.add(thread)
        try:
            thread.start()
            self._ready.wait()
            self._tell_failure()
            return self
        except BaseException:
            self.stop()  # what ended it, or a signal's handler: nobody has it to stop
            raise

    def stop(self) -> None:
        """End when what is under way is done. On any thread; does not wait."""
        self._asked = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop_here)

    def wait(self, timeout: float | None = None) -> bool:
        """Until what `start` began has ended; False when ``timeout`` seconds are over before. Raises what
        ended it early, once."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            if threading.current_thread() in self._own_threads:
                return False  # the end waits for us
            thread.join(timeout)
            if thread.is_alive():
                return False
        self._tell_failure()
        return True

    def close(self) -> None:
        """`stop`, and wait for the end of what `start` began, except where the end waits for the caller.
        Raises what ended it early, once."""
        self.stop()
        self.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _begin(self) -> None:
        if not self._begun.acquire(blocking=False):
            raise AlreadyClosed(f"{self._name} runs once; make another one")

    def _in_background(self) -> None:
        try:
            self._run_here(signals=False)
        except BaseException as error:
            self._failure = error
        finally:
            self._has_ended()

    def _run_here(self, signals: bool) -> R_co:
        return asyncio.run(self._run_on_loop(signals))

    async def _run_on_loop(self, signals: bool) -> R_co:
        self._loop = asyncio.get_running_loop()
        with self._stopped_by_signals(self._loop) if signals else contextlib.nullcontext():
            if self._asked:  # before there was a loop
                self._stop_here()
            return await self._work()

    def _tell_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # or the error holds this frame, and this frame the error

    # --- signals --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _stopped_by_signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Whoever handled them before does so again afterwards.

        The loop's own handlers run on the loop alone: where a coroutine keeps it busy for ever, no signal
        would end the process.
        """

        def on_signal(number: int, _: object) -> None:
            if self._signalled:
                os._exit(128 + number)
            self._signalled = True
            loop.call_soon_threadsafe(self._stop_for, signal.Signals(number))

        before = {}
        with contextlib.suppress(ValueError):  # not the main thread
            for number in _SIGNALS:
                before[number] = signal.signal(number, on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: not set by Python, and it cannot set it
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _stop_for(self, number: signal.Signals) -> None:
        logger.info("%s: %s finishes what is under way", number.name, self._name)
        self._stop_here()
