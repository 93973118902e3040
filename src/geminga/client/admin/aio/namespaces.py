"""Namespaces: creation, deletion, policies and permissions."""

from collections.abc import Iterable, Mapping
from typing import Any

from geminga.client.admin.aio.policies import NamespacePolicies
from geminga.client.admin.exchange import namespace_path, part
from geminga.client.admin.types import Names
from geminga.config import check_choice

ACTIONS = ("produce", "consume", "functions", "packages", "sources", "sinks")


class Namespaces(NamespacePolicies):
    """Namespaces, written ``tenant/namespace``. Each policy is an attribute with ``get``, ``set`` and
    ``remove``::

        admin.namespaces.retention.set("public/default", Retention(minutes=7 * 1440, megabytes=-1))
    """

    async def list(self, tenant: str) -> Names:
        """Return the namespaces of a tenant, as ``tenant/namespace``."""
        found = await self._calls.get_any(tuple[str, ...], f"namespaces/{part('tenant', tenant)}")
        return list(found or ())

    async def create(
        self, namespace: str, *, bundles: int | None = None, replication_clusters: Iterable[str] = ()
    ) -> None:
        """Create a namespace. Raises `AdminConflict` if it exists, and `AdminNotFound` without its tenant."""
        policies: dict[str, Any] = {}
        if bundles is not None:
            policies["bundles"] = {"numBundles": bundles, "boundaries": None}
        if clusters := list(replication_clusters):
            policies["replication_clusters"] = clusters
        await self._calls.call("PUT", f"namespaces/{namespace_path(namespace)}", policies or None)

    async def delete(self, namespace: str, *, force: bool = False) -> None:
        """Delete a namespace; with ``force``, its topics and their messages too."""
        await self._calls.call("DELETE", f"namespaces/{namespace_path(namespace)}", query={"force": force})

    async def policies(self, namespace: str) -> Mapping[str, Any]:
        """Return all policies that are set, as Pulsar's JSON document."""
        found: Mapping[str, Any] = await self._calls.get_any(
            Mapping[str, Any], f"namespaces/{namespace_path(namespace)}"
        )
        return found or {}

    async def topics(self, namespace: str, *, mode: str = "ALL") -> Names:
        """Return the topics; each partition is listed. ``mode``: ``PERSISTENT``, ``NON_PERSISTENT``,
        ``ALL``."""
        check_choice("mode", mode, ("PERSISTENT", "NON_PERSISTENT", "ALL"))
        path = f"namespaces/{namespace_path(namespace)}/topics"
        return list(await self._calls.get_any(tuple[str, ...], path, mode=mode) or ())

    async def unload(self, namespace: str) -> None:
        """Close every topic on its broker; clients look them up again and reconnect."""
        await self._calls.call("PUT", f"namespaces/{namespace_path(namespace)}/unload")

    async def clear_backlog(self, namespace: str, *, subscription: str | None = None) -> None:
        """Acknowledge all messages of all topics, for one subscription or for all."""
        path = f"namespaces/{namespace_path(namespace)}/clearBacklog"
        if subscription is not None:
            path += f"/{part('subscription', subscription)}"
        await self._calls.call("POST", path)

    # --- permissions ---
    async def permissions(self, namespace: str) -> Mapping[str, tuple[str, ...]]:
        """Return the actions allowed to each role: ``produce``, ``consume``, ``functions``, ..."""
        path = f"namespaces/{namespace_path(namespace)}/permissions"
        return await self._calls.get_any(Mapping[str, tuple[str, ...]], path) or {}

    async def grant(self, namespace: str, role: str, actions: Iterable[str]) -> None:
        """Allow a role exactly these actions in the namespace."""
        wanted = [check_choice("actions", action, ACTIONS) for action in actions]
        path = f"namespaces/{namespace_path(namespace)}/permissions/{part('role', role)}"
        await self._calls.call("POST", path, wanted)

    async def revoke(self, namespace: str, role: str) -> None:
        """Remove a role's grants in the namespace."""
        path = f"namespaces/{namespace_path(namespace)}/permissions/{part('role', role)}"
        await self._calls.call("DELETE", path)

    async def subscription_permissions(self, namespace: str) -> Mapping[str, tuple[str, ...]]:
        """Return the roles that may use each restricted subscription."""
        path = f"namespaces/{namespace_path(namespace)}/permissions/subscription"
        return await self._calls.get_any(Mapping[str, tuple[str, ...]], path) or {}

    async def grant_subscription(self, namespace: str, subscription: str, roles: Iterable[str]) -> None:
        """Restrict a subscription to these roles."""
        path = f"namespaces/{namespace_path(namespace)}/permissions/subscription"
        await self._calls.call("POST", f"{path}/{part('subscription', subscription)}", list(roles))

    async def revoke_subscription(self, namespace: str, subscription: str, role: str) -> None:
        """Remove a role from those that may use a restricted subscription."""
        path = f"namespaces/{namespace_path(namespace)}/permissions"
        await self._calls.call("DELETE", f"{path}/{part('subscription', subscription)}/{part('role', role)}")
