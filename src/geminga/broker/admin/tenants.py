"""``/admin/v2/tenants``, ``/admin/v2/clusters`` and ``/admin/v2/resourcegroups``."""

from __future__ import annotations

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import (
    Resource,
    answer,
    answer_or_empty,
    body,
    done_answer,
    object_body,
    part,
    query_flag,
)
from geminga.broker.admin.namespaces import delete_namespace_with_topics
from geminga.broker.admin.routes import CREDENTIALS, SUPER_USER, route
from geminga.broker.rules.policies import words
from geminga.broker.rules.tenants import check_name
from geminga.ledger.api import Done


class TenantsResource(Resource):
    """Tenants: owners of namespaces."""

    @route("GET", "/admin/v2/tenants", needs=SUPER_USER)
    async def names(self, _request: web.Request) -> web.Response:
        """Names of all tenants."""
        return answer(self.namespaces.tenants.names())

    @route("GET", "/admin/v2/tenants/{tenant}", needs=SUPER_USER)
    async def get(self, request: web.Request) -> web.Response:
        """Administrators' roles and allowed clusters of a tenant."""
        return answer(self.namespaces.tenants.get(part(request, "tenant")))

    @route("PUT", "/admin/v2/tenants/{tenant}", needs=SUPER_USER)
    async def create(self, request: web.Request) -> web.Response:
        """Make a tenant. Body: ``adminRoles``, ``allowedClusters``; empty takes this cluster."""
        tenant, info = part(request, "tenant"), await object_body(request, optional=True)
        await self.durable(lambda done: self.namespaces.tenants.create(tenant, info, done))
        return done_answer()

    @route("POST", "/admin/v2/tenants/{tenant}", needs=SUPER_USER)
    async def update(self, request: web.Request) -> web.Response:
        """Replace a tenant's roles and clusters."""
        tenant, info = part(request, "tenant"), await object_body(request, optional=True)
        await self.durable(lambda done: self.namespaces.tenants.update(tenant, info, done))
        return done_answer()

    @route("DELETE", "/admin/v2/tenants/{tenant}", needs=SUPER_USER)
    async def delete(self, request: web.Request) -> web.Response:
        """Delete an empty tenant; with ``?force=true`` its namespaces and topics, too."""
        tenant = part(request, "tenant")
        if query_flag(request, "force"):
            for name in self.namespaces.tenants.namespaces(tenant):
                await delete_namespace_with_topics(self, *name.split("/"))
        await self.durable(lambda done: self.namespaces.tenants.delete(tenant, done))
        return done_answer()


