"""Delayed entries of a subscription, by their offsets: those that are not due yet, and those that are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Protocol

from geminga.broker.delivery.delivery_times import DeliveryTimes
from geminga.broker.delivery.ranges import RangeSet, add_set, remove_set, take_lowest


def _nobody_waits() -> None:
    """Called for the entries of closed `DelayedEntries`."""


class AckedEntries(Protocol):
    """Acknowledged entries of the subscription (`cursor.Cursor`)."""

    mark: int
    holes: RangeSet

    def next_open(self, offset: int) -> int: ...


class DelayedEntries:
    """Entries that wait for their time (`waiting`), and due ones that the dispatcher is to take.

    ``ready()`` is called when there are due ones. ``is_active`` is false if there is nothing in here, so that
    subscriptions without delayed entries pay nothing.

    The first dispatcher after a restart has not read these entries: ``known`` are those whose times the index
    had when it began, and the acknowledged ones. They are not read again as new entries.
    """

    __slots__ = ("_due", "_known", "_known_end", "_ready", "_times", "is_active", "waiting")

    def __init__(
        self, times: DeliveryTimes, cursor: AckedEntries, ready: Callable[[], None], *, are_delayed: bool
    ) -> None:
        """``are_delayed``: whether the topic's policies allow delays."""
        self._times = times
        self._ready = ready
        self.waiting = RangeSet()
        if are_delayed:
            add_set(self.waiting, times.offsets)
        self._due = RangeSet()
        self._known: RangeSet | None = None
        self._known_end = 0
        self.waiting.remove_range(0, cursor.mark)
        if self.waiting:
            self._known = RangeSet()
            add_set(self._known, self.waiting)
            add_set(self._known, cursor.holes)
            self._known_end = self._known.end
            remove_set(self.waiting, cursor.holes)
        self._note()
        times.attach(self)

    def _note(self) -> None:
        self.is_active = bool(self.waiting or self._due or self._known)

    def __contains__(self, offset: int) -> bool:
        return offset in self.waiting or offset in self._due

    @property
    def due_size(self) -> int:
        return len(self._due)

    def is_due(self, offset: int) -> bool:
        return offset in self._due

    @property
    def next_ms(self) -> int:
        """Time at which the next entry is due, in milliseconds since 1970; 0 without any. It may be that of
        an acknowledged entry, or of another subscription."""
        return self._times.next_ms if self.waiting else 0

    # --- reading ---
    def is_known(self, offset: int) -> bool:
        """Return whether a dispatcher that has not read so far is not to read the entry as a new one."""
        return self._known is not None and offset in self._known

    def known_behind(self, offset: int) -> int:
        """Return the number of entries from ``offset`` on that are not to be read as new ones."""
        known = self._known
        if known is None or self._known_end <= offset:
            return 0
        return known.histogram(offset, self._known_end, self._known_end - offset)[0]

    def unknown_from(self, offset: int, cursor: AckedEntries) -> int:
        """Return the first open entry from ``offset`` on that is to be read as a new one."""
        known = self._known
        if known is not None:
            offset = cursor.next_open(offset)
            while (behind := known.next_missing(offset)) != offset:
                offset = cursor.next_open(behind)
            if offset >= self._known_end:
                self._known = None
                self._note()
        return offset

    def unknown_run(self, offset: int, entries_max: int) -> int:
        """Return how many entries from ``offset`` on, at most ``entries_max``, are to be read as new ones."""
        known = self._known
        return entries_max if known is None else known.next_present(offset, offset + entries_max) - offset

    def add(self, offset: int, at_ms: int) -> None:
        """Add an entry that is not due."""
        self.waiting.add(offset)
        self.is_active = True
        self._times.add(offset, at_ms)

    # --- due entries ---
    def became_due(self, offsets: Sequence[int]) -> None:
        waiting = self.waiting
        if waiting:
            self._move([offset for offset in offsets if waiting.remove(offset)])

    def examine(self, start: int, stop: int) -> None:
        """Take the entries of a range as due: the dispatcher reads their times."""
        near = takewhile(lambda each: each[0] < stop, self.waiting.ranges(begin=start))
        found = [at for low, high in near for at in range(low, min(high, stop))]
        self.waiting.remove_range(start, stop)
        self._move(found)

    def _move(self, offsets: list[int]) -> None:
        if offsets:
            self._due.add_all(offsets)
            self._ready()

    def take_due(self, entries_max: int) -> list[int]:
        """Remove and return the due entries with the lowest offsets."""
        found = take_lowest(self._due, entries_max)
        self._note()
        return found

    # --- entries that are gone ---
    def discard(self, offsets: Iterable[int]) -> None:
        """Drop acknowledged entries."""
        for offset in offsets:
            if not self.waiting.remove(offset):
                self._due.remove(offset)
        self._note()

    def skip_below(self, offset: int) -> None:
        """Drop the entries below ``offset``."""
        self.waiting.remove_range(0, offset)
        self._due.remove_range(0, offset)
        self._note()

    def close(self) -> None:
        self._times.detach(self)
        self._ready = _nobody_waits  # drop the reference back to the owner
