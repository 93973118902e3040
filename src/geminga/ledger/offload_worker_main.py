"""Making the files of offloaded ledgers in a process of its own: that process.

Its main thread only reads what it is told, so that it sees at once when whoever started it is gone, and ends,
whatever its other threads wait for. The work is done by one of three others, by the *pace* that is asked for.

A message is a head, two sizes of four bytes, then JSON of the first size and bytes of the second: ``do`` says
what is asked for. The answer has no bytes; where it has ``failed``, that says why, and ``unread`` says why
entries cannot be read. ``worked`` is the seconds of processor time that it took.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import struct
import sys
import time
import traceback
from array import array
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from geminga._version import __version__
from geminga.descriptors import fill_standard
from geminga.ledger.thread_load import lower_priority, step_aside

if TYPE_CHECKING:
    from geminga.ledger.log import LogFiles
    from geminga.ledger.offload_writing import InlineOffloadWriting
    from geminga.offload.storage import OffloadStorage

HEAD = struct.Struct(">II")
NO_MEMORY = 12
"""The process ends with this where it gets no memory any more."""


class Priority(StrEnum):
    """Who does a piece of work."""

    IDLE = "idle"
    """A thread that has what processor time nobody else wants, which may be next to nothing for hours."""
    NICE = "nice"
    """One that has stepped back behind everybody else, and gets on slowly whatever others want."""
    HURRY = "hurry"
    """One like any other: there is a reason."""


GROUP_STEP = 5
"""By so much its session is nicer than the work's step: who starts the process has stepped back as well."""


class WorkerRequests:
    """What is asked for, done on any thread, one request at a time."""

    def __init__(self) -> None:
        self._place: OffloadStorage | None = None
        self._makings: dict[str, InlineOffloadWriting] = {}
        """By path: one that was given up may have something under way yet when the next one is begun."""
        self._log: LogFiles | None = None
        self._writes = ThreadPoolExecutor(1, "geminga-writing")
        """Steps back from nobody: see `geminga.ledger.threaded_writer`."""

    def answer(self, request: dict[str, Any], body: memoryview) -> dict[str, Any]:
        """The answer to a request; what it raises is one, too."""
        match request["do"]:
            case "open":
                from geminga.ledger.tier_storage import place_at

                # They are large, and needed first.
                importlib.import_module("geminga.ledger.offload_writing")
                importlib.import_module("geminga.offload.envelope_kernels")
                kernels = importlib.import_module("geminga.wire.columnar_kernels")
                log = importlib.import_module("geminga.ledger.log")
                passing = importlib.import_module("geminga.ledger.uncached_files")
                self._place = place_at(request["location"])
                self._log = log.LogFiles(passing.PassingFileSystem(), request["store"], only_reads=True)
                return {"version": __version__, "starts_fast": kernels.KEPT}
            case "begin":
                from geminga.ledger.offload_writing import InlineOffloadWriting, OffloadRequest

                order = OffloadRequest(*request["order"])
                self._drop(order.path)
                assert self._place is not None
                self._makings[order.path] = InlineOffloadWriting(self._place, order, self._writes)
            case "add":
                self._making(request).add(_entries(request["entries"], body))
            case "read":
                return self._read(request, body)
            case "finish":
                written = self._making(request).finish()
                del self._makings[request["file"]]
                return {
                    "summary": written.summary.encode().decode(), "size": written.size, "crc": written.crc,
                    "tail": written.tail,
                }  # fmt: skip
            case "abandon":
                self._drop(request["file"])
            case unknown:
                raise ValueError(f"do={unknown!r} is not known")
        return {}

    def _making(self, request: dict[str, Any]) -> InlineOffloadWriting:
        found = self._makings.get(request["file"])
        if found is None:
            raise ValueError(f"{request['file']} is not being made")
        return found

    def _read(self, request: dict[str, Any], body: memoryview) -> dict[str, Any]:
        from geminga.ledger.catalog import EntryChunk
        from geminga.ledger.reading import ReadEntries, read_places

        making, first = self._making(request), request["first"]
        assert self._log is not None
        chunk = EntryChunk.unpack(request["ledger"], first, bytes(body))
        assert chunk is not None
        places = zip(range(first, first + len(chunk)), chunk.positions, chunk.sizes, chunk.crcs, strict=True)
        found = ReadEntries()
        try:
            read_places(self._log, list(places), found)
        except OSError as error:
            return {"unread": str(error)}
        finally:
            self._log.close()  # its files are the store's to delete, and an open one goes on taking room
        if found.bad:
            return {"unread": f"entry {found.bad[0][0]}: {found.what}"}
        making.add(found.entries)
        return {}

    def _drop(self, path: str) -> None:
        making = self._makings.pop(path, None)
        if making is not None:
            making.abandon()


