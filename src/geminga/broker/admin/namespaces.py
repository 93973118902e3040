"""``/admin/v2/namespaces``: creates and deletes namespaces, and acts on all topics of one."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import pairwise
from typing import Any

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import (
    Resource,
    answer,
    answer_names,
    body,
    done_answer,
    for_each,
    object_body,
    part,
    passing_over_missing,
    query_flag,
    stepwise,
)
from geminga.broker.admin.routes import ADMINISTRATOR, LIST, SUBSCRIPTIONS, SUPER_USER, route
from geminga.broker.rules.policies import AUTH_ACTIONS, words
from geminga.broker.topics.topic_names import TopicNames
from geminga.ids import TopicName
from geminga.ledger.api import Done

_BASE = "/admin/v2/namespaces"
_PATH = _BASE + "/{tenant}/{namespace}"
_MODES = {"PERSISTENT": ("persistent",), "NON_PERSISTENT": ("non-persistent",)}
_ALL_DOMAINS = ("persistent", "non-persistent")


def bundle_of(boundaries: list[str], topic: TopicName) -> str:
    """Return the hash range that a topic falls into, as Pulsar names it: ``0x00000000_0x40000000``."""
    place = zlib.crc32(str(topic).encode())
    for low, high in pairwise(boundaries):
        if place < int(high, 16):
            return f"{low}_{high}"
    return f"{boundaries[-2]}_{boundaries[-1]}"


async def delete_namespace_with_topics(resource: Resource, tenant: str, namespace: str) -> None:
    """Delete a namespace by force: topics first; their clients are disconnected."""
    with resource.namespaces.leaving(tenant, namespace):
        await for_each(topics_of(resource, tenant, namespace), partial(_delete_topic, resource))
        async for base in resource.walk_names(*_partitioned(resource, f"{tenant}/{namespace}")):
            await _delete_topic(resource, TopicName.parse(base))
        await resource.durable(lambda done: resource.namespaces.delete_namespace(tenant, namespace, done))


async def _delete_topic(resource: Resource, topic: TopicName) -> None:
    with passing_over_missing():
        await resource.durable(lambda done: resource.actions.delete(topic, True, done))


def _partitioned(resource: Resource, namespace: str) -> list[TopicNames]:
    """Return the partitioned topics of ``tenant/namespace``, both domains."""
    return [resource.topics.partitioned.walk(namespace, persistent=each) for each in (False, True)]


async def topics_of(
    resource: Resource, tenant: str, namespace: str, domains: tuple[str, ...] = _ALL_DOMAINS
) -> AsyncIterator[TopicName]:
    """Yield all topics of a namespace in order, each partition as a topic, serving other requests in between.

    Topics created or deleted meanwhile may be included or not.
    """
    for domain in sorted(domains):
        async for name in resource.walk_names(
            resource.topics.walk(f"{tenant}/{namespace}", persistent=domain == "persistent")
        ):
            yield TopicName.parse(name)


class NamespacesResource(Resource):
    """Namespaces. Policies are in `geminga.broker.admin.policy_routes`."""

    # --- life ---
    @route("GET", "/admin/v2/namespaces/{tenant}", needs=ADMINISTRATOR)
    async def names(self, request: web.Request) -> web.Response:
        """Names of a tenant's namespaces."""
        return answer(self.namespaces.tenants.namespaces(part(request, "tenant")))

    @route("GET", "/admin/namespaces/{tenant}/{cluster}", needs=ADMINISTRATOR)
    async def names_in_cluster(self, request: web.Request) -> web.Response:
        """Namespaces of version 1, whose names contained a cluster; always empty."""
        self.namespaces.tenants.get(part(request, "tenant"))
        return answer([])

    @route("GET", _PATH, needs=ADMINISTRATOR)
    async def get(self, request: web.Request) -> web.Response:
        """All policies of a namespace."""
        return answer(self.namespaces.document(*_names(request)))

    @route("PUT", _PATH, needs=ADMINISTRATOR)
    async def create(self, request: web.Request) -> web.Response:
        """Make a namespace. Body: policies, or nothing."""
        tenant, namespace = _names(request)
        document = await object_body(request, optional=True)
        await self.durable(lambda done: self.namespaces.create_namespace(tenant, namespace, document, done))
        return done_answer()

    @route("DELETE", _PATH, needs=ADMINISTRATOR)
    async def delete(self, request: web.Request) -> web.Response:
        """Delete an empty namespace; with ``?force=true`` its topics, too."""
        tenant, namespace = _names(request)
        self.namespaces.document(tenant, namespace)
        if query_flag(request, "force"):
            await delete_namespace_with_topics(self, tenant, namespace)
            return done_answer()
        place = f"{tenant}/{namespace}"
        walks = [self.topics.walk(place, persistent=domain == "persistent") for domain in _ALL_DOMAINS]
        async for left in self.walk_names(*walks, *_partitioned(self, place)):
            raise AdminRefusal(409, f"Cannot delete non empty namespace {place}: it has {left}")
        await self.durable(lambda done: self.namespaces.delete_namespace(tenant, namespace, done))
        return done_answer()

    # --- topics of the namespace ---
    @route("GET", _PATH + "/topics", needs=LIST)
    async def topic_names(self, request: web.Request) -> web.StreamResponse:
        """Names of its topics, partitions each. ``?mode=`` ``PERSISTENT``, ``NON_PERSISTENT`` or ``ALL``."""
        tenant, namespace = _names(request)
        self.namespaces.document(tenant, namespace)
        domains = _MODES.get(request.query.get("mode", "PERSISTENT").upper(), _ALL_DOMAINS)
        walks = [
            self.topics.walk(f"{tenant}/{namespace}", persistent=domain == "persistent")
            for domain in sorted(domains)
        ]
        return await answer_names(request, self.walk_names(*walks))

    @route("PUT", _PATH + "/unload", needs=ADMINISTRATOR)
    @route("PUT", _PATH + "/{bundle}/unload", needs=ADMINISTRATOR)
    async def unload(self, request: web.Request) -> web.Response:
        """Unload its topics from memory; clients reconnect automatically."""
        place, chosen = "/".join(_names(request)), self._chosen(request)
        async for topic in stepwise(self.topics.loaded()):
            if topic.namespace_name == place and chosen(topic):
                with contextlib.suppress(AdminRefusal):  # it may have been deleted meanwhile
                    self.now(partial(self.actions.unload, topic))
        return done_answer()

    @route("POST", _PATH + "/clearBacklog", needs=ADMINISTRATOR)
    @route("POST", _PATH + "/clearBacklog/{subscription}", needs=SUBSCRIPTIONS)
    @route("POST", _PATH + "/{bundle}/clearBacklog", needs=ADMINISTRATOR)
    @route("POST", _PATH + "/{bundle}/clearBacklog/{subscription}", needs=SUBSCRIPTIONS)
    async def clear_backlog(self, request: web.Request) -> web.Response:
        """Acknowledge everything: for one subscription, or for all, of each topic."""
        only = request.match_info.get("subscription")
        async for topic in self._topics_in_path(request, ("persistent",)):
            found = [(topic, name) for name in self.actions.subscriptions(topic) if only in (None, name)]
            await self.change_each(found, self.actions.cursors.skip_all)
        return done_answer()

    @route("POST", _PATH + "/unsubscribe/{subscription}", needs=SUBSCRIPTIONS)
    @route("POST", _PATH + "/{bundle}/unsubscribe/{subscription}", needs=SUBSCRIPTIONS)
    async def unsubscribe(self, request: web.Request) -> web.Response:
        """Delete a subscription from each topic that has it; refused while consumers are connected."""
        name = part(request, "subscription")
        async for topic in self._topics_in_path(request, ("persistent",)):
            if name in self.actions.subscriptions(topic):
                await self.durable(partial(self.actions.cursors.delete, topic, name, force=False))
        return done_answer()

    def _chosen(self, request: web.Request) -> Callable[[TopicName], bool]:
        """Return a test for the topics of the bundle in the path, or for all topics without one."""
        boundaries = self.namespaces.document(*_names(request))["bundles"]["boundaries"]
        bundle = request.match_info.get("bundle")
        if bundle is None:
            return lambda topic: True
        check_bundle(boundaries, bundle)
        return lambda topic: bundle_of(boundaries, topic) == bundle

    async def _topics_in_path(
        self, request: web.Request, domains: tuple[str, ...] = _ALL_DOMAINS
    ) -> AsyncIterator[TopicName]:
        chosen = self._chosen(request)
        async for topic in topics_of(self, *_names(request), domains):
            if chosen(topic):
                yield topic

    # --- bundles: kept for the tools that show them; one broker owns them all ---
    @route("GET", _PATH + "/bundles", needs=ADMINISTRATOR)
    async def bundles(self, request: web.Request) -> web.Response:
        """Boundaries of its hash ranges."""
        return answer(self.namespaces.document(*_names(request))["bundles"])

    @route("PUT", _PATH + "/{bundle}/split", needs=SUPER_USER)
    async def split(self, request: web.Request) -> web.Response:
        """Halve a hash range. One broker serves all of them: nothing moves."""
        tenant, namespace = _names(request)
        boundaries = list(self.namespaces.document(tenant, namespace)["bundles"]["boundaries"])
        low, high = check_bundle(boundaries, part(request, "bundle"))
        middle = f"0x{(int(low, 16) + int(high, 16)) // 2:08x}"
        if middle in boundaries:
            raise AdminRefusal(412, f"bundle {low}_{high} is too small to be split")
        boundaries.insert(boundaries.index(high), middle)
        bundles = {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
        await self.durable(
            lambda done: self.namespaces.set_policy(tenant, namespace, "bundles", bundles, done)
        )
        return done_answer()

    @route("GET", _PATH + "/{bundle}/topicHashPositions", needs=ADMINISTRATOR)
    async def hash_positions(self, request: web.Request) -> web.Response:
        """Hash positions of topics in a hash range."""
        tenant, namespace = _names(request)
        wanted = {str(TopicName.parse(name)) for name in request.query.getall("topics", [])}
        positions = {
            str(topic): zlib.crc32(str(topic).encode())
            async for topic in self._topics_in_path(request)
            if not wanted or str(topic) in wanted
        }
        found = {"namespace": f"{tenant}/{namespace}", "bundle": part(request, "bundle")}
        return answer({**found, "topicHashPositions": positions})

    # --- permissions: in force where the broker has authentication (`rules.authorization`) ---
    @route("GET", _PATH + "/permissions", needs=ADMINISTRATOR)
    async def permissions(self, request: web.Request) -> web.Response:
        """Permissions of roles in the namespace."""
        return answer(self._auth(request)["namespace_auth"])

    @route("GET", _PATH + "/permissions/subscription", needs=ADMINISTRATOR)
    async def subscription_permissions(self, request: web.Request) -> web.Response:
        """Roles that may use each subscription."""
        return answer(self._auth(request)["subscription_auth_roles"])

    @route("POST", _PATH + "/permissions/{role}", needs=ADMINISTRATOR)
    async def grant(self, request: web.Request) -> web.Response:
        """Allow a role actions. Body: a list of ``produce``, ``consume``, ``functions``, ``sources``,
        ``sinks``, ``packages``."""
        actions = words(AUTH_ACTIONS)("actions", await body(request))
        role = part(request, "role")
        await self._change_auth(request, lambda auth: auth["namespace_auth"].update({role: actions}))
        return done_answer()

    @route("DELETE", _PATH + "/permissions/{role}", needs=ADMINISTRATOR)
    async def revoke(self, request: web.Request) -> web.Response:
        """Revoke all permissions of a role."""
        role = part(request, "role")
        await self._change_auth(request, lambda auth: auth["namespace_auth"].pop(role, None))
        return done_answer()

    @route("POST", _PATH + "/permissions/subscription/{subscription}", needs=ADMINISTRATOR)
    async def grant_subscription(self, request: web.Request) -> web.Response:
        """Restrict a subscription to roles. Body: a list of roles."""
        roles = words()("roles", await body(request))
        name = part(request, "subscription")
        await self._change_auth(request, lambda auth: auth["subscription_auth_roles"].update({name: roles}))
        return done_answer()

    @route("DELETE", _PATH + "/permissions/{subscription}/{role}", needs=ADMINISTRATOR)
    async def revoke_subscription(self, request: web.Request) -> web.Response:
        """Revoke a role's use of a subscription."""
        name, role = part(request, "subscription"), part(request, "role")

        def take(auth: dict[str, Any]) -> None:
            roles = auth["subscription_auth_roles"].get(name, [])
            if role in roles:
                roles.remove(role)

        await self._change_auth(request, take)
        return done_answer()

    def _auth(self, request: web.Request) -> dict[str, Any]:
        kept = self.namespaces.document(*_names(request))["auth_policies"]
        for kind in ("namespace_auth", "destination_auth", "subscription_auth_roles"):
            kept.setdefault(kind, {})
        return kept  # type: ignore[no-any-return]

    async def _change_auth(self, request: web.Request, change: Callable[[dict[str, Any]], object]) -> None:
        """Change permissions; the present value is read within the call, after other requests' changes."""
        tenant, namespace = _names(request)

        def write(done: Done) -> None:
            auth = self._auth(request)
            change(auth)
            self.namespaces.set_policy(tenant, namespace, "auth_policies", auth, done)

        await self.durable(write)


def _names(request: web.Request) -> tuple[str, str]:
    return part(request, "tenant"), part(request, "namespace")


def check_bundle(boundaries: list[str], bundle: str) -> tuple[str, str]:
    """Return both ends of a bundle of a namespace; 412 if the namespace has no such bundle."""
    low, _, high = bundle.partition("_")
    if low not in boundaries or high not in boundaries or boundaries.index(high) != boundaries.index(low) + 1:
        raise AdminRefusal(412, f"Invalid bundle range {bundle}; boundaries: {', '.join(boundaries)}")
    return low, high
