"""Permits: the number of messages that the broker may send ahead of the application.

FLOW first grants the whole window; afterwards permits are returned in blocks of half of it (algorithms.md
section 9). There is no counting per message: the message that closes a block carries a `Release`, which is
returned when the message is taken from the queue.

The window is the queue size. If messages are so large that a full queue would exceed the limit of bytes, the
window shrinks accordingly, by the average size seen.

A reader that knows its last entry (`stop_after`) grants only the permits for the entries up to it: later
entries would be discarded.

Invariant: ``queue_size == earned + granted but not yet released``.
"""

from typing import NamedTuple

from geminga.ids import MessageId

_AVERAGE_WEIGHT = 1 / 8
"""Weight of one entry in the average message size."""


READ_ENTRIES_MAX = 100
"""Entries that Apache Pulsar may send at once to a consumer with any permit, however many messages they hold
(``dispatcherMaxReadBatchSize``)."""


class Release(NamedTuple):
    """Permits that are returned when the message carrying this is taken from the queue.

    ``generation`` is the subscription that they were granted to: releases of others are ignored.
    """

    generation: object
    permits: int


class FlowControl:
    """The permits of one consumer on one connection; `reset` starts over on the next one."""

    def __init__(self, queue_size: int, queue_bytes_max: int, stop: MessageId | None = None) -> None:
        self._queue_size = queue_size
        self._queue_bytes_max = queue_bytes_max
        self._average_bytes = 0.0
        self._generation = object()
        self._earned = 0
        self._outstanding = 0
        self._block = 0
        self.received_messages = self.received_bytes = 0
        """Totals: of bodies, or of entries that were queued whole."""
        self.stop = None if stop is None else (stop.ledger_id, stop.entry_id)
        """The last wanted entry."""
        self._entries_left: int | None = None
        self._fewest = 0
        self.arrived_last = (-1, -1)
        """Ledger and entry id of the newest entry that arrived on this connection, delivered or not."""
        self.overshoot = READ_ENTRIES_MAX
        """Maximum entries that the broker sends for the last permit."""

    @property
    def queue_size(self) -> int:
        return self._queue_size

    @property
    def outstanding(self) -> int:
        """Permits granted for messages that have not arrived; negative when the broker overshot."""
        return self._outstanding

    @property
    def window(self) -> int:
        """Maximum messages in flight or queued: the queue size, or as many as fit into its bytes."""
        if self._average_bytes * self._queue_size <= self._queue_bytes_max:
            return self._queue_size
        return max(1, int(self._queue_bytes_max / self._average_bytes))

    def resize(self, queue_size: int) -> None:
        """Set a new share of the queue, when partitions were added."""
        self._earned += queue_size - self._queue_size
        self._queue_size = queue_size

    @property
    def is_bounded(self) -> bool:
        return self._entries_left is not None

    def stop_after(self, entries: int | None) -> None:
        """Limit the wanted entries to the next ``entries``; None: no limit, or unknown."""
        self._entries_left = entries

    def note_start(self, start: MessageId | None) -> None:
        """Note that the next entry is the first one at or after ``start``."""
        if self.stop is not None:
            key = None if start is None else (start.ledger_id, start.entry_id)
            self.stop_after(None if key is None else self._entries_up_to_stop(key, 1))

    def note_place(self, key: tuple[int, int]) -> None:
        """Note that the entry with this ledger and entry id arrived."""
        if key > self.arrived_last:
            self.arrived_last = key
        if self.stop is not None:
            self.stop_after(self._entries_up_to_stop(key, 0))

    def _entries_up_to_stop(self, key: tuple[int, int], more: int) -> int | None:
        """Return the entries from ``key`` to the last wanted, plus ``more``; None if its ledger is later."""
        assert self.stop is not None
        ledger, entry = self.stop
        if key[0] < ledger:
            return None
        return 0 if key[0] > ledger else max(0, entry - key[1] + more)

    @property
    def _outstanding_max(self) -> int:
        """Return the permits that bring no entry beyond the last wanted one. An entry takes at least one, and
        entries in flight have already been subtracted."""
        left = self._entries_left
        if left is None:
            return self._queue_size
        return min(self._queue_size, max(left, (left - self.overshoot) * self._fewest + 1 if left else 0))

    def reset(self) -> None:
        """Start a new subscription: the broker has no permits, and old releases are ignored.

        With queue size 0, a message that was requested and has not come is requested again.
        """
        self._generation = object()
        self._earned = self._queue_size or int(self._earned > 0 or self._outstanding > 0)
        self._outstanding = 0
        self._block = 0
        self.arrived_last = (-1, -1)

    def arrived(self, messages: int, size_bytes: int, entries: int = 1) -> list[tuple[int, Release]]:
        """Account for entries put into the queue: their number, and that of their deliverable messages.

        Return ``(index, release)`` for the messages (0-based within these) that close a block.
        """
        before = self._block
        threshold = self._note(messages, size_bytes, entries)
        releases = []
        start = 0
        end = max(1, threshold - before)
        while self._block >= threshold:
            releases.append((end - 1, Release(self._generation, before + end - start)))
            self._block -= before + end - start
            before, start = 0, end
            end += threshold
        return releases

    def arrived_whole(self, messages: int, size_bytes: int) -> list[tuple[int, Release]]:
        """`arrived`, for an entry that is taken as a whole: at most one release, with its last message."""
        if self._note(messages, size_bytes) > self._block:
            return []
        permits, self._block = self._block, 0
        return [(messages - 1, Release(self._generation, permits))]

    def _note(self, messages: int, size_bytes: int, entries: int = 1) -> int:
        """Add arrived messages to the open block; return the size at which a block is closed."""
        self.received_messages += messages
        self.received_bytes += size_bytes
        self._outstanding -= messages
        if self._queue_size == 0 or messages == 0:
            return self._block + 1
        self._block += messages
        self._fewest = min(self._fewest or messages, messages // entries)
        weight = 1 - (1 - _AVERAGE_WEIGHT) ** entries
        self._average_bytes += (size_bytes / messages - self._average_bytes) * weight
        return max(1, self.window // 2)

    def dropped(self, permits: int) -> None:
        """Return permits of messages that never reach the queue: duplicates, damage, inner chunks."""
        self._outstanding -= permits
        if self._queue_size:
            self._earned += permits
        elif self._outstanding <= 0:
            self._earned = 1

    def overcharged(self, permits: int) -> None:
        """Return permits that an entry cost beyond its queued messages, all requested ones with queue 0."""
        self._outstanding -= permits
        if self._queue_size:
            self._earned += permits

    def set_aside(self, permits: int) -> Release:
        """Set permits aside for messages on their way to a dead letter topic. Return their release, to be
        returned once they are published, which limits their number to the window."""
        self._outstanding -= permits
        return Release(self._generation, permits)

    def released(self, release: Release) -> None:
        """Return the permits of ``release``: its message was taken, or was published as a dead letter."""
        if release.generation is self._generation:
            self._earned += release.permits

    def taken_back(self, releases: list[Release], *, removed: bool) -> None:
        """Return all unreleased permits, after the queue was emptied; ``removed``: it had messages.
        With queue size 0 a receiver waits for one of them, so another message is requested."""
        for release in releases:
            self.released(release)
        self._earned += self._block
        self._block = 0
        if removed and not self._queue_size:
            self.want_one()

    def want_one(self) -> None:
        """Request a message for a waiting application, with queue size 0, unless one is in flight."""
        if self._outstanding <= 0:
            self._earned = 1

    def take_grant(self) -> int:
        """Return the number of permits to send in FLOW now; 0 for none yet."""
        if self._queue_size == 0:
            # A batch overshoots the one permit: the broker's balance must become positive again.
            grant = 1 - self._outstanding if self._earned and self._outstanding <= 0 else 0
            self._earned = 0
        else:
            window = self.window
            grant = self._earned - (self._queue_size - window)
            if self.is_bounded:
                bound = self._outstanding_max
                grant = min(grant, bound - self._outstanding)
                window = min(window, bound)
            if grant < max(1, window // 2):
                return 0
            self._earned -= grant
        self._outstanding += grant
        return grant
