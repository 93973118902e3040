"""What admin REST tells and takes, typed; the public names are in `geminga.admin`.

Sizes are in bytes and rates a second unless a field's name says otherwise; -1 is "no limit" where Pulsar says
so. Statistics keep the whole JSON in ``raw``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.client.admin.records import named, nothing, raw
from geminga.ids import MessageId

Names = list[str]
"""Texts that name topics, namespaces and so on."""

# --- tenants, clusters, brokers -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantInfo:
    """Who administers a tenant, and the clusters that it may use."""

    admin_roles: tuple[str, ...] = ()
    """Roles that administer it."""
    allowed_clusters: tuple[str, ...] = ()
    """Clusters that it may use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterData:
    """Where a cluster is reached; empty where it does not listen."""

    service_url: str = ""
    """Admin REST."""
    service_url_tls: str = ""
    """Admin REST over TLS."""
    broker_service_url: str = ""
    """The binary protocol."""
    broker_service_url_tls: str = ""
    """The binary protocol over TLS."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerInfo:
    """The leader among the brokers."""

    service_url: str = ""
    """Its admin REST."""
    broker_id: str = ""
    """Its name among the brokers."""


# --- policies -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How long acknowledged messages stay: until ``minutes`` have passed or there are more than
    ``megabytes``; -1 is no limit, 0 for both deletes at once."""

    minutes: int = named("retentionTimeInMinutes", 0)
    """-1: for ever."""
    megabytes: int = named("retentionSizeInMB", 0)
    """-1: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BacklogQuota:
    """What happens when a subscription's backlog grows beyond ``limit_bytes``, or its oldest message older
    than ``limit_seconds``; -1: no limit.

    ``policy``: ``producer_request_hold``, ``producer_exception`` or ``consumer_backlog_eviction``.
    """

    limit_bytes: int = named("limitSize", -1)
    """-1: no limit."""
    limit_seconds: int = named("limitTime", -1)
    """-1: no limit."""
    policy: str = "producer_request_hold"
    """What happens beyond it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Persistence:
    """Copies of entries on bookies; an embedded broker keeps them and has one."""

    ensemble: int = named("bookkeeperEnsemble", 2)
    """Bookies that a ledger is spread over."""
    write_quorum: int = named("bookkeeperWriteQuorum", 2)
    """Copies of an entry."""
    ack_quorum: int = named("bookkeeperAckQuorum", 2)
    """Copies that a receipt waits for."""
    mark_delete_rate_max: float = named("managedLedgerMaxMarkDeleteRate", 0.0)
    """Updates of a cursor a second; 0: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchRate:
    """Messages and bytes that are sent to consumers in each period; -1: no limit."""

    messages: int = named("dispatchThrottlingRateInMsg", -1)
    """Messages in a period; -1: no limit."""
    bytes: int = named("dispatchThrottlingRateInByte", -1)
    """Bytes in a period; -1: no limit."""
    period_seconds: int = named("ratePeriodInSecond", 1)
    """The period."""
    relative_to_publish_rate: bool = False
    """The limits are added to the rate of publishing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishRate:
    """Messages and bytes that are taken in each second; -1: no limit."""

    messages: int = named("publishThrottlingRateInMsg", -1)
    """Messages in a period; -1: no limit."""
    bytes: int = named("publishThrottlingRateInByte", -1)
    """Bytes in a period; -1: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscribeRate:
    """How often a consumer may subscribe in each period; -1: no limit."""

    subscribes_per_consumer: int = named("subscribeThrottlingRatePerConsumer", -1)
    """-1: no limit."""
    period_seconds: int = named("ratePeriodInSecond", 30)
    """The period."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayedDelivery:
    """Whether messages may ask to be delivered later, and how exactly they are."""

    active: bool = True
    """Whether they may."""
    tick_milliseconds: int = named("tickTime", 1000)
    """How much later than its time a message may come."""
    delay_milliseconds_max: int = named("maxDeliveryDelayInMillis", 0)
    """The longest delay; 0: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InactiveTopics:
    """Whether and when topics that nobody uses are deleted.

    ``mode``: ``delete_when_no_subscriptions`` or ``delete_when_subscriptions_caught_up``.
    """

    delete: bool = named("deleteWhileInactive", True)
    """Whether they are."""
    inactive_seconds_max: int = named("maxInactiveDurationSeconds", 60)
    """After how long."""
    mode: str = named("inactiveTopicDeleteMode", "delete_when_no_subscriptions")
    """What counts as inactive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoTopicCreation:
    """Whether the first producer or consumer makes an unknown topic, and of which kind
    (``non-partitioned`` or ``partitioned``)."""

    allow: bool = named("allowAutoTopicCreation", True)
    """Whether it does."""
    topic_type: str = "non-partitioned"
    """Of which kind."""
    default_partitions: int | None = named("defaultNumPartitions", None)
    """How many, for ``partitioned``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoSubscriptionCreation:
    """Whether the first consumer makes an unknown subscription."""

    allow: bool = named("allowAutoSubscriptionCreation", True)
    """Whether it does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RedeliverUnacked:
    """Geminga's own: messages that were delivered and not acknowledged for so long are pushed again.

    ``after_seconds`` 0: never; ``age_seconds_max`` 0: however old they are.
    """

    after_seconds: float = 0.0
    """0: never."""
    messages_per_second_max: int = 1000
    """Messages that a subscription pushes again in a second."""
    age_seconds_max: int = 0
    """Older messages are left where they are; 0: no limit."""


