"""Registry of clusters, tenants, namespaces and their policies.

They are kept in the store's key-value map, one JSON document per key: ``cluster/<name>``, ``tenant/<name>``,
``namespace/<tenant>/<name>`` and ``topic-policies/<topic>``, and data only for tools,
``cluster-notes/<name>`` and ``resource-group/<name>``. All but those of topics are held in memory. There may
be as many topic policies as topics: they are read at their first use, and the resolved policies of the last
topics are cached. A change is in force at once; ``done`` is called when it is durable.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from geminga.broker.rules.effective_policies import Policies, cautious, resolve
from geminga.broker.rules.policies import (
    InvalidRequest,
    RuleViolation,
    bundle_ranges,
    check_document,
    check_policy,
    check_resource_group,
    words,
)
from geminga.broker.settings import BrokerSettings
from geminga.errors import StoreDamaged
from geminga.ids import TopicName
from geminga.ledger.api import Done, EntryStore, StoredValue
from geminga.policies import NamespaceScope, declared

log = logging.getLogger("geminga.broker")

Json = dict[str, Any]
Watcher = Callable[[str, TopicName | None, Policies | None], None]
"""``watcher("tenant/namespace", topic or None, before)`` with the policies before the change.

``before`` is None if they are unknown, or if the namespace was deleted.
"""
SettingsWatcher = Callable[[], None]
"""Called after a change of the broker's own settings."""
PermissionWatcher = Callable[[str], None]
"""``watcher("tenant")`` after a change of permissions in a tenant."""

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
"""Largest policies of a namespace or a topic, as they are stored: each change writes them as a whole."""
NAMESPACE = "namespace/"
TOPIC_POLICIES = "topic-policies/"
RESOLVED_TOPICS_MAX = 2048
"""Topics whose resolved policies, or lack of own policies, are cached."""
RESOLVED_NAMESPACES_MAX = 2048
"""Namespaces whose resolved policies are cached."""

_NAME = re.compile(r"[-=:.\w]+\Z", re.ASCII)
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
_OFFLOAD_TWINS: Mapping[str, str] = {
    "offload_threshold": "managedLedgerOffloadThresholdInBytes",
    "offload_threshold_in_seconds": "managedLedgerOffloadThresholdInSeconds",
    "offload_deletion_lag_ms": "managedLedgerOffloadDeletionLagInMillis",
}
"""Policies that are also fields of ``offload_policies``: the last one set counts."""


GLOBAL: Final = "global"
"""Key in a topic's policies for those of all clusters, which tools distinguish from the local ones."""


def check_name(kind: str, name: object) -> str:
    """Check the name of a tenant, namespace or cluster."""
    if not isinstance(name, str) or not _NAME.match(name) or name in (".", ".."):
        raise RuleViolation(
            InvalidRequest.NOT_ALLOWED, f"{kind} name {name!r} may only hold letters, digits and -=:._"
        )
    return name


