"""Offload worker process, from the side of the store: starts the process and sends it requests.

Beside a broker that publishes at full speed, there is neither processor time nor the GIL to spare. So the
main work of an offload, splitting entries into columns and compressing them, runs in another process with a
low priority (`geminga.ledger.offload_worker_main`). The process receives positions of entries in the log, or
entries that are in memory, through a socket. It takes no lock of the store, and an entry that has been moved
from its position fails its checksum. Only this side decides that a file is complete, and to whom it belongs.

The process is started when a file is to be written, and ended after some time without work. It also ends when
this process does: when the socket is closed or, if the system supports that, with the thread that started it.
A process that ends, or that neither answers nor works, is killed, and `WorkerLost` is raised: its file is
deleted only when no process can continue to write it.

Each request is answered before the next one is sent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any

from geminga import pythons
from geminga._version import __version__
from geminga.ledger.catalog import EntryChunk
from geminga.ledger.offload_worker_main import HEAD, NO_MEMORY, Priority
from geminga.ledger.offload_writing import (
    EntriesUnreadable,
    InlineOffloadWriting,
    OffloadRequest,
    OffloadWriting,
)
from geminga.ledger.thread_load import is_rationed
from geminga.offload.file import FileSummary, WrittenFile
from geminga.offload.storage import OffloadStorage

logger = logging.getLogger("geminga.ledger")

ANSWER_BYTES_MAX = 256 * 1024 * 1024
STEP = 7
"""Niceness of the process relative to the thread that starts it, which is nice itself: together that leaves
the worker a fifteenth of a processor that another process uses fully. With 0 it has normal priority."""
STARVED_SECONDS, NICE_PIECES = 1.0, 16
"""If a piece at IDLE priority takes longer than STARVED_SECONDS, NICE_PIECES pieces run at NICE priority,
so that the work also progresses on a machine that is busy for hours. A process's first piece is nice, too, as
its loops may have to be compiled."""
START_SECONDS_MAX = 120.0
"""Time limit for the process to start."""
STILL_SECONDS_MAX = 300.0
"""Time limit for the process to neither answer nor use the processor: a disk may take that to sync a file."""
LOOK_SECONDS = 1.0
KILL_SECONDS_MAX = 10.0
IDLE_SECONDS_MAX, IDLE_SLOW_SECONDS_MAX = 30.0, 1800.0
"""Time without work after which the process is ended; the second where each process has to compile its loops,
because no folder can cache them."""
SMALL_BYTES, SMALL_ENTRIES = 4 * 1024 * 1024, 8192
"""A smaller ledger is written by this process if no worker is running: starting one costs more."""


class WorkerUnavailable(Exception):
    """The worker process cannot be started, and why."""


class WorkerLost(Exception):
    """The worker process ended, or was killed because it hung; its files are invalid."""


class OffloadWriteFailed(Exception):
    """Error that the worker process reports, such as a failure of the storage location."""


class OffloadWorker:
    """One worker process. Used on the worker's thread, except `kill`."""

    idle_seconds_max = IDLE_SECONDS_MAX

    def __init__(self) -> None:
        """Start the process. Raises `WorkerUnavailable` if that fails."""
        try:
            arguments, environment = pythons.command("geminga.ledger.offload_worker_main")
            if os.name != "posix":
                raise WorkerUnavailable(f"this is {os.name}, and no POSIX system")
            self._socket, theirs = socket.socketpair()
        except (pythons.NoPython, OSError) as error:
            raise WorkerUnavailable(str(error)) from error
        # One thread is enough for arrays that are small; it need not reserve memory for more.
        environment.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        self._nice_pieces = 1
        try:
            with theirs:
                self._process = subprocess.Popen(
                    arguments, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment
                )
        except Exception as error:  # also what an audit hook of the program raises
            self._socket.close()
            raise WorkerUnavailable(f"{arguments[0]} cannot be started: {error}") from error
        self._socket.settimeout(LOOK_SECONDS)

    def open(self, location: str, store: str) -> None:
        """Make the process open the storage location and the log in the folder ``store``. Raises
        `WorkerUnavailable` if it cannot be used; the process has then ended."""
        try:
            parent = os.getpid()
            opening = {"do": "open", "location": location, "store": store, "parent": parent, "step": STEP}
            found = self._ask(opening, start=True)
            if found["version"] != __version__:
                raise OffloadWriteFailed(f"{found['version']} is installed by now, and this is {__version__}")
            self.idle_seconds_max = IDLE_SECONDS_MAX if found["starts_fast"] else IDLE_SLOW_SECONDS_MAX
        except Exception as error:  # a process of another version may answer anything
            self.close()
            raise WorkerUnavailable(f"the process that was started cannot be used: {error}") from error

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    def begin(self, order: OffloadRequest) -> OffloadWriting:
        self._ask({"do": "begin", "order": list(order)})
        return _WorkerOffloadWriting(self, order.path)

    def add(self, file: str, entries: Sequence[bytes], *, hurries: bool) -> float:
        asked = {"do": "add", "file": file, "entries": len(entries)}
        return self._work(asked, array("I", map(len, entries)).tobytes(), *entries, hurries=hurries)

    def add_positions(self, file: str, ledger_id: int, positions: EntryChunk, *, hurries: bool) -> float:
        asked = {"do": "read", "file": file, "ledger": ledger_id, "first": positions.first}
        return self._work(asked, positions.pack(ledger_id), hurries=hurries)

    def _work(self, asked: dict[str, Any], *body: bytes, hurries: bool) -> float:
        """Return the seconds of processor time used."""
        pace = Priority.HURRY if hurries else Priority.NICE if self._nice_pieces else Priority.IDLE
        began = time.monotonic()
        worked: float = self._ask({**asked, "pace": pace}, *body)["worked"]
        if pace is Priority.IDLE and time.monotonic() - began > STARVED_SECONDS:
            self._nice_pieces = NICE_PIECES
        elif pace is Priority.NICE:
            self._nice_pieces -= 1
        return worked

    def finish(self, file: str) -> WrittenFile:
        found = self._ask({"do": "finish", "file": file})
        summary, (tail_bytes, tail_crc) = FileSummary.decode(found["summary"].encode()), found["tail"]
        return WrittenFile(summary, found["size"], found["crc"], (tail_bytes, tail_crc))

    def abandon(self, file: str) -> None:
        """Make the process stop writing to the file."""
        try:
            if not self.is_dead:
                self._ask({"do": "abandon", "file": file})
        except (WorkerLost, OffloadWriteFailed) as error:
            logger.debug("cannot abandon a file, ending the worker process instead: %s", error)
            self.kill()

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
        self._socket.close()

    # --- messages ---
    def _ask(self, message: dict[str, Any], *body: bytes, start: bool = False) -> dict[str, Any]:
        """Send a request and return the answer. Raises `WorkerLost` or `OffloadWriteFailed`."""
        text = json.dumps(message).encode()
        data = b"".join((HEAD.pack(len(text), sum(map(len, body))), text, *body))
        patience = _WorkerTimeout(self._process.pid, START_SECONDS_MAX if start else STILL_SECONDS_MAX)
        try:
            self._send(data, patience)
            size, rest = HEAD.unpack(self._receive(HEAD.size, patience))
            if rest or size > ANSWER_BYTES_MAX:
                raise WorkerLost(f"its answer begins with {size} and {rest}")
            answer: dict[str, Any] = json.loads(self._receive(size, patience))
            if not isinstance(answer, dict):
                raise WorkerLost(f"its answer is {str(answer)[:80]}")
        except WorkerLost as error:
            self.kill()
            raise WorkerLost(f"the process that makes files of ledgers was ended: {error}") from error
        except (OSError, EOFError, ValueError) as error:
            self.kill()
            raise WorkerLost(self._how_it_ended()) from error
        if "unread" in answer:
            raise EntriesUnreadable(answer["unread"])
        if "failed" in answer:
            raise OffloadWriteFailed(answer["failed"])
        return answer

    def _send(self, data: bytes, patience: _WorkerTimeout) -> None:
        # A closed socket must raise here, and not send SIGPIPE to the program.
        flags, view = getattr(socket, "MSG_NOSIGNAL", 0), memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view, flags) :]
                patience.renew()
            except TimeoutError:
                patience.check()

    def _receive(self, size: int, patience: _WorkerTimeout) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._socket.recv_into(view)
            except TimeoutError:
                patience.check()
                continue
            if not count:
                raise EOFError
            view = view[count:]
        return data

    def _how_it_ended(self) -> str:
        code = self._process.poll()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"the process that makes files of ledgers was ended by {signal.Signals(-code).name}"
        if code == NO_MEMORY:
            return "the process that makes files of ledgers got no memory any more"
        return f"the process that makes files of ledgers has ended with {code}"


