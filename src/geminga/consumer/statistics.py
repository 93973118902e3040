"""What a consumer is told about itself: what waits here, and what its broker says of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geminga.consumer.queue import held_bytes
from geminga.wire.proto import pulsar_wire_pb2 as pb

if TYPE_CHECKING:
    from geminga.consumer.flow import Release
    from geminga.consumer.message import ReceivedEntry
    from geminga.consumer.queue import Taken


class ConsumerCounters:
    """The running counts of one consumer of one topic or partition. They only grow."""

    __slots__ = ("acknowledged", "dead", "refused", "timed_out", "withdrawn_bytes", "withdrawn_messages")

    def __init__(self) -> None:
        self.acknowledged = 0
        self.refused = 0
        """Negative acknowledgements."""
        self.timed_out = 0
        """Entries that were not acknowledged in time."""
        self.dead = 0
        """Messages that were published to the dead letter topic."""
        self.withdrawn_messages = 0
        self.withdrawn_bytes = 0
        """What was taken out of the queue before the application had it."""

    def withdraw(self, lots: Iterable[Taken], entries: Iterable[ReceivedEntry]) -> list[Release]:
        """Messages of entries, and entries that nobody has opened, left the queue again. Returns the permits
        that they carry."""
        releases: list[Release] = []
        for entry, indexes in lots:
            releases += entry.take_releases(indexes)
            self.withdrawn_messages += len(indexes)
            self.withdrawn_bytes += held_bytes(entry, len(indexes))
        for entry in entries:
            releases += (entry.releases or {}).values()
            self.withdrawn_messages += entry.count
            self.withdrawn_bytes += held_bytes(entry, entry.count)
        return releases


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerStatistics:
    """A consumer, or one of its topics and partitions; those stand in ``partitions``.

    Numbers of the broker are at most ``broker_consumer_stats_cache_time_ms`` old; rates are its own, over
    its last minute. Sums over ``partitions``; ``backlog`` and ``ack_holes`` are the subscription's, of all
    its consumers.
    """

    topic: str
    waiting_messages: int = 0
    """Here, not yet taken by the application."""
    available_permits: int = 0
    """How many more the broker may send before it is asked again."""
    unacknowledged_messages: int = 0
    """Delivered to this consumer, waiting ones included, and not acknowledged."""
    blocked: bool = False
    """The broker sends nothing more before some are acknowledged."""
    backlog: int = 0
    """Messages of the subscription, over all consumers, that are not acknowledged."""
    ack_holes: int | None = None
    """Runs of unacknowledged messages of the subscription before acknowledged ones. Geminga's broker tells it
    to everybody, Apache Pulsar only through its REST interface: to clients whose service URL begins with
    ``http``, and that may read the topic's statistics. None where it is not told."""
    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0
    redelivered_per_second: float = 0.0
    acknowledged_per_second: float = 0.0
    """0 where a broker does not tell."""
    partitions: tuple[ConsumerStatistics, ...] = ()


def of_one(
    topic: str, waiting: int, told: pb.CommandConsumerStatsResponse, ack_holes: int | None
) -> ConsumerStatistics:
    """One topic or partition."""
    return ConsumerStatistics(
        topic=topic,
        waiting_messages=waiting,
        available_permits=told.availablePermits,
        unacknowledged_messages=told.unackedMessages,
        blocked=told.blockedConsumerOnUnackedMsgs,
        backlog=told.msgBacklog,
        ack_holes=ack_holes,
        messages_per_second=told.msgRateOut,
        bytes_per_second=told.msgThroughputOut,
        redelivered_per_second=told.msgRateRedeliver,
        acknowledged_per_second=told.messageAckRate,
    )


def of_all(topic: str, parts: list[ConsumerStatistics]) -> ConsumerStatistics:
    """All topics and partitions of a consumer."""
    holes = [part.ack_holes for part in parts if part.ack_holes is not None]
    return ConsumerStatistics(
        topic=topic,
        waiting_messages=sum(part.waiting_messages for part in parts),
        available_permits=sum(part.available_permits for part in parts),
        unacknowledged_messages=sum(part.unacknowledged_messages for part in parts),
        blocked=any(part.blocked for part in parts),
        backlog=sum(part.backlog for part in parts),
        ack_holes=sum(holes) if len(holes) == len(parts) else None,
        messages_per_second=sum(part.messages_per_second for part in parts),
        bytes_per_second=sum(part.bytes_per_second for part in parts),
        redelivered_per_second=sum(part.redelivered_per_second for part in parts),
        acknowledged_per_second=sum(part.acknowledged_per_second for part in parts),
        partitions=tuple(parts),
    )
