"""Registry of namespaces and their policies, with the tenants and clusters that they belong to.

They are kept in the store's key-value map, one JSON document per key: ``cluster/<name>``, ``tenant/<name>``,
``namespace/<tenant>/<name>`` and ``topic-policies/<topic>``. All but those of topics are held in memory.
There may be as many topic policies as topics: they are read at their first use, and the resolved policies of
the last topics are cached. A change is in force at once; ``done`` is called when it is durable.
"""

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from geminga.broker.rules.documents import Json, RuleDocuments
from geminga.broker.rules.effective_policies import TWINS, Policies, cautious, resolve
from geminga.broker.rules.policies import (
    InvalidRequest,
    RuleViolation,
    bundle_ranges,
    check_document,
    check_policy,
)
from geminga.broker.rules.tenants import ClusterRegistry, TenantRegistry, check_name
from geminga.broker.settings import BrokerSettings
from geminga.ids import TopicName
from geminga.ledger.api import Done, EntryStore
from geminga.policies import NamespaceScope, declared

Watcher = Callable[[str, TopicName | None, Policies | None], None]
"""``watcher("tenant/namespace", topic or None, before)`` with the policies before the change.

``before`` is None if they are unknown, or if the namespace was deleted.
"""
SettingsWatcher = Callable[[], None]
"""Called after a change of the broker's own settings."""
PermissionWatcher = Callable[[str], None]
"""``watcher("tenant")`` after a change of permissions in a tenant."""

NAMESPACE = "namespace/"
TOPIC_POLICIES = "topic-policies/"
RESOLVED_TOPICS_MAX = 2048
"""Topics whose resolved policies, or lack of own policies, are cached."""
RESOLVED_NAMESPACES_MAX = 2048
"""Namespaces whose resolved policies are cached."""

_DEFAULT_NAMESPACES = (("public", "default"), ("pulsar", "system"))
_ABOUT_PERMISSIONS = ("auth_policies", "subscription_auth_mode")
_PRESENT_WHEN_UNSET: Mapping[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "properties": {},
} | {
    policy.field: {} if policy.by_cluster else policy.default
    for policy in declared(NamespaceScope)
    if policy.by_cluster or policy.default is not None
}
"""Values that Pulsar shows in a namespace's policies even if they are not set."""


GLOBAL: Final = "global"
"""Key in a topic's policies for those of all clusters, which tools distinguish from the local ones."""


