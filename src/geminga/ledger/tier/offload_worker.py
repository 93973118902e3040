"""Offload worker process, from the side of the store: starts the process and sends it requests.

The main work of an offload, splitting entries into columns and compressing them, needs the processor and the
GIL, which publishing needs, too. So it runs in another process with a low priority
(`geminga.ledger.tier.offload_worker_main`), which receives the entries through a socket. Only this side
decides that a file is complete, and to whom it belongs.

The process is started when a file is to be written, and ended after some time without work. It also ends when
this process does: when the socket is closed or, if the system supports that, with the thread that started it.
A process that ends, or that does not answer in time, is killed, and `WorkerLost` is raised: its file is
deleted only when no process can continue to write it.
"""

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from geminga._util import pythons
from geminga._version import __version__
from geminga.ledger.tier.offload_worker_main import NO_MEMORY
from geminga.ledger.tier.writing import (
    InlineOffloadWriting,
    OffloadRequest,
    OffloadWriteFailed,
    OffloadWriting,
)
from geminga.offload.file import WrittenFile
from geminga.offload.storage import OffloadStorage

logger = logging.getLogger("geminga.ledger")

ANSWER_SECONDS_MAX = 600.0
"""Time limit for an answer: a slow disk may take minutes to sync a file, a busy machine to do a piece."""
KILL_SECONDS_MAX = 10.0
IDLE_SECONDS_MAX = 30.0
"""Time without work after which the process is ended."""


class WorkerUnavailable(Exception):
    """The worker process cannot be started, and why."""


class WorkerLost(Exception):
    """The worker process ended, or was killed because it did not answer; its files are invalid."""


