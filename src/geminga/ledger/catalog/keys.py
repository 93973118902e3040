"""Keys in the catalog: their values and deltas as of the checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.ledger.api import StoredValue
from geminga.ledger.catalog.database import CatalogDatabase, text_crc
from geminga.ledger.files.format import OFFSET_BITS, RECORD_BYTES, decode_list, encode_list
from geminga.wire.checksum import crc32c


@dataclass(slots=True, eq=False, repr=False)
class KeyChange:
    """Changes of a key since a checkpoint: a new base (or none), then deltas."""

    key_bytes: bytes
    fingerprint: int
    base: bytes | None = None
    deleted: bool = False
    deltas: list[bytes] = field(default_factory=list)

    @property
    def replaces(self) -> bool:
        """Whether the change replaces the key's value in the catalog."""
        return self.deleted or self.base is not None


class CatalogKeys:
    """Tables of keys in a catalog."""

    def __init__(self, database: CatalogDatabase) -> None:
        self._database = database

    def base(self, key: str) -> bytes | None:
        for base, crc in self._database.rows("SELECT base, crc FROM item WHERE key=?", (key,)):
            self._check(key, base, crc)
            return bytes(base)
        return None

    def deltas(self, key: str, before_checkpoint: int) -> list[bytes]:
        """Return the deltas of the key from checkpoints before the given one."""
        deltas: list[bytes] = []
        for body, crc in self._database.rows(
            "SELECT body, crc FROM delta WHERE key=? AND checkpoint<? ORDER BY checkpoint",
            (key, before_checkpoint),
        ):
            self._check(key, body, crc)
            deltas += decode_list(body)
        return deltas

    def _check(self, key: str, body: bytes, crc: int) -> None:
        if not isinstance(body, bytes) or crc32c(body, text_crc(key)) != crc:
            raise self._database.damaged(f"the catalog's value of key {key!r} fails its checksum")

    def values(
        self, prefix: str, after: str | None, before_checkpoint: int, limit: int
    ) -> list[tuple[str, StoredValue]]:
        """Return the next ``limit`` keys with the prefix behind ``after``, in order, with their values.

        The values include only deltas from checkpoints before the given one.
        """
        rows = self._page("key, base, crc", prefix, after, limit)
        if not rows:
            return []
        deltas: dict[str, list[bytes]] = {}
        for key, body, crc in self._database.rows(
            "SELECT key, body, crc FROM delta WHERE key>=? AND key<=? AND checkpoint<?"
            " ORDER BY key, checkpoint",
            (rows[0][0], rows[-1][0], before_checkpoint),
        ):
            self._check(key, body, crc)
            deltas.setdefault(key, []).extend(decode_list(body))
        for key, base, crc in rows:
            self._check(key, base, crc)
        return [(key, StoredValue(bytes(base), tuple(deltas.get(key, ())))) for key, base, _ in rows]

    def names(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """Return the next ``limit`` keys with the prefix behind ``after``, in order."""
        return [key for (key,) in self._page("key", prefix, after, limit)]

    def _page(self, columns: str, prefix: str, after: str | None, limit: int) -> list[Any]:
        low, compare = (prefix, ">=") if after is None else (after, ">")
        end = _behind(prefix)
        return self._database.rows(
            f"SELECT {columns} FROM item WHERE key {compare} ?"
            f"{' AND key < ?' if end is not None else ''} ORDER BY key LIMIT ?",
            (low, limit) if end is None else (low, end, limit),
        )

    def named(self, fingerprints: set[int]) -> dict[int, list[str]]:
        """Return the keys whose names have these CRC32Cs; reads all keys."""
        found: dict[int, list[str]] = {}
        for (key,) in self._database.connection.execute("SELECT key FROM item"):
            fingerprint = crc32c(key.encode())
            if fingerprint in fingerprints:
                found.setdefault(fingerprint, []).append(key)
        return found

    def write(self, changes: Mapping[str, KeyChange], number: int, position: int) -> None:
        """Write the changes of a checkpoint; `Catalog.write` has begun a transaction."""
        # All keys count as live in the file where the log ended: close enough for choosing files to rewrite.
        file = position >> OFFSET_BITS
        writes = self._database.writes
        replaced = [(key,) for key, change in changes.items() if change.replaces]
        writes.executemany("DELETE FROM delta WHERE key=?", replaced)
        writes.executemany("DELETE FROM item WHERE key=?", replaced)
        writes.executemany(
            "INSERT OR IGNORE INTO item VALUES (?, ?, ?, ?, ?)",
            (
                (
                    key,
                    base,
                    file,
                    len(base) + len(change.key_bytes) + RECORD_BYTES,
                    crc32c(base, text_crc(key)),
                )
                for key, change in changes.items()
                if change.base is not None or change.deltas
                for base in (change.base or b"",)
            ),
        )
        writes.executemany(
            "INSERT INTO delta VALUES (?, ?, ?, ?, ?, ?)",
            (
                (key, number, body, file, len(body), crc32c(body, text_crc(key)))
                for key, change in changes.items()
                if change.deltas
                for body in (encode_list(change.deltas),)
            ),
        )


def _behind(prefix: str) -> str | None:
    """Return the first text that sorts behind all texts with ``prefix``; None if there is no such text."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index]) + 1
        if 0xD800 <= code <= 0xDFFF:
            code = 0xE000  # skips the surrogates, which UTF-8 cannot encode
        if code <= 0x10FFFF:
            return prefix[:index] + chr(code)
    return None
