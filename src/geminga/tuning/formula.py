"""The formula: a producer's settings from rate, message size, partitions and a latency budget.

It is the template that a large operator of Pulsar published after halving what its clusters cost (vivo,
2025), with a unit and a reason for each field::

    maxPendingMessages                  1,000 to 2,000; more for more traffic
    maxPendingMessagesAcrossPartitions  maxPendingMessages x partitions
    memoryLimit                         maxPendingMessages x partitions x message bytes
    batchingMaxMessages                 maxPendingMessages / 2
    batchingMaxBytes                    min(memoryLimit / partitions / 2, 1 MiB)
    batchingMaxPublishDelay             1 to 100 ms
    batchingPartitionSwitchFrequency    1

Two things had to be chosen. *Units*: the document computes ``memoryLimit`` from bytes, writes its practice
in megabytes (64 to 256), and multiplies it by 1024 x 1024 once more in the line of ``batchingMaxBytes``.
Taken at its word that line would always give 1 MiB. Here everything is bytes, and the limit is kept within
the document's practice, 64 to 256 MiB. *Delay*: the document leaves it open between 1 and 100 ms. It is the
one field that costs latency, so it comes from the latency budget; and it is never longer than a batch
takes to fill, for beyond that it only keeps the rest of a batch waiting.
"""

import math
from dataclasses import dataclass

from geminga.producer.settings import CompressionType, ProducerSettings
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.traffic import TrafficProfile

PERMITS_MIN, PERMITS_MAX = 1000, 2000
"""Range of a partition's messages without a receipt, from the document."""
MEMORY_MIN_BYTES, MEMORY_MAX_BYTES = 64 << 20, 256 << 20
"""Range of a client's memory limit, from the document's practice."""
BATCH_BYTES_MAX = 1 << 20
DELAY_MIN_SECONDS, DELAY_MAX_SECONDS = 0.001, 0.1
DELAY_PART_OF_BUDGET = 0.8
"""Fraction of the latency budget for the wait for a batch; the rest is for sending and delivering."""
RESERVE_MIN_SECONDS = 0.005
"""Minimum part of the latency budget for sending, storing and delivering."""
SWITCH_FREQUENCY = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenField:
    """A field of the settings: value, rule and reason."""

    field: str
    value: int | float | str | bool
    unit: str
    rule: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """Settings with a reason for each field."""

    settings: PublishSettings
    choices: tuple[ChosenField, ...]


