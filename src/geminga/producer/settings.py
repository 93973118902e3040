"""Settings of a producer.

Names and defaults are those of ``pulsar-client`` 3.13 (algorithms.md section 8). With batching enabled, a
sender that waits closes its batch at once and a batch of one is sent as a plain message, so batching costs a
synchronous sender nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from geminga._util.choices import Choice
from geminga._util.choices import CompressionType as CompressionType
from geminga.config import (
    Check,
    check_fields,
    check_int,
    check_seconds,
    check_texts,
    check_type,
    defaults_of,
    instance_of,
    refuse,
)
from geminga.schema_info import SchemaInfo as SchemaInfo
from geminga.wire.compression import LEVELS_MAX
from geminga.wire.encryption import PayloadEncryptor

SEQUENCE_ID_MAX = (1 << 63) - 1
MAX_MESSAGES_LIMIT = 1_000_000
"""Maximum messages of a batch that may be set."""
BATCH_BYTES_LIMIT = 1 << 30
"""Maximum payload bytes of a batch that may be set; the broker's ``max_message_size`` applies below it."""

LATENCY_BUDGET_MIN_SECONDS = 0.002
"""Minimum latency budget: less has no room for a delay of a millisecond and a receipt."""
LATENCY_BUDGET_MAX_SECONDS = 60.0
TUNED_FIELDS = (
    "batching_max_messages",
    "batching_max_allowed_size_in_bytes",
    "batching_max_publish_delay_seconds",
    "batching_partition_switch_frequency",
)
"""Settings that a producer with a latency budget chooses itself."""

IN_MILLISECONDS = {
    "send_timeout_seconds": "send_timeout_millis",
    "blocked_after_seconds": "blocked_after_ms",
    "batching_max_publish_delay_seconds": "batching_max_publish_delay_ms",
    "latency_budget_seconds": "latency_budget_ms",
}
"""Fields whose argument of ``create_producer`` is named in another unit: milliseconds instead of seconds."""


class PartitionsRoutingMode(Choice):
    """Routing of messages without a key. Keys are routed by their hash in every mode but the custom one."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(Choice):
    """One batch for all messages of a partition, or one for each key (for Key_Shared consumers)."""

    Default = 0
    KeyBased = 1


class ProducerAccessMode(Choice):
    """Access to the topic shared with, or exclusive of, other producers; the wire's numbers."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class HashingScheme(Enum):
    """The hash that maps a key to a partition.

    ``BoostHash`` is that of ``pulsar-client`` and the default, so that existing keys stay on their
    partitions. The Java client's default is ``JavaStringHash``: it sends the same key to another partition.
    """

    BoostHash = "BoostHash"
    JavaStringHash = "JavaStringHash"
    Murmur3_32Hash = "Murmur3_32Hash"


BATCHING_DELAY_SECONDS = 0.01
"""The default of ``batching_max_publish_delay_seconds``; ``await send`` waits out a longer one."""


