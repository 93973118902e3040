"""Unacknowledged entries: delivered to this consumer, and not yet settled with the broker.

An entry is in hand from its arrival until it is acknowledged, negatively acknowledged or requested again.
Some entries in hand have a time-out (`AckTimeout`); negatively acknowledged ones wait for their redelivery
(`NegativeAcks`). Settling an entry removes it from all of these.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat, takewhile
from math import ceil, inf
from typing import Any

from geminga.consumer.message import EntryAcks, EntryKey, Message, key_of, place_of
from geminga.consumer.rewind import Rewind
from geminga.consumer.statistics import ConsumerCounters

IN_HAND_MAX = 100_000
"""Entries in hand from which on no further ones are noted: an application that never acknowledges must not
fill the memory. A drain waits for these only."""
ARRIVED_MAX = 1000
"""Maximum runs of entries that are kept as runs."""
_GRID_SECONDS_MAX = 0.1


class UnackedEntries:
    """The unsettled entries of one consumer on one connection.

    ``ack_timeout_seconds`` 0: no time-out.
    """

    __slots__ = ("_arrived", "_in_hand", "_newest", "ack_timeout", "negative_acks", "rewind")

    def __init__(
        self, ack_timeout_seconds: float, tick_seconds: float, counted: ConsumerCounters | None = None
    ) -> None:
        self.ack_timeout = AckTimeout(ack_timeout_seconds, tick_seconds, counted)
        self.negative_acks = NegativeAcks()
        self._in_hand: dict[EntryKey, None] = {}
        self._arrived: deque[tuple[int, Sequence[int]]] = deque()
        """Ledger id and entry ids of arrived entries that are not in `_in_hand` yet: a cumulative
        acknowledgement removes those that arrived together at once."""
        self.rewind = Rewind()
        self._newest: EntryKey | None = None

    def delivered(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """Add entries that go to the queue, in order."""
        newest = ledger_id, entry_ids[-1]
        if self._newest is None or newest > self._newest:
            self._newest = newest
        self._arrived.append((ledger_id, entry_ids))
        if len(self._arrived) > ARRIVED_MAX:
            self._note_arrived()

    def _note_arrived(self) -> None:
        """Note the entries of all runs one by one."""
        while self._arrived:
            ledger_id, entry_ids = self._arrived.popleft()
            if len(self._in_hand) < IN_HAND_MAX:
                self._in_hand.update(dict.fromkeys(zip(repeat(ledger_id), entry_ids)))

    @property
    def in_hand(self) -> dict[EntryKey, None]:
        """The entries in hand, in the order of their arrival."""
        self._note_arrived()
        return self._in_hand

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
        arrived = self._arrived
        while arrived and (arrived[0][0], arrived[0][1][-1]) <= key:
            arrived.popleft()
        in_hand = self.in_hand
        for covered in list(takewhile(key.__ge__, in_hand)):
            del in_hand[covered]

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
        """Forget all entries: the broker redelivers them on this connection. ``due``: result of `take_due`.
        ``in_order``: one consumer gets all of them. ``is_wish``: asked by the application, not `Rewind`."""
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
        self._in_hand.clear()
        self._arrived.clear()
        self.negative_acks.clear()
        self.ack_timeout.clear()

    def messages_in_hand(self, known_batch: Callable[[EntryKey], EntryAcks | None]) -> int:
        """Return the number of messages of the entries in hand, including queued ones; ``known_batch``
        returns the remaining messages of a batch."""
        return sum(1 if acks is None else acks.remaining for acks in map(known_batch, self.in_hand))

    def next_deadline(self) -> float:
        """Return when `take_due` must be called next; infinite for never."""
        return min(self.negative_acks.next_deadline(), self.ack_timeout.next_deadline())


class AckTimeout:
    """The taken, unacknowledged entries of one consumer. ``timeout_seconds`` 0 switches it off.

    All have the same time-out, so their deadlines are in the order in which they were taken, which a ``dict``
    keeps. Of a batch only the taken messages count: queued messages cannot be late, and redelivering their
    entry would deliver them twice.

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
            return inf
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


class NegativeAcks:
    """The entries of one consumer that wait for their redelivery after a negative acknowledgement.

    Due times are rounded up to a grid (an eighth of the delay, at most 100 ms), so that a burst of negative
    acknowledgements is sent in few commands and never early.
    """

    def __init__(self) -> None:
        self._due: dict[EntryKey, float] = {}
        self._keys: dict[float, list[EntryKey]] = {}
        """Entries by their due time, with some that were cancelled or became due earlier."""
        self._times: list[float] = []
        """Heap of the due times."""

    def __len__(self) -> int:
        return len(self._due)

    def keys(self) -> Iterable[EntryKey]:
        """Return the entries that wait."""
        return self._due.keys()

    def add(self, keys: Iterable[EntryKey], delay_seconds: float, now: float) -> None:
        """Redeliver entries in ``delay_seconds``; one that waits already keeps the earlier time."""
        grid = min(_GRID_SECONDS_MAX, delay_seconds / 8)
        time = now + delay_seconds
        if grid:
            time = ceil(time / grid) * grid
        if time not in self._keys:
            self._keys[time] = []
            heapq.heappush(self._times, time)
        due, together = self._due, self._keys[time]
        for key in keys:
            if due.get(key, inf) > time:
                due[key] = time
                together.append(key)

    def cancel(self, key: EntryKey) -> None:
        """Remove an entry that was acknowledged after all."""
        self._due.pop(key, None)

    def clear(self) -> None:
        """Remove all entries when everything is redelivered: on a reconnect, a seek or
        redeliver_unacknowledged_messages."""
        self._due.clear()
        self._keys.clear()
        self._times.clear()

    def next_deadline(self) -> float:
        while self._times:
            time = self._times[0]
            keys = self._keys[time]
            while keys and self._due.get(keys[-1]) != time:
                keys.pop()
            if keys:
                return time
            del self._keys[heapq.heappop(self._times)]
        return inf

    def take_due(self, now: float) -> list[EntryKey]:
        """Remove and return the due entries, ordered by time."""
        taken: list[EntryKey] = []
        while self.next_deadline() <= now:
            time = heapq.heappop(self._times)
            for key in self._keys.pop(time):
                if self._due.get(key) == time:
                    del self._due[key]
                    taken.append(key)
        return taken
