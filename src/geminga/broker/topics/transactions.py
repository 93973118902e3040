"""Records of transactions in the store: one key for each, until its end has taken effect everywhere.

The key's value is the transaction's header; every message and acknowledgement of the transaction adds an
operation to it, and so does its end. The store writes everything to one log, in order, so:

* a message is named in the record before its entry is in the log. After a crash each stored entry of a
  transaction is known as such, and a named entry that was not stored is ignored: its id is not used again;
* the one write of the state COMMITTED or ABORTED decides, for all topics and subscriptions. What follows from
  it is repeated after a crash, until the record is deleted (`transaction_coordinator`).
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from geminga.broker.delivery.pending_acks import WHOLE, AckedPart, Acknowledgements
from geminga.ledger.api import Done, EntryStore, StoredValue
from geminga.transactions import TransactionId

log = logging.getLogger("geminga.broker")

COORDINATOR = 0
"""Number of this broker's only coordinator."""
IDS_RESERVED = 1_000
"""Ids that one write reserves, so that none is used again after a restart."""
OPERATIONS_REWRITTEN = 4_096
"""Operations after which a record is written as a whole, with its entries as ranges."""
ANNOUNCED_MAX = 1_000
_KEY = "transaction/"
_NEXT = "transactions"
_ENTRIES, _TAKEN_BACK, _ACKS, _BELOW, _STATE, _FORGET = "e", "t", "a", "b", "s", "f"

Operation = list[Any]


