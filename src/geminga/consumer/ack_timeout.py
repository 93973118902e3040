"""The acknowledgement time-out: entries that the application took and did not acknowledge in time.

All entries have the same time-out, so the order of their deadlines is the order in which they were
taken; a ``dict`` keeps it. Of a batch only what was taken counts: messages that still wait in the queue are
nobody's delay, and redelivering their entry would bring them twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from geminga.consumer.message import Message
from geminga.consumer.statistics import ConsumerCounters

EntryKey = tuple[int, int]


class AckTimeout:
    """The taken, unacknowledged entries of one consumer. ``timeout_seconds`` 0 switches it off.

    Expiry is looked for once a ``tick_seconds``, so an entry is redelivered between one time-out and one
    time-out plus one tick after it was taken.
    """

    def __init__(
        self, timeout_seconds: float, tick_seconds: float, counted: ConsumerCounters | None = None
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._tick_seconds = min(tick_seconds, timeout_seconds) if timeout_seconds else tick_seconds
        self._deadlines: dict[EntryKey, float] = {}
        self._taken: dict[EntryKey, list[Message[Any]]] = {}
        """The messages of batches."""
        self._through: EntryKey | None = None
        """All up to here is acknowledged, whatever its deadline."""
        self._counted = counted or ConsumerCounters()

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def enabled(self) -> bool:
        return self._timeout_seconds > 0

    def taken(self, key: EntryKey, now: float, messages: Iterable[Message[Any]] = ()) -> None:
        """An entry, or ``messages`` of a batch, were handed to the application; the time of the entry starts
        anew."""
        if self._timeout_seconds:
            self._deadlines.pop(key, None)
            self._deadlines[key] = now + self._timeout_seconds
            if messages:
                self._taken.setdefault(key, []).extend(messages)
            else:
                self._taken.pop(key, None)

    def messages_taken(self, messages: Iterable[Message[Any]], now: float) -> None:
        """The same, of those that are not acknowledged yet."""
        for message in messages:
            entry = message._entry
            if entry.acks is None:
                self.taken((entry.ledger_id, entry.entry_id), now)
            elif entry.acks.flags[message._index]:
                self.taken((entry.ledger_id, entry.entry_id), now, (message,))

    def put_back(self, messages: Iterable[Message[Any]]) -> None:
        """They wait in the queue again."""
        for message in messages:
            key = (message._entry.ledger_id, message._entry.entry_id)
            taken = self._taken.get(key)
            if taken is not None:
                # By its place: whoever put it back may have made the message anew.
                taken[:] = [each for each in taken if each._index != message._index]
            if not taken:
                self.settled(key)

    def settled(self, key: EntryKey) -> None:
        """The entry was acknowledged, negatively acknowledged or redelivered."""
        self._deadlines.pop(key, None)
        self._taken.pop(key, None)

    def settled_through(self, key: EntryKey) -> None:
        """A cumulative acknowledgement."""
        if self._through is None or key > self._through:
            self._through = key
        # Mostly they are in the order of their keys; one behind a later one is covered when its time comes.
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
        # The next tick at or after the first deadline.
        ticks = -(-first // self._tick_seconds)
        return float(ticks * self._tick_seconds)

    def take_expired(self, now: float) -> list[EntryKey]:
        """The entries whose time-out has passed; they are forgotten here. A batch of which all that was taken
        is acknowledged is forgotten, too, but is not late."""
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
        return any(m._entry.acks is None or m._entry.acks.flags[m._index] for m in taken)
