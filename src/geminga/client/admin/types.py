"""Typed values of admin REST; the public names are in `geminga.admin`, and `geminga.policies` has policies.

Sizes are in bytes and rates per second unless a field's name says otherwise; -1 means "no limit" where Pulsar
uses it so. Statistics keep the whole JSON in ``raw``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.ids import MessageId
from geminga.records import named, nothing, raw

Names = list[str]
"""Names of topics, namespaces and so on."""

# --- tenants, clusters, brokers -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantInfo:
    """Administrators of a tenant, and the clusters that it may use."""

    admin_roles: tuple[str, ...] = ()
    """Roles that administer the tenant."""
    allowed_clusters: tuple[str, ...] = ()
    """Clusters that the tenant may use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterData:
    """URLs of a cluster; empty for protocols that it does not offer."""

    service_url: str = ""
    """URL of admin REST."""
    service_url_tls: str = ""
    """URL of admin REST over TLS."""
    broker_service_url: str = ""
    """URL of the binary protocol."""
    broker_service_url_tls: str = ""
    """URL of the binary protocol over TLS."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerInfo:
    """The leader broker."""

    service_url: str = ""
    """URL of the leader's admin REST."""
    broker_id: str = ""
    """Id of the leader in the cluster."""


# --- statistics -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PublisherStats:
    """A connected producer."""

    producer_name: str = ""
    """The producer's name."""
    producer_id: int = 0
    """The producer's id on its connection."""
    address: str = ""
    """Network address of the client."""
    connected_since: str = ""
    """Start of the connection, as text in the broker's time zone."""
    client_version: str = ""
    """Client version, as sent by the client."""
    access_mode: str = ""
    """Access mode of the producer."""
    msg_rate_in: float = 0.0
    """Messages published per second."""
    msg_throughput_in: float = 0.0
    """Bytes published per second."""
    average_msg_size: float = 0.0
    """Average bytes per message."""
    metadata: Mapping[str, str] = nothing()
    """Properties of the producer."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerStats:
    """A connected consumer. ``available_permits``: messages that it can still receive."""

    consumer_name: str = ""
    """The consumer's name."""
    address: str = ""
    """Network address of the client."""
    connected_since: str = ""
    """Start of the connection, as text in the broker's time zone."""
    client_version: str = ""
    """Client version, as sent by the client."""
    msg_rate_out: float = 0.0
    """Messages delivered per second."""
    msg_throughput_out: float = 0.0
    """Bytes delivered per second."""
    msg_rate_redeliver: float = 0.0
    """Messages redelivered per second."""
    message_ack_rate: float = 0.0
    """Messages acknowledged per second."""
    msg_out_counter: int = 0
    """Messages delivered since the topic was loaded."""
    bytes_out_counter: int = 0
    """Bytes delivered since the topic was loaded."""
    available_permits: int = 0
    """Messages that it can still receive."""
    unacked_messages: int = 0
    """Messages delivered and not acknowledged."""
    blocked_consumer_on_unacked_msgs: bool = False
    """Whether delivery is blocked because it holds too many unacknowledged messages."""
    last_acked_timestamp: int = 0
    """Time of the last acknowledgement, in milliseconds since 1970; 0: never."""
    last_consumed_timestamp: int = 0
    """Time of the last delivery, in milliseconds since 1970; 0: never."""
    metadata: Mapping[str, str] = nothing()
    """Properties of the consumer."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionStats:
    """A subscription of a topic.

    ``msg_backlog`` counts entries, each a message or a batch. Geminga's brokers also know messages and
    bytes (``messages_in_backlog``, ``bytes_in_backlog``, ``ack_holes``); -1 from those that do not.
    """

    type: str = ""
    """``Exclusive``, ``Shared``, ``Failover`` or ``Key_Shared``; empty before the first consumer."""
    msg_backlog: int = 0
    """Entries that are not acknowledged."""
    messages_in_backlog: int = -1
    """Messages that are not acknowledged; -1: not known."""
    bytes_in_backlog: int = -1
    """Bytes of those messages; -1: not known."""
    backlog_size: int = 0
    """Bytes from the first unacknowledged entry to the topic's end."""
    oldest_backlog_message_age_seconds: int = -1
    """Age of the oldest unacknowledged message in seconds; -1: the backlog is empty, or the age is not
    known."""
    ack_holes: int = -1
    """Gaps followed by acknowledged messages; -1: not known."""
    msg_backlog_no_delayed: int = 0
    """The backlog without delayed messages."""
    msg_delayed: int = 0
    """Messages whose delivery time is not reached."""
    unacked_messages: int = 0
    """Messages delivered and not acknowledged."""
    blocked_subscription_on_unacked_msgs: bool = False
    """Whether delivery is blocked because too many messages are unacknowledged."""
    msg_rate_out: float = 0.0
    """Messages delivered per second."""
    msg_throughput_out: float = 0.0
    """Bytes delivered per second."""
    msg_rate_redeliver: float = 0.0
    """Messages redelivered per second."""
    msg_rate_expired: float = 0.0
    """Messages expired per second."""
    message_ack_rate: float = 0.0
    """Messages acknowledged per second."""
    msg_out_counter: int = 0
    """Messages delivered since the topic was loaded."""
    bytes_out_counter: int = 0
    """Bytes delivered since the topic was loaded."""
    last_expire_timestamp: int = 0
    """Time of the last expiry, in milliseconds since 1970; 0: never."""
    last_acked_timestamp: int = 0
    """Time of the last acknowledgement, in milliseconds since 1970; 0: never."""
    last_consumed_timestamp: int = 0
    """Time of the last delivery, in milliseconds since 1970; 0: never."""
    active_consumer_name: str = ""
    """Consumer that receives the messages, for Exclusive and Failover."""
    durable: bool = named("isDurable", True)
    """Whether the broker stores its cursor."""
    replicated: bool = named("isReplicated", False)
    """Whether it is replicated to other clusters."""
    non_contiguous_deleted_messages_ranges: int = 0
    """Number of ranges of acknowledged entries after the first unacknowledged one."""
    subscription_properties: Mapping[str, str] = nothing()
    """Properties of the subscription."""
    consumers: tuple[ConsumerStats, ...] = ()
    """The connected consumers."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicStats:
    """Statistics of a topic, or of a partitioned topic as a whole, with each partition in ``partitions``."""

    msg_rate_in: float = 0.0
    """Messages published per second."""
    msg_throughput_in: float = 0.0
    """Bytes published per second."""
    msg_rate_out: float = 0.0
    """Messages delivered per second."""
    msg_throughput_out: float = 0.0
    """Bytes delivered per second."""
    msg_in_counter: int = 0
    """Messages published since the topic was loaded."""
    bytes_in_counter: int = 0
    """Bytes published since the topic was loaded."""
    msg_out_counter: int = 0
    """Messages delivered since the topic was loaded."""
    bytes_out_counter: int = 0
    """Bytes delivered since the topic was loaded."""
    average_msg_size: float = 0.0
    """Average bytes per message."""
    storage_size: int = 0
    """Bytes of the topic's ledgers."""
    backlog_size: int = 0
    """Bytes of the longest backlog."""
    deduplication_status: str = ""
    """``Enabled`` or ``Disabled``."""
    waiting_publishers: int = 0
    """Producers that wait for exclusive access."""
    publishers: tuple[PublisherStats, ...] = ()
    """The connected producers."""
    subscriptions: Mapping[str, SubscriptionStats] = nothing()
    """Subscriptions by name."""
    partitions: Mapping[str, TopicStats] = nothing()
    """Partitions by name; empty for an unpartitioned topic."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerInfo:
    """One ledger of a topic."""

    ledger_id: int = 0
    """The ledger's id."""
    entries: int = 0
    """Number of entries."""
    size: int = 0
    """Size in bytes."""
    offloaded: bool = False
    """Whether it is offloaded to cheap storage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CursorInfo:
    """Position of a subscription; positions are ``ledger:entry``."""

    mark_delete_position: str = ""
    """Position up to which everything is acknowledged."""
    read_position: str = ""
    """Position of the next delivered entry."""
    messages_consumed_counter: int = 0
    """Number of acknowledged entries."""
    individually_deleted_messages: str = ""
    """Acknowledged ranges after the mark-delete position, as text."""
    state: str = ""
    """``Open``, or another state."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InternalStats:
    """Statistics of a topic's managed ledger."""

    entries_added_counter: int = 0
    """Entries added since the topic was loaded."""
    number_of_entries: int = 0
    """Number of entries."""
    total_size: int = 0
    """Size in bytes."""
    current_ledger_entries: int = 0
    """Entries of the ledger being written."""
    current_ledger_size: int = 0
    """Bytes of the ledger being written."""
    last_confirmed_entry: str = ""
    """Position of the last durably stored entry."""
    state: str = ""
    """``LedgerOpened``, or another state."""
    ledgers: tuple[LedgerInfo, ...] = ()
    """Ledgers, oldest first."""
    cursors: Mapping[str, CursorInfo] = nothing()
    """Cursors by subscription."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LongRunningProcessStatus:
    """State of the last compaction or offload: ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``."""

    status: str = "NOT_RUN"
    """One of these states."""
    last_error: str = ""
    """Reason of a failure."""
    raw: Mapping[str, Any] = raw()
    """The whole answer, as JSON has it."""


# --- messages and schemas -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredMessage:
    """A message as stored by the broker, read without consuming it.

    If ``encrypted``, ``data`` is the encrypted payload, and an encrypted batch counts as one message. ``key``
    and ``event_time`` are None if the message has none.
    """

    message_id: MessageId
    """Id of the message."""
    data: bytes = field(repr=False)
    """The payload, decompressed unless it is encrypted."""
    key: str | None = None
    """Partition key of the message."""
    properties: Mapping[str, str] = nothing()
    """Properties of the message."""
    producer_name: str = ""
    """Name of its producer."""
    sequence_id: int = 0
    """Sequence id of the message."""
    publish_time: dt.datetime
    """Publish time, in UTC."""
    event_time: dt.datetime | None = None
    """Event time, set by the producer."""
    encrypted: bool = False
    """Whether the payload is encrypted."""
    compression: str = "NONE"
    """Codec of its entry, by Pulsar's name: ``NONE``, ``LZ4``, ``ZLIB``, ``ZSTD`` or ``SNAPPY``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaVersion:
    """A version of a topic's schema. ``type`` is Pulsar's name (``AVRO``, ``JSON``, ...), ``data`` the
    definition."""

    version: int = 0
    """Number of the version."""
    type: str = ""
    """Pulsar's name of the type."""
    data: str = ""
    """Definition of the schema."""
    timestamp: int = 0
    """Registration time in milliseconds since 1970; 0: not known."""
    properties: Mapping[str, str] = nothing()
    """Properties of the schema."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compatibility:
    """Compatibility of a schema with the topic's schemas, and the strategy."""

    compatible: bool = named("compatibility", False)
    """Whether it is compatible."""
    strategy: str = named("schemaCompatibilityStrategy", "")
    """The compatibility strategy."""


