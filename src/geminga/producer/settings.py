"""The settings of a producer.

Names and defaults are those of ``pulsar-client`` 3.13 (algorithms.md section 8). Where batching is switched
on, a sender that waits closes its batch at once and a batch of one travels as a plain message, so it costs a
synchronous sender nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from geminga.choices import Choice
from geminga.config import check_choice, check_int, check_seconds, check_type, refuse
from geminga.schema_info import SchemaInfo as SchemaInfo
from geminga.wire.compression import LEVELS_MAX
from geminga.wire.encryption import PayloadEncryptor

SEQUENCE_ID_MAX = (1 << 63) - 1
MAX_MESSAGES_LIMIT = 1_000_000
"""The most messages that one batch may hold."""
BATCH_BYTES_LIMIT = 1 << 30
"""The most payload bytes that one batch may be allowed; the broker's ``max_message_size`` rules below it."""

LATENCY_BUDGET_MIN_SECONDS = 0.002
"""Below it no delay of a millisecond and a receipt fit in."""
LATENCY_BUDGET_MAX_SECONDS = 60.0
TUNED_FIELDS = (
    "batching_max_messages",
    "batching_max_allowed_size_in_bytes",
    "batching_max_publish_delay_seconds",
    "batching_partition_switch_frequency",
)
"""What a producer with a latency budget chooses by itself."""

IN_MILLISECONDS = {
    "send_timeout_seconds": "send_timeout_millis",
    "blocked_after_seconds": "blocked_after_ms",
    "batching_max_publish_delay_seconds": "batching_max_publish_delay_ms",
    "latency_budget_seconds": "latency_budget_ms",
}
"""Fields whose argument of ``create_producer`` is named in another unit: milliseconds instead of seconds."""


class CompressionType(Choice):
    """How a payload (for a batch: the whole batch) is compressed; the wire's numbers."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class PartitionsRoutingMode(Choice):
    """Where messages without a key go. Keys are routed by their hash in every mode but the custom one."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(Choice):
    """One batch for all messages of a partition, or one for each key (for Key_Shared consumers)."""

    Default = 0
    KeyBased = 1


