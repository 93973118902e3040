"""Requests to the offload worker process, on the side of the process.

A request is a pickled tuple, (name, arguments...); the answer is the pickled pair (result, error), one of
which is None.
"""

from __future__ import annotations

import importlib
import pickle
import socket
from collections.abc import Sequence
from typing import Any

from geminga._version import __version__
from geminga.ledger.offload_writing import InlineOffloadWriting, OffloadRequest, OffloadWriteFailed
from geminga.ledger.tier_storage import place_at
from geminga.offload.file import WrittenFile


class WorkerRequests:
    """Handlers of the requests, by name."""

    def __init__(self) -> None:
        self._writing: dict[str, InlineOffloadWriting] = {}
        """Files by path; a cancelled one may still be open when the next one begins."""

    def open(self, location: str) -> str:
        """Open the storage location. Returns the version."""
        importlib.import_module("geminga.offload.envelope_kernels")
        self._storage = place_at(location)
        return __version__

    def begin(self, order: OffloadRequest) -> None:
        self.abandon(order.path)
        self._writing[order.path] = InlineOffloadWriting(self._storage, order)

    def add(self, path: str, entries: Sequence[bytes]) -> None:
        self._writing[path].add(entries)

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
    requests, handlers = connection.makefile("rb"), WorkerRequests()
    while True:
        name, *arguments = pickle.load(requests)
        answer: tuple[Any, Exception | None]
        try:
            answer = getattr(handlers, name)(*arguments), None
        except MemoryError:
            raise  # this process stays short of memory, a new one may not be
        except Exception as error:  # those of a storage library cannot all be pickled
            answer = None, OffloadWriteFailed(str(error) or type(error).__name__)
        connection.sendall(pickle.dumps(answer))
