"""Policies of namespaces and topics: one declaration for each.

Derived from a declaration: the checks and routes of a broker (`geminga.broker.rules.policies`,
`geminga.broker.admin.policy_routes`), the attributes of ``Admin`` (`geminga.client.admin`), the command
``set-...`` (`geminga.cli.policies`), what a mirror copies, and the reference pages. A policy with an effect
also needs a field in the broker's ``Policies``, and the code that reads the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, overload

from geminga.records import named

T = TypeVar("T")
Document = dict[str, Any]
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1

SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
COMPATIBILITY_STRATEGIES: Final = (
    "UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL",
    "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE",
)  # fmt: skip
AUTO_UPDATE_STRATEGIES: Final = (
    "AutoUpdateDisabled", "Backward", "Forward", "Full", "AlwaysCompatible", "BackwardTransitive",
    "ForwardTransitive", "FullTransitive",
)  # fmt: skip
INACTIVE_TOPIC_MODES: Final = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
QUOTA_KINDS: Final = ("destination_storage", "message_age")
QUOTA_ACTIONS: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
TOPIC_KINDS: Final = ("non-partitioned", "partitioned")


# --- values with several fields: see `geminga.records` ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Retention of acknowledged messages: deleted after ``minutes``, or when there are more than
    ``megabytes``; -1: no limit, 0 for both: deleted at once."""

    minutes: int = named("retentionTimeInMinutes", 0, minimum=-1, maximum=INT32_MAX)
    """Minutes; -1: no limit."""
    megabytes: int = named("retentionSizeInMB", 0, minimum=-1)
    """Megabytes; -1: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BacklogQuota:
    """Limit of a subscription's backlog, in ``limit_bytes`` or by the age of its oldest message in
    ``limit_seconds`` (-1: no limit), and the action beyond it.

    ``policy``: ``producer_request_hold``, ``producer_exception`` or ``consumer_backlog_eviction``.
    """

    limit_bytes: int = named("limitSize", -1, minimum=-INT64_MAX - 1)
    """Bytes; -1: no limit."""
    limit_seconds: int = named("limitTime", -1, minimum=-INT32_MAX - 1)
    """Age in seconds; -1: no limit."""
    policy: str = named("policy", "producer_request_hold", choices=QUOTA_ACTIONS)
    """Action beyond the limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Persistence:
    """Copies of entries on bookies; an embedded broker stores the setting and has one copy."""

    ensemble: int = named("bookkeeperEnsemble", 2)
    """Number of bookies that a ledger is spread over."""
    write_quorum: int = named("bookkeeperWriteQuorum", 2)
    """Number of copies of an entry."""
    ack_quorum: int = named("bookkeeperAckQuorum", 2)
    """Number of copies stored before a receipt."""
    mark_delete_rate_max: float = named("managedLedgerMaxMarkDeleteRate", 0.0)
    """Updates of a cursor per second; 0: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchRate:
    """Limits on messages and bytes sent to consumers per period; -1: no limit."""

    messages: int = named("dispatchThrottlingRateInMsg", -1, minimum=-1)
    """Messages per period; -1: no limit."""
    bytes: int = named("dispatchThrottlingRateInByte", -1, minimum=-1)
    """Bytes per period; -1: no limit."""
    relative_to_publish_rate: bool = False
    """Whether the limits are added to the publish rate."""
    period_seconds: int = named("ratePeriodInSecond", 1, minimum=1)
    """Length of the period in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishRate:
    """Limits on messages and bytes accepted per second; -1: no limit."""

    messages: int = named("publishThrottlingRateInMsg", -1, minimum=-1)
    """Messages per second; -1: no limit."""
    bytes: int = named("publishThrottlingRateInByte", -1, minimum=-1)
    """Bytes per second; -1: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscribeRate:
    """Limit on subscribe requests of a consumer per period; -1: no limit."""

    subscribes_per_consumer: int = named("subscribeThrottlingRatePerConsumer", -1, minimum=-1)
    """Requests per period; -1: no limit."""
    period_seconds: int = named("ratePeriodInSecond", 30, minimum=1)
    """Length of the period in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayedDelivery:
    """Delayed delivery of messages: whether it is allowed, and its precision."""

    active: bool = True
    """Whether delayed delivery is allowed."""
    tick_milliseconds: int = named("tickTime", 1000, minimum=1)
    """Largest delay in milliseconds beyond the requested time."""
    delay_milliseconds_max: int = named("maxDeliveryDelayInMillis", 0)
    """Longest delay in milliseconds; 0: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InactiveTopics:
    """Deletion of unused topics.

    ``mode``: ``delete_when_no_subscriptions`` or ``delete_when_subscriptions_caught_up``.
    """

    delete: bool = named("deleteWhileInactive", True)
    """Whether unused topics are deleted."""
    inactive_seconds_max: int = named("maxInactiveDurationSeconds", 60, minimum=1)
    """Seconds of inactivity until deletion."""
    mode: str = named("inactiveTopicDeleteMode", "delete_when_no_subscriptions", choices=INACTIVE_TOPIC_MODES)
    """Condition under which a topic counts as inactive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoTopicCreation:
    """Automatic creation of topics by the first producer or consumer, and their type (``non-partitioned`` or
    ``partitioned``)."""

    allow: bool = named("allowAutoTopicCreation", True)
    """Whether topics are created automatically."""
    topic_type: str = named("topicType", "non-partitioned", choices=TOPIC_KINDS)
    """Type of the created topics."""
    default_partitions: int | None = named("defaultNumPartitions", None)
    """Number of partitions, for ``partitioned``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AutoSubscriptionCreation:
    """Automatic creation of subscriptions by the first consumer."""

    allow: bool = named("allowAutoSubscriptionCreation", True)
    """Whether subscriptions are created automatically."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RedeliverUnacked:
    """Geminga only: redelivery of messages that stay unacknowledged for ``after_seconds``.

    ``after_seconds`` 0: never; ``age_seconds_max`` 0: no limit on their age.
    """

    after_seconds: float = 0.0
    """Seconds without acknowledgement until redelivery; 0: never."""
    messages_per_second_max: int = named("messagesPerSecondMax", 1000, minimum=1)
    """Messages that a subscription redelivers per second."""
    age_seconds_max: int = 0
    """Age in seconds above which messages are not redelivered; 0: no limit."""


