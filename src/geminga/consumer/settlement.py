"""Settlement: the application's acknowledgements and negative acknowledgements of delivered messages."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from geminga.consumer.acknowledgements import AckTracker
from geminga.consumer.commands import ACK_CUMULATIVE, ACK_INDIVIDUAL, encode_ack
from geminga.consumer.events import AcksSettled, ConsumerEvent
from geminga.consumer.message import (
    ConsumerOrigin,
    EntryAcks,
    EntryKey,
    Message,
    ReceivedEntry,
    key_of,
    origin_of,
    place_of,
)
from geminga.consumer.settings import ConsumerSettings
from geminga.consumer.state import ConsumerState
from geminga.consumer.statistics import ConsumerCounters
from geminga.consumer.unacked_entries import UnackedEntries
from geminga.errors import NotConnected, OperationNotSupported, PulsarException
from geminga.ids import MessageId
from geminga.transactions import TransactionId

AckedEntries = dict[EntryKey, EntryAcks]
"""Entries with acknowledged messages."""


class Settlement:
    """The part of a `ConsumerCore` that notes what the application did with its messages."""

    acks: AckTracker
    awaited_acks: dict[int, Any]
    """Tokens of acknowledgements in transactions, by the request ids of their ACKs."""
    consumer_id: int
    counted: ConsumerCounters
    events: list[ConsumerEvent]
    new_request_id: Callable[[], int] | None
    origin: ConsumerOrigin
    output: list[bytes]
    settings: ConsumerSettings
    state: ConsumerState
    topic: str
    unsettled: UnackedEntries

    def _of_this_cluster(self, messages: Sequence[Message[Any]]) -> Sequence[Message[Any]]:
        """Return the messages of the cluster in use."""
        origin = self.origin
        return messages if not origin.cluster else [m for m in messages if origin_of(m) is origin]

    def taken(self, messages: Sequence[Message[Any]], now: float) -> None:
        """Start the acknowledgement time-out of messages handed to the application."""
        self.unsettled.ack_timeout.messages_taken(self._of_this_cluster(messages), now)

    def put_back(self, messages: Sequence[Message[Any]]) -> None:
        """Stop the acknowledgement time-out of `taken` messages that were returned to the queue."""
        self.unsettled.ack_timeout.put_back(self._of_this_cluster(messages))

    def acknowledge_messages(self, messages: Sequence[Message[Any]], now: float) -> None:
        """Acknowledge messages of one origin individually; send them when their group is complete."""
        if messages and origin_of(messages[0]) is not self.origin:
            for entry, index in map(place_of, messages):
                self.acknowledge_foreign(entry, (index,), now)
            return
        self.counted.acknowledged += len(messages)
        self.unsettled.settled(self.acks.acknowledge_messages(messages, now))

    def acknowledge_entries(self, entries: Sequence[ReceivedEntry], now: float) -> None:
        """Acknowledge whole entries that were received here."""
        if self.origin.cluster:
            entries = [entry for entry in entries if entry.origin is self.origin]
        self.counted.acknowledged += sum(entry.count for entry in entries)
        self.unsettled.settled(self.acks.acknowledge_entries(entries, now))

    def acknowledge_foreign(self, entry: Any, indexes: Sequence[Any], now: float) -> None:
        """Acknowledge messages individually that another consumer of the topic received."""
        if entry.origin.cluster == self.origin.cluster:
            self.counted.acknowledged += len(indexes)
            self.unsettled.settled(self.acks.acknowledge_foreign(entry, indexes, now))

    def acknowledge_id(self, message_id: MessageId, now: float) -> None:
        """Acknowledge a message individually by id."""
        if message_id.cluster != self.origin.cluster:
            return
        self.counted.acknowledged += 1
        self.unsettled.settled(self.acks.acknowledge_id(message_id, now))

    def acknowledge_indexes(self, key: EntryKey, size: int, indexes: Sequence[int], now: float) -> None:
        """Acknowledge some messages of a batch of ``size`` individually."""
        if self.origin.cluster and self.acks.parts.batches.get(key) is None:
            return  # the key alone does not identify its cluster
        self.counted.acknowledged += len(indexes)
        self.unsettled.settled(self.acks.acknowledge_indexes(key, size, indexes, now))

    def acknowledge_through(self, messages: Sequence[Message[Any]], now: float) -> None:
        """Acknowledge cumulatively, through the last of messages of one origin, in any order."""
        message = max(messages, key=Message.message_id)
        entry, index = place_of(message)
        if entry.origin is not self.origin:
            self.acknowledge_id_through(message.message_id(), now)
            return
        self.counted.acknowledged += len(messages)
        done = self.acks.acknowledge_through(key_of(message), index, entry.acks, now)
        self.unsettled.settled_through(done)

    def acknowledge_id_through(self, message_id: MessageId, now: float) -> None:
        """Acknowledge cumulatively by id."""
        if message_id.cluster != self.origin.cluster:
            return
        self.counted.acknowledged += 1
        self.unsettled.settled_through(self.acks.acknowledge_id_through(message_id, now))

    # --- in transactions -------------------------------------------------------------------------

    def acknowledge_in(
        self,
        transaction: TransactionId,
        acked: AckedEntries,
        items: Sequence[Message[Any] | MessageId],
        token: Any,
        *,
        through: bool,
    ) -> None:
        """Acknowledge messages in a transaction, which knows this subscription; with ``through`` everything
        up to the only one. ``acked`` are the entries acknowledged in it before. `AcksSettled` returns
        ``token`` at the receipt, or with an error.

        Other acknowledgements do not know of these, which an abort takes back. Each is sent once: the broker
        refuses a repetition, also after a reconnect, as a conflict.
        """
        try:
            if self.state is not ConsumerState.READY or self.new_request_id is None:
                raise NotConnected(
                    f"acknowledging needs a connection: the consumer of {self.topic} is {self.state.name}"
                )
            places = [self._places_of(item) for item in items]
        except PulsarException as error:
            self.events.append(AcksSettled([token], error))
            return
        sent: AckedEntries = {}
        for keys, index, size in places:
            if through:
                sent[keys[-1]] = EntryAcks(size)
                before = keys[-1][0], keys[-1][1] - (not sent[keys[-1]].settle_through(index))
                self.unsettled.settled_through(before)
                continue
            for key in keys:
                entry = acked.setdefault(key, EntryAcks(size))
                of_batch = len(entry.flags)
                for each in (index,) if size > 1 else range(of_batch):
                    if entry.flags[each : each + 1] == b"\1":
                        sent.setdefault(key, EntryAcks(of_batch)).settle(each)
                        if entry.settle(each):
                            self.unsettled.settled((key,))
        if not sent:
            self.events.append(AcksSettled([token]))
            return
        self.counted.acknowledged += len(items)
        request_id = self.new_request_id()
        self.awaited_acks[request_id] = token
        frame = encode_ack(
            self.consumer_id, ACK_CUMULATIVE if through else ACK_INDIVIDUAL, sent,
            {key: acks.ack_set() for key, acks in sent.items() if acks.remaining}, request_id=request_id,
            transaction=transaction,
            batch_sizes={key: len(acks.flags) for key, acks in sent.items() if len(acks.flags) > 1},
        )  # fmt: skip
        self.output.append(frame)

    def _places_of(self, item: Message[Any] | MessageId) -> tuple[Sequence[EntryKey], int, int]:
        """Return the entries of a message, its index in a batch, and the batch's size."""
        chunk_ids = None
        if isinstance(item, Message):
            chunk_ids, item = place_of(item)[0].chunk_ids, item.message_id()
        if item.cluster != self.origin.cluster:
            raise OperationNotSupported(f"{item} was received from another cluster")
        if chunk_ids is not None:
            return chunk_ids, 0, 1
        key = (item.ledger_id, item.entry_id)
        if 0 <= item.batch_index < item.batch_size:
            return (key,), item.batch_index, item.batch_size
        return self.acks.parts.entries_of(key), 0, 1

    def take_awaited(self) -> list[Any]:
        """Return the tokens of all acknowledgements in transactions that have no receipt, which they do not
        get any more."""
        tokens = [*self.awaited_acks.values()]
        self.awaited_acks.clear()
        return tokens

    def negative_acknowledge(self, messages: Sequence[Message[Any]], now: float) -> None:
        """Have the messages' entries redelivered after the delay."""
        cluster = self.origin.cluster
        here = [message for message in messages if origin_of(message).cluster == cluster]
        for redelivery_count, run in groupby(here, Message.redelivery_count):
            keys: list[EntryKey] = []
            for message in run:
                keys += place_of(message)[0].chunk_ids or (key_of(message),)
                self.counted.refused += 1
            self._negative(keys, redelivery_count, now)

    def negative_acknowledge_id(self, message_id: MessageId, now: float, redelivery_count: int = 0) -> None:
        """`negative_acknowledge` by id, which does not have the redelivery count."""
        if message_id.cluster != self.origin.cluster:
            return
        keys = self.acks.parts.entries_of((message_id.ledger_id, message_id.entry_id))
        self.counted.refused += 1
        self._negative(keys, redelivery_count, now)

    def _negative(self, keys: Sequence[EntryKey], redelivery_count: int, now: float) -> None:
        if not self.origin.keeps:
            return
        backoff = self.settings.negative_ack_redelivery_backoff
        delay = self.settings.negative_ack_redelivery_delay_ms / 1000
        if backoff is not None:
            delay = backoff.delay_seconds(redelivery_count)
        self.unsettled.refused(keys, delay, now)
