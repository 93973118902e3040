"""Stocktaking: what the catalog has is counted into `bloom_filter`, a page at a time, by the threads that read.

A catalog that cannot be read is left alone: everything is then asked of it, as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from geminga.errors import StoreBusy
from geminga.ledger.key_bloom_filter import KeyBloomFilter
from geminga.ledger.read_pool import ReadPool
from geminga.ledger.reading import ReadEntries

PAGE_NAMES: Final = 1_000
"""The owner counts in so many at once, which takes it about a millisecond."""


class CatalogConnection(Protocol):
    """The catalog, as one more connection sees it."""

    def keys(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """The next keys behind ``after``, in order."""

    def owners(self, after: str, limit: int) -> list[str]:
        """The next owners of ledgers behind ``after``, in order."""


class BloomFilterBuilder:
    """See the module. Used on the owner's thread; one thread at a time uses its ``catalog``."""

    def __init__(
        self,
        bloom_filter: KeyBloomFilter,
        pool: ReadPool[ReadEntries],
        catalog: CatalogConnection,
        failed: Callable[[Exception], object],
    ) -> None:
        """``failed`` is told, on a thread that reads, why a page cannot be read."""
        self._bloom_filter = bloom_filter
        self._pool = pool
        self._catalog = catalog
        self._failed = failed
        self._key: str | None = None
        self._owner = ""
        self._is_running = self._is_over = False

    def keep(self) -> None:
        """Begin, if it is wanted and not done."""
        if not self._is_running and not self._is_over and self._bloom_filter.wants_stock:
            self._is_running = True
            self._key, self._owner = "", ""
            self._turn_page()

    def _turn_page(self) -> None:
        after, owner = self._key, self._owner
        keys: list[str] = []
        owners: list[str] = []
        is_read = False

        def run() -> ReadEntries:
            nonlocal is_read
            try:
                if after is not None:
                    keys.extend(self._catalog.keys("", after or None, PAGE_NAMES))
                else:
                    owners.extend(self._catalog.owners(owner, PAGE_NAMES))
                is_read = True
            except Exception as error:
                self._failed(error)
            return ReadEntries()

        def deliver(answer: ReadEntries) -> None:
            if not is_read:
                self._is_running, self._is_over = False, True
                return
            self._bloom_filter.take_stock(keys, owners)
            if len(keys) + len(owners) == PAGE_NAMES:
                self._key, self._owner = (keys[-1], "") if keys else (None, owners[-1])
            elif after is not None:
                self._key = None
            else:
                self._is_running = False
                self._bloom_filter.stock_is_taken()
                return
            self._turn_page()

        try:
            self._pool.submit(BloomFilterBuilder, run, deliver)
        except StoreBusy:
            self._is_running = False  # begun anew when there is less to do
