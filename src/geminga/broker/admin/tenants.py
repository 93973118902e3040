"""``/admin/v2/tenants`` and ``/admin/v2/clusters``."""

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import Resource, answer_or_empty, body, done_answer, object_body, query_flag
from geminga.broker.admin.namespaces import delete_namespace_with_topics
from geminga.broker.admin.routes import CREDENTIALS, SUPER_USER, route
from geminga.broker.rules.policies import words
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
