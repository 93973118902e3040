"""Rewind: whether the broker really goes back when everything is to be delivered again.

Exclusive and Failover consumers ask for everything at once, and each time begins a new epoch. Apache Pulsar
4.0.4 has a race there: a read that is under way when it sets its cursor back moves it on again when it ends,
and what lies between is skipped, in the new epoch, until the consumer connects anew. Who acknowledges up to a
place then loses it. So what comes is compared with what was unsettled, and with the entry after that: where
one is stepped over, everything is asked for once more.
"""

from __future__ import annotations

from collections.abc import Iterable

EntryKey = tuple[int, int]

TRIES_MAX = 3
"""So often in a row; then the entry is gone for another reason: its time was over, or somebody skipped it."""


class Rewind:
    """Of one consumer on one connection."""

    __slots__ = ("_tries", "awaited")

    def __init__(self) -> None:
        self.awaited: dict[EntryKey, None] = {}
        """Entries that are to come in this epoch, in their order."""
        self._tries = 0

    def begin(self, unsettled: Iterable[EntryKey], newest: EntryKey | None) -> None:
        """A new epoch: these come again, and what follows ``newest``, the newest that ever came."""
        awaited = {*self.awaited, *unsettled}
        if newest is not None:
            awaited.add((newest[0], newest[1] + 1))
        self.awaited = dict.fromkeys(sorted(awaited))

    def skipped(self, key: EntryKey) -> bool:
        """``key`` has come in this epoch: True when everything is to be asked for once more."""
        awaited = self.awaited
        for first in awaited:
            if key < first:
                return False
            if key == first:
                del awaited[first]
                self._tries = 0
                return False
            if key[0] == first[0] or len(awaited) > 1:
                break
            # The entry after the newest may be the first of another ledger.
            self.clear()
            return False
        if self._tries == TRIES_MAX:
            self.clear()
            return False
        self._tries += 1
        return True

    def settled(self, keys: Iterable[EntryKey]) -> None:
        """Acknowledged in spite of all: they need not come."""
        for key in keys:
            self.awaited.pop(key, None)

    def settled_through(self, key: EntryKey) -> None:
        """The same up to and including an entry."""
        self.awaited = {known: None for known in self.awaited if known > key}

    def clear(self) -> None:
        """What comes next is of another connection, or from another position."""
        self.awaited = {}
        self._tries = 0
