"""The key-value map: what changed since the last checkpoint, over what the catalog holds.

A checkpoint freezes the changes; until the catalog has them, a key's value is put together from three
layers: catalog, frozen changes, new changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from geminga.errors import StoreDamaged
from geminga.ledger.api import Value
from geminga.ledger.catalog import Catalog, KeyChange
from geminga.wire.checksum import crc32c

_PAGE_KEYS = 512


class _KeyOrder:
    """Changed keys in order, so that a scan costs what it finds and not what was changed.

    Keys are put in order when a scan wants it: many at once by sorting, a few by insertion.
    """

    __slots__ = ("_added", "_ordered")

    def __init__(self) -> None:
        self._ordered: list[str] = []
        self._added: list[str] = []

    def add(self, key: str) -> None:
        """A key that is not in here yet."""
        self._added.append(key)

    def under(self, prefix: str) -> list[str]:
        """The keys that start with ``prefix``, in order."""
        ordered, added = self._ordered, self._added
        if len(added) > 16:
            ordered.extend(added)
            ordered.sort()
        else:
            for key in added:
                insort(ordered, key)
        added.clear()
        first = last = bisect_left(ordered, prefix)
        while last < len(ordered) and ordered[last].startswith(prefix):
            last += 1
        return ordered[first:last]


class KeyMap:
    """Keys with their unsaved changes. Used on the owner's thread only.

    ``suspects`` are the fingerprints of keys that lost a write to damage: reading such a key raises
    until it is set or deleted anew.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._changes: dict[str, KeyChange] = {}
        self._frozen: dict[str, KeyChange] = {}
        self._order = _KeyOrder()
        self._frozen_order = _KeyOrder()
        self._checkpoint = 0
        self.suspects: set[int] = set()

    def change(self, key: str) -> KeyChange:
        """The key's change since the last checkpoint, begun if there is none."""
        change = self._changes.get(key)
        if change is None:
            key_bytes = key.encode()
            change = self._changes[key] = KeyChange(key_bytes, crc32c(key_bytes))
            self._order.add(key)
        return change

    def put(self, key: str, value: bytes) -> KeyChange:
        change = self.change(key)
        change.base = value
        change.deltas = []
        self.suspects.discard(change.fingerprint)
        return change

    def delete(self, key: str) -> KeyChange:
        change = self.change(key)
        change.base = None
        change.deltas = []
        change.deleted = True
        self.suspects.discard(change.fingerprint)
        return change

    def restate(self, key: str, base: bytes, deltas: list[bytes]) -> KeyChange:
        """Set base and deltas to what they are: the log says it again at another place."""
        change = self.change(key)
        change.base = base
        change.deltas = list(deltas)
        return change

    def get(self, key: str) -> Value | None:
        """Raises `StoreDamaged` when a write of the key was lost."""
        if self.suspects and crc32c(key.encode()) in self.suspects:
            raise StoreDamaged(
                f"a write of key {key!r} was lost to damage in the log (see the store's list of damage): "
                "set or delete the key to go on"
            )
        return self.remains(key)

    def remains(self, key: str) -> Value | None:
        """What is under a key, whether or not a write of it was lost."""
        deltas: list[bytes] = []
        for layer in (self._changes, self._frozen):
            change = layer.get(key)
            if change is None:
                continue
            deltas[:0] = change.deltas
            if change.replaces:
                if change.base is None and not deltas:
                    return None
                return Value(change.base or b"", tuple(deltas))
        base = self._catalog.base(key)
        if base is None:
            return Value(b"", tuple(deltas)) if deltas else None
        before = self._checkpoint if self._frozen else self._checkpoint + 1
        return Value(base, (*self._catalog.deltas(key, before), *deltas))

    def scan(self, prefix: str) -> Iterator[tuple[str, Value]]:
        unsaved = sorted({*self._order.under(prefix), *self._frozen_order.under(prefix)})
        after: str | None = None
        place = 0
        while True:
            page = self._catalog.keys(prefix, after, _PAGE_KEYS)
            last = page[-1] if len(page) == _PAGE_KEYS else None
            keys = set(page)
            while place < len(unsaved) and (last is None or unsaved[place] <= last):
                keys.add(unsaved[place])
                place += 1
            for key in sorted(keys):
                value = self.get(key)
                if value is not None:
                    yield key, value
            if last is None:
                return
            after = last

    # --- checkpoints ---
    def freeze(self, checkpoint: int) -> None:
        """Set the changes up to here apart, for the checkpoint."""
        self._checkpoint = checkpoint
        self._frozen, self._changes = self._changes, {}
        self._frozen_order, self._order = self._order, _KeyOrder()

    @property
    def frozen(self) -> dict[str, KeyChange]:
        return self._frozen

    def thaw(self) -> None:
        """The catalog has the frozen changes."""
        self._frozen = {}
        self._frozen_order = _KeyOrder()

    def resume(self, checkpoint: int) -> None:
        """Continue behind a checkpoint of an earlier life."""
        self._checkpoint = checkpoint

    @property
    def unsaved(self) -> int:
        return len(self._changes)

    def find(self, fingerprint: int, limit: int = 16) -> list[str]:
        """Keys with the fingerprint, for naming what damage hit. Reads all keys: for recovery only."""
        found = []
        after: str | None = None
        while True:
            page = self._catalog.keys("", after, _PAGE_KEYS)
            found += [key for key in page if crc32c(key.encode()) == fingerprint]
            if len(page) < _PAGE_KEYS or len(found) >= limit:
                break
            after = page[-1]
        found += [key for key, change in self._changes.items() if change.fingerprint == fingerprint]
        return sorted(set(found))[:limit]
