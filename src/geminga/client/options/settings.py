"""Client settings, in one frozen object that the synchronous and the asyncio API share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from geminga.client.options.authentication import Authentication
from geminga.config import check_int, check_seconds, check_type, refuse
from geminga.connection.addresses import ServiceUrl
from geminga.connection.authentication import CredentialsProvider, NoAuthentication
from geminga.extras import need

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class TlsSettings:
    """TLS for ``pulsar+ssl``. Verification and the hostname check are on unless switched off here."""

    trust_certificates_path: str | None = None
    """File with the PEM certificates to trust; None: the system's."""
    allow_insecure_connection: bool = False
    """True accepts any certificate: for tests only."""
    validate_hostname: bool = True
    """Whether the certificate must name the requested host."""
    certificate_path: str | None = None
    """This client's certificate in PEM, for mutual TLS."""
    private_key_path: str | None = None
    """File with the private key of that certificate, in PEM."""

    def __post_init__(self) -> None:
        check_type("tls_trust_certs_file_path", self.trust_certificates_path, str, optional=True)
        check_type("tls_allow_insecure_connection", self.allow_insecure_connection, bool)
        check_type("tls_validate_hostname", self.validate_hostname, bool)
        check_type("tls_certificate_file_path", self.certificate_path, str, optional=True)
        check_type("tls_private_key_file_path", self.private_key_path, str, optional=True)


def security_of(
    given: Mapping[str, Any], authentication: Authentication | None, trust_certificates_path: str | None
) -> dict[str, Any]:
    """Return the settings ``credentials`` and ``tls`` for the TLS arguments of a client or an admin. The
    certificate of ``authentication`` replaces that of the arguments."""
    certificate, key = given.get("tls_certificate_file_path"), given.get("tls_private_key_file_path")
    if authentication is not None and authentication.certificate_path is not None:
        certificate, key = authentication.certificate_path, authentication.private_key_path
    tls = TlsSettings(
        trust_certificates_path=trust_certificates_path,
        allow_insecure_connection=given["tls_allow_insecure_connection"],
        validate_hostname=given["tls_validate_hostname"],
        certificate_path=certificate,
        private_key_path=key,
    )
    provider = NoAuthentication() if authentication is None else authentication.provider
    return {"credentials": provider, "tls": tls}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class ClientSettings:
    """Settings of a client; defaults are those of the official clients (algorithms.md section 8), times are
    in seconds."""

    service_url: str
    """``pulsar://host[:port]``, ``pulsar+ssl://…`` for TLS, or ``http(s)://…`` for lookups over REST; several
    hosts, separated by commas, are tried in turn."""
    credentials: CredentialsProvider = field(default_factory=NoAuthentication)
    """Credentials of this client, from the argument ``authentication``."""
    operation_timeout_seconds: float = 30.0
    """Time limit for creating, subscribing, seeking, closing and lookups, retries included."""
    connection_timeout_seconds: float = 10.0
    """Time limit for connecting, TLS and the handshake."""
    keepalive_interval_seconds: float = 30.0
    """Idle time after which a PING is sent; the connection is closed after the same time again without a
    frame."""
    backoff_initial_seconds: float = 0.1
    """Delay before the first reconnect; each further one doubles it, with random jitter."""
    backoff_max_seconds: float = 60.0
    """Longest delay between two reconnects."""
    concurrent_lookup_requests: int = 50_000
    """Lookups that may be pending at once; further ones fail with TooManyLookupRequestException."""
    lookup_redirects_max: int = 20
    """Redirects to another broker that one lookup may follow."""
    connections_per_broker: int = 1
    """Connections to each broker; producers and consumers are spread over them."""
    listener_name: str | None = None
    """Name of the brokers' advertised listener to use; None: the broker's usual address."""
    listener_threads: int = 1
    """Threads that call message listeners; each consumer and reader uses always the same one."""
    memory_limit_bytes: int = 0
    """Limit on the bytes of messages without a receipt, over all producers of the client; 0: no limit."""
    statistics_interval_seconds: int = 600
    """Interval at which statistics are logged; 0: never."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    """TLS settings for ``pulsar+ssl``."""
    metrics: MeterProvider | bool | None = None
    """Receiver of OpenTelemetry metrics (`geminga.client.observe.metrics`): a meter provider, True for the
    global one, False for no metrics; None: the global one if the program has loaded OpenTelemetry."""
    metrics_by_topic: bool = False
    """Whether the metrics carry the topic too, not only the namespace."""

    def __post_init__(self) -> None:
        ServiceUrl.parse(self.service_url)
        check_seconds("operation_timeout_seconds", self.operation_timeout_seconds, 0.001)
        check_seconds("connection_timeout_seconds", self.connection_timeout_seconds, 0.001)
        check_seconds("keepalive_interval_seconds", self.keepalive_interval_seconds, 0.001)
        check_seconds("backoff_initial_seconds", self.backoff_initial_seconds, 0.001)
        check_seconds("backoff_max_seconds", self.backoff_max_seconds, self.backoff_initial_seconds)
        check_int("concurrent_lookup_requests", self.concurrent_lookup_requests, 1)
        check_int("lookup_redirects_max", self.lookup_redirects_max, 0)
        check_int("connections_per_broker", self.connections_per_broker, 1, 1000)
        check_type("listener_name", self.listener_name, str, optional=True)
        check_int("listener_threads", self.listener_threads, 1, 1000)
        check_int("memory_limit_bytes", self.memory_limit_bytes, 0)
        check_int("statistics_interval_seconds", self.statistics_interval_seconds, 0)
        if not isinstance(self.metrics, bool | None) and not hasattr(self.metrics, "get_meter"):
            refuse("metrics", self.metrics, "a MeterProvider of OpenTelemetry, True, False or None")
        if self.metrics is True:
            need("metrics=True", "opentelemetry")
        check_type("metrics_by_topic", self.metrics_by_topic, bool)
