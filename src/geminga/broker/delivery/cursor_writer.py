"""Writer of a durable cursor, which reports when its writes are durable."""

import contextlib
from collections import deque

from geminga.broker.delivery.cursor import Cursor
from geminga.errors import StoreError
from geminga.ledger.api import Done, EntryStore


class CursorWriter:
    """Writes one durable cursor, and calls ``done`` of each waiting request in order."""

    __slots__ = ("_closed", "_cursor", "_is_stored", "_key", "_pending", "_store", "_waiting")

    def __init__(self, cursor: Cursor, store: EntryStore, key: str) -> None:
        self._cursor = cursor
        self._store = store
        self._key = key
        self._closed = self._is_stored = False
        self._waiting: list[Done] = []
        self._pending: deque[list[Done]] | None = None
        """Created with the first write: an empty deque takes 760 bytes in each idle subscription."""

    def when_durable(self, done: Done) -> None:
        """Call ``done`` when everything acknowledged so far is durable: at once if it is.

        A cursor may be loaded while the last write of its predecessor, before an unload, is pending. The
        store's writes become durable in order, so the first answer waits for an empty delta. So does an
        answer after a failed write: it fails, as the store has stopped.
        """
        if self._cursor.durable and (self._cursor.changed or self._waiting):
            self._waiting.append(done)
        elif self._pending:
            self._pending[-1].append(done)
        elif self._is_stored or not self._cursor.durable or self._closed:
            done(None)
        else:
            self._waiting.append(done)
            self._merge(b"")

    def flush(self) -> None:
        """Pass the changes to the store."""
        cursor = self._cursor
        if not (cursor.changed and cursor.durable) or self._closed:
            return
        if self._merge(cursor.take_delta()) and cursor.wants_snapshot:
            # Redundant after the delta: if damage takes it, nothing is lost.
            with contextlib.suppress(StoreError):
                self._store.keys.put(self._key, cursor.take_snapshot(), same=True)

    def _merge(self, delta: bytes) -> bool:
        """Write a delta; return whether the store has accepted it."""
        waiting = self._begin()
        try:
            self._store.keys.merge(self._key, delta, self._written)
        except StoreError as error:
            self._refused(waiting, error)
            return False
        return True

    def write_snapshot(self, done: Done | None) -> None:
        """Write the whole cursor (creation, seek, compacting of deltas)."""
        waiting = self._take_waiting()
        if done is not None:
            waiting.append(done)
        if not self._cursor.durable or self._closed:
            for each in waiting:
                each(None)
            return
        self._begin(waiting)
        try:
            self._store.keys.put(self._key, self._cursor.take_snapshot(), self._written)
        except StoreError as error:
            self._refused(waiting, error)

    def _begin(self, waiting: list[Done] | None = None) -> list[Done]:
        """Begin a write; return the list of its waiters."""
        if waiting is None:
            waiting = self._take_waiting()
        if self._pending is None:
            self._pending = deque()
        self._pending.append(waiting)
        return waiting

    def _refused(self, waiting: list[Done], error: StoreError) -> None:
        self._is_stored = False
        if self._pending is not None:
            self._pending.remove(waiting)
        for done in waiting:
            done(error)

    def delete(self, done: Done | None) -> None:
        """Delete the cursor from the store; later writes are ignored."""
        self._closed = True
        for waiting in self._take_waiting():
            waiting(None)
        if self._cursor.durable:
            self._store.keys.delete(self._key, done)
        elif done is not None:
            done(None)

    def _take_waiting(self) -> list[Done]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def _written(self, error: StoreError | None) -> None:
        assert self._pending is not None
        self._is_stored = error is None
        for done in self._pending.popleft():
            done(error)


def cursor_key(topic: str, subscription: str) -> str:
    return f"cursor/{topic}\x00{subscription}"


def cursor_prefix(topic: str) -> str:
    return f"cursor/{topic}\x00"
