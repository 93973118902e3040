"""Base of `geminga.Client` and `geminga.asyncio.Client`: their arguments, and the cluster that they use.

``tools/signatures.py`` generates the arguments that are options from the settings.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from geminga.client.handles.failover import service_source
from geminga.client.observe.logs import ConsoleLogger, FileLogger, attach
from geminga.client.options import arguments
from geminga.client.options.authentication import Authentication
from geminga.client.options.service import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from geminga.client.options.settings import ClientSettings

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class ClientBase:
    """Base of the clients for threads and for asyncio."""

    def __init__(
        self,
        service_url: str | AutoClusterFailover | ServiceInfoProvider,
        authentication: Authentication | None = None,
        operation_timeout_seconds: float = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        logger: logging.Logger | ConsoleLogger | FileLogger | None = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        *,
        memory_limit_bytes: int = 0,
        connections_per_broker: int = 1,
        keep_alive_interval_seconds: float = 30,
        initial_backoff_interval_ms: int = 100,
        max_backoff_interval_ms: int = 60000,
        metrics: MeterProvider | bool | None = None,
        metrics_by_topic: bool = False,
    ) -> None:
        """Create the client without connecting; an unreachable broker fails the first operation.

        service_url:
            ``pulsar://host[:port]`` or ``pulsar+ssl://host[:port]``; several hosts, separated by commas,
            are tried in turn. With ``http://`` or ``https://`` topics are looked up over the REST API.
            Or an `AutoClusterFailover` or a `ServiceInfoProvider`, which supply each cluster's URL and
            credentials.
        authentication:
            `AuthenticationToken`, `AuthenticationBasic`, `AuthenticationTLS` or `AuthenticationOauth2`.
        operation_timeout_seconds:
            Time limit in seconds for creating, subscribing, seeking, closing and lookups.
        message_listener_threads:
            Number of threads that call message listeners; each consumer and reader uses always the same one.
        tls_trust_certs_file_path:
            File with the PEM certificates to trust; default: the system's.
        tls_allow_insecure_connection:
            True accepts any certificate: for tests only.
        tls_validate_hostname:
            Check the host name in the broker's certificate. True by default, unlike ``pulsar-client``.
        logger:
            Receives the log lines in addition to the standard logger ``geminga``.
        connection_timeout_ms:
            Time limit in milliseconds for connecting and the handshake.
        io_threads, log_conf_file_path, use_tls:
            No effect except a warning: one thread does all I/O, ``logger`` directs the log lines, and the
            service URL turns TLS on.
        memory_limit_bytes:
            Limit in bytes for messages without a receipt, over all producers; 0, the default: no limit.
        metrics:
            OpenTelemetry meter provider that receives the metrics, under the Java client's names; True: the
            global one; False: no metrics. None, the default: the global one if the program has loaded
            OpenTelemetry. ``metrics_by_topic`` adds topic and partition to the namespace attribute.

        Raises `InvalidUrl` and `InvalidConfiguration`.
        """
        given = dict(locals())
        self._source = service_source(service_url, authentication, tls_trust_certs_file_path)
        self._settings: ClientSettings = arguments.client_settings(given, self._source.current)
        self._log_handler = attach(logger)
        self._begin()

    def _begin(self) -> None:
        """Prepare the client, when its settings are known to be valid."""
        raise NotImplementedError

    def get_service_info(self) -> ServiceInfo:
        """Return the cluster that this client connects to now."""
        return self._source.current
