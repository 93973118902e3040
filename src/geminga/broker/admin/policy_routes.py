"""Policies over REST, for namespaces and for topics: one set of handlers for all declared policies.

GET answers what was set (200 with an empty body when nothing was) and DELETE removes it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aiohttp import web

from geminga.broker.admin import http
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.routes import ADMINISTRATOR, SUPER_USER, Handler, Route, route
from geminga.broker.rules.effective_policies import in_force
from geminga.broker.rules.policies import backlog_quota, one_of, text_map
from geminga.ids import TopicName
from geminga.ledger.api import Done
from geminga.policies import QUOTA_KINDS, CommonScope, NamespaceScope, Policy, TopicScope, declared

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"


class _PolicyResource(http.Resource):
    """Handlers of policies; subclasses define where a policy is stored."""

    path = ""
    scope: type[CommonScope]

    def read(self, request: web.Request, field: str) -> Any:
        raise NotImplementedError

    def put(self, request: web.Request, field: str, value: Any, done: Done) -> None:
        raise NotImplementedError

    async def write(self, request: web.Request, field: str, value: Any) -> None:
        await self.in_force(lambda done: self.put(request, field, value, done))

    async def change(self, request: web.Request, field: str, new: Callable[[Any], Any]) -> None:
        """Set a policy to ``new(present value)``.

        The present value is read within the call, after other requests' changes.
        """
        await self.in_force(lambda done: self.put(request, field, new(self.read(request, field)), done))

    def routes(self) -> Iterator[Route]:
        """Yield the routes of the resource, and those of the policies of the scope."""
        yield from super().routes()
        policies = tuple(declared(self.scope))
        for policy in policies:
            path = f"{self.path}/{policy.segment}"
            limits = policy.super_user and self.scope is NamespaceScope
            change = SUPER_USER if limits else ADMINISTRATOR
            yield Route("GET", path, ADMINISTRATOR, self._getter(policy))
            yield Route(policy.method, path, change, self._setter(policy))
            yield Route("DELETE", path, change, self._remover(policy))
        quota = f"{self.path}/backlogQuota"
        yield Route("GET", f"{self.path}/policiesSet", ADMINISTRATOR, self._lister(policies))
        yield Route("GET", f"{self.path}/backlogQuotaMap", ADMINISTRATOR, http.answering(self.backlog_quotas))
        yield Route("POST", quota, ADMINISTRATOR, http.answering(self.set_backlog_quota))
        yield Route("DELETE", quota, ADMINISTRATOR, http.answering(self.remove_backlog_quota))

    def _getter(self, policy: Policy[Any]) -> Handler:
        async def get(request: web.Request) -> web.StreamResponse:
            found = self.read(request, policy.field)
            if policy.by_cluster and found is not None:
                found = found.get(self.server.settings.cluster)
            return http.answer_or_empty(policy.unset if found is None else found)

        return get

    def _lister(self, policies: tuple[Policy[Any], ...]) -> Handler:
        async def policies_set(request: web.Request) -> web.StreamResponse:
            """Policies that are set, by the last parts of their paths; saves a client many requests."""
            cluster = self.server.settings.cluster
            found = []
            for policy in policies:
                value = self.read(request, policy.field)
                if value is not None and (not policy.by_cluster or cluster in value):
                    found.append(policy.segment)
            if self.read(request, "backlog_quota_map"):
                found.append("backlogQuotaMap")
            return http.answer(sorted(found))

        return policies_set

    def _setter(self, policy: Policy[Any]) -> Handler:
        async def set_policy(request: web.Request) -> web.StreamResponse:
            if policy.as_query is None:
                value = await http.body(request, policy.empty_body)
            else:
                value = http.whole_number(request.query.get(policy.as_query), policy.as_query)
            if policy.by_cluster and value is not None:
                here = {self.server.settings.cluster: value}
                await self.change(request, policy.field, lambda found: {**(found or {}), **here})
            else:
                await self.write(request, policy.field, value)
            return http.done_answer(policy.status)

        return set_policy

    def _remover(self, policy: Policy[Any]) -> Handler:
        async def remove(request: web.Request) -> web.StreamResponse:
            if policy.by_cluster:
                cluster = self.server.settings.cluster
                await self.change(request, policy.field, lambda found: _without(found, cluster))
            else:
                await self.write(request, policy.field, None)
            return http.done_answer()

        return remove

    async def backlog_quotas(self, request: web.Request) -> object:
        """The backlog quotas that are set, by kind."""
        return self.read(request, "backlog_quota_map") or {}

    async def set_backlog_quota(self, request: web.Request) -> None:
        """Set one: ``?backlogQuotaType=`` ``destination_storage`` (default) or ``message_age``. Body:
        ``limitSize`` in bytes, ``limitTime`` in seconds, ``policy``: ``producer_request_hold``,
        ``producer_exception`` or ``consumer_backlog_eviction``."""
        quota = backlog_quota("backlogQuota", await http.object_body(request))
        kind = _quota_kind(request)
        await self.change(request, "backlog_quota_map", lambda found: {**(found or {}), kind: quota})

    async def remove_backlog_quota(self, request: web.Request) -> None:
        """Remove the quota of that kind."""
        kind = _quota_kind(request)
        await self.change(request, "backlog_quota_map", lambda found: _without(found, kind))


def _without(found: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    return {each: value for each, value in (found or {}).items() if each != name} or None


def _quota_kind(request: web.Request) -> str:
    kind = request.query.get("backlogQuotaType") or QUOTA_KINDS[0]
    return str(one_of(QUOTA_KINDS)("backlogQuotaType", kind))


class NamespacePoliciesResource(_PolicyResource):
    """``/admin/v2/namespaces/{tenant}/{namespace}/...``"""

    path = _NAMESPACE
    scope = NamespaceScope

    def read(self, request: web.Request, field: str) -> Any:
        """Return what is set; for ``GET ...?applied=true`` else what is in force."""
        tenant, namespace = request.match_info["tenant"], request.match_info["namespace"]
        found = self.namespaces.get_policy(tenant, namespace, field)
        if request.method in ("GET", "HEAD") and http.query_flag(request, "applied"):
            applied = in_force(self.namespaces.policies(tenant, namespace), self.server.settings.cluster)
            if found is None or found == {} or field == "backlog_quota_map":
                found = applied.get(field, found)
        return found

    def put(self, request: web.Request, field: str, value: Any, done: Done) -> None:
        tenant, namespace = request.match_info["tenant"], request.match_info["namespace"]
        self.namespaces.set_policy(tenant, namespace, field, value, done)

    @route("DELETE", _NAMESPACE + "/removeOffloadPolicies", needs=ADMINISTRATOR)
    async def remove_offload_policies(self, request: web.Request) -> None:
        """Remove the namespace's offload policies."""
        await self.write(request, "offload_policies", None)

    @route("GET", _NAMESPACE + "/antiAffinity", needs=ADMINISTRATOR)
    async def anti_affinity(self) -> None:
        """Always 204: one broker has no anti-affinity groups."""

    @route("GET", _NAMESPACE + "/properties", needs=ADMINISTRATOR)
    async def properties(self, request: web.Request) -> object:
        """Properties of the namespace."""
        return self.read(request, "properties") or {}

    @route("PUT", _NAMESPACE + "/properties", needs=ADMINISTRATOR)
    async def add_properties(self, request: web.Request) -> None:
        """Add properties, or replace single ones."""
        added = text_map("properties", await http.object_body(request))
        await self.change(request, "properties", lambda found: {**(found or {}), **added})

    @route("DELETE", _NAMESPACE + "/properties", needs=ADMINISTRATOR)
    async def clear_properties(self, request: web.Request) -> None:
        """Remove all properties."""
        await self.write(request, "properties", None)

    @route("GET", _NAMESPACE + "/property/{key}", needs=ADMINISTRATOR)
    async def get_property(self, request: web.Request, key: str) -> web.Response:
        """One property."""
        found = (self.read(request, "properties") or {}).get(key)
        return http.bare_text(found or "")

    @route("PUT", _NAMESPACE + "/property/{key}/{value}", needs=ADMINISTRATOR)
    async def set_property(self, request: web.Request, key: str, value: str) -> None:
        """Set a property."""
        await self.change(request, "properties", lambda found: {**(found or {}), key: value})

    @route("DELETE", _NAMESPACE + "/property/{key}", needs=ADMINISTRATOR)
    async def remove_property(self, request: web.Request, key: str) -> web.Response:
        """Remove a property; answers with its value."""
        found = (self.read(request, "properties") or {}).get(key)
        await self.change(request, "properties", lambda kept: _without(kept, key))
        return http.bare_text(found or "")


