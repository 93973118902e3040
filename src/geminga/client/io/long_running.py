"""`LongRunning`: base of services that run until they are stopped, on the calling or a separate thread.

A failure is raised once: by `LongRunning.run` or `LongRunning.start`, or by the next `LongRunning.wait` or
`LongRunning.close`. So closing twice is harmless, and the frames of a finished run are released.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

from geminga.client.io.waiter import SIGNAL_CHECK_SECONDS
from geminga.errors import AlreadyClosed

R_co = TypeVar("R_co", covariant=True)

logger = logging.getLogger("geminga")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class LongRunning(ABC, Generic[R_co]):
    """Service that runs once, on its own event loop. ``name`` names its thread, and appears in messages."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stopping = asyncio.Event()
        """Set on the loop to end `_work` soon."""
        self._own_threads: set[threading.Thread] = set()
        """Threads that the end waits for; they cannot wait for the end themselves."""
        self._begun = threading.Lock()  # taken for good, by the caller that runs the service
        self._ready = threading.Event()
        self._stop_requested = False
        self._signalled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    # --- the work -------------------------------------------------------------------------------------

    @abstractmethod
    async def _work(self) -> R_co:
        """Work until it is complete or `_stopping` is set; set `_ready` when it has started."""

    def _stop_here(self) -> None:
        """End `_work` soon; on the loop. May be called again."""
        self._stopping.set()

    def _has_ended(self) -> None:
        """Note that nothing runs any more or ever will; on the thread that ran."""
        self._ready.set()

    # --- starting and stopping ------------------------------------------------------------------------

    def run(self, *, signals: bool = True) -> R_co:
        """Run until `stop`, or with ``signals`` until Ctrl-C or SIGTERM; the second of them ends the process.
        Raises the error that ended it early, and `AlreadyClosed` if it has run before."""
        self._begin()
        try:
            return self._run_here(signals)
        finally:
            self._has_ended()

    def start(self) -> Self:
        """Run on a separate thread; return when the work has started. Raises the errors of `run` until
        then."""
        self._begin()
        thread = self._thread = threading.Thread(target=self._in_background, name=self._name, daemon=True)
        self._own_threads.add(thread)
        try:
            thread.start()
            while not self._ready.wait(SIGNAL_CHECK_SECONDS):
                pass
            self._raise_failure()
            return self
        except BaseException:
            self.stop()  # after a failure or a signal handler's error: the caller has no object to stop
            raise

    def stop(self) -> None:
        """Stop after the current work; on any thread, without waiting."""
        self._stop_requested = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop_here)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run that `start` began has ended; return False after ``timeout`` seconds. Raises the
        error that ended it early, once."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            if threading.current_thread() in self._own_threads:
                return False  # the end waits for us
            thread.join(timeout)
            if thread.is_alive():
                return False
        self._raise_failure()
        return True

    def close(self) -> None:
        """Stop the run that `start` began and wait for its end, unless the end waits for the caller.
        Raises the error that ended it early, once."""
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
            if self._stop_requested:  # before there was a loop
                self._stop_here()
            return await self._work()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # else the error and this frame would refer to each other

    # --- signals --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _stopped_by_signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM; restore the previous handlers afterwards.

        The loop's own signal handlers run only on the loop: if a coroutine keeps it busy, no signal would end
        the process.
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
        logger.info("%s: %s finishes its current work", number.name, self._name)
        self._stop_here()
