"""Bringing: what the owner is about to ask the catalog for is read ahead, by the threads that read.

A database has no call that does not wait. But what another thread has read a moment ago is in the system's
memory, whichever connection reads it then. So the owner says what it wants, goes on, is told when that was
read, and asks. Nothing is handed over, and so nothing can be out of date.

What is wanted while a thread is on its way there is read by the same one: very many topics cost few wake-ups.
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
"""So many are read before those who wait are told."""

_Waiting = tuple[PrefetchRequest, Done]


class Prefetcher:
    """See the module. Used on the owner's thread; one thread at a time uses each of the ``catalogs``."""

    def __init__(
        self,
        pool: ReadPool[ReadEntries],
        catalogs: Sequence[Catalog],
        failed: Callable[[Exception], StoreError],
    ) -> None:
        """``failed`` says what it means that a catalog could not be read."""
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
        """Have a thread come for what waits, unless one is on its way."""
        if self._is_called:
            return
        self._is_called = True
        self._jobs += 1
        taken: list[_Waiting] = []
        errors: list[StoreError | None] = []

        def run() -> ReadEntries:
            self._is_called = False  # first: what comes behind this either is taken below, or calls again
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
            )  # refused half-way: the store is closed
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
        """Nobody comes any more: tell those who wait."""
        while self._waiting:
            _, done = self._waiting.popleft()
            run_callback(lambda done=done: done(error))  # type: ignore[misc]
