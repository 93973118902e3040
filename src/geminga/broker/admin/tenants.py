"""``/admin/v2/tenants``, ``/admin/v2/clusters`` and ``/admin/v2/resourcegroups``."""

from __future__ import annotations

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import Resource, answer_or_empty, body, done_answer, object_body, query_flag
from geminga.broker.admin.namespaces import delete_namespace_with_topics
from geminga.broker.admin.routes import CREDENTIALS, SUPER_USER, route
from geminga.broker.rules.policies import words
from geminga.broker.rules.tenants import check_name
from geminga.ledger.api import Done


class TenantsResource(Resource):
    """Tenants: owners of namespaces."""

    @route("GET", "/admin/v2/tenants", needs=SUPER_USER)
    async def names(self) -> object:
        """Names of all tenants."""
        return self.namespaces.tenants.names()

    @route("GET", "/admin/v2/tenants/{tenant}", needs=SUPER_USER)
    async def get(self, tenant: str) -> object:
        """Administrators' roles and allowed clusters of a tenant."""
        return self.namespaces.tenants.get(tenant)

    @route("PUT", "/admin/v2/tenants/{tenant}", needs=SUPER_USER)
    async def create(self, request: web.Request, tenant: str) -> None:
        """Make a tenant. Body: ``adminRoles``, ``allowedClusters``; empty takes this cluster."""
        info = await object_body(request, optional=True)
        await self.durable(lambda done: self.namespaces.tenants.create(tenant, info, done))

    @route("POST", "/admin/v2/tenants/{tenant}", needs=SUPER_USER)
    async def update(self, request: web.Request, tenant: str) -> None:
        """Replace a tenant's roles and clusters."""
        info = await object_body(request, optional=True)
        await self.durable(lambda done: self.namespaces.tenants.update(tenant, info, done))

    @route("DELETE", "/admin/v2/tenants/{tenant}", needs=SUPER_USER)
    async def delete(self, request: web.Request, tenant: str) -> None:
        """Delete an empty tenant; with ``?force=true`` its namespaces and topics, too."""
        if query_flag(request, "force"):
            for name in self.namespaces.tenants.namespaces(tenant):
                await delete_namespace_with_topics(self, *name.split("/"))
        await self.durable(lambda done: self.namespaces.tenants.delete(tenant, done))


