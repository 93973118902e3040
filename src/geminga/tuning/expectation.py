"""Expected effects of settings on a topic: batch fill, entries, stored bytes, latency, memory.

Closed formulas, so that advice is instant. A batch is opened by a message and closed by the first of its
delay, count and bytes. The messages of a producer in one partition depend on routing: all while round robin
stays on the partition, a partition's share with keys.
"""

import math
from dataclasses import dataclass

from geminga.producer.settings import BatchingType, PartitionsRoutingMode
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.sample import Sample
from geminga.tuning.traffic import TrafficProfile, zipf_shares
from geminga.tuning.traps import KEYS_COUNTED_MAX, key_batches_in_delay

TIMER_LAG_SECONDS = 0.0003
"""Delay of a timer after its due time; it matters for delays of a millisecond."""
DELIVERY_P99_SECONDS = 0.013
"""99th percentile of the time from the end of a batch to the consumer's receive(), as measured on Apache
Pulsar 4.0.4."""
_GOLDEN = 2_654_435_761


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Expected values for some settings, all producers together; None if unknown."""

    title: str
    batch_fill: float
    """Messages per entry."""
    entries_per_second: float
    stored_bytes_per_second: float
    end_to_end_p99_seconds: float | None = None
    memory_bytes_max: float | None = None
    """Maximum payload bytes without a receipt in one client if a broker stops; infinite without a limit."""


def expected(
    title: str,
    profile: TrafficProfile,
    settings: PublishSettings,
    *,
    sample: Sample,
    moves_on_when_full: bool = True,
) -> Expectation:
    """Return the expected values for a topic; ``moves_on_when_full`` as in `geminga.tuning.stock.Stock`."""
    entries, wait_seconds = _batches(profile, settings, moves_on_when_full)
    entries *= profile.producers
    fill = profile.rate_messages_per_second / entries
    producer = settings.producer
    size = sample.entry_bytes(fill, producer.compression_type, producer.compression_level, profile)
    return Expectation(
        title=title,
        batch_fill=fill,
        entries_per_second=entries,
        stored_bytes_per_second=entries * size,
        end_to_end_p99_seconds=0.99 * wait_seconds + DELIVERY_P99_SECONDS,
        memory_bytes_max=_memory_max(profile, settings),
    )


def _memory_max(profile: TrafficProfile, settings: PublishSettings) -> float:
    permits = settings.permits_per_partition(profile.partitions)
    by_permits = permits * profile.partitions * profile.message_bytes * profile.producers_per_client
    return min(by_permits or math.inf, settings.memory_limit_bytes or math.inf)


def _batches(profile: TrafficProfile, settings: PublishSettings, moves_on: bool) -> tuple[float, float]:
    """Return the entries per second of one producer, and the longest wait for a batch."""
    producer, rate = settings.producer, profile.rate_per_producer
    if not producer.batching_enabled:
        return rate, 0.0
    delay = producer.batching_max_publish_delay_seconds + TIMER_LAG_SECONDS
    limit = _limit(profile, settings)
    if profile.keyed and profile.partitions > 1:
        shares = _partition_shares(profile)
        entries = sum(_steady(rate * share, delay, limit) for share in shares if share)
        wait = max(min(delay, limit / (rate * share)) for share in shares if share)
    elif profile.partitions > 1 and not moves_on and _round_robin(settings):
        stay = max(0.001, producer.batching_max_publish_delay_seconds)
        stay *= producer.batching_partition_switch_frequency
        entries, wait = _by_the_clock(rate, delay, limit, stay), min(delay, limit / rate)
    else:
        entries, wait = _steady(rate, delay, limit), min(delay, limit / rate)
    if producer.batching_type is BatchingType.KeyBased and profile.keyed:
        entries *= max(1.0, key_batches_in_delay(profile, rate / entries))
    return entries, wait


def _limit(profile: TrafficProfile, settings: PublishSettings) -> float:
    """Return the number of messages that closes a batch: by count, by bytes, or by the permits."""
    producer = settings.producer
    by_bytes = producer.batching_max_allowed_size_in_bytes / profile.message_bytes
    permits = settings.permits_per_partition(profile.partitions) or math.inf
    return max(1.0, min(producer.batching_max_messages, math.floor(by_bytes), permits))


def _round_robin(settings: PublishSettings) -> bool:
    return settings.producer.message_routing_mode is PartitionsRoutingMode.RoundRobinDistribution


def _steady(rate: float, delay: float, limit: float) -> float:
    """Return the entries per second of consecutive batches: each an opening message and those in its
    delay."""
    return rate / min(limit, 1.0 + rate * delay)


def _by_the_clock(rate: float, delay: float, limit: float, stay: float) -> float:
    """Like `_steady`, for a change of partition by the clock, which cuts off the last batch."""
    messages = rate * stay
    if messages < 1:
        return rate
    full = min(limit, 1.0 + rate * delay)
    return math.ceil(round(messages / full, 6)) / stay


def _partition_shares(profile: TrafficProfile) -> list[float]:
    """Return each partition's share of the rate, by the hashes of the keys."""
    if profile.keys > KEYS_COUNTED_MAX and not profile.key_skew:
        return [1 / profile.partitions] * profile.partitions
    shares = [0.0] * profile.partitions
    keys = min(profile.keys, KEYS_COUNTED_MAX)
    for number, share in enumerate(zipf_shares(keys, profile.key_skew)):
        shares[(number * _GOLDEN >> 16) % profile.partitions] += share
    return shares
