"""Unacknowledged entries: delivered to this consumer, and not yet settled with the broker.

An entry is in hand from its arrival until it is acknowledged, negatively acknowledged or requested again.
Some entries in hand have a time-out (`ack_timeout`); negatively acknowledged ones wait for their redelivery
(`negative_acks`). Settling an entry removes it from all of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat, takewhile

from geminga.consumer.ack_timeout import AckTimeout
from geminga.consumer.message import EntryAcks, EntryKey
from geminga.consumer.negative_acks import NegativeAcks
from geminga.consumer.rewind import Rewind
from geminga.consumer.statistics import ConsumerCounters

IN_HAND_MAX = 100_000
"""Maximum entries known to be in hand: an application that never acknowledges must not fill the memory. A
drain waits for these only."""


class UnackedEntries:
    """The unsettled entries of one consumer on one connection.

    ``ack_timeout_seconds`` 0: no time-out.
    """

    __slots__ = ("_newest", "ack_timeout", "in_hand", "negative_acks", "rewind")

    def __init__(
        self, ack_timeout_seconds: float, tick_seconds: float, counted: ConsumerCounters | None = None
    ) -> None:
        self.ack_timeout = AckTimeout(ack_timeout_seconds, tick_seconds, counted)
        self.negative_acks = NegativeAcks()
        self.in_hand: dict[EntryKey, None] = {}
        self.rewind = Rewind()
        self._newest: EntryKey | None = None

    def delivered(self, keys: Sequence[EntryKey]) -> None:
        """Add entries that go to the queue."""
        newest = max(keys)
        if self._newest is None or newest > self._newest:
            self._newest = newest
        room = IN_HAND_MAX - len(self.in_hand)
        if room > 0:
            self.in_hand.update(dict.fromkeys(keys[:room]))

    def settled(self, keys: Sequence[EntryKey]) -> None:
        """Remove completely acknowledged entries."""
        # Popped without running Python code for each: unbatched messages come one by one.
        deque(map(self.in_hand.pop, keys, repeat(None)), maxlen=0)
        if self.rewind.awaited:
            self.rewind.settled(keys)
        if len(self.negative_acks) or len(self.ack_timeout):
            for key in keys:
                self.negative_acks.cancel(key)
                self.ack_timeout.settled(key)

    def settled_through(self, key: EntryKey) -> None:
        """Remove the entries acknowledged up to and including ``key``."""
        self.ack_timeout.settled_through(key)
        if self.rewind.awaited:
            self.rewind.settled_through(key)
        covered = list(takewhile(lambda known: known <= key, self.in_hand))
        for known in covered:
            del self.in_hand[known]

    def refused(self, keys: Sequence[EntryKey], delay_seconds: float, now: float) -> None:
        """Redeliver entries after the delay."""
        deque(map(self.in_hand.pop, keys, repeat(None)), maxlen=0)
        self.negative_acks.add(keys, delay_seconds, now)
        if len(self.ack_timeout):
            for key in keys:
                self.ack_timeout.settled(key)

    def take_due(self, now: float) -> list[EntryKey]:
        """Remove and return the entries that are to be requested again now, each once."""
        due = list(dict.fromkeys(self.negative_acks.take_due(now) + self.ack_timeout.take_expired(now)))
        for key in due:
            self.in_hand.pop(key, None)
        return due

    def asked_again(self, due: Iterable[EntryKey], *, in_order: bool, is_wish: bool = True) -> None:
        """Handle a redelivery of everything on the same connection; ``due`` was `take_due`. ``in_order``: one
        consumer gets all of it. ``is_wish``: requested by the application, not because of `Rewind.skipped`.
        """
        if in_order:
            unsettled = (*self.in_hand, *self.negative_acks.keys(), *due)
            self.rewind.begin(unsettled, self._newest, is_wish=is_wish)
        self._forget()

    def clear(self) -> None:
        """Reset for another connection or position."""
        self._newest = None
        self.rewind.clear()
        self._forget()

    def _forget(self) -> None:
        self.in_hand.clear()
        self.negative_acks.clear()
        self.ack_timeout.clear()

    def messages_in_hand(self, known_batch: Callable[[EntryKey], EntryAcks | None]) -> int:
        """Return the number of messages of the entries in hand, including queued ones; ``known_batch``
        returns the remaining messages of a batch."""
        return sum(1 if acks is None else acks.remaining for acks in map(known_batch, self.in_hand))

    def next_deadline(self) -> float:
        """Return when `take_due` must be called next; infinite for never."""
        return min(self.negative_acks.next_deadline(), self.ack_timeout.next_deadline())
