"""Writing of an offloaded ledger's file: the request, the interface, and the implementation in this process.

`geminga.ledger.tier.offload_worker` implements it in another process, in which `serve` handles its requests.
A request is a pickled tuple, (name, arguments...); the answer is the pickled pair (result, error), one of
which is None.
"""

import importlib
import pickle
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from geminga._version import __version__
from geminga.ledger.tier.storage import place_at
from geminga.offload.file import LedgerFile, LedgerWriter, WrittenFile
from geminga.offload.storage import OffloadStorage


class OffloadWriteFailed(Exception):
    """A file cannot be written, or has other contents than were written to it."""


class OffloadRequest(NamedTuple):
    """Request for the file of one ledger: ``path`` in the storage location, and fields of its footer."""

    path: str
    topic: str
    partition: int
    ledger_id: int
    uuid: str


class OffloadWriting(Protocol):
    """File that is being written, on the worker's thread. Methods raise errors of the storage location; the
    caller then calls `abandon`."""

    def add(self, entries: Sequence[bytes]) -> None:
        """Add the next entries."""

    def finish(self) -> WrittenFile:
        """Return when the file is complete and durable, and its footer was read."""

    def abandon(self) -> None:
        """Stop writing to the file. The caller deletes what was written."""


class InlineOffloadWriting:
    """`OffloadWriting` on the calling thread."""

    def __init__(self, storage: OffloadStorage, order: OffloadRequest) -> None:
        self._storage = storage
        self._path = order.path
        self._output = storage.create(order.path)
        try:
            self._writer = LedgerWriter(
                self._output, topic=order.topic, partition=order.partition, ledger_id=order.ledger_id,
                uuid=order.uuid,
            )  # fmt: skip
        except BaseException:
            self._output.abandon()
            raise
        self._is_finished = False

    def add(self, entries: Sequence[bytes]) -> None:
        self._writer.add(entries)

    def finish(self) -> WrittenFile:
        written = self._writer.close()
        self._output.finish()
        self._is_finished = True
        file = LedgerFile(self._storage.open(self._path))
        try:
            if file.summary != written.summary:
                raise OffloadWriteFailed(f"{self._path} does not say what was written to it")
        finally:
            file.close()
        return written

    def abandon(self) -> None:
        if not self._is_finished:
            self._writer.abandon()
            self._output.abandon()


class WorkerRequests:
    """Handlers of the requests to the worker process, by name."""

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
