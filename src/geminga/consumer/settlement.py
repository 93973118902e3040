"""Settlement: the application's acknowledgements and negative acknowledgements of delivered messages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from geminga.consumer.acknowledgements import AckTracker
from geminga.consumer.message import (
    ConsumerOrigin,
    EntryKey,
    Message,
    ReceivedEntry,
    key_of,
    origin_of,
    place_of,
)
from geminga.consumer.settings import ConsumerSettings
from geminga.consumer.statistics import ConsumerCounters
from geminga.consumer.unacked_entries import UnackedEntries
from geminga.ids import MessageId


class Settlement:
    """The part of a `ConsumerCore` that notes what the application did with its messages."""

    acks: AckTracker
    counted: ConsumerCounters
    origin: ConsumerOrigin
    settings: ConsumerSettings
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