class _WorkerTimeout:
    """Timeout of a request, extended as long as the process answers or uses the processor."""

    def __init__(self, process_id: int, seconds: float) -> None:
        self._path = f"/proc/{process_id}/stat"
        self._seconds = seconds
        self._used = -1
        self.renew()

    def renew(self) -> None:
        self._until = time.monotonic() + self._seconds

    def check(self) -> None:
        """Raise `WorkerLost` if the process was inactive for too long."""
        used = self._processor_ticks()
        if used != self._used:
            self._used = used
            self.renew()
        elif time.monotonic() > self._until:
            raise WorkerLost(f"it has done nothing for {self._seconds:g} s")

    def _processor_ticks(self) -> int:
        """Return the processor time of all threads of the process, in ticks; -1 if unknown."""
        try:
            with open(self._path, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                return int(fields[11]) + int(fields[12])
        except (OSError, ValueError, IndexError):
            return -1


class _WorkerOffloadWriting:
    """`OffloadWriting` in the worker process."""

    shares_lock = False

    def __init__(self, process: OffloadWorker, file: str) -> None:
        self.shares_processor = is_rationed()
        self.add = partial(process.add, file)
        self.add_positions = partial(process.add_positions, file)
        self.finish = partial(process.finish, file)
        self.abandon = partial(process.abandon, file)


class OffloadWriters:
    """Choice of where files are written: in a worker process or, if none can be started, in this one."""

    def __init__(self, storage: OffloadStorage, store: str, *, is_alone: bool = False) -> None:
        """``store``: its folder. ``is_alone``: no broker shares the processor; no process is started."""
        self._storage = storage
        self._store = store
        self._location = None if is_alone else storage.elsewhere
        self._lock = threading.Lock()
        self._process: OffloadWorker | None = None
        self._is_over = False
        self._has_complained = False

    # --- the worker's thread ---
    def begin(self, order: OffloadRequest, entries: int, size_bytes: int) -> OffloadWriting:
        """Begin a ledger's file; raises the storage location's errors, `OffloadWriteFailed`, `WorkerLost`."""
        process = self._ready(is_small=entries <= SMALL_ENTRIES and size_bytes <= SMALL_BYTES)
        return InlineOffloadWriting(self._storage, order) if process is None else process.begin(order)

    def _ready(self, *, is_small: bool) -> OffloadWorker | None:
        process, location = self._process, self._location
        if process is not None and not process.is_dead:
            return process
        self.rest()
        if is_small or location is None:
            return None
        try:
            process = OffloadWorker()
            with self._lock:
                self._process = process  # before open(), so that end() can kill it at any time
            if self._is_over:
                process.kill()
            process.open(location, self._store)
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

    @property
    def idle_seconds_max(self) -> float:
        """Return the time without files after which `rest` is due; on any thread."""
        process = self._process
        return IDLE_SECONDS_MAX if process is None else process.idle_seconds_max

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
