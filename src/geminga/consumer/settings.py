"""Settings of consumers and readers: frozen objects that check their values.

Argument names and defaults are ``pulsar-client``'s where it has them (algorithms.md section 8); times that it
counts in milliseconds keep their ``_ms`` ending, all others are seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

from geminga._util.choices import Choice
from geminga.config import (
    MILLISECONDS_MAX,
    Check,
    check_fields,
    check_int,
    check_seconds,
    check_texts,
    instance_of,
    refuse,
)
from geminga.consumer.policies import ConsumerBatchReceivePolicy as ConsumerBatchReceivePolicy
from geminga.consumer.policies import ConsumerDeadLetterPolicy as ConsumerDeadLetterPolicy
from geminga.consumer.policies import ConsumerKeySharedPolicy as ConsumerKeySharedPolicy
from geminga.consumer.policies import KeySharedMode as KeySharedMode
from geminga.consumer.policies import RedeliveryBackoff as RedeliveryBackoff
from geminga.ids import MessageId
from geminga.wire.encryption import PayloadDecryptor


class ConsumerType(Choice):
    """Distribution of a subscription's messages to its consumers. The values are the wire's ``SubType``."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(Choice):
    """Start of a durable subscription when it is created."""

    Latest = 0
    Earliest = 1


class RegexSubscriptionMode(Choice):
    """Topics that a pattern may match."""

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class ConsumerCryptoFailureAction(Choice):
    """Handling of a message that cannot be decrypted.

    ``FAIL``: it is not delivered and stays unacknowledged; ``DISCARD``: it is acknowledged without delivery;
    ``CONSUME``: it is delivered encrypted, with its encryption context.
    """

    FAIL = 0
    DISCARD = 1
    CONSUME = 2


INT32_MAX = (1 << 31) - 1


