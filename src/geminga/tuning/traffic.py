"""Traffic of a topic, published and read: the input of all parts of the advisor."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from geminga.config import check_int, check_number, check_seconds, check_type

RATE_MAX = 100_000_000.0
MESSAGE_BYTES_MAX = 1 << 30
PARTITIONS_MAX = 100_000
PRODUCERS_MAX = 100_000
KEYS_MAX = 1_000_000_000
LATENCY_BUDGET_MIN_SECONDS = 0.002
"""Smallest latency budget for a delay of a millisecond and a receipt; below, messages are unbatched."""
LATENCY_BUDGET_MAX_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficProfile:
    """The traffic of one topic.

    Raises `geminga.errors.InvalidConfiguration` naming field, value and what is allowed.
    """

    rate_messages_per_second: float
    """Messages per second over all producers and partitions; for traffic in bursts, their rate."""
    message_bytes: float
    """Mean payload size in bytes before compression."""
    message_bytes_variation: float = 0.0
    """Standard deviation of the payload size divided by its mean (log-normal); 0: constant size."""
    partitions: int = 1
    """Partitions of the topic; an unpartitioned topic counts as one."""
    producers: int = 1
    """Producers that share the rate evenly."""
    producers_per_client: int = 1
    """Producers per client, which share its memory limit; one is advised."""
    subscriptions: int = 1
    """Number of subscriptions; each receives every message."""
    keys: int = 0
    """Distinct keys; 0: messages have no key and are sent round robin."""
    key_skew: float = 0.0
    """Zipf exponent of the key frequencies; 0: equal, 1: the k-th key has 1/k of the first key's share."""
    latency_budget_seconds: float = 0.05
    """Limit of the 99th percentile latency, from send() to the consumer."""
    write_quorum: int = 1
    """Copies of each entry that the broker sends to bookies."""
    name: str = ""
    """Name for tables and pictures."""

    def __post_init__(self) -> None:
        rate = self.rate_messages_per_second
        check_number("rate_messages_per_second", rate, 0.001, RATE_MAX, "a number of messages a second")
        check_number("message_bytes", self.message_bytes, 1, MESSAGE_BYTES_MAX, "a number of bytes")
        check_number("message_bytes_variation", self.message_bytes_variation, 0.0, 10.0, "a number of means")
        check_int("partitions", self.partitions, 1, PARTITIONS_MAX)
        check_int("producers", self.producers, 1, PRODUCERS_MAX)
        check_int("producers_per_client", self.producers_per_client, 1, PRODUCERS_MAX)
        check_int("subscriptions", self.subscriptions, 0, 10_000)
        check_int("keys", self.keys, 0, KEYS_MAX)
        check_number("key_skew", self.key_skew, 0.0, 10.0, "a Zipf exponent")
        budget = self.latency_budget_seconds
        least, most = LATENCY_BUDGET_MIN_SECONDS, LATENCY_BUDGET_MAX_SECONDS
        check_seconds("latency_budget_seconds", budget, least, most)
        check_int("write_quorum", self.write_quorum, 1, 100)
        check_type("name", self.name, str)

    @property
    def keyed(self) -> bool:
        """True if messages have keys, which determine their partition."""
        return self.keys > 0

    @property
    def rate_per_producer(self) -> float:
        """Mean messages per second of one producer."""
        return self.rate_messages_per_second / self.producers

    @property
    def payload_bytes_per_second(self) -> float:
        """Payload bytes per second before compression, over all producers."""
        return self.rate_messages_per_second * self.message_bytes

    def changed(self, **fields_changed: Any) -> TrafficProfile:
        """Return a validated copy with other values."""
        return replace(self, **fields_changed)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def zipf_shares(count: int, exponent: float) -> list[float]:
    """Return the share of each of ``count`` keys, largest first; the sum is 1."""
    weights = [1.0 / rank**exponent for rank in range(1, count + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]
