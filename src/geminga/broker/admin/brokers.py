"""``/admin/v2/brokers``, ``/admin/v2/broker-stats``, ``/metrics``, ``/lookup/v2``: state of this broker."""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

from aiohttp import web

from geminga._version import __version__
from geminga.broker.admin import health, http, metrics
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.namespaces import bundle_of
from geminga.broker.admin.routes import CREDENTIALS, LOOK, METRICS, NOTHING, SUPER_USER, route
from geminga.broker.core import Broker
from geminga.broker.listeners import no_listener
from geminga.broker.rules.dynamic import DYNAMIC
from geminga.broker.runtime.cooperative import at_once
from geminga.broker.settings import shown
from geminga.broker.topics import quota
from geminga.broker.topics.persistent import PersistentTopic
from geminga.ids import TopicName

_LOOKUP = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
RESTING_SECONDS = 1.0
"""Longest wait of a scrape, after a start, for the backlogs of topics that are not in memory."""


class BrokersResource(http.Resource):
    """The resource of the cluster's only broker, which is its own leader."""

    @route("GET", "/admin/v2/brokers/health", needs=SUPER_USER)
    @route("GET", "/status.html", needs=NOTHING)
    @route("GET", "/livez", needs=NOTHING)
    @route("GET", "/admin/v2/brokers/ready", needs=CREDENTIALS)
    async def health(self) -> web.Response:
        """``ok`` while the store takes writes; 503 with the reason once it has stopped."""
        return _healthy(health.live(self.server.broker))

    @route("GET", "/readyz", needs=NOTHING)
    async def ready(self) -> web.Response:
        """``ok`` while messages are taken; 503 with the reason when the store has stopped or the disk is
        full. The port does not answer while the broker starts and stops; ``health_port`` does."""
        return _healthy(health.ready(self.server.broker))

    @route("GET", "/admin/v2/brokers/version", needs=CREDENTIALS)
    async def version(self) -> web.Response:
        """The version of Geminga."""
        return http.bare_text(__version__)

    @route("GET", "/admin/v2/brokers/leaderBroker", needs=SUPER_USER)
    async def leader(self) -> object:
        """This broker, the only one."""
        settings = self.server.settings
        return {"serviceUrl": settings.admin_url, "brokerId": settings.broker_id}

    @route("GET", "/admin/v2/brokers", needs=SUPER_USER)
    @route("GET", "/admin/v2/brokers/{cluster}", needs=SUPER_USER)
    async def names(self, cluster: str | None = None) -> object:
        """This broker's address; empty for other clusters."""
        own = self.server.settings.cluster
        self.namespaces.clusters.get(cluster or own)
        return [self.server.settings.broker_id] if cluster in (None, own) else []

    @route("GET", "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", needs=SUPER_USER)
    async def owned(self, broker: str) -> object:
        """The bundles that this broker serves: all."""
        if broker != self.server.settings.broker_id:
            raise AdminRefusal(404, f"broker {broker} is not {self.server.settings.broker_id}")
        owned = {}
        for name in self.namespaces.all_namespaces():
            boundaries = self.namespaces.document(*name.split("/"))["bundles"]["boundaries"]
            for low, high in pairwise(boundaries):
                state = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
                owned[f"{name}/{low}_{high}"] = state
        return owned

    @route("GET", "/admin/v2/geminga/disk", needs=SUPER_USER)
    async def disk(self) -> object:
        """Disk space, the limits in force and what retention deleted early; 404 in memory."""
        found = disk_figures(self.server.broker)
        if not found:
            raise AdminRefusal(404, "this broker keeps everything in memory: it has no disk")
        return found

    # --- configuration ---
    def _configuration(self) -> dict[str, str]:
        settings, dynamic = self.server.settings, self.server.broker.dynamic
        # Fields left out of reprs are secrets, also for administrators.
        own = {field.name: shown(settings, field) for field in dataclasses.fields(settings) if field.repr}
        own |= {one.field: getattr(dynamic.current, one.field) for one in DYNAMIC.values()}
        pulsar_names: dict[str, Any] = {
            "clusterName": settings.cluster,
            "authenticationEnabled": settings.authenticates,
            "authorizationEnabled": settings.authenticates and settings.authorization,
            "superUserRoles": ",".join(settings.super_user_roles),
            "advertisedAddress": settings.advertised_host,
            "bindAddress": settings.host,
            "brokerServicePort": settings.port if settings.has_plain_port else None,
            "webServicePort": settings.web_port if settings.has_plain_web_port else None,
            "brokerServicePortTls": settings.tls_port if settings.has_plain_port else settings.port,
            "webServicePortTls": settings.web_tls_port if settings.has_plain_web_port else settings.web_port,
            "advertisedListeners": ",".join(settings.advertised_listeners),
            "internalListenerName": settings.internal_listener,
            "maxMessageSize": settings.max_message_size,
            "keepAliveIntervalSeconds": settings.keepalive_seconds,
            "acknowledgmentAtBatchIndexLevelEnabled": settings.batch_index_ack,
            **dynamic.shown(),
            "defaultRetentionSizeInMB": dynamic.current.retention_megabytes_default,
            "journalSyncData": settings.sync == "always",
            "transactionCoordinatorEnabled": settings.transactions,
        }
        found = own | pulsar_names
        return {name: _text(value) for name, value in sorted(found.items()) if value is not None}

    @route("GET", "/admin/v2/brokers/configuration/runtime", needs=SUPER_USER)
    async def configuration(self) -> object:
        """Configuration of this broker under Geminga's and Apache Pulsar's names; secrets are left out."""
        return self._configuration()

    @route("GET", "/admin/v2/brokers/configuration", needs=SUPER_USER)
    async def configuration_names(self) -> object:
        """The names of the settings that can be changed while the broker runs."""
        return sorted(DYNAMIC)

    @route("GET", "/admin/v2/brokers/configuration/values", needs=SUPER_USER)
    async def changed_configuration(self) -> object:
        """Settings that were changed at run time, as they were given."""
        return self.server.broker.dynamic.changed

    @route("POST", "/admin/v2/brokers/configuration/{name}/{value}", needs=SUPER_USER)
    @route("DELETE", "/admin/v2/brokers/configuration/{name}", needs=SUPER_USER)
    async def change_configuration(self, name: str, value: str | None = None) -> None:
        """Change a setting durably, or reset it to its start value; 412 if it is read only at the start."""
        dynamic = self.server.broker.dynamic
        change = partial(dynamic.remove, name) if value is None else partial(dynamic.set, name, value)
        await self.in_force(change)

    @route("GET", "/admin/v2/brokers/internal-configuration", needs=SUPER_USER)
    async def internal_configuration(self) -> object:
        """Storage location of the metadata: the broker's own folder."""
        settings = self.server.settings
        where = "memory:" if settings.memory else f"file:{os.fspath(settings.data_dir or '')}"
        urls = (
            "zookeeperServers", "configurationStoreServers", "metadataStoreUrl",
            "configurationMetadataStoreUrl",
        )  # fmt: skip
        return dict.fromkeys(urls, where) | {"ledgersRootPath": "/ledgers"}

    @route("GET", "/admin/v2/brokers/backlog-quota-check", needs=SUPER_USER)
    async def backlog_quota_check(self) -> None:
        """Check the quotas of the topics in memory now instead of within 15 s."""
        topics = self.server.broker.topics
        async for name in http.stepwise(topics.loaded()):
            topic = topics.in_memory(name)
            if isinstance(topic, PersistentTopic):
                quota.check(topic)

    @route("GET", "/admin/v2/bookies/all", needs=SUPER_USER)
    async def bookies(self) -> object:
        """This broker: it has its own store."""
        return {"bookies": [{"bookieId": self.server.settings.broker_id}]}

    @route("GET", "/admin/v2/bookies/racks-info", needs=SUPER_USER)
    @route("GET", "/admin/v2/clusters/{cluster}/failureDomains", needs=SUPER_USER)
    async def no_entries(self) -> object:
        """Always empty: one broker has neither racks nor failure domains."""
        return {}

    @route("GET", "/admin/v2/resourcegroups", needs=SUPER_USER)
    async def no_names(self) -> object:
        """Always empty: rates of namespaces and topics are set instead of resource groups."""
        return []

    # --- metrics ---
    async def _topic_counts(self) -> dict[str, int]:
        """Return the number of topics by namespace; all names are read once, later changes are counted."""
        counts = self.topics.counts
        found = Counter(name.namespace_name for name in self.topics.loaded() if not name.persistent)
        for namespace in self.namespaces.all_namespaces():
            count = self.now(partial(counts.of, namespace))
            if not count.is_complete:
                await http.when_done(self.server, partial(counts.when_counted, namespace))
            found[namespace] += count.topics
        return found

    def _histograms(self, name: TopicName) -> Iterable[tuple[str, float]]:
        topic = self.topics.in_memory(name)
        if not isinstance(topic, PersistentTopic) or topic.histograms is None:
            return ()
        return topic.histograms.last_minute(self.server.broker.scheduler.now)

    @route("GET", "/metrics", needs=METRICS)
    @route("GET", "/metrics/", needs=METRICS)
    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """All metrics in Prometheus' text format: see [metrics](metrics.md)."""
        server = self.server
        out = metrics.Exposition(common=(("cluster", server.settings.cluster),))
        by_namespace = await self._topic_counts()
        await self.resting_read(RESTING_SECONDS)
        topics = metrics.TopicMetrics(out, by_topic=server.settings.topic_metrics)
        async for topic in http.stepwise(self.topics.loaded()):
            loaded = self.topics.in_memory(topic)
            if loaded is not None:  # it may have left meanwhile
                stats = await self.in_steps(self.actions.stats_steps(topic, key_ranges=False))
                await self.in_steps(topics.add(topic, stats, self._histograms(topic), loaded))
        for topic in self.topics.loaded():
            if topic not in topics:  # it was loaded meanwhile
                stats = self.actions.stats(topic, key_ranges=False)
                at_once(topics.add(topic, stats, self._histograms(topic), self.topics.in_memory(topic)))
        out.add("geminga_topics_loaded", self.topics.loaded_count)
        topics.finish(by_namespace, self.topics.resting, self.topics.in_memory)
        metrics.add_store(out, server.store.stats(), healthy=server.store.failure is None)
        if server.store.tier is not None:
            metrics.add_tier(out, server.store.tier.tier_stats)
        metrics.add_disk(out, disk_figures(server.broker))
        metrics.add_damage(out, server.store.damage.found)
        metrics.add_failures(out, server.broker.scheduler.failures)
        metrics.add_transactions(out, server.broker.coordinator.counts)
        metrics.add_process(
            out, started_at_ms=server.started_at_ms, connections=len(server.connections),
            connections_created=server.connections_created, connections_refused=server.connections_refused,
        )  # fmt: skip
        expires_at = server.tls.expires_at if server.tls else None
        metrics.add_security(out, server.broker.audit.failures, expires_at)
        return await http.answer_pieces(request, http.stepwise(out.lines()), metrics.CONTENT_TYPE)