# --- explanations of subscriptions ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """A remedy for a finding."""

    text: str = ""
    """The action and its effect, with numbers."""
    command: str = ""
    """Shell command; empty if the application has to act."""
    effects: Mapping[str, Any] = nothing()
    """Numbers in ``text``, such as ``frees`` (bytes) and ``producersContinue``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause of missing delivery. ``kind`` is a fixed word for programs, ``text`` is for people."""

    kind: str = ""
    """A fixed word for programs."""
    stops: bool = False
    """Whether this cause stops the delivery."""
    text: str = ""
    """Description for people."""
    mend: str = ""
    """All advice in one text."""
    advice: tuple[Advice, ...] = ()
    """Commands and actions, the best first."""
    level: int = 0
    """Urgency, as in ``Explanation.trouble``."""
    details: Mapping[str, Any] = nothing()
    """Numbers of the finding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Explanation of one subscription of an unpartitioned topic or a partition: a sentence, facts, and
    findings, the worst first."""

    topic: str = ""
    """The topic or partition."""
    subscription: str = ""
    """The subscription's name."""
    summary: str = ""
    """Summary in one sentence."""
    facts: Mapping[str, Any] = nothing()
    """Numbers of the subscription."""
    findings: tuple[Finding, ...] = ()
    """Findings, the worst first."""
    trouble: int = 0
    """0: everything is acknowledged; 1: idle; 2: moving; 3: worth a look; 4: stopped; 5: stopped while the
    backlog grows; 6: producers are stopped because of it."""


Messages = list[StoredMessage]
SchemaVersions = list[SchemaVersion]
Explanations = list[Explanation]
