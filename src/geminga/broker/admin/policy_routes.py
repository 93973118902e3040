"""Policies over REST, for namespaces and for topics: one table, one set of handlers.

A policy's last path part, the field it is kept under and the method that sets it are data; GET answers
what was set (200 with an empty body when nothing was) and DELETE removes it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import (
    Resource,
    answer,
    answer_or_empty,
    bare_text,
    body,
    done_answer,
    object_body,
    part,
    query_flag,
    sent,
    topic_of,
    whole_number,
)
from geminga.broker.rules.effective_policies import in_force
from geminga.broker.rules.policies import QUOTA_KINDS, backlog_quota, one_of, text_map
from geminga.ids import TopicName
from geminga.ledger.api import Done


@dataclass(frozen=True, slots=True)
class PolicyRoute:
    """``segment`` is the path's last part; ``by_cluster`` policies are stored in a map from cluster."""

    segment: str
    field: str
    method: str = "POST"
    by_cluster: bool = False
    status: int = 204
    unset: Any = None
    """Answer of GET when nothing is set; None is an empty body."""
    bodiless: Any = True
    """Value for a POST without a body: flags are switched on; None removes the policy."""


_COMMON: Final = (
    PolicyRoute("autoSubscriptionCreation", "autoSubscriptionCreationOverride"),
    PolicyRoute("deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds", bodiless=None),
    PolicyRoute("delayedDelivery", "delayed_delivery_policies"),
    PolicyRoute("dispatchRate", "topicDispatchRate", by_cluster=True),
    PolicyRoute("entryFilters", "entryFilters"),
    PolicyRoute("inactiveTopicPolicies", "inactive_topic_policies"),
    PolicyRoute("maxConsumersPerSubscription", "max_consumers_per_subscription"),
    PolicyRoute("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
    PolicyRoute("offloadPolicies", "offload_policies"),
    PolicyRoute("persistence", "persistence"),
    PolicyRoute("publishRate", "publishMaxMessageRate", by_cluster=True),
    PolicyRoute("replicatorDispatchRate", "replicatorDispatchRate", by_cluster=True),
    PolicyRoute("redeliverUnacked", "redeliver_unacked_policies"),
    PolicyRoute("retention", "retention_policies"),
    PolicyRoute("schemaCompatibilityStrategy", "schema_compatibility_strategy", "PUT"),
    PolicyRoute("schemaValidationEnforced", "schema_validation_enforced"),
    PolicyRoute("subscribeRate", "clusterSubscribeRate", by_cluster=True),
    PolicyRoute("subscriptionDispatchRate", "subscriptionDispatchRate", by_cluster=True),
    PolicyRoute("subscriptionTypesEnabled", "subscription_types_enabled"),
    PolicyRoute("dispatcherPauseOnAckStatePersistent", "dispatcherPauseOnAckStatePersistentEnabled"),
)
NAMESPACE_ROUTES: Final = (
    *_COMMON,
    PolicyRoute("allowedClusters", "allowed_clusters"),
    PolicyRoute("autoTopicCreation", "autoTopicCreationOverride"),
    PolicyRoute("compactionThreshold", "compaction_threshold", "PUT"),
    PolicyRoute("deduplication", "deduplicationEnabled"),
    PolicyRoute("encryptionRequired", "encryption_required"),
    PolicyRoute("isAllowAutoUpdateSchema", "is_allow_auto_update_schema"),
    PolicyRoute("maxConsumersPerTopic", "max_consumers_per_topic"),
    PolicyRoute("maxProducersPerTopic", "max_producers_per_topic"),
    PolicyRoute("maxTopicsPerNamespace", "max_topics_per_namespace", unset=0),
    PolicyRoute("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
    PolicyRoute("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
    PolicyRoute("messageTTL", "message_ttl_in_seconds"),
    PolicyRoute("migration", "migrated", status=200),
    PolicyRoute("offloadDeletionLagMs", "offload_deletion_lag_ms", "PUT", status=200),
    PolicyRoute("offloadThreshold", "offload_threshold", "PUT", status=200),
    PolicyRoute("offloadThresholdInSeconds", "offload_threshold_in_seconds", "PUT"),
    PolicyRoute("replication", "replication_clusters", status=200),
    PolicyRoute("schemaAutoUpdateCompatibilityStrategy", "schema_auto_update_compatibility_strategy", "PUT"),
    PolicyRoute("subscriptionAuthMode", "subscription_auth_mode"),
    PolicyRoute("subscriptionExpirationTime", "subscription_expiration_time_minutes"),
)
_UNSET_FOR_TOPICS: Final[Mapping[str, Any]] = {
    "subscriptionTypesEnabled": (), "schemaValidationEnforced": False,
}  # fmt: skip
TOPIC_ROUTES: Final = (
    *(replace(route, unset=_UNSET_FOR_TOPICS.get(route.segment)) for route in _COMMON),
    PolicyRoute("compactionThreshold", "compaction_threshold"),
    PolicyRoute("deduplicationEnabled", "deduplicationEnabled"),
    PolicyRoute("maxConsumers", "max_consumers_per_topic"),
    PolicyRoute("maxMessageSize", "max_message_size"),
    PolicyRoute("maxProducers", "max_producers_per_topic"),
    PolicyRoute("maxUnackedMessagesOnConsumer", "max_unacked_messages_per_consumer"),
    PolicyRoute("maxUnackedMessagesOnSubscription", "max_unacked_messages_per_subscription"),
    PolicyRoute("replication", "replication_clusters"),
)
TEXTS: Final = {
    "autoSubscriptionCreation": "Whether consumers make subscriptions: ``allowAutoSubscriptionCreation``.",
    "deduplicationSnapshotInterval": "Kept and shown: sequence ids are stored with each message.",
    "delayedDelivery": "``active``, ``tickTime`` and ``maxDeliveryDelayInMillis``.",
    "dispatchRate": (
        "Rate of delivery of a topic: ``dispatchThrottlingRateInMsg``, ``dispatchThrottlingRateInByte``, "
        "``ratePeriodInSecond``."
    ),
    "entryFilters": "Kept and shown: filters are Java classes.",
    "inactiveTopicPolicies": (
        "``deleteWhileInactive``, ``maxInactiveDurationSeconds``, ``inactiveTopicDeleteMode``."
    ),
    "maxConsumersPerSubscription": "A number; 0: no limit.",
    "maxSubscriptionsPerTopic": "A number; 0: no limit.",
    "offloadPolicies": (
        "Thresholds and deletion lag of offloading count; drivers and buckets are kept and shown."
    ),
    "persistence": "Kept and shown: there are no bookies.",
    "publishRate": (
        "Rate of publishing to a topic: ``publishThrottlingRateInMsg``, ``publishThrottlingRateInByte``."
    ),
    "replicatorDispatchRate": "Kept and shown: nothing is replicated.",
    "redeliverUnacked": (
        "Geminga's own: ``afterSeconds``, ``messagesPerSecondMax``, ``ageSecondsMax``: when delivered "
        "messages are pushed again that nobody acknowledges."
    ),
    "retention": (
        "How long acknowledged messages stay: ``retentionTimeInMinutes``, ``retentionSizeInMB``; -1: for "
        "ever."
    ),
    "schemaCompatibilityStrategy": (
        "Which schemas may follow others: ``FULL``, ``BACKWARD``, ``FORWARD``, their ``_TRANSITIVE`` "
        "forms, ``ALWAYS_COMPATIBLE``, ``ALWAYS_INCOMPATIBLE``."
    ),
    "schemaValidationEnforced": "Whether producers without a schema are refused where the topic has one.",
    "subscribeRate": (
        "How often a consumer may subscribe: ``subscribeThrottlingRatePerConsumer``, ``ratePeriodInSecond``."
    ),
    "subscriptionDispatchRate": "Rate of delivery of each subscription; fields as for ``dispatchRate``.",
    "subscriptionTypesEnabled": "A list of the types that are allowed; empty: all.",
    "dispatcherPauseOnAckStatePersistent": "Kept and shown: acknowledgements are always stored in full.",
    "allowedClusters": "Where the namespace's topics may be; this cluster alone has an effect.",
    "autoTopicCreation": (
        "Whether clients make topics: ``allowAutoTopicCreation``, ``topicType``, ``defaultNumPartitions``."
    ),
    "compactionThreshold": "Bytes after which a topic is compacted; 0: never.",
    "deduplication": "Whether repeated sequence ids are dropped.",
    "deduplicationEnabled": "Whether repeated sequence ids are dropped.",
    "encryptionRequired": "Whether producers that do not encrypt are refused.",
    "isAllowAutoUpdateSchema": "Whether producers may bring new schemas.",
    "maxConsumersPerTopic": "A number; 0: no limit.",
    "maxConsumers": "Consumers of the topic; 0: no limit.",
    "maxProducersPerTopic": "A number; 0: no limit.",
    "maxProducers": "Producers of the topic; 0: no limit.",
    "maxTopicsPerNamespace": "A number; 0: no limit.",
    "maxMessageSize": "Bytes of an entry; 0: the broker's limit.",
    "maxUnackedMessagesPerConsumer": "What a Shared or Key_Shared consumer may hold; 0: no limit.",
    "maxUnackedMessagesOnConsumer": "What a Shared or Key_Shared consumer may hold; 0: no limit.",
    "maxUnackedMessagesPerSubscription": "What all consumers of a subscription may hold; 0: no limit.",
    "maxUnackedMessagesOnSubscription": "What all consumers of a subscription may hold; 0: no limit.",
    "messageTTL": "Seconds after which messages count as acknowledged; 0: never.",
    "migration": "Kept and shown: nothing is migrated.",
    "offloadDeletionLagMs": "How long an offloaded ledger stays in the store, too.",
    "offloadThreshold": "Bytes of a topic beyond which its oldest ledgers are offloaded; -1: none.",
    "offloadThresholdInSeconds": "Age beyond which ledgers are offloaded; -1: none.",
    "replication": "A list of clusters; this one alone has an effect.",
    "schemaAutoUpdateCompatibilityStrategy": (
        "The older form of ``schemaCompatibilityStrategy``: kept and shown."
    ),
    "subscriptionAuthMode": "``None``, or ``Prefix``: a subscription's name begins with the role.",
    "subscriptionExpirationTime": (
        "Minutes after which subscriptions without consumers are deleted; 0: never."
    ),
}
"""Description of each policy by the last part of its path, used in ``docs/reference/rest.md``."""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _PolicyResource(Resource):
    """Handlers of policies; subclasses define where a policy is stored."""

    path = ""

    def read(self, request: web.Request, field: str) -> Any:
        raise NotImplementedError

    def put(self, request: web.Request, field: str, value: Any, done: Done) -> None:
        raise NotImplementedError

    async def write(self, request: web.Request, field: str, value: Any) -> None:
        await self.in_force(lambda done: self.put(request, field, value, done))

    async def change(self, request: web.Request, field: str, new: Callable[[Any], Any]) -> None:
        """Set a policy to ``new(present value)``.

        The present value is read within the call, after other requests' changes.
        """
        await self.in_force(lambda done: self.put(request, field, new(self.read(request, field)), done))

    def register_table(
        self, router: web.UrlDispatcher, routes: tuple[PolicyRoute, ...], *others: PolicyRoute
    ) -> None:
        """Register the routes of a table; ``others`` have their own handlers."""
        for route in routes:
            path = f"{self.path}/{route.segment}"
            router.add_get(path, self._getter(route))
            router.add_route(route.method, path, self._setter(route))
            router.add_delete(path, self._remover(route))
        router.add_get(f"{self.path}/policiesSet", self._lister((*routes, *others)))
        router.add_get(f"{self.path}/backlogQuotaMap", self.backlog_quotas)
        router.add_post(f"{self.path}/backlogQuota", self.set_backlog_quota)
        router.add_delete(f"{self.path}/backlogQuota", self.remove_backlog_quota)

    def _getter(self, route: PolicyRoute) -> Handler:
        async def get(request: web.Request) -> web.StreamResponse:
            found = self.read(request, route.field)
            if route.by_cluster and found is not None:
                found = found.get(self.server.settings.cluster)
            return answer_or_empty(route.unset if found is None else found)

        return get

    def _lister(self, routes: tuple[PolicyRoute, ...]) -> Handler:
        async def policies_set(request: web.Request) -> web.StreamResponse:
            """Policies that are set, by the last parts of their paths; saves a client many requests."""
            cluster = self.server.settings.cluster
            found = []
            for route in routes:
                value = self.read(request, route.field)
                if value is not None and (not route.by_cluster or cluster in value):
                    found.append(route.segment)
            if self.read(request, "backlog_quota_map"):
                found.append("backlogQuotaMap")
            return answer(sorted(found))

        return policies_set

    def _setter(self, route: PolicyRoute) -> Handler:
        async def set_policy(request: web.Request) -> web.StreamResponse:
            value = await body(request, route.bodiless)
            if route.by_cluster and value is not None:
                here = {self.server.settings.cluster: value}
                await self.change(request, route.field, lambda found: {**(found or {}), **here})
            else:
                await self.write(request, route.field, value)
            return done_answer(route.status)

        return set_policy

    def _remover(self, route: PolicyRoute) -> Handler:
        async def remove(request: web.Request) -> web.StreamResponse:
            if route.by_cluster:
                cluster = self.server.settings.cluster
                await self.change(request, route.field, lambda found: _without(found, cluster))
            else:
                await self.write(request, route.field, None)
            return done_answer()

        return remove

    async def backlog_quotas(self, request: web.Request) -> web.Response:
        """The backlog quotas that are set, by kind."""
        return answer(self.read(request, "backlog_quota_map") or {})

    async def set_backlog_quota(self, request: web.Request) -> web.Response:
        """Set one: ``?backlogQuotaType=`` ``destination_storage`` (default) or ``message_age``. Body:
        ``limitSize`` in bytes, ``limitTime`` in seconds, ``policy``: ``producer_request_hold``,
        ``producer_exception`` or ``consumer_backlog_eviction``."""
        quota = backlog_quota("backlogQuota", await object_body(request))
        kind = _quota_kind(request)
        await self.change(request, "backlog_quota_map", lambda found: {**(found or {}), kind: quota})
        return done_answer()

    async def remove_backlog_quota(self, request: web.Request) -> web.Response:
        """Remove the quota of that kind."""
        kind = _quota_kind(request)
        await self.change(request, "backlog_quota_map", lambda found: _without(found, kind))
        return done_answer()


def _without(found: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    return {each: value for each, value in (found or {}).items() if each != name} or None


def _quota_kind(request: web.Request) -> str:
    kind = request.query.get("backlogQuotaType") or QUOTA_KINDS[0]
    return str(one_of(QUOTA_KINDS)("backlogQuotaType", kind))


class NamespacePoliciesResource(_PolicyResource):
    """``/admin/v2/namespaces/{tenant}/{namespace}/...``"""

    path = "/admin/v2/namespaces/{tenant}/{namespace}"

    def register(self, router: web.UrlDispatcher) -> None:
        self.register_table(router, NAMESPACE_ROUTES)
        router.add_delete(f"{self.path}/removeOffloadPolicies", self.remove_offload_policies)
        router.add_get(f"{self.path}/antiAffinity", self.anti_affinity)
        router.add_post(f"{self.path}/antiAffinity", self.set_anti_affinity)
        router.add_delete(f"{self.path}/antiAffinity", self.remove_anti_affinity)
        # Apache Pulsar's client sends this request to version 1 of the API.
        router.add_get("/admin/namespaces/{cluster}/antiAffinity/{group}", self.anti_affinity_namespaces)
        bookies = f"{self.path}/persistence/bookieAffinity"
        router.add_get(bookies, self.bookie_affinity)
        router.add_post(bookies, self.set_bookie_affinity)
        router.add_delete(bookies, self.remove_bookie_affinity)
        router.add_get(f"{self.path}/resourcegroup", self.resource_group)
        router.add_delete(f"{self.path}/resourcegroup", self.remove_resource_group)
        router.add_post(f"{self.path}/resourcegroup/{{group}}", self.set_resource_group)
        router.add_get(f"{self.path}/properties", self.properties)
        router.add_put(f"{self.path}/properties", self.add_properties)
        router.add_delete(f"{self.path}/properties", self.clear_properties)
        router.add_get(f"{self.path}/property/{{key}}", self.get_property)
        router.add_put(f"{self.path}/property/{{key}}/{{value}}", self.set_property)
        router.add_delete(f"{self.path}/property/{{key}}", self.remove_property)

    def read(self, request: web.Request, field: str) -> Any:
        return self.namespaces.get_policy(part(request, "tenant"), part(request, "namespace"), field)

    def put(self, request: web.Request, field: str, value: Any, done: Done) -> None:
        tenant, namespace = part(request, "tenant"), part(request, "namespace")
        self.namespaces.set_policy(tenant, namespace, field, value, done)

    async def remove_offload_policies(self, request: web.Request) -> web.Response:
        """Remove the namespace's offload policies."""
        await self.write(request, "offload_policies", None)
        return done_answer()

    async def anti_affinity(self, request: web.Request) -> web.Response:
        """Stored and shown, without effect: there is only one broker."""
        found = self.read(request, "antiAffinityGroup")
        return done_answer() if found is None else bare_text(found)

    async def set_anti_affinity(self, request: web.Request) -> web.Response:
        """Stored and shown, without effect. Body: a name."""
        # Apache Pulsar's client sends the bare name, others a JSON text.
        text = (await sent(request)).decode("utf-8", "replace").strip()
        try:
            group = json.loads(text)
        except ValueError:
            group = text
        await self.write(request, "antiAffinityGroup", group if isinstance(group, str) else text)
        return done_answer()

    async def anti_affinity_namespaces(self, request: web.Request) -> web.Response:
        """The namespaces of an anti-affinity group."""
        self.namespaces.cluster_note(part(request, "cluster"), "")
        group = part(request, "group")
        names = (name.split("/") for name in self.namespaces.all_namespaces())
        return answer(
            [
                f"{tenant}/{namespace}"
                for tenant, namespace in names
                if self.namespaces.get_policy(tenant, namespace, "antiAffinityGroup") == group
            ]
        )

    async def bookie_affinity(self, request: web.Request) -> web.Response:
        """Stored and shown, without effect: there are no bookies."""
        return answer_or_empty(self.read(request, "bookieAffinityGroup"))

    async def set_bookie_affinity(self, request: web.Request) -> web.Response:
        """Stored and shown, without effect."""
        await self.write(request, "bookieAffinityGroup", await object_body(request))
        return done_answer()

    async def remove_bookie_affinity(self, request: web.Request) -> web.Response:
        """Remove it."""
        await self.write(request, "bookieAffinityGroup", None)
        return done_answer()

    async def remove_anti_affinity(self, request: web.Request) -> web.Response:
        """Remove it."""
        await self.write(request, "antiAffinityGroup", None)
        return done_answer(200)

    async def resource_group(self, request: web.Request) -> web.Response:
        """Stored and shown, without effect: set rates of namespaces and topics instead."""
        found = self.read(request, "resource_group_name")
        return answer_or_empty(None) if found is None else bare_text(found)

    async def set_resource_group(self, request: web.Request) -> web.Response:
        """Stored and shown, without effect."""
        await self.write(request, "resource_group_name", part(request, "group"))
        return done_answer()

    async def remove_resource_group(self, request: web.Request) -> web.Response:
        """Remove it."""
        await self.write(request, "resource_group_name", None)
        return done_answer()

    async def properties(self, request: web.Request) -> web.Response:
        """Properties of the namespace."""
        return answer(self.read(request, "properties") or {})

    async def add_properties(self, request: web.Request) -> web.Response:
        """Add properties, or replace single ones."""
        added = text_map("properties", await object_body(request))
        await self.change(request, "properties", lambda found: {**(found or {}), **added})
        return done_answer()

    async def clear_properties(self, request: web.Request) -> web.Response:
        """Remove all properties."""
        await self.write(request, "properties", None)
        return done_answer()

    async def get_property(self, request: web.Request) -> web.Response:
        """One property."""
        found = (self.read(request, "properties") or {}).get(part(request, "key"))
        return answer_or_empty(None) if found is None else bare_text(found)

    async def set_property(self, request: web.Request) -> web.Response:
        """Set a property."""
        added = {part(request, "key"): part(request, "value")}
        await self.change(request, "properties", lambda found: {**(found or {}), **added})
        return done_answer()

    async def remove_property(self, request: web.Request) -> web.Response:
        """Remove a property; answers with its value."""
        key = part(request, "key")
        found = (self.read(request, "properties") or {}).get(key)
        await self.change(request, "properties", lambda kept: _without(kept, key))
        return answer_or_empty(None) if found is None else bare_text(found)


class TopicPoliciesResource(_PolicyResource):
    """``/admin/v2/{domain}/{tenant}/{namespace}/{topic}/...``"""

    path = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"

    def register(self, router: web.UrlDispatcher) -> None:
        ttl = PolicyRoute("messageTTL", "message_ttl_in_seconds")
        self.register_table(router, TOPIC_ROUTES, ttl)
        router.add_get(f"{self.path}/messageTTL", self._getter(ttl))
        router.add_post(f"{self.path}/messageTTL", self.set_message_ttl)
        router.add_delete(f"{self.path}/messageTTL", self._remover(ttl))

    def _topic(self, request: web.Request) -> TopicName:
        topic = topic_of(request)
        if not self.actions.exists(topic.base) and not self.actions.exists(topic):
            raise AdminRefusal(404, f"Topic {topic} not found")
        return topic

    def read(self, request: web.Request, field: str) -> Any:
        topic = self._topic(request)
        of_all = query_flag(request, "isGlobal")
        found = self.namespaces.get_topic_policy(topic, field, of_all_clusters=of_all)
        if request.method in ("GET", "HEAD") and query_flag(request, "applied"):
            if field == "backlog_quota_map":
                return self._applied(topic)[field]  # of each kind, wherever that was set
            if found is None:
                found = self.namespaces.get_topic_policy(topic, field, of_all_clusters=True)
            if found is None:
                found = self.namespaces.get_policy(topic.tenant, topic.namespace, field)
            if found is None or found == {}:
                found = self._applied(topic).get(field)
        return found

    def _applied(self, topic: TopicName) -> dict[str, Any]:
        return in_force(self.namespaces.topic_policies(topic), self.server.settings.cluster)

    def put(self, request: web.Request, field: str, value: Any, done: Done) -> None:
        topic, of_all = self._topic(request), query_flag(request, "isGlobal")
        self.namespaces.set_topic_policy(topic, field, value, done, of_all_clusters=of_all)

    async def set_message_ttl(self, request: web.Request) -> web.Response:
        """Set the topic's TTL: ``?messageTTL=`` seconds."""
        seconds = whole_number(request.query.get("messageTTL"), "messageTTL")
        await self.write(request, "message_ttl_in_seconds", seconds)
        return done_answer()
