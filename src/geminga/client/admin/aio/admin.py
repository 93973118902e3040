"""`geminga.asyncio.Admin`: tenants, namespaces, topics, subscriptions, schemas, brokers by admin REST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geminga.client.admin.aio.base import AdminBase
from geminga.client.admin.aio.calls import AdminCalls
from geminga.client.admin.aio.namespaces import Namespaces
from geminga.client.admin.aio.policies import TopicPolicies
from geminga.client.admin.aio.schemas import Schemas
from geminga.client.admin.aio.subscriptions import Subscriptions
from geminga.client.admin.aio.tenants import Brokers, Clusters, Tenants
from geminga.client.admin.aio.topics import Topics
from geminga.client.admin.exchange import AdminSettings
from geminga.client.admin.transport import AsyncAdminSender


class Admin(AdminBase):
    """Administration of a cluster, over the REST API of Apache Pulsar's and Geminga's brokers.

    ::

        async with geminga.asyncio.Admin("http://localhost:8080") as admin:
            await admin.topics.create("orders", partitions=4)
            await admin.namespaces.retention.set("public/default", Retention(minutes=1440, megabytes=-1))
            print(await admin.subscriptions.peek("orders-partition-0", "billing", 10))

    Several threads, and several event loops, may use it.
    """

    tenants: Tenants
    clusters: Clusters
    namespaces: Namespaces
    topics: Topics
    topic_policies: TopicPolicies
    subscriptions: Subscriptions
    schemas: Schemas
    brokers: Brokers

    def _open(self, settings: AdminSettings) -> AdminCalls:
        calls = AdminCalls(AsyncAdminSender(settings))
        self.tenants = Tenants(calls)
        self.clusters = Clusters(calls)
        self.namespaces = Namespaces(calls)
        self.topics = Topics(calls)
        self.topic_policies = TopicPolicies(calls)
        self.subscriptions = Subscriptions(calls)
        self.schemas = Schemas(calls)
        self.brokers = Brokers(calls)
        return calls

    async def call(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Call any path below ``/admin/v2``, where this class has no method, and return the decoded JSON of
        the answer, None if it is empty. ``path`` is percent-encoded (`geminga.admin.topic_path`)."""
        return await self._calls.call(method, path, body, query=query)

    async def close(self) -> None:
        """Close idle connections; later calls raise `AlreadyClosed`."""
        self._calls.sender.close()

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
