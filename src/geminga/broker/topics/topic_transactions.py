"""Transactions in one topic: which of its entries belong to open ones, and to aborted ones.

The topic is readable up to the first entry of an open transaction (`ManagedLedger.confirmed`). The entries of
aborted ones stay in the ledgers, are not read (`ManagedLedger.aborted`), and count as acknowledged in every
subscription, so that backlogs, the retention and the end of a topic take no account of them. Their offsets
are stored under ``aborted/<topic>``.
"""

import logging
from collections.abc import Iterable
from itertools import takewhile

from geminga.broker.delivery.consumer import KEY_SHARED, SHARED
from geminga.broker.delivery.cursor import Cursor, bits_from_words
from geminga.broker.delivery.pending_acks import AckedPart, PendingAcks
from geminga.broker.delivery.ranges import RangeSet
from geminga.broker.delivery.subscription import BatchSizes, PersistentSubscription
from geminga.broker.entries.records import RecordReader
from geminga.broker.topics.topic import StoredTopic
from geminga.broker.topics.transactions import TransactionRecord, Transactions, TransactionStatus
from geminga.errors import StoreDamaged
from geminga.ids import to_signed
from geminga.ledger.api import EntryStore, StoreKeys
from geminga.transactions import TransactionId
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.broker")

DELTAS_MAX = 1_000
"""Aborts after which the aborted entries of a topic are written as a whole."""


