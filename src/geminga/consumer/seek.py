"""Positions: the start of a subscription, the target of a seek, and the messages to drop afterwards.

The broker's cursors are at entries; it delivers the requested entry itself. The client handles positions
inside a batch, and "after this message": `StartFilter` drops the messages before (framing.md sections 6 and
9).
"""

from __future__ import annotations

from typing import NamedTuple

from geminga.consumer.message import EntryAcks, EntryKey
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
    acks = EntryAcks(target.ledger_id, target.entry_id, target.batch_size)
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
