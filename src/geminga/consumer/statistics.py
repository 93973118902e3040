"""What a consumer is told about itself: what waits here, and what its broker says of it."""

from __future__ import annotations

from dataclasses import dataclass

from geminga.wire.proto import pulsar_wire_pb2 as pb


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerStatistics:
    """A consumer, or one of its topics and partitions; those stand in ``partitions``.

    Numbers of the broker are at most ``broker_consumer_stats_cache_time_ms`` old; rates are its own, over
    its last minute. Sums over ``partitions``, but for ``backlog``, which is the subscription's.
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
    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0
    redelivered_per_second: float = 0.0
    acknowledged_per_second: float = 0.0
    """0 where a broker does not tell."""
    partitions: tuple[ConsumerStatistics, ...] = ()


def of_one(topic: str, waiting: int, told: pb.CommandConsumerStatsResponse) -> ConsumerStatistics:
    """One topic or partition."""
    return ConsumerStatistics(
        topic=topic,
        waiting_messages=waiting,
        available_permits=told.availablePermits,
        unacknowledged_messages=told.unackedMessages,
        blocked=told.blockedConsumerOnUnackedMsgs,
        backlog=told.msgBacklog,
        messages_per_second=told.msgRateOut,
        bytes_per_second=told.msgThroughputOut,
        redelivered_per_second=told.msgRateRedeliver,
        acknowledged_per_second=told.messageAckRate,
    )


def of_all(topic: str, parts: list[ConsumerStatistics]) -> ConsumerStatistics:
    """All topics and partitions of a consumer."""
    return ConsumerStatistics(
        topic=topic,
        waiting_messages=sum(part.waiting_messages for part in parts),
        available_permits=sum(part.available_permits for part in parts),
        unacknowledged_messages=sum(part.unacknowledged_messages for part in parts),
        blocked=any(part.blocked for part in parts),
        backlog=sum(part.backlog for part in parts),
        messages_per_second=sum(part.messages_per_second for part in parts),
        bytes_per_second=sum(part.bytes_per_second for part in parts),
        redelivered_per_second=sum(part.redelivered_per_second for part in parts),
        acknowledged_per_second=sum(part.acknowledged_per_second for part in parts),
        partitions=tuple(parts),
    )
