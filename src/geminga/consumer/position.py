"""Position of a consumer in its topic: its start, and where it resumes after a lost connection.

The broker keeps the cursor of a durable subscription; a start, or the target of a seek, is used once. A
subscription that is not durable starts on each connection at the application's position.
"""

from __future__ import annotations

from typing import Any

from geminga.consumer.message import ReceivedEntry, UnbatchedRun
from geminga.consumer.seek import NO_FILTER, is_end, start_filter
from geminga.ids import MessageId

Queued = tuple[ReceivedEntry | UnbatchedRun, Any]
"""An entry and an index of its messages, -1 for the whole entry; or a run and the row of a message."""


class ConsumerPosition:
    """Position of one consumer. ``asked_for``: start in the settings; ``is_durable``: has a cursor."""

    __slots__ = ("_asked_for", "_is_durable", "_is_inclusive", "filter", "inclusive", "last_queued", "start")

    def __init__(self, asked_for: MessageId | None, *, inclusive: bool, is_durable: bool) -> None:
        self._asked_for = asked_for
        self._is_inclusive = inclusive
        self._is_durable = is_durable
        self.start = asked_for
        """Start of the next connection; None for the broker's cursor."""
        self.inclusive = inclusive
        """Whether the message at ``start`` is delivered too."""
        self.filter = NO_FILTER
        """Filter of the messages before the start."""
        self.last_queued: Queued | None = None
        """Last entry or message queued on this connection."""

    def attach(self) -> MessageId | None:
        """Begin a connection; return its start."""
        self._drop_before()
        start = self.start
        if self._is_durable:
            # A seek's position is used once: later another consumer may have moved the cursor.
            self.start = None
        return start

    def _drop_before(self) -> None:
        self.filter = start_filter(self.start, inclusive=self.inclusive, below=not self._is_durable)

    def detach(self, unread: Queued | None) -> None:
        """End a connection; ``unread`` is the first message that the application has not taken."""
        if self._is_durable:
            return
        if unread is not None:
            entry, index = unread
            self.start, self.inclusive = entry.message_id(index), True
        elif self.last_queued is not None:
            entry, index = self.last_queued
            self.start, self.inclusive = entry.message_id(index), False
        self.last_queued = None

    def begin_anew(self) -> None:
        """Return to the start in the settings, on another cluster, where ids have another meaning."""
        self.start, self.inclusive = self._asked_for, self._is_inclusive
        self.last_queued = None

    def pin(self, marked: MessageId) -> None:
        """Turn the start "latest" into a position; see `geminga.consumer.core.ConsumerCore.pin_start`."""
        start = self.start
        if start is not None and is_end(start) and start.ledger_id > 0 and self.last_queued is None:
            self.inclusive = True
            if is_end(marked):
                self.start = MessageId.earliest
                return
            # The broker starts at the named entry, whether it exists already or not.
            self.start = MessageId(marked.partition, marked.ledger_id, marked.entry_id + 1)

    def moved(self, target: MessageId | int | None) -> None:
        """Handle a seek that moved the cursor: to a message, or to a publish time."""
        self.last_queued = None
        if isinstance(target, MessageId):
            self.start, self.inclusive = target, self._is_inclusive
        elif not self._is_durable:
            # The broker knows the reader's position; a new cursor could only start at its beginning.
            self.start, self.inclusive = MessageId.earliest, True
        else:
            self.start = None
        self._drop_before()
