"""Negative acknowledgements: entries that are redelivered after a delay.

Due times are rounded up to a grid (an eighth of the delay, at most 100 ms), so that a burst of negative
acknowledgements is sent in few commands and never early.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from math import ceil, inf

EntryKey = tuple[int, int]

_GRID_SECONDS_MAX = 0.1


class NegativeAcks:
    """The entries of one consumer that wait for their redelivery."""

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
