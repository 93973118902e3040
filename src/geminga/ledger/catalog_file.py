"""File of the catalog: opened from several threads, and recreated when it cannot be used."""

from __future__ import annotations

import contextlib
import logging
import sqlite3

from geminga.errors import StoreDamaged
from geminga.ledger.catalog import Catalog
from geminga.ledger.filesystem import FileSystem
from geminga.ledger.folder import CATALOG_DAMAGED_FILE, CATALOG_FILE, discard_catalog
from geminga.ledger.space import is_no_space

logger = logging.getLogger("geminga.ledger")


class CatalogFile:
    """Opens the catalog file, and keeps the connections to close them."""

    def __init__(self, filesystem: FileSystem, folder: str, store_id: bytes) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._store_id = store_id
        self._connections: list[sqlite3.Connection] = []

    def connect(self, cache_kibibytes: int | None = None) -> Catalog:
        """Open another connection, for one thread at a time; by default with SQLite's own cache size."""
        connection = self._filesystem.connect(f"{self._folder}/{CATALOG_FILE}")
        self._connections.append(connection)
        if cache_kibibytes is not None:
            connection.execute(f"PRAGMA cache_size=-{cache_kibibytes}")
        return Catalog(connection, self._note_damage)

    def open(self) -> Catalog:
        """Open the catalog; an unusable one is replaced by an empty one, to be rebuilt from the log."""
        if CATALOG_DAMAGED_FILE in self._filesystem.list_folder(self._folder):
            return self.replace("it was found damaged")
        try:
            catalog = self.connect()
            if catalog.is_usable(self._store_id):
                return catalog
            if catalog.is_empty():
                catalog.create(self._store_id)
                return catalog
        except (sqlite3.DatabaseError, StoreDamaged) as error:
            if is_no_space(error):
                raise
            return self.replace(str(error))
        return self.replace("it is damaged, or of another store")

    def replace(self, why: str) -> Catalog:
        """Replace the catalog by an empty one."""
        logger.warning("the catalog of the store in %s is rebuilt from the log: %s", self._folder, why)
        self.close()
        discard_catalog(self._filesystem, self._folder)
        catalog = self.connect()
        catalog.create(self._store_id)
        return catalog

    def _note_damage(self) -> None:
        """Make the next opening rebuild the catalog. Called on any thread."""
        with contextlib.suppress(OSError):
            self._filesystem.open(f"{self._folder}/{CATALOG_DAMAGED_FILE}", create=True).close()
            self._filesystem.sync_folder(self._folder)

    def close(self) -> None:
        """Close all connections."""
        while self._connections:
            self._connections.pop().close()
