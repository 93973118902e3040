"""`Cluster`: where a cluster is and how one shows oneself there, as command lines and files name it.

One frozen object instead of a service URL, an admin URL and half a dozen options: it makes clients and
admins, and goes to other processes as JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from geminga.config import check_type, suggestion
from geminga.connection.addresses import ServiceUrl
from geminga.errors import InvalidConfiguration

if TYPE_CHECKING:
    from geminga.client.admin.sync.admin import Admin
    from geminga.client.authentication import Authentication
    from geminga.client.sync import Client

DEFAULT_URL = "pulsar://127.0.0.1:6650"
DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"
USUAL_PORTS = frozenset({6650, 6651})


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Where a cluster is, and how one shows oneself there."""

    service_url: str = DEFAULT_URL
    """``pulsar://`` or ``pulsar+ssl://`` with one or several hosts."""
    admin_url: str = DEFAULT_ADMIN_URL
    """Its web address."""
    auth_plugin: str | None = None
    """As in Pulsar's ``client.conf``: ``token``, ``tls``, ``basic``, ``oauth2``, or the name of a class of
    Java's."""
    auth_params: str | None = field(default=None, repr=False)
    """Its parameters, as ``token:...``, ``file:///path``, ``env:NAME`` or
    ``tlsCertFile:/path,tlsKeyFile:/path``. They do not show in reprs."""
    tls_trust_certs_file_path: str | None = None
    """PEM certificates to trust; None: the system's."""
    tls_allow_insecure_connection: bool = False
    """True trusts any certificate: for tests only."""
    tls_validate_hostname: bool = True
    """Whether the certificate has to name the host."""

    def __post_init__(self) -> None:
        for name in ("service_url", "admin_url"):
            url = check_type(name, getattr(self, name), str)
            if "@" in url.partition("://")[2].partition("/")[0]:
                # Not named: it holds a password, which would be shown wherever the address is.
                raise InvalidConfiguration(
                    f"{name} holds user data; credentials go into auth_plugin and auth_params"
                )
        for name in ("auth_plugin", "auth_params", "tls_trust_certs_file_path"):
            check_type(name, getattr(self, name), str, optional=True)
        for name in ("tls_allow_insecure_connection", "tls_validate_hostname"):
            check_type(name, getattr(self, name), bool)
        if self.auth_plugin is not None:
            from geminga.client.authentication import check_kind

            check_kind("auth_plugin", self.auth_plugin)
        if self.auth_params is not None and self.auth_plugin is None:
            raise InvalidConfiguration("auth_params need auth_plugin: token, tls, basic or oauth2")

    def authentication(self) -> Authentication | None:
        """What clients and admins show; None: nothing. Raises `InvalidConfiguration`."""
        if self.auth_plugin is None:
            return None
        from geminga.client.authentication import Authentication

        return Authentication(self.auth_plugin, self.auth_params or "")

    def _tls(self) -> dict[str, Any]:
        return {
            "tls_trust_certs_file_path": self.tls_trust_certs_file_path,
            "tls_allow_insecure_connection": self.tls_allow_insecure_connection,
            "tls_validate_hostname": self.tls_validate_hostname,
        }

    def client_arguments(self) -> dict[str, Any]:
        """The arguments of `geminga.Client` that say where and how."""
        return {
            "service_url": self.service_url,
            "authentication": self.authentication(),
            **self._tls(),
        }

    def admin_arguments(self) -> dict[str, Any]:
        """The same of `geminga.Admin`."""
        return {"admin_url": self.admin_url, "authentication": self.authentication(), **self._tls()}

    def client(self, **arguments: Any) -> Client:
        """A client; ``arguments`` are more of `geminga.Client`'s."""
        from geminga.client.sync import Client

        return Client(**self.client_arguments(), **arguments)

    def admin(self, **arguments: Any) -> Admin:
        """An admin; ``arguments`` are more of `geminga.Admin`'s."""
        from geminga.client.admin.sync.admin import Admin

        return Admin(**self.admin_arguments(), **arguments)

    def as_dict(self) -> dict[str, Any]:
        """What differs from the defaults, and both URLs, for JSON: **with the secrets**."""
        return {
            one.name: getattr(self, one.name)
            for one in dataclasses.fields(self)
            if getattr(self, one.name) != one.default or one.name.endswith("_url")
        }

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> Cluster:
        """The inverse. Raises `InvalidConfiguration` for names that are none."""
        known = {one.name for one in dataclasses.fields(Cluster)}
        for name in given:
            if name not in known:
                raise InvalidConfiguration(f"a cluster has no {name!r}{suggestion(name, known)}")
        return Cluster(**given)


def admin_url_for(service_url: str) -> str:
    """Where the REST interface of a service URL's hosts usually is: port 8080, or 8443 with TLS.

    Raises `InvalidUrl`.
    """
    url = ServiceUrl.parse(service_url)
    if url.http:
        return service_url
    hosts = (f"[{one.host}]" if ":" in one.host else one.host for one in url.addresses)
    port = 8443 if url.tls else 8080
    return f"{'https' if url.tls else 'http'}://" + ",".join(f"{host}:{port}" for host in hosts)


def usual_admin_url_for(service_url: str) -> str | None:
    """Return `admin_url_for` where all brokers have a usual port, else None: at another port's host the
    REST interface may be another cluster's.

    Raises `InvalidUrl`.
    """
    url = ServiceUrl.parse(service_url)
    is_usual = url.http or all(each.port in USUAL_PORTS for each in url.addresses)
    return admin_url_for(service_url) if is_usual else None
