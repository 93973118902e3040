"""What a consumer or reader can be told: frozen settings that check themselves.

Argument names and defaults are ``pulsar-client``'s where it has them (algorithms.md section 8); times
that it counts in milliseconds keep their ``_ms`` ending, all others are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from geminga.choices import Choice
from geminga.config import MILLISECONDS_MAX, check_int, check_seconds, check_type, refuse
from geminga.consumer.policies import ConsumerBatchReceivePolicy as ConsumerBatchReceivePolicy
from geminga.consumer.policies import ConsumerDeadLetterPolicy as ConsumerDeadLetterPolicy
from geminga.consumer.policies import ConsumerKeySharedPolicy as ConsumerKeySharedPolicy
from geminga.consumer.policies import KeySharedMode as KeySharedMode
from geminga.consumer.policies import RedeliveryBackoff as RedeliveryBackoff
from geminga.ids import MessageId


class ConsumerType(Choice):
    """How the consumers of one subscription share its messages. The values are the wire's ``SubType``."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(Choice):
    """Where a durable subscription starts when it is created."""

    Latest = 0
    Earliest = 1


class RegexSubscriptionMode(Choice):
    """Which topics a pattern may match."""

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class ConsumerCryptoFailureAction(Choice):
    """What happens to a message that cannot be decrypted.

    ``FAIL``: it is not delivered and stays unacknowledged; ``DISCARD``: it is acknowledged unseen;
    ``CONSUME``: it is delivered encrypted, with its encryption context.
    """

    FAIL = 0
    DISCARD = 1
    CONSUME = 2


INT32_MAX = (1 << 31) - 1

Decryptor = Callable[[Any, Any], bytes]
"""``(MessageMetadata, payload) -> plain payload``; raises `geminga.errors.CryptoError`."""


