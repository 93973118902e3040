"""Catalog: the state of the store at a checkpoint, in an embedded database (SQLite).

The log holds every key, ledger and entry. The catalog only spares a restart from reading all of the log,
and keeps idle ledgers and keys out of memory. It holds the state of the log up to one position; a lost or
damaged catalog is rebuilt from the log. Each commit is one checkpoint, made in one transaction together
with its position in the log.

`geminga.ledger.catalog.database` has the tables and their checksums, `geminga.ledger.catalog.keys` the keys.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from geminga.errors import StoreDamaged
from geminga.ledger.api import KEYS_END, PrefetchRequest, StoredLedger
from geminga.ledger.catalog.database import NO_DAMAGE, CatalogDatabase, text_crc
from geminga.ledger.catalog.keys import CatalogKeys, KeyChange
from geminga.ledger.damage import Damage
from geminga.ledger.files.filesystem import FileSystem
from geminga.ledger.files.folder import CATALOG_DAMAGED_FILE, CATALOG_FILE, discard_catalog
from geminga.ledger.files.format import OFFSET_BITS, RECORD_BYTES, pack_numbers, unpack_numbers
from geminga.ledger.files.space import is_no_space
from geminga.wire.checksum import crc32c

logger = logging.getLogger("geminga.ledger")

CHUNK_ENTRIES_MAX = 4096
_AHEAD_KEYS = "(SELECT count(substr(base, -1)) FROM item WHERE key BETWEEN ? AND ?)"
_AHEAD_DELTAS = "(SELECT count(substr(body, -1)) FROM delta WHERE key BETWEEN ? AND ?)"
_AHEAD_LEDGERS = "(SELECT count(crc) FROM ledger WHERE owner BETWEEN ? AND ?)"
_AHEAD_NAMES = "(SELECT count(key) FROM (SELECT key FROM item WHERE key BETWEEN ? AND ? LIMIT ?))"
_AHEAD_LEDGERS_PAGE = "(SELECT count(crc) FROM (SELECT crc FROM ledger WHERE id>? ORDER BY id LIMIT ?))"
PAGE_KEYS = 512
PAGE_LEDGERS = 256
"""Rows of one page of keys or ledgers."""


@dataclass(slots=True, eq=False, repr=False)
class EntryChunk:
    """Positions, sizes and checksums of consecutive entries of a ledger."""

    first: int
    positions: array[int]
    sizes: array[int]
    crcs: array[int]

    def __len__(self) -> int:
        return len(self.positions)

    def pack(self, ledger_id: int) -> bytes:
        body = b"".join(
            (pack_numbers("Q", self.positions), pack_numbers("I", self.sizes), pack_numbers("I", self.crcs))
        )
        return body + crc32c(body, _seed(ledger_id, self.first)).to_bytes(4, "little")

    @classmethod
    def unpack(cls, ledger_id: int, first: int, body: bytes) -> EntryChunk | None:
        """Decode the result of `pack`; None if the checksum does not match."""
        count = (len(body) - 4) // 16
        view = memoryview(body)
        if len(body) != count * 16 + 4:
            return None
        if crc32c(view[:-4], _seed(ledger_id, first)) != int.from_bytes(view[-4:], "little"):
            return None
        return cls(
            first,
            unpack_numbers("Q", view[: 8 * count]),
            unpack_numbers("I", view[8 * count : 12 * count]),
            unpack_numbers("I", view[12 * count : 16 * count]),
        )


@dataclass(slots=True, eq=False, repr=False)
class LedgerChange:
    """Entries appended to a ledger since a checkpoint."""

    ledger_id: int
    owner: str
    entries: int
    size_bytes: int
    chunk: EntryChunk


@dataclass(slots=True, eq=False, repr=False)
class CheckpointSnapshot:
    """Changes between two checkpoints, up to ``position`` in the log.

    ``live_bytes`` are the bytes of entries and their records that each file gained; ``dropped`` are those
    of them that belonged to ledgers deleted since. ``moved`` maps ledger and entry to the new position of a
    rewritten entry.
    """

    number: int
    position: int
    sequence: int
    next_ledger_id: int
    ledgers: list[LedgerChange]
    deleted: set[int]
    dropped: list[EntryChunk]
    moved: dict[int, dict[int, int]]
    keys: dict[str, KeyChange]
    file_sizes: dict[int, int]
    live_bytes: dict[int, int]
    damage: list[Damage]
    settled: list[str]
    doubt: tuple[int, int]


def _seed(first: int, second: int) -> int:
    return crc32c(first.to_bytes(8, "little") + second.to_bytes(8, "little"))


def _are_counts(*values: object) -> bool:
    return all(isinstance(value, int) and value >= 0 for value in values)


class Catalog(CatalogDatabase):
    """Catalog of a store, through one connection."""

    def __init__(self, connection: sqlite3.Connection, note_damage: Callable[[], None] | None = None) -> None:
        super().__init__(connection, note_damage)
        self.keys = CatalogKeys(self)

    # --- ledgers ---
    def ledger(self, ledger_id: int) -> tuple[str, int, int] | None:
        """Return (owner, entries, size in bytes)."""
        for row in self.rows("SELECT owner, entries, size_bytes, crc FROM ledger WHERE id=?", (ledger_id,)):
            found = self._checked_ledger(ledger_id, *row)
            return found.owner, found.entries, found.size_bytes
        return None

    def owned(self, owner: str) -> list[int]:
        return [row[0] for row in self.rows("SELECT id FROM ledger WHERE owner=? ORDER BY id", (owner,))]

    def ledgers_after(self, after: int, limit: int) -> list[StoredLedger]:
        """Return the next ``limit`` ledgers behind an id, in order."""
        rows = self.rows(
            "SELECT id, owner, entries, size_bytes, crc FROM ledger WHERE id>? ORDER BY id LIMIT ?",
            (after, limit),
        )
        return [self._checked_ledger(*row) for row in rows]

    def _checked_ledger(
        self, ledger_id: int, owner: object, entries: object, size_bytes: object, crc: object
    ) -> StoredLedger:
        are_right = isinstance(owner, str) and _are_counts(entries, size_bytes)
        found = StoredLedger(ledger_id, owner, entries, size_bytes) if are_right else None  # type: ignore[arg-type]
        if found is None or crc != text_crc(found.owner, ledger_id, found.entries, found.size_bytes):
            raise self.damaged(f"the catalog's record of ledger {ledger_id} fails its checksum")
        return found

    def ledger_ids(self) -> set[int]:
        return {row[0] for row in self.rows("SELECT id FROM ledger")}

    def chunk(self, ledger_id: int, entry_id: int) -> EntryChunk | None:
        """Return the chunk of the index that holds the entry."""
        rows = self.rows(
            "SELECT first, body FROM chunk WHERE ledger=? AND first<=? ORDER BY first DESC LIMIT 1",
            (ledger_id, entry_id),
        )
        for first, body in rows:
            chunk = self._unpack(ledger_id, first, body)
            return chunk if entry_id < chunk.first + len(chunk) else None
        return None

    def chunks(self, ledger_id: int) -> list[EntryChunk]:
        rows = self.rows("SELECT first, body FROM chunk WHERE ledger=? ORDER BY first", (ledger_id,))
        return [self._unpack(ledger_id, first, body) for first, body in rows]

    def _unpack(self, ledger_id: int, first: int, body: bytes) -> EntryChunk:
        chunk = (
            EntryChunk.unpack(ledger_id, first, body)
            if isinstance(body, bytes) and _are_counts(first)
            else None
        )
        if chunk is None:
            raise self.damaged(
                f"the catalog's index of ledger {ledger_id} from entry {first} fails its checksum"
            )
        return chunk

    def read_ahead(self, wanted: PrefetchRequest) -> None:
        """Read the requested rows, so that the operating system caches their pages for the owner's queries.

        Uses one statement with one result row, as fetching each row may wait for the owner's thread. SQLite
        reads a whole value to return its last byte.
        """
        parts = [_AHEAD_KEYS, _AHEAD_DELTAS] * len(wanted.keys) + [_AHEAD_LEDGERS] * len(wanted.owners)
        ranges: list[object] = [key for each in wanted.keys for key in each * 2]
        ranges += chain.from_iterable(wanted.owners)
        for prefix, after in wanted.pages:
            parts.append(_AHEAD_NAMES)
            ranges += max(prefix, after), prefix + KEYS_END, PAGE_KEYS
        for ledger_id in wanted.ledgers_after:
            parts.append(_AHEAD_LEDGERS_PAGE)
            ranges += ledger_id, PAGE_LEDGERS
        self.rows(f"SELECT {' + '.join(parts)}", tuple(ranges))

    # --- files, damage ---
    def files(self) -> dict[int, int]:
        """Return the size of each log file's written part, by number."""
        return dict(self.rows("SELECT number, size_bytes FROM file"))

    def live_bytes(self) -> dict[int, int]:
        """Estimate the live bytes of each log file: entries of existing ledgers, present values of keys."""
        live: dict[int, int] = dict(self.rows("SELECT number, live_bytes FROM file"))
        for table in ("item", "delta"):
            for number, size in self.rows(f"SELECT file, SUM(size) FROM {table} GROUP BY file"):
                if number in live:
                    live[number] += size
        return live

    def damage(self) -> list[Damage]:
        return [Damage.from_json(row[0]) for row in self.rows("SELECT body FROM damage")]

    def settled(self) -> list[str]:
        """Return the names of settled damage."""
        return list(json.loads(self.meta("settled") or "[]"))

    # --- checkpoint ---
    def write(self, snapshot: CheckpointSnapshot) -> None:
        """Update the catalog to the snapshot's position, all or nothing."""
        connection, writes = self.connection, self.writes
        writes.execute("BEGIN IMMEDIATE")
        try:
            live = dict(snapshot.live_bytes)
            self._write_ledgers(snapshot, live)
            self._write_moved(snapshot, live)
            self.keys.write(snapshot.keys, snapshot.number, snapshot.position)
            self._write_files(snapshot, live)
            writes.execute("DELETE FROM damage")
            writes.executemany(
                "INSERT OR IGNORE INTO damage VALUES (?)", ((d.to_json(),) for d in snapshot.damage)
            )
            for name in ("number", "position", "sequence", "next_ledger_id"):
                self.set_meta(name, str(getattr(snapshot, name)))
            self.set_meta("settled", json.dumps(snapshot.settled))
            self.set_meta("doubt_below", str(snapshot.doubt[0]))
            self.set_meta("doubt_entries", str(snapshot.doubt[1]))
            writes.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                writes.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, NO_DAMAGE):
                raise self.damaged(f"the catalog is damaged ({error})") from error
            raise

    def _write_ledgers(self, snapshot: CheckpointSnapshot, live: dict[int, int]) -> None:
        writes = self.writes
        for chunk in snapshot.dropped:
            _subtract(live, chunk.positions, chunk.sizes)
        for ledger_id in snapshot.deleted:
            for chunk in self.chunks(ledger_id):
                _subtract(live, chunk.positions, chunk.sizes)
            writes.execute("DELETE FROM chunk WHERE ledger=?", (ledger_id,))
            writes.execute("DELETE FROM ledger WHERE id=?", (ledger_id,))
        writes.executemany(
            "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?)",
            (
                (
                    c.ledger_id,
                    c.owner,
                    c.entries,
                    c.size_bytes,
                    text_crc(c.owner, c.ledger_id, c.entries, c.size_bytes),
                )
                for c in snapshot.ledgers
            ),
        )
        writes.executemany(
            "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?)",
            (
                (change.ledger_id, part.first, part.pack(change.ledger_id))
                for change in snapshot.ledgers
                for part in _split(change.chunk)
            ),
        )

    def _write_moved(self, snapshot: CheckpointSnapshot, live: dict[int, int]) -> None:
        """Set the new positions of moved entries in the index."""
        for ledger_id, moves in snapshot.moved.items():
            if ledger_id in snapshot.deleted:
                continue
            changed: dict[int, EntryChunk] = {}
            chunk: EntryChunk | None = None
            for entry_id in sorted(moves):
                if chunk is None or entry_id >= chunk.first + len(chunk):
                    chunk = self.chunk(ledger_id, entry_id)
                if chunk is None:
                    continue
                index = entry_id - chunk.first
                _subtract(live, (chunk.positions[index],), (chunk.sizes[index],))
                chunk.positions[index] = moves[entry_id]
                changed[chunk.first] = chunk
            self.writes.executemany(
                "INSERT OR REPLACE INTO chunk VALUES (?, ?, ?)",
                ((ledger_id, first, each.pack(ledger_id)) for first, each in changed.items()),
            )

    def _write_files(self, snapshot: CheckpointSnapshot, live: dict[int, int]) -> None:
        writes = self.writes
        known = self.files().keys()
        writes.executemany(
            "DELETE FROM file WHERE number=?", ((n,) for n in known - snapshot.file_sizes.keys())
        )
        writes.executemany(
            "INSERT INTO file VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE SET "
            "size_bytes=excluded.size_bytes, live_bytes=max(0, live_bytes+excluded.live_bytes)",
            ((number, size, live.get(number, 0)) for number, size in snapshot.file_sizes.items()),
        )