class NamespaceRegistry:
    """Registry of tenants and namespaces. Reads are plain look-ups; a missing name raises `RuleViolation`."""

    def __init__(self, store: EntryStore, settings: BrokerSettings, *, is_sure: bool = True) -> None:
        """``settings`` are the defaults of policies; see `use`."""
        self._store = store
        self._settings = settings
        self._watchers: list[Watcher] = []
        self._settings_watchers: list[SettingsWatcher] = []
        self._permission_watchers: list[PermissionWatcher] = []
        self._all_cautious = not is_sure
        self._leaving: set[str] = set()
        self._cautious: set[str] = set()
        self._clusters = self._load("cluster/")
        self._tenants = self._load("tenant/")
        self._namespaces = self._load(NAMESPACE)
        self._cluster_notes = self._load("cluster-notes/")
        self._resource_groups = self._load("resource-group/")
        self._fill_what_was_lost()
        self._resolved: OrderedDict[str, Policies] = OrderedDict()
        self._resolved_topics: OrderedDict[str, Policies | None] = OrderedDict()
        self._create_defaults()

    def watch(self, watcher: Watcher) -> None:
        """Register ``watcher``, which is called after each change of policies."""
        self._watchers.append(watcher)

    def watch_settings(self, watcher: SettingsWatcher) -> None:
        """Register ``watcher``, which is called after a change of the defaults."""
        self._settings_watchers.append(watcher)

    def use(self, settings: BrokerSettings, *, is_sure: bool = True) -> None:
        """Change the defaults of policies; not ``is_sure``: some settings were lost to damage."""
        self._settings, self._all_cautious = settings, not is_sure
        self._resolved.clear()
        self._resolved_topics.clear()
        for watcher in self._settings_watchers:
            watcher()

    @property
    def settings(self) -> BrokerSettings:
        """The defaults of policies."""
        return self._settings

    @property
    def is_sure(self) -> bool:
        """Whether no part of `settings` was lost to damage."""
        return not self._all_cautious

    # --- permissions ---
    def watch_permissions(self, watcher: PermissionWatcher) -> None:
        """Register ``watcher``, which is called after each change of permissions."""
        self._permission_watchers.append(watcher)

    def admin_roles(self, tenant: str) -> Sequence[str]:
        """Return the administrators' roles of a tenant; empty for a missing tenant."""
        found: Sequence[str] = self._tenants.get(tenant, {}).get("adminRoles", ())
        return found

    def permissions(self, tenant: str, namespace: str) -> Mapping[str, Any] | None:
        """Return the permissions in a namespace (``auth_policies``, read-only); None if it does not exist."""
        document = self._namespaces.get(f"{tenant}/{namespace}")
        return None if document is None else document.get("auth_policies", {})

    def _permissions_changed(self, tenant: str) -> None:
        for watcher in self._permission_watchers:
            watcher(tenant)

    # --- clusters ---
    def clusters(self) -> list[str]:
        return sorted({self._settings.cluster, *self._clusters})

    def cluster(self, name: str) -> Json:
        """Return the cluster's addresses; for this cluster, the addresses of this broker."""
        own = {}
        if name == self._settings.cluster:
            addresses = self._settings.addresses() or self._settings.own_addresses()
            urls = {
                "serviceUrl": addresses.http, "serviceUrlTls": addresses.https,
                "brokerServiceUrl": addresses.pulsar, "brokerServiceUrlTls": addresses.pulsar_tls,
            }  # fmt: skip
            own = {
                **{name: url for name, url in urls.items() if url is not None},
                "brokerClientTlsEnabled": False,
                "tlsAllowInsecureConnection": False,
                "brokerClientTlsTrustStoreType": "JKS",
                "brokerClientTlsKeyStoreType": "JKS",
                "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
            }
        elif name not in self._clusters:
            raise RuleViolation(InvalidRequest.MISSING, f"Cluster {name} does not exist")
        return own | copy.deepcopy(self._clusters.get(name, {}))

    def create_cluster(self, name: str, data: Json, done: Done | None = None) -> None:
        check_name("cluster", name)
        if name in self.clusters():
            raise RuleViolation(InvalidRequest.IN_THE_WAY, f"Cluster {name} already exists")
        self._write("cluster/", self._clusters, name, data, done)

    def update_cluster(self, name: str, data: Json, done: Done | None = None) -> None:
        if name not in self.clusters():
            raise RuleViolation(InvalidRequest.MISSING, f"Cluster {name} does not exist")
        self._write("cluster/", self._clusters, name, data, done)

    def delete_cluster(self, name: str, done: Done | None = None) -> None:
        self.cluster(name)
        if name == self._settings.cluster:
            raise RuleViolation(InvalidRequest.NOT_ALLOWED, f"Cluster {name} is this broker's own")
        users = [n for n, p in self._namespaces.items() if name in p.get("replication_clusters", ())]
        if users:
            raise RuleViolation(
                InvalidRequest.NOT_ALLOWED, f"Cluster not empty: namespace {users[0]} is replicated to {name}"
            )
        if name in self._cluster_notes:
            self._remove("cluster-notes/", self._cluster_notes, name, None)
        self._remove("cluster/", self._clusters, name, done)

    def cluster_note(self, name: str, kind: str) -> Json:
        """Return an administrator's data about a cluster, by kind; empty without any."""
        if name not in self.clusters():
            raise RuleViolation(InvalidRequest.NOT_ALLOWED, f"Cluster {name} does not exist.")
        return copy.deepcopy(self._cluster_notes.get(name, {}).get(kind, {}))

    def note_cluster(self, name: str, kind: str, note: Json, done: Done | None = None) -> None:
        self.cluster_note(name, kind)
        self._write(
            "cluster-notes/",
            self._cluster_notes,
            name,
            {**self._cluster_notes.get(name, {}), kind: note},
            done,
        )

    # --- resource groups: kept for the tools; no limit comes from them ---
    def resource_groups(self) -> list[str]:
        return sorted(self._resource_groups)

    def resource_group(self, name: str) -> Json:
        if name not in self._resource_groups:
            raise RuleViolation(InvalidRequest.MISSING, f"ResourceGroup {name} does not exist")
        return copy.deepcopy(self._resource_groups[name])

    def set_resource_group(self, name: str, limits: Json, done: Done | None = None) -> None:
        """Create a group, or change the given fields."""
        check_name("resource group", name)
        kept = check_resource_group(name, {**self._resource_groups.get(name, {}), **limits})
        self._write("resource-group/", self._resource_groups, name, kept, done)

    def delete_resource_group(self, name: str, done: Done | None = None) -> None:
        self.resource_group(name)
        users = [n for n, p in self._namespaces.items() if p.get("resource_group_name") == name]
        if users:
            raise RuleViolation(
                InvalidRequest.NOT_ALLOWED, f"ResourceGroup {name} is in use by namespace {users[0]}"
            )
        self._remove("resource-group/", self._resource_groups, name, done)

    # --- tenants ---
    def tenants(self) -> list[str]:
        return sorted(self._tenants)

    def tenant(self, name: str) -> Json:
        if name not in self._tenants:
            raise RuleViolation(InvalidRequest.MISSING, f"Tenant {name} does not exist")
        return copy.deepcopy(self._tenants[name])

    def create_tenant(self, name: str, info: Json | None, done: Done | None = None) -> None:
        check_name("tenant", name)
        if name in self._tenants:
            raise RuleViolation(InvalidRequest.IN_THE_WAY, f"Tenant {name} already exists")
        self._write("tenant/", self._tenants, name, self._tenant_info(info), done)

    def update_tenant(self, name: str, info: Json | None, done: Done | None = None) -> None:
        self.tenant(name)
        fresh = self._tenant_info(info)
        for namespace in self.namespaces(name):
            used = set(self._namespaces[namespace].get("replication_clusters", ()))
            missing = used - set(fresh["allowedClusters"])
            if missing:
                raise RuleViolation(
                    InvalidRequest.IN_THE_WAY, f"Namespace {namespace} is replicated to {sorted(missing)[0]}"
                )
        self._write("tenant/", self._tenants, name, fresh, done)
        self._permissions_changed(name)

    def delete_tenant(self, name: str, done: Done | None = None) -> None:
        """Delete a tenant; refused while it has namespaces."""
        self.tenant(name)
        if self.namespaces(name):
            raise RuleViolation(InvalidRequest.IN_THE_WAY, f"The tenant {name} still has active namespaces")
        self._remove("tenant/", self._tenants, name, done)

    def _tenant_info(self, info: Json | None) -> Json:
        info = dict(info or {})
        roles = words()("adminRoles", info.get("adminRoles") or [])
        clusters = words()("allowedClusters", info.get("allowedClusters") or [])
        if not clusters:
            raise RuleViolation(InvalidRequest.NOT_ALLOWED, "Clusters can not be empty")
        for cluster in clusters:
            if cluster not in self.clusters():
                raise RuleViolation(
                    InvalidRequest.NOT_ALLOWED,
                    f"Clusters do not exist: {cluster}; known: {', '.join(self.clusters())}",
                )
        return {**info, "adminRoles": roles, "allowedClusters": clusters}

    # --- namespaces ---
    def namespaces(self, tenant: str) -> list[str]:
        """Return ``tenant/namespace`` names, sorted."""
        self.tenant(tenant)
        return sorted(name for name in self._namespaces if name.startswith(f"{tenant}/"))

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
        self.tenant(tenant)
        check_name("namespace", namespace)
        name = f"{tenant}/{namespace}"
        if name in self._namespaces:
            raise RuleViolation(InvalidRequest.IN_THE_WAY, f"Namespace {name} already exists")
        kept = check_document(document or {})
        kept["replication_clusters"] = self._checked_clusters(kept.get("replication_clusters"))
        kept["bundles"] = self._checked_bundles(kept.get("bundles"))
        self._write(NAMESPACE, self._namespaces, name, kept, done)

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
        self._remove(NAMESPACE, self._namespaces, name, done)
        self._changed(name, None)

    def _checked_clusters(self, clusters: list[str] | None) -> list[str]:
        for cluster in clusters or ():
            if cluster not in self.clusters():
                raise RuleViolation(
                    InvalidRequest.ELSEWHERE,
                    f"Cluster {cluster} does not exist; known: {', '.join(self.clusters())}",
                )
        return list(clusters or [self._settings.cluster])

    def _checked_bundles(self, bundles: Json | None) -> Json:
        bundles = bundles or {}
        boundaries = bundles.get("boundaries")
        if boundaries and isinstance(boundaries, list):
            return {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
        count = bundles.get("numBundles") or self._settings.namespace_bundles
        if not isinstance(count, int):
            raise RuleViolation(InvalidRequest.NOT_ALLOWED, f"numBundles={count!r} is not a whole number")
        return bundle_ranges(count)

    # --- policies ---
    def policies(self, tenant: str, namespace: str) -> Policies:
        """Return the policies in force in a namespace."""
        name = f"{tenant}/{namespace}"
        found = self._resolved.get(name)
        if found is None:
            found = resolve(self._settings, self._require(tenant, namespace))
            if self._all_cautious or NAMESPACE + name in self._cautious:
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
        own = self._own(key)
        if own is None:
            return None
        above = own.get(GLOBAL, {}), self._require(topic.tenant, topic.namespace)
        found = resolve(self._settings, own, *above)
        namespace = NAMESPACE + topic.namespace_name
        is_cautious = not self._cautious.isdisjoint((TOPIC_POLICIES + key, namespace))
        return cautious(found) if is_cautious or self._all_cautious else found

    def get_policy(self, tenant: str, namespace: str, field: str) -> Any:
        """Return the policy set in the namespace, None if it is not set."""
        document = self._require(tenant, namespace)
        twin = document.get("offload_policies", {}).get(_OFFLOAD_TWINS.get(field))
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
            document[field] = self._checked_clusters(check_policy(field, value))
        else:
            document[field] = check_policy(field, value)
        self._check_names_in(tenant, field, document.get(field))
        if field in _OFFLOAD_TWINS and (value is not None or "offload_policies" in document):
            twins = {**document.get("offload_policies", {}), _OFFLOAD_TWINS[field]: document.get(field)}
            document["offload_policies"] = {name: kept for name, kept in twins.items() if kept is not None}
        _check_quota_below_retention(document, f"namespace {tenant}/{namespace}")
        before = self.policies(tenant, namespace)
        self._write(NAMESPACE, self._namespaces, f"{tenant}/{namespace}", document, done)
        self._changed(f"{tenant}/{namespace}", None, before)
        if field in _ABOUT_PERMISSIONS:
            self._permissions_changed(tenant)

    def _check_names_in(self, tenant: str, field: str, value: Any) -> None:
        """Check that the clusters named by a policy exist."""
        if field == "allowed_clusters":
            of_tenant = self.tenant(tenant)["allowedClusters"]
            for cluster in value or ():
                if cluster not in of_tenant:
                    known = ", ".join(of_tenant)
                    raise RuleViolation(
                        InvalidRequest.ELSEWHERE,
                        f"Cluster {cluster} is not allowed to tenant {tenant}, which has {known}",
                    )
        elif field == "resource_group_name" and value is not None and value not in self._resource_groups:
            raise RuleViolation(InvalidRequest.NOT_ALLOWED, f"ResourceGroup {value} does not exist")

    def get_topic_policy(self, topic: TopicName, field: str, *, of_all_clusters: bool = False) -> Any:
        """Return the policy set for the topic itself, None if it is not set.

        ``of_all_clusters``: the value for all clusters, which a value for this cluster overrides.
        """
        own = self._own(str(topic.base)) or {}
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
        document = self._own(key) or {}
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
            self._write(TOPIC_POLICIES, {}, key, document, done)
        else:
            self._remove(TOPIC_POLICIES, {}, key, done)
        self._changed(topic.namespace_name, topic.base, before)

    def forget_topic(self, topic: TopicName, done: Done | None = None) -> bool:
        """Delete a topic's own policies; return whether there were any. Watchers are not called."""
        key = str(topic.base)
        if self._store.keys.get(TOPIC_POLICIES + key) is not None:
            self._remove(TOPIC_POLICIES, {}, key, done)
            self._resolved_topics.pop(key, None)
            return True
        if done is not None:
            done(None)
        return False

    # --- inside ---
    def _require(self, tenant: str, namespace: str) -> Json:
        found = self._namespaces.get(f"{tenant}/{namespace}")
        if found is None:
            if tenant not in self._tenants:
                raise RuleViolation(InvalidRequest.MISSING, f"Tenant {tenant} does not exist")
            raise RuleViolation(InvalidRequest.MISSING, f"Namespace {tenant}/{namespace} does not exist")
        return found

    def _changed(self, namespace: str, topic: TopicName | None, before: Policies | None = None) -> None:
        self._resolved.pop(namespace, None)
        if topic is None:
            self._resolved_topics.clear()
        else:
            self._resolved_topics.pop(str(topic), None)
        for watcher in self._watchers:
            watcher(namespace, topic, before)

    def _create_defaults(self) -> None:
        for tenant, namespace in _DEFAULT_NAMESPACES:
            if tenant not in self._tenants:
                self.create_tenant(tenant, {"allowedClusters": [self._settings.cluster]})
            if not self.exists(tenant, namespace):
                self.create_namespace(tenant, namespace)

    def _load(self, prefix: str) -> dict[str, Json]:
        return {key[len(prefix) :]: self._decode(key, value) for key, value in self._store.keys.scan(prefix)}

    def _own(self, topic: str) -> Json | None:
        """Return a new copy of a topic's own policies, None without any."""
        key = TOPIC_POLICIES + topic
        value = self._store.keys.get(key)
        return None if value is None else self._decode(key, value)

    def _decode(self, key: str, value: StoredValue) -> Json:
        if value.lost is not None and key not in self._cautious:
            log.error(
                "%s was lost to damage in the store: %s, and nothing is deleted by its rules until they "
                "are set again",
                key,
                "what it was before is in force" if value.base else "defaults are in force",
            )
            self._cautious.add(key)
        try:
            document = json.loads(value.base) if value.base or value.lost is None else {}
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise StoreDamaged(f"the store's value under {key!r} is no JSON object: {value.base[:80]!r}")
        return document

    def accept(self, key: str) -> None:
        """Use damaged policies as they were read; ``key``: theirs in the store."""
        if key not in self._cautious:
            return
        self._cautious.discard(key)
        if key.startswith(NAMESPACE):
            self._changed(key.removeprefix(NAMESPACE), None)
        elif key.startswith(TOPIC_POLICIES):
            topic = TopicName.parse(key.removeprefix(TOPIC_POLICIES))
            self._changed(topic.namespace_name, topic)

    def _fill_what_was_lost(self) -> None:
        """Fill required fields that damage took from tenants and namespaces."""
        for info in self._tenants.values():
            info.setdefault("adminRoles", [])
            info.setdefault("allowedClusters", [self._settings.cluster])
        for document in self._namespaces.values():
            document.setdefault("replication_clusters", [self._settings.cluster])
            if "bundles" not in document:
                document["bundles"] = self._checked_bundles(None)

    def lost(self, tenant: str, namespace: str) -> bool:
        """Return whether the namespace's policies were lost to damage, and not set again."""
        return f"{NAMESPACE}{tenant}/{namespace}" in self._cautious

    def _write(
        self, prefix: str, documents: dict[str, Json], name: str, document: Json, done: Done | None
    ) -> None:
        encoded = json.dumps(document, separators=(",", ":")).encode()
        if len(encoded) > DOCUMENT_BYTES_MAX:
            raise RuleViolation(
                InvalidRequest.NOT_ALLOWED, f"all policies of {name} would take {len(encoded)} bytes; "
                f"at most {DOCUMENT_BYTES_MAX} are allowed"
            )  # fmt: skip
        # The store first: when it refuses, memory stays as it was.
        self._store.keys.put(prefix + name, encoded, done)
        documents[name] = document
        self._cautious.discard(prefix + name)

    def _remove(self, prefix: str, documents: dict[str, Json], name: str, done: Done | None) -> None:
        self._store.keys.delete(prefix + name, done)
        documents.pop(name, None)
        self._cautious.discard(prefix + name)


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