class ClustersResource(Resource):
    """Clusters: this broker's own, and the registered addresses of others."""

    @route("GET", "/admin/v2/clusters", needs=CREDENTIALS)
    async def names(self) -> object:
        """Names of the registered clusters."""
        return self.namespaces.clusters.names()

    @route("GET", "/admin/v2/clusters/{cluster}", needs=SUPER_USER)
    async def get(self, cluster: str) -> object:
        """Addresses of a cluster."""
        return self.namespaces.clusters.get(cluster)

    @route("PUT", "/admin/v2/clusters/{cluster}", needs=SUPER_USER)
    async def create(self, request: web.Request, cluster: str) -> web.Response:
        """Register another cluster's addresses."""
        data = await object_body(request)
        await self.durable(lambda done: self.namespaces.clusters.create(cluster, data, done))
        return done_answer(200)

    @route("POST", "/admin/v2/clusters/{cluster}", needs=SUPER_USER)
    async def update(self, request: web.Request, cluster: str) -> web.Response:
        """Replace a cluster's addresses."""
        data = await object_body(request)
        await self.durable(lambda done: self.namespaces.clusters.update(cluster, data, done))
        return done_answer(200)

    @route("DELETE", "/admin/v2/clusters/{cluster}", needs=SUPER_USER)
    async def delete(self, cluster: str) -> None:
        """Remove a cluster."""
        await self.durable(lambda done: self.namespaces.clusters.delete(cluster, done))

    @route("GET", "/admin/v2/clusters/{cluster}/peers", needs=SUPER_USER)
    async def peers(self, cluster: str) -> web.Response:
        """Names of its peer clusters."""
        return answer_or_empty(self.namespaces.clusters.get(cluster).get("peerClusterNames"))

    @route("POST", "/admin/v2/clusters/{cluster}/peers", needs=SUPER_USER)
    async def set_peers(self, request: web.Request, cluster: str) -> None:
        """Replace the peer clusters. Body: a list of registered clusters."""
        peers = words()("peerClusterNames", await body(request))
        if cluster in peers:
            raise AdminRefusal(412, f"{cluster} itself can't be part of its peers")
        for peer in peers:
            self.namespaces.clusters.get(peer)

        def replace(done: Done) -> None:
            data = {**self.namespaces.clusters.get(cluster), "peerClusterNames": peers}
            self.namespaces.clusters.update(cluster, data, done)

        await self.durable(replace)

    @route("GET", "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies", needs=SUPER_USER)
    async def no_policies(self, cluster: str) -> object:
        """Always 404: isolation policies need several brokers."""
        self.namespaces.clusters.get(cluster)
        raise AdminRefusal(404, f"NamespaceIsolationPolicies for cluster {cluster} does not exist")

    # --- noted down for the tools: one broker does not move its topics by them ---
    @route("GET", "/admin/v2/clusters/{cluster}/migrate", needs=SUPER_USER)
    async def migration(self, cluster: str) -> object:
        """Registered migration of the cluster; 404 without one."""
        found = self.namespaces.clusters.note(cluster, "migration")
        if not found:
            raise AdminRefusal(404, f"nothing is noted of a migration of cluster {cluster}")
        return found

    @route("POST", "/admin/v2/clusters/{cluster}/migrate", needs=SUPER_USER)
    async def set_migration(self, request: web.Request, cluster: str) -> None:
        """Register a migration; clients are not redirected. ``?migrated=``; body: addresses."""
        note = {"migrated": query_flag(request, "migrated"), "migratedClusterUrl": await object_body(request)}
        await self.durable(lambda done: self.namespaces.clusters.set_note(cluster, "migration", note, done))

    @route("GET", "/admin/v2/clusters/{cluster}/failureDomains", needs=SUPER_USER)
    async def failure_domains(self, cluster: str) -> object:
        """Registered failure domains."""
        return self.namespaces.clusters.note(cluster, "failureDomains")

    @route("GET", "/admin/v2/clusters/{cluster}/failureDomains/{name}", needs=SUPER_USER)
    async def failure_domain(self, cluster: str, name: str) -> object:
        """A failure domain."""
        found = self.namespaces.clusters.note(cluster, "failureDomains")
        if name not in found:
            raise _no_such_domain(cluster, name)
        return found[name]

    @route("POST", "/admin/v2/clusters/{cluster}/failureDomains/{name}", needs=SUPER_USER)
    async def set_failure_domain(self, request: web.Request, cluster: str, name: str) -> None:
        """Register a failure domain; a single broker moves no topics. Body: ``brokers``."""
        name = check_name("failure domain", name)
        domain = {"brokers": words()("brokers", (await object_body(request)).get("brokers") or [])}

        def note(done: Done) -> None:
            found = self.namespaces.clusters.note(cluster, "failureDomains") | {name: domain}
            self.namespaces.clusters.set_note(cluster, "failureDomains", found, done)

        await self.durable(note)

    @route("DELETE", "/admin/v2/clusters/{cluster}/failureDomains/{name}", needs=SUPER_USER)
    async def delete_failure_domain(self, cluster: str, name: str) -> None:
        """Remove a failure domain."""

        def note(done: Done) -> None:
            found = self.namespaces.clusters.note(cluster, "failureDomains")
            if found.pop(name, None) is None:
                raise _no_such_domain(cluster, name)
            self.namespaces.clusters.set_note(cluster, "failureDomains", found, done)

        await self.durable(note)


def _no_such_domain(cluster: str, name: str) -> AdminRefusal:
    return AdminRefusal(404, f"Domain-name {name} or cluster {cluster} does not exist")


class ResourceGroupsResource(Resource):
    """``/admin/v2/resourcegroups``: limits for groups of namespaces; stored, but not enforced."""

    @route("GET", "/admin/v2/resourcegroups", needs=SUPER_USER)
    async def names(self) -> object:
        """Names of resource groups."""
        return self.namespaces.resource_groups.names()

    @route("GET", "/admin/v2/resourcegroups/{group}", needs=SUPER_USER)
    async def get(self, group: str) -> object:
        """Limits of a resource group."""
        return self.namespaces.resource_groups.get(group)

    @route("PUT", "/admin/v2/resourcegroups/{group}", needs=SUPER_USER)
    async def set(self, request: web.Request, group: str) -> None:
        """Store a resource group. It is not enforced: set rates of namespaces and topics instead."""
        limits = await object_body(request)
        await self.durable(lambda done: self.namespaces.resource_groups.set(group, limits, done))

    @route("DELETE", "/admin/v2/resourcegroups/{group}", needs=SUPER_USER)
    async def delete(self, group: str) -> None:
        """Remove a resource group."""
        await self.durable(lambda done: self.namespaces.resource_groups.delete(group, done))
