"""Permits: how many messages the broker may send ahead of the application.

FLOW first grants the whole window; afterwards permits go back in blocks of half of it (algorithms.md
section 9). Nothing is counted a message: the message that closes a block carries a `Release`, and
whoever takes it from the queue hands the release back.

The window is the queue size. When the messages turn out to be so large that a full queue would hold
more than the limit of bytes, the window shrinks to what fits, judged by the average size seen.

A reader that knows its last entry (`stop_after`) grants no more than brings the entries up to it: what
the broker sends beyond is thrown away.

Invariant: ``queue_size == earned + granted but not yet released``.
"""

from __future__ import annotations

from typing import Protocol

from geminga.ids import MessageId

_AVERAGE_WEIGHT = 1 / 8
"""How much one entry moves the average message size."""


READ_ENTRIES_MAX = 100
"""As long as a consumer has any permit, Apache Pulsar sends it up to so many entries at once, however many
messages they hold (``dispatcherMaxReadBatchSize``)."""


class _Placed(Protocol):
    @property
    def ledger_id(self) -> int: ...
    @property
    def entry_id(self) -> int: ...


class Release:
    """Permits that come free when the message carrying this is taken from the queue.

    ``generation`` is the subscription that they were granted to, or its time since permits were missed: no
    other counts them.
    """

    __slots__ = ("generation", "permits")

    def __init__(self, generation: object, permits: int) -> None:
        self.generation = generation
        self.permits = permits