class OffloadWorker:
    """One worker process. Used on the worker's thread, except `kill`."""

    def __init__(self) -> None:
        """Start the process. Raises `WorkerUnavailable` if that fails."""
        try:
            arguments, environment = pythons.command("geminga.ledger.tier.offload_worker_main")
            if os.name != "posix":
                raise WorkerUnavailable(f"this is {os.name}, and no POSIX system")
            self._socket, theirs = socket.socketpair()
        except (pythons.NoPython, OSError) as error:
            raise WorkerUnavailable(str(error)) from error
        # One thread is enough for arrays that are small; it need not reserve memory for more.
        environment.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        try:
            with theirs:
                # Linux shares processors among sessions first: in the broker's session, the process would use
                # the share of the broker on a busy machine.
                self._process = subprocess.Popen(
                    arguments, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment,
                    start_new_session=True,
                )  # fmt: skip
        except Exception as error:  # also what an audit hook of the program raises
            self._socket.close()
            raise WorkerUnavailable(f"{arguments[0]} cannot be started: {error}") from error
        self._socket.settimeout(ANSWER_SECONDS_MAX)
        self._answers = self._socket.makefile("rb")

    def open(self, location: str) -> None:
        """Make the process open the storage location. Raises `WorkerUnavailable` if it cannot be used; the
        process has then ended."""
        try:
            version = self.ask("open", location)
            if version != __version__:
                raise OffloadWriteFailed(f"{version} is installed by now, and this is {__version__}")
        except Exception as error:  # a process of another version may answer anything
            self.close()
            raise WorkerUnavailable(f"the process that was started cannot be used: {error}") from error

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    def ask(self, name: str, *arguments: Any) -> Any:
        """Send a request and return the result. Raises `WorkerLost` or `OffloadWriteFailed`."""
        try:
            # A closed socket must raise here, and not send SIGPIPE to the program.
            self._socket.sendall(pickle.dumps((name, *arguments)), getattr(socket, "MSG_NOSIGNAL", 0))
            result, error = pickle.load(self._answers)
        except Exception as lost:  # an incomplete or invalid pickle raises anything
            why = f"did not answer for {ANSWER_SECONDS_MAX:g} s" if isinstance(lost, TimeoutError) else ""
            self.kill()
            raise WorkerLost(f"the offload worker process {why or self._how_it_ended()}") from lost
        if isinstance(error, OffloadWriteFailed):
            raise error
        return result

    def kill(self) -> None:
        """Kill the process; on any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        try:
            self._process.wait(KILL_SECONDS_MAX)
        except subprocess.TimeoutExpired:  # it ends when the disk that it waits for answers
            logger.error("cannot kill process %d, which writes files of offloaded ledgers", self._process.pid)

    def close(self) -> None:
        """End the process and close the socket."""
        self.kill()
        self._answers.close()
        self._socket.close()

    def _how_it_ended(self) -> str:
        code = self._process.poll()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return "ran out of memory" if code == NO_MEMORY else f"has ended with {code}"


class WorkerOffloadWriting:
    """`OffloadWriting` in the worker process."""

    def __init__(self, process: OffloadWorker, order: OffloadRequest) -> None:
        self.process = process
        self._order = order
        process.ask("begin", order)

    def add(self, entries: Sequence[bytes]) -> None:
        self.process.ask("add", self._order.path, entries)

    def finish(self) -> WrittenFile:
        written: WrittenFile = self.process.ask("finish", self._order.path)
        return written

    def abandon(self) -> None:
        try:
            if not self.process.is_dead:
                self.process.ask("abandon", self._order.path)
        except (WorkerLost, OffloadWriteFailed) as error:
            logger.debug("cannot abandon a file, ending the worker process instead: %s", error)
            self.process.kill()


class ByteRate:
    """Limit of the bytes offloaded per second, used by one thread. An idle limit saves nothing for later."""

    def __init__(self, bytes_per_second: int, clock: Callable[[], float] | None = None) -> None:
        """0 or -1: no limit."""
        self.is_lifted = False
        """Whether the limit does not apply for now."""
        self._bytes_per_second = bytes_per_second
        self._clock = clock or time.monotonic
        self._free_at = 0.0

    def wait_seconds(self) -> float:
        """Return the time until the next bytes may follow; 0 if they may now."""
        return 0.0 if self.is_lifted else max(0.0, self._free_at - self._clock())

    def take(self, size_bytes: int) -> None:
        """Count bytes that follow now."""
        if self._bytes_per_second > 0 and not self.is_lifted:
            self._free_at = max(self._free_at, self._clock()) + size_bytes / self._bytes_per_second


class OffloadWriters:
    """Choice of where files are written: in a worker process or, if none can be started, in this one."""

    def __init__(self, storage: OffloadStorage, rate: ByteRate, *, is_alone: bool = False) -> None:
        """``is_alone``: no broker shares the processor; no process is started."""
        self.rate = rate
        self._storage = storage
        self._location = None if is_alone else storage.worker_location
        self._lock = threading.Lock()
        self._process: OffloadWorker | None = None
        self._is_over = False
        self._has_complained = False

    # --- the worker's thread ---
    def begin(self, order: OffloadRequest) -> OffloadWriting:
        """Begin a ledger's file; raises the storage location's errors, `OffloadWriteFailed`, `WorkerLost`."""
        process = self._ready()
        if process is None:
            return InlineOffloadWriting(self._storage, order)
        return WorkerOffloadWriting(process, order)

    def _ready(self) -> OffloadWorker | None:
        process = self._process
        if process is not None and not process.is_dead:
            return process
        self.rest()
        if self._location is None:
            return None
        try:
            process = OffloadWorker()
            with self._lock:
                self._process = process  # before open(), so that end() can kill it at any time
            if self._is_over:
                process.kill()
            process.open(self._location)
        except WorkerUnavailable as error:
            self.rest()
            if self._is_over:
                raise WorkerLost("the store is being closed") from error
            if not self._has_complained:
                self._has_complained = True
                logger.warning(
                    "the broker's process offloads ledgers itself, which slows publishing more: %s", error
                )
            return None
        return process

    def rest(self) -> None:
        """End the process, if it is running."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    # --- any thread ---
    def end(self) -> None:
        """Kill the process for good, so that pending requests fail at once."""
        with self._lock:
            self._is_over = True
            process = self._process
        if process is not None:
            process.kill()
