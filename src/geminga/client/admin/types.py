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
    allowed_clusters: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterData:
    """Where a cluster is reached; empty where it does not listen."""

    service_url: str = ""
    service_url_tls: str = ""
    broker_service_url: str = ""
    broker_service_url_tls: str = ""
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerInfo:
    """The leader among the brokers."""

    service_url: str = ""
    broker_id: str = ""


# --- policies -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How long acknowledged messages stay: until ``minutes`` have passed or there are more than
    ``megabytes``; -1 is no limit, 0 for both deletes at once."""

    minutes: int = named("retentionTimeInMinutes", 0)
    megabytes: int = named("retentionSizeInMB", 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class BacklogQuota:
    """What happens when a subscription's backlog grows beyond ``limit_bytes``, or its oldest message older
    than ``limit_seconds``; -1: no limit.

    ``policy``: ``producer_request_hold``, ``producer_exception`` or ``consumer_backlog_eviction``.
    """

    limit_bytes: int = named("limitSize", -1)
    limit_seconds: int = named("limitTime", -1)
    policy: str = "producer_request_hold"


@dataclass(frozen=True, kw_only=True, slots=True)
class Persistence:
    """Copies of entries on bookies; an embedded broker keeps them and has one."""

    ensemble: int = named("bookkeeperEnsemble", 2)
    write_quorum: int = named("bookkeeperWriteQuorum", 2)
    ack_quorum: int = named("bookkeeperAckQuorum", 2)
    mark_delete_rate_max: float = named("managedLedgerMaxMarkDeleteRate", 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchRate:
    """Messages and bytes that are sent to consumers in each period; -1: no limit."""

    messages: int = named("dispatchThrottlingRateInMsg", -1)
    bytes: int = named("dispatchThrottlingRateInByte", -1)
    period_seconds: int = named("ratePeriodInSecond", 1)
    relative_to_publish_rate: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishRate:
    """Messages and bytes that are taken in each second; -1: no limit."""

    messages: int = named("publishThrottlingRateInMsg", -1)
    bytes: int = named("publishThrottlingRateInByte", -1)


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscribeRate:
    """How often a consumer may subscribe in each period; -1: no limit."""

    subscribes_per_consumer: int = named("subscribeThrottlingRatePerConsumer", -1)
    period_seconds: int = named("ratePeriodInSecond", 30)


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayedDelivery:
    """Whether messages may ask to be delivered later, and how exactly they are."""

    active: bool = True
    tick_milliseconds: int = named("tickTime", 1000)
    delay_milliseconds_max: int = named("maxDeliveryDelayInMillis", 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class InactiveTopics:
    """Whether and when topics that nobody uses are deleted.

    ``mode``: ``delete_when_no_subscriptions`` or ``delete_when_subscriptions_caught_up``.
    """

    delete: bool = named("deleteWhileInactive", True)
    inactive_seconds_max: int = named("maxInactiveDurationSeconds", 60)
    mode: str = named("inactiveTopicDeleteMode", "delete_when_no_subscriptions")


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoTopicCreation:
    """Whether the first producer or consumer makes an unknown topic, and of which kind
    (``non-partitioned`` or ``partitioned``)."""

    allow: bool = named("allowAutoTopicCreation", True)
    topic_type: str = "non-partitioned"
    default_partitions: int | None = named("defaultNumPartitions", None)


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoSubscriptionCreation:
    """Whether the first consumer makes an unknown subscription."""

    allow: bool = named("allowAutoSubscriptionCreation", True)


@dataclass(frozen=True, kw_only=True, slots=True)
class RedeliverUnacked:
    """Geminga's own: messages that were delivered and not acknowledged for so long are pushed again.

    ``after_seconds`` 0: never; ``age_seconds_max`` 0: however old they are.
    """

    after_seconds: float = 0.0
    messages_per_second_max: int = 1000
    age_seconds_max: int = 0


# --- statistics -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PublisherStats:
    """A producer that is connected."""

    producer_name: str = ""
    producer_id: int = 0
    address: str = ""
    connected_since: str = ""
    client_version: str = ""
    access_mode: str = ""
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    average_msg_size: float = 0.0
    metadata: Mapping[str, str] = nothing()
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerStats:
    """A consumer that is connected. ``available_permits``: messages that it would still take."""

    consumer_name: str = ""
    address: str = ""
    connected_since: str = ""
    client_version: str = ""
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    msg_out_counter: int = 0
    bytes_out_counter: int = 0
    available_permits: int = 0
    unacked_messages: int = 0
    blocked_consumer_on_unacked_msgs: bool = False
    last_acked_timestamp: int = 0
    last_consumed_timestamp: int = 0
    metadata: Mapping[str, str] = nothing()
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionStats:
    """A subscription of a topic.

    ``msg_backlog`` counts entries, each a message or a batch. Geminga's brokers also know messages and
    bytes (``messages_in_backlog``, ``bytes_in_backlog``, ``ack_holes``); -1 from those that do not.
    """

    type: str = ""
    msg_backlog: int = 0
    messages_in_backlog: int = -1
    bytes_in_backlog: int = -1
    backlog_size: int = 0
    oldest_backlog_message_age_seconds: int = -1
    ack_holes: int = -1
    msg_backlog_no_delayed: int = 0
    msg_delayed: int = 0
    unacked_messages: int = 0
    blocked_subscription_on_unacked_msgs: bool = False
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    msg_rate_redeliver: float = 0.0
    msg_rate_expired: float = 0.0
    message_ack_rate: float = 0.0
    msg_out_counter: int = 0
    bytes_out_counter: int = 0
    last_expire_timestamp: int = 0
    last_acked_timestamp: int = 0
    last_consumed_timestamp: int = 0
    active_consumer_name: str = ""
    durable: bool = named("isDurable", True)
    replicated: bool = named("isReplicated", False)
    non_contiguous_deleted_messages_ranges: int = 0
    subscription_properties: Mapping[str, str] = nothing()
    consumers: tuple[ConsumerStats, ...] = ()
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicStats:
    """A topic, or a partitioned topic as a whole: ``partitions`` holds each of its partitions then."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    msg_in_counter: int = 0
    bytes_in_counter: int = 0
    msg_out_counter: int = 0
    bytes_out_counter: int = 0
    average_msg_size: float = 0.0
    storage_size: int = 0
    backlog_size: int = 0
    deduplication_status: str = ""
    waiting_publishers: int = 0
    publishers: tuple[PublisherStats, ...] = ()
    subscriptions: Mapping[str, SubscriptionStats] = nothing()
    partitions: Mapping[str, TopicStats] = nothing()
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerInfo:
    """One ledger of a topic."""

    ledger_id: int = 0
    entries: int = 0
    size: int = 0
    offloaded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CursorInfo:
    """Where a subscription stands; positions are ``ledger:entry``."""

    mark_delete_position: str = ""
    read_position: str = ""
    messages_consumed_counter: int = 0
    individually_deleted_messages: str = ""
    state: str = ""
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True, slots=True)
class InternalStats:
    """What a topic's managed ledger says of itself."""

    entries_added_counter: int = 0
    number_of_entries: int = 0
    total_size: int = 0
    current_ledger_entries: int = 0
    current_ledger_size: int = 0
    last_confirmed_entry: str = ""
    state: str = ""
    ledgers: tuple[LedgerInfo, ...] = ()
    cursors: Mapping[str, CursorInfo] = nothing()
    raw: Mapping[str, Any] = raw()