# --- declarations ---


class PolicyCalls(Protocol[T]):
    """Calls of a policy in ``Admin``."""

    def get(self, place: str, *, applied: bool | None = None) -> T | None: ...

    def set(self, place: str, value: T) -> None: ...

    def remove(self, place: str) -> None: ...


class AsyncPolicyCalls(Protocol[T]):
    """Calls of a policy in ``geminga.asyncio.Admin``."""

    async def get(self, place: str, *, applied: bool | None = None) -> T | None: ...

    async def set(self, place: str, value: T) -> None: ...

    async def remove(self, place: str) -> None: ...


class HasPolicies(Protocol):
    """Part of an ``Admin`` that has the policies of namespaces or topics."""

    def policy_at(self, policy: Policy[T]) -> PolicyCalls[T]: ...


class HasAsyncPolicies(Protocol):
    """Part of a ``geminga.asyncio.Admin`` that has the policies of namespaces or topics."""

    def policy_at(self, policy: Policy[T]) -> AsyncPolicyCalls[T]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Policy(Generic[T]):
    """Declaration of a policy. Its name is that of its attribute in `CommonScope`, `NamespaceScope` or
    `TopicScope`; an underscore before the name leaves the policy out of ``Admin`` and the command line."""

    field: str
    """JSON name in Apache Pulsar's object of all policies."""
    segment: str
    """Last part of its path in admin REST."""
    kind: type[T]
    """Type of the value: bool, int, str, ``tuple[str, ...]``, a JSON object, or a record."""
    text: str
    """Meaning, in a sentence."""
    unit: Literal["", "bytes", "seconds", "minutes", "milliseconds"] = ""
    """Unit of a number; empty for a count."""
    minimum: int = 0
    """Smallest number."""
    maximum: int = INT64_MAX
    """Largest number."""
    choices: tuple[str, ...] = ()
    """Allowed texts; empty: all."""
    default: Any = None
    """Value in the object of all policies of a namespace that does not set it; None: not shown there."""
    unset: Any = None
    """Answer of GET if the policy is not set; None: an empty body."""
    method: Literal["POST", "PUT"] = "POST"
    """HTTP method that sets the policy."""
    status: int = 204
    """Status of the answer to that method."""
    by_cluster: bool = False
    """Whether the value is stored by cluster."""
    as_query: str | None = None
    """Query parameter that carries the value, where the body does not."""
    empty_body: Any = True
    """Value of an empty body: flags are enabled; None removes the policy."""
    unset_by_null: bool = False
    """Whether clients remove the policy by sending null, as Apache Pulsar has no DELETE for it."""
    super_user: bool = False
    """Whether a namespace's policy limits its tenant, so that only a super user may change it."""
    mirrored: bool = True
    """Whether a mirror copies the policy; not if it belongs to a cluster rather than to its data, or would
    delete data before it is used."""
    command: str | None = ""
    """Command of ``geminga namespaces`` and ``topics`` for a value that is one argument; empty: ``set-`` and
    the name; None: no command."""
    name: str = ""
    """Name of the attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)

    @overload
    def __get__(self, holder: None, owner: type) -> Policy[T]: ...

    @overload
    def __get__(self, holder: HasAsyncPolicies, owner: type) -> AsyncPolicyCalls[T]: ...

    @overload
    def __get__(self, holder: HasPolicies, owner: type) -> PolicyCalls[T]: ...

    def __get__(self, holder: Any, owner: type) -> Any:
        return self if holder is None else holder.policy_at(self)


class CommonScope:
    """Policies that both namespaces and topics have."""

    retention = Policy(
        field="retention_policies", segment="retention", kind=Retention,
        text="Retention of acknowledged messages, by time and size; -1: no limit.",
    )  # fmt: skip
    persistence = Policy(
        field="persistence", segment="persistence", kind=Persistence, mirrored=False,
        text="Number of copies of entries on bookies. Geminga brokers store and show it.",
    )  # fmt: skip
    publish_rate = Policy(
        field="publishMaxMessageRate", segment="publishRate", kind=PublishRate, by_cluster=True,
        super_user=True, text="Publish rate limit of a topic.",
    )  # fmt: skip
    dispatch_rate = Policy(
        field="topicDispatchRate", segment="dispatchRate", kind=DispatchRate, by_cluster=True,
        super_user=True, text="Dispatch rate limit of a topic.",
    )  # fmt: skip
    subscription_dispatch_rate = Policy(
        field="subscriptionDispatchRate", segment="subscriptionDispatchRate", kind=DispatchRate,
        by_cluster=True, super_user=True, text="Dispatch rate limit of a subscription.",
    )  # fmt: skip
    replicator_dispatch_rate = Policy(
        field="replicatorDispatchRate", segment="replicatorDispatchRate", kind=DispatchRate,
        by_cluster=True, super_user=True, mirrored=False,
        text="Rate limit of replication to other clusters. Geminga brokers store and show it.",
    )  # fmt: skip
    subscribe_rate = Policy(
        field="clusterSubscribeRate", segment="subscribeRate", kind=SubscribeRate, by_cluster=True,
        super_user=True, text="How often a consumer may subscribe.",
    )  # fmt: skip
    delayed_delivery = Policy(
        field="delayed_delivery_policies", segment="delayedDelivery", kind=DelayedDelivery,
        text="Whether messages may be delivered later.",
    )  # fmt: skip
    inactive_topics = Policy(
        field="inactive_topic_policies", segment="inactiveTopicPolicies", kind=InactiveTopics, mirrored=False,
        text="Whether unused topics are deleted.",
    )  # fmt: skip
    auto_subscription_creation = Policy(
        field="autoSubscriptionCreationOverride", segment="autoSubscriptionCreation",
        kind=AutoSubscriptionCreation, text="Whether consumers create subscriptions.",
    )  # fmt: skip
    max_consumers_per_subscription = Policy(
        field="max_consumers_per_subscription", segment="maxConsumersPerSubscription", kind=int,
        text="Maximum consumers of a subscription; 0: no limit.",
    )  # fmt: skip
    max_subscriptions_per_topic = Policy(
        field="max_subscriptions_per_topic", segment="maxSubscriptionsPerTopic", kind=int,
        text="Maximum subscriptions of a topic; 0: no limit.",
    )  # fmt: skip
    schema_compatibility = Policy(
        field="schema_compatibility_strategy", segment="schemaCompatibilityStrategy", kind=str,
        choices=COMPATIBILITY_STRATEGIES, default="UNDEFINED", method="PUT",
        text="Compatibility that new schemas need, such as FULL.",
    )  # fmt: skip
    schema_validation = Policy(
        field="schema_validation_enforced", segment="schemaValidationEnforced", kind=bool,
        default=False, unset=False, text="Whether producers without a schema are refused.",
    )  # fmt: skip
    subscription_types = Policy(
        field="subscription_types_enabled", segment="subscriptionTypesEnabled", kind=tuple[str, ...],
        choices=SUBSCRIPTION_TYPES, default=[], unset=(),
        text="Allowed types: Exclusive, Shared, Failover, Key_Shared; empty: all.",
    )  # fmt: skip
    offload = Policy(
        field="offload_policies", segment="offloadPolicies", kind=Document, mirrored=False,
        text="Offloading, as Pulsar's JSON document. Geminga brokers use its thresholds and deletion lag.",
    )  # fmt: skip
    entry_filters = Policy(
        field="entryFilters", segment="entryFilters", kind=Document, mirrored=False,
        text="Entry filters, as Pulsar's JSON document. Geminga brokers have none: filters are Java classes.",
    )  # fmt: skip
    redeliver_unacked = Policy(
        field="redeliver_unacked_policies", segment="redeliverUnacked", kind=RedeliverUnacked, mirrored=False,
        text="Geminga only: redelivery of unacknowledged messages.",
    )  # fmt: skip
    message_ttl_from_delivery = Policy(
        field="message_ttl_from_delivery", segment="messageTTLFromDelivery", kind=bool, mirrored=False,
        command="set-ttl-from-delivery",
        text="Geminga only: whether the TTL of a delayed message counts from its delivery time.",
    )  # fmt: skip
    _dispatcher_pause = Policy(
        field="dispatcherPauseOnAckStatePersistentEnabled", segment="dispatcherPauseOnAckStatePersistent",
        kind=bool, default=False,
        text="Stored and shown: acknowledgements are always stored in full.",
    )  # fmt: skip


class NamespaceScope(CommonScope):
    """Policies of namespaces, which apply to all topics that do not override them."""

    message_ttl = Policy(
        field="message_ttl_in_seconds", segment="messageTTL", kind=int, unit="seconds", maximum=INT32_MAX,
        command="set-ttl", text="Seconds after which messages count as acknowledged; 0: never.",
    )  # fmt: skip
    deduplication = Policy(
        field="deduplicationEnabled", segment="deduplication", kind=bool,
        mirrored=False,  # the mirror needs it itself
        text="Whether repeated sequence ids are dropped.",
    )  # fmt: skip
    deduplication_snapshot_interval = Policy(
        field="deduplicationSnapshotIntervalSeconds", segment="deduplicationSnapshotInterval", kind=int,
        empty_body=None, unset_by_null=True, mirrored=False,
        text="Messages between two snapshots of sequence ids. Geminga brokers store and show it.",
    )  # fmt: skip
    compaction_threshold = Policy(
        field="compaction_threshold", segment="compactionThreshold", kind=int, unit="bytes", method="PUT",
        text="Bytes after which a topic is compacted; 0: never.",
    )  # fmt: skip
    auto_topic_creation = Policy(
        field="autoTopicCreationOverride", segment="autoTopicCreation", kind=AutoTopicCreation,
        text="Whether clients create topics.",
    )  # fmt: skip
    encryption_required = Policy(
        field="encryption_required", segment="encryptionRequired", kind=bool, default=False,
        text="Whether producers without encryption are refused.",
    )  # fmt: skip
    allow_auto_update_schema = Policy(
        field="is_allow_auto_update_schema", segment="isAllowAutoUpdateSchema", kind=bool, default=True,
        text="Whether producers may register new schemas.",
    )  # fmt: skip
    max_producers_per_topic = Policy(
        field="max_producers_per_topic", segment="maxProducersPerTopic", kind=int,
        text="Maximum producers of a topic; 0: no limit.",
    )  # fmt: skip
    max_consumers_per_topic = Policy(
        field="max_consumers_per_topic", segment="maxConsumersPerTopic", kind=int,
        text="Maximum consumers of a topic; 0: no limit.",
    )  # fmt: skip
    max_topics = Policy(
        field="max_topics_per_namespace", segment="maxTopicsPerNamespace", kind=int, unset=0,
        text="Maximum number of topics; 0: no limit.",
    )  # fmt: skip
    max_unacked_messages_per_consumer = Policy(
        field="max_unacked_messages_per_consumer", segment="maxUnackedMessagesPerConsumer", kind=int,
        command="set-max-unacked-per-consumer",
        text="Maximum unacknowledged messages of a Shared or Key_Shared consumer; 0: no limit.",
    )  # fmt: skip
    max_unacked_messages_per_subscription = Policy(
        field="max_unacked_messages_per_subscription", segment="maxUnackedMessagesPerSubscription", kind=int,
        command="set-max-unacked-per-subscription",
        text="Maximum unacknowledged messages of a subscription; 0: no limit.",
    )  # fmt: skip
    replication_clusters = Policy(
        field="replication_clusters", segment="replication", kind=tuple[str, ...], status=200, mirrored=False,
        text="Clusters that keep copies. Geminga brokers store and show it.",
    )  # fmt: skip
    subscription_auth_mode = Policy(
        field="subscription_auth_mode", segment="subscriptionAuthMode", kind=str, choices=("None", "Prefix"),
        default="None", mirrored=False, command=None,
        text="None, or Prefix: subscription names must start with the role.",
    )  # fmt: skip
    subscription_expiration_minutes = Policy(
        field="subscription_expiration_time_minutes", segment="subscriptionExpirationTime", kind=int,
        unit="minutes", maximum=INT32_MAX, mirrored=False, command="set-subscription-expiration",
        text="Minutes after which unused subscriptions are deleted; 0: never.",
    )  # fmt: skip
    offload_threshold = Policy(
        field="offload_threshold", segment="offloadThreshold", kind=int, unit="bytes", minimum=-1,
        default=-1, method="PUT", status=200, mirrored=False,
        text="Size of a topic in bytes beyond which ledgers are offloaded; -1: never.",
    )  # fmt: skip
    offload_threshold_seconds = Policy(
        field="offload_threshold_in_seconds", segment="offloadThresholdInSeconds", kind=int, unit="seconds",
        minimum=-1, default=-1, method="PUT", mirrored=False, command="set-offload-threshold-time",
        text="Age in seconds beyond which ledgers are offloaded; -1: never.",
    )  # fmt: skip
    offload_deletion_lag_ms = Policy(
        field="offload_deletion_lag_ms", segment="offloadDeletionLagMs", kind=int, unit="milliseconds",
        method="PUT", status=200, mirrored=False, command="set-offload-deletion-lag",
        text="Milliseconds until offloaded ledgers are deleted locally.",
    )  # fmt: skip
    _bookie_affinity = Policy(
        field="bookieAffinityGroup", segment="persistence/bookieAffinity", kind=Document, mirrored=False,
        text="Stored and shown, without effect: there are no bookies.",
    )  # fmt: skip
    _allowed_clusters = Policy(
        field="allowed_clusters", segment="allowedClusters", kind=tuple[str, ...], default=[],
        text="Clusters that the namespace's topics may be in; this cluster alone has an effect.",
    )  # fmt: skip
    _migrated = Policy(
        field="migrated", segment="migration", kind=bool, default=False, status=200,
        text="Stored and shown: nothing is migrated.",
    )  # fmt: skip
    _schema_auto_update = Policy(
        field="schema_auto_update_compatibility_strategy", segment="schemaAutoUpdateCompatibilityStrategy",
        kind=str, choices=AUTO_UPDATE_STRATEGIES, method="PUT",
        text="The older form of ``schemaCompatibilityStrategy``, stored and shown.",
    )  # fmt: skip


class TopicScope(CommonScope):
    """Policies of single topics, which override those of the namespace."""

    message_ttl = replace(NamespaceScope.message_ttl, as_query="messageTTL")
    deduplication = replace(NamespaceScope.deduplication, segment="deduplicationEnabled")
    deduplication_snapshot_interval = replace(
        NamespaceScope.deduplication_snapshot_interval, unset_by_null=False
    )
    compaction_threshold = replace(NamespaceScope.compaction_threshold, method="POST")
    max_message_size = Policy(
        field="max_message_size", segment="maxMessageSize", kind=int, unit="bytes",
        text="Maximum bytes of a message; 0: the broker's limit.",
    )  # fmt: skip
    max_producers = replace(
        NamespaceScope.max_producers_per_topic, segment="maxProducers",
        text="Maximum producers of the topic; 0: no limit.",
    )  # fmt: skip
    max_consumers = replace(
        NamespaceScope.max_consumers_per_topic, segment="maxConsumers",
        text="Maximum consumers of the topic; 0: no limit.",
    )  # fmt: skip
    max_unacked_messages_per_consumer = replace(
        NamespaceScope.max_unacked_messages_per_consumer, segment="maxUnackedMessagesOnConsumer"
    )
    max_unacked_messages_per_subscription = replace(
        NamespaceScope.max_unacked_messages_per_subscription, segment="maxUnackedMessagesOnSubscription"
    )
    _replication_clusters = replace(NamespaceScope.replication_clusters, status=204)


def declared(scope: type[CommonScope]) -> Iterator[Policy[Any]]:
    """Yield the policies of `NamespaceScope` or `TopicScope`, or of a class derived from one."""
    for owner in reversed(scope.__mro__):
        for found in vars(owner).values():
            if isinstance(found, Policy):
                yield found