@runtime_checkable
class ConsumerEventListener(Protocol):
    """Told when a consumer of a Failover subscription becomes the active one of a topic or partition, and
    when another one does. ``partition`` is -1 where the topic has none.

    Threads: called on a listener thread. asyncio: called on the loop; what is returned may be awaited.
    """

    def became_active(self, consumer: Any, partition: int) -> object:
        """Messages come to this consumer from now on."""

    def became_inactive(self, consumer: Any, partition: int) -> object:
        """Messages go to another consumer from now on."""


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """All that decides how a consumer behaves.

    Limits: at most ``receiver_queue_size`` messages are asked for ahead of the application (0: one at
    a time, when it asks), and no more are asked for while ``receiver_queue_bytes_max`` bytes wait.
    """

    consumer_type: ConsumerType = ConsumerType.Exclusive
    schema: Any = None
    receiver_queue_size: int = 1000
    receiver_queue_bytes_max: int = 128 * 1024 * 1024
    max_total_receiver_queue_size_across_partitions: int = 50000
    consumer_name: str | None = None
    priority_level: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    initial_position: InitialPosition = InitialPosition.Latest
    durable: bool = True
    start_message_id: MessageId | None = None
    start_message_id_inclusive: bool = False
    stop_at_message_id: MessageId | None = None
    """The last entry that is wanted: the broker is not asked for more, though a few may come."""
    start_message_rollback_seconds: int = 0
    is_read_compacted: bool = False
    replicate_subscription_state_enabled: bool = False
    force_topic_creation: bool = True
    key_shared_policy: ConsumerKeySharedPolicy | None = None

    ack_grouping_time_ms: int = 100
    ack_grouping_max: int = 1000
    ack_receipt_enabled: bool = False
    batch_index_ack_enabled: bool = False
    unacked_messages_timeout_ms: int | None = None
    unacked_messages_tick_ms: int = 1000
    negative_ack_redelivery_delay_ms: int = 60000
    negative_ack_redelivery_backoff: RedeliveryBackoff | None = None
    dead_letter_policy: ConsumerDeadLetterPolicy | None = None
    retry_enabled: bool = False

    max_pending_chunked_message: int = 10
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    expire_time_of_incomplete_chunked_message_ms: int = 60000
    message_bytes_max: int = 512 * 1024 * 1024
    """The largest payload that is accepted after decompression or chunk assembly, in bytes."""

    decryptor: Decryptor | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL

    message_listener: Callable[[Any, Any], Any] | None = None
    batch_receive_policy: ConsumerBatchReceivePolicy | None = None
    pattern_auto_discovery_period: float = 60.0
    regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    auto_update_partitions_seconds: float = 60.0
    broker_consumer_stats_cache_time_ms: int = 30000
    """How old the broker's part of `stats` may be."""
    event_listener: ConsumerEventListener | None = None
    """Told of a Failover consumer's part; see `ConsumerEventListener`."""
    start_paused: bool = False
    """With a message listener: it is not called before `resume_message_listener` was."""

    def __post_init__(self) -> None:
        self._check_kinds()
        self._check_numbers()
        shared = self.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)
        if self.is_read_compacted and shared:
            refuse("is_read_compacted", True, "False for Shared and KeyShared subscriptions")
        if self.start_message_id is not None and self.durable:
            refuse("start_message_id", self.start_message_id, "None for a durable subscription")
        if self.start_paused and self.message_listener is None:
            refuse("start_paused", True, "False without a message_listener")
        if self.retry_enabled and not shared:
            refuse("retry_enabled", True, "False for Exclusive and Failover: they keep the order of messages")
        for name in ("properties", "subscription_properties"):
            for key, value in getattr(self, name).items():
                check_type(f"{name} key", key, str)
                check_type(f"{name}[{key!r}]", value, str)

    def _check_kinds(self) -> None:
        check_type("consumer_type", self.consumer_type, ConsumerType)
        check_type("initial_position", self.initial_position, InitialPosition)
        check_type("crypto_failure_action", self.crypto_failure_action, ConsumerCryptoFailureAction)
        check_type("regex_subscription_mode", self.regex_subscription_mode, RegexSubscriptionMode)
        check_type("key_shared_policy", self.key_shared_policy, ConsumerKeySharedPolicy, optional=True)
        check_type("dead_letter_policy", self.dead_letter_policy, ConsumerDeadLetterPolicy, optional=True)
        check_type(
            "batch_receive_policy", self.batch_receive_policy, ConsumerBatchReceivePolicy, optional=True
        )
        check_type("consumer_name", self.consumer_name, str, optional=True)
        if self.event_listener is not None and not isinstance(self.event_listener, ConsumerEventListener):
            refuse(
                "event_listener", self.event_listener,
                "None, or an object with became_active(consumer, partition) and became_inactive(...)",
            )  # fmt: skip
        check_type("start_message_id", self.start_message_id, MessageId, optional=True)
        check_type("stop_at_message_id", self.stop_at_message_id, MessageId, optional=True)
        check_type(
            "negative_ack_redelivery_backoff",
            self.negative_ack_redelivery_backoff, RedeliveryBackoff, optional=True,
        )  # fmt: skip
        for flag in (
            "durable", "start_message_id_inclusive", "is_read_compacted", "force_topic_creation",
            "replicate_subscription_state_enabled", "ack_receipt_enabled", "batch_index_ack_enabled",
            "retry_enabled", "start_paused", "auto_ack_oldest_chunked_message_on_queue_full",
        ):  # fmt: skip
            check_type(flag, getattr(self, flag), bool)

    def _check_numbers(self) -> None:
        check_int("receiver_queue_size", self.receiver_queue_size, 0, 10_000_000)
        check_int("receiver_queue_bytes_max", self.receiver_queue_bytes_max, 1)
        check_int(
            "max_total_receiver_queue_size_across_partitions",
            self.max_total_receiver_queue_size_across_partitions, 1,
        )  # fmt: skip
        check_int("priority_level", self.priority_level, 0, INT32_MAX)
        check_int("start_message_rollback_seconds", self.start_message_rollback_seconds, 0)
        check_int("ack_grouping_time_ms", self.ack_grouping_time_ms, 0, 3_600_000)
        check_int("ack_grouping_max", self.ack_grouping_max, 1, 100_000)
        if self.unacked_messages_timeout_ms is not None:
            check_int("unacked_messages_timeout_ms", self.unacked_messages_timeout_ms, 0, MILLISECONDS_MAX)
            if 0 < self.unacked_messages_timeout_ms < 1000:
                refuse("unacked_messages_timeout_ms", self.unacked_messages_timeout_ms, "0 (off) or >= 1000")
        check_int("unacked_messages_tick_ms", self.unacked_messages_tick_ms, 10)
        check_int(
            "negative_ack_redelivery_delay_ms", self.negative_ack_redelivery_delay_ms, 0, MILLISECONDS_MAX
        )
        check_int("broker_consumer_stats_cache_time_ms", self.broker_consumer_stats_cache_time_ms, 0)
        check_int("max_pending_chunked_message", self.max_pending_chunked_message, 1)
        check_int(
            "expire_time_of_incomplete_chunked_message_ms",
            self.expire_time_of_incomplete_chunked_message_ms, 0,
        )  # fmt: skip
        check_int("message_bytes_max", self.message_bytes_max, 1)
        check_seconds("pattern_auto_discovery_period", self.pattern_auto_discovery_period, 0.01)
        check_seconds("auto_update_partitions_seconds", self.auto_update_partitions_seconds, 0.01)

    @property
    def individual_only(self) -> bool:
        """Shared and Key_Shared: messages are acknowledged and redelivered one by one."""
        return self.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)

    @property
    def ack_timeout_seconds(self) -> float:
        """0 when the acknowledgement time-out is off."""
        return (self.unacked_messages_timeout_ms or 0) / 1000


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """How a reader behaves; ``start_message_id`` is an argument of its own."""

    schema: Any = None
    receiver_queue_size: int = 1000
    reader_name: str | None = None
    subscription_role_prefix: str | None = None
    subscription_name: str | None = None
    is_read_compacted: bool = False
    start_message_id_inclusive: bool = False
    reader_listener: Callable[[Any, Any], Any] | None = None
    decryptor: Decryptor | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL

    def __post_init__(self) -> None:
        check_int("receiver_queue_size", self.receiver_queue_size, 1, 10_000_000)
        check_type("reader_name", self.reader_name, str, optional=True)
        check_type("subscription_role_prefix", self.subscription_role_prefix, str, optional=True)
        check_type("subscription_name", self.subscription_name, str, optional=True)
        check_type("is_read_compacted", self.is_read_compacted, bool)
        check_type("start_message_id_inclusive", self.start_message_id_inclusive, bool)
        check_type("crypto_failure_action", self.crypto_failure_action, ConsumerCryptoFailureAction)