@runtime_checkable
class ConsumerEventListener(Protocol):
    """Called when a consumer of a Failover subscription becomes the active one of a topic or partition, and
    when another one does. ``partition`` is -1 for a topic without partitions.

    Threads: called on a listener thread. asyncio: called on the loop; an awaitable result is awaited.
    """

    def became_active(self, consumer: Any, partition: int) -> object:
        """Handle that messages are sent to this consumer from now on."""

    def became_inactive(self, consumer: Any, partition: int) -> object:
        """Handle that messages are sent to another consumer from now on."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ConsumerSettings:
    """Settings of a consumer.

    Limits: at most ``receiver_queue_size`` messages are requested ahead of the application (0: one at a time,
    on demand), and no more are requested while ``receiver_queue_bytes_max`` bytes are queued.
    """

    consumer_type: ConsumerType = ConsumerType.Exclusive
    """Distribution of a subscription's messages: ``Exclusive`` one consumer gets all, ``Failover`` one gets
    all and others wait, ``Shared`` each message goes to any, ``KeyShared`` each key to one."""
    schema: Any = None
    """Converts payloads to values, and is sent to the broker, which checks its compatibility."""
    receiver_queue_size: int = 1000
    """Messages requested ahead of the application; 0: one at a time, on demand."""
    receiver_queue_bytes_max: int = 128 * 1024 * 1024
    """Bytes of queued messages at which no more messages are requested."""
    max_total_receiver_queue_size_across_partitions: int = 50000
    """Maximum of the receiver queues of all partitions together; each has an equal share."""
    consumer_name: str | None = None
    """Shown in statistics; also orders Failover consumers. None: the broker generates one."""
    priority_level: int = 0
    """0 is served first: consumers of a higher number get messages only when no lower one has permits."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Metadata of the consumer, shown in the broker's statistics."""
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    """Metadata of the subscription, stored when it is created."""
    initial_position: InitialPosition = InitialPosition.Latest
    """Start of a new subscription: ``Latest`` or ``Earliest``. An existing one resumes at its cursor."""
    durable: bool = True
    """False for readers: the broker keeps no cursor."""
    must_exist: bool = False
    """Raise `SubscriptionNotFound` instead of creating a durable subscription, also on reconnects."""
    start_message_id: MessageId | None = None
    """Start of a reader."""
    start_message_id_inclusive: bool = False
    """Whether the message named by a start or a seek is itself delivered."""
    stop_at_message_id: MessageId | None = None
    """The last wanted entry: no later ones are requested, though a few may arrive."""
    is_read_compacted: bool = False
    """Read the compacted topic: the newest message of each key. Exclusive and Failover only."""
    replicate_subscription_state_enabled: bool = False
    """Requests that Apache Pulsar replicates the subscription to other clusters."""
    force_topic_creation: bool = True
    """Whether subscribing creates a missing topic, where the broker allows it."""
    key_shared_policy: ConsumerKeySharedPolicy | None = None
    """Whether the broker assigns the keys of a KeyShared consumer, or its own ranges do."""

    ack_grouping_time_ms: int = 100
    """Time for which acknowledgements are collected; 0: each is sent at once."""
    ack_grouping_max: int = 1000
    """Number of collected acknowledgements at which they are sent."""
    ack_receipt_enabled: bool = False
    """`acknowledge` returns when the broker has stored the acknowledgement, and raises if that fails."""
    batch_index_ack_enabled: bool = True
    """Acknowledge messages of a batch individually; otherwise a batch is acknowledged when all of its
    messages are. Ignored by Apache Pulsar without ``acknowledgmentAtBatchIndexLevelEnabled``."""
    unacked_messages_timeout_ms: int | None = None
    """Time after which an unacknowledged message is redelivered; None and 0 never, else at least 1,000."""
    unacked_messages_tick_ms: int = 1000
    """Precision of the acknowledgement time-out."""
    negative_ack_redelivery_delay_ms: int = 60000
    """Delay of the redelivery after `negative_acknowledge`."""
    negative_ack_redelivery_backoff: RedeliveryBackoff | None = None
    """Delay of that redelivery that increases with the redelivery count."""
    dead_letter_policy: ConsumerDeadLetterPolicy | None = None
    """Redeliveries before a message goes to a dead letter topic, and its name. Shared, KeyShared."""
    retry_enabled: bool = False
    """Enables `reconsume_later`, and subscribes to the retry topic too. Shared and KeyShared only."""

    max_pending_chunked_message: int = 10
    """Maximum incomplete chunked messages."""
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    """Handling of the oldest incomplete message when there are more: True acknowledges its chunks, False has
    them redelivered."""
    expire_time_of_incomplete_chunked_message_ms: int = 60000
    """Time after which an incomplete chunked message is dropped and acknowledged; 0 never."""
    message_bytes_max: int = 512 * 1024 * 1024
    """The largest payload that is accepted after decompression or chunk assembly, in bytes."""

    decryptor: PayloadDecryptor | None = None
    """Decrypts payloads; made of ``crypto_key_reader``."""
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    """Handling of a message that cannot be decrypted: ``FAIL`` it is not delivered and stays unacknowledged,
    ``DISCARD`` it is acknowledged without delivery, ``CONSUME`` it is delivered encrypted."""

    message_listener: Callable[[Any, Any], Any] | None = None
    """Called with consumer and message for each message, instead of `receive`."""
    failure_listener: Callable[[Any, Any], Any] | None = None
    """With a message listener: called instead of it with each message that cannot be decrypted or decoded."""
    batch_receive_policy: ConsumerBatchReceivePolicy | None = None
    """Limits at which `batch_receive` returns: number of messages, bytes, or a time-out."""
    pattern_auto_discovery_period: float = 60.0
    """Seconds between two searches for matching topics; brokers notify of new ones in between."""
    regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    """Topics that a pattern may match: persistent ones, non-persistent ones, or both."""
    auto_update_partitions_seconds: float = 60.0
    """Seconds between two checks of a topic's partition count."""
    broker_consumer_stats_cache_time_ms: int = 30000
    """Maximum age of the broker's part of `stats`."""
    event_listener: ConsumerEventListener | None = None
    """Notified when a Failover consumer becomes active or inactive; see `ConsumerEventListener`."""
    start_paused: bool = False
    """With a message listener: call it only after `resume_message_listener`."""

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        shared = self.individual_only
        if self.is_read_compacted and shared:
            refuse("is_read_compacted", True, "False for Shared and KeyShared subscriptions")
        if self.start_message_id is not None and self.durable:
            refuse("start_message_id", self.start_message_id, "None for a durable subscription")
        if self.start_paused and self.message_listener is None:
            refuse("start_paused", True, "False without a message_listener")
        _check_failure_listener(self, "message_listener")
        if self.retry_enabled and not shared:
            refuse("retry_enabled", True, "False for Exclusive and Failover: they keep the order of messages")

    @property
    def individual_only(self) -> bool:
        """Shared and Key_Shared: messages are acknowledged and redelivered individually."""
        return self.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)

    @property
    def delivers_ciphertext(self) -> bool:
        """Messages that cannot be decrypted are delivered encrypted."""
        action = self.crypto_failure_action
        return action is ConsumerCryptoFailureAction.CONSUME or self.failure_listener is not None

    @property
    def ack_timeout_seconds(self) -> float:
        """0 when the acknowledgement time-out is off."""
        return (self.unacked_messages_timeout_ms or 0) / 1000


def _check_failure_listener(settings: Any, name: str) -> None:
    if settings.failure_listener is None:
        return
    if not callable(settings.failure_listener):
        refuse("failure_listener", settings.failure_listener, "a callable like the message listener, or None")
    if getattr(settings, name) is None:
        refuse("failure_listener", settings.failure_listener, f"None without a {name}")
    if settings.crypto_failure_action is ConsumerCryptoFailureAction.DISCARD:
        refuse("crypto_failure_action", settings.crypto_failure_action, "not DISCARD with a failure_listener")


