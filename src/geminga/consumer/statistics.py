"""Statistics of a consumer: its own counts, and those of its broker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from geminga.consumer.flow import Release
from geminga.consumer.message import ReceivedEntry
from geminga.consumer.queue import Taken
from geminga.wire.proto import pulsar_wire_pb2 as pb


@dataclass(slots=True, eq=False, repr=False)
class ConsumerCounters:
    """The running counts of one consumer of one topic or partition. They only grow."""

    acknowledged: int = 0
    refused: int = 0
    """Negative acknowledgements."""
    timed_out: int = 0
    """Entries that were not acknowledged in time."""
    dead: int = 0
    """Messages that were published to the dead letter topic."""
    withdrawn_messages: int = 0
    withdrawn_bytes: int = 0
    """Bytes removed from the queue before the application took them."""

    def withdraw(self, lots: Iterable[Taken], entries: Iterable[ReceivedEntry]) -> list[Release]:
        """Count messages, and unopened entries, removed from the queue. Return their permits."""
        releases: list[Release] = []
        for entry, indexes in lots:
            releases += entry.take_releases(indexes)
            self.withdrawn_messages += len(indexes)
            self.withdrawn_bytes += entry.held_bytes(indexes)
        for entry in entries:
            releases += (entry.releases or {}).values()
            self.withdrawn_messages += entry.count
            self.withdrawn_bytes += entry.held_bytes(range(entry.count))
        return releases


class ConsumerStatistics(NamedTuple):
    """Statistics of a consumer, or of one of its topics and partitions, which are in ``partitions``.

    Numbers of the broker are at most ``broker_consumer_stats_cache_time_ms`` old; rates are averages over its
    last minute. Sums over ``partitions``; ``backlog`` and ``ack_holes`` are the subscription's, of all its
    consumers.
    """

    topic: str
    waiting_messages: int = 0
    """Queued messages that the application has not taken."""
    available_permits: int = 0
    """Messages that the broker may send before it gets further permits."""
    unacknowledged_messages: int = 0
    """Messages delivered to this consumer, including queued ones, and not acknowledged."""
    blocked: bool = False
    """Whether the broker has stopped sending until some messages are acknowledged."""
    backlog: int = 0
    """Unacknowledged messages of the subscription, over all consumers."""
    ack_holes: int | None = None
    """Runs of unacknowledged messages of the subscription before acknowledged ones. Geminga's broker always
    reports it, Apache Pulsar only through its REST interface: to clients whose service URL begins with
    ``http``, and that may read the topic's statistics. None if not reported."""
    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0
    redelivered_per_second: float = 0.0
    acknowledged_per_second: float = 0.0
    """0 if the broker does not report it."""
    partitions: tuple[ConsumerStatistics, ...] = ()


_OF_BROKER = {
    "available_permits": "availablePermits", "unacknowledged_messages": "unackedMessages",
    "backlog": "msgBacklog", "messages_per_second": "msgRateOut", "bytes_per_second": "msgThroughputOut",
    "redelivered_per_second": "msgRateRedeliver", "acknowledged_per_second": "messageAckRate",
}  # fmt: skip
"""Statistics that are sums over partitions, and their names in the broker's answer."""


def of_one(
    topic: str, waiting: int, told: pb.CommandConsumerStatsResponse, ack_holes: int | None
) -> ConsumerStatistics:
    """Return the statistics of one topic or partition."""
    of_broker: dict[str, Any] = {ours: getattr(told, theirs) for ours, theirs in _OF_BROKER.items()}
    blocked = told.blockedConsumerOnUnackedMsgs
    return ConsumerStatistics(
        topic=topic, waiting_messages=waiting, blocked=blocked, ack_holes=ack_holes, **of_broker
    )


def of_all(topic: str, parts: list[ConsumerStatistics]) -> ConsumerStatistics:
    """Return the sums of a consumer's topics and partitions."""
    holes = [part.ack_holes for part in parts if part.ack_holes is not None]
    names = ("waiting_messages", *_OF_BROKER)
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in names}
    return ConsumerStatistics(
        topic=topic,
        blocked=any(part.blocked for part in parts),
        ack_holes=sum(holes) if len(holes) == len(parts) else None,
        partitions=tuple(parts),
        **sums,
    )
