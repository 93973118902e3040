"""Broker's side of a consumer: its permits, pending entries and counters.

`Subscription` is the interface of subscriptions for the commands of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Protocol

from geminga.broker.runtime.cooperative import CooperativeScheduler, Job
from geminga.broker.runtime.peer import Peer, PeerOutput
from geminga.broker.runtime.rates import Rates
from geminga.ledger.api import Buffer, Done
from geminga.wire.frames import encode_message, encode_messages
from geminga.wire.proto import pulsar_wire_pb2 as pb

EXCLUSIVE = pb.CommandSubscribe.Exclusive
SHARED = pb.CommandSubscribe.Shared
FAILOVER = pb.CommandSubscribe.Failover
KEY_SHARED = pb.CommandSubscribe.Key_Shared
PERMITS_MAX = (1 << 31) - 1
"""Upper bound of a consumer's permits, however many FLOWs it sends."""
CLOSED_AT_ONCE_MAX = 1_000
"""Consumers whose clients are notified of their end in one step."""


def type_name(number: int) -> str:
    """Return a subscription type as Pulsar spells it."""
    return pb.CommandSubscribe.SubType.Name(number)


@dataclass(frozen=True, slots=True)
class LastMessage:
    """End of a topic: its newest durable entry (-1:-1 if empty), and the mark-delete position."""

    position: tuple[int, int]
    batch_index: int
    mark_delete_position: tuple[int, int]


