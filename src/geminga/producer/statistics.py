"""Counters of a producer, updated once per batch, never per message."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property
from typing import Final, NamedTuple

from geminga.producer.routing import BlockedReason

LATENCY_BOUNDS_SECONDS: Final[tuple[float, ...]] = tuple(0.0001 * (1 << step) for step in range(20))
"""Upper bounds of the latency buckets: 0.1 ms doubling to 52 s; the last bucket has none."""


class LatencyHistogram:
    """Times from acceptance to receipt, in buckets that double. Percentiles are bucket bounds."""

    __slots__ = ("_counts", "_sum_seconds", "count")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self.count = 0
        self._sum_seconds = 0.0

    def add(self, seconds: float, messages: int) -> None:
        self._counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += messages
        self.count += messages
        self._sum_seconds += seconds * messages

    @property
    def mean_seconds(self) -> float:
        return self._sum_seconds / self.count if self.count else 0.0

    def percentile(self, fraction: float) -> float:
        """Return the bound in seconds of ``fraction`` (0..1) of the messages; 0 without any."""
        if not self.count:
            return 0.0
        wanted = fraction * self.count
        seen = 0
        for bound, bucket in zip(LATENCY_BOUNDS_SECONDS, self._counts, strict=False):
            seen += bucket
            if seen and seen >= wanted:
                return bound
        return LATENCY_BOUNDS_SECONDS[-1]


Heard = Callable[[float, float, float | None, bool], float]
"""Called with an operation's outcome: the time, seconds since its acceptance, seconds since its writing
(None: never written), and whether it failed. Returns when to report the next success."""


class PartitionCounters:
    """The running counts of one partition. They only grow, except those read at a snapshot."""

    sent_messages = 0
    sent_batches = 0
    sent_payload_bytes = 0
    sent_bytes = 0
    acknowledged_messages = 0
    acknowledged_bytes = 0
    settled_bytes = 0
    failed_messages = 0
    duplicates = 0
    late_receipts = 0
    timeouts = 0
    checksum_errors = 0
    resent_operations = 0
    reconnects = 0
    stepped_over_seconds = 0.0
    heard: Heard | None = None
    """Called for operations that fail, and for the first success from `heard_at` on."""
    heard_at = float("inf")
    _blocked_since: float | None = None

    @cached_property
    def stepped_over(self) -> dict[BlockedReason, int]:
        """Unkeyed messages that skipped this partition, by reason."""
        return dict.fromkeys(BlockedReason, 0)

    @cached_property
    def latency(self) -> LatencyHistogram:
        """Times until the receipts."""
        return LatencyHistogram()

    def count_step(self, reason: BlockedReason, now: float) -> None:
        """Count an unkeyed message that skipped this partition."""
        self.stepped_over[reason] += 1
        if self._blocked_since is None:
            self._blocked_since = now

    def count_chosen(self, now: float) -> None:
        """Note that the partition got a message again, which ends the skipping."""
        if self._blocked_since is not None:
            self.stepped_over_seconds += now - self._blocked_since
            self._blocked_since = None


class ProducerStatistics(NamedTuple):
    """A snapshot; of one partition, or summed over all with ``partitions`` holding each one's own."""

    topic: str
    state: str
    sent_messages: int
    sent_batches: int
    sent_payload_bytes: int
    sent_bytes: int
    acknowledged_messages: int
    failed_messages: int
    duplicates: int
    late_receipts: int
    timeouts: int
    checksum_errors: int
    resent_operations: int
    reconnects: int
    pending_messages: int
    pending_operations: int
    open_batch_messages: int
    last_sequence_id: int
    stepped_over: int
    stepped_over_permits: int
    stepped_over_connection: int
    stepped_over_age: int
    stepped_over_seconds: float
    latency_mean_seconds: float
    latency_p50_seconds: float
    latency_p99_seconds: float
    latency_p999_seconds: float
    partitions: tuple[ProducerStatistics, ...] = ()

    @property
    def batch_fill(self) -> float:
        """Average messages per batch."""
        return self.sent_messages / self.sent_batches if self.sent_batches else 0.0


COUNTED = (
    "sent_messages", "sent_batches", "sent_payload_bytes", "sent_bytes", "acknowledged_messages",
    "failed_messages", "duplicates", "late_receipts", "timeouts", "checksum_errors", "resent_operations",
    "reconnects", "stepped_over_seconds",
)  # fmt: skip
"""Statistics that are counters of `PartitionCounters`."""
_SUMMED = (
    *COUNTED, "pending_messages", "pending_operations", "open_batch_messages", "stepped_over",
    "stepped_over_permits", "stepped_over_connection", "stepped_over_age",
)  # fmt: skip
_HIGHEST = ("latency_p50_seconds", "latency_p99_seconds", "latency_p999_seconds", "last_sequence_id")


def summed(topic: str, partitions: tuple[ProducerStatistics, ...]) -> ProducerStatistics:
    """Return the whole producer's statistics. Percentiles are those of the slowest partition."""
    totals = {name: sum(getattr(p, name) for p in partitions) for name in _SUMMED}
    states = {p.state for p in partitions}
    latencies = sum(p.latency_mean_seconds * p.acknowledged_messages for p in partitions)
    return ProducerStatistics(
        topic=topic,
        state=states.pop() if len(states) == 1 else "mixed",
        latency_mean_seconds=latencies / max(1, totals["acknowledged_messages"]),
        partitions=partitions,
        **{name: max(getattr(p, name) for p in partitions) for name in _HIGHEST},
        **totals,
    )
