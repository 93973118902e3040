"""Positions of entries in a topic: order, text form, and conversion to sequence ids."""

from typing import NamedTuple

from geminga.errors import OperationNotSupported, ProtocolError
from geminga.ids import MessageId

ENTRY_BITS = 28
LEDGERS_MAX = 1 << 35
ENTRIES_MAX = 1 << ENTRY_BITS
_ENTRY_MASK = ENTRIES_MAX - 1


class Position(NamedTuple):
    """Position of an entry in a partition or unpartitioned topic. Entry -1 is before a ledger's first."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"

    def message_id(self) -> MessageId:
        return MessageId(-1, self.ledger, self.entry)


NOWHERE = Position(-1, -1)
"""Position before every entry."""


def parse_position(text: str) -> Position:
    """Parse a position in the form of admin REST, the inverse of ``str``. Raises `ProtocolError`."""
    ledger, separator, entry = text.partition(":")
    try:
        if separator:
            return Position(int(ledger), int(entry))
    except ValueError:
        pass
    raise ProtocolError(f"{text!r} is no position: ledger:entry is expected")


def sequence_id_of(position: Position) -> int:
    """Return the sequence id under which the entry at a source position is published. It increases with the
    position and encodes it, so that the id stored by deduplication is a source position.

    Raises `OperationNotSupported` for positions that do not fit into 63 bits.
    """
    if not 0 <= position.ledger < LEDGERS_MAX or not 0 <= position.entry < ENTRIES_MAX:
        raise OperationNotSupported(
            f"position {position} has no sequence id: ledger ids up to {LEDGERS_MAX - 1} and entry ids up to "
            f"{ENTRIES_MAX - 1} can be mirrored"
        )
    return position.ledger << ENTRY_BITS | position.entry


def position_of(sequence_id: int) -> Position:
    """Return the source position of a sequence id; `NOWHERE` for -1, the id of an unknown producer."""
    if sequence_id < 0:
        return NOWHERE
    return Position(sequence_id >> ENTRY_BITS, sequence_id & _ENTRY_MASK)
