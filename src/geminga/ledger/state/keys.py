"""Key-value map of a store: the changes since the last checkpoint, layered over the catalog.

A checkpoint freezes the changes; until the catalog has them, a key's value is merged from three layers:
catalog, frozen changes, new changes.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from heapq import merge
from itertools import chain, islice

from geminga.ledger.api import Done, StoredValue
from geminga.ledger.catalog.catalog import PAGE_KEYS, Catalog
from geminga.ledger.catalog.keys import KeyChange
from geminga.ledger.files.format import RecordKind, encode_value
from geminga.ledger.log.journal import StoreWrites
from geminga.ledger.state.quarantine import Quarantine
from geminga.ledger.steps import emptied
from geminga.wire.checksum import crc32c

_KEY_BYTES = 450
"""Memory of a changed key besides its value and three times its name, in bytes."""
_DELTA_BYTES = 50


class _KeyOrder:
    """Changed keys in order, so that a scan's cost depends on the keys it finds, not on all changed keys.

    Keys are sorted when a scan needs them: many at once by sorting, a few by insertion.
    """

    __slots__ = ("_added", "_ordered")

    def __init__(self) -> None:
        self._ordered: list[str] = []
        self._added: list[str] = []

    def add(self, key: str) -> None:
        """Add a key that is not in here yet."""
        self._added.append(key)

    def under(self, prefix: str, after: str, last: str | None) -> Iterator[str]:
        """Return the keys that start with ``prefix``, behind ``after`` and up to ``last``, in order."""
        ordered, added = self._ordered, self._added
        if len(added) > 16:
            ordered.extend(added)
            ordered.sort()
        else:
            for key in added:
                insort(ordered, key)
        added.clear()
        start = max(bisect_left(ordered, prefix), bisect_right(ordered, after))
        for index in range(start, len(ordered)):
            key = ordered[index]
            if not key.startswith(prefix) or (last is not None and key > last):
                return
            yield key

    def emptied(self) -> Iterator[None]:
        """Free the keys, in steps."""
        yield from emptied(self._ordered)
        yield from emptied(self._added)


class KeyMap:
    """Keys with their unsaved changes. Used on the owner's thread only.

    ``quarantine`` lists keys that lost a write to damage, until they are set or deleted.
    """

    def __init__(self, catalog: Catalog, quarantine: Quarantine) -> None:
        self._catalog = catalog.keys
        self._quarantine = quarantine
        self._changes: dict[str, KeyChange] = {}
        self._frozen: dict[str, KeyChange] = {}
        self._order = _KeyOrder()
        self._frozen_order = _KeyOrder()
        self._checkpoint = 0
        self.unsaved_bytes = 0
        """Approximate memory of the changes since the last checkpoint."""

    def change(self, key: str) -> KeyChange:
        """Return the key's change since the last checkpoint; creates an empty one if necessary."""
        change = self._changes.get(key)
        if change is None:
            key_bytes = key.encode()
            change = self._changes[key] = KeyChange(key_bytes, crc32c(key_bytes))
            self._order.add(key)
            self.unsaved_bytes += _KEY_BYTES + 3 * len(key_bytes)
        return change

    def merge(self, key: str, delta: bytes) -> KeyChange:
        change = self.change(key)
        change.deltas.append(delta)
        self.unsaved_bytes += _DELTA_BYTES + len(delta)
        return change

    def put(self, key: str, value: bytes) -> KeyChange:
        change = self.change(key)
        self.unsaved_bytes += len(value) - (0 if change.base is None else len(change.base))
        change.base = value
        change.deltas = []
        self._quarantine.key_is_whole(key)
        return change

    def delete(self, key: str) -> KeyChange:
        change = self.change(key)
        change.base = None
        change.deltas = []
        change.deleted = True
        self._quarantine.key_is_whole(key)
        return change

    def restate(self, key: str, base: bytes, deltas: list[bytes]) -> KeyChange:
        """Set base and deltas to their current values, because the log repeats them at a new position."""
        change = self.change(key)
        before = 0 if change.base is None else len(change.base)
        self.unsaved_bytes += len(base) - before + sum(_DELTA_BYTES + len(delta) for delta in deltas)
        change.base = base
        change.deltas = list(deltas)
        return change

    def get(self, key: str) -> StoredValue | None:
        """Return the value of a key, and the writes it lost to damage."""
        value = self._find(key)
        lost = self._quarantine.lost(key)
        if lost is None:
            return value
        return StoredValue(b"", (), lost) if value is None else StoredValue(value.base, value.deltas, lost)

    def _find(self, key: str) -> StoredValue | None:
        deltas: list[bytes] = []
        for layer in (self._changes, self._frozen):
            change = layer.get(key)
            if change is None:
                continue
            deltas[:0] = change.deltas
            if change.replaces:
                if change.base is None and not deltas:
                    return None
                return StoredValue(change.base or b"", tuple(deltas))
        base = self._catalog.base(key)
        if base is None:
            return StoredValue(b"", tuple(deltas)) if deltas else None
        before = self._checkpoint if self._frozen else self._checkpoint + 1
        return StoredValue(base, (*self._catalog.deltas(key, before), *deltas))

    def scan(self, prefix: str, *, after: str = "") -> Iterator[tuple[str, StoredValue]]:
        """Iterate over the keys that start with ``prefix`` and sort behind ``after``, in order, by pages."""
        while True:
            before = self._checkpoint if self._frozen else self._checkpoint + 1
            page = self._catalog.values(prefix, after if after >= prefix else None, before, PAGE_KEYS)
            last = page[-1][0] if len(page) == PAGE_KEYS else None
            unsaved = self._unsaved(prefix, after, last)
            if len(unsaved) == PAGE_KEYS:
                last = unsaved[-1]
            found: dict[str, StoredValue | None] = {**dict(page), **dict.fromkeys(unsaved)}
            for key in sorted(found):
                if last is not None and key > last:
                    break
                value = found[key]
                if value is None or key in self._changes or key in self._frozen:
                    value = self.get(key)
                if value is not None:
                    yield key, value
            if last is None:
                return
            after = last

    def names(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """Iterate over the keys of `scan` without their values."""
        last: str | None = after
        while last is not None:
            names, last = self.names_page(prefix, after=last)
            for name in names:
                # Skip keys deleted since the page was read.
                if name not in self._changes or self.get(name) is not None:
                    yield name

    def names_page(self, prefix: str, *, after: str = "") -> tuple[list[str], str | None]:
        """Return a page of `names`, perhaps empty, and the key to continue after: None on the last page."""
        page = self._catalog.names(prefix, after if after >= prefix else None, PAGE_KEYS)
        last = page[-1] if len(page) == PAGE_KEYS else None
        unsaved = self._unsaved(prefix, after, last)
        if len(unsaved) == PAGE_KEYS:
            last = unsaved[-1]
        if not unsaved:
            return page, last
        known = set(page)
        names = []
        for key in sorted(known.union(unsaved)):
            if last is not None and key > last:
                break
            change = self._changes.get(key) or self._frozen.get(key)
            is_sure = key in known if change is None else change.base is not None or change.deltas
            if is_sure or self.get(key) is not None:
                names.append(key)
        return names, last

    def _unsaved(self, prefix: str, after: str, last: str | None) -> list[str]:
        """Return up to a page of keys behind ``after`` that may be missing in the catalog, some twice."""
        damaged = (
            key
            for key in sorted(self._quarantine.keys_under(prefix))
            if key > after and (last is None or key <= last)
        )
        orders = (order.under(prefix, after, last) for order in (self._order, self._frozen_order))
        return list(islice(merge(*orders, damaged), PAGE_KEYS))

    # --- checkpoints ---
    def freeze(self, checkpoint: int) -> None:
        """Freeze the changes made so far, for the checkpoint."""
        self._checkpoint = checkpoint
        self._frozen, self._changes = self._changes, {}
        self._frozen_order, self._order = self._order, _KeyOrder()
        self.unsaved_bytes = 0

    @property
    def frozen(self) -> dict[str, KeyChange]:
        return self._frozen

    def thaw(self) -> Iterator[None]:
        """Drop the frozen changes, which the catalog has now: hide them, then free them in steps."""
        frozen, order = self._frozen, self._frozen_order
        self._frozen, self._frozen_order = {}, _KeyOrder()
        yield None
        yield from emptied(frozen)
        yield from order.emptied()

    def resume(self, checkpoint: int) -> None:
        """Continue behind a checkpoint of an earlier process."""
        self._checkpoint = checkpoint

    @property
    def unsaved(self) -> int:
        return len(self._changes)

    def named(self, fingerprints: set[int]) -> dict[int, list[str]]:
        """Return the keys with these fingerprints. Reads all keys: only for damage that lost a key's name."""
        found = self.named_unsaved(fingerprints)
        for fingerprint, keys in self._catalog.named(fingerprints).items():
            found[fingerprint] = sorted({*found.get(fingerprint, ()), *keys})
        return found

    def named_unsaved(self, fingerprints: set[int]) -> dict[int, list[str]]:
        """Return the keys with these fingerprints among those that may be missing in the catalog."""
        found: dict[int, list[str]] = {}
        for key, change in chain(self._frozen.items(), self._changes.items()):
            if change.fingerprint in fingerprints:
                found.setdefault(change.fingerprint, []).append(key)
        return found


class FileStoreKeys:
    """Implements `geminga.ledger.api.StoreKeys`: changes go to the log, values come from the map."""

    def __init__(self, writes: StoreWrites, keys: KeyMap) -> None:
        self._writes = writes
        self._keys = keys
        self.get = keys.get
        self.scan = keys.scan
        self.names = keys.names
        self.names_page = keys.names_page

    def put(self, key: str, value: bytes, done: Done | None = None, *, same: bool = False) -> None:
        self._writes.check()
        value = bytes(value)
        change = self._keys.put(key, value)
        key_bytes = change.key_bytes
        data = encode_value(key_bytes, value, ()) if same else key_bytes + value
        self._writes.submit(
            RecordKind.RESTATE if same else RecordKind.PUT, len(key_bytes), change.fingerprint, data, done
        )

    def merge(self, key: str, delta: bytes, done: Done | None = None) -> None:
        writes = self._writes
        if writes.failure is not None:
            raise writes.failure
        change = self._keys.merge(key, bytes(delta))
        key_bytes = change.key_bytes
        writes.pending.append((RecordKind.MERGE, len(key_bytes), change.fingerprint, key_bytes + delta, done))
        if writes.journal.idle:
            writes.journal.wake()

    def delete(self, key: str, done: Done | None = None) -> None:
        self._writes.check()
        change = self._keys.delete(key)
        self._writes.submit(
            RecordKind.DELETE_KEY, len(change.key_bytes), change.fingerprint, change.key_bytes, done
        )
