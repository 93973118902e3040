"""Prefetching from an iterator in another thread, so that producer and consumer work in parallel.

Between the JVM and a Python worker a batch goes through a socket that holds a fraction of it: while Python
works on one batch, the JVM can't send the next one, and is idle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

import pyarrow as pa

AHEAD_BYTES = 16 * 1024 * 1024
"""Maximum bytes of prefetched batches, plus one batch."""


def taken_ahead(batches: Iterator[pa.RecordBatch], bytes_max: int = AHEAD_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the same batches in order, prefetched by a daemon thread; raise the iterator's error.

    Once the consumer stops, the thread ends after the batch that it is reading.
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
