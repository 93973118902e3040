"""Offload worker process: writes the files of offloaded ledgers, at a low priority.

A request is a pickled tuple, (name, arguments...); the answer is the pickled pair (result, error), one of
which is None. The process handles one request after the other, and ends when the socket is closed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from geminga._version import __version__
from geminga.descriptors import fill_standard

if TYPE_CHECKING:
    from geminga.ledger.catalog import EntryChunk
    from geminga.ledger.offload_writing import InlineOffloadWriting, OffloadRequest
    from geminga.offload.file import WrittenFile

NICENESS = 10
"""Niceness added to that of the broker: next to a thread of the broker that always works, the process gets a
tenth of a processor."""
NO_MEMORY = 12
"""Exit code when the process is out of memory."""


class WorkerRequests:
    """Handlers of the requests, by name."""

    def __init__(self) -> None:
        self._writing: dict[str, InlineOffloadWriting] = {}
        """Files by path; a cancelled one may still be open when the next one begins."""

    def open(self, location: str, store: str) -> str:
        """Open the storage location, and the log in the folder ``store``. Returns the version."""
        # Imported here because they are large, and may print: `main` has then replaced the descriptors.
        from geminga.ledger.filesystem import RealFileSystem
        from geminga.ledger.log import LogFiles
        from geminga.ledger.tier_storage import place_at

        importlib.import_module("geminga.offload.envelope_kernels")
        self._storage = place_at(location)
        self._log = LogFiles(RealFileSystem(), store, only_reads=True)
        return __version__

    def begin(self, order: OffloadRequest) -> None:
        from geminga.ledger.offload_writing import InlineOffloadWriting

        self.abandon(order.path)
        self._writing[order.path] = InlineOffloadWriting(self._storage, order)

    def add(self, path: str, piece: Sequence[bytes] | EntryChunk, ledger_id: int) -> None:
        from geminga.ledger.catalog import EntryChunk

        self._writing[path].add(self._read(piece, ledger_id) if isinstance(piece, EntryChunk) else piece)

    def _read(self, chunk: EntryChunk, ledger_id: int) -> list[bytes]:
        from geminga.ledger.offload_writing import EntriesUnreadable
        from geminga.ledger.reading import ReadEntries, read_entries_at

        entry_ids = range(chunk.first, chunk.first + len(chunk))
        positions = zip(entry_ids, chunk.positions, chunk.sizes, chunk.crcs, strict=True)
        found = ReadEntries()
        try:
            read_entries_at(self._log, list(positions), found)
        except OSError as error:
            raise EntriesUnreadable(str(error)) from error
        finally:
            self._log.close()  # the store may delete these files, and an open file keeps its space
        if found.bad:
            raise EntriesUnreadable(f"ledger {ledger_id}, entry {found.bad[0][0]}: {found.what}")
        return found.entries

    def finish(self, path: str) -> WrittenFile:
        written = self._writing[path].finish()
        del self._writing[path]
        return written

    def abandon(self, path: str) -> None:
        writing = self._writing.pop(path, None)
        if writing is not None:
            writing.abandon()


def serve(connection: socket.socket) -> None:
    """Serve requests until the other side closes the socket."""
    from geminga.ledger.offload_writing import EntriesUnreadable, OffloadWriteFailed

    requests, handlers = connection.makefile("rb"), WorkerRequests()
    while True:
        name, *arguments = pickle.load(requests)
        answer: tuple[Any, Exception | None]
        try:
            answer = getattr(handlers, name)(*arguments), None
        except MemoryError:
            raise  # this process stays short of memory, a new one may not be
        except EntriesUnreadable as error:
            answer = None, error
        except Exception as error:  # those of a storage library cannot all be pickled
            answer = None, OffloadWriteFailed(str(error) or type(error).__name__)
        connection.sendall(pickle.dumps(answer))


def main() -> None:
    """Run the process, which has the socket as its standard input; never returns."""
    # Only the parent ends this process: ignore signals sent to all processes of a terminal or a service.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # when memory is short the system should kill this process, not the broker
    fill_standard()  # first, so that output printed by a library goes neither to the socket nor to a file
    connection = socket.socket(fileno=os.dup(0))
    os.close(0)
    fill_standard()
    try:
        serve(connection)
    except (OSError, EOFError):
        pass  # the parent is gone, or has closed the socket
    except MemoryError:
        os._exit(NO_MEMORY)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(1)  # at once, without the work that libraries do at an exit


def _end_with_parent() -> None:
    """Make the system kill this process with the thread that started it, where it supports that (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(Exception):
            import ctypes

            set_death_signal = 1
            ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)
