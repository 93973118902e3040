"""Acknowledgements in transactions: pending until the commit, and released by an abort.

While they are pending, a subscription's dispatcher takes their entries for acknowledged, so that they are not
delivered again; the cursor, and all that follows from it (backlog, retention), changes with the commit. A
batch is held back as a whole, also if only some of its messages are acknowledged: clients take the others of
a batch that arrives in part for acknowledged for good.
"""

from collections.abc import Container, Iterable
from typing import Any, NamedTuple

from geminga.broker.delivery.cursor import Cursor
from geminga.broker.runtime.refusal import Refused
from geminga.transactions import TransactionId
from geminga.wire.proto import pulsar_wire_pb2 as pb

WHOLE = -1
"""All bits: the entry as a whole."""


class AckedPart(NamedTuple):
    """Acknowledged messages of an entry: bit i of ``bits`` is the i-th of its ``messages``."""

    offset: int
    bits: int = WHOLE
    messages: int = 0


class Acknowledgements:
    """Messages that one transaction acknowledges in one subscription: all below an offset, and ``parts``."""

    __slots__ = ("below", "parts")

    def __init__(self) -> None:
        self.below = 0
        self.parts: dict[int, AckedPart] = {}

    def has(self, offset: int) -> bool:
        """Return whether messages of an entry are acknowledged."""
        return offset < self.below or offset in self.parts

    def add(self, parts: Iterable[AckedPart]) -> None:
        """Add messages of entries."""
        for part in parts:
            before = self.parts.get(part.offset)
            self.parts[part.offset] = part if before is None else part._replace(bits=before.bits | part.bits)


class PendingAcks:
    """A cursor as its dispatcher sees it while acknowledgements in transactions are pending."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.owners: dict[TransactionId, Acknowledgements] = {}
        self._bits: dict[int, int] = {}
        self._below = 0
        self._withheld: set[int] = set()
        """Open entries with a pending acknowledgement, which the dispatcher skips."""

    def __bool__(self) -> bool:
        """Return whether any are pending."""
        return bool(self.owners)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    # --- changes ---
    def check(
        self, transaction: TransactionId, parts: Iterable[AckedPart], each: Container[int] = ()
    ) -> None:
        """Raise `Refused` TransactionConflict if messages are acknowledged already, or by another one.
        ``each``: offsets of batches whose messages were acknowledged by themselves, so that none of them may
        be; of others, not all of them."""
        own = self.owners.get(transaction, _NONE)
        for offset, bits, _ in parts:
            mine = own.parts.get(offset)
            others = self._bits.get(offset, 0) & ~(0 if mine is None else mine.bits)
            if others & bits or own.below <= offset < self._below:
                raise _conflict(f"another transaction acknowledges messages of the entry at offset {offset}")
            open_bits = self._cursor.batches.get(offset, WHOLE)
            again = bits & ~open_bits if offset in each else not open_bits & bits
            if again or self._cursor.is_acknowledged(offset):
                raise _conflict(f"the messages of the entry at offset {offset} are acknowledged already")

    def check_below(self, transaction: TransactionId, offset: int) -> None:
        """Raise `Refused` TransactionConflict if messages below ``offset`` are acknowledged by another
        transaction, or all are acknowledged already."""
        if offset <= self._cursor.mark:
            raise _conflict(f"the messages below offset {self._cursor.mark} are acknowledged already")
        for other, acks in self.owners.items():
            if other != transaction and (acks.below or any(at < offset for at in acks.parts)):
                raise _conflict(f"transaction {other} acknowledges messages below offset {offset}")

    def add(
        self, transaction: TransactionId, acks: Acknowledgements, parts: Iterable[AckedPart] | None = None
    ) -> None:
        """Take in what a transaction acknowledges, or the ``parts`` that were added to it."""
        self.owners[transaction] = acks
        self._below = max(self._below, acks.below)
        for offset, bits, _ in acks.parts.values() if parts is None else parts:
            self._bits[offset] = self._bits.get(offset, 0) | bits

    def ended(self, transaction: TransactionId) -> set[int]:
        """Drop what a transaction acknowledged; return its entries that were withheld from delivery."""
        ended = self.owners.pop(transaction, _NONE)
        for offset, bits, _ in ended.parts.values():
            left = self._bits.pop(offset, 0) & ~bits  # no other transaction has these
            if left:
                self._bits[offset] = left
        self._below = max((acks.below for acks in self.owners.values()), default=0)
        withheld = self._withheld.intersection(ended.parts)
        self._withheld -= withheld
        return withheld

    # --- queries of the diagnosis ---
    def first_deliverable(self, offset: int) -> int:
        """As `next_open`, without a note that entries were withheld."""
        offset = self._cursor.next_open(max(offset, self._below))
        while offset in self._bits:
            offset = self._cursor.next_open(offset + 1)
        return offset

    @property
    def messages(self) -> int:
        """The messages that are acknowledged in transactions, and not for good."""
        return self._count(self._bits)

    @property
    def messages_withheld(self) -> int:
        """The messages acknowledged cumulatively, and those of other entries that were not delivered."""
        return self._count(dict.fromkeys(self._withheld, WHOLE))

    def _count(self, bits_of: dict[int, int]) -> int:
        cursor, below = self._cursor, self._below
        found = cursor.messages_open(cursor.mark, below) if below > cursor.mark else 0
        for offset, bits in bits_of.items():
            if offset >= below and not cursor.is_acknowledged(offset):
                found += (cursor.open_bits(offset) & bits).bit_count()
        return found

    # --- queries of dispatchers ---
    def is_acknowledged(self, offset: int) -> bool:
        """As `Cursor.is_acknowledged`, like the following ones."""
        return self._cursor.is_acknowledged(offset) or self._is_pending(offset)

    def _is_pending(self, offset: int) -> bool:
        if offset in self._bits:
            self._withheld.add(offset)
            return True
        return offset < self._below

    def next_open(self, offset: int) -> int:
        offset = self._cursor.next_open(max(offset, self._below))
        while self._is_pending(offset):
            offset = self._cursor.next_open(offset + 1)
        return offset

    def open_run(self, offset: int, stop: int) -> int:
        stop = self._cursor.open_run(offset, stop)
        return next((at for at in range(offset, stop) if self._is_pending(at)), stop)


_NONE = Acknowledgements()


def _conflict(why: str) -> Refused:
    return Refused(pb.TransactionConflict, why)