class CatalogFile:
    """File of the catalog: opened from several threads, and recreated when it cannot be used."""

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


def _subtract(live: dict[int, int], positions: Sequence[int], sizes: Sequence[int]) -> None:
    """Take entries off the live bytes of their files. Most chunks are in one file: no work for each entry."""
    if not positions:
        return
    number = positions[0] >> OFFSET_BITS
    if min(positions) >> OFFSET_BITS == number == max(positions) >> OFFSET_BITS:
        live[number] = live.get(number, 0) - sum(sizes) - RECORD_BYTES * len(sizes)
        return
    middle = len(positions) // 2
    _subtract(live, positions[:middle], sizes[:middle])
    _subtract(live, positions[middle:], sizes[middle:])


def _split(chunk: EntryChunk) -> Sequence[EntryChunk]:
    """Return the chunk in parts of at most CHUNK_ENTRIES_MAX entries; none for an empty chunk."""
    if len(chunk) <= CHUNK_ENTRIES_MAX:
        return (chunk,) if len(chunk) else ()
    return [
        EntryChunk(
            chunk.first + start,
            chunk.positions[start : start + CHUNK_ENTRIES_MAX],
            chunk.sizes[start : start + CHUNK_ENTRIES_MAX],
            chunk.crcs[start : start + CHUNK_ENTRIES_MAX],
        )
        for start in range(0, len(chunk), CHUNK_ENTRIES_MAX)
    ]