# --- statistics -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PublisherStats:
    """A producer that is connected."""

    producer_name: str = ""
    """Its name."""
    producer_id: int = 0
    """Its number on its connection."""
    address: str = ""
    """Where it connects from."""
    connected_since: str = ""
    """As text, in the broker's time zone."""
    client_version: str = ""
    """What the client says it is."""
    access_mode: str = ""
    """Who else may publish."""
    msg_rate_in: float = 0.0
    """Messages a second that are published."""
    msg_throughput_in: float = 0.0
    """Bytes a second that are published."""
    average_msg_size: float = 0.0
    """Bytes of a message."""
    metadata: Mapping[str, str] = nothing()
    """What it said of itself."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerStats:
    """A consumer that is connected. ``available_permits``: messages that it would still take."""

    consumer_name: str = ""
    """Its name."""
    address: str = ""
    """Where it connects from."""
    connected_since: str = ""
    """As text, in the broker's time zone."""
    client_version: str = ""
    """What the client says it is."""
    msg_rate_out: float = 0.0
    """Messages a second that are delivered."""
    msg_throughput_out: float = 0.0
    """Bytes a second that are delivered."""
    msg_rate_redeliver: float = 0.0
    """Messages a second that are delivered again."""
    message_ack_rate: float = 0.0
    """Messages a second that are acknowledged."""
    msg_out_counter: int = 0
    """Messages delivered since the topic was loaded."""
    bytes_out_counter: int = 0
    """Bytes delivered since the topic was loaded."""
    available_permits: int = 0
    """Messages that it would still take."""
    unacked_messages: int = 0
    """Delivered and not acknowledged."""
    blocked_consumer_on_unacked_msgs: bool = False
    """It gets nothing, for it holds too much unacknowledged."""
    last_acked_timestamp: int = 0
    """Milliseconds since 1970; 0: never."""
    last_consumed_timestamp: int = 0
    """When a message was last delivered, likewise."""
    metadata: Mapping[str, str] = nothing()
    """What it said of itself."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionStats:
    """A subscription of a topic.

    ``msg_backlog`` counts entries, each a message or a batch. Geminga's brokers also know messages and
    bytes (``messages_in_backlog``, ``bytes_in_backlog``, ``ack_holes``); -1 from those that do not.
    """

    type: str = ""
    """``Exclusive``, ``Shared``, ``Failover`` or ``Key_Shared``; empty: nobody was connected yet."""
    msg_backlog: int = 0
    """Entries that are not acknowledged."""
    messages_in_backlog: int = -1
    """Messages that are not acknowledged; -1: not known."""
    bytes_in_backlog: int = -1
    """What they take; -1: not known."""
    backlog_size: int = 0
    """Bytes from the first of them to the topic's end."""
    oldest_backlog_message_age_seconds: int = -1
    """-1: there is none, or it is not known."""
    ack_holes: int = -1
    """Gaps with acknowledged messages behind them; -1: not known."""
    msg_backlog_no_delayed: int = 0
    """The backlog without delayed messages."""
    msg_delayed: int = 0
    """Messages whose time has not come."""
    unacked_messages: int = 0
    """Delivered and not acknowledged."""
    blocked_subscription_on_unacked_msgs: bool = False
    """Nothing is delivered, for too much is unacknowledged."""
    msg_rate_out: float = 0.0
    """Messages a second that are delivered."""
    msg_throughput_out: float = 0.0
    """Bytes a second that are delivered."""
    msg_rate_redeliver: float = 0.0
    """Messages a second that are delivered again."""
    msg_rate_expired: float = 0.0
    """Messages a second that expire."""
    message_ack_rate: float = 0.0
    """Messages a second that are acknowledged."""
    msg_out_counter: int = 0
    """Messages delivered since the topic was loaded."""
    bytes_out_counter: int = 0
    """Bytes delivered since the topic was loaded."""
    last_expire_timestamp: int = 0
    """When messages were last expired, likewise."""
    last_acked_timestamp: int = 0
    """Milliseconds since 1970; 0: never."""
    last_consumed_timestamp: int = 0
    """When a message was last delivered, likewise."""
    active_consumer_name: str = ""
    """Who gets the messages; Exclusive and Failover."""
    durable: bool = named("isDurable", True)
    """Whether its cursor is kept."""
    replicated: bool = named("isReplicated", False)
    """Whether it is replicated to other clusters."""
    non_contiguous_deleted_messages_ranges: int = 0
    """Ranges of acknowledged entries behind the first that is not."""
    subscription_properties: Mapping[str, str] = nothing()
    """Metadata."""
    consumers: tuple[ConsumerStats, ...] = ()
    """Those that are connected."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicStats:
    """A topic, or a partitioned topic as a whole: ``partitions`` holds each of its partitions then."""

    msg_rate_in: float = 0.0
    """Messages a second that are published."""
    msg_throughput_in: float = 0.0
    """Bytes a second that are published."""
    msg_rate_out: float = 0.0
    """Messages a second that are delivered."""
    msg_throughput_out: float = 0.0
    """Bytes a second that are delivered."""
    msg_in_counter: int = 0
    """Messages published since the topic was loaded."""
    bytes_in_counter: int = 0
    """Bytes published since the topic was loaded."""
    msg_out_counter: int = 0
    """Messages delivered since the topic was loaded."""
    bytes_out_counter: int = 0
    """Bytes delivered since the topic was loaded."""
    average_msg_size: float = 0.0
    """Bytes of a message."""
    storage_size: int = 0
    """Bytes of its ledgers."""
    backlog_size: int = 0
    """Bytes that the longest backlog keeps."""
    deduplication_status: str = ""
    """``Enabled`` or ``Disabled``."""
    waiting_publishers: int = 0
    """Producers that wait to be alone."""
    publishers: tuple[PublisherStats, ...] = ()
    """Those that are connected."""
    subscriptions: Mapping[str, SubscriptionStats] = nothing()
    """By name."""
    partitions: Mapping[str, TopicStats] = nothing()
    """By name; empty for a plain topic."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerInfo:
    """One ledger of a topic."""

    ledger_id: int = 0
    """Its number."""
    entries: int = 0
    """How many it holds."""
    size: int = 0
    """Bytes."""
    offloaded: bool = False
    """Whether it is in cheap storage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CursorInfo:
    """Where a subscription stands; positions are ``ledger:entry``."""

    mark_delete_position: str = ""
    """All up to here is acknowledged."""
    read_position: str = ""
    """What is delivered next."""
    messages_consumed_counter: int = 0
    """Entries that were acknowledged."""
    individually_deleted_messages: str = ""
    """Acknowledged ranges behind the mark, as text."""
    state: str = ""
    """``Open``, or what it is otherwise."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InternalStats:
    """What a topic's managed ledger says of itself."""

    entries_added_counter: int = 0
    """Entries added since the topic was loaded."""
    number_of_entries: int = 0
    """Entries that it holds."""
    total_size: int = 0
    """Bytes that they take."""
    current_ledger_entries: int = 0
    """Entries of the ledger that is written."""
    current_ledger_size: int = 0
    """Bytes of that ledger."""
    last_confirmed_entry: str = ""
    """The last one that is safe."""
    state: str = ""
    """``LedgerOpened``, or what it is otherwise."""
    ledgers: tuple[LedgerInfo, ...] = ()
    """The oldest first."""
    cursors: Mapping[str, CursorInfo] = nothing()
    """By subscription."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LongRunningProcessStatus:
    """What became of the last compaction or offload: ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``."""

    status: str = "NOT_RUN"
    """One of these words."""
    last_error: str = ""
    """Why it failed."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


