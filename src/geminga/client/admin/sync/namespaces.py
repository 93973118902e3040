"""Namespaces: their life, policies and permissions.

Made of ``client/admin/aio/namespaces.py`` by ``tools/generate_sync.py``: do not edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from geminga.client.admin.exchange import namespace_path, part
from geminga.client.admin.sync.policies import NamespacePolicies
from geminga.client.admin.types import Names
from geminga.config import check_choice

ACTIONS = ("produce", "consume", "functions", "packages", "sources", "sinks")


class Namespaces(NamespacePolicies):
    """Namespaces, written ``tenant/namespace``. Each policy is an attribute with ``get``, ``set`` and
    ``remove``::

        admin.namespaces.retention.set("public/default", Retention(minutes=7 * 1440, megabytes=-1))
    """

    def list(self, tenant: str) -> Names:
        """The namespaces of a tenant, as ``tenant/namespace``."""
        found = self._calls.get_any(tuple[str, ...], f"namespaces/{part('tenant', tenant)}")
        return list(found or ())

    def create(
        self, namespace: str, *, bundles: int | None = None, replication_clusters: Iterable[str] = ()
    ) -> None:
        """Make a namespace. Raises `AdminConflict`, and `AdminNotFound` without its tenant."""
        policies: dict[str, Any] = {}
        if bundles is not None:
            policies["bundles"] = {"numBundles": bundles, "boundaries": None}
        if clusters := list(replication_clusters):
            policies["replication_clusters"] = clusters
        self._calls.call("PUT", f"namespaces/{namespace_path(namespace)}", policies or None)

    def delete(self, namespace: str, *, force: bool = False) -> None:
        """``force``: with its topics and their messages."""
        self._calls.call("DELETE", f"namespaces/{namespace_path(namespace)}", query={"force": force})

    def policies(self, namespace: str) -> Mapping[str, Any]:
        """Everything that is set, as Pulsar's own document."""
        found: Mapping[str, Any] = self._calls.get_any(
            Mapping[str, Any], f"namespaces/{namespace_path(namespace)}"
        )
        return found or {}

    def topics(self, namespace: str, *, mode: str = "ALL") -> Names:
        """The topics, single partitions among them. ``mode``: ``PERSISTENT``, ``NON_PERSISTENT``, ``ALL``."""
        check_choice("mode", mode, ("PERSISTENT", "NON_PERSISTENT", "ALL"))
        path = f"namespaces/{namespace_path(namespace)}/topics"
        return list(self._calls.get_any(tuple[str, ...], path, mode=mode) or ())

    def unload(self, namespace: str) -> None:
        """Have every topic closed; clients find them again, where they are loaded next."""
        self._calls.call("PUT", f"namespaces/{namespace_path(namespace)}/unload")

    def clear_backlog(self, namespace: str, *, subscription: str | None = None) -> None:
        """Acknowledge everything in all topics, for one subscription or for all."""
        path = f"namespaces/{namespace_path(namespace)}/clearBacklog"
        if subscription is not None:
            path += f"/{part('subscription', subscription)}"
        self._calls.call("POST", path)

    def permissions(self, namespace: str) -> Mapping[str, tuple[str, ...]]:
        """What each role may do: ``produce``, ``consume``, ``functions``, ..."""
        path = f"namespaces/{namespace_path(namespace)}/permissions"
        return self._calls.get_any(Mapping[str, tuple[str, ...]], path) or {}

    def grant(self, namespace: str, role: str, actions: Iterable[str]) -> None:
        """Let a role do these and nothing else in the namespace."""
        wanted = [check_choice("actions", action, ACTIONS) for action in actions]
        path = f"namespaces/{namespace_path(namespace)}/permissions/{part('role', role)}"
        self._calls.call("POST", path, wanted)

    def revoke(self, namespace: str, role: str) -> None:
        """Take from a role what it was granted in the namespace."""
        path = f"namespaces/{namespace_path(namespace)}/permissions/{part('role', role)}"
        self._calls.call("DELETE", path)

    def subscription_permissions(self, namespace: str) -> Mapping[str, tuple[str, ...]]:
        """The roles that may use each subscription that is kept to some."""
        path = f"namespaces/{namespace_path(namespace)}/permissions/subscription"
        return self._calls.get_any(Mapping[str, tuple[str, ...]], path) or {}

    def grant_subscription(self, namespace: str, subscription: str, roles: Iterable[str]) -> None:
        """Keep a subscription to these roles."""
        path = f"namespaces/{namespace_path(namespace)}/permissions/subscription"
        self._calls.call("POST", f"{path}/{part('subscription', subscription)}", list(roles))

    def revoke_subscription(self, namespace: str, subscription: str, role: str) -> None:
        """Take a role from those that a subscription is kept to."""
        path = f"namespaces/{namespace_path(namespace)}/permissions"
        self._calls.call("DELETE", f"{path}/{part('subscription', subscription)}/{part('role', role)}")