class FlowControl:
    """The permits of one consumer on one connection; `reset` begins anew on the next one."""

    __slots__ = (
        "_aside", "_average_bytes", "_block", "_earned", "_entries_left", "_fewest", "_generation",
        "_outstanding", "_queue_bytes_max", "_queue_size", "_subscription", "arrived_last", "overshoot",
        "received_bytes", "received_messages", "stop",
    )  # fmt: skip

    def __init__(self, queue_size: int, queue_bytes_max: int, stop: MessageId | None = None) -> None:
        self._queue_size = queue_size
        self._queue_bytes_max = queue_bytes_max
        self._average_bytes = 0.0
        self._subscription = self._generation = object()
        self._aside = 0
        self._earned = 0
        self._outstanding = 0
        self._block = 0
        self.received_messages = self.received_bytes = 0
        """Ever: of bodies, or of entries that were queued whole."""
        self.stop = None if stop is None else (stop.ledger_id, stop.entry_id)
        """The last entry that is wanted."""
        self._entries_left: int | None = None
        self._fewest = 0
        self.arrived_last = (-1, -1)
        """Ledger and entry id of the newest entry that arrived on this connection, delivered or not."""
        self.overshoot = READ_ENTRIES_MAX
        """Entries that the broker sends for the last permit, at the most."""

    @property
    def queue_size(self) -> int:
        return self._queue_size

    @property
    def outstanding(self) -> int:
        """Permits granted for messages that have not arrived; negative when the broker overshot."""
        return self._outstanding

    @property
    def window(self) -> int:
        """How many messages may be on the way or waiting: the queue size, or what fits into its bytes."""
        if self._average_bytes * self._queue_size <= self._queue_bytes_max:
            return self._queue_size
        return max(1, int(self._queue_bytes_max / self._average_bytes))

    def resize(self, queue_size: int) -> None:
        """A new share of the queue, when partitions were added."""
        self._earned += queue_size - self._queue_size
        self._queue_size = queue_size

    @property
    def is_bounded(self) -> bool:
        return self._entries_left is not None

    def stop_after(self, entries: int | None) -> None:
        """Only so many more entries are wanted; None: without end, or as many as nobody knows."""
        self._entries_left = entries

    def note_start(self, start: MessageId | None) -> None:
        """The next entry is the first one at or after ``start``."""
        if self.stop is not None:
            self.stop_after(None if start is None else self._entries_up_to_stop(start, 1))

    def note_place(self, entry: _Placed) -> None:
        """``entry`` arrived."""
        self.arrived_last = max(self.arrived_last, (entry.ledger_id, entry.entry_id))
        if self.stop is not None:
            self.stop_after(self._entries_up_to_stop(entry, 0))

    def _entries_up_to_stop(self, place: _Placed, more: int) -> int | None:
        """Entries behind ``place``, and ``more``; None when the last one wanted is in a later ledger."""
        assert self.stop is not None
        ledger, entry = self.stop
        if place.ledger_id < ledger:
            return None
        return 0 if place.ledger_id > ledger else max(0, entry - place.entry_id + more)

    @property
    def _outstanding_max(self) -> int:
        """Permits that bring no entry beyond the last one wanted. An entry takes one at least, and those
        that are on their way already have taken theirs from the balance."""
        left = self._entries_left
        if left is None:
            return self._queue_size
        return min(self._queue_size, max(left, (left - self.overshoot) * self._fewest + 1 if left else 0))

    def reset(self) -> None:
        """A new subscription: the broker knows no permits, and old releases mean nothing."""
        self._subscription = self._generation = object()
        self._aside = 0
        self._earned = self._queue_size
        self._outstanding = 0
        self._block = 0
        self.arrived_last = (-1, -1)

    def arrived(self, messages: int, size_bytes: int) -> list[tuple[int, Release]]:
        """Account for an entry of ``messages`` deliverable messages that goes to the queue.

        Returns ``(index, release)`` for the messages (0-based within these) that close a block.
        """
        before = self._block
        threshold = self._note(messages, size_bytes)
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
        """`arrived`, for an entry that is taken as a whole: one release at most, with its last message."""
        if self._note(messages, size_bytes) > self._block:
            return []
        permits, self._block = self._block, 0
        return [(messages - 1, Release(self._generation, permits))]

    def _note(self, messages: int, size_bytes: int) -> int:
        """Add what arrived to the open block; returns the size at which a block is closed."""
        self.received_messages += messages
        self.received_bytes += size_bytes
        self._outstanding -= messages
        if self._queue_size == 0 or messages == 0:
            return self._block + 1
        self._block += messages
        self._fewest = min(self._fewest or messages, messages)
        self._average_bytes += (size_bytes / messages - self._average_bytes) * _AVERAGE_WEIGHT
        return max(1, self.window // 2)

    def dropped(self, permits: int) -> None:
        """Permits of messages that never reach the queue: duplicates, corrupt entries, inner chunks."""
        self._outstanding -= permits
        if self._queue_size:
            self._earned += permits
        elif self._outstanding <= 0:
            self._earned = 1

    def overcharged(self, permits: int) -> None:
        """Permits that an entry has cost beyond its messages that went to the queue. With a queue of 0 those
        are all that was asked for."""
        self._outstanding -= permits
        if self._queue_size:
            self._earned += permits

    def set_aside(self, permits: int) -> Release:
        """Permits of messages that are busy elsewhere, on their way to a dead letter topic; the release is
        handed back when that is done, so that no more of them pile up than the window holds."""
        self._outstanding -= permits
        self._aside += permits
        return Release((self._subscription,), permits)

    def released(self, release: Release) -> None:
        """The application took the message that carries ``release``, or what was set aside is done."""
        generation = release.generation
        if generation is self._generation:
            self._earned += release.permits
        elif type(generation) is tuple and generation[0] is self._subscription:
            self._aside -= release.permits
            self._earned += release.permits

    def recover(self) -> None:
        """Nothing waits in the queue, so all permits are at the broker, earned, or set aside. What is missing
        was lost with somebody who took a message and did not get to say so: a signal's handler raised."""
        missed = self._queue_size - self._earned - self._outstanding - self._block - self._aside
        if self._queue_size and missed > 0:
            self._generation = object()  # a release that comes after all is counted already
            self._earned += missed

    def taken_back(self, releases: list[Release]) -> None:
        """All waiting messages were removed from the queue: every unreleased permit is earned."""
        for release in releases:
            self.released(release)
        self._earned += self._block
        self._block = 0

    def want_one(self) -> None:
        """Queue size 0: the application waits for a message; one is asked for if none is on the way."""
        if self._outstanding <= 0:
            self._earned = 1

    def take_grant(self) -> int:
        """How many permits to send in FLOW now; 0 for none yet."""
        if self._queue_size == 0:
            # A batch overshoots the one permit: the broker's balance has to come back above zero.
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
