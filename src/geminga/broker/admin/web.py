"""The web server: puts the resources together and serves them on a bound socket."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import cast

from aiohttp import web

from geminga.broker.admin.auth import AuthorizationMiddleware
from geminga.broker.admin.brokers import BrokersResource, BrokerStatsResource, LookupResource
from geminga.broker.admin.damage import DamageResource
from geminga.broker.admin.http import (
    DOORKEEPER,
    LONG_BODY_BYTES_MAX,
    SERVER,
    WEB_HOSTS,
    Server,
    Site,
    TlsPortInfo,
    errors_as_json,
)  # fmt: skip
from geminga.broker.admin.messages import ENTRY_ANSWERS, EntryAnswers
from geminga.broker.admin.namespaces import NamespacesResource
from geminga.broker.admin.origins import WebHosts
from geminga.broker.admin.overview import OverviewResource
from geminga.broker.admin.partitioned import PartitionedTopicsResource
from geminga.broker.admin.policy_routes import NamespacePoliciesResource, TopicPoliciesResource
from geminga.broker.admin.redacted_log import WebConnection, peer_text, unquoted
from geminga.broker.admin.routes import Handler, Route, add_routes
from geminga.broker.admin.schemas import SchemasResource
from geminga.broker.admin.subscriptions import SubscriptionsResource
from geminga.broker.admin.tenants import ClustersResource, TenantsResource
from geminga.broker.admin.topic_messages import TopicMessagesResource
from geminga.broker.admin.topics import TopicAttributesResource, TopicsResource
from geminga.broker.admin.transactions import TransactionsResource
from geminga.wire.frames import INSTANCE_HEADER

log = logging.getLogger("geminga.broker")

CONNECTIONS_MAX = 256
"""Limit of web connections, which keeps file descriptors free for the binary protocol."""
HOST_CONNECTIONS_MAX = 192
"""Limit of one host's web connections: other hosts, such as health checks, keep the rest."""
IDLE_SECONDS = 75.0
"""Time after which an idle connection is closed."""
LAST_ANSWERS_SECONDS = 1.0
"""Time that requests in flight have to finish when the broker stops."""
QUIET: web.AppKey[dict[WebConnection, bool]] = web.AppKey("quiet", dict)
"""Connections without a request in progress, and whether they had one before; the longest idle first."""
_RESOURCES = (
    ClustersResource, TenantsResource, BrokersResource, BrokerStatsResource, DamageResource, LookupResource,
    SchemasResource, OverviewResource, NamespacePoliciesResource, NamespacesResource,
    PartitionedTopicsResource, SubscriptionsResource, TopicAttributesResource, TopicPoliciesResource,
    TopicsResource, TopicMessagesResource, TransactionsResource,
)  # fmt: skip


def all_routes(server: Server) -> list[Route]:
    """Return the routes of all resources."""
    return [each for resource in _RESOURCES for each in resource(server).routes()]


def make_application(server: Server, site: Site | None = None) -> web.Application:
    """Return an application with all routes of one broker; for `WebServer`, and for tests."""
    application = web.Application(
        middlewares=[_note_quiet, errors_as_json], client_max_size=LONG_BODY_BYTES_MAX
    )
    application[SERVER] = server
    application[QUIET] = {}
    application[WEB_HOSTS] = WebHosts(server.settings)
    application[ENTRY_ANSWERS] = EntryAnswers()
    broker = server.broker
    routes = all_routes(server)
    permissions = {each.key: each.needs for each in routes}
    if site is not None:
        permissions |= site(application)
    if broker.authentication is not None:
        application[DOORKEEPER] = AuthorizationMiddleware(
            broker.authentication, broker.authorization, permissions
        )
    application.on_response_prepare.append(_add_headers)
    add_routes(application.router, routes)
    return application


@web.middleware
async def _note_quiet(request: web.Request, handler: Handler) -> web.StreamResponse:
    quiet, peer = request.app[QUIET], request.protocol
    if not isinstance(peer, WebConnection):
        return await handler(request)
    quiet.pop(peer, None)
    try:
        return await handler(request)
    finally:
        if peer.transport is not None:
            quiet[peer] = True


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Keep browsers from guessing the type of a message's content, and name the broker that answers."""
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers[INSTANCE_HEADER] = request.app[SERVER].broker.instance_id


