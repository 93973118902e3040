"""Positions: the start of a subscription, the target of a seek, where it resumes after a lost connection, and
the messages to drop afterwards.

The broker's cursors are at entries; it delivers the requested entry itself. The client handles positions
inside a batch, and "after this message": `StartFilter` drops the messages before (framing.md sections 6 and
9). The broker keeps the cursor of a durable subscription; a start, or the target of a seek, is used once. A
subscription that is not durable starts on each connection at the application's position.
"""

from typing import Any, NamedTuple

from geminga.consumer.message import EntryAcks, EntryKey, ReceivedEntry, UnbatchedRun
from geminga.ids import MessageId

ALL_INDEXES = 1 << 30
"""More messages than any batch holds."""


class StartFilter(NamedTuple):
    """Drops messages before a position: of the entry at ``key`` those with an index below ``first_index``.

    Entries below ``key`` are dropped only with ``below``: a reader owns its cursor, while that of a durable
    subscription may have been moved back by another consumer. `NO_FILTER` drops nothing.
    """

    key: EntryKey
    first_index: int
    below: bool = False

    def first_wanted(self, key: EntryKey) -> int:
        """Return the first index of an entry to deliver; `ALL_INDEXES` for none."""
        if key == self.key:
            return self.first_index
        return ALL_INDEXES if self.below and key < self.key else 0


NO_FILTER = StartFilter((-1, -1), 0)


def is_end(position: MessageId) -> bool:
    """Return whether this is `MessageId.earliest` or `MessageId.latest`, of any partition."""
    return position.ledger_id < 0 or position.ledger_id == MessageId.latest.ledger_id


def start_filter(position: MessageId | None, *, inclusive: bool, below: bool) -> StartFilter:
    """Return the filter for a start at ``position``, or after it unless ``inclusive``."""
    if position is None or is_end(position):
        return NO_FILTER
    if inclusive:
        place = position.first_chunk or position
        return StartFilter((place.ledger_id, place.entry_id), max(position.batch_index, 0), below)
    # After a chunked message means after its last chunk.
    key = (position.ledger_id, position.entry_id)
    if position.batch_index < 0 or 0 < position.batch_size <= position.batch_index + 1:
        return StartFilter(key, ALL_INDEXES, below)
    return StartFilter(key, position.batch_index + 1, below)


def seek_ack_set(target: MessageId, first_index: int) -> list[int]:
    """Return the positions of the target's batch from ``first_index`` on, if its size is known."""
    if target.batch_index < 0 or target.batch_size <= 0:
        return []
    acks = EntryAcks(target.batch_size)
    acks.settle_through(first_index - 1)
    return acks.ack_set()


def is_after(last: MessageId, position: MessageId, *, inclusive: bool) -> bool:
    """Return whether a topic whose last message is ``last`` has messages at (``inclusive``) or after
    ``position``.

    ``last`` as in GET_LAST_MESSAGE_ID: entry -1 for an empty topic.
    """
    if last.entry_id < 0:
        return False
    if is_end(position):
        return position.ledger_id < 0
    key, last_key = (position.ledger_id, position.entry_id), (last.ledger_id, last.entry_id)
    if key != last_key:
        return last_key > key
    # Within one entry: an id without a batch index is the whole entry.
    if inclusive:
        return True
    return position.batch_index >= 0 and last.batch_index > position.batch_index


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