class NamespaceRegistry:
    """Registry of tenants and namespaces. Reads are plain look-ups; a missing name raises `RuleViolation`."""

    def __init__(self, store: EntryStore, settings: BrokerSettings, *, is_sure: bool = True) -> None:
        """``settings`` are the defaults of policies; see `use`."""
        self.settings = settings
        self.is_sure = is_sure
        """Whether no part of ``settings`` was lost to damage."""
        self.watchers: list[Watcher] = []
        self.settings_watchers: list[SettingsWatcher] = []
        self.permission_watchers: list[PermissionWatcher] = []
        self._leaving: set[str] = set()
        documents = self._documents = RuleDocuments(store)
        self._namespaces = documents.load(NAMESPACE)
        self.clusters = ClusterRegistry(documents, settings, self._namespaces)
        self.tenants = TenantRegistry(documents, self.clusters, self._namespaces, self._permissions_changed)
        for document in self._namespaces.values():  # damage may have taken required fields
            document.setdefault("replication_clusters", [settings.cluster])
            if "bundles" not in document:
                document["bundles"] = _checked_bundles(None, settings)
        self._resolved: OrderedDict[str, Policies] = OrderedDict()
        self._resolved_topics: OrderedDict[str, Policies | None] = OrderedDict()
        self._create_defaults()

    def use(self, settings: BrokerSettings, *, is_sure: bool = True) -> None:
        """Change the defaults of policies; not ``is_sure``: some settings were lost to damage."""
        self.settings = self.clusters.settings = settings
        self.is_sure = is_sure
        self._resolved.clear()
        self._resolved_topics.clear()
        for watcher in self.settings_watchers:
            watcher()

    # --- permissions ---
    def permissions(self, tenant: str, namespace: str) -> Mapping[str, Any] | None:
        """Return the permissions in a namespace (``auth_policies``, read-only); None if it does not exist."""
        document = self._namespaces.get(f"{tenant}/{namespace}")
        return None if document is None else document.get("auth_policies", {})

    def _permissions_changed(self, tenant: str) -> None:
        for watcher in self.permission_watchers:
            watcher(tenant)

    # --- namespaces ---
    def all_namespaces(self) -> list[str]:
        return sorted(self._namespaces)

    def exists(self, tenant: str, namespace: str) -> bool:
        return f"{tenant}/{namespace}" in self._namespaces

    def document(self, tenant: str, namespace: str) -> Json:
        """Return the whole policies object in the admin API's format."""
        return copy.deepcopy({**_PRESENT_WHEN_UNSET, **self._require(tenant, namespace)})

    def create_namespace(
        self, tenant: str, namespace: str, document: Json | None = None, done: Done | None = None
    ) -> None:
        """Create a namespace. ``document`` is a policies object, None: defaults; raises `RuleViolation`."""
        self.tenants.get(tenant)
        check_name("namespace", namespace)
        name = f"{tenant}/{namespace}"
        if name in self._namespaces:
            raise RuleViolation(InvalidRequest.IN_THE_WAY, f"Namespace {name} already exists")
        kept = check_document(document or {})
        kept["replication_clusters"] = self.clusters.checked(kept.get("replication_clusters"))
        kept["bundles"] = _checked_bundles(kept.get("bundles"), self.settings)
        self._documents.write(NAMESPACE, self._namespaces, name, kept, done)

    @contextlib.contextmanager
    def leaving(self, tenant: str, namespace: str) -> Iterator[None]:
        """Refuse new topics in a namespace while it is deleted with its topics (`is_leaving`).

        Disconnected clients reconnect at once; a topic that is created for them would be left in a deleted
        namespace. Raises `RuleViolation` if it is already being deleted.
        """
        name = f"{tenant}/{namespace}"
        self._require(tenant, namespace)
        if name in self._leaving:
            raise RuleViolation(InvalidRequest.IN_THE_WAY, f"Namespace {name} is being deleted already")
        self._leaving.add(name)
        try:
            yield
        finally:
            self._leaving.discard(name)

    def is_leaving(self, tenant: str, namespace: str) -> bool:
        """Return whether the namespace is being deleted with its topics."""
        return bool(self._leaving) and f"{tenant}/{namespace}" in self._leaving

    def delete_namespace(self, tenant: str, namespace: str, done: Done | None = None) -> None:
        """Delete the namespace; the caller ensures that it has no topics."""
        self._require(tenant, namespace)
        name = f"{tenant}/{namespace}"
        self._documents.remove(NAMESPACE, self._namespaces, name, done)
        self._changed(name, None)

    # --- policies ---
    def policies(self, tenant: str, namespace: str) -> Policies:
        """Return the policies in force in a namespace."""
        name = f"{tenant}/{namespace}"
        found = self._resolved.get(name)
        if found is None:
            found = resolve(self.settings, self._require(tenant, namespace))
            if not self.is_sure or NAMESPACE + name in self._documents.damaged:
                found = cautious(found)
            self._resolved[name] = found
            if len(self._resolved) > RESOLVED_NAMESPACES_MAX:
                self._resolved.popitem(last=False)
        return found

    def topic_policies(self, topic: TopicName) -> Policies:
        """Return the policies in force for a topic; a partition has those of its partitioned topic."""
        key = str(topic.base)
        resolved = self._resolved_topics
        if key in resolved:
            resolved.move_to_end(key)
            found = resolved[key]
        else:
            found = resolved[key] = self._resolve_topic(topic, key)
            if len(resolved) > RESOLVED_TOPICS_MAX:
                resolved.popitem(last=False)
        return self.policies(topic.tenant, topic.namespace) if found is None else found

    def _resolve_topic(self, topic: TopicName, key: str) -> Policies | None:
        """Return the resolved policies of a topic with policies of its own; None without."""
        own = self._documents.read(TOPIC_POLICIES + key)
        if own is None:
            return None
        above = own.get(GLOBAL, {}), self._require(topic.tenant, topic.namespace)
        found = resolve(self.settings, own, *above)
        namespace = NAMESPACE + topic.namespace_name
        is_cautious = not self._documents.damaged.isdisjoint((TOPIC_POLICIES + key, namespace))
        return cautious(found) if is_cautious or not self.is_sure else found

    def get_policy(self, tenant: str, namespace: str, field: str) -> Any:
        """Return the policy set in the namespace, None if it is not set."""
        document = self._require(tenant, namespace)
        whole, part = TWINS.get(field, ("", ""))
        twin = document.get(whole, {}).get(part)
        if twin is not None:
            return twin
        return copy.deepcopy(document.get(field, _PRESENT_WHEN_UNSET.get(field)))

    def set_policy(
        self, tenant: str, namespace: str, field: str, value: Any, done: Done | None = None
    ) -> None:
        """Set a policy, or remove it with None; `RuleViolation` describes an invalid value."""
        document = dict(self._require(tenant, namespace))
        if value is None:
            document.pop(field, None)
        elif field == "replication_clusters":
            document[field] = self.clusters.checked(check_policy(field, value))
        else:
            document[field] = check_policy(field, value)
        if field == "allowed_clusters":
            self._check_allowed(tenant, document.get(field, ()))
        whole, part = TWINS.get(field, ("", ""))
        if whole and (value is not None or whole in document):
            twins = {**document.get(whole, {}), part: document.get(field)}
            document[whole] = {name: kept for name, kept in twins.items() if kept is not None}
        _check_quota_below_retention(document, f"namespace {tenant}/{namespace}")
        before = self.policies(tenant, namespace)
        self._documents.write(NAMESPACE, self._namespaces, f"{tenant}/{namespace}", document, done)
        self._changed(f"{tenant}/{namespace}", None, before)
        if field in _ABOUT_PERMISSIONS:
            self._permissions_changed(tenant)

    def _check_allowed(self, tenant: str, clusters: Iterable[str]) -> None:
        """Check that the tenant may use the clusters of a policy."""
        of_tenant = self.tenants.get(tenant)["allowedClusters"]
        for cluster in clusters:
            if cluster not in of_tenant:
                raise RuleViolation(
                    InvalidRequest.ELSEWHERE,
                    f"Cluster {cluster} is not allowed to tenant {tenant}, which has {', '.join(of_tenant)}",
                )

    def get_topic_policy(self, topic: TopicName, field: str, *, of_all_clusters: bool = False) -> Any:
        """Return the policy set for the topic itself, None if it is not set.

        ``of_all_clusters``: the value for all clusters, which a value for this cluster overrides.
        """
        own = self._documents.read(f"{TOPIC_POLICIES}{topic.base}") or {}
        return (own.get(GLOBAL, {}) if of_all_clusters else own).get(field)

    def set_topic_policy(
        self,
        topic: TopicName,
        field: str,
        value: Any,
        done: Done | None = None,
        *,
        of_all_clusters: bool = False,
    ) -> None:
        """Set a policy of one topic, or remove it with None; see `get_topic_policy`."""
        self._require(topic.tenant, topic.namespace)
        key = str(topic.base)
        document = self._documents.read(TOPIC_POLICIES + key) or {}
        layer = document.setdefault(GLOBAL, {}) if of_all_clusters else document
        if value is None:
            layer.pop(field, None)
        else:
            layer[field] = check_policy(field, value)
        if not document.get(GLOBAL, True):
            del document[GLOBAL]
        _check_quota_below_retention(layer, f"topic {key}")
        before = self.topic_policies(topic)
        if document:
            self._documents.write(TOPIC_POLICIES, {}, key, document, done)
        else:
            self._documents.remove(TOPIC_POLICIES, {}, key, done)
        self._changed(topic.namespace_name, topic.base, before)

    def forget_topic(self, topic: TopicName) -> bool:
        """Delete a topic's own policies; return whether there were any. Watchers are not called."""
        key = str(topic.base)
        if not self._documents.has(TOPIC_POLICIES + key):
            return False
        self._documents.remove(TOPIC_POLICIES, {}, key, None)
        self._resolved_topics.pop(key, None)
        return True

    # --- inside ---
    def _require(self, tenant: str, namespace: str) -> Json:
        found = self._namespaces.get(f"{tenant}/{namespace}")
        if found is None:
            if tenant not in self.tenants:
                raise RuleViolation(InvalidRequest.MISSING, f"Tenant {tenant} does not exist")
            raise RuleViolation(InvalidRequest.MISSING, f"Namespace {tenant}/{namespace} does not exist")
        return found

    def _changed(self, namespace: str, topic: TopicName | None, before: Policies | None = None) -> None:
        self._resolved.pop(namespace, None)
        if topic is None:
            self._resolved_topics.clear()
        else:
            self._resolved_topics.pop(str(topic), None)
        for watcher in self.watchers:
            watcher(namespace, topic, before)

    def _create_defaults(self) -> None:
        for tenant, namespace in _DEFAULT_NAMESPACES:
            if tenant not in self.tenants:
                self.tenants.create(tenant, {"allowedClusters": [self.settings.cluster]})
            if not self.exists(tenant, namespace):
                self.create_namespace(tenant, namespace)

    def accept(self, key: str) -> None:
        """Use damaged policies as they were read; ``key``: theirs in the store."""
        if key not in self._documents.damaged:
            return
        self._documents.damaged.discard(key)
        if key.startswith(NAMESPACE):
            self._changed(key.removeprefix(NAMESPACE), None)
        elif key.startswith(TOPIC_POLICIES):
            topic = TopicName.parse(key.removeprefix(TOPIC_POLICIES))
            self._changed(topic.namespace_name, topic)


