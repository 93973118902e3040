"""`geminga.asyncio.Admin`: tenants, namespaces, topics, subscriptions, schemas, brokers by admin REST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from geminga.client.admin.aio.calls import AdminCalls
from geminga.client.admin.aio.namespaces import Namespaces
from geminga.client.admin.aio.policies import TopicPolicies
from geminga.client.admin.aio.schemas import Schemas
from geminga.client.admin.aio.subscriptions import Subscriptions
from geminga.client.admin.aio.tenants import Brokers, Clusters, Tenants
from geminga.client.admin.aio.topics import Topics
from geminga.client.admin.exchange import settings_of
from geminga.client.authentication import Authentication


class Admin:
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

    def __init__(
        self,
        admin_url: str,
        authentication: Authentication | None = None,
        *,
        operation_timeout_seconds: float = 30,
        connection_timeout_ms: int = 10000,
        retries: int = 2,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
    ) -> None:
        """Create the client without connecting.

        admin_url:
            ``http://host:port`` or ``https://host:port``; several hosts, separated by commas, are tried in
            turn. Redirects to the broker that serves a topic are followed.
        authentication:
            As for `Client`: `AuthenticationToken`, `AuthenticationBasic`, `AuthenticationTLS`,
            `AuthenticationOauth2`.
        operation_timeout_seconds:
            Time limit in seconds for a call, retries included.
        connection_timeout_ms:
            Time limit in milliseconds for connecting.
        retries:
            How often a read is retried after a lost connection, or when the broker is unavailable for now.
            A change is sent once: if its answer is lost, its outcome is unknown.
        tls_trust_certs_file_path:
            File with the PEM certificates to trust; default: the system's.
        tls_allow_insecure_connection:
            True accepts any certificate: for tests only.

        Raises `InvalidUrl` and `InvalidConfiguration`. Calls raise a subclass of `AdminError` for each HTTP
        status (`AdminNotFound`, `AdminConflict`, ...), `ConnectError` and `Timeout`.
        """
        self._calls = AdminCalls(settings_of(dict(locals())))
        self.tenants = Tenants(self._calls)
        self.clusters = Clusters(self._calls)
        self.namespaces = Namespaces(self._calls)
        self.topics = Topics(self._calls)
        self.topic_policies = TopicPolicies(self._calls)
        self.subscriptions = Subscriptions(self._calls)
        self.schemas = Schemas(self._calls)
        self.brokers = Brokers(self._calls)

    @property
    def admin_url(self) -> str:
        """The admin URL, as given."""
        return self._calls.sender.settings.admin_url

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

    def __repr__(self) -> str:
        return f"<geminga.asyncio.Admin {self.admin_url}{' closed' if self._calls.sender.closed else ''}>"
