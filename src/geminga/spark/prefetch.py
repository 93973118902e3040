"""Taking from an iterator ahead of whoever uses it, so that both work at the same time.

Between the JVM and a Python worker a batch goes through a socket that holds a fraction of it: while Python
works on one batch, the JVM can't give the next one, and stands still.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

import pyarrow as pa

AHEAD_BYTES = 16 * 1024 * 1024
"""Bytes that wait at the most, and one batch more."""


def taken_ahead(batches: Iterator[pa.RecordBatch], bytes_max: int = AHEAD_BYTES) -> Iterator[pa.RecordBatch]:
    """The same batches, in their order; another thread takes them. What the iterator raises is raised here.

    Once nobody wants more, that thread ends with the batch that it waits for; it keeps no process alive.
    """
    return _Prefetch(batches, bytes_max).taken()


class _Prefetch:
    def __init__(self, batches: Iterator[pa.RecordBatch], bytes_max: int) -> None:
        self._batches = batches
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._waiting: deque[pa.RecordBatch] = deque()
        self._size = 0
        self._ended = False
        self._error: BaseException | None = None
        self._unwanted = False

    def taken(self) -> Iterator[pa.RecordBatch]:
        threading.Thread(target=self._take, name="geminga ahead", daemon=True).start()
        try:
            while True:
                with self._changed:
                    while not self._waiting and not self._ended:
                        self._changed.wait()
                    if not self._waiting:
                        break
                    batch = self._waiting.popleft()
                    self._size -= batch.nbytes
                    self._changed.notify()
                yield batch
        finally:
            with self._changed:
                self._unwanted = True
                self._waiting.clear()
                self._changed.notify()
        if self._error is not None:
            raise self._error

    def _take(self) -> None:
        try:
            for batch in self._batches:
                with self._changed:
                    self._waiting.append(batch)
                    self._size += batch.nbytes
                    self._changed.notify()
                    while self._size >= self._bytes_max and self._waiting and not self._unwanted:
                        self._changed.wait()
                    if self._unwanted:
                        return
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify()
