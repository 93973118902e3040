"""Opening of `geminga.Admin` and `geminga.asyncio.Admin`: their arguments and what both have."""

from geminga.client.admin.aio.calls import AdminCalls
from geminga.client.admin.exchange import AdminSettings, settings_of
from geminga.client.options.authentication import Authentication


class AdminBase:
    """Base class of both admins."""

    def __init__(
        self,
        admin_url: str,
        authentication: Authentication | None = None,
        *,
        operation_timeout_seconds: float = 30,
        connection_timeout_ms: int = 10000,
        retries: int = 2,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
    ) -> None:
        """Create the client without connecting.

        admin_url:
            ``http://host:port`` or ``https://host:port``; several hosts, separated by commas, are tried in
            turn. Redirects to the broker that serves a topic are followed.
        authentication:
            As for `Client`: `AuthenticationToken`, `AuthenticationBasic`, `AuthenticationTLS`,
            `AuthenticationOauth2`.
        operation_timeout_seconds:
            Time limit in seconds for a call, retries included.
        connection_timeout_ms:
            Time limit in milliseconds for connecting.
        retries:
            How often a read is retried after a lost connection, or when the broker is unavailable for now.
            A change is sent once: if its answer is lost, its outcome is unknown.
        tls_trust_certs_file_path:
            File with the PEM certificates to trust; default: the system's.
        tls_allow_insecure_connection:
            True accepts any certificate: for tests only.

        Raises `InvalidUrl` and `InvalidConfiguration`. Calls raise a subclass of `AdminError` for each HTTP
        status (`AdminNotFound`, `AdminConflict`, ...), `ConnectError` and `Timeout`.
        """
        self._calls = self._open(settings_of(dict(locals())))

    def _open(self, settings: AdminSettings) -> AdminCalls:
        """Make the sections, and return the calls that they share."""
        raise NotImplementedError

    @property
    def admin_url(self) -> str:
        """The admin URL, as given."""
        return self._calls.sender.settings.admin_url

    def __repr__(self) -> str:
        package = "geminga.asyncio" if ".aio." in type(self).__module__ else "geminga"
        return f"<{package}.Admin {self.admin_url}{' closed' if self._calls.sender.closed else ''}>"
