"""``/admin/v2/namespaces``: creates and deletes namespaces, and acts on all topics of one."""

import contextlib
import zlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import pairwise
from typing import Any

from aiohttp import web

from geminga.broker.admin import http
from geminga.broker.admin.errors import AdminRefusal
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


async def delete_namespace_with_topics(resource: http.Resource, tenant: str, namespace: str) -> None:
    """Delete a namespace by force: topics first; their clients are disconnected."""
    with resource.namespaces.leaving(tenant, namespace):
        await http.for_each(topics_of(resource, tenant, namespace), partial(_delete_topic, resource))
        async for base in resource.walk_names(*_partitioned(resource, f"{tenant}/{namespace}")):
            await _delete_topic(resource, TopicName.parse(base))
        await resource.durable(lambda done: resource.namespaces.delete_namespace(tenant, namespace, done))


async def _delete_topic(resource: http.Resource, topic: TopicName) -> None:
    with http.passing_over_missing():
        await resource.durable(lambda done: resource.actions.delete(topic, True, done))


def _partitioned(resource: http.Resource, namespace: str) -> list[TopicNames]:
    """Return the partitioned topics of ``tenant/namespace``, both domains."""
    return [resource.topics.partitioned.walk(namespace, persistent=each) for each in (False, True)]


async def topics_of(
    resource: http.Resource, tenant: str, namespace: str, domains: tuple[str, ...] = _ALL_DOMAINS
) -> AsyncIterator[TopicName]:
    """Yield all topics of a namespace in order, each partition as a topic, serving other requests in between.

    Topics created or deleted meanwhile may be included or not.
    """
    async for name in resource.walk_names(*_walks(resource, tenant, namespace, domains)):
        yield TopicName.parse(name)


def _walks(
    resource: http.Resource, tenant: str, namespace: str, domains: tuple[str, ...] = _ALL_DOMAINS
) -> list[TopicNames]:
    """Return the topics of a namespace, by domain."""
    place = f"{tenant}/{namespace}"
    return [resource.topics.walk(place, persistent=each == "persistent") for each in sorted(domains)]


def permissions_of(resource: http.Resource, tenant: str, namespace: str) -> dict[str, Any]:
    """Return the permissions in a namespace, by kind."""
    kinds = "namespace_auth", "destination_auth", "subscription_auth_roles"
    kept: dict[str, Any] = resource.namespaces.document(tenant, namespace)["auth_policies"]
    return {kind: {} for kind in kinds} | kept


async def change_permissions(
    resource: http.Resource, tenant: str, namespace: str, change: Callable[[dict[str, Any]], object]
) -> None:
    """Change permissions; the present value is read within the call, after other requests' changes."""

    def write(done: Done) -> None:
        found = permissions_of(resource, tenant, namespace)
        change(found)
        resource.namespaces.set_policy(tenant, namespace, "auth_policies", found, done)

    await resource.durable(write)


