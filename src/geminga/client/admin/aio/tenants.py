"""Tenants, clusters and brokers."""

from collections.abc import Iterable, Mapping
from typing import Any

from geminga.client.admin.aio.calls import AdminSection
from geminga.client.admin.exchange import part
from geminga.client.admin.types import BrokerInfo, ClusterData, Names, TenantInfo
from geminga.errors import AdminAuthorizationError, AdminNotFound


class Tenants(AdminSection):
    """Tenants, which own namespaces."""

    async def list(self) -> Names:
        """Return the names of all tenants."""
        return list(await self._calls.get_any(tuple[str, ...], "tenants") or ())

    async def get(self, tenant: str) -> TenantInfo:
        """Return a tenant's settings. Raises `AdminNotFound`."""
        return await self._calls.get(TenantInfo, f"tenants/{part('tenant', tenant)}")

    async def create(
        self, tenant: str, *, admin_roles: Iterable[str] = (), allowed_clusters: Iterable[str] | None = None
    ) -> None:
        """Create a tenant; it may use all clusters unless some are named. Raises `AdminConflict`."""
        info = await self._info(admin_roles, allowed_clusters)
        await self._calls.call("PUT", f"tenants/{part('tenant', tenant)}", info)

    async def update(
        self,
        tenant: str,
        *,
        admin_roles: Iterable[str] | None = None,
        allowed_clusters: Iterable[str] | None = None,
    ) -> None:
        """Change the given settings; the others stay."""
        before = await self.get(tenant)
        info = TenantInfo(
            admin_roles=before.admin_roles if admin_roles is None else tuple(admin_roles),
            allowed_clusters=before.allowed_clusters if allowed_clusters is None else tuple(allowed_clusters),
        )
        await self._calls.call("POST", f"tenants/{part('tenant', tenant)}", info)

    async def delete(self, tenant: str, *, force: bool = False) -> None:
        """Delete a tenant; with ``force``, its namespaces, topics and messages too."""
        await self._calls.call("DELETE", f"tenants/{part('tenant', tenant)}", query={"force": force})

    async def _info(self, roles: Iterable[str], clusters: Iterable[str] | None) -> TenantInfo:
        if clusters is None:
            clusters = await self._calls.get_any(tuple[str, ...], "clusters") or ()
        return TenantInfo(admin_roles=tuple(roles), allowed_clusters=tuple(clusters))


class Clusters(AdminSection):
    """Clusters that brokers know."""

    async def list(self) -> Names:
        """Return the names of all clusters."""
        return list(await self._calls.get_any(tuple[str, ...], "clusters") or ())

    async def get(self, cluster: str) -> ClusterData:
        """Return the URLs of a cluster."""
        return await self._calls.get(ClusterData, f"clusters/{part('cluster', cluster)}")


class Brokers(AdminSection):
    """Brokers: their state, settings and metrics."""

    async def list(self, cluster: str | None = None) -> Names:
        """Return the active brokers, as ``host:port``."""
        path = "brokers" if cluster is None else f"brokers/{part('cluster', cluster)}"
        return list(await self._calls.get_any(tuple[str, ...], path) or ())

    async def leader(self) -> BrokerInfo:
        """Return the leader broker."""
        return await self._calls.get(BrokerInfo, "brokers/leaderBroker")

    async def version(self) -> str:
        """Return the version of the broker that answers."""
        return (await self._calls.text("brokers/version")).strip('"')

    async def is_ready(self) -> bool:
        """Return whether the broker that answers reports ``ok``."""
        return await self._calls.text("brokers/ready") == "ok"

    async def check_health(self) -> None:
        """Have the broker publish and read a message. Raises `AdminServerError` if that fails."""
        await self._calls.text("brokers/health")

    async def check_live(self) -> None:
        """Geminga only: raise `AdminUnavailable` if the store has stopped. Needs no permission."""
        await self._calls.text("/livez")

    async def check_ready(self) -> None:
        """Geminga only: raise `AdminUnavailable` with the reason if no messages are accepted, because the
        store has stopped or the disk is full. Needs no permission."""
        await self._calls.text("/readyz")

    async def configuration(self) -> Mapping[str, Any]:
        """Return the settings that the broker runs with, under its own names."""
        found: Mapping[str, Any] = await self._calls.get_any(
            Mapping[str, Any], "brokers/configuration/runtime"
        )
        return found or {}

    async def dynamic_names(self) -> Names:
        """Return the settings that can be changed while the broker runs, by Apache Pulsar's names."""
        return list(await self._calls.get_any(tuple[str, ...], "brokers/configuration") or ())

    async def dynamic_configuration(self) -> Mapping[str, str]:
        """Return the changed settings with their values."""
        return await self._calls.get_any(Mapping[str, str], "brokers/configuration/values") or {}

    async def set_dynamic(self, name: str, value: str) -> None:
        """Change a setting of the running broker permanently. Raises `AdminPreconditionFailed` for a name not
        in `dynamic_names` and for a value that the setting does not accept."""
        path = f"brokers/configuration/{part('name', name)}/{part('value', value)}"
        await self._calls.call("POST", path)

    async def remove_dynamic(self, name: str) -> None:
        """Revert a changed setting. Geminga's broker returns to the value it was started with at once, Apache
        Pulsar's at its next start."""
        await self._calls.call("DELETE", f"brokers/configuration/{part('name', name)}")

    async def metrics(self) -> str:
        """Return the metrics, in Prometheus' text format."""
        return await self._calls.text("/metrics/")

    async def is_geminga(self) -> bool:
        """Return whether the broker is one of Geminga's, which supports further calls."""
        try:
            await self._calls.call("GET", "geminga/damage")
        except AdminNotFound:
            return False
        except AdminAuthorizationError:
            pass
        return True

    async def disk(self) -> Mapping[str, Any]:
        """Geminga only: return the free space on the broker's disk, and the producers that wait for it.
        Raises `AdminNotFound`."""
        found: Mapping[str, Any] = await self._calls.call("GET", "geminga/disk")
        return found
