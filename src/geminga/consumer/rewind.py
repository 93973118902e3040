"""Rewind: whether the broker really goes back when everything is to be delivered again.

Exclusive and Failover consumers ask for everything at once, and each time begins a new epoch. Apache Pulsar
4.0.4 has a race there: a read that is under way when it sets its cursor back moves it on again when it ends,
and what lies between is skipped, in the new epoch, until the consumer connects anew. Who acknowledges up to a
place then loses it. So what comes is compared with what was unsettled, and with the entry after that: where
one is stepped over, everything is asked for once more.

A broker that has just skipped is reading, and may do it again and again. So it is asked at once the first
time, and later after a rest, in which what comes is dropped and nothing more may be sent: a broker that may
send nothing reads nothing, and has no read under way when it goes back.

An entry may also be gone: expired, skipped, compacted away, or a broker's marker, which is never delivered.
Nothing tells the two apart, so there is an end: `TRIES_MAX` for each time that the application wants
something again, whatever comes in between. A count that began anew with each entry that did come would never
end, for what is unsettled comes each time.
"""

from __future__ import annotations

from collections.abc import Iterable

EntryKey = tuple[int, int]

RESTS_SECONDS = (0.0, 0.1, 0.5)
"""Before each time that everything is asked for once more."""
TRIES_MAX = len(RESTS_SECONDS)
"""So often for one wish of the application's; then what does not come is gone for another reason."""


class Rewind:
    """Of one consumer on one connection."""

    __slots__ = ("_guesses", "_order", "_tries", "asks_at", "awaited")

    def __init__(self) -> None:
        self.awaited: set[EntryKey] = set()
        """Entries that are to come in this epoch."""
        self._order: list[EntryKey] = []
        """They and some that are settled, the last first: each is looked at once."""
        self._guesses: set[EntryKey] = set()
        """Entries that nobody has seen: what follows the newest would be there."""
        self._tries = 0
        self.asks_at = float("inf")
        """When everything is to be asked for once more; until then what comes is dropped."""

    def begin(self, unsettled: Iterable[EntryKey], newest: EntryKey | None, *, is_wish: bool = True) -> None:
        """A new epoch: these come again, and what follows ``newest``, the newest that ever came. ``is_wish``:
        not because of `skipped`."""
        if is_wish:
            self._tries = 0
        self.asks_at = float("inf")
        self.awaited.update(unsettled)
        self._guesses &= self.awaited
        if newest is not None:
            following = (newest[0], newest[1] + 1)
            if following not in self.awaited:
                self.awaited.add(following)
                self._guesses.add(following)
        self._order = sorted(self.awaited, reverse=True)

    @property
    def is_resting(self) -> bool:
        """Whether what comes is to be dropped, for all of it is asked for once more at `asks_at`."""
        return self.asks_at != float("inf")

    def skipped(self, key: EntryKey, now: float) -> bool:
        """``key`` has come in this epoch: True when it is to be dropped, and everything asked for once more
        at `asks_at`."""
        if self.is_resting:
            return True
        awaited, order = self.awaited, self._order
        stepped_over = []
        while order and order[-1] < key:
            known = order.pop()
            if known not in awaited:
                continue
            if known in self._guesses and known[0] != key[0]:
                # The entry after the newest may be the first of another ledger.
                awaited.discard(known)
            else:
                stepped_over.append(known)
        if stepped_over:
            if self._tries < TRIES_MAX:
                self.asks_at = now + RESTS_SECONDS[self._tries]
                self._tries += 1
                return True
            awaited.difference_update(stepped_over)
        awaited.discard(key)
        return False

    def settled(self, keys: Iterable[EntryKey]) -> None:
        """Acknowledged in spite of all: they need not come."""
        self.awaited.difference_update(keys)

    def settled_through(self, key: EntryKey) -> None:
        """The same up to and including an entry."""
        order = self._order
        while order and order[-1] <= key:
            self.awaited.discard(order.pop())

    def clear(self) -> None:
        """What comes next is of another connection, or from another position."""
        self.awaited.clear()
        self._guesses.clear()
        self._order.clear()
        self._tries = 0
        self.asks_at = float("inf")
