"""Clusters' URLs and credentials, and failover between clusters, under ``pulsar-client``'s names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from geminga.client.options.authentication import Authentication
from geminga.config import check_int, check_type, refuse
from geminga.connection.addresses import ServiceUrl


@dataclass(frozen=True, eq=False, repr=False)
class ServiceInfo:
    """URL and credentials of one cluster."""

    service_url: str
    """The service URL of the cluster."""
    authentication: Authentication | None = None
    """Credentials of the client there; None: no authentication."""
    tls_trust_certs_file_path: str | None = None
    """File with the PEM certificates to trust there; None: the system's."""

    def __post_init__(self) -> None:
        check_type("authentication", self.authentication, Authentication, optional=True)
        check_type("tls_trust_certs_file_path", self.tls_trust_certs_file_path, str, optional=True)
        object.__setattr__(self, "service_url", ServiceUrl.parse(self.service_url).text)

    @classmethod
    def wrap(cls, service_info: ServiceInfo) -> ServiceInfo:
        """Return ``service_info``: ``pulsar-client`` has two such classes, which this converts."""
        check_type("service_info", service_info, ServiceInfo)
        return service_info

    @property
    def use_tls(self) -> bool:
        """Whether the service URL uses TLS."""
        return ServiceUrl.parse(self.service_url).tls

    def __repr__(self) -> str:
        return (
            f"ServiceInfo(service_url={self.service_url!r}, use_tls={self.use_tls!r}, "
            f"tls_trust_certs_file_path={self.tls_trust_certs_file_path!r})"
        )


class ServiceInfoProvider:
    """Base of providers that name the cluster for a client to use, and later changes of it."""

    def initial_service_info(self) -> ServiceInfo:
        """Return the cluster to connect to at first."""
        raise NotImplementedError

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Store the function, and call it with a `ServiceInfo` whenever clients must change the cluster; from
        any thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the provider's resources; called when the client is closed."""


class AutoClusterFailover:
    """A primary cluster and secondary ones to use, in order, while it is unreachable."""

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: list[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        check_type("primary", primary, ServiceInfo)
        check_type("secondary", secondary, list)
        if not secondary:
            refuse("secondary", secondary, "a list with at least one ServiceInfo")
        for index, info in enumerate(secondary):
            check_type(f"secondary[{index}]", info, ServiceInfo)
        self.primary = primary
        self.secondary = list(secondary)
        self.check_interval_ms = check_int("check_interval_ms", check_interval_ms, 1)
        self.failover_threshold = check_int("failover_threshold", failover_threshold, 1)
        self.switch_back_threshold = check_int("switch_back_threshold", switch_back_threshold, 1)

    def __repr__(self) -> str:
        return f"AutoClusterFailover(primary={self.primary!r}, secondary={self.secondary!r})"
