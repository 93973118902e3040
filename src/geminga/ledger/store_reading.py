"""Reading side of a durable store: its reader threads, their connections to the catalog, and prefetching."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from geminga.errors import StoreError
from geminga.ledger.api import Done, Fetched, PrefetchRequest, ReadAhead
from geminga.ledger.catalog_file import CatalogFile
from geminga.ledger.damage import Damage
from geminga.ledger.index import Index
from geminga.ledger.log import LogFiles
from geminga.ledger.prefetcher import Prefetcher
from geminga.ledger.read_pool import ReadPool
from geminga.ledger.reading import ReadEntries, StoreEntryReader
from geminga.ledger.settings import StoreSettings
from geminga.ledger.state import StoreState

_AHEAD_CACHE_KIB = 128
"""Cache of connections that read ahead: small, as they only fill the operating system's cache."""


class StoreReading:
    """Reads entries and catalog pages, on the owner's thread and, with `start`, on reader threads."""

    def __init__(
        self,
        state: StoreState,
        files: LogFiles,
        settings: StoreSettings,
        note_damage: Callable[[Damage], None],
    ) -> None:
        self._state = state
        self._files = files
        self._settings = settings
        self._note_damage = note_damage
        self.pool: ReadPool[ReadEntries] | None = None
        self.index: Index | None = None
        """Index of the reader threads."""
        self._prefetcher: Prefetcher | None = None
        self._error: StoreError | None = None
        self.reader = self._make_reader()

    def _make_reader(self) -> StoreEntryReader:
        return StoreEntryReader(
            self._state, self._files, self._note_damage, self.pool, self.index,
            unreadable_seconds=self._settings.unreadable_seconds,
        )  # fmt: skip

    def use_threads(
        self, catalog: CatalogFile, finished: deque[Callable[[], None]], signal: Callable[[], None]
    ) -> None:
        """Read on threads once they are started: ``finished`` receives their callbacks."""
        settings = self._settings
        self.index = Index(catalog.connect(), self._state.index)
        self.pool = ReadPool(
            finished,
            signal,
            threads=settings.read_threads,
            wait_seconds=settings.read_wait_seconds,
            waiting_max=settings.reads_waiting_max,
            undelivered_bytes_max=settings.read_ahead_bytes_max,
        )
        self._prefetcher = Prefetcher(
            self.pool,
            [catalog.connect(_AHEAD_CACHE_KIB) for _ in range(settings.read_threads)],
            lambda error: StoreError(f"the store's catalog cannot be read: {error}"),
        )
        self.reader = self._make_reader()

    def start(self) -> None:
        """Start the threads."""
        if self.pool is not None:
            self.pool.start()

    def fetch(
        self,
        ledger_id: int,
        first_entry_id: int,
        *,
        entries_max: int,
        bytes_max: int,
        ahead: ReadAhead | None,
        done: Fetched,
    ) -> list[bytes] | None:
        """Implement `geminga.ledger.api.EntryStore.fetch`."""
        ledger = self._state.ledgers.ledger(ledger_id)
        return self.reader.fetch(ledger, first_entry_id, entries_max, bytes_max, ahead, done)

    def bring(self, wanted: PrefetchRequest, done: Done) -> bool:
        """Implement `geminga.ledger.api.EntryStore.bring`."""
        if self._prefetcher is None or not wanted:
            return True
        if self._error is not None:
            done(self._error)
        else:
            self._prefetcher.bring(wanted, done)
        return False

    def stop(self, error: StoreError) -> bool:
        """Refuse reads with ``error`` and end the threads; returns whether they have ended."""
        self._error = error
        has_ended = self.pool is None or self.pool.stop(ReadEntries(error=error))
        if self._prefetcher is not None:
            self._prefetcher.refuse(error)
        return has_ended
