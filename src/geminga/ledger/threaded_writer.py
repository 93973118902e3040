"""Writing of a file on another thread than the one that produces its data.

A thread that gets hardly any processor time must not block others. It would when it writes to a journaling
file system: a sync by any process, above all of the store's log, waits for all threads that are about to
change files there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from geminga.offload.storage import StorageWriter

PIECE_BYTES = 1024 * 1024
PIECES_WAITING_MAX = 4


class ThreadedWriter:
    """`StorageWriter` on a separate thread. An exception there is raised by a later call."""

    def __init__(self, create: Callable[[], StorageWriter], thread: ThreadPoolExecutor) -> None:
        """``create`` runs on that thread, too; its exceptions are raised."""
        self._thread = thread
        self._gathered = bytearray()
        self._waiting: deque[Future[object]] = deque()
        self._failure: BaseException | None = None
        self._writing: StorageWriter = thread.submit(create).result()

    def write(self, data: Any) -> object:
        self._gathered += data
        if len(self._gathered) >= PIECE_BYTES:
            self._hand_over()
        return None

    def _hand_over(self) -> None:
        data, self._gathered = bytes(self._gathered), bytearray()
        self._waiting.append(self._thread.submit(self._writing.write, data))
        while len(self._waiting) > PIECES_WAITING_MAX or (self._waiting and self._waiting[0].done()):
            self._take_first()
        self._check()

    def _take_first(self) -> None:
        try:
            self._waiting.popleft().result()
        except BaseException as error:
            self._failure = self._failure or error

    def _check(self) -> None:
        """Raise the first failure: data written after it is useless."""
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        if self._gathered:
            self._hand_over()
        while self._waiting:
            self._take_first()
        self._check()
        self._thread.submit(self._writing.finish).result()

    def abandon(self) -> None:
        for each in self._waiting:
            each.cancel()
        while self._waiting:
            self._take_first()
        self._thread.submit(self._writing.abandon).result()
