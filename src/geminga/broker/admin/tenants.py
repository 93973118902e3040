"""``/admin/v2/tenants`` and ``/admin/v2/clusters``."""

from __future__ import annotations

from aiohttp import web

from geminga.broker.admin.errors import AdminError
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
from geminga.broker.rules.policies import words


class Tenants(Resource):
    """Tenants: who owns namespaces."""

    def register(self, router: web.UrlDispatcher) -> None:
        router.add_get("/admin/v2/tenants", self.names)
        path = "/admin/v2/tenants/{tenant}"
        router.add_get(path, self.get)
        router.add_put(path, self.create)
        router.add_post(path, self.update)
        router.add_delete(path, self.delete)

    async def names(self, _request: web.Request) -> web.Response:
        return answer(self.namespaces.tenants())

    async def get(self, request: web.Request) -> web.Response:
        return answer(self.namespaces.tenant(part(request, "tenant")))

    async def create(self, request: web.Request) -> web.Response:
        tenant, info = part(request, "tenant"), await object_body(request, optional=True)
        await self.durable(lambda done: self.namespaces.create_tenant(tenant, info, done))
        return done_answer()

    async def update(self, request: web.Request) -> web.Response:
        tenant, info = part(request, "tenant"), await object_body(request, optional=True)
        await self.durable(lambda done: self.namespaces.update_tenant(tenant, info, done))
        return done_answer()

    async def delete(self, request: web.Request) -> web.Response:
        tenant = part(request, "tenant")
        if query_flag(request, "force"):
            for name in self.namespaces.namespaces(tenant):
                await delete_namespace_with_topics(self, *name.split("/"))
        await self.durable(lambda done: self.namespaces.delete_tenant(tenant, done))
        return done_answer()


class Clusters(Resource):
    """Clusters: this broker's own, and the addresses of others that an administrator noted down."""

    def register(self, router: web.UrlDispatcher) -> None:
        router.add_get("/admin/v2/clusters", self.names)
        path = "/admin/v2/clusters/{cluster}"
        router.add_get(path, self.get)
        router.add_put(path, self.create)
        router.add_post(path, self.update)
        router.add_delete(path, self.delete)
        router.add_get(f"{path}/peers", self.peers)
        router.add_post(f"{path}/peers", self.set_peers)
        router.add_get(f"{path}/failureDomains", self.no_entries)
        router.add_get(f"{path}/namespaceIsolationPolicies", self.no_entries)

    async def names(self, _request: web.Request) -> web.Response:
        return answer(self.namespaces.clusters())

    async def get(self, request: web.Request) -> web.Response:
        return answer(self.namespaces.cluster(part(request, "cluster")))

    async def create(self, request: web.Request) -> web.Response:
        name, data = part(request, "cluster"), await object_body(request)
        await self.durable(lambda done: self.namespaces.create_cluster(name, data, done))
        return done_answer(200)

    async def update(self, request: web.Request) -> web.Response:
        name, data = part(request, "cluster"), await object_body(request)
        await self.durable(lambda done: self.namespaces.update_cluster(name, data, done))
        return done_answer(200)

    async def delete(self, request: web.Request) -> web.Response:
        name = part(request, "cluster")
        await self.durable(lambda done: self.namespaces.delete_cluster(name, done))
        return done_answer()

    async def peers(self, request: web.Request) -> web.Response:
        return answer_or_empty(self.namespaces.cluster(part(request, "cluster")).get("peerClusterNames"))

    async def set_peers(self, request: web.Request) -> web.Response:
        name = part(request, "cluster")
        peers = words()("peerClusterNames", await body(request))
        if name in peers:
            raise AdminError(412, f"{name} itself can't be part of its peers")
        for peer in peers:
            self.namespaces.cluster(peer)
        data = {**self.namespaces.cluster(name), "peerClusterNames": peers}
        await self.durable(lambda done: self.namespaces.update_cluster(name, data, done))
        return done_answer()

    async def no_entries(self, request: web.Request) -> web.Response:
        self.namespaces.cluster(part(request, "cluster"))
        return answer({})
