"""Rewind: checks whether the broker really moves back when everything is to be redelivered.

Exclusive and Failover consumers request everything at once, and each time begin a new epoch. Apache Pulsar
4.0.4 has a race there: a read in progress when it sets its cursor back moves the cursor forward again at its
end, and the entries between are skipped, in the new epoch, until the consumer reconnects. A cumulative
acknowledgement then loses them. So arriving entries are compared with the unacknowledged ones, and with the
entry after those: if one is skipped, everything is requested again.

A broker that has just skipped is reading, and may skip repeatedly. So the first repetition is sent at once,
and later ones after a pause, in which arriving entries are dropped and no permits are granted: without
permits the broker reads nothing, so no read is in progress when it moves back.

An entry may also be gone: expired, skipped, compacted away, or a broker's marker, which is never delivered.
The consumer cannot distinguish these, so there is a limit: `TRIES_MAX` for each redelivery that the
application requests. A count reset by each delivered entry would never end, since unacknowledged entries are
delivered each time.
"""

from collections.abc import Iterable

from geminga.consumer.message import EntryKey

RESTS_SECONDS = (0.0, 0.1, 0.5)
"""Seconds before each repeated request for everything."""
TRIES_MAX = len(RESTS_SECONDS)
"""Maximum repetitions per request of the application; entries still missing then are gone."""


class Rewind:
    """Redelivery check of one consumer on one connection."""

    __slots__ = ("_guesses", "_order", "_tries", "asks_at", "awaited")

    def __init__(self) -> None:
        self.awaited: set[EntryKey] = set()
        """Entries that must be delivered in this epoch."""
        self._order: list[EntryKey] = []
        """Awaited entries and some that are settled, the last first: each is checked once."""
        self._guesses: set[EntryKey] = set()
        """Entries that may not exist: each is the next id after the newest entry."""
        self._tries = 0
        self.asks_at = float("inf")
        """Time of the next request for everything; until then arriving entries are dropped."""

    def begin(self, unsettled: Iterable[EntryKey], newest: EntryKey | None, *, is_wish: bool = True) -> None:
        """Begin a new epoch: await these entries, and the one after ``newest``, the newest that ever arrived.
        ``is_wish``: requested by the application, not because of `skipped`."""
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
        """Whether arriving entries are dropped, since everything is requested again at `asks_at`."""
        return self.asks_at != float("inf")

    def skipped(self, key: EntryKey, now: float) -> bool:
        """Check ``key``, delivered in this epoch: return True if it is to be dropped, and everything is
        requested again at `asks_at`."""
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
        """Stop awaiting entries that were acknowledged."""
        self.awaited.difference_update(keys)

    def settled_through(self, key: EntryKey) -> None:
        """Stop awaiting the entries up to and including ``key``."""
        order = self._order
        while order and order[-1] <= key:
            self.awaited.discard(order.pop())

    def clear(self) -> None:
        """Reset for another connection or position."""
        self.awaited.clear()
        self._guesses.clear()
        self._order.clear()
        self._tries = 0
        self.asks_at = float("inf")
