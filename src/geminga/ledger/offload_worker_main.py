"""Offload worker process: writes the files of offloaded ledgers.

Its main thread only reads requests, so that it notices at once when the parent process is gone, and ends the
process without waiting. One of three other threads does the work, depending on the request's *pace*.

A message is a head, two sizes of four bytes, then JSON of the first size and bytes of the second; ``do`` is
the operation. The answer has no bytes; ``failed`` in it is an error, ``unread`` the error of entries that
cannot be read, ``worked`` the processor time used in seconds.
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
"""Exit code when the process is out of memory."""


class Priority(StrEnum):
    """Priority of a piece of work."""

    IDLE = "idle"
    """Runs only when the processor is idle, which may be next to never for hours."""
    NICE = "nice"
    """Runs at low priority, and progresses slowly however busy the processor is."""
    HURRY = "hurry"
    """Runs at normal priority, for urgent work."""


GROUP_STEP = 5
"""Added to the step for the session's niceness, as the thread that starts the process is nice, too."""


class WorkerRequests:
    """Handler of requests, on any thread, one request at a time."""

    def __init__(self) -> None:
        self._storage: OffloadStorage | None = None
        self._makings: dict[str, InlineOffloadWriting] = {}
        """Writers by path; a cancelled one may still be writing when the next one begins."""
        self._log: LogFiles | None = None
        self._writes = ThreadPoolExecutor(1, "geminga-writing")
        """Has normal priority: see `geminga.ledger.threaded_writer`."""

    def answer(self, request: dict[str, Any], body: memoryview) -> dict[str, Any]:
        """Return the answer to a request; the caller turns exceptions into an answer, too."""
        match request["do"]:
            case "open":
                from geminga.ledger.tier_storage import place_at

                # Imported here because they are large, and needed first.
                importlib.import_module("geminga.ledger.offload_writing")
                importlib.import_module("geminga.offload.envelope_kernels")
                kernels = importlib.import_module("geminga.wire.columnar_kernels")
                log = importlib.import_module("geminga.ledger.log")
                uncached = importlib.import_module("geminga.ledger.uncached_files")
                self._storage = place_at(request["location"])
                self._log = log.LogFiles(uncached.UncachedFileSystem(), request["store"], only_reads=True)
                return {"version": __version__, "starts_fast": kernels.KEPT}
            case "begin":
                from geminga.ledger.offload_writing import InlineOffloadWriting, OffloadRequest

                order = OffloadRequest(*request["order"])
                self._drop(order.path)
                assert self._storage is not None
                self._makings[order.path] = InlineOffloadWriting(self._storage, order, self._writes)
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
        from geminga.ledger.reading import ReadEntries, read_entries_at

        making, first = self._making(request), request["first"]
        assert self._log is not None
        chunk = EntryChunk.unpack(request["ledger"], first, bytes(body))
        assert chunk is not None
        positions = zip(
            range(first, first + len(chunk)), chunk.positions, chunk.sizes, chunk.crcs, strict=True
        )
        found = ReadEntries()
        try:
            read_entries_at(self._log, list(positions), found)
        except OSError as error:
            return {"unread": str(error)}
        finally:
            self._log.close()  # the store may delete these files, and an open file keeps its space
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
    """Session of this process, with a niceness of its own.

    Linux's autogroups share the processor among sessions first. In the broker's session, the work of this
    process would count against the broker's share, even at a low priority, and make the
    broker's threads wait beside other sessions.
    """

    def __init__(self, step: int) -> None:
        self._niceness = min(step + GROUP_STEP, 19) if step else 0
        self._has = 0
        if step:
            with contextlib.suppress(OSError):
                os.setsid()

    def hurry(self, hurries: bool) -> None:
        """Set whether the session takes a normal share of the processor."""
        wanted = 0 if hurries else self._niceness
        if wanted != self._has:
            # Not supported everywhere, and limited to ten changes per second: try again next time.
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
    """Serve requests until the other side is gone. ``parent``: the expected id of the parent process."""
    maker = WorkerRequests()

    def work(request: dict[str, Any], body: memoryview) -> None:
        try:
            began = time.thread_time()
            try:
                answer = maker.answer(request, body)
            except MemoryError:
                raise  # this process stays short of memory, a new one may not be
            except Exception as error:
                answer = {"failed": str(error) or type(error).__name__}
            answer["worked"] = time.thread_time() - began
            text = json.dumps(answer).encode()
            connection.sendall(HEAD.pack(len(text), 0) + text)
        except MemoryError:
            os._exit(NO_MEMORY)
        except BaseException:
            os._exit(1)  # the answer cannot be sent: the other side notices that the socket is closed

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
    """Run the process, which has the socket as its standard input; never returns."""
    # Only the parent ends this process: ignore signals sent to all processes of a terminal or a service.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # when memory is short the system should kill this process, not the broker
    parent = os.getppid()
    fill_standard()  # first, so that output printed by a library goes neither to the socket nor to a file
    connection = socket.socket(fileno=os.dup(0))
    os.close(0)
    fill_standard()
    try:
        serve(connection, parent)
    except (OSError, EOFError):
        pass  # the parent is gone, or has closed the socket
    except MemoryError:
        os._exit(NO_MEMORY)
    except Exception:
        traceback.print_exc()
    finally:
        # Does not wait for the other threads.
        os._exit(1)


def _end_with_parent() -> None:
    """Make the system kill this process with the thread that started it, where it supports that (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(Exception):
            import ctypes

            set_death_signal = 1
            ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)