class Subscription(Protocol):
    """Interface of persistent and non-persistent subscriptions for commands."""

    name: str
    partition: int
    type: int | None
    messages_out_gone: int
    bytes_out_gone: int

    @property
    def topic_text(self) -> str:
        """The topic's full name."""

    @property
    def consumers(self) -> Collection[Consumer]:
        """The connected consumers."""

    @property
    def replicated(self) -> bool:
        """Whether the client requested replication of the subscription; only stored and shown."""

    @property
    def durable(self) -> bool:
        """Whether the subscription remains when no consumer is connected."""

    @property
    def backlog(self) -> int:
        """Number of unacknowledged entries."""

    def ack_holes(self, now: float) -> int:
        """Return the number of runs of open messages before an acknowledged one; recounted once a second."""

    # --- consumers ---
    def add(self, consumer: Consumer) -> None:
        """Attach a consumer; raises `Refused`."""

    def started(self, consumer: Consumer) -> None:
        """Send ACTIVE_CONSUMER_CHANGE from now on: the consumer's SUCCESS was sent."""

    def remove(self, consumer: Consumer) -> None:
        """Detach a consumer; no effect if it is not attached."""

    def disconnect_all(self) -> None:
        """Send CLOSE_CONSUMER to every consumer."""

    # --- the flow of messages ---
    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add permits."""

    def writable_again(self, consumer: Consumer) -> None:
        """Record that a consumer's connection takes more bytes; `dispatch` follows."""

    def dispatch(self) -> None:
        """Send the entries that consumers can take now."""

    def acknowledge(self, consumer: Consumer | None, ids: Iterable[pb.MessageIdData]) -> None:
        """Acknowledge individual ids. Raises `Refused` if some were not accepted."""

    def acknowledge_one(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Acknowledge one whole entry."""

    def acknowledge_cumulative(self, consumer: Consumer | None, message_id: pb.MessageIdData) -> None:
        """Acknowledge everything up to an id."""

    def redeliver(self, consumer: Consumer, ids: Sequence[pb.MessageIdData], epoch: int | None) -> None:
        """Redeliver ids (negative acknowledgement), or without ids everything that the consumer holds."""

    def when_durable(self, done: Done) -> None:
        """Call ``done`` when everything acknowledged so far is durable."""

    # --- as a whole ---
    def seek(self, target: pb.CommandSeek, done: Done) -> None:
        """Move to a message id or a publish time. Raises `Refused` or `StoreError`."""

    def last_message(self, ready: Done, *, compacted: bool = False) -> LastMessage | None:
        """Return the end of the topic; None while it is read, after which ``ready`` is called.

        ``compacted``: the end for a reader of compacted data. Raises `Refused` or `StoreError`.
        """

    def delete(self, done: Done) -> None:
        """Remove the subscription; its consumers are disconnected."""


@dataclass(slots=True, eq=False, repr=False)
class Consumer:
    """Consumer of a subscription. ``permits`` counts messages; below 0 after a batch larger than the permits.

    ``pending`` maps, for Shared and Key_Shared, the offset of each entry that was sent and is not
    acknowledged to the number of its open messages; ``unacked_messages`` is their sum. ``now``: time in
    monotonic seconds. ``read_compacted``: read the newest message of each key below the compaction horizon.
    """

    peer: Peer
    subscription: Subscription
    _: KW_ONLY
    consumer_id: int
    name: str
    type: int
    priority: int
    epoch: int
    """-1 for Shared and Key_Shared."""
    key_shared: pb.KeySharedMeta | None
    metadata: Mapping[str, str]
    read_compacted: bool = False
    now: InitVar[float]
    connected_since_ms: int
    active: bool = False
    permits: int = 0
    pending: dict[int, int] = field(default_factory=dict)
    unacked_messages: int = 0
    unacked_messages_max: int = 0
    unacked_since_ms: int = 0
    blocked: bool = False
    batch_average: float = 1.0
    end_notified: bool = False
    messages_out: int = 0
    bytes_out: int = 0
    redelivered: int = 0
    messages_acked: float = 0.0
    """Acknowledged messages: estimated from the average batch size for Exclusive and Failover."""
    last_flow_ms: int = 0
    last_consumed_ms: int = 0
    last_acked_ms: int = 0
    rates: Rates = field(init=False)
    output: PeerOutput = field(init=False)
    write: Callable[[Buffer], object] = field(init=False)
    send_epoch: bool = field(init=False)

    def __post_init__(self, now: float) -> None:
        self.rates = Rates(now, 4)
        self.output = self.peer.output
        self.write = self.peer.output.write
        self.send_epoch = self.type in (EXCLUSIVE, FAILOVER)
        if not self.send_epoch:
            self.epoch = -1

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, id {self.consumer_id}, {self.peer.address})"

    @property
    def type_name(self) -> str:
        return type_name(self.type)

    @property
    def ready(self) -> bool:
        """Whether an entry may be sent to it now."""
        return self.permits > 0 and not self.blocked and self.output.writable

    @property
    def entries_wanted(self) -> int:
        """Approximate number of entries that its permits cover, at least 1."""
        return max(1, int(self.permits / self.batch_average))

    def add_permits(self, count: int, now_ms: int) -> None:
        self.permits = min(self.permits + count, PERMITS_MAX)
        self.last_flow_ms = now_ms

    def send(
        self,
        ledger_id: int,
        entry_id: int,
        entry: bytes,
        messages: int,
        redelivery_count: int,
        ack_set: Sequence[int],
    ) -> None:
        """Write one entry of ``messages`` open messages to the peer and charge its permits."""
        size = len(entry)
        head = encode_message(
            self.consumer_id, ledger_id, entry_id, self.subscription.partition, size,
            redelivery_count=redelivery_count, ack_set=ack_set, consumer_epoch=self.epoch,
        )  # fmt: skip
        self.write(head)
        self.write(entry)
        self.permits -= messages
        if messages != self.batch_average:
            self.batch_average += (messages - self.batch_average) * 0.25
        self.messages_out += messages
        self.bytes_out += size
        if redelivery_count:
            self.redelivered += messages

    def send_run(self, ledger_id: int, first_entry_id: int, entries: Sequence[bytes]) -> None:
        """Send consecutive small entries of one message each for the first time, with a single write."""
        count = len(entries)
        frames = encode_messages(
            self.consumer_id, ledger_id, first_entry_id, self.subscription.partition, entries,
            consumer_epoch=self.epoch,
        )  # fmt: skip
        self.write(frames)
        self.permits -= count
        if self.batch_average != 1:
            self.batch_average = 1 + (self.batch_average - 1) * 0.75**count
        self.messages_out += count
        self.bytes_out += sum(map(len, entries))

    def delivered(self, now_ms: int) -> None:
        """Record the time of a delivery, and whether it is the first since the last acknowledgement."""
        self.last_consumed_ms = now_ms
        self.unacked_since_ms = self.unacked_since_ms or now_ms

    def acknowledged(self, now_ms: int) -> None:
        """Record the time of an acknowledgement."""
        self.last_acked_ms = now_ms
        self.unacked_since_ms = 0

    def limit_unacked(self, limit: int) -> None:
        """Set the limit of unacknowledged messages; 0: no limit."""
        if limit != self.unacked_messages_max:
            self.unacked_messages_max = limit
            self.blocked = 0 < limit <= self.unacked_messages

    @property
    def unacked_left(self) -> int:
        """Number of messages up to the limit of unacknowledged ones."""
        limit = self.unacked_messages_max
        return limit - self.unacked_messages if limit else PERMITS_MAX

    def track(self, offsets: Sequence[int], messages: int) -> None:
        """Add sent entries of ``messages`` each to ``pending`` (Shared, Key_Shared)."""
        self.pending.update(dict.fromkeys(offsets, messages))
        self.unacked_messages += messages * len(offsets)
        if 0 < self.unacked_messages_max <= self.unacked_messages:
            self.blocked = True

    def settle(self, offset: int, still_open: int = 0) -> int:
        """Remove acknowledged messages of an entry from ``pending``, all but ``still_open`` of them.

        Returns by how many messages the unacknowledged ones fell; 0 if the entry was not pending here.
        """
        before = self.pending.get(offset)
        if before is None:
            return 0
        if still_open:
            self.pending[offset] = min(before, still_open)
            freed = max(0, before - still_open)
        else:
            del self.pending[offset]
            freed = before
        self.unacked_messages -= freed
        if not self.pending:
            self.unacked_since_ms = 0
        if self.blocked and self.unacked_messages <= self.unacked_messages_max // 2:
            self.blocked = False
        return freed

    def forget_pending(self) -> dict[int, int]:
        """Clear and return ``pending``, for redelivery."""
        pending, self.pending = self.pending, {}
        self.unacked_messages = self.unacked_since_ms = 0
        self.blocked = False
        return pending

    def rates_now(self, now: float) -> tuple[float, ...]:
        """Return the rates of messages, bytes, redelivered messages and acknowledged messages per second."""
        return self.rates.read(now, self.messages_out, self.bytes_out, self.redelivered, self.messages_acked)

    # --- notices ---
    def notify_active(self, active: bool) -> None:
        """Notify a Failover consumer whether it is the active one."""
        self.active = active
        if self.type == FAILOVER:
            self.peer.active_consumer_change(self.consumer_id, active)

    def notify_end_of_topic(self) -> None:
        """Notify a consumer once that the terminated topic has no more messages."""
        if not self.end_notified:
            self.end_notified = True
            self.peer.end_of_topic(self.consumer_id)

    def disconnect(self) -> None:
        """Close the consumer from the broker's side: its client looks the topic up again."""
        if self.peer.drop_consumer(self.consumer_id, self):
            self.peer.consumer_closed(self.consumer_id)
        self.subscription.remove(self)


def close_detached(consumers: Iterable[Consumer], slices: CooperativeScheduler, about: object) -> None:
    """Close consumers that left their subscriptions: their clients look the topic up again.

    All of them are dropped now: a late ACK, UNSUBSCRIBE or SEEK of one would change a subscription that was
    moved or deleted, or that another object in memory stands for meanwhile.
    """
    dropped = [each for each in consumers if each.peer.drop_consumer(each.consumer_id, each)]
    slices.run(_close_in_steps(dropped), about)


def _close_in_steps(consumers: Iterable[Consumer]) -> Job:
    for number, consumer in enumerate(consumers, 1):
        consumer.peer.consumer_closed(consumer.consumer_id)
        if number % CLOSED_AT_ONCE_MAX == 0:
            yield None