@dataclass(frozen=True, kw_only=True, slots=True)
class LongRunningProcessStatus:
    """What became of the last compaction or offload: ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``."""

    status: str = "NOT_RUN"
    last_error: str = ""
    raw: Mapping[str, Any] = raw()


# --- messages and schemas -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMessage:
    """A message as the broker keeps it, looked at without consuming it.

    ``data`` of an encrypted message is what was sent: ``encrypted`` says so, and a batch of such is one.
    ``key`` is None without one; ``event_time`` likewise.
    """

    message_id: MessageId
    data: bytes = field(repr=False)
    key: str | None = None
    properties: Mapping[str, str] = nothing()
    producer_name: str = ""
    sequence_id: int = 0
    publish_time: dt.datetime
    event_time: dt.datetime | None = None
    encrypted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaVersion:
    """A version of a topic's schema. ``type`` is Pulsar's word (``AVRO``, ``JSON``, ...), ``data`` the
    definition."""

    version: int = 0
    type: str = ""
    data: str = ""
    timestamp: int = 0
    properties: Mapping[str, str] = nothing()


@dataclass(frozen=True, kw_only=True, slots=True)
class Compatibility:
    """Whether a schema may follow those that a topic has, and by which rule."""

    compatible: bool = named("compatibility", False)
    strategy: str = named("schemaCompatibilityStrategy", "")


# --- why a subscription does not go on ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing. ``kind`` is a fixed word for programs, ``text`` is for people; ``stops``: messages do not
    come because of it. ``mend``: the command or the act that mends it."""

    kind: str = ""
    stops: bool = False
    text: str = ""
    mend: str = ""
    details: Mapping[str, Any] = nothing()


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One subscription of a plain topic or a partition: in a sentence, in facts, and in findings, those that
    stop messages first."""

    topic: str = ""
    subscription: str = ""
    summary: str = ""
    facts: Mapping[str, Any] = nothing()
    findings: tuple[Finding, ...] = ()


Messages = list[StoredMessage]
SchemaVersions = list[SchemaVersion]
Explanations = list[Explanation]
