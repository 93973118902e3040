"""The broker's side of one producer, and the names of producers that have none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from geminga.broker.delivery.limits import RateLimit
from geminga.broker.peer import Peer
from geminga.broker.rates import Rates
from geminga.errors import StoreError
from geminga.ledger.api import Done, EntryStore
from geminga.wire.frames import SendFrame, encode_send_receipt
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.send_runs import SendRun, encode_send_receipts


class PublishedTopic(Protocol):
    """What a producer sees of its topic."""

    text: str

    def publish(self, producer: Producer, frame: SendFrame, counted: int | None = None) -> None:
        """Take an entry in; its receipt or error is written now or later.

        ``counted``: as how many messages it counts in backlogs, if that was looked up.
        """

    def publish_run(self, producer: Producer, run: SendRun) -> None:
        """The same for entries that follow each other."""

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest stored sequence id of a producer name; -1 where nobody keeps count."""

    def remove_producer(self, producer: Producer) -> None:
        """A producer is gone; the next one that waits for exclusive access gets it."""


class Producer:
    """``pending`` counts entries that were taken in and are not reported yet."""

    __slots__ = (
        "access_mode",
        "bytes_in",
        "chunked",
        "connected_since_ms",
        "encrypted",
        "entries_in",
        "epoch",
        "messages_in",
        "metadata",
        "name",
        "on_drained",
        "peer",
        "pending",
        "producer_id",
        "rates",
        "removed",
        "schema_version",
        "topic",
        "topic_epoch",
        "user_provided_name",
    )

    def __init__(
        self,
        peer: Peer,
        topic: PublishedTopic,
        *,
        producer_id: int,
        name: str,
        epoch: int,
        user_provided_name: bool,
        access_mode: int,
        topic_epoch: int | None,
        encrypted: bool,
        metadata: Mapping[str, str],
        now: float,
        now_ms: int,
    ) -> None:
        self.peer = peer
        self.topic = topic
        self.producer_id = producer_id
        self.name = name
        self.epoch = epoch
        self.user_provided_name = user_provided_name
        self.access_mode = access_mode
        self.topic_epoch = topic_epoch
        self.encrypted = encrypted
        self.metadata = metadata
        self.connected_since_ms = now_ms
        self.schema_version = b""
        self.pending = 0
        self.removed = False
        self.on_drained: Callable[[], None] | None = None
        self.messages_in = 0
        self.entries_in = 0
        self.bytes_in = 0
        self.chunked = False
        self.rates = Rates(now, 2)

    def __repr__(self) -> str:
        return f"Producer({self.name!r}, id {self.producer_id}, {self.peer.address})"

    @property
    def access_mode_name(self) -> str:
        return pb.ProducerAccessMode.Name(self.access_mode)

    def taken(self, messages: int, size: int, *, chunk: bool, entries: int = 1) -> None:
        """An entry, or a run of them, was handed to the store."""
        if chunk:
            self.chunked = True
        self.pending += entries
        self.messages_in += messages
        self.entries_in += entries
        self.bytes_in += size
        self.peer.publish_started(size)

    def receipt(self, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """Write a SEND_RECEIPT; -1:-1 says that the entry was a duplicate."""
        self.peer.output.write(
            encode_send_receipt(
                self.producer_id, sequence_id, highest_sequence_id or None, ledger_id, entry_id
            )
        )

    def receipt_run(self, sequence_ids: Sequence[int], ledger_id: int, first_entry_id: int) -> None:
        """Write the SEND_RECEIPTs of entries that follow each other."""
        self.peer.output.write(
            encode_send_receipts(self.producer_id, sequence_ids, ledger_id, first_entry_id)
        )

    def error(self, sequence_id: int, code: int, reason: str) -> None:
        self.peer.send_error(self.producer_id, sequence_id, code, reason)

    def settled(self, size: int, entries: int = 1) -> None:
        """What was `taken` together has its receipts or its errors."""
        self.pending -= entries
        self.peer.publish_finished(size)
        if not self.pending and self.on_drained is not None:
            drained, self.on_drained = self.on_drained, None
            drained()

    def disconnect(self) -> None:
        """The broker closes the producer: its client looks the topic up again."""
        self.peer.producer_closed(self.producer_id, self)
        self.topic.remove_producer(self)

    def hold(self) -> None:
        """What it sends is not taken in now. Its client keeps that, comes back and is told why.

        What was taken in before is receipted first: it must not be sent again. What comes meanwhile is left
        to the client too, or it would be stored before what came earlier.
        """
        if isinstance(self.topic, _Closing):
            return
        self.topic = _Closing(self.topic)
        if self.pending:
            self.on_drained = self.disconnect
        else:
            self.disconnect()

    def fenced(self) -> None:
        """Another producer has taken the topic for itself: the client comes back and hears so."""
        self.peer.producer_closed(self.producer_id, self)

    def lost(self) -> None:
        """The producer was replaced; its client is not told."""
        self.peer.producer_lost(self.producer_id, self)


def slow_down(
    producer: Producer, limits: tuple[RateLimit, ...], messages: int, size: int, now: float
) -> None:
    """An entry is taken in: its producer's connection is not read from while that is above a limit."""
    for limit in limits:
        limit.take(messages, size, now)
        if limit.check(now) > 0:
            producer.peer.slow_down(limit)


class _Closing:
    """The topic of a producer that is about to be closed: it takes nothing in."""

    __slots__ = ("_topic", "text")

    def __init__(self, topic: PublishedTopic) -> None:
        self._topic = topic
        self.text = topic.text

    def publish(self, producer: Producer, frame: SendFrame, counted: int | None = None) -> None:
        """The client still has it."""

    def publish_run(self, producer: Producer, run: SendRun) -> None:
        """The client still has them."""

    def last_sequence_id(self, producer_name: str) -> int:
        return self._topic.last_sequence_id(producer_name)

    def remove_producer(self, producer: Producer) -> None:
        self._topic.remove_producer(producer)


STARTS_SKIPPED = 1_000_000
"""After damage took the number of starts it goes on so much higher: no broker has started as often."""


class ProducerNames:
    """``<cluster>-<n>-<counter>``: n counts the starts of this store, so names are never reused.

    A name may be told when that is durable (`when_durable`): after a crash the next start would give it to
    somebody else, and two of one name are told apart by nothing, deduplication included.
    """

    def __init__(self, store: EntryStore, cluster: str) -> None:
        self._store = store
        self._cluster = cluster
        self._start_number: int | None = None
        self._count = 0
        self._waiting: list[Done] | None = None
        """Who waits for the number; None when nobody has to."""

    def when_durable(self, then: Done) -> None:
        """``then`` is called when names that were made before may be told: at once if they may."""
        if self._waiting is None:
            then(None)
        else:
            self._waiting.append(then)

    def _stored(self, error: StoreError | None) -> None:
        waiting, self._waiting = self._waiting or (), None
        if error is not None:
            self._start_number = None  # the next name begins anew
        for then in waiting:
            then(error)

    def new(self) -> str:
        """A name that nobody has had. Raises `StoreError`."""
        if self._start_number is None:
            value = self._store.get("broker/starts")
            self._start_number = json.loads(value.base or b"0") if value is not None else 0
            if value is not None and value.lost is not None:
                self._start_number += STARTS_SKIPPED
            self._waiting = []
            try:
                self._store.put("broker/starts", json.dumps(self._start_number + 1).encode(), self._stored)
            except StoreError as error:
                self._stored(error)
                raise
        name = f"{self._cluster}-{self._start_number}-{self._count}"
        self._count += 1
        return name
