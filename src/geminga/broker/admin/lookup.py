"""``/lookup/v2``: which broker serves a topic, for clients with an ``http://`` service URL."""

from __future__ import annotations

from aiohttp import web

from geminga.broker.admin.http import Resource, answer, bare_text, topic_of
from geminga.broker.admin.namespaces import bundle_of


class Lookup(Resource):
    """One broker serves everything, so the answer is always this one."""

    def register(self, router: web.UrlDispatcher) -> None:
        path = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
        router.add_get(path, self.get)
        router.add_get(f"{path}/bundle", self.bundle)

    async def get(self, request: web.Request) -> web.Response:
        """Which broker serves a topic: this one, by the address that the client can reach."""
        topic = topic_of(request)
        self.namespaces.policies(topic.tenant, topic.namespace)
        settings = self.server.settings
        service_url, admin_url = settings.service_url, settings.admin_url or ""
        if settings.lookup_through_service_url and request.url.host:
            # The name this client came by is the one name that is known to work for it.
            host = f"[{request.url.host}]" if ":" in request.url.host else request.url.host
            pulsar, http = ("pulsar+ssl", "https") if settings.has_tls else ("pulsar", "http")
            service_url, admin_url = (
                f"{pulsar}://{host}:{settings.port}",
                f"{http}://{host}:{settings.web_port}",
            )
        if settings.has_tls:
            return answer(
                {
                    "brokerUrlTls": service_url,
                    "httpUrlTls": admin_url,
                    "nativeUrl": "",
                    "brokerUrlSsl": service_url,
                }
            )
        return answer(
            {"brokerUrl": service_url, "httpUrl": admin_url, "nativeUrl": service_url, "brokerUrlSsl": ""}
        )

    async def bundle(self, request: web.Request) -> web.Response:
        """The hash range that a topic falls into."""
        topic = topic_of(request)
        document = self.namespaces.document(topic.tenant, topic.namespace)
        return bare_text(bundle_of(document["bundles"]["boundaries"], topic))