def formula(
    profile: TrafficProfile,
    *,
    compression: CompressionType = CompressionType.LZ4,
    compression_level: int = 0,
    reserve_seconds: float = 0.0,
) -> Formula:
    """Return the settings for a topic's traffic. ``reserve_seconds``: known time for sending, storing and
    delivering, if it exceeds the rules' reserve."""
    delay = _delay_by_budget(profile, reserve_seconds)
    permits = _permits(profile, delay)
    wanted = math.ceil(permits * profile.partitions * profile.message_bytes)
    memory = min(max(wanted, MEMORY_MIN_BYTES), MEMORY_MAX_BYTES)
    batch_messages = permits // 2
    batch_bytes = max(1, min(memory // profile.partitions // 2, BATCH_BYTES_MAX))
    delay = min(delay, _fill_seconds(profile, batch_messages, batch_bytes))
    delay = max(DELAY_MIN_SECONDS, math.floor(round(delay * 10_000, 6)) / 10_000)
    settings = PublishSettings(
        memory_limit_bytes=memory,
        producer=ProducerSettings(
            max_pending_messages=permits,
            max_pending_messages_across_partitions=permits * profile.partitions,
            batching_enabled=True,
            batching_max_messages=batch_messages,
            batching_max_allowed_size_in_bytes=batch_bytes,
            batching_max_publish_delay_seconds=delay,
            batching_partition_switch_frequency=SWITCH_FREQUENCY,
            block_if_queue_full=True,
            compression_type=compression,
            compression_level=compression_level,
        ),
    )
    return Formula(settings=settings, choices=_reasons(profile, settings, wanted))


def messages_in_delay(profile: TrafficProfile, delay_seconds: float) -> float:
    """Return the messages that reach one partition while a batch is open.

    Without keys a producer stays on a partition for the whole delay; keys spread over all partitions.
    """
    rate = profile.rate_per_producer
    return rate * delay_seconds / (profile.partitions if profile.keyed else 1)


def _delay_by_budget(profile: TrafficProfile, reserve_seconds: float) -> float:
    budget = profile.latency_budget_seconds
    reserve = max(reserve_seconds, budget * (1 - DELAY_PART_OF_BUDGET), RESERVE_MIN_SECONDS)
    allowed = round(budget - reserve, 9)
    return min(max(allowed, DELAY_MIN_SECONDS), DELAY_MAX_SECONDS)


def _permits(profile: TrafficProfile, delay_seconds: float) -> int:
    """Return twice the messages of a batch within the delay, in hundreds, within the document's range."""
    wanted = math.ceil(round(2 * messages_in_delay(profile, delay_seconds) / 100, 6)) * 100
    return min(max(wanted, PERMITS_MIN), PERMITS_MAX)


def _fill_seconds(profile: TrafficProfile, batch_messages: int, batch_bytes: int) -> float:
    """Return the mean time to fill a batch."""
    messages = max(1.0, min(batch_messages, batch_bytes / profile.message_bytes))
    return messages / messages_in_delay(profile, 1.0)


def _reasons(
    profile: TrafficProfile, settings: PublishSettings, wanted_memory: int
) -> tuple[ChosenField, ...]:
    values = settings.to_dict()
    rows = (
        *_rules_of_limits(profile, settings, wanted_memory),
        *_rules_of_batches(profile, settings),
        *_FIXED,
    )
    return tuple(
        ChosenField(field=field, value=values[field], unit=unit, rule=rule, why=why)
        for field, unit, rule, why in rows
    )


_Rule = tuple[str, str, str, str]
"""Field, unit, rule and reason."""

_FIXED: tuple[_Rule, ...] = (
    ("block_if_queue_full", "", "always on",
     "a sender waits for room; otherwise the application has to handle every refusal or lose data"),
    ("compression_type", "", "chosen by the caller, or measured on a sample",
     "a codec sees a whole batch at once: the larger the batch, the smaller the bytes"),
    ("compression_level", "", "chosen with the codec; 0 is its usual level",
     "a full batch holds more repetitions than the usual level looks for"),
)  # fmt: skip


def _rules_of_limits(
    profile: TrafficProfile, settings: PublishSettings, wanted_memory: int
) -> tuple[_Rule, ...]:
    """Return the rules of the limits on pending messages and memory."""
    partitions, permits = profile.partitions, settings.producer.max_pending_messages
    return (
        ("max_pending_messages", "messages",
         f"2 x messages that reach a partition within the delay, {PERMITS_MIN} to {PERMITS_MAX}",
         "one batch may wait for its receipt while the next one fills"),
        ("max_pending_messages_across_partitions", "messages",
         f"max_pending_messages x partitions = {permits} x {partitions}",
         "high enough that each partition keeps its own limit: a lower one would cut it to its share"),
        ("memory_limit_bytes", "bytes",
         f"max_pending_messages x partitions x message bytes = {wanted_memory}, "
         f"kept within {MEMORY_MIN_BYTES} and {MEMORY_MAX_BYTES}",
         "bounds what the client holds when messages are larger than expected or brokers slower"),
    )  # fmt: skip


def _rules_of_batches(profile: TrafficProfile, settings: PublishSettings) -> tuple[_Rule, ...]:
    """Return the rules of the settings of batches."""
    producer, partitions = settings.producer, profile.partitions
    delay = producer.batching_max_publish_delay_seconds
    return (
        ("batching_max_messages", "messages",
         f"max_pending_messages / 2 = {producer.max_pending_messages} / 2",
         "never above the permits, so that a batch can fill; the other half of them builds the next"),
        ("batching_max_allowed_size_in_bytes", "bytes",
         f"min(memory limit / partitions / 2, {BATCH_BYTES_MAX}) = "
         f"min({settings.memory_limit_bytes} / {partitions} / 2, {BATCH_BYTES_MAX})",
         "as with the count: half of a partition's share of the memory"),
        ("batching_max_publish_delay_seconds", "seconds",
         f"the part of the latency budget ({profile.latency_budget_seconds * 1000:g} ms) that may be "
         "spent on waiting, not longer than a batch takes to fill, 1 to 100 ms",
         f"{delay * 1000:g} ms give a batch about {max(1.0, messages_in_delay(profile, delay)):.0f} "
         "messages; longer is larger batches, for latency"),
        ("batching_partition_switch_frequency", "delays", "always 1",
         "a partition gets one batch and the next one its turn: loads stay even, and no partition's "
         "permits are used up before the turn ends"),
    )  # fmt: skip
