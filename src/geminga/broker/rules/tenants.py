"""Clusters and tenants: what namespaces refer to."""

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from geminga.broker.rules.documents import Json, RuleDocuments
from geminga.broker.rules.policies import InvalidRequest, RuleViolation, words
from geminga.broker.settings import BrokerSettings
from geminga.ledger.api import Done

_NAME: Final = re.compile(r"[-=:.\w]+\Z", re.ASCII)


def check_name(kind: str, name: object) -> str:
    """Check the name of a tenant, namespace or cluster."""
    if not isinstance(name, str) or not _NAME.match(name) or name in (".", ".."):
        raise RuleViolation(
            InvalidRequest.NOT_ALLOWED, f"{kind} name {name!r} may only hold letters, digits and -=:._"
        )
    return name


class ClusterRegistry:
    """Clusters that administrators have named. ``settings`` are the broker's, whose own cluster is one."""

    def __init__(
        self, documents: RuleDocuments, settings: BrokerSettings, namespaces: Mapping[str, Json]
    ) -> None:
        self.settings = settings
        self._documents = documents
        self._namespaces = namespaces
        self._clusters = documents.load("cluster/")

    def names(self) -> list[str]:
        return sorted({self.settings.cluster, *self._clusters})

    def get(self, name: str) -> Json:
        """Return the cluster's addresses; for this cluster, the addresses of this broker."""
        own = {}
        if name == self.settings.cluster:
            addresses = self.settings.addresses() or self.settings.own_addresses()
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

    def create(self, name: str, data: Json, done: Done | None = None) -> None:
        check_name("cluster", name)
        if name in self.names():
            raise RuleViolation(InvalidRequest.IN_THE_WAY, f"Cluster {name} already exists")
        self._documents.write("cluster/", self._clusters, name, data, done)

    def update(self, name: str, data: Json, done: Done | None = None) -> None:
        if name not in self.names():
            raise RuleViolation(InvalidRequest.MISSING, f"Cluster {name} does not exist")
        self._documents.write("cluster/", self._clusters, name, data, done)

    def delete(self, name: str, done: Done | None = None) -> None:
        self.get(name)
        if name == self.settings.cluster:
            raise RuleViolation(InvalidRequest.NOT_ALLOWED, f"Cluster {name} is this broker's own")
        users = [n for n, p in self._namespaces.items() if name in p.get("replication_clusters", ())]
        if users:
            raise RuleViolation(
                InvalidRequest.NOT_ALLOWED, f"Cluster not empty: namespace {users[0]} is replicated to {name}"
            )
        self._documents.remove("cluster/", self._clusters, name, done)

    def checked(self, clusters: Iterable[str] | None) -> list[str]:
        """Return the clusters of a policy, which must exist; this broker's without any."""
        for cluster in clusters or ():
            if cluster not in self.names():
                raise RuleViolation(
                    InvalidRequest.ELSEWHERE,
                    f"Cluster {cluster} does not exist; known: {', '.join(self.names())}",
                )
        return list(clusters or [self.settings.cluster])


class TenantRegistry:
    """Tenants. ``changed`` is called with the name of one whose administrators may have changed."""

    def __init__(
        self,
        documents: RuleDocuments,
        clusters: ClusterRegistry,
        namespaces: Mapping[str, Json],
        changed: Callable[[str], None],
    ) -> None:
        self._documents = documents
        self._clusters = clusters
        self._namespaces = namespaces
        self._changed = changed
        self._tenants = documents.load("tenant/")
        for info in self._tenants.values():  # damage may have taken required fields
            info.setdefault("adminRoles", [])
            info.setdefault("allowedClusters", [clusters.settings.cluster])

    def __contains__(self, name: str) -> bool:
        return name in self._tenants

    def names(self) -> list[str]:
        return sorted(self._tenants)

    def get(self, name: str) -> Json:
        if name not in self._tenants:
            raise RuleViolation(InvalidRequest.MISSING, f"Tenant {name} does not exist")
        return copy.deepcopy(self._tenants[name])

    def admin_roles(self, name: str) -> Sequence[str]:
        """Return the administrators' roles of a tenant; empty for a missing tenant."""
        found: Sequence[str] = self._tenants.get(name, {}).get("adminRoles", ())
        return found

    def namespaces(self, name: str) -> list[str]:
        """Return ``tenant/namespace`` names, sorted."""
        self.get(name)
        return sorted(each for each in self._namespaces if each.startswith(f"{name}/"))

    def create(self, name: str, info: Json | None, done: Done | None = None) -> None:
        check_name("tenant", name)
        if name in self._tenants:
            raise RuleViolation(InvalidRequest.IN_THE_WAY, f"Tenant {name} already exists")
        self._documents.write("tenant/", self._tenants, name, self._checked(info), done)

    def update(self, name: str, info: Json | None, done: Done | None = None) -> None:
        self.get(name)
        fresh = self._checked(info)
        for namespace in self.namespaces(name):
            used = set(self._namespaces[namespace].get("replication_clusters", ()))
            missing = used - set(fresh["allowedClusters"])
            if missing:
                raise RuleViolation(
                    InvalidRequest.IN_THE_WAY, f"Namespace {namespace} is replicated to {sorted(missing)[0]}"
                )
        self._documents.write("tenant/", self._tenants, name, fresh, done)
        self._changed(name)

    def delete(self, name: str, done: Done | None = None) -> None:
        """Delete a tenant; refused while it has namespaces."""
        if self.namespaces(name):
            raise RuleViolation(InvalidRequest.IN_THE_WAY, f"The tenant {name} still has active namespaces")
        self._documents.remove("tenant/", self._tenants, name, done)

    def _checked(self, info: Json | None) -> Json:
        info = dict(info or {})
        roles = words()("adminRoles", info.get("adminRoles") or [])
        clusters = words()("allowedClusters", info.get("allowedClusters") or [])
        if not clusters:
            raise RuleViolation(InvalidRequest.NOT_ALLOWED, "Clusters can not be empty")
        known = self._clusters.names()
        for cluster in clusters:
            if cluster not in known:
                raise RuleViolation(
                    InvalidRequest.NOT_ALLOWED, f"Clusters do not exist: {cluster}; known: {', '.join(known)}"
                )
        return {**info, "adminRoles": roles, "allowedClusters": clusters}