class NamespacesResource(http.Resource):
    """Namespaces. Policies are in `geminga.broker.admin.policy_routes`."""

    # --- life ---
    @route("GET", "/admin/v2/namespaces/{tenant}", needs=ADMINISTRATOR)
    async def names(self, tenant: str) -> object:
        """Names of a tenant's namespaces."""
        return self.namespaces.tenants.namespaces(tenant)

    @route("GET", "/admin/namespaces/{tenant}/{cluster}", needs=ADMINISTRATOR)
    async def names_in_cluster(self, tenant: str) -> object:
        """Namespaces of version 1, whose names contained a cluster; always empty."""
        self.namespaces.tenants.get(tenant)
        return []

    @route("GET", _PATH, needs=ADMINISTRATOR)
    async def get(self, tenant: str, namespace: str) -> object:
        """All policies of a namespace."""
        return self.namespaces.document(tenant, namespace)

    @route("PUT", _PATH, needs=ADMINISTRATOR)
    async def create(self, request: web.Request, tenant: str, namespace: str) -> None:
        """Make a namespace. Body: policies, or nothing."""
        document = await http.object_body(request, optional=True)
        await self.durable(lambda done: self.namespaces.create_namespace(tenant, namespace, document, done))

    @route("DELETE", _PATH, needs=ADMINISTRATOR)
    async def delete(self, request: web.Request, tenant: str, namespace: str) -> None:
        """Delete an empty namespace; with ``?force=true`` its topics, too."""
        self.namespaces.document(tenant, namespace)
        if http.query_flag(request, "force"):
            await delete_namespace_with_topics(self, tenant, namespace)
            return
        place = f"{tenant}/{namespace}"
        walks = _walks(self, tenant, namespace) + _partitioned(self, place)
        async for left in self.walk_names(*walks):
            raise AdminRefusal(409, f"Cannot delete non empty namespace {place}: it has {left}")
        await self.durable(lambda done: self.namespaces.delete_namespace(tenant, namespace, done))

    # --- topics of the namespace ---
    @route("GET", _PATH + "/topics", needs=LIST)
    async def topic_names(self, request: web.Request, tenant: str, namespace: str) -> web.StreamResponse:
        """Names of its topics, partitions each. ``?mode=`` ``PERSISTENT``, ``NON_PERSISTENT`` or ``ALL``."""
        self.namespaces.document(tenant, namespace)
        domains = _MODES.get(request.query.get("mode", "PERSISTENT").upper(), _ALL_DOMAINS)
        return await http.answer_names(request, self.walk_names(*_walks(self, tenant, namespace, domains)))

    @route("PUT", _PATH + "/unload", needs=ADMINISTRATOR)
    @route("PUT", _PATH + "/{bundle}/unload", needs=ADMINISTRATOR)
    async def unload(self, tenant: str, namespace: str, bundle: str = "") -> None:
        """Unload its topics from memory; clients reconnect automatically."""
        place, chosen = f"{tenant}/{namespace}", self._chosen(tenant, namespace, bundle)
        async for topic in http.stepwise(self.topics.loaded()):
            if topic.namespace_name == place and chosen(topic):
                with contextlib.suppress(AdminRefusal):  # it may have been deleted meanwhile
                    self.now(partial(self.actions.unload, topic))

    @route("POST", _PATH + "/clearBacklog", needs=ADMINISTRATOR)
    @route("POST", _PATH + "/clearBacklog/{subscription}", needs=SUBSCRIPTIONS)
    @route("POST", _PATH + "/{bundle}/clearBacklog", needs=ADMINISTRATOR)
    @route("POST", _PATH + "/{bundle}/clearBacklog/{subscription}", needs=SUBSCRIPTIONS)
    async def clear_backlog(
        self, tenant: str, namespace: str, bundle: str = "", subscription: str | None = None
    ) -> None:
        """Acknowledge everything: for one subscription, or for all, of each topic."""
        async for topic in self._topics_in(tenant, namespace, bundle, ("persistent",)):
            names = self.actions.subscriptions(topic)
            found = [(topic, name) for name in names if subscription in (None, name)]
            await self.change_each(found, self.actions.cursors.skip_all)

    @route("POST", _PATH + "/unsubscribe/{subscription}", needs=SUBSCRIPTIONS)
    @route("POST", _PATH + "/{bundle}/unsubscribe/{subscription}", needs=SUBSCRIPTIONS)
    async def unsubscribe(self, tenant: str, namespace: str, subscription: str, bundle: str = "") -> None:
        """Delete a subscription from each topic that has it; refused while consumers are connected."""
        async for topic in self._topics_in(tenant, namespace, bundle, ("persistent",)):
            if subscription in self.actions.subscriptions(topic):
                await self.durable(partial(self.actions.cursors.delete, topic, subscription, force=False))

    def _chosen(self, tenant: str, namespace: str, bundle: str) -> Callable[[TopicName], bool]:
        """Return a test for the topics of a bundle, or for all topics if it is empty."""
        boundaries = self.namespaces.document(tenant, namespace)["bundles"]["boundaries"]
        if not bundle:
            return lambda topic: True
        check_bundle(boundaries, bundle)
        return lambda topic: bundle_of(boundaries, topic) == bundle

    async def _topics_in(
        self, tenant: str, namespace: str, bundle: str, domains: tuple[str, ...] = _ALL_DOMAINS
    ) -> AsyncIterator[TopicName]:
        chosen = self._chosen(tenant, namespace, bundle)
        async for topic in topics_of(self, tenant, namespace, domains):
            if chosen(topic):
                yield topic

    # --- bundles: kept for the tools that show them; one broker owns them all ---
    @route("GET", _PATH + "/bundles", needs=ADMINISTRATOR)
    async def bundles(self, tenant: str, namespace: str) -> object:
        """Boundaries of its hash ranges."""
        return self.namespaces.document(tenant, namespace)["bundles"]

    @route("PUT", _PATH + "/{bundle}/split", needs=SUPER_USER)
    async def split(self, tenant: str, namespace: str, bundle: str) -> None:
        """Halve a hash range. One broker serves all of them: nothing moves."""
        boundaries = list(self.namespaces.document(tenant, namespace)["bundles"]["boundaries"])
        low, high = check_bundle(boundaries, bundle)
        middle = f"0x{(int(low, 16) + int(high, 16)) // 2:08x}"
        if middle in boundaries:
            raise AdminRefusal(412, f"bundle {low}_{high} is too small to be split")
        boundaries.insert(boundaries.index(high), middle)
        bundles = {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
        await self.durable(
            lambda done: self.namespaces.set_policy(tenant, namespace, "bundles", bundles, done)
        )

    @route("GET", _PATH + "/{bundle}/topicHashPositions", needs=ADMINISTRATOR)
    async def hash_positions(self, request: web.Request, tenant: str, namespace: str, bundle: str) -> object:
        """Hash positions of topics in a hash range."""
        wanted = {str(TopicName.parse(name)) for name in request.query.getall("topics", [])}
        positions = {
            str(topic): zlib.crc32(str(topic).encode())
            async for topic in self._topics_in(tenant, namespace, bundle)
            if not wanted or str(topic) in wanted
        }
        found = {"namespace": f"{tenant}/{namespace}", "bundle": bundle}
        return {**found, "topicHashPositions": positions}

    # --- permissions: in force where the broker has authentication (`rules.authorization`) ---
    @route("GET", _PATH + "/permissions", needs=ADMINISTRATOR)
    async def permissions(self, tenant: str, namespace: str) -> object:
        """Permissions of roles in the namespace."""
        return permissions_of(self, tenant, namespace)["namespace_auth"]

    @route("GET", _PATH + "/permissions/subscription", needs=ADMINISTRATOR)
    async def subscription_permissions(self, tenant: str, namespace: str) -> object:
        """Roles that may use each subscription."""
        return permissions_of(self, tenant, namespace)["subscription_auth_roles"]

    @route("POST", _PATH + "/permissions/{role}", needs=ADMINISTRATOR)
    async def grant(self, request: web.Request, tenant: str, namespace: str, role: str) -> None:
        """Allow a role actions. Body: a list of ``produce``, ``consume``, ``functions``, ``sources``,
        ``sinks``, ``packages``."""
        actions = words(AUTH_ACTIONS)("actions", await http.body(request))
        await change_permissions(
            self, tenant, namespace, lambda auth: auth["namespace_auth"].update({role: actions})
        )

    @route("DELETE", _PATH + "/permissions/{role}", needs=ADMINISTRATOR)
    async def revoke(self, tenant: str, namespace: str, role: str) -> None:
        """Revoke all permissions of a role."""
        await change_permissions(self, tenant, namespace, lambda auth: auth["namespace_auth"].pop(role, None))

    @route("POST", _PATH + "/permissions/subscription/{subscription}", needs=ADMINISTRATOR)
    async def grant_subscription(
        self, request: web.Request, tenant: str, namespace: str, subscription: str
    ) -> None:
        """Restrict a subscription to roles. Body: a list of roles."""
        roles = words()("roles", await http.body(request))

        def grant(auth: dict[str, Any]) -> None:
            auth["subscription_auth_roles"][subscription] = roles

        await change_permissions(self, tenant, namespace, grant)

    @route("DELETE", _PATH + "/permissions/{subscription}/{role}", needs=ADMINISTRATOR)
    async def revoke_subscription(self, tenant: str, namespace: str, subscription: str, role: str) -> None:
        """Revoke a role's use of a subscription."""

        def take(auth: dict[str, Any]) -> None:
            roles = auth["subscription_auth_roles"].get(subscription, [])
            if role in roles:
                roles.remove(role)

        await change_permissions(self, tenant, namespace, take)


def check_bundle(boundaries: list[str], bundle: str) -> tuple[str, str]:
    """Return both ends of a bundle of a namespace; 412 if the namespace has no such bundle."""
    low, _, high = bundle.partition("_")
    if low not in boundaries or high not in boundaries or boundaries.index(high) != boundaries.index(low) + 1:
        raise AdminRefusal(412, f"Invalid bundle range {bundle}; boundaries: {', '.join(boundaries)}")
    return low, high
