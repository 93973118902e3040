"""Policies: each is declared once and has the calls ``get``, ``set`` and ``remove``.

Made of ``client/admin/aio/policies.py`` by ``tools/generate_sync.py``: do not edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from geminga.client.admin.exchange import namespace_path, topic_path
from geminga.client.admin.records import decode, encode
from geminga.client.admin.sync.calls import AdminSection
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
    """Policy of namespaces or topics, with ``get``, ``set`` and ``remove``."""

    def __init__(self, holder: PolicyHolder, policy: PolicyDeclaration[T]) -> None:
        self._holder = holder
        self._policy = policy

    def get(self, place: str, *, applied: bool | None = None) -> T | None:
        """Return the policy set on ``place`` itself (``tenant/namespace``, or a topic); None if it is unset.

        ``applied``, for topics: return the effective value, set on the topic, its namespace or the broker.
        """
        path = f"{self._holder.path(place)}/{self._policy.segment}"
        found = self._holder.calls.call("GET", path, query={"applied": applied})
        return None if found is None else decode(self._policy.kind, found, self._policy.name)

    def set(self, place: str, value: T) -> None:
        """Set the policy of ``place``. Raises `InvalidConfiguration` for a value of another type."""
        policy = self._policy
        body = policy.checked(value)
        path = f"{self._holder.path(place)}/{policy.segment}"
        if policy.as_query is None:
            self._holder.calls.call(policy.method, path, body)
        else:
            self._holder.calls.call(policy.method, path, query={policy.as_query: body})

    def remove(self, place: str) -> None:
        """Unset the policy of ``place``: the value of the namespace or the broker applies again."""
        path = f"{self._holder.path(place)}/{self._policy.segment}"
        if self._policy.unset_by_null:
            self._holder.calls.put_null(self._policy.method, path)
        else:
            self._holder.calls.call("DELETE", path)


class PolicyDeclaration(Generic[T]):
    """Declaration of a policy: the last segment of its path, the type of its value, and its description."""

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
        "Query parameter that carries the value, where the body does not."
        self.unset_by_null = unset_by_null
        "Whether the policy is unset by sending null, as Apache Pulsar has no DELETE for it."
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
        """Return the value as JSON. Raises `InvalidConfiguration`."""
        body = encode(value)
        try:
            decode(self.kind, body, self.name)
        except ProtocolError:
            refuse(self.name, value, getattr(self.kind, "__name__", str(self.kind)))
        return body


class PolicyHolder(AdminSection):
    """Policies that both namespaces and topics have."""

    retention = PolicyDeclaration("retention", Retention, "Retention of acknowledged messages.")
    persistence = PolicyDeclaration("persistence", Persistence, "Number of copies of entries on bookies.")
    publish_rate = PolicyDeclaration("publishRate", PublishRate, "Publish rate limit of a topic.")
    dispatch_rate = PolicyDeclaration("dispatchRate", DispatchRate, "Dispatch rate limit of a topic.")
    subscription_dispatch_rate = PolicyDeclaration(
        "subscriptionDispatchRate", DispatchRate, "Dispatch rate limit of a subscription."
    )
    replicator_dispatch_rate = PolicyDeclaration(
        "replicatorDispatchRate", DispatchRate, "Rate limit of replication to other clusters."
    )
    subscribe_rate = PolicyDeclaration("subscribeRate", SubscribeRate, "How often consumers may subscribe.")
    delayed_delivery = PolicyDeclaration(
        "delayedDelivery", DelayedDelivery, "Whether messages may be delivered later."
    )
    inactive_topics = PolicyDeclaration(
        "inactiveTopicPolicies", InactiveTopics, "Whether unused topics are deleted."
    )
    auto_subscription_creation = PolicyDeclaration(
        "autoSubscriptionCreation", AutoSubscriptionCreation, "Whether consumers create subscriptions."
    )
    max_consumers_per_subscription = PolicyDeclaration(
        "maxConsumersPerSubscription", int, "Maximum consumers of a subscription; 0: no limit."
    )
    max_subscriptions_per_topic = PolicyDeclaration(
        "maxSubscriptionsPerTopic", int, "Maximum subscriptions of a topic; 0: no limit."
    )
    schema_compatibility = PolicyDeclaration(
        "schemaCompatibilityStrategy", str, "Compatibility that new schemas need, such as FULL.", method="PUT"
    )
    schema_validation = PolicyDeclaration(
        "schemaValidationEnforced", bool, "Whether producers without a schema are refused."
    )
    subscription_types = PolicyDeclaration(
        "subscriptionTypesEnabled", tuple[str, ...], "Allowed types: Exclusive, Shared, Failover, Key_Shared."
    )
    offload = PolicyDeclaration("offloadPolicies", Document, "Offloading, as Pulsar's JSON document.")
    entry_filters = PolicyDeclaration("entryFilters", Document, "Entry filters, as Pulsar's JSON document.")
    redeliver_unacked = PolicyDeclaration(
        "redeliverUnacked", RedeliverUnacked, "Geminga only: redelivery of unacknowledged messages."
    )

    @property
    def calls(self) -> Any:
        return self._calls

    def path(self, place: str) -> str:
        """Return the REST path of the policies of ``place``."""
        raise NotImplementedError

    @classmethod
    def policies_known(cls) -> Iterator[PolicyDeclaration[Any]]:
        """Yield every declared policy."""
        for owner in reversed(cls.__mro__):
            for found in vars(owner).values():
                if isinstance(found, PolicyDeclaration):
                    yield found

    def backlog_quotas(self, place: str, *, applied: bool | None = None) -> Mapping[str, BacklogQuota]:
        """Return the backlog quotas by kind: ``destination_storage`` (bytes) and ``message_age``
        (seconds)."""
        path = f"{self.path(place)}/backlogQuotaMap"
        found = self._calls.get_any(Mapping[str, BacklogQuota], path, applied=applied)
        return found or {}

    def set_backlog_quota(
        self, place: str, quota: BacklogQuota, *, kind: str = "destination_storage"
    ) -> None:
        """Set the quota of one kind: ``destination_storage`` or ``message_age``."""
        path = f"{self.path(place)}/backlogQuota"
        self._calls.call("POST", path, quota, query={"backlogQuotaType": kind})

    def remove_backlog_quota(self, place: str, *, kind: str = "destination_storage") -> None:
        """Unset the quota of one kind."""
        path = f"{self.path(place)}/backlogQuota"
        self._calls.call("DELETE", path, query={"backlogQuotaType": kind})


class TopicPolicies(PolicyHolder):
    """Policies of single topics, which override those of the namespace."""

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
        "maxMessageSize", int, "Maximum bytes of a message; 0: the broker's limit."
    )
    max_producers = PolicyDeclaration("maxProducers", int, "Maximum producers of the topic; 0: no limit.")
    max_consumers = PolicyDeclaration("maxConsumers", int, "Maximum consumers of the topic; 0: no limit.")
    max_unacked_messages_per_consumer = PolicyDeclaration(
        "maxUnackedMessagesOnConsumer", int, "Maximum unacknowledged messages of a consumer; 0: no limit."
    )
    max_unacked_messages_per_subscription = PolicyDeclaration(
        "maxUnackedMessagesOnSubscription", int, "Maximum unacknowledged messages of a subscription."
    )

    def path(self, place: str) -> str:
        return topic_path(place)


class NamespacePolicies(PolicyHolder):
    """Policies of namespaces, which apply to all topics that do not override them."""

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
        "autoTopicCreation", AutoTopicCreation, "Whether clients create topics."
    )
    encryption_required = PolicyDeclaration(
        "encryptionRequired", bool, "Whether producers without encryption are refused."
    )
    allow_auto_update_schema = PolicyDeclaration(
        "isAllowAutoUpdateSchema", bool, "Whether producers may register new schemas."
    )
    max_producers_per_topic = PolicyDeclaration(
        "maxProducersPerTopic", int, "Maximum producers of a topic; 0: no limit."
    )
    max_consumers_per_topic = PolicyDeclaration(
        "maxConsumersPerTopic", int, "Maximum consumers of a topic; 0: no limit."
    )
    max_topics = PolicyDeclaration("maxTopicsPerNamespace", int, "Maximum number of topics; 0: no limit.")
    max_unacked_messages_per_consumer = PolicyDeclaration(
        "maxUnackedMessagesPerConsumer", int, "Maximum unacknowledged messages of a consumer; 0: no limit."
    )
    max_unacked_messages_per_subscription = PolicyDeclaration(
        "maxUnackedMessagesPerSubscription", int, "Maximum unacknowledged messages of a subscription."
    )
    replication_clusters = PolicyDeclaration("replication", tuple[str, ...], "Clusters that keep copies.")
    subscription_auth_mode = PolicyDeclaration(
        "subscriptionAuthMode", str, "None, or Prefix: subscription names must start with the role."
    )
    subscription_expiration_minutes = PolicyDeclaration(
        "subscriptionExpirationTime", int, "Minutes after which unused subscriptions are deleted."
    )
    offload_threshold = PolicyDeclaration(
        "offloadThreshold", int, "Size of a topic in bytes beyond which ledgers are offloaded.", method="PUT"
    )
    offload_threshold_seconds = PolicyDeclaration(
        "offloadThresholdInSeconds", int, "Age in seconds beyond which ledgers are offloaded.", method="PUT"
    )
    offload_deletion_lag_ms = PolicyDeclaration(
        "offloadDeletionLagMs", int, "Milliseconds until offloaded ledgers are deleted locally.", method="PUT"
    )

    def path(self, place: str) -> str:
        return f"namespaces/{namespace_path(place)}"