class ProducerAccessMode(Choice):
    """Who else may publish to the topic; the wire's numbers."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class HashingScheme(Enum):
    """The hash that chooses a key's partition.

    ``BoostHash`` is what ``pulsar-client`` uses and the default, so that nobody's keys move. The Java
    client's default is ``JavaStringHash``: it sends the same key to another partition.
    """

    BoostHash = "BoostHash"
    JavaStringHash = "JavaStringHash"
    Murmur3_32Hash = "Murmur3_32Hash"


BATCHING_DELAY_SECONDS = 0.01
"""The default of ``batching_max_publish_delay_seconds``; ``await send`` waits a longer one out."""


def check_compression_level(name: str, level: int, compression: CompressionType) -> None:
    """A level that a codec has, or 0 for its usual one. Raises `InvalidConfiguration`."""
    highest = LEVELS_MAX.get(int(compression), 0)
    check_int(name, level, 0)
    if level > highest:
        which = f"a whole number >= 0 and <= {highest}" if highest else "0: only ZSTD and ZLib have levels,"
        refuse(name, level, f"{which} with compression {compression.name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerSettings:
    """Everything that can be chosen for a producer; refuses values out of range.

    Raises `geminga.errors.InvalidConfiguration` naming field, value and what is allowed.
    """

    producer_name: str | None = None
    """Unique among the topic's producers; the broker makes one when it is None."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Metadata of the producer, shown in the broker's statistics."""
    initial_sequence_id: int | None = None
    """The id before that of the first message; None takes the broker's last one for this name, or -1."""
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    """Who else may publish to the topic: ``Shared`` anybody; ``Exclusive`` nobody, or this producer is
    refused; ``WaitForExclusive`` waits until it is alone; ``ExclusiveWithFencing`` throws the others out."""
    initial_subscription_name: str | None = None
    """Created at the earliest position together with the topic, if it is missing."""
    schema: SchemaInfo | None = None
    """What is told about the values; the broker checks it against the topic's schemas."""
    encode: Callable[[Any], Any] | None = None
    """Turns a value into the payload, or into a `KeyedContent`; None takes bytes only."""

    send_timeout_seconds: float = 30.0
    """From the hand-over of a message to its receipt; 0 waits without limit."""
    max_pending_messages: int = 1000
    """Messages of a partition without a receipt yet; 0 is without limit."""
    max_pending_messages_across_partitions: int = 50_000
    """The same over all partitions; each may use its fair share. 0 is without limit."""
    block_if_queue_full: bool = False
    """Wait for a permit instead of refusing with ProducerQueueIsFull or MemoryBufferIsFull."""

    compression_type: CompressionType = CompressionType.NONE
    """How payloads (of a batch: as a whole) are compressed."""
    compression_level: int = 0
    """How hard ZSTD (1 to 19) and ZLib (1 to 9) try; 0 takes 3 and 6, as Java's and C++'s clients do."""
    batching_enabled: bool = False
    """Several messages in one entry: many times the rate at a fraction of the CPU. A consumer gets an entry
    whole: Shared consumers share by batch, and Key_Shared ones need ``BatchingType.KeyBased``. Never together
    with chunking. Tables are made of batches in any case."""
    batching_type: BatchingType = BatchingType.Default
    """``Default``: one batch for what comes close together; ``KeyBased``: one for each key, for Key_Shared
    consumers."""
    batching_max_messages: int = 1000
    """A batch is closed with so many messages; 1,000,000 at most."""
    batching_max_allowed_size_in_bytes: int = 128 * 1024
    """Sum of payload bytes of one batch, before compression."""
    batching_max_publish_delay_seconds: float = BATCHING_DELAY_SECONDS
    """How long a batch stays open for more messages when nobody waits for it."""
    batching_partition_switch_frequency: int = 10
    """An unkeyed round robin stays on one partition for so many publish delays, or until a batch is full."""
    latency_budget_seconds: float | None = None
    """From the hand-over of a message to its receipt, for 99 of 100: the producer chooses delay, batch
    limits and partition stay by itself and the four settings above stay at their defaults. None: off."""
    chunking_enabled: bool = False
    """Cut what is larger than the broker takes into chunks; needs a persistent topic."""
    chunk_max_message_size: int | None = None
    """Bytes of one chunk, metadata included; None takes the broker's ``max_message_size``."""

    message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    """Where messages without a key go; those with a key go by its hash. ``RoundRobinDistribution`` over all
    partitions, ``UseSinglePartition`` to one, ``CustomPartition`` where ``message_router`` says."""
    message_router: Callable[..., int] | None = None
    """``router(message, partition_count)`` for CustomPartition; it may take the states as third argument."""
    hashing_scheme: HashingScheme = HashingScheme.BoostHash
    """The hash that chooses a key's partition. ``BoostHash`` agrees with ``pulsar-client``; Java's client has
    ``JavaStringHash`` as its default."""
    lazy_start_partitioned_producers: bool = False
    """Start a partition's producer with its first message instead of all of them at creation."""
    partitions_refresh_seconds: float = 60.0
    """How often the partition count is read again; 0 never."""
    blocked_after_seconds: float = 1.0
    """A partition whose oldest message waits longer for its receipt is stepped over by unkeyed messages."""
    step_over_blocked_partitions: bool = True
    """Unkeyed messages go round blocked partitions; False: they wait or are refused, as in Java's client."""

    interceptors: Sequence[Any] = ()
    """Called before a message is sent and at its receipt, in this order."""
    encryptor: PayloadEncryptor | None = None
    """Encrypts every entry, batches as a whole and chunks one by one; None sends plain text."""

    @property
    def encrypted(self) -> bool:
        """What PRODUCER tells the broker."""
        return self.encryptor is not None

    def __post_init__(self) -> None:
        self._check_identity()
        self._check_limits()
        self._check_batching()
        self._check_routing()

    def _check_identity(self) -> None:
        check_type("producer_name", self.producer_name, str, optional=True)
        if self.producer_name == "":
            refuse("producer_name", "", "a text that is not empty, or None")
        check_type("properties", self.properties, Mapping)
        for key, value in self.properties.items():
            check_type(f"properties[{key!r}]", value, str)
            check_type("properties key", key, str)
        if self.initial_sequence_id is not None:
            check_int("initial_sequence_id", self.initial_sequence_id, -1, SEQUENCE_ID_MAX)
        check_choice("access_mode", self.access_mode, list(ProducerAccessMode))
        check_type("initial_subscription_name", self.initial_subscription_name, str, optional=True)
        check_type("schema", self.schema, SchemaInfo, optional=True)
        check_type("encryptor", self.encryptor, PayloadEncryptor, optional=True)

    def _check_limits(self) -> None:
        check_seconds("send_timeout_seconds", self.send_timeout_seconds)
        check_int("max_pending_messages", self.max_pending_messages, 0)
        check_int("max_pending_messages_across_partitions", self.max_pending_messages_across_partitions, 0)
        check_type("block_if_queue_full", self.block_if_queue_full, bool)
        check_choice("compression_type", self.compression_type, list(CompressionType))
        check_compression_level("compression_level", self.compression_level, self.compression_type)

    def _check_batching(self) -> None:
        check_type("batching_enabled", self.batching_enabled, bool)
        check_choice("batching_type", self.batching_type, list(BatchingType))
        check_int("batching_max_messages", self.batching_max_messages, 1, MAX_MESSAGES_LIMIT)
        check_int(
            "batching_max_allowed_size_in_bytes",
            self.batching_max_allowed_size_in_bytes,
            1,
            BATCH_BYTES_LIMIT,
        )
        check_seconds("batching_max_publish_delay_seconds", self.batching_max_publish_delay_seconds, 0.0)
        check_int("batching_partition_switch_frequency", self.batching_partition_switch_frequency, 1)
        check_type("chunking_enabled", self.chunking_enabled, bool)
        if self.chunking_enabled and self.batching_enabled:
            refuse(
                "chunking_enabled", True, "True only with batching_enabled=False: a chunk is never batched"
            )
        if self.chunk_max_message_size is not None:
            check_int("chunk_max_message_size", self.chunk_max_message_size, 64)
        if self.latency_budget_seconds is not None:
            self._check_latency_budget(self.latency_budget_seconds)

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
            value, default = getattr(self, name), _default_of(name)
            if value != default:
                refuse(name, value, f"its default {default!r} with a latency budget: the producer chooses it")

    def _check_routing(self) -> None:
        check_choice("message_routing_mode", self.message_routing_mode, list(PartitionsRoutingMode))
        check_choice("hashing_scheme", self.hashing_scheme, list(HashingScheme))
        check_type("lazy_start_partitioned_producers", self.lazy_start_partitioned_producers, bool)
        check_seconds("partitions_refresh_seconds", self.partitions_refresh_seconds)
        check_seconds("blocked_after_seconds", self.blocked_after_seconds)
        check_type("step_over_blocked_partitions", self.step_over_blocked_partitions, bool)
        custom = self.message_routing_mode is PartitionsRoutingMode.CustomPartition
        if custom and not callable(self.message_router):
            refuse("message_router", self.message_router, "a callable, for CustomPartition")
        if not custom and self.message_router is not None:
            refuse("message_routing_mode", self.message_routing_mode, "CustomPartition with a message_router")


def _default_of(name: str) -> object:
    return next(f.default for f in fields(ProducerSettings) if f.name == name)
