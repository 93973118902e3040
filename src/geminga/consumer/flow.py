"""Permits: how many messages the broker may send ahead of the application.

FLOW first grants the whole window; afterwards permits go back in blocks of half of it (algorithms.md
section 9). Nothing is counted a message: the message that closes a block carries a `Release`, and
whoever takes it from the queue hands the release back.

The window is the queue size. When the messages turn out to be so large that a full queue would hold
more than the limit of bytes, the window shrinks to what fits, judged by the average size seen.

Invariant: ``queue_size == earned + granted but not yet released``.
"""

from __future__ import annotations

_AVERAGE_WEIGHT = 1 / 8
"""How much one entry moves the average message size."""


class Release:
    """Permits that come free when the message carrying this is taken from the queue.

    ``generation`` is the subscription that they were granted to: no other counts them.
    """

    __slots__ = ("generation", "permits")

    def __init__(self, generation: object, permits: int) -> None:
        self.generation = generation
        self.permits = permits


class FlowControl:
    """The permits of one consumer on one connection; `reset` begins anew on the next one."""

    __slots__ = (
        "_average_bytes", "_block", "_earned", "_generation",
        "_outstanding", "_queue_bytes_max", "_queue_size",
    )  # fmt: skip

    def __init__(self, queue_size: int, queue_bytes_max: int) -> None:
        self._queue_size = queue_size
        self._queue_bytes_max = queue_bytes_max
        self._average_bytes = 0.0
        self._generation = object()
        self._earned = 0
        self._outstanding = 0
        self._block = 0

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

    def reset(self) -> None:
        """A new subscription: the broker knows no permits, and old releases mean nothing."""
        self._generation = object()
        self._earned = self._queue_size
        self._outstanding = 0
        self._block = 0

    def arrived(self, messages: int, size_bytes: int) -> list[tuple[int, Release]]:
        """Account for an entry of ``messages`` deliverable messages that goes to the queue.

        Returns ``(index, release)`` for the messages (0-based within these) that close a block.
        """
        self._outstanding -= messages
        if self._queue_size == 0 or messages == 0:
            return []
        self._average_bytes += (size_bytes / messages - self._average_bytes) * _AVERAGE_WEIGHT
        threshold = max(1, self.window // 2)
        if self._block + messages < threshold:
            self._block += messages
            return []
        releases = []
        start = 0
        end = max(1, threshold - self._block)
        while end <= messages:
            releases.append((end - 1, Release(self._generation, self._block + end - start)))
            self._block = 0
            start = end
            end += threshold
        self._block = messages - start
        return releases

    def dropped(self, permits: int) -> None:
        """Permits of messages that never reach the queue: duplicates, corrupt entries, inner chunks."""
        self._outstanding -= permits
        if self._queue_size:
            self._earned += permits
        elif self._outstanding <= 0:
            self._earned = 1

    def set_aside(self, permits: int) -> Release:
        """Permits of messages that are busy elsewhere, on their way to a dead letter topic; the release is
        handed back when that is done, so that no more of them pile up than the window holds."""
        self._outstanding -= permits
        return Release(self._generation, permits)

    def released(self, release: Release) -> None:
        """The application took the message that carries ``release``."""
        if release.generation is self._generation:
            self._earned += release.permits

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
            if grant < max(1, window // 2):
                return 0
            self._earned -= grant
        self._outstanding += grant
        return grant