class WebServer:
    """aiohttp around the resources; made by the broker's server once it listens."""

    def __init__(self, server: Server, site: Site | None = None) -> None:
        self._server = server
        application = make_application(server, site)
        self._quiet = application[QUIET]
        self._runner = web.AppRunner(
            application, handle_signals=False, shutdown_timeout=2 * LAST_ANSWERS_SECONDS
        )
        self._log = unquoted(log, self._log_limited)
        self._listeners: list[asyncio.Server] = []
        self._tls_ports: list[TlsPortInfo] = []

    async def start(self, listeners: Sequence[tuple[socket.socket, bool]]) -> None:
        """Serve on listening sockets, with TLS where the second value is true."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        for listener, with_tls in listeners:
            if with_tls:
                self._tls_ports.append(self._server.tls_port(listener, self._protocol, self._admits))
            else:
                # The backlog is what asyncio accepts at once: no more than one host's share leaves over.
                at_once = CONNECTIONS_MAX - HOST_CONNECTIONS_MAX
                server = await loop.create_server(self._protocol, sock=listener, backlog=max(1, at_once))
                listener.listen(socket.SOMAXCONN)
                self._listeners.append(server)

    def _admits(self, _address: object) -> bool:
        count = sum(map(len, self._tls_ports)) + self._count_open()
        return count < CONNECTIONS_MAX or self._makes_room()

    def _count_open(self, host: str | None = None) -> int:
        """Return how many connections, of a host, are not ending."""
        serving = self._runner.server
        transports = () if serving is None else (each.transport for each in serving.connections)
        return sum(
            each is not None and not each.is_closing() and host in (None, peer_text(each))
            for each in transports
        )

    def _protocol(self) -> asyncio.Protocol:
        serving = self._runner.server
        assert serving is not None
        if self._count_open() >= CONNECTIONS_MAX and not self._makes_room():
            return _ConnectionRefusal()
        loop = asyncio.get_running_loop()
        made = WebConnection(
            serving,
            self._log_limited,
            self._hold_share,
            lambda ended: self._quiet.pop(ended, None),
            loop=loop,
            keepalive_timeout=IDLE_SECONDS,
            logger=self._log,
            access_log=None,
        )
        self._quiet[made] = False
        seconds = 2 * self._server.settings.handshake_seconds  # one for TLS, one for the headers
        loop.call_later(seconds, self._look, made)
        return made

    def _hold_share(self, transport: asyncio.BaseTransport) -> None:
        """End a connection of a host that exceeds its share: an idle one, or else the new one."""
        host = peer_text(transport)
        if self._count_open(host) > HOST_CONNECTIONS_MAX:
            self._makes_room(host)

    def _makes_room(self, host: str | None = None) -> bool:
        """Close a connection whose peer does not read its answers, or else the one idle for longest.

        ``host`` limits the choice to that host's connections.
        """
        quiet = [
            each
            for each in self._quiet
            if each.transport is not None and host in (None, peer_text(each.transport))
        ]
        if not quiet:
            self._log_limited("web port: %d connections are in use, one more is refused", CONNECTIONS_MAX)
            return False
        found = next((each for each in quiet if each.is_behind), quiet[0])
        del self._quiet[found]
        assert found.transport is not None
        open_max = CONNECTIONS_MAX if host is None else HOST_CONNECTIONS_MAX
        line = f"web port: {open_max} connections are open, an idle or unread one of %s is closed"
        self._log_limited(line, peer_text(found.transport))
        found.transport.abort()
        return True

    def _log_limited(self, line: str, value: object) -> None:
        broker = self._server.broker
        self._server.call(lambda: broker.rate_limited_log.log(line, value))

    def _look(self, made: WebConnection) -> None:
        """Close a connection that has not sent a complete request header in time."""
        if self._quiet.get(made) is False and made.transport is not None:
            made.transport.abort()

    async def stop(self) -> None:
        """Finish requests in flight, then close. Requests that take too long are answered with 503."""
        for listener in self._listeners:
            listener.close()
        for port in self._tls_ports:
            port.close()
        loop = asyncio.get_running_loop()
        ending = loop.call_later(LAST_ANSWERS_SECONDS, self._server.unanswered.end)
        try:
            await self._runner.cleanup()
        finally:
            ending.cancel()


class _ConnectionRefusal(asyncio.Protocol):
    """Protocol that closes a connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
