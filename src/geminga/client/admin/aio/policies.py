"""Policies: one declaration each, with the same three calls for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from geminga.client.admin.aio.calls import AdminSection
from geminga.client.admin.exchange import namespace_path, topic_path
from geminga.client.admin.records import decode, encode
from geminga.client.admin.types import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    Persistence,
    PublishRate,
    RedeliverUnacked,
    Retention,
    SubscribeRate,
)
from geminga.config import refuse
from geminga.errors import ProtocolError

T = TypeVar("T")
Document = dict[str, Any]


class PolicyAt(Generic[T]):
    """A policy of namespaces, or of topics: ``get``, ``set`` and ``remove``."""

    def __init__(self, holder: PolicyHolder, policy: PolicyDeclaration[T]) -> None:
        self._holder = holder
        self._policy = policy

    async def get(self, place: str, *, applied: bool | None = None) -> T | None:
        """What is set at ``place`` (``tenant/namespace``, or a topic) itself; None when nothing is.

        ``applied``, for topics: what counts in the end, set there, above or by the broker.
        """
        path = f"{self._holder.path(place)}/{self._policy.segment}"
        found = await self._holder.calls.call("GET", path, query={"applied": applied})
        return None if found is None else decode(self._policy.kind, found, self._policy.name)

    async def set(self, place: str, value: T) -> None:
        """Set it at ``place``. Raises `InvalidConfiguration` for a value of another kind."""
        policy = self._policy
        body = policy.checked(value)
        path = f"{self._holder.path(place)}/{policy.segment}"
        if policy.as_query is None:
            await self._holder.calls.call(policy.method, path, body)
        else:
            await self._holder.calls.call(policy.method, path, query={policy.as_query: body})

    async def remove(self, place: str) -> None:
        """Unset it at ``place``: what is set above counts again."""
        path = f"{self._holder.path(place)}/{self._policy.segment}"
        if self._policy.unset_by_null:
            await self._holder.calls.put_null(self._policy.method, path)
        else:
            await self._holder.calls.call("DELETE", path)


class PolicyDeclaration(Generic[T]):
    """A policy: the last part of its path, the kind of its value, and what it does."""

    def __init__(
        self,
        segment: str,
        kind: type[T],
        text: str,
        *,
        method: str = "POST",
        as_query: str | None = None,
        unset_by_null: bool = False,
    ) -> None:
        self.segment = segment
        self.kind = kind
        self.text = text
        self.method = method
        self.as_query = as_query
        """The parameter that carries the value, where it is not the body."""
        self.unset_by_null = unset_by_null
        """Apache Pulsar has no DELETE for it: nothing is set in its place."""
        self.name = segment

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, holder: None, owner: type) -> PolicyDeclaration[T]: ...

    @overload
    def __get__(self, holder: PolicyHolder, owner: type) -> PolicyAt[T]: ...

    def __get__(self, holder: PolicyHolder | None, owner: type) -> PolicyDeclaration[T] | PolicyAt[T]:
        return self if holder is None else PolicyAt(holder, self)

    def checked(self, value: T) -> Any:
        """The value as JSON. Raises `InvalidConfiguration`."""
        body = encode(value)
        try:
            decode(self.kind, body, self.name)
        except ProtocolError:
            refuse(self.name, value, getattr(self.kind, "__name__", str(self.kind)))
        return body


class PolicyHolder(AdminSection):
    """What namespaces and topics both can be told."""

    retention = PolicyDeclaration("retention", Retention, "How long acknowledged messages stay.")
    persistence = PolicyDeclaration("persistence", Persistence, "Copies of entries on bookies.")
    publish_rate = PolicyDeclaration("publishRate", PublishRate, "What is taken from producers, a topic.")
    dispatch_rate = PolicyDeclaration("dispatchRate", DispatchRate, "What is sent to consumers, a topic.")
    subscription_dispatch_rate = PolicyDeclaration(
        "subscriptionDispatchRate", DispatchRate, "What is sent to consumers, a subscription."
    )
    replicator_dispatch_rate = PolicyDeclaration(
        "replicatorDispatchRate", DispatchRate, "What is sent to other clusters."
    )
    subscribe_rate = PolicyDeclaration("subscribeRate", SubscribeRate, "How often consumers may subscribe.")
    delayed_delivery = PolicyDeclaration(
        "delayedDelivery", DelayedDelivery, "Whether messages may be delivered later."
    )
    inactive_topics = PolicyDeclaration(
        "inactiveTopicPolicies", InactiveTopics, "Whether topics that nobody uses are deleted."
    )
    auto_subscription_creation = PolicyDeclaration(
        "autoSubscriptionCreation", AutoSubscriptionCreation, "Whether consumers make subscriptions."
    )
    max_consumers_per_subscription = PolicyDeclaration(
        "maxConsumersPerSubscription", int, "Consumers of a subscription; 0: no limit."
    )
    max_subscriptions_per_topic = PolicyDeclaration(
        "maxSubscriptionsPerTopic", int, "Subscriptions of a topic; 0: no limit."
    )
    schema_compatibility = PolicyDeclaration(
        "schemaCompatibilityStrategy", str, "Which schemas may follow others, as FULL.", method="PUT"
    )
    schema_validation = PolicyDeclaration(
        "schemaValidationEnforced", bool, "Whether producers without a schema are refused."
    )
    subscription_types = PolicyDeclaration(
        "subscriptionTypesEnabled", tuple[str, ...], "Exclusive, Shared, Failover, Key_Shared."
    )
    offload = PolicyDeclaration("offloadPolicies", Document, "Cheap storage, in Pulsar's names.")
    entry_filters = PolicyDeclaration("entryFilters", Document, "Filters of entries, in Pulsar's names.")
    redeliver_unacked = PolicyDeclaration(
        "redeliverUnacked", RedeliverUnacked, "Geminga's own: pushing again what is not acknowledged."
    )

    @property
    def calls(self) -> Any:
        return self._calls

    def path(self, place: str) -> str:
        """Where the policies of ``place`` are."""
        raise NotImplementedError

    @classmethod
    def policies_known(cls) -> Iterator[PolicyDeclaration[Any]]:
        """Every policy that is declared."""
        for owner in reversed(cls.__mro__):
            for found in vars(owner).values():
                if isinstance(found, PolicyDeclaration):
                    yield found

    async def backlog_quotas(self, place: str, *, applied: bool | None = None) -> Mapping[str, BacklogQuota]:
        """The backlog quotas by kind: ``destination_storage`` (bytes) and ``message_age`` (seconds)."""
        path = f"{self.path(place)}/backlogQuotaMap"
        found = await self._calls.get_any(Mapping[str, BacklogQuota], path, applied=applied)
        return found or {}

    async def set_backlog_quota(
        self, place: str, quota: BacklogQuota, *, kind: str = "destination_storage"
    ) -> None:
        """Set the quota of one kind: ``destination_storage`` or ``message_age``."""
        path = f"{self.path(place)}/backlogQuota"
        await self._calls.call("POST", path, quota, query={"backlogQuotaType": kind})

    async def remove_backlog_quota(self, place: str, *, kind: str = "destination_storage") -> None:
        """Unset the quota of one kind."""
        path = f"{self.path(place)}/backlogQuota"
        await self._calls.call("DELETE", path, query={"backlogQuotaType": kind})


class TopicPolicies(PolicyHolder):
    """Policies of single topics: they count before those of the namespace."""

    message_ttl = PolicyDeclaration(
        "messageTTL", int, "Seconds after which messages count as acknowledged.", as_query="messageTTL"
    )
    deduplication = PolicyDeclaration(
        "deduplicationEnabled", bool, "Whether repeated sequence ids are dropped."
    )
    deduplication_snapshot_interval = PolicyDeclaration(
        "deduplicationSnapshotInterval", int, "Messages between two snapshots of sequence ids."
    )
    compaction_threshold = PolicyDeclaration(
        "compactionThreshold", int, "Bytes after which a topic is compacted; 0: never."
    )
    max_message_size = PolicyDeclaration(
        "maxMessageSize", int, "Bytes of a message; 0: as the broker has it."
    )
    max_producers = PolicyDeclaration("maxProducers", int, "Producers of the topic; 0: no limit.")
    max_consumers = PolicyDeclaration("maxConsumers", int, "Consumers of the topic; 0: no limit.")
    max_unacked_messages_per_consumer = PolicyDeclaration(
        "maxUnackedMessagesOnConsumer", int, "Messages that a consumer may hold; 0: no limit."
    )
    max_unacked_messages_per_subscription = PolicyDeclaration(
        "maxUnackedMessagesOnSubscription", int, "Messages that a subscription's consumers may hold."
    )

    def path(self, place: str) -> str:
        return topic_path(place)


class NamespacePolicies(PolicyHolder):
    """Policies of namespaces: they count for all topics that have none of their own."""

    message_ttl = PolicyDeclaration("messageTTL", int, "Seconds after which messages count as acknowledged.")
    deduplication = PolicyDeclaration("deduplication", bool, "Whether repeated sequence ids are dropped.")
    deduplication_snapshot_interval = PolicyDeclaration(
        "deduplicationSnapshotInterval",
        int,
        "Messages between two snapshots of sequence ids.",
        unset_by_null=True,
    )
    compaction_threshold = PolicyDeclaration(
        "compactionThreshold", int, "Bytes after which a topic is compacted; 0: never.", method="PUT"
    )
    auto_topic_creation = PolicyDeclaration(
        "autoTopicCreation", AutoTopicCreation, "Whether clients make topics."
    )
    encryption_required = PolicyDeclaration(
        "encryptionRequired", bool, "Whether plain producers are refused."
    )
    allow_auto_update_schema = PolicyDeclaration(
        "isAllowAutoUpdateSchema", bool, "Whether producers may bring new schemas."
    )
    max_producers_per_topic = PolicyDeclaration(
        "maxProducersPerTopic", int, "Producers of a topic; 0: no limit."
    )
    max_consumers_per_topic = PolicyDeclaration(
        "maxConsumersPerTopic", int, "Consumers of a topic; 0: no limit."
    )
    max_topics = PolicyDeclaration("maxTopicsPerNamespace", int, "Topics of the namespace; 0: no limit.")
    max_unacked_messages_per_consumer = PolicyDeclaration(
        "maxUnackedMessagesPerConsumer", int, "Messages that a consumer may hold; 0: no limit."
    )
    max_unacked_messages_per_subscription = PolicyDeclaration(
        "maxUnackedMessagesPerSubscription", int, "Messages that a subscription's consumers may hold."
    )
    replication_clusters = PolicyDeclaration("replication", tuple[str, ...], "Clusters that keep copies.")
    subscription_auth_mode = PolicyDeclaration(
        "subscriptionAuthMode", str, "None, or Prefix: subscriptions begin with their role."
    )
    subscription_expiration_minutes = PolicyDeclaration(
        "subscriptionExpirationTime", int, "Minutes after which unused subscriptions are deleted."
    )
    offload_threshold = PolicyDeclaration(
        "offloadThreshold", int, "Bytes of a topic beyond which ledgers are offloaded.", method="PUT"
    )
    offload_threshold_seconds = PolicyDeclaration(
        "offloadThresholdInSeconds", int, "Age beyond which ledgers are offloaded.", method="PUT"
    )
    offload_deletion_lag_ms = PolicyDeclaration(
        "offloadDeletionLagMs", int, "How long offloaded ledgers stay here, too.", method="PUT"
    )

    def path(self, place: str) -> str:
        return f"namespaces/{namespace_path(place)}"