def check_compression_level(name: str, level: int, compression: CompressionType) -> None:
    """Check for a level that a codec has, or 0 for its usual one. Raises `InvalidConfiguration`."""
    highest = LEVELS_MAX.get(int(compression), 0)
    check_int(name, level, 0)
    if level > highest:
        which = f"a whole number >= 0 and <= {highest}" if highest else "0: only ZSTD and ZLib have levels,"
        refuse(name, level, f"{which} with compression {compression.name}")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ProducerSettings:
    """Settings of a producer; values out of range are rejected.

    Raises `geminga.errors.InvalidConfiguration` naming field, value and allowed values.
    """

    producer_name: str | None = None
    """Unique among the topic's producers; None: the broker generates one."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Metadata of the producer, shown in the broker's statistics."""
    initial_sequence_id: int | None = None
    """The id before that of the first message; None: the broker's last one for this name, or -1."""
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    """Access to the topic beside other producers: ``Shared`` with others; ``Exclusive`` alone, or the
    creation fails; ``WaitForExclusive`` waits until it is alone; ``ExclusiveWithFencing`` disconnects the
    others."""
    initial_subscription_name: str | None = None
    """Created at the earliest position together with the topic, if it is missing."""
    schema: SchemaInfo | None = None
    """Schema of the values; the broker checks its compatibility with the topic's schemas."""
    encode: Callable[[Any], Any] | None = None
    """Encodes a value to the payload, or to a `KeyedContent`; None accepts bytes only."""

    send_timeout_seconds: float = 30.0
    """Time from the acceptance of a message to its receipt (for later batches of a table, from the receipt
    before); 0 waits without limit."""
    max_pending_messages: int = 1000
    """Maximum messages of a partition without a receipt; 0 is without limit."""
    max_pending_messages_across_partitions: int = 50_000
    """Maximum messages of all partitions without a receipt; each has an equal share. 0 is without limit."""
    block_if_queue_full: bool = False
    """Wait for a permit instead of raising ProducerQueueIsFull or MemoryBufferIsFull."""

    compression_type: CompressionType = CompressionType.NONE
    """Compression of payloads (of a batch: as a whole)."""
    compression_level: int = 0
    """Compression level of ZSTD (1 to 19) and ZLib (1 to 9); 0 means 3 and 6, as in Java and C++."""
    batching_enabled: bool = False
    """Send several messages in one entry: many times the rate at a fraction of the CPU. A consumer gets an
    entry whole: Shared consumers share by batch, and Key_Shared ones need ``BatchingType.KeyBased``. Never
    together with chunking. Tables are always sent in batches."""
    batching_type: BatchingType = BatchingType.Default
    """``Default``: one batch for all messages; ``KeyBased``: one for each key, for Key_Shared consumers."""
    batching_max_messages: int = 1000
    """Number of messages at which a batch is closed; at most 1,000,000."""
    batching_max_allowed_size_in_bytes: int = 128 * 1024
    """Sum of payload bytes of one batch, before compression."""
    batching_max_publish_delay_seconds: float = BATCHING_DELAY_SECONDS
    """Time for which a batch stays open for more messages while no sender waits for it."""
    batching_partition_switch_frequency: int = 10
    """Stay of an unkeyed round robin on one partition, in publish delays; a full batch ends it early."""
    latency_budget_seconds: float | None = None
    """Time from the acceptance of a message to its receipt, for 99 of 100: the producer chooses delay, batch
    limits and partition stay itself, and the four settings above stay at their defaults. None: off."""
    chunking_enabled: bool = False
    """Split messages larger than the broker's limit into chunks; requires a persistent topic."""
    chunk_max_message_size: int | None = None
    """Bytes of one chunk, including metadata; None: the broker's ``max_message_size``."""

    message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    """Routing of messages without a key; those with a key are routed by its hash. ``RoundRobinDistribution``
    over all partitions, ``UseSinglePartition`` to one, ``CustomPartition`` by ``message_router``."""
    message_router: Callable[..., int] | None = None
    """``router(message, partition_count)`` for CustomPartition; it may take the states as third argument."""
    hashing_scheme: HashingScheme = HashingScheme.BoostHash
    """The hash that maps a key to a partition. ``BoostHash`` agrees with ``pulsar-client``; the default of
    Java's client is ``JavaStringHash``."""
    lazy_start_partitioned_producers: bool = False
    """Start a partition's producer with its first message instead of all of them at creation."""
    partitions_refresh_seconds: float = 60.0
    """Seconds between two checks of the partition count; 0 never."""
    blocked_after_seconds: float = 1.0
    """Unkeyed messages skip a partition whose oldest message waits longer than this for its receipt."""
    step_over_blocked_partitions: bool = True
    """Unkeyed messages skip blocked partitions; False: they wait or fail, as in Java's client."""

    interceptors: Sequence[Any] = ()
    """Called before a message is sent and at its receipt, in this order."""
    encryptor: PayloadEncryptor | None = None
    """Encrypts every entry, batches as a whole and chunks one by one; None sends plain text."""

    @property
    def encrypted(self) -> bool:
        """Whether entries are encrypted, as sent in PRODUCER."""
        return self.encryptor is not None

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        check_compression_level("compression_level", self.compression_level, self.compression_type)
        if self.chunking_enabled and self.batching_enabled:
            refuse(
                "chunking_enabled", True, "True only with batching_enabled=False: a chunk is never batched"
            )
        if self.latency_budget_seconds is not None:
            self._check_latency_budget(self.latency_budget_seconds)
        custom = self.message_routing_mode is PartitionsRoutingMode.CustomPartition
        if custom and not callable(self.message_router):
            refuse("message_router", self.message_router, "a callable, for CustomPartition")
        if not custom and self.message_router is not None:
            refuse("message_routing_mode", self.message_routing_mode, "CustomPartition with a message_router")

    def _check_latency_budget(self, budget: float) -> None:
        check_seconds(
            "latency_budget_seconds", budget, LATENCY_BUDGET_MIN_SECONDS, LATENCY_BUDGET_MAX_SECONDS
        )
        if not self.batching_enabled:
            refuse("latency_budget_seconds", budget, "None without batching_enabled=True: nothing waits")
        if 0 < self.send_timeout_seconds <= budget:
            refuse(
                "latency_budget_seconds", budget,
                f"less than send_timeout_seconds={self.send_timeout_seconds:g}",
            )  # fmt: skip
        for name in TUNED_FIELDS:
            value, default = getattr(self, name), defaults_of(ProducerSettings)[name]
            if value != default:
                refuse(name, value, f"its default {default!r} with a latency budget: the producer chooses it")


def _check_name(field: str, value: Any) -> None:
    check_type(field, value, str, optional=True)
    if value == "":
        refuse(field, value, "a text that is not empty, or None")


_CHECKS: dict[str, Check] = {
    "producer_name": _check_name,
    "properties": check_texts,
    "initial_sequence_id": partial(check_int, minimum=-1, maximum=SEQUENCE_ID_MAX),
    "initial_subscription_name": instance_of(str, optional=True),
    "schema": instance_of(SchemaInfo, optional=True),
    "encryptor": instance_of(PayloadEncryptor, optional=True),
    "send_timeout_seconds": check_seconds,
    "max_pending_messages": partial(check_int, minimum=0),
    "max_pending_messages_across_partitions": partial(check_int, minimum=0),
    "batching_max_messages": partial(check_int, minimum=1, maximum=MAX_MESSAGES_LIMIT),
    "batching_max_allowed_size_in_bytes": partial(check_int, minimum=1, maximum=BATCH_BYTES_LIMIT),
    "batching_max_publish_delay_seconds": check_seconds,
    "batching_partition_switch_frequency": partial(check_int, minimum=1),
    "chunk_max_message_size": partial(check_int, minimum=64),
    "partitions_refresh_seconds": check_seconds,
    "blocked_after_seconds": check_seconds,
}
"""Checks of the fields other than flags and choices."""
