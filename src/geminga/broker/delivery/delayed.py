"""Delayed entries of a subscription, by their offsets: those that are not due yet, and those that are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from geminga.broker.delivery.cursor import Cursor
from geminga.broker.delivery.delivery_times import DeliveryTimes
from geminga.broker.delivery.pending_acks import PendingAcks
from geminga.broker.delivery.ranges import RangeSet, add_set, remove_set


def _nobody_waits() -> None:
    """Called for the entries of closed `DelayedEntries`."""


class DelayedEntries:
    """Entries that wait for their time (``waiting``), and ``due`` ones that the dispatcher is to take.

    ``ready()`` is called when there are due ones. While ``is_active`` is false all sets are empty, so that
    subscriptions without delayed entries pay nothing.

    The first dispatcher after a restart has not read these entries: ``known`` are those whose times the index
    had when it began, and the acknowledged ones, between which there may be millions. They are not read as
    new entries.
    """

    __slots__ = ("_known_end", "_ready", "_times", "due", "is_active", "known", "waiting")

    def __init__(
        self,
        times: DeliveryTimes,
        cursor: Cursor | PendingAcks,
        ready: Callable[[], None],
        *,
        are_delayed: bool,
    ) -> None:
        """``are_delayed``: whether the topic's policies allow delays."""
        self._times = times
        self._ready = ready
        self.waiting, self.due, self.known = RangeSet(), RangeSet(), RangeSet()
        if are_delayed:
            add_set(self.waiting, times.offsets)
            self.waiting.remove_range(0, cursor.mark)
        if self.waiting:
            add_set(self.known, self.waiting)
            add_set(self.known, cursor.holes)
            remove_set(self.waiting, cursor.holes)
        self._known_end = self.known.end
        self.is_active = bool(self.known)
        times.attach(self)

    def __contains__(self, offset: int) -> bool:
        return offset in self.waiting or offset in self.due

    @property
    def next_ms(self) -> int:
        """Time at which the next entry is due, in milliseconds since 1970; 0 without any. It may be that of
        an acknowledged entry, or of another subscription."""
        return self._times.next_ms if self.waiting else 0

    # --- reading ---
    def known_behind(self, offset: int) -> int:
        """Return the number of known entries from ``offset`` on."""
        width = self._known_end - offset
        return self.known.histogram(offset, self._known_end, width)[0] if self.known and width > 0 else 0

    def unknown_from(self, offset: int, cursor: Cursor | PendingAcks) -> int:
        """Return the first open entry from ``offset`` on that is to be read as a new one."""
        if self.known:
            offset = cursor.next_open(offset)
            while (behind := self.known.next_missing(offset)) != offset:
                offset = cursor.next_open(behind)
            if offset >= self._known_end:
                self.known.clear()
        return offset

    def add(self, offset: int, at_ms: int) -> None:
        """Add an entry that is not due."""
        self.waiting.add(offset)
        self.is_active = True
        self._times.add(offset, at_ms)

    def became_due(self, offsets: Sequence[int]) -> None:
        """Take entries whose time has come, or was lost; others than those that wait are ignored."""
        remove = self.waiting.remove
        if self.waiting and (found := [offset for offset in offsets if remove(offset)]):
            self.due.add_all(found)
            self._ready()

    # --- entries that are gone ---
    def discard(self, offsets: Iterable[int]) -> None:
        """Drop acknowledged or sent entries."""
        for offset in offsets:
            if not self.waiting.remove(offset):
                self.due.remove(offset)
        self.is_active = bool(self.waiting or self.due or self.known)

    def skip_below(self, offset: int) -> None:
        """Drop the entries below ``offset``."""
        self.waiting.remove_range(0, offset)
        self.due.remove_range(0, offset)

    def close(self) -> None:
        self._times.detach(self)
        self._ready = _nobody_waits  # drop the reference back to the owner
