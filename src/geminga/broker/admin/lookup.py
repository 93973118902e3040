"""``/lookup/v2``: which broker serves a topic, for clients with an ``http://`` service URL."""

from __future__ import annotations

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import Resource, bare_text, topic_of
from geminga.broker.admin.namespaces import bundle_of
from geminga.broker.admin.routes import LOOK, route
from geminga.broker.listeners import no_listener

_PATH = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"


class LookupResource(Resource):
    """Lookups over HTTP; one broker serves everything, so the answer is always this broker."""

    @route("GET", _PATH, needs=LOOK)
    async def get(self, request: web.Request) -> object:
        """The broker that serves a topic: this one, by the address that the client can reach."""
        topic = topic_of(request)
        self.namespaces.policies(topic.tenant, topic.namespace)
        settings = self.server.settings
        listener = request.query.get("listenerName") or request.headers.get("X-Pulsar-ListenerName")
        addresses = settings.addresses(listener)
        if addresses is None:
            raise AdminRefusal(500, no_listener(listener, settings.advertised_listeners))
        if not listener and settings.lookup_through_service_url and request.url.host:
            # The only name that surely works for this client is the one that it has used.
            addresses = settings.own_addresses(request.url.host)
        found = {
            "brokerUrl": addresses.pulsar,
            "brokerUrlTls": addresses.pulsar_tls,
            "httpUrl": addresses.http,
            "httpUrlTls": addresses.https,
            "nativeUrl": addresses.pulsar or "",
            "brokerUrlSsl": addresses.pulsar_tls or "",
        }
        return {name: url for name, url in found.items() if url is not None}

    @route("GET", _PATH + "/bundle", needs=LOOK)
    async def bundle(self, request: web.Request) -> web.Response:
        """The hash range that a topic falls into."""
        topic = topic_of(request)
        document = self.namespaces.document(topic.tenant, topic.namespace)
        return bare_text(bundle_of(document["bundles"]["boundaries"], topic))