class TopicPoliciesResource(_PolicyResource):
    """``/admin/v2/{domain}/{tenant}/{namespace}/{topic}/...``"""

    path = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
    scope = TopicScope

    def _topic(self, request: web.Request) -> TopicName:
        topic = http.topic_of(request)
        if not self.actions.exists(topic.base) and not self.actions.exists(topic):
            raise AdminRefusal(404, f"Topic {topic} not found")
        return topic

    def read(self, request: web.Request, field: str) -> Any:
        topic = self._topic(request)
        of_all = http.query_flag(request, "isGlobal")
        found = self.namespaces.get_topic_policy(topic, field, of_all_clusters=of_all)
        if request.method in ("GET", "HEAD") and http.query_flag(request, "applied"):
            if field == "backlog_quota_map":
                return self._applied(topic)[field]  # of each kind, wherever that was set
            if found is None:
                found = self.namespaces.get_topic_policy(topic, field, of_all_clusters=True)
            if found is None:
                found = self.namespaces.get_policy(topic.tenant, topic.namespace, field)
            if found is None or found == {}:
                found = self._applied(topic).get(field)
        return found

    def _applied(self, topic: TopicName) -> dict[str, Any]:
        return in_force(self.namespaces.topic_policies(topic), self.server.settings.cluster)

    def put(self, request: web.Request, field: str, value: Any, done: Done) -> None:
        topic, of_all = self._topic(request), http.query_flag(request, "isGlobal")
        self.namespaces.set_topic_policy(topic, field, value, done, of_all_clusters=of_all)
