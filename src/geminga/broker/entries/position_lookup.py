"""Positions of a topic: its newest entry, and offsets by time, found by reading single entries.

Functions of a `ManagedLedger`. Times are milliseconds since 1970; ``now_ms`` is the broker's clock, all
others are the producers' publish times.
"""

from bisect import bisect_left

from geminga.broker.entries.entry_facts import count_of, head_of
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.errors import CorruptPayload
from geminga.ledger.api import Done
from geminga.wire.metadata import EntryHead, metadata_of


# --- the newest entry ---
def last_position(ledger: ManagedLedger) -> tuple[int, int]:
    """Return the ids of the newest readable durable entry; -1:-1 for an empty topic."""
    offset = ledger.newest
    return (-1, -1) if offset < ledger.start else ledger.position(offset)


def last_at_hand(ledger: ManagedLedger, ready: Done) -> bool:
    """Return whether the newest entry is in memory; if not it is read, and ``ready`` is called then.

    A damaged entry is skipped. Raises `StoreBusy` if too many reads are pending.
    """
    offset = ledger.newest
    while offset >= ledger.start and not ledger.in_memory(offset, offset + 1, 1):
        found = ledger.fetch(
            offset, offset + 1, bytes_max=1, ahead_stop=offset + 1, ahead_bytes_max=1, done=ready
        )
        if found is None:
            return False
        before, offset = offset, ledger.newest
        if offset == before:
            break
    return True


def last_batch_index(ledger: ManagedLedger) -> int:
    """Return the index of the last message in the newest entry if it is a batch, else -1."""
    head = _head(ledger, ledger.newest)
    return count_of(head) - 1 if head is not None and head.is_batch else -1


# --- moments ---
def offset_by_time(ledger: ManagedLedger, publish_time_ms: int, now_ms: int) -> int:
    """Return the first offset with a publish time of ``publish_time_ms`` or later."""
    offsets = range(ledger.start, ledger.confirmed)
    found = bisect_left(offsets, publish_time_ms, key=lambda offset: publish_time(ledger, offset, now_ms))
    return ledger.start + found


def publish_time(ledger: ManagedLedger, offset: int, now_ms: int) -> int:
    """Return the publish time of an entry; 0 if it has none.

    For a damaged entry, that of the next readable one, or the present time without one.
    """
    while offset < ledger.confirmed:
        head = _head(ledger, offset)
        behind = ledger.skip_gap(offset) if head is None else offset
        if behind == offset:
            return 0 if head is None else head.publish_time
        offset = behind
    return now_ms


def publish_time_in_memory(ledger: ManagedLedger, offset: int) -> int:
    """Return the publish time of an entry; 0 if it has none, or is not in memory."""
    found = ledger.in_memory(offset, offset + 1, 1)
    try:
        return metadata_of(found[0]).publish_time if found else 0
    except CorruptPayload:
        return 0


def arrived_ms(ledger: ManagedLedger, offset: int, now_ms: int) -> int:
    """Return an entry's publish time, limited to the times of its ledger by the broker's clock."""
    claimed_ms = publish_time(ledger, offset, now_ms)
    index = ledger.index_of(offset)
    if index < 0:
        return claimed_ms
    return min(max(claimed_ms, ledger.segments[index].created_ms), ledger.written_ms(index))


def _head(ledger: ManagedLedger, offset: int) -> EntryHead | None:
    """Return the metadata of an entry; None if it is unreadable."""
    entry = ledger.read_one(offset) if offset >= ledger.start else None
    return None if entry is None else head_of(entry)
