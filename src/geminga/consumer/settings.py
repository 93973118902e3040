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
    """How the consumers of one subscription share its messages: ``Exclusive`` one gets all, ``Failover`` one
    gets all and others wait, ``Shared`` each message goes to any, ``KeyShared`` each key to one."""
    schema: Any = None
    """Turns payloads into values, and is told to the broker, which checks it."""
    receiver_queue_size: int = 1000
    """Messages that are asked for ahead of the application; 0: one at a time, when it asks."""
    receiver_queue_bytes_max: int = 128 * 1024 * 1024
    """No more messages are asked for while so many bytes wait for the application."""
    max_total_receiver_queue_size_across_partitions: int = 50000
    """The same as ``receiver_queue_size`` over all partitions; each has its fair share."""
    consumer_name: str | None = None
    """Shown in statistics, and decides who of a Failover subscription is next; None: the broker makes one."""
    priority_level: int = 0
    """0 is served first: consumers of a higher number get messages when those before them take none."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Metadata of the consumer, shown in the broker's statistics."""
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    """Metadata of the subscription, kept when it is created."""
    initial_position: InitialPosition = InitialPosition.Latest
    """Where a subscription that is created now begins: at the topic's ``Latest`` or ``Earliest`` message. One
    that exists goes on where it is."""
    durable: bool = True
    """False for readers: the broker keeps no cursor."""
    must_exist: bool = False
    """A durable subscription is never made, not after a lost connection either: `SubscriptionNotFound`."""
    start_message_id: MessageId | None = None
    """Where a reader begins."""
    start_message_id_inclusive: bool = False
    """Whether the message that is named by a start or a seek is itself delivered."""
    stop_at_message_id: MessageId | None = None
    """The last entry that is wanted: the broker is not asked for more, though a few may come."""
    start_message_rollback_seconds: int = 0
    """A reader begins so long before now."""
    is_read_compacted: bool = False
    """Read the compacted topic: of each key the newest message. Exclusive and Failover only."""
    replicate_subscription_state_enabled: bool = False
    """Asks an Apache Pulsar to replicate the subscription to other clusters."""
    force_topic_creation: bool = True
    """Whether subscribing makes an unknown topic, where the broker allows it."""
    key_shared_policy: ConsumerKeySharedPolicy | None = None
    """Who chooses the keys of a KeyShared consumer: the broker, or ranges of one's own."""

    ack_grouping_time_ms: int = 100
    """Acknowledgements wait so long for others to go with; 0: each goes at once."""
    ack_grouping_max: int = 1000
    """So many of them go at once."""
    ack_receipt_enabled: bool = False
    """`acknowledge` returns when the broker has the acknowledgement on disk, and raises when it has not."""
    batch_index_ack_enabled: bool = True
    """Single messages of a batch are acknowledged for themselves; else the broker hears of a batch when all
    of it is. An Apache Pulsar without ``acknowledgmentAtBatchIndexLevelEnabled`` takes no notice."""
    unacked_messages_timeout_ms: int | None = None
    """A message that is not acknowledged so long after it was received comes again; None and 0 never, else
    1,000 at least."""
    unacked_messages_tick_ms: int = 1000
    """How exactly that time is kept."""
    negative_ack_redelivery_delay_ms: int = 60000
    """How long after `negative_acknowledge` a message comes again."""
    negative_ack_redelivery_backoff: RedeliveryBackoff | None = None
    """The same, longer with each redelivery."""
    dead_letter_policy: ConsumerDeadLetterPolicy | None = None
    """After how many redeliveries a message goes to a dead-letter topic. Shared and KeyShared only."""
    retry_enabled: bool = False
    """Switches on `reconsume_later`, and subscribes to the retry topic besides. Shared and KeyShared only."""

    max_pending_chunked_message: int = 10
    """Chunked messages that may be incomplete at once."""
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    """When there are more: True acknowledges the oldest one's chunks, False has them come again."""
    expire_time_of_incomplete_chunked_message_ms: int = 60000
    """A message whose chunks have not all come within this time is dropped and acknowledged; 0 never."""
    message_bytes_max: int = 512 * 1024 * 1024
    """The largest payload that is accepted after decompression or chunk assembly, in bytes."""

    decryptor: Decryptor | None = None
    """Opens encrypted payloads; made of ``crypto_key_reader``."""
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    """What happens to a message that cannot be decrypted: ``FAIL`` it is not delivered and stays
    unacknowledged, ``DISCARD`` it is acknowledged unseen, ``CONSUME`` it is delivered encrypted."""

    message_listener: Callable[[Any, Any], Any] | None = None
    """Called with consumer and message for each one, in place of `receive`."""
    batch_receive_policy: ConsumerBatchReceivePolicy | None = None
    """When `batch_receive` returns: enough messages, enough bytes, or the time is over."""
    pattern_auto_discovery_period: float = 60.0
    """Seconds between two looks for topics that match the pattern; brokers tell of new ones in between."""
    regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    """Which topics a pattern may match: persistent ones, non-persistent ones, or both."""
    auto_update_partitions_seconds: float = 60.0
    """Seconds between two looks at a topic's partition count."""
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
            "retry_enabled", "start_paused", "must_exist", "auto_ack_oldest_chunked_message_on_queue_full",
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
    """Turns payloads into values."""
    receiver_queue_size: int = 1000
    """Messages that are asked for ahead of the application."""
    reader_name: str | None = None
    """Shown in statistics."""
    subscription_role_prefix: str | None = None
    """Begins the name of the reader's subscription, for authorization by prefix."""
    subscription_name: str | None = None
    """The name of the reader's subscription; None makes a random one."""
    is_read_compacted: bool = False
    """Read the compacted topic: of each key the newest message."""
    start_message_id_inclusive: bool = False
    """Whether the message at the start is itself delivered."""
    reader_listener: Callable[[Any, Any], Any] | None = None
    """Called with reader and message for each one, in place of `read_next`."""
    decryptor: Decryptor | None = None
    """Opens encrypted payloads; made of ``crypto_key_reader``."""
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    """What happens to a message that cannot be decrypted: ``FAIL`` it is not delivered, ``DISCARD`` it is
    left out, ``CONSUME`` it is delivered encrypted."""

    def __post_init__(self) -> None:
        check_int("receiver_queue_size", self.receiver_queue_size, 1, 10_000_000)
        check_type("reader_name", self.reader_name, str, optional=True)
        check_type("subscription_role_prefix", self.subscription_role_prefix, str, optional=True)
        check_type("subscription_name", self.subscription_name, str, optional=True)
        check_type("is_read_compacted", self.is_read_compacted, bool)
        check_type("start_message_id_inclusive", self.start_message_id_inclusive, bool)
        check_type("crypto_failure_action", self.crypto_failure_action, ConsumerCryptoFailureAction)