class BrokerStatsResource(http.Resource):
    """``/admin/v2/broker-stats``, as far as it has a meaning for a single broker."""

    @route("GET", "/admin/v2/broker-stats/topics", needs=SUPER_USER)
    @route("GET", "/admin/v2/broker-stats/destinations", needs=SUPER_USER)
    async def topics_by_bundle(self, request: web.Request) -> web.StreamResponse:
        """Stats of all topics in memory, by namespace, bundle and domain."""
        return await http.answer_pieces(request, self._by_bundle())

    async def _by_bundle(self) -> AsyncIterator[str]:
        """An object by namespace, bundle, domain and topic, in pieces."""
        found: dict[str, dict[tuple[str, str], list[TopicName]]] = {}
        boundaries: dict[str, list[str]] = {}
        async for topic in http.stepwise(self.topics.loaded()):
            namespace = topic.namespace_name
            if not self.namespaces.exists(topic.tenant, topic.namespace):
                continue  # it has been deleted meanwhile
            if namespace not in boundaries:
                bundles = self.namespaces.document(topic.tenant, topic.namespace)["bundles"]
                boundaries[namespace] = list(bundles["boundaries"])
            place = bundle_of(boundaries[namespace], topic), topic.domain
            found.setdefault(namespace, {}).setdefault(place, []).append(topic)
        outer = "{"
        for namespace, places in found.items():
            yield f"{outer}{json.dumps(namespace)}:"
            outer, before = ",", ""
            for bundle, domain in sorted(places):
                if bundle == before:
                    yield ","
                else:
                    yield ("}," if before else "{") + json.dumps(bundle) + ":{"
                yield f"{json.dumps(domain)}:{{"
                before, inner = bundle, ""
                async for topic in http.stepwise(places[bundle, domain]):
                    if self.topics.in_memory(topic) is not None:  # it may have left meanwhile
                        stats = await self.in_steps(self.actions.stats_among_all(topic))
                        yield f"{inner}{json.dumps(str(topic))}:"
                        async for piece in http.stepwise(http.json_pieces(stats)):
                            yield piece
                        inner = ","
                yield "}"
            yield "}}"
        yield "{}" if outer == "{" else "}"

    @route("GET", "/admin/v2/broker-stats/metrics", needs=SUPER_USER)
    @route("GET", "/admin/v2/broker-stats/mbeans", needs=SUPER_USER)
    async def figures(self) -> object:
        """Counters of store and process in the form of Apache Pulsar's broker stats."""
        stats = self.server.store.stats()
        store = {name: getattr(stats, name) for name in type(stats).__slots__}
        process = {
            "residentBytes": metrics.resident_bytes(),
            "connections": len(self.server.connections),
            "loadedTopics": self.topics.loaded_count,
        }
        return [{"metrics": {**store, **process}, "dimensions": {"metric": "geminga"}}]

    @route("GET", "/admin/v2/broker-stats/load-report", needs=SUPER_USER)
    async def load_report(self) -> None:
        """Empty: one broker has no load to be spread."""


class LookupResource(http.Resource):
    """Lookups over HTTP; one broker serves everything, so the answer is always this broker."""

    @route("GET", _LOOKUP, needs=LOOK)
    async def get(self, request: web.Request) -> object:
        """The broker that serves a topic: this one, by the address that the client can reach."""
        topic = http.topic_of(request)
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

    @route("GET", _LOOKUP + "/bundle", needs=LOOK)
    async def bundle(self, request: web.Request) -> web.Response:
        """The hash range that a topic falls into."""
        topic = http.topic_of(request)
        document = self.namespaces.document(topic.tenant, topic.namespace)
        return http.bare_text(bundle_of(document["bundles"]["boundaries"], topic))


def disk_figures(broker: Broker) -> dict[str, Any]:
    """Return figures of the disk and what retention deleted early; empty without a disk."""
    found = broker.disk.described()
    if found:
        found["gaveWayLedgers"], found["gaveWayBytes"] = (
            broker.retention_evictor.ledgers,
            broker.retention_evictor.bytes,
        )
    return found


def _healthy(failure: str) -> web.Response:
    if failure:
        raise AdminRefusal(503, failure)
    return http.bare_text("ok")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
