"""Keys of a durable store: changes go to the log, values come from the map in memory and the catalog."""

from __future__ import annotations

from collections.abc import Iterator

from geminga.ledger.api import Done, StoredValue
from geminga.ledger.format import DELETE_KEY, MERGE, PUT, RESTATE, encode_value
from geminga.ledger.keys import KeyMap
from geminga.ledger.store_writes import StoreWrites


class FileStoreKeys:
    """Implements `geminga.ledger.api.StoreKeys`."""

    def __init__(self, writes: StoreWrites, keys: KeyMap) -> None:
        self._writes = writes
        self._keys = keys
        self.get = keys.get

    def put(self, key: str, value: bytes, done: Done | None = None, *, same: bool = False) -> None:
        self._writes.check()
        value = bytes(value)
        change = self._keys.put(key, value)
        key_bytes = change.key_bytes
        data = encode_value(key_bytes, value, ()) if same else key_bytes + value
        self._writes.submit(RESTATE if same else PUT, len(key_bytes), change.fingerprint, data, done)

    def merge(self, key: str, delta: bytes, done: Done | None = None) -> None:
        writes = self._writes
        if writes.failure is not None:
            raise writes.failure
        change = self._keys.merge(key, bytes(delta))
        key_bytes = change.key_bytes
        writes.pending.append((MERGE, len(key_bytes), change.fingerprint, key_bytes + delta, done))
        if writes.journal.idle:
            writes.journal.wake()

    def delete(self, key: str, done: Done | None = None) -> None:
        self._writes.check()
        change = self._keys.delete(key)
        self._writes.submit(DELETE_KEY, len(change.key_bytes), change.fingerprint, change.key_bytes, done)

    def scan(self, prefix: str, *, after: str = "") -> Iterator[tuple[str, StoredValue]]:
        return self._keys.scan(prefix, after)

    def names(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return self._keys.names(prefix, after)

    def names_page(self, prefix: str, *, after: str = "") -> tuple[list[str], str | None]:
        return self._keys.names_page(prefix, after)
