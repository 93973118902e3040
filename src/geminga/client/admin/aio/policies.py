"""Policies: each is an attribute with the calls ``get``, ``set`` and ``remove``.

The attributes are those of `geminga.policies`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from geminga import policies
from geminga.client.admin.aio.calls import AdminCalls, AdminSection
from geminga.client.admin.exchange import namespace_path, topic_path
from geminga.config import refuse
from geminga.errors import ProtocolError
from geminga.policies import BacklogQuota, Policy
from geminga.records import decode, encode

T = TypeVar("T")


class PolicyAt(Generic[T]):
    """Policy of namespaces or topics, with ``get``, ``set`` and ``remove``."""

    def __init__(self, calls: AdminCalls, path: Callable[[str], str], policy: Policy[T]) -> None:
        self._calls = calls
        self._path = path
        self._policy = policy

    async def get(self, place: str, *, applied: bool | None = None) -> T | None:
        """Return the policy set on ``place`` itself (``tenant/namespace``, or a topic); None if it is unset.

        ``applied``, for topics: return the effective value, set on the topic, its namespace or the broker.
        """
        path = f"{self._path(place)}/{self._policy.segment}"
        found = await self._calls.call("GET", path, query={"applied": applied})
        return None if found is None else decode(self._policy.kind, found, self._policy.name)

    async def set(self, place: str, value: T) -> None:
        """Set the policy of ``place``. Raises `InvalidConfiguration` for a value of another type."""
        policy, body = self._policy, encode(value)
        try:
            decode(policy.kind, body, policy.name)
        except ProtocolError:
            refuse(policy.name, value, getattr(policy.kind, "__name__", str(policy.kind)))
        path = f"{self._path(place)}/{policy.segment}"
        if policy.as_query is None:
            await self._calls.call(policy.method, path, body)
        else:
            await self._calls.call(policy.method, path, query={policy.as_query: body})

    async def remove(self, place: str) -> None:
        """Unset the policy of ``place``: the value of the namespace or the broker applies again."""
        path = f"{self._path(place)}/{self._policy.segment}"
        if self._policy.unset_by_null:
            await self._calls.put_null(self._policy.method, path)
        else:
            await self._calls.call("DELETE", path)


class KnownPolicies(policies.CommonScope):
    """Policies that are attributes of ``Admin``."""

    @classmethod
    def policies_known(cls) -> Iterator[Policy[Any]]:
        """Yield the policies that are attributes of ``Admin``."""
        return (policy for policy in policies.declared(cls) if not policy.name.startswith("_"))


class PolicyHolder(KnownPolicies, AdminSection):
    """Policies that both namespaces and topics have."""

    def path(self, place: str) -> str:
        """Return the REST path of the policies of ``place``."""
        raise NotImplementedError

    def policy_at(self, policy: Policy[T]) -> PolicyAt[T]:
        """Return the calls of a policy."""
        return PolicyAt(self._calls, self.path, policy)

    async def backlog_quotas(self, place: str, *, applied: bool | None = None) -> Mapping[str, BacklogQuota]:
        """Return the backlog quotas by kind: ``destination_storage`` (bytes) and ``message_age``
        (seconds)."""
        path = f"{self.path(place)}/backlogQuotaMap"
        found = await self._calls.get_any(Mapping[str, BacklogQuota], path, applied=applied)
        return found or {}

    async def set_backlog_quota(
        self, place: str, quota: BacklogQuota, *, kind: str = "destination_storage"
    ) -> None:
        """Set the quota of one kind: ``destination_storage`` or ``message_age``."""
        path = f"{self.path(place)}/backlogQuota"
        await self._calls.call("POST", path, quota, query={"backlogQuotaType": kind})

    async def remove_backlog_quota(self, place: str, *, kind: str = "destination_storage") -> None:
        """Unset the quota of one kind."""
        path = f"{self.path(place)}/backlogQuota"
        await self._calls.call("DELETE", path, query={"backlogQuotaType": kind})


class TopicPolicies(policies.TopicScope, PolicyHolder):
    """Policies of single topics, which override those of the namespace."""

    def path(self, place: str) -> str:
        return topic_path(place)


class NamespacePolicies(policies.NamespaceScope, PolicyHolder):
    """Policies of namespaces, which apply to all topics that do not override them."""

    def path(self, place: str) -> str:
        return f"namespaces/{namespace_path(place)}"