class TransactionStatus(StrEnum):
    """State of a transaction, by Apache Pulsar's names."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    """The state COMMITTED is being written."""
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"


@dataclass(slots=True, eq=False)
class TransactionRecord:
    """One transaction. Times are milliseconds since 1970."""

    id: TransactionId
    owner: str
    """Role of the client that began it; empty without authorization."""
    began_ms: int
    timeout_ms: int
    state: TransactionStatus = TransactionStatus.OPEN
    entries: dict[str, list[list[int]]] = field(default_factory=dict)
    """Its messages, by topic: ledger, first and last entry of each run."""
    acks: dict[str, dict[str, Acknowledgements]] = field(default_factory=dict)
    """Its acknowledgements, by topic and by subscription."""
    announced: dict[tuple[str, str], None] = field(default_factory=dict)
    """Topics, as the client names them, and subscriptions (empty: none) that are to take part: for
    administrators only, in memory, at most `ANNOUNCED_MAX`."""
    operations: int = 0
    """Operations in the store since the record was written as a whole."""

    @property
    def key(self) -> str:
        return f"{_KEY}{self.id.least_bits:020}"

    @property
    def is_open(self) -> bool:
        return self.state is TransactionStatus.OPEN

    @property
    def topics(self) -> list[str]:
        """The topics that take part."""
        return list(dict.fromkeys((*self.entries, *self.acks)))

    def announce(self, topic: str, subscription: str = "") -> None:
        """Remember a topic or a subscription that the client adds before it uses it."""
        if len(self.announced) < ANNOUNCED_MAX:
            self.announced[topic, subscription] = None

    def encode(self) -> bytes:
        """Return the record as a whole."""
        header = {"owner": self.owner, "began_ms": self.began_ms, "timeout_ms": self.timeout_ms}
        return _encode([header, *self._all_operations()])

    def _all_operations(self) -> Iterator[Operation]:
        for topic, runs in self.entries.items():
            yield from ([_ENTRIES, topic, *run] for run in runs)
        for topic, subscriptions in self.acks.items():
            for subscription, acks in subscriptions.items():
                if acks.below:
                    yield [_BELOW, topic, subscription, acks.below]
                yield [_ACKS, topic, subscription, _encoded_parts(acks.parts.values())]
        if self.state in (TransactionStatus.COMMITTED, TransactionStatus.ABORTED):
            yield [_STATE, self.state]

    def apply(self, operation: Operation) -> None:
        """Apply an operation in memory."""
        match operation:
            case [kind, topic, ledger, first, last] if kind == _ENTRIES:
                runs = self.entries.setdefault(topic, [])
                if runs and runs[-1][0] == ledger and runs[-1][2] + 1 == first:
                    runs[-1][2] = last
                else:
                    runs.append([ledger, first, last])
            case [kind, topic, ledger, entry] if kind == _TAKEN_BACK:
                runs = self.entries.get(topic, [])
                if runs and runs[-1][0] == ledger and runs[-1][2] == entry:
                    runs[-1][2] -= 1
                    if runs[-1][2] < runs[-1][1]:
                        runs.pop()
            case [kind, topic, subscription, parts] if kind == _ACKS:
                self.acks_of(topic, subscription).add(_decoded_part(*part) for part in parts)
            case [kind, topic, subscription, below] if kind == _BELOW:
                acks = self.acks_of(topic, subscription)
                acks.below = max(acks.below, below)
            case [kind, topic, subscription] if kind == _FORGET:
                if subscription:
                    self.acks.get(topic, {}).pop(subscription, None)
                else:
                    self.entries.pop(topic, None)
                    self.acks.pop(topic, None)
            case [kind, state] if kind == _STATE:
                self.state = TransactionStatus(state)

    def acks_of(self, topic: str, subscription: str) -> Acknowledgements:
        """Return the acknowledgements in a subscription, for changes."""
        return self.acks.setdefault(topic, {}).setdefault(subscription, Acknowledgements())


class Transactions:
    """The transactions that are open, or whose end has not taken effect everywhere."""

    def __init__(self, store: EntryStore) -> None:
        self._keys = store.keys
        self.by_id: dict[TransactionId, TransactionRecord] = {}
        for key, value in self._keys.scan(_KEY):
            found = _decode(TransactionId(COORDINATOR, int(key[len(_KEY) :])), value)
            self.by_id[found.id] = found
        reserved = self._keys.get(_NEXT)
        last = max((each.least_bits for each in self.by_id), default=0)
        self._next = self._reserved = max(int(reserved.base or b"0") if reserved else 0, last) + 1

    def begin(self, owner: str, now_ms: int, timeout_ms: int, done: Done) -> TransactionRecord:
        """Begin a transaction; ``done`` is called when it is durable. Raises `StoreError`."""
        if self._next >= self._reserved:
            self._keys.put(_NEXT, b"%d" % (self._next + IDS_RESERVED))
            self._reserved = self._next + IDS_RESERVED
        transaction = TransactionRecord(TransactionId(COORDINATOR, self._next), owner, now_ms, timeout_ms)
        self._keys.put(transaction.key, transaction.encode(), done)
        self._next += 1
        self.by_id[transaction.id] = transaction
        return transaction

    @property
    def last_id(self) -> int:
        """The number of the newest transaction."""
        return self._next - 1

    def of(self, topic: str) -> list[TransactionRecord]:
        """Return the transactions in which a topic takes part."""
        return [each for each in self.by_id.values() if topic in each.entries or topic in each.acks]

    # --- operations, each in the store before it takes effect in memory ---
    def has_entry(self, transaction: TransactionRecord, topic: str, ledger_id: int, entry_id: int) -> None:
        """Record an entry before it is stored. Raises `StoreError`."""
        self._note(transaction, [_ENTRIES, topic, ledger_id, entry_id, entry_id])

    def take_back(self, transaction: TransactionRecord, topic: str, ledger_id: int, entry_id: int) -> None:
        """Remove a recorded entry, which was not stored. Raises `StoreError`."""
        self._note(transaction, [_TAKEN_BACK, topic, ledger_id, entry_id])

    def has_acks(
        self, transaction: TransactionRecord, topic: str, subscription: str, parts: Sequence[AckedPart]
    ) -> None:
        """Record acknowledged messages. Raises `StoreError`."""
        self._note(transaction, [_ACKS, topic, subscription, _encoded_parts(parts)])

    def has_acks_below(
        self, transaction: TransactionRecord, topic: str, subscription: str, below: int
    ) -> None:
        """Record a cumulative acknowledgement. Raises `StoreError`."""
        self._note(transaction, [_BELOW, topic, subscription, below])

    def end(self, transaction: TransactionRecord, state: TransactionStatus, done: Done) -> None:
        """Write the state that decides, COMMITTED or ABORTED; the caller sets it in memory when ``done``
        reports that it is durable. Raises `StoreError`."""
        self._keys.merge(transaction.key, _encode([[_STATE, state]]), done)

    def forget(self, topic: str, subscription: str = "") -> None:
        """Remove a deleted topic or subscription from all transactions. Raises `StoreError`."""
        for each in self.of(topic):
            self.leave(each, topic, subscription)

    def leave(self, transaction: TransactionRecord, topic: str, subscription: str = "") -> None:
        """Remove a topic, or one of its subscriptions, from a transaction. Raises `StoreError`."""
        self._note(transaction, [_FORGET, topic, subscription])

    def settled(self, transaction: TransactionRecord) -> None:
        """Delete the record of a transaction whose end has taken effect everywhere. Raises `StoreError`."""
        self._keys.delete(transaction.key)
        del self.by_id[transaction.id]

    def when_durable(self, transaction: TransactionRecord, done: Done) -> None:
        """Call ``done`` when all operations so far are durable. Raises `StoreError`."""
        self._keys.merge(transaction.key, b"", done)

    def _note(self, transaction: TransactionRecord, operation: Operation) -> None:
        self._keys.merge(transaction.key, _encode([operation]))
        transaction.apply(operation)
        transaction.operations += 1
        if transaction.operations >= OPERATIONS_REWRITTEN and transaction.is_open:
            self._keys.put(transaction.key, transaction.encode(), same=True)
            transaction.operations = 0


def _encoded_parts(parts: Iterable[AckedPart]) -> list[list[Any]]:
    """Return parts for JSON: bits in hexadecimal, since Python writes no number of over 4,300 digits."""
    return [[at] if bits == WHOLE else [at, f"{bits:x}", messages] for at, bits, messages in parts]


def _decoded_part(offset: int, bits: str = "", messages: int = 0) -> AckedPart:
    return AckedPart(offset, int(bits, 16) if bits else WHOLE, messages)


def _encode(items: list[Any]) -> bytes:
    return json.dumps(items, separators=(",", ":")).encode()


def _decode(transaction_id: TransactionId, value: StoredValue) -> TransactionRecord:
    """Return a transaction from its record. One that lost its header to damage is aborted at its time."""
    found = TransactionRecord(transaction_id, "", 0, 0)
    found.operations = len(value.deltas)
    lost = value.lost is not None
    for part in (value.base, *value.deltas):
        try:
            items = json.loads(part) if part else []
            for item in items:
                if isinstance(item, dict):
                    found.owner = str(item["owner"])
                    found.began_ms, found.timeout_ms = int(item["began_ms"]), int(item["timeout_ms"])
                else:
                    found.apply(item)
        except (ValueError, KeyError, TypeError):
            lost = True
    if lost:
        log.error(
            "transaction %s lost operations to damage in the store: some of its messages may be delivered "
            "although it is aborted, and some of its acknowledgements may have no effect",
            transaction_id,
        )
    return found
