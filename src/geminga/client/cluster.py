"""`Cluster`: addresses and credentials of a cluster, as command lines and files give them.

One frozen object replaces a service URL, an admin URL and half a dozen options: it creates clients and
admins, and is passed to other processes as JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from geminga.config import check_type, suggestion
from geminga.connection.addresses import HTTP_SCHEMES
from geminga.errors import InvalidConfiguration

if TYPE_CHECKING:
    from geminga.client.admin.sync import Admin
    from geminga.client.api.sync import Client
    from geminga.client.options.authentication import Authentication

DEFAULT_URL = "pulsar://127.0.0.1:6650"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Addresses and credentials of a cluster."""

    service_url: str = ""
    """``pulsar://`` or ``pulsar+ssl://`` with one or several hosts. Default: ``admin_url``, which serves
    lookups too; without that ``pulsar://127.0.0.1:6650``."""
    admin_url: str | None = None
    """Web address of the cluster. None: `find_admin_url` asks the broker at ``service_url``."""
    auth_plugin: str | None = None
    """As in Pulsar's ``client.conf``: ``token``, ``tls``, ``basic``, ``oauth2``, or the name of a Java
    class."""
    auth_params: str | None = field(default=None, repr=False)
    """Parameters of the plug-in, such as ``token:...``, ``file:///path``, ``env:NAME`` or
    ``tlsCertFile:/path,tlsKeyFile:/path``. Hidden in reprs."""
    tls_trust_certs_file_path: str | None = None
    """File with the PEM certificates to trust; None: the system's."""
    tls_allow_insecure_connection: bool = False
    """True accepts any certificate: for tests only."""
    tls_validate_hostname: bool = True
    """Whether the certificate must name the host."""

    def __post_init__(self) -> None:
        for name in ("service_url", "admin_url"):
            url = check_type(name, getattr(self, name), str, optional=name == "admin_url") or ""
            if "@" in url.partition("://")[2].partition("/")[0]:
                # The URL is not shown: it holds a password.
                raise InvalidConfiguration(
                    f"{name} holds user data; credentials go into auth_plugin and auth_params"
                )
        for name in ("auth_plugin", "auth_params", "tls_trust_certs_file_path"):
            check_type(name, getattr(self, name), str, optional=True)
        for name in ("tls_allow_insecure_connection", "tls_validate_hostname"):
            check_type(name, getattr(self, name), bool)
        if self.auth_plugin is not None:
            from geminga.client.options.authentication import check_kind

            check_kind("auth_plugin", self.auth_plugin)
        if self.auth_params is not None and self.auth_plugin is None:
            raise InvalidConfiguration("auth_params need auth_plugin: token, tls, basic or oauth2")

        if not self.service_url:
            object.__setattr__(self, "service_url", self.admin_url or DEFAULT_URL)
        if self.admin_url is None and self.service_url.partition(":")[0].lower() in HTTP_SCHEMES:
            object.__setattr__(self, "admin_url", self.service_url)

    def authentication(self) -> Authentication | None:
        """Return the credentials of clients and admins; None without any. Raises `InvalidConfiguration`."""
        if self.auth_plugin is None:
            return None
        from geminga.client.options.authentication import Authentication

        return Authentication(self.auth_plugin, self.auth_params or "")

    def _tls(self) -> dict[str, Any]:
        return {
            "tls_trust_certs_file_path": self.tls_trust_certs_file_path,
            "tls_allow_insecure_connection": self.tls_allow_insecure_connection,
            "tls_validate_hostname": self.tls_validate_hostname,
        }

    def client_arguments(self) -> dict[str, Any]:
        """Return the `geminga.Client` arguments for addresses, credentials and TLS."""
        return {"service_url": self.service_url, "authentication": self.authentication(), **self._tls()}

    def admin_arguments(self) -> dict[str, Any]:
        """Return the `geminga.Admin` arguments for address, credentials and TLS. Raises the errors of
        `find_admin_url`."""
        return {"admin_url": self.find_admin_url(), "authentication": self.authentication(), **self._tls()}

    def client(self, **arguments: Any) -> Client:
        """Create a client; ``arguments`` are further arguments of `geminga.Client`."""
        from geminga.client.api.sync import Client

        return Client(**self.client_arguments(), **arguments)

    def admin(self, **arguments: Any) -> Admin:
        """Create an admin; ``arguments`` are further arguments of `geminga.Admin`. Raises the errors of
        `find_admin_url`."""
        from geminga.client.admin.sync import Admin

        return Admin(**self.admin_arguments(), **arguments)

    def find_admin_url(self) -> str:
        """Return `admin_url`; if that is None, the web address that the broker at ``service_url`` confirms.
        Raises `InvalidConfiguration` if no address is confirmed as that broker's, and `ConnectError` if it
        does not answer within 10 s."""
        if self.admin_url is not None:
            return self.admin_url
        from geminga.client.handles.web_address import find_admin_url

        with self.client(operation_timeout_seconds=10) as client:
            return client.runtime.call(find_admin_url(client.context), 10)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, for JSON: **with the secrets**."""
        return {
            one.name: getattr(self, one.name)
            for one in dataclasses.fields(self)
            if getattr(self, one.name) != one.default
        }

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> Cluster:
        """Create a profile from `as_dict`'s result. Raises `InvalidConfiguration` for unknown names."""
        known = {one.name for one in dataclasses.fields(Cluster)}
        for name in given:
            if name not in known:
                raise InvalidConfiguration(f"a cluster has no {name!r}{suggestion(name, known)}")
        return Cluster(**given)
