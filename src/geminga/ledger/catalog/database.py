"""Database of the catalog (SQLite): its tables, its connection, and the checks that it is intact.

Rows carry a CRC32C that is checked when they are read, as SQLite keeps no checksums: `CatalogDamaged` means
the catalog must be rebuilt.
"""

import sqlite3
from collections.abc import Callable
from typing import Any

from geminga.errors import StoreDamaged, StoreError
from geminga.wire.checksum import crc32c

NO_DAMAGE = (sqlite3.OperationalError, sqlite3.ProgrammingError)
"""Errors of SQLite that are caused by the machine or the caller, not by a damaged database."""
SCHEMA_VERSION = 1
CHECKED_BYTES_MAX = 32 * 1024 * 1024
"""Catalogs up to this size are checked when they are opened, which takes up to about 20 ms."""

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE ledger (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, entries INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE INDEX ledger_owner ON ledger (owner);
CREATE TABLE chunk (ledger INTEGER NOT NULL, first INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (ledger, first)) WITHOUT ROWID;
CREATE TABLE item (key TEXT PRIMARY KEY, base BLOB NOT NULL, file INTEGER NOT NULL, size INTEGER NOT NULL,
    crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE delta (key TEXT NOT NULL, checkpoint INTEGER NOT NULL, body BLOB NOT NULL,
    file INTEGER NOT NULL, size INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (key, checkpoint)) WITHOUT ROWID;
CREATE TABLE file (number INTEGER PRIMARY KEY, size_bytes INTEGER NOT NULL, live_bytes INTEGER NOT NULL);
CREATE TABLE damage (body TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class CatalogDamaged(StoreDamaged):
    """The catalog's own bytes are wrong; no entry is lost, reopening the store rebuilds it from the log."""


def text_crc(text: str, *numbers: int) -> int:
    return crc32c(text.encode() + b"".join(n.to_bytes(8, "little") for n in numbers))


class CatalogDatabase:
    """Connection to the catalog's database. The owner's thread reads, the checkpoint's thread writes."""

    def __init__(self, connection: sqlite3.Connection, note_damage: Callable[[], None] | None = None) -> None:
        self.connection = connection
        self._cursor = connection.cursor()
        """Used for all queries, one after the other: a connection keeps the hundreds of cursors that it has
        made in memory, and their leftovers fragment it."""
        self.writes = connection.cursor()
        """Used for all other statements, also while a query's result is being read."""
        self._note_damage = note_damage

    def close(self) -> None:
        self.connection.close()

    def rows(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        """Return the rows of a query; raises `CatalogDamaged` when the database is not intact."""
        try:
            return self._cursor.execute(statement, parameters).fetchall()
        except NO_DAMAGE as error:
            raise StoreError(f"the store's catalog cannot be read: {error}") from error
        except sqlite3.DatabaseError as error:
            raise self.damaged(f"the catalog is damaged ({error})") from error

    def damaged(self, what: str) -> CatalogDamaged:
        if self._note_damage is not None:
            self._note_damage()
        return CatalogDamaged(f"{what}: close the store and open it again, it is then rebuilt from the log")

    def is_usable(self, store_id: bytes) -> bool:
        """Whether the database is an intact catalog of the store; False for an empty or foreign one.

        All pages of a small catalog are checked: rebuilding it now is better than finding the damage later,
        while topics are served from it.
        """
        try:
            is_ours = self.meta("store_id") == store_id.hex() and self.meta("schema") == str(SCHEMA_VERSION)
            if is_ours and self._size_bytes() <= CHECKED_BYTES_MAX:
                return self.rows("PRAGMA quick_check(1)") == [("ok",)]
            return is_ours
        except StoreError:
            return False

    def _size_bytes(self) -> int:
        ((pages,),), ((page_bytes,),) = self.rows("PRAGMA page_count"), self.rows("PRAGMA page_size")
        return int(pages * page_bytes)

    def is_empty(self) -> bool:
        """Whether the database has never been written to."""
        return bool(self.rows("SELECT COUNT(*) FROM sqlite_master") == [(0,)])

    def create(self, store_id: bytes) -> None:
        """Create the tables of a new catalog."""
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.strip().split(";\n"):
            execute(statement.rstrip(";"))
        self.set_meta("store_id", store_id.hex())
        self.set_meta("schema", str(SCHEMA_VERSION))
        execute("COMMIT")

    def meta(self, name: str) -> str | None:
        for (text,) in self.rows("SELECT value FROM meta WHERE name=?", (name,)):
            value, _, checksum = str(text).rpartition("#")
            if checksum != str(text_crc(name + value)):
                raise self.damaged(f"the catalog's {name} fails its checksum")
            return value
        return None

    def number(self, name: str) -> int:
        return int(self.meta(name) or 0)

    def set_meta(self, name: str, value: str) -> None:
        value = f"{value}#{text_crc(name + value)}"
        self.writes.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))
