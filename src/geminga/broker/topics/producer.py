"""Broker's side of a producer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Protocol

from geminga.broker.delivery.limits import RateLimit
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.runtime.peer import Peer
from geminga.broker.runtime.rates import Rates
from geminga.broker.topics.transactions import TransactionRecord
from geminga.wire.frames import SendFrame, encode_send_receipt
from geminga.wire.send_runs import SendRun, encode_send_receipts


class PublishedTopic(Protocol):
    """Interface of a topic for its producers."""

    text: str
    policies: Policies

    def publish(self, producer: Producer, frame: SendFrame, counted: int | None = None) -> None:
        """Store an entry; its receipt or error is sent now or later.

        ``counted``: its number of messages in backlogs, if that was parsed.
        """

    def publish_in(
        self, transaction: TransactionRecord, producer: Producer, frame: SendFrame, counted: int | None
    ) -> None:
        """Store an entry of an open transaction, as `publish` does. Raises `Refused`, `StoreError`."""

    def publish_run(self, producer: Producer, run: SendRun) -> None:
        """Store consecutive entries."""

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the highest stored sequence id of a producer name; -1 without deduplication."""

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer; the next one that waits for exclusive access gets it."""


@dataclass(slots=True, eq=False, repr=False)
class Producer:
    """Producer of a topic. ``pending`` counts entries that were stored and not confirmed yet; ``now``: time
    in monotonic seconds."""

    peer: Peer
    topic: PublishedTopic
    _: KW_ONLY
    producer_id: int
    name: str
    epoch: int
    user_provided_name: bool
    access_mode: int
    topic_epoch: int | None
    encrypted: bool
    metadata: Mapping[str, str]
    now: InitVar[float]
    connected_since_ms: int
    schema_version: bytes = b""
    pending: int = 0
    removed: bool = False
    on_drained: Callable[[], None] | None = None
    messages_in: int = 0
    entries_in: int = 0
    bytes_in: int = 0
    chunked: bool = False
    is_closing: bool = False
    """Whether further entries are ignored, because its client keeps them: see `hold`."""
    rates: Rates = field(init=False)

    def __post_init__(self, now: float) -> None:
        self.rates = Rates(now, 2)

    def __repr__(self) -> str:
        return f"Producer({self.name!r}, id {self.producer_id}, {self.peer.address})"

    def taken(self, messages: int, size: int, *, chunk: bool, entries: int = 1) -> None:
        """Count an entry, or a run of them, that was passed to the store."""
        if chunk:
            self.chunked = True
        self.pending += entries
        self.messages_in += messages
        self.entries_in += entries
        self.bytes_in += size
        self.peer.publish_started(size)

    def receipt(self, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """Send a SEND_RECEIPT; -1:-1 for a duplicate."""
        self.peer.output.write(
            encode_send_receipt(
                self.producer_id, sequence_id, highest_sequence_id or None, ledger_id, entry_id
            )
        )

    def receipt_run(self, sequence_ids: range, ledger_id: int, first_entry_id: int) -> None:
        """Send the SEND_RECEIPTs of consecutive entries."""
        self.peer.output.write(
            encode_send_receipts(self.producer_id, sequence_ids, ledger_id, first_entry_id)
        )

    def error(self, sequence_id: int, code: int, reason: str) -> None:
        self.peer.send_error(self.producer_id, sequence_id, code, reason)

    def send_retriable_error(self, sequence_id: int, code: int, reason: str) -> None:
        """Send an error after which the client repeats the entry. With deduplication, entries behind it are
        ignored: if they were stored, the repeated one would be dropped as a duplicate."""
        self.error(sequence_id, code, reason)
        if self.topic.policies.deduplication:
            self.hold()

    def settled(self, size: int, entries: int = 1) -> None:
        """Count entries whose receipts or errors were sent."""
        self.pending -= entries
        self.peer.publish_finished(size)
        if not self.pending and self.on_drained is not None:
            drained, self.on_drained = self.on_drained, None
            drained()

    def disconnect(self) -> None:
        """Close the producer from the broker's side: its client looks the topic up again."""
        self.peer.producer_closed(self.producer_id, self)
        self.topic.remove_producer(self)

    def hold(self) -> None:
        """Stop taking entries. The client keeps them, reconnects and receives the reason.

        Pending entries are receipted first: they must not be sent again. Further entries are ignored, because
        they would be stored before the earlier ones that the client resends. Not for a producer that its
        client is closing: the client waits for SUCCESS.
        """
        if self.is_closing or self.on_drained is not None:
            return
        self.is_closing = True
        if self.pending:
            self.on_drained = self.disconnect
        else:
            self.disconnect()

    def fenced(self) -> None:
        """Close a producer that an exclusive one replaced: the client reconnects and is refused."""
        self.peer.producer_closed(self.producer_id, self)

    def lost(self) -> None:
        """Drop a replaced producer without notifying its client."""
        self.peer.producer_lost(self.producer_id, self)


def slow_down(
    producer: Producer, limits: tuple[RateLimit, ...], messages: int, size: int, now: float
) -> None:
    """Take tokens for an entry, and pause reading from the connection while a rate limit is exceeded."""
    for limit in limits:
        limit.take(messages, size, now)
        if limit.check(now) > 0:
            producer.peer.slow_down(limit)
