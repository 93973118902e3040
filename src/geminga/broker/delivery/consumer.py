"""The broker's side of one consumer: its permits, what it was sent, and its counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from geminga.broker.commands import answers
from geminga.broker.rates import Rates
from geminga.wire.frames import encode_message
from geminga.wire.proto import pulsar_wire_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.commands.session import Session
    from geminga.broker.delivery.subscription import Subscription

_VERSION_ACTIVE_CONSUMER_CHANGE = 12
_VERSION_END_OF_TOPIC = 9
PERMITS_MAX = (1 << 31) - 1
"""A consumer's balance does not grow beyond this, however many FLOWs it sends."""


class Consumer:
    """``permits`` is counted in messages and may go below 0, since entries are sent whole.

    ``pending`` holds, for Shared and Key_Shared, the offset of each entry that was sent and is not
    acknowledged, with the number of its messages that are open; ``unacked_messages`` is their sum.
    """

    __slots__ = (
        "ack_count",
        "active",
        "batch_average",
        "blocked",
        "bytes_out",
        "connected_since_ms",
        "consumer_id",
        "end_notified",
        "epoch",
        "flow_count",
        "key_shared",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages_out",
        "metadata",
        "name",
        "pending",
        "permits",
        "priority",
        "rates",
        "redelivered",
        "send_epoch",
        "session",
        "subscription",
        "type",
        "unacked_messages",
        "unacked_messages_max",
        "write",
    )

    def __init__(
        self,
        session: Session,
        subscription: Subscription,
        *,
        consumer_id: int,
        name: str,
        type: int,
        priority: int,
        epoch: int,
        key_shared: pb.KeySharedMeta | None,
        metadata: Mapping[str, str],
        now_ms: int,
    ) -> None:
        self.session = session
        self.write = session.output.write
        self.subscription = subscription
        self.consumer_id = consumer_id
        self.name = name
        self.type = type
        self.priority = priority
        self.key_shared = key_shared
        self.metadata = metadata
        self.connected_since_ms = now_ms
        single = type in (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover)
        self.send_epoch = single
        self.epoch = epoch if single else -1
        self.active = False
        self.permits = 0
        self.pending: dict[int, int] = {}
        self.unacked_messages = 0
        self.unacked_messages_max = 0
        self.blocked = False
        self.batch_average = 1.0
        self.end_notified = False
        self.messages_out = 0
        self.bytes_out = 0
        self.redelivered = 0
        self.ack_count = 0
        self.flow_count = 0
        self.rates = Rates(session.broker.now, 4)
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.last_acked_ms = 0

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, id {self.consumer_id}, {self.session.peer})"

    @property
    def type_name(self) -> str:
        return pb.CommandSubscribe.SubType.Name(self.type)

    @property
    def ready(self) -> bool:
        """Whether an entry may be sent to it now."""
        return self.permits > 0 and not self.blocked and self.session.output.writable

    @property
    def entries_wanted(self) -> int:
        """About how many entries its permits cover, at least one."""
        return max(1, int(self.permits / self.batch_average))

    def add_permits(self, count: int, now_ms: int) -> None:
        self.permits = min(self.permits + count, PERMITS_MAX)
        self.flow_count += 1
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
        write = self.write
        write(
            encode_message(
                self.consumer_id,
                ledger_id,
                entry_id,
                self.subscription.partition,
                size,
                redelivery_count=redelivery_count,
                ack_set=ack_set,
                consumer_epoch=self.epoch,
            )
        )
        write(entry)
        self.permits -= messages
        if messages != self.batch_average:
            self.batch_average += (messages - self.batch_average) * 0.25
        self.messages_out += messages
        self.bytes_out += size
        if redelivery_count:
            self.redelivered += messages

    def track(self, offset: int, messages: int) -> None:
        """An entry was sent that this consumer has to acknowledge itself (Shared, Key_Shared)."""
        self.pending[offset] = messages
        self.unacked_messages += messages
        if 0 < self.unacked_messages_max <= self.unacked_messages:
            self.blocked = True

    def settle(self, offset: int, still_open: int = 0) -> int:
        """A sent entry was acknowledged, or all but ``still_open`` of its messages.

        Returns how many messages fewer are unacknowledged; 0 when the entry was not pending here.
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
        if self.blocked and self.unacked_messages <= self.unacked_messages_max // 2:
            self.blocked = False
        return freed

    def forget_pending(self) -> dict[int, int]:
        """Give back everything that is pending, to be delivered again."""
        pending, self.pending = self.pending, {}
        self.unacked_messages = 0
        self.blocked = False
        return pending

    # --- notices ---
    def notify_active(self, active: bool) -> None:
        """Failover consumers are told whether they are the active one."""
        self.active = active
        if (
            self.type == pb.CommandSubscribe.Failover
            and self.session.protocol_version >= _VERSION_ACTIVE_CONSUMER_CHANGE
        ):
            self.write(answers.active_consumer_change(self.consumer_id, active))

    def notify_end_of_topic(self) -> None:
        """Once a consumer: nothing will follow in this terminated topic.

        The C++ client (and ``pulsar-client`` on it) has no handler for this command and drops its
        connection over it (framing.md section 9), so it is not told.
        """
        if self.end_notified:
            return
        self.end_notified = True
        session = self.session
        if session.protocol_version >= _VERSION_END_OF_TOPIC and not session.is_cpp_client:
            self.write(answers.reached_end_of_topic(self.consumer_id))