def _checked_bundles(bundles: Json | None, settings: BrokerSettings) -> Json:
    bundles = bundles or {}
    boundaries = bundles.get("boundaries")
    if boundaries and isinstance(boundaries, list):
        return {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
    count = bundles.get("numBundles") or settings.namespace_bundles
    if not isinstance(count, int):
        raise RuleViolation(InvalidRequest.NOT_ALLOWED, f"numBundles={count!r} is not a whole number")
    return bundle_ranges(count)


def _check_quota_below_retention(document: Mapping[str, Any], where: str) -> None:
    """Refuse a backlog quota that retention would always exceed, as Pulsar does."""
    kept = document.get("retention_policies")
    if not kept:
        return
    for kind, quota in document.get("backlog_quota_map", {}).items():
        megabytes, minutes = kept["retentionSizeInMB"], kept["retentionTimeInMinutes"]
        size_bad = kind == "destination_storage" and 0 < megabytes * 1024 * 1024 <= quota["limitSize"]
        age_bad = kind == "message_age" and 0 < minutes * 60 <= quota["limitTime"]
        if size_bad or age_bad:
            limit = f"{quota['limitSize']} bytes" if size_bad else f"{quota['limitTime']} s"
            raise RuleViolation(
                InvalidRequest.NOT_ALLOWED,
                f"Retention Quota must exceed configured backlog quota for {where}: "
                f"retention {megabytes} MB, {minutes} min; backlog quota {limit}",
            )