# --- messages and schemas -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMessage:
    """A message as the broker keeps it, looked at without consuming it.

    ``data`` of an encrypted message is what was sent: ``encrypted`` says so, and a batch of such is one.
    ``key`` is None without one; ``event_time`` likewise.
    """

    message_id: MessageId
    """Its id."""
    data: bytes = field(repr=False)
    """The payload, decompressed unless it is encrypted."""
    key: str | None = None
    """The key it was routed by."""
    properties: Mapping[str, str] = nothing()
    """Metadata."""
    producer_name: str = ""
    """Who published it."""
    sequence_id: int = 0
    """Its number among the producer's messages."""
    publish_time: dt.datetime
    """When it was published, in UTC."""
    event_time: dt.datetime | None = None
    """What the producer says when it happened."""
    encrypted: bool = False
    """The payload is as it was encrypted."""
    compression: str = "NONE"
    """The codec of its entry in Pulsar's word, ``LZ4``, ``ZLIB``, ``ZSTD`` or ``SNAPPY``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaVersion:
    """A version of a topic's schema. ``type`` is Pulsar's word (``AVRO``, ``JSON``, ...), ``data`` the
    definition."""

    version: int = 0
    """Its number."""
    type: str = ""
    """Pulsar's word for its kind."""
    data: str = ""
    """The definition."""
    timestamp: int = 0
    """When it was given, in ms since 1970; 0: not known."""
    properties: Mapping[str, str] = nothing()
    """Metadata."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compatibility:
    """Whether a schema may follow those that a topic has, and by which rule."""

    compatible: bool = named("compatibility", False)
    """Whether it may."""
    strategy: str = named("schemaCompatibilityStrategy", "")
    """By which rule."""


# --- why a subscription does not go on ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """A way to change a finding."""

    text: str = ""
    """The act and its effect, with figures."""
    command: str = ""
    """The shell command; empty where the application has to act."""
    effects: Mapping[str, Any] = nothing()
    """The figures in ``text``, such as ``frees`` (bytes) and ``producersContinue``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One cause. ``kind`` is a fixed word for programs, ``text`` is for people."""

    kind: str = ""
    """A fixed word for programs."""
    stops: bool = False
    """Whether messages do not come because of it."""
    text: str = ""
    """What it is, for people."""
    mend: str = ""
    """All advice in one text."""
    advice: tuple[Advice, ...] = ()
    """Commands and acts that change it, the best first."""
    level: int = 0
    """The urgency, as in ``Explanation.trouble``."""
    details: Mapping[str, Any] = nothing()
    """Figures that belong to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One subscription of a plain topic or a partition: in a sentence, in facts, and in findings, the worst
    first."""

    topic: str = ""
    """The topic or partition."""
    subscription: str = ""
    """The subscription's name."""
    summary: str = ""
    """In a sentence."""
    facts: Mapping[str, Any] = nothing()
    """Figures."""
    findings: tuple[Finding, ...] = ()
    """The worst first."""
    trouble: int = 0
    """0: everything is acknowledged; 1: idle; 2: moving; 3: worth a look; 4: stopped; 5: stopped, and the
    backlog grows; 6: producers are stopped because of it."""


Messages = list[StoredMessage]
SchemaVersions = list[SchemaVersion]
Explanations = list[Explanation]