class TopicTransactions:
    """Transactions in a loaded topic. ``stored`` is the offset behind its last durable entry."""

    __slots__ = ("_deltas", "aborted", "ended", "open", "stored", "topic")

    def __init__(self, topic: StoredTopic, aborted: RangeSet) -> None:
        self.topic = topic
        self.aborted = aborted
        self._deltas = 0
        """Deltas written since the last snapshot of the aborted entries."""
        self.stored = topic.ledger.confirmed
        self.open: dict[TransactionId, list[list[int]]] = {}
        """Entries of open transactions as half-open ranges ``[start, stop]`` of offsets, in order."""
        self.ended = dict.fromkeys((TransactionStatus.COMMITTED, TransactionStatus.ABORTED), 0)
        """Transactions with messages in the topic that have ended since it was loaded."""
        topic.ledger.aborted = aborted

    @property
    def withholds(self) -> bool:
        """Whether the topic has entries of open or aborted transactions, which are not delivered."""
        return bool(self.open or self.aborted)

    # --- entries ---
    def has_entry(self, transaction: TransactionId, offset: int) -> None:
        """Note an entry that was passed to the store."""
        runs = self.open.setdefault(transaction, [])
        if runs and runs[-1][1] == offset:
            runs[-1][1] = offset + 1
        else:
            runs.append([offset, offset + 1])

    def stored_to(self, offset: int) -> None:
        """Note that the entries below ``offset`` are durable; they are readable up to an open transaction."""
        self.stored = offset
        ledger, before = self.topic.ledger, self.topic.ledger.confirmed
        first = next((runs[0][0] for runs in self.open.values()), offset)
        end = ledger.confirmed = max(before, min(offset, first))
        if self.aborted.next_present(before, end) == end:
            return
        for start, stop in list(takewhile(lambda run: run[0] < end, self.aborted.ranges(begin=before))):
            for subscription in list(self.topic.subscriptions.values()):
                subscription.give_up(start, min(stop, end))

    def end_entries(self, transaction: TransactionRecord) -> None:
        """Deliver the entries of a committed transaction, or skip those of an aborted one. Raises
        `StoreError`."""
        runs = self.open.pop(transaction.id, [])
        self.ended[transaction.state] += bool(runs)
        if runs and transaction.state is TransactionStatus.ABORTED:
            added = RangeSet()
            for start, stop in runs:
                self.aborted.add_range(start, stop)
                added.add_range(start, stop)
            self._keys.merge(aborted_key(self.topic.text), _encoded(added))
            self._deltas += 1
            if self._deltas >= DELTAS_MAX:
                self._write_aborted()
        self.stored_to(self.stored)

    def skip_aborted(self, cursor: Cursor) -> None:
        """Acknowledge the readable aborted entries in a cursor that was just placed."""
        was_behind, end = cursor.is_behind, self.topic.ledger.confirmed
        for start, stop in takewhile(lambda run: run[0] < end, self.aborted.ranges(begin=cursor.mark)):
            cursor.acknowledge_run(start, min(stop, end))
        cursor.is_behind = was_behind

    def trimmed(self) -> None:
        """Forget the aborted entries that were deleted with their ledgers. Raises `StoreError`."""
        if not self.aborted.remove_range(0, self.topic.ledger.start):
            return
        if self.aborted:
            self._write_aborted()
        else:
            self._keys.delete(aborted_key(self.topic.text))

    def _write_aborted(self) -> None:
        """Write the aborted entries as a whole."""
        self._keys.put(aborted_key(self.topic.text), _encoded(self.aborted), same=True)
        self._deltas = 0

    # --- acknowledgements ---
    def acknowledge(
        self,
        subscription: PersistentSubscription,
        transaction: TransactionRecord,
        ids: Iterable[pb.MessageIdData],
    ) -> None:
        """Acknowledge messages in an open transaction. Raises `Refused`, and then has accepted none."""
        ledger, parts, each_of = self.topic.ledger, list[AckedPart](), set[int]()
        sizes = BatchSizes(ledger)
        for each in ids:
            offset = ledger.offset(each.ledgerId, each.entryId)
            if offset is not None and offset < ledger.confirmed:
                part = self._part(offset, each, sizes)
                if part is not None:
                    parts.append(part)
                if each.ack_set or each.batch_size > 1:
                    each_of.add(offset)
        pending = _pending_of(subscription)
        pending.check(transaction.id, parts, each_of)
        self._records.has_acks(transaction, self.topic.text, subscription.name, parts)
        self._hold(subscription, transaction, pending, parts)

    def acknowledge_cumulative(
        self,
        subscription: PersistentSubscription,
        transaction: TransactionRecord,
        message_id: pb.MessageIdData,
    ) -> None:
        """Acknowledge everything up to an id in an open transaction. Raises `Refused`."""
        ledger, pending = self.topic.ledger, _pending_of(subscription)
        ledger_id, entry_id = to_signed(message_id.ledgerId), to_signed(message_id.entryId)
        segment = ledger.segment(ledger_id)
        if segment is None or segment.base + entry_id >= ledger.confirmed or entry_id >= segment.entries:
            return
        offset = segment.base + max(entry_id, -1)
        words = message_id.ack_set if entry_id >= 0 else ()
        part = self._part(offset, message_id, BatchSizes(ledger)) if words else None
        below = offset if words else offset + 1
        parts = () if part is None else (part,)
        pending.check(transaction.id, parts)
        if below > subscription.cursor.mark or not parts:
            pending.check_below(transaction.id, below)
            self._records.has_acks_below(transaction, self.topic.text, subscription.name, below)
        if parts:
            self._records.has_acks(transaction, self.topic.text, subscription.name, parts)
        self._hold(subscription, transaction, pending, parts)

    def _part(self, offset: int, message_id: pb.MessageIdData, sizes: BatchSizes) -> AckedPart | None:
        words = message_id.ack_set
        if not words:
            return AckedPart(offset)
        if not self.topic.services.settings.batch_index_ack:
            return None
        messages = sizes.of(offset)
        every = (1 << messages) - 1
        bits = every & ~bits_from_words(words, messages)
        return AckedPart(offset) if bits == every else AckedPart(offset, bits, messages) if bits else None

    def _hold(
        self,
        subscription: PersistentSubscription,
        transaction: TransactionRecord,
        pending: PendingAcks,
        parts: Iterable[AckedPart] | None = None,
    ) -> None:
        acks = transaction.acks_of(self.topic.text, subscription.name)
        pending.add(transaction.id, acks, parts)
        subscription.hold(pending)

    def end_acks(self, transaction: TransactionRecord) -> None:
        """Take over the acknowledgements of a committed transaction into the cursors, and redeliver the
        messages of an aborted one. Raises `StoreError`."""
        for name, acks in transaction.acks.get(self.topic.text, {}).items():
            subscription = self.topic.subscriptions.get(name)
            if subscription is None:
                continue
            pending, withheld = subscription.pending, set[int]()
            if pending is not None:
                withheld = pending.ended(transaction.id)
                subscription.hold(pending or None)
            if transaction.state is TransactionStatus.ABORTED:
                below = range(subscription.cursor.mark, acks.below)
                # Others read from their mark on anyway.
                is_shared = subscription.type in (SHARED, KEY_SHARED)
                subscription.reopen({*acks.parts, *below} if is_shared else acks.parts)
            elif again := withheld.intersection(subscription.take_over(acks)):
                subscription.reopen(again)

    # --- life ---
    @property
    def _keys(self) -> StoreKeys:
        return self.topic.services.store.keys

    @property
    def _records(self) -> Transactions:
        return self.topic.services.transactions

    def recall(self, transactions: Iterable[TransactionRecord]) -> None:
        """Take in what transactions did in the topic before it was loaded."""
        for transaction in transactions:
            self._recall(transaction)
        self.open = dict(sorted(self.open.items(), key=lambda each: each[1]))
        ledger = self.topic.ledger
        ledger.confirmed = next((runs[0][0] for runs in self.open.values()), self.stored)
        for subscription in self.topic.subscriptions.values():
            self.skip_aborted(subscription.cursor)

    def _recall(self, transaction: TransactionRecord) -> None:
        ledger, text = self.topic.ledger, self.topic.text
        runs: list[list[int]] = []
        for ledger_id, first, last in transaction.entries.get(text, ()):
            segment = ledger.segment(ledger_id)
            if segment is not None and first < segment.entries:
                runs.append([segment.base + first, segment.base + min(last + 1, segment.entries)])
        if runs:
            self.open[transaction.id] = runs
        for name in transaction.acks.get(text, ()):
            subscription = self.topic.subscriptions.get(name)
            if subscription is not None:
                self._hold(subscription, transaction, _pending_of(subscription))


def _pending_of(subscription: PersistentSubscription) -> PendingAcks:
    """Return what is acknowledged in transactions; new and empty if nothing is."""
    return subscription.pending or PendingAcks(subscription.cursor)


def recall(topic: StoredTopic) -> TopicTransactions | None:
    """Return the transactions of a topic that is being loaded, None without any."""
    records = topic.services.transactions.of(topic.text)
    aborted = _stored_aborted(topic.services.store, topic.text)
    if not records and not aborted:
        return None
    found = TopicTransactions(topic, aborted)
    found.recall(records)
    return found


def _stored_aborted(store: EntryStore, topic: str) -> RangeSet:
    value, aborted = store.keys.get(aborted_key(topic)), RangeSet()
    what = f"the list of entries of aborted transactions of {topic}"
    lost = value is not None and value.lost is not None
    for part in () if value is None else (value.base, *value.deltas):
        try:
            for start, stop in RangeSet.decode(RecordReader(part, what)).ranges() if part else ():
                aborted.add_range(start, stop)
        except StoreDamaged:
            lost = True
    if lost:
        log.error("%s was damaged in the store: some may be delivered", what)
    return aborted


def _encoded(offsets: RangeSet) -> bytes:
    record = bytearray()
    offsets.encode(record)
    return bytes(record)


def aborted_key(topic: str) -> str:
    return f"aborted/{topic}"