def _entries(count: int, body: memoryview) -> list[bytes]:
    at = count * array("I").itemsize
    sizes = array("I", body[:at].tobytes())
    found = []
    for size in sizes:
        found.append(body[at : at + size].tobytes())
        at += size
    return found


class _WorkerSession:
    """A session of this process's own, and how nice it is to others.

    Where a system shares its processors among sessions first (Linux's autogroups), what a process uses in the
    session of the broker is the broker's share, whatever the priority of the process: beside others' work the
    broker's threads would wait for as long as that took.
    """

    def __init__(self, step: int) -> None:
        self._niceness = min(step + GROUP_STEP, 19) if step else 0
        self._has = 0
        if step:
            with contextlib.suppress(OSError):
                os.setsid()

    def hurry(self, hurries: bool) -> None:
        """Whether there is a reason to take a share like anybody else's."""
        wanted = 0 if hurries else self._niceness
        if wanted != self._has:
            # It is not there everywhere, and may be changed ten times a second: then the next time.
            with contextlib.suppress(OSError), open("/proc/self/autogroup", "wb", buffering=0) as file:
                file.write(b"%d" % wanted)
                self._has = wanted


def _receive(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            raise EOFError
        at += count
    return data


def serve(connection: socket.socket, parent: int) -> None:
    """Do what is asked for until the other side is gone. ``parent``: the process that it is to be."""
    maker = WorkerRequests()

    def work(request: dict[str, Any], body: memoryview) -> None:
        try:
            began = time.thread_time()
            try:
                answer = maker.answer(request, body)
            except MemoryError:
                raise  # the next one would fare no better here, and a new process may
            except Exception as error:
                answer = {"failed": str(error) or type(error).__name__}
            answer["worked"] = time.thread_time() - began
            text = json.dumps(answer).encode()
            connection.sendall(HEAD.pack(len(text), 0) + text)
        except MemoryError:
            os._exit(NO_MEMORY)
        except BaseException:
            os._exit(1)  # nobody wants to know, or it cannot be said: who asked sees that there is no answer

    def aside(step: int) -> None:
        lower_priority(step)
        step_aside()

    hurrying = ThreadPoolExecutor(1, "geminga-hurrying")
    threads = {Priority.HURRY: hurrying}
    session = _WorkerSession(0)
    while True:
        size, rest = HEAD.unpack(_receive(connection, HEAD.size))
        request = json.loads(_receive(connection, size))
        body = memoryview(_receive(connection, rest))
        if request["do"] == "open":
            if request["parent"] != parent:
                return
            step = request["step"]
            if step:
                threads[Priority.NICE] = ThreadPoolExecutor(1, "geminga-nice", lower_priority, (step,))
                threads[Priority.IDLE] = ThreadPoolExecutor(1, "geminga-idle", aside, (step,))
            session = _WorkerSession(step)
        pace = Priority(request.get("pace", Priority.NICE))
        session.hurry(pace is Priority.HURRY)
        threads.get(pace, hurrying).submit(work, request, body)


def main() -> None:
    """Started with the socket as its standard input; never returns."""
    # Whoever started it ends it. What is sent to all processes of a terminal or a service is not meant.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # short of memory the system is to end this one, not the broker
    parent = os.getppid()
    fill_standard()  # before anything gets a number: what a library prints is no answer, and in no file
    connection = socket.socket(fileno=os.dup(0))
    os.close(0)
    fill_standard()
    try:
        serve(connection, parent)
    except (OSError, EOFError):
        pass  # whoever started it is gone, or wants no more
    except MemoryError:
        os._exit(NO_MEMORY)
    except Exception:
        traceback.print_exc()
    finally:
        # Not waiting for its other threads.
        os._exit(1)


def _end_with_parent() -> None:
    """Have the system end this process with the thread that started it, where it does that."""
    if sys.platform == "linux":
        with contextlib.suppress(Exception):
            import ctypes

            set_death_signal = 1
            ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)
