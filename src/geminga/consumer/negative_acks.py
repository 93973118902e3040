"""Negative acknowledgements: entries that are redelivered after a delay.

Due times are rounded up to a grid (an eighth of the delay, at most 100 ms), so that a burst of negative
acknowledgements is sent in few commands and never early.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from math import ceil

EntryKey = tuple[int, int]

_GRID_SECONDS_MAX = 0.1


class NegativeAcks:
    """The entries of one consumer that wait for their redelivery."""

    def __init__(self) -> None:
        self._due: dict[EntryKey, float] = {}
        self._heap: list[tuple[float, EntryKey]] = []

    def __len__(self) -> int:
        return len(self._due)

    def keys(self) -> Iterable[EntryKey]:
        """Return the entries that wait."""
        return self._due.keys()

    def add(self, key: EntryKey, delay_seconds: float, now: float) -> None:
        """Redeliver the entry in ``delay_seconds``; an entry that waits already keeps the earlier time."""
        grid = min(_GRID_SECONDS_MAX, delay_seconds / 8)
        due = now + delay_seconds
        if grid:
            due = ceil(due / grid) * grid
        known = self._due.get(key)
        if known is None or due < known:
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))

    def cancel(self, key: EntryKey) -> None:
        """Remove an entry that was acknowledged after all."""
        self._due.pop(key, None)

    def clear(self) -> None:
        """Remove all entries when everything is redelivered: on a reconnect, a seek or
        redeliver_unacknowledged_messages."""
        self._due.clear()
        self._heap.clear()

    def next_deadline(self) -> float:
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else float("inf")

    def take_due(self, now: float) -> list[EntryKey]:
        """Remove and return the due entries, ordered by time."""
        due: list[EntryKey] = []
        while self.next_deadline() <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            due.append(key)
        return due