class ClustersResource(Resource):
    """Clusters: this broker's own, and the registered addresses of others."""

    @route("GET", "/admin/v2/clusters", needs=CREDENTIALS)
    async def names(self, _request: web.Request) -> web.Response:
        """Names of the registered clusters."""
        return answer(self.namespaces.clusters.names())

    @route("GET", "/admin/v2/clusters/{cluster}", needs=SUPER_USER)
    async def get(self, request: web.Request) -> web.Response:
        """Addresses of a cluster."""
        return answer(self.namespaces.clusters.get(part(request, "cluster")))

    @route("PUT", "/admin/v2/clusters/{cluster}", needs=SUPER_USER)
    async def create(self, request: web.Request) -> web.Response:
        """Register another cluster's addresses."""
        name, data = part(request, "cluster"), await object_body(request)
        await self.durable(lambda done: self.namespaces.clusters.create(name, data, done))
        return done_answer(200)

    @route("POST", "/admin/v2/clusters/{cluster}", needs=SUPER_USER)
    async def update(self, request: web.Request) -> web.Response:
        """Replace a cluster's addresses."""
        name, data = part(request, "cluster"), await object_body(request)
        await self.durable(lambda done: self.namespaces.clusters.update(name, data, done))
        return done_answer(200)

    @route("DELETE", "/admin/v2/clusters/{cluster}", needs=SUPER_USER)
    async def delete(self, request: web.Request) -> web.Response:
        """Remove a cluster."""
        name = part(request, "cluster")
        await self.durable(lambda done: self.namespaces.clusters.delete(name, done))
        return done_answer()

    @route("GET", "/admin/v2/clusters/{cluster}/peers", needs=SUPER_USER)
    async def peers(self, request: web.Request) -> web.Response:
        """Names of its peer clusters."""
        return answer_or_empty(self.namespaces.clusters.get(part(request, "cluster")).get("peerClusterNames"))

    @route("POST", "/admin/v2/clusters/{cluster}/peers", needs=SUPER_USER)
    async def set_peers(self, request: web.Request) -> web.Response:
        """Replace the peer clusters. Body: a list of registered clusters."""
        name = part(request, "cluster")
        peers = words()("peerClusterNames", await body(request))
        if name in peers:
            raise AdminRefusal(412, f"{name} itself can't be part of its peers")
        for peer in peers:
            self.namespaces.clusters.get(peer)

        def replace(done: Done) -> None:
            data = {**self.namespaces.clusters.get(name), "peerClusterNames": peers}
            self.namespaces.clusters.update(name, data, done)

        await self.durable(replace)
        return done_answer()

    @route("GET", "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies", needs=SUPER_USER)
    async def no_policies(self, request: web.Request) -> web.Response:
        """Always 404: isolation policies need several brokers."""
        name = part(request, "cluster")
        self.namespaces.clusters.get(name)
        raise AdminRefusal(404, f"NamespaceIsolationPolicies for cluster {name} does not exist")

    # --- noted down for the tools: one broker does not move its topics by them ---
    @route("GET", "/admin/v2/clusters/{cluster}/migrate", needs=SUPER_USER)
    async def migration(self, request: web.Request) -> web.Response:
        """Registered migration of the cluster; 404 without one."""
        name = part(request, "cluster")
        found = self.namespaces.clusters.note(name, "migration")
        if not found:
            raise AdminRefusal(404, f"nothing is noted of a migration of cluster {name}")
        return answer(found)

    @route("POST", "/admin/v2/clusters/{cluster}/migrate", needs=SUPER_USER)
    async def set_migration(self, request: web.Request) -> web.Response:
        """Register a migration; clients are not redirected. ``?migrated=``; body: addresses."""
        name = part(request, "cluster")
        note = {"migrated": query_flag(request, "migrated"), "migratedClusterUrl": await object_body(request)}
        await self.durable(lambda done: self.namespaces.clusters.set_note(name, "migration", note, done))
        return done_answer()

    @route("GET", "/admin/v2/clusters/{cluster}/failureDomains", needs=SUPER_USER)
    async def failure_domains(self, request: web.Request) -> web.Response:
        """Registered failure domains."""
        return answer(self.namespaces.clusters.note(part(request, "cluster"), "failureDomains"))

    @route("GET", "/admin/v2/clusters/{cluster}/failureDomains/{name}", needs=SUPER_USER)
    async def failure_domain(self, request: web.Request) -> web.Response:
        """A failure domain."""
        cluster, name = part(request, "cluster"), part(request, "name")
        found = self.namespaces.clusters.note(cluster, "failureDomains")
        if name not in found:
            raise _no_such_domain(cluster, name)
        return answer(found[name])

    @route("POST", "/admin/v2/clusters/{cluster}/failureDomains/{name}", needs=SUPER_USER)
    async def set_failure_domain(self, request: web.Request) -> web.Response:
        """Register a failure domain; a single broker moves no topics. Body: ``brokers``."""
        cluster, name = part(request, "cluster"), check_name("failure domain", part(request, "name"))
        domain = {"brokers": words()("brokers", (await object_body(request)).get("brokers") or [])}

        def note(done: Done) -> None:
            found = self.namespaces.clusters.note(cluster, "failureDomains") | {name: domain}
            self.namespaces.clusters.set_note(cluster, "failureDomains", found, done)

        await self.durable(note)
        return done_answer()

    @route("DELETE", "/admin/v2/clusters/{cluster}/failureDomains/{name}", needs=SUPER_USER)
    async def delete_failure_domain(self, request: web.Request) -> web.Response:
        """Remove a failure domain."""
        cluster, name = part(request, "cluster"), part(request, "name")

        def note(done: Done) -> None:
            found = self.namespaces.clusters.note(cluster, "failureDomains")
            if found.pop(name, None) is None:
                raise _no_such_domain(cluster, name)
            self.namespaces.clusters.set_note(cluster, "failureDomains", found, done)

        await self.durable(note)
        return done_answer()


def _no_such_domain(cluster: str, name: str) -> AdminRefusal:
    return AdminRefusal(404, f"Domain-name {name} or cluster {cluster} does not exist")


class ResourceGroupsResource(Resource):
    """``/admin/v2/resourcegroups``: limits for groups of namespaces; stored, but not enforced."""

    @route("GET", "/admin/v2/resourcegroups", needs=SUPER_USER)
    async def names(self, _request: web.Request) -> web.Response:
        """Names of resource groups."""
        return answer(self.namespaces.resource_groups.names())

    @route("GET", "/admin/v2/resourcegroups/{group}", needs=SUPER_USER)
    async def get(self, request: web.Request) -> web.Response:
        """Limits of a resource group."""
        return answer(self.namespaces.resource_groups.get(part(request, "group")))

    @route("PUT", "/admin/v2/resourcegroups/{group}", needs=SUPER_USER)
    async def set(self, request: web.Request) -> web.Response:
        """Store a resource group. It is not enforced: set rates of namespaces and topics instead."""
        name, limits = part(request, "group"), await object_body(request)
        await self.durable(lambda done: self.namespaces.resource_groups.set(name, limits, done))
        return done_answer()

    @route("DELETE", "/admin/v2/resourcegroups/{group}", needs=SUPER_USER)
    async def delete(self, request: web.Request) -> web.Response:
        """Remove a resource group."""
        name = part(request, "group")
        await self.durable(lambda done: self.namespaces.resource_groups.delete(name, done))
        return done_answer()
