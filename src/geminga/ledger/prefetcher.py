"""Prefetcher: reads catalog rows that the owner is about to query ahead, on the reader threads.

SQLite has no asynchronous queries. But rows that another thread has just read are in the operating system's
page cache, for every connection. So the owner requests keys, continues, is notified when they were read, and
queries them itself. No data is passed between threads, so none can be outdated.

A thread that starts reads all requests pending by then: requests for many topics cost few thread wake-ups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from geminga.errors import StoreBusy, StoreError
from geminga.ledger.api import Done, PrefetchRequest
from geminga.ledger.callbacks import run_callback
from geminga.ledger.catalog import Catalog
from geminga.ledger.read_pool import ReadPool
from geminga.ledger.reading import ReadEntries

READ_AT_ONCE = 64
"""Requests that are read before their callbacks run."""

_Waiting = tuple[PrefetchRequest, Done]


class Prefetcher:
    """Reads catalog rows ahead. Used on the owner's thread, each of ``catalogs`` on one reader at a time."""

    def __init__(
        self,
        pool: ReadPool[ReadEntries],
        catalogs: Sequence[Catalog],
        failed: Callable[[Exception], StoreError],
    ) -> None:
        """``failed`` converts an exception of a catalog to a `StoreError`."""
        self._pool = pool
        self._failed = failed
        self._catalogs: SimpleQueue[Catalog] = SimpleQueue()
        for catalog in catalogs:
            self._catalogs.put(catalog)
        self._waiting: deque[_Waiting] = deque()
        self._is_called = False
        self._jobs = 0

    def bring(self, wanted: PrefetchRequest, done: Done) -> None:
        self._waiting.append((wanted, done))
        self._call()

    def _call(self) -> None:
        """Submit a job that reads pending requests, unless one is submitted already."""
        if self._is_called:
            return
        self._is_called = True
        self._jobs += 1
        taken: list[_Waiting] = []
        errors: list[StoreError | None] = []

        def run() -> ReadEntries:
            self._is_called = False  # first: a later request is either taken below or submits a new job
            catalog = self._catalogs.get()
            try:
                while self._waiting and len(taken) < READ_AT_ONCE:
                    try:
                        taken.append(self._waiting.popleft())
                    except IndexError:
                        break  # another thread took it
                    errors.append(self._read(catalog, taken[-1][0]))
            finally:
                self._catalogs.put(catalog)
            return ReadEntries()

        def deliver(answer: ReadEntries) -> None:
            if self._waiting:
                self._call()
            errors.extend(
                [answer.error] * (len(taken) - len(errors))
            )  # not read, because the store was closed
            for (_, done), error in zip(taken, errors, strict=True):
                run_callback(lambda done=done, error=error: done(error))  # type: ignore[misc]

        try:
            self._pool.submit((Prefetcher, self._jobs), run, deliver)
        except StoreBusy as error:
            self._is_called = False
            self.refuse(error)

    def _read(self, catalog: Catalog, wanted: PrefetchRequest) -> StoreError | None:
        try:
            catalog.read_ahead(wanted)
        except StoreError as error:
            return error
        except Exception as error:
            return self._failed(error)
        return None

    def refuse(self, error: StoreError) -> None:
        """Report an error to all pending requests, as no thread will read them."""
        while self._waiting:
            _, done = self._waiting.popleft()
            run_callback(lambda done=done: done(error))  # type: ignore[misc]