def _check_event_listener(field: str, value: Any) -> None:
    if not isinstance(value, ConsumerEventListener):
        allowed = "None, or an object with became_active(consumer, partition) and became_inactive(...)"
        refuse(field, value, allowed)


def _check_ack_timeout(field: str, value: Any) -> None:
    if 0 < check_int(field, value, 0, MILLISECONDS_MAX) < 1000:
        refuse(field, value, "0 (off) or >= 1000")


_NOT_NEGATIVE = partial(check_int, minimum=0)
_POSITIVE = partial(check_int, minimum=1)
_CHECKS: dict[str, Check] = {
    "key_shared_policy": instance_of(ConsumerKeySharedPolicy, optional=True),
    "dead_letter_policy": instance_of(ConsumerDeadLetterPolicy, optional=True),
    "batch_receive_policy": instance_of(ConsumerBatchReceivePolicy, optional=True),
    "consumer_name": instance_of(str, optional=True),
    "event_listener": _check_event_listener,
    "start_message_id": instance_of(MessageId, optional=True),
    "stop_at_message_id": instance_of(MessageId, optional=True),
    "negative_ack_redelivery_backoff": instance_of(RedeliveryBackoff, optional=True),
    "receiver_queue_size": partial(check_int, minimum=0, maximum=10_000_000),
    "receiver_queue_bytes_max": _POSITIVE,
    "max_total_receiver_queue_size_across_partitions": _POSITIVE,
    "priority_level": partial(check_int, minimum=0, maximum=INT32_MAX),
    "ack_grouping_time_ms": partial(check_int, minimum=0, maximum=3_600_000),
    "ack_grouping_max": partial(check_int, minimum=1, maximum=100_000),
    "unacked_messages_timeout_ms": _check_ack_timeout,
    "unacked_messages_tick_ms": partial(check_int, minimum=10),
    "negative_ack_redelivery_delay_ms": partial(check_int, minimum=0, maximum=MILLISECONDS_MAX),
    "broker_consumer_stats_cache_time_ms": _NOT_NEGATIVE,
    "max_pending_chunked_message": _POSITIVE,
    "expire_time_of_incomplete_chunked_message_ms": _NOT_NEGATIVE,
    "message_bytes_max": _POSITIVE,
    "pattern_auto_discovery_period": partial(check_seconds, minimum=0.01),
    "auto_update_partitions_seconds": partial(check_seconds, minimum=0.01),
    "properties": check_texts,
    "subscription_properties": check_texts,
}  # fmt: skip
"""Checks of the fields other than flags and choices."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ReaderSettings:
    """Settings of a reader; ``start_message_id`` is a separate argument."""

    schema: Any = None
    """Converts payloads to values."""
    receiver_queue_size: int = 1000
    """Messages requested ahead of the application."""
    reader_name: str | None = None
    """Shown in statistics."""
    subscription_role_prefix: str | None = None
    """Prefix of the reader's subscription name, for authorization by prefix."""
    subscription_name: str | None = None
    """The name of the reader's subscription; None generates a random one."""
    is_read_compacted: bool = False
    """Read the compacted topic: the newest message of each key."""
    start_message_id_inclusive: bool = False
    """Whether the message at the start is itself delivered."""
    reader_listener: Callable[[Any, Any], Any] | None = None
    """Called with reader and message for each message, instead of `read_next`."""
    failure_listener: Callable[[Any, Any], Any] | None = None
    """With a reader listener: called instead of it with each message that cannot be decrypted or decoded."""
    decryptor: PayloadDecryptor | None = None
    """Decrypts payloads; made of ``crypto_key_reader``."""
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    """Handling of a message that cannot be decrypted: ``FAIL`` it is not delivered, ``DISCARD`` it is left
    out, ``CONSUME`` it is delivered encrypted."""

    def __post_init__(self) -> None:
        check_fields(self, _READER_CHECKS)
        _check_failure_listener(self, "reader_listener")

    def of_consumer(self, start: MessageId) -> ConsumerSettings:
        """Return the settings of the reader's consumer, the same object for the same ``start``."""
        made: ConsumerSettings | None = self.__dict__.get("_of_consumer")
        if made is None or made.start_message_id is not start:
            made = self.__dict__["_of_consumer"] = ConsumerSettings(
                schema=self.schema,
                receiver_queue_size=self.receiver_queue_size,
                durable=False,
                start_message_id=start,
                start_message_id_inclusive=self.start_message_id_inclusive,
                is_read_compacted=self.is_read_compacted,
                decryptor=self.decryptor,
                crypto_failure_action=(
                    self.crypto_failure_action
                    if self.failure_listener is None
                    else ConsumerCryptoFailureAction.CONSUME
                ),
            )
        return made


_READER_CHECKS: dict[str, Check] = {
    "receiver_queue_size": partial(check_int, minimum=1, maximum=10_000_000),
    **dict.fromkeys(
        ("reader_name", "subscription_role_prefix", "subscription_name"), instance_of(str, optional=True)
    ),
}
"""Checks of the fields other than flags and choices."""
