"""Making the files of offloaded ledgers in a process of its own: this side of it.

Beside a broker that publishes at full speed there is neither a processor to spare nor a moment of Python's
lock. So what an offload does most of, taking entries apart and compressing them, happens in another
process, whose work has a low priority (`geminga.ledger.offload_worker_main` is that side). Through a socket it is
told piece by piece where entries lie in the log, or given those that are in memory. It takes no lock of the
store, and an entry that is not where it was said to be fails its checksum. That a file exists, and whose it
is, is decided here alone.

The process is started when there is something to make, and ended when there was nothing for a while. It does
not outlive this one: it ends when the socket is closed, and where the system can do that, with the thread
that started it. One that ends, or that neither answers nor works, is killed, and `WorkerLost` is raised:
before anything of its file is deleted there is nobody any more who could go on writing it.

Each request is answered, and the next one waits for that.
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
"""So far the work steps back behind the thread that starts the process, which has done so itself: together
that leaves it a fifteenth of a processor of which another one wants all. With 0 it is an equal to others."""
STARVED_SECONDS, NICE_PIECES = 1.0, 16
"""Where a piece took longer than the first with the time alone that nobody else wants, so many others are
done nicely: on a machine that is busy for hours, too, the work gets on. So is a process's first piece, for
which its loops may have to be compiled."""
START_SECONDS_MAX = 120.0
"""By then the process has said that it is there."""
STILL_SECONDS_MAX = 300.0
"""So long the process may neither answer nor use the processor: a disk may take that to sync a file."""
LOOK_SECONDS = 1.0
KILL_SECONDS_MAX = 10.0
IDLE_SECONDS_MAX, IDLE_SLOW_SECONDS_MAX = 30.0, 1800.0
"""So long the process is kept without work; the second where each one has to compile its loops, for there is
no folder to keep them in."""
SMALL_BYTES, SMALL_ENTRIES = 4 * 1024 * 1024, 8192
"""A ledger below both is made here when there is no process yet: to start one costs more."""


class WorkerUnavailable(Exception):
    """There is no process to make files in, and why."""


class WorkerLost(Exception):
    """The process has ended, or was ended because it hung; nothing of what it made counts."""


class OffloadWriteFailed(Exception):
    """What the process says is wrong with the place, or with what it was given."""


class OffloadWorker:
    """One process, which `open` waits for. On the worker's thread, but for `kill`."""

    idle_seconds_max = IDLE_SECONDS_MAX

    def __init__(self) -> None:
        """Raises `WorkerUnavailable` where none can be started."""
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
        """Have it open the place and the log. ``store``: the folder of the store. Raises `WorkerUnavailable` where it
        is of no use; then it has ended."""
        try:
            parent = os.getpid()
            opening = {"do": "open", "location": location, "store": store, "parent": parent, "step": STEP}
            found = self._ask(opening, start=True)
            if found["version"] != __version__:
                raise OffloadWriteFailed(f"{found['version']} is installed by now, and this is {__version__}")
            self.idle_seconds_max = IDLE_SECONDS_MAX if found["starts_fast"] else IDLE_SLOW_SECONDS_MAX
        except Exception as error:  # of another version it may answer anything
            self.close()
            raise WorkerUnavailable(f"the process that was started is of no use: {error}") from error

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    def begin(self, order: OffloadRequest) -> OffloadWriting:
        self._ask({"do": "begin", "order": list(order)})
        return _WorkerOffloadWriting(self, order.path)

    def add(self, file: str, entries: Sequence[bytes], *, hurries: bool) -> float:
        asked = {"do": "add", "file": file, "entries": len(entries)}
        return self._work(asked, array("I", map(len, entries)).tobytes(), *entries, hurries=hurries)

    def add_places(self, file: str, ledger_id: int, places: EntryChunk, *, hurries: bool) -> float:
        asked = {"do": "read", "file": file, "ledger": ledger_id, "first": places.first}
        return self._work(asked, places.pack(ledger_id), hurries=hurries)

    def _work(self, asked: dict[str, Any], *body: bytes, hurries: bool) -> float:
        """Returns the seconds of processor time."""
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
        """Nothing writes to the file any more."""
        try:
            if not self.is_dead:
                self._ask({"do": "abandon", "file": file})
        except (WorkerLost, OffloadWriteFailed) as error:
            logger.debug("a file is not abandoned, but the process ended: %s", error)
            self.kill()

    def kill(self) -> None:
        """End it at once; on any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        try:
            self._process.wait(KILL_SECONDS_MAX)
        except subprocess.TimeoutExpired:  # it waits for a disk, and ends with what it waits for
            logger.error("process %d, which makes files of ledgers, cannot be killed", self._process.pid)

    def close(self) -> None:
        """End it; nobody uses it any more."""
        self.kill()
        self._socket.close()

    # --- talking ---
    def _ask(self, message: dict[str, Any], *body: bytes, start: bool = False) -> dict[str, Any]:
        """Raises `WorkerLost`, `OffloadWriteFailed`."""
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
        # Whatever the program around us does with SIGPIPE, it is not to get one from here.
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
    """How long to wait for a process: as long as it answers or works."""

    def __init__(self, process_id: int, seconds: float) -> None:
        self._path = f"/proc/{process_id}/stat"
        self._seconds = seconds
        self._used = -1
        self.renew()

    def renew(self) -> None:
        self._until = time.monotonic() + self._seconds

    def check(self) -> None:
        """Raises `WorkerLost` when it was still for too long."""
        used = self._processor_ticks()
        if used != self._used:
            self._used = used
            self.renew()
        elif time.monotonic() > self._until:
            raise WorkerLost(f"it has done nothing for {self._seconds:g} s")

    def _processor_ticks(self) -> int:
        """What all its threads have used, where the system says so."""
        try:
            with open(self._path, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                return int(fields[11]) + int(fields[12])
        except (OSError, ValueError, IndexError):
            return -1


class _WorkerOffloadWriting:
    """`OffloadWriting` by a process."""

    shares_lock = False

    def __init__(self, process: OffloadWorker, file: str) -> None:
        self.shares_processor = is_rationed()
        self.add = partial(process.add, file)
        self.add_places = partial(process.add_places, file)
        self.finish = partial(process.finish, file)
        self.abandon = partial(process.abandon, file)


class OffloadWriters:
    """Who makes the files of a place: a process, or the thread that asks where there can't be one."""

    def __init__(self, place: OffloadStorage, store: str, *, is_alone: bool = False) -> None:
        """``store``: its folder. ``is_alone``: there is nobody to make room for; no process is started."""
        self._place = place
        self._store = store
        self._location = None if is_alone else place.elsewhere
        self._lock = threading.Lock()
        self._process: OffloadWorker | None = None
        self._is_over = False
        self._has_complained = False

    # --- the worker's thread ---
    def begin(self, order: OffloadRequest, entries: int, size_bytes: int) -> OffloadWriting:
        """Begin a file for so much; raises what the place raises, `OffloadWriteFailed` or `WorkerLost`."""
        process = self._ready(is_small=entries <= SMALL_ENTRIES and size_bytes <= SMALL_BYTES)
        return InlineOffloadWriting(self._place, order) if process is None else process.begin(order)

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
                self._process = process  # before it is waited for: who closes the store waits for nothing
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
                    "ledgers are offloaded by this process, which slows publishing more: %s", error
                )
            return None
        return process

    @property
    def idle_seconds_max(self) -> float:
        """So long after the last file `rest` is due; on any thread."""
        process = self._process
        return IDLE_SECONDS_MAX if process is None else process.idle_seconds_max

    def rest(self) -> None:
        """End the process, if it is there."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    # --- any thread ---
    def end(self) -> None:
        """There is nothing to be made any more: whoever waits for the process waits no longer."""
        with self._lock:
            self._is_over = True
            process = self._process
        if process is not None:
            process.kill()
