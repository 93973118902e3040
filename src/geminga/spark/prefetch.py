"""Prefetching from an iterator in another thread, so that producer and consumer work in parallel.

Between the JVM and a Python worker a batch goes through a socket that holds a fraction of it: while Python
works on one batch, the JVM can't send the next one, and is idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa


def taken_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches in order, while a thread computes the next one. Raises the iterator's errors."""
    with ThreadPoolExecutor(1, "geminga ahead") as thread:
        following = thread.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = thread.submit(next, batches, None)
            yield batch
