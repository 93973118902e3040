"""Positions: places of entries in a topic, their way into sequence ids, and their order."""

from __future__ import annotations

from typing import NamedTuple

from geminga.errors import OperationNotSupported, ProtocolError
from geminga.ids import MessageId

ENTRY_BITS = 28
LEDGERS_MAX = 1 << 35
ENTRIES_MAX = 1 << ENTRY_BITS
_ENTRY_MASK = ENTRIES_MAX - 1


class Position(NamedTuple):
    """An entry of a topic without partitions, or of one partition. Entry -1 is before a ledger's first."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"

    def message_id(self) -> MessageId:
        return MessageId(-1, self.ledger, self.entry)


NOWHERE = Position(-1, -1)
"""Before every entry."""


def parse_position(text: str) -> Position:
    """The inverse of ``str``, as admin REST writes positions. Raises `ProtocolError`."""
    ledger, separator, entry = text.partition(":")
    try:
        if separator:
            return Position(int(ledger), int(entry))
    except ValueError:
        pass
    raise ProtocolError(f"{text!r} is no position: ledger:entry is expected")


def sequence_id_of(position: Position) -> int:
    """The sequence id under which the entry at a source position is published: it grows with the position
    and says it, so that what deduplication remembers of the mirror's producer is a position of the source.

    Raises `OperationNotSupported` for ids that do not fit into 63 bits together.
    """
    if not 0 <= position.ledger < LEDGERS_MAX or not 0 <= position.entry < ENTRIES_MAX:
        raise OperationNotSupported(
            f"position {position} has no sequence id: ledger ids up to {LEDGERS_MAX - 1} and entry ids up to "
            f"{ENTRIES_MAX - 1} can be mirrored"
        )
    return position.ledger << ENTRY_BITS | position.entry


def position_of(sequence_id: int) -> Position:
    """The inverse; `NOWHERE` for -1, what a broker says that remembers nothing."""
    if sequence_id < 0:
        return NOWHERE
    return Position(sequence_id >> ENTRY_BITS, sequence_id & _ENTRY_MASK)
