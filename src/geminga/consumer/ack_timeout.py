"""Acknowledgement time-out: entries that the application took and did not acknowledge in time.

All entries have the same time-out, so their deadlines are in the order in which they were taken, which a
``dict`` keeps. Of a batch only the taken messages count: queued messages cannot be late, and redelivering
their entry would deliver them twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from geminga.consumer.message import EntryKey, Message, key_of, place_of
from geminga.consumer.statistics import ConsumerCounters


class AckTimeout:
    """The taken, unacknowledged entries of one consumer. ``timeout_seconds`` 0 switches it off.

    Expiry is checked every ``tick_seconds``, so an entry is redelivered between one time-out and one time-out
    plus one tick after it was taken.
    """

    def __init__(
        self, timeout_seconds: float, tick_seconds: float, counted: ConsumerCounters | None = None
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._tick_seconds = min(tick_seconds, timeout_seconds) if timeout_seconds else tick_seconds
        self._deadlines: dict[EntryKey, float] = {}
        self._taken: dict[EntryKey, list[Message[Any]]] = {}
        """The taken messages of batches."""
        self._through: EntryKey | None = None
        """All entries up to this one are acknowledged, regardless of their deadlines."""
        self._counted = counted or ConsumerCounters()

    def __len__(self) -> int:
        return len(self._deadlines)

    def taken(self, key: EntryKey, now: float, messages: Iterable[Message[Any]] = ()) -> None:
        """Start, or restart, the time-out of an entry, or of ``messages`` of a batch, that was taken."""
        if self._timeout_seconds:
            self._deadlines.pop(key, None)
            self._deadlines[key] = now + self._timeout_seconds
            if messages:
                self._taken.setdefault(key, []).extend(messages)
            else:
                self._taken.pop(key, None)

    def messages_taken(self, messages: Iterable[Message[Any]], now: float) -> None:
        """Start the time-out of those messages that are not acknowledged yet."""
        for message in messages:
            entry, index = place_of(message)
            if entry.acks is None:
                self.taken(key_of(message), now)
            elif entry.acks.flags[index]:
                self.taken((entry.ledger_id, entry.entry_id), now, (message,))

    def put_back(self, messages: Iterable[Message[Any]]) -> None:
        """Stop the time-out of messages that were returned to the queue."""
        for message in messages:
            key = key_of(message)
            taken = self._taken.get(key)
            if taken is not None:
                # Compare the index: the message may be another object for the same index.
                index = place_of(message)[1]
                taken[:] = [each for each in taken if place_of(each)[1] != index]
            if not taken:
                self.settled(key)

    def settled(self, key: EntryKey) -> None:
        """Remove an entry that was acknowledged, negatively acknowledged or redelivered."""
        self._deadlines.pop(key, None)
        self._taken.pop(key, None)

    def settled_through(self, key: EntryKey) -> None:
        """Remove all entries up to ``key`` after a cumulative acknowledgement."""
        if self._through is None or key > self._through:
            self._through = key
        # Most are in the order of their keys; an entry after a later key is removed at its deadline.
        for known in list(takewhile(lambda known: known <= key, self._deadlines)):
            self.settled(known)

    def clear(self) -> None:
        self._through = None
        self._deadlines.clear()
        self._taken.clear()

    def next_deadline(self) -> float:
        if not self._deadlines:
            return float("inf")
        first = next(iter(self._deadlines.values()))
        # Return the next tick at or after the first deadline.
        ticks = -(-first // self._tick_seconds)
        return float(ticks * self._tick_seconds)

    def take_expired(self, now: float) -> list[EntryKey]:
        """Remove and return the entries whose time-out has passed. A batch whose taken messages are all
        acknowledged is removed, too, but not returned."""
        expired: list[EntryKey] = []
        for key, deadline in self._deadlines.items():
            if deadline > now:
                break
            expired.append(key)
        through = self._through
        late = [
            key
            for key in expired
            if (through is None or key > through) and self._is_late(self._taken.get(key))
        ]
        for key in expired:
            self.settled(key)
        self._counted.timed_out += len(late)
        return late

    @staticmethod
    def _is_late(taken: list[Message[Any]] | None) -> bool:
        if taken is None:
            return True
        return any(entry.acks is None or entry.acks.flags[index] for entry, index in map(place_of, taken))
