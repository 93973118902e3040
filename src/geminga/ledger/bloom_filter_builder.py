"""Builder of the Bloom filter: adds the catalog's names to `KeyBloomFilter` in pages read by the read pool.

If the catalog cannot be read, the build stops: without the filter, every lookup asks the catalog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from geminga.errors import StoreBusy
from geminga.ledger.catalog import Catalog
from geminga.ledger.key_bloom_filter import KeyBloomFilter
from geminga.ledger.read_pool import ReadPool
from geminga.ledger.reading import ReadEntries

PAGE_NAMES: Final = 1_000
"""Names per page. The owner's thread adds a page in about 1 ms."""


class BloomFilterBuilder:
    """Adds a catalog's names to a filter. Used on the owner's thread, ``catalog`` on one reader at a time."""

    def __init__(
        self,
        bloom_filter: KeyBloomFilter,
        pool: ReadPool[ReadEntries],
        catalog: Catalog,
        failed: Callable[[Exception], object],
    ) -> None:
        """``failed`` is called on a reader's thread with the error of a page that cannot be read."""
        self._bloom_filter = bloom_filter
        self._pool = pool
        self._catalog = catalog
        self._failed = failed
        self._key: str | None = None
        self._owner = ""
        self._is_running = self._is_over = False

    def keep(self) -> None:
        """Start the build if the filter needs it and it has not run yet."""
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
                    keys.extend(self._catalog.keys.names("", after or None, PAGE_NAMES))
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
            self._is_running = False  # restarted by the next keep()
