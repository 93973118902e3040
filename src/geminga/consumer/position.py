"""Where a consumer stands in its topic: where it starts, and where it goes on when it has lost its broker.

A durable subscription's place is the broker's affair; a start, or the target of a seek, counts once. A
subscription that is not durable starts anew with each connection, where the application stands.
"""

from __future__ import annotations

from geminga.consumer.message import ReceivedEntry
from geminga.consumer.seek import NO_FILTER, is_end, start_filter
from geminga.ids import MessageId

Queued = tuple[ReceivedEntry, int]
"""An entry and an index of its messages; -1 for all of it."""


class ConsumerPosition:
    """See the module. ``asked_for`` is the start in the settings; ``is_durable`` says whose the place is."""

    __slots__ = ("_asked_for", "_is_durable", "_is_inclusive", "filter", "inclusive", "last_queued", "start")

    def __init__(self, asked_for: MessageId | None, *, inclusive: bool, is_durable: bool) -> None:
        self._asked_for = asked_for
        self._is_inclusive = inclusive
        self._is_durable = is_durable
        self.start = asked_for
        """Where the next connection starts; None where the broker's cursor stands."""
        self.inclusive = inclusive
        """Whether the message at ``start`` comes too."""
        self.filter = NO_FILTER
        """What is dropped of what comes."""
        self.last_queued: Queued | None = None
        """What was queued last, on this connection."""

    def attach(self) -> MessageId | None:
        """A connection begins: where it starts."""
        self._drop_before()
        start = self.start
        if self._is_durable:
            # A seek's position counts once: later the cursor may have been moved by another consumer.
            self.start = None
        return start

    def _drop_before(self) -> None:
        self.filter = start_filter(self.start, inclusive=self.inclusive, below=not self._is_durable)

    def detach(self, unread: Queued | None) -> None:
        """The connection is lost; ``unread`` is the first message that the application has not taken."""
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
        """On another cluster, where ids mean something else: the first start that was asked for."""
        self.start, self.inclusive = self._asked_for, self._is_inclusive
        self.last_queued = None

    def pin(self, marked: MessageId) -> None:
        """Turn the start "latest" into a place; see `geminga.consumer.core.ConsumerCore.pin_start`."""
        start = self.start
        if start is not None and is_end(start) and start.ledger_id > 0 and self.last_queued is None:
            self.inclusive = True
            if is_end(marked):
                self.start = MessageId.earliest
                return
            # The broker delivers the entry that is named, if it exists already or not.
            self.start = MessageId(marked.partition, marked.ledger_id, marked.entry_id + 1)

    def moved(self, target: MessageId | int | None) -> None:
        """A seek has moved the cursor: to a message, or to a publish time."""
        self.last_queued = None
        if isinstance(target, MessageId):
            self.start, self.inclusive = target, self._is_inclusive
        elif not self._is_durable:
            # The reader's place is where the broker put it; a new cursor could only start at its begin.
            self.start, self.inclusive = MessageId.earliest, True
        else:
            self.start = None
        self._drop_before()
