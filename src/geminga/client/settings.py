"""What a client can be told, in one frozen object that both shells share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from geminga.config import check_int, check_seconds, check_type, refuse
from geminga.connection.addresses import ServiceUrl
from geminga.connection.authentication import CredentialsProvider, NoAuthentication
from geminga.extras import need

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsSettings:
    """TLS for ``pulsar+ssl``. Verification and the hostname check are on unless switched off here."""

    trust_certificates_path: str | None = None
    allow_insecure_connection: bool = False
    validate_hostname: bool = True
    certificate_path: str | None = None
    private_key_path: str | None = None

    def __post_init__(self) -> None:
        check_type("tls_trust_certs_file_path", self.trust_certificates_path, str, optional=True)
        check_type("tls_allow_insecure_connection", self.allow_insecure_connection, bool)
        check_type("tls_validate_hostname", self.validate_hostname, bool)
        check_type("tls_certificate_file_path", self.certificate_path, str, optional=True)
        check_type("tls_private_key_file_path", self.private_key_path, str, optional=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientSettings:
    """Defaults are those of the official clients (algorithms.md section 8); times are in seconds.

    ``memory_limit_bytes`` bounds the messages that wait in all producers of the client; 0: no limit.
    ``metrics`` is where OpenTelemetry's metrics go (`geminga.client.metrics`): a meter provider, True for the
    global one, False for none; None: the global one if the program has loaded OpenTelemetry by now.
    ``metrics_by_topic`` gives them the topic, and not the namespace alone.
    """

    service_url: str
    credentials: CredentialsProvider = field(default_factory=NoAuthentication)
    operation_timeout_seconds: float = 30.0
    connection_timeout_seconds: float = 10.0
    keepalive_interval_seconds: float = 30.0
    backoff_initial_seconds: float = 0.1
    backoff_max_seconds: float = 60.0
    concurrent_lookup_requests: int = 50_000
    lookup_redirects_max: int = 20
    connections_per_broker: int = 1
    listener_name: str | None = None
    listener_threads: int = 1
    memory_limit_bytes: int = 0
    statistics_interval_seconds: int = 600
    tls: TlsSettings = field(default_factory=TlsSettings)
    metrics: MeterProvider | bool | None = None
    metrics_by_topic: bool = False

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
