"""Moving a client to another cluster: failover by probes, or on a provider's update.

Both call `ClientContext.move_to`: connections are closed, and producers and consumers look their topics up in
the new cluster as after a lost connection.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence

from geminga.client.handles.context import ClientContext
from geminga.client.io.pool import ConnectionPool
from geminga.client.options.service import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from geminga.client.options.settings import ClientSettings
from geminga.config import check_type, refuse
from geminga.connection.addresses import Address, ServiceUrl
from geminga.connection.authentication import NoAuthentication
from geminga.errors import PulsarException

logger = logging.getLogger("geminga")

PROBE_SECONDS_MIN = 1.0
"""Minimum time limit of a probe in seconds, if the check interval is shorter."""


def settings_for(settings: ClientSettings, info: ServiceInfo) -> ClientSettings:
    """Return ``settings`` with the address and the credentials of another cluster."""
    authentication = info.authentication
    certificate, key = settings.tls.certificate_path, settings.tls.private_key_path
    if authentication is not None and authentication.certificate_path is not None:
        certificate, key = authentication.certificate_path, authentication.private_key_path
    return dataclasses.replace(
        settings,
        service_url=info.service_url,
        credentials=NoAuthentication() if authentication is None else authentication.provider,
        tls=dataclasses.replace(
            settings.tls,
            trust_certificates_path=info.tls_trust_certs_file_path,
            certificate_path=certificate,
            private_key_path=key,
        ),
    )


CallSoon = Callable[..., object]
"""``call_soon(function, *arguments)`` schedules a function on the loop's thread; any thread may call it."""


class ServiceSource:
    """Source of the cluster that a client uses: here a single service URL that never changes."""

    def __init__(self, info: ServiceInfo) -> None:
        self.current = info

    def start(self, context: ClientContext, call_soon: CallSoon) -> None:
        """Start updating a client context; called again when an asyncio client is used on another loop."""

    def stop(self) -> None:
        """Stop, as the client is closed. May be called more than once."""


class ProvidedService(ServiceSource):
    """A `ServiceInfoProvider` of the application, called on the thread that creates the client."""

    def __init__(self, provider: ServiceInfoProvider) -> None:
        super().__init__(checked_info(provider.initial_service_info()))
        self._provider = provider
        self._targets: list[tuple[ClientContext, CallSoon]] = []
        self._initialized = False
        self._stopped = False

    def start(self, context: ClientContext, call_soon: CallSoon) -> None:
        self._targets = [*(target for target in self._targets if not target[0].closed), (context, call_soon)]
        if not self._initialized:
            self._initialized = True
            self._provider.initialize(self._update)

    def _update(self, info: ServiceInfo) -> None:
        self.current = checked_info(info)
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for context, call_soon in [] if self._stopped else self._targets:
            if here is context.loop:
                self._move(context, info)  # the caller's next messages go to the new cluster
            else:
                with contextlib.suppress(RuntimeError):  # its loop has ended
                    call_soon(self._move, context, info)

    def _move(self, context: ClientContext, info: ServiceInfo) -> None:
        if not context.closed:
            context.move_to(settings_for(context.settings, info))

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        try:
            self._provider.close()
        except Exception:
            logger.exception("closing the service info provider failed")


def checked_info(info: object) -> ServiceInfo:
    """Return ``info`` if it is a `ServiceInfo`. Raises `ValueError` otherwise."""
    if not isinstance(info, ServiceInfo):
        raise ValueError(f"a ServiceInfoProvider must return a ServiceInfo, not {type(info).__name__}")
    return info


PRIMARY = 0


class ClusterChoice:
    """Choice of a cluster: the decisions of `AutoClusterFailover`, without I/O.

    The first cluster is the primary. While it is used, ``failover_threshold`` failed probes in a row switch
    to the first of the others that answers. While another is used, ``switch_back_threshold`` successful
    probes of the primary in a row switch back, and a failing secondary is left in the same way as the
    primary. ``clusters``: their number, including the primary. `current` is the index of the one in use.
    """

    def __init__(self, clusters: int, *, failover_threshold: int, switch_back_threshold: int) -> None:
        self.current = PRIMARY
        self._clusters = clusters
        self._failover_threshold = failover_threshold
        self._switch_back_threshold = switch_back_threshold
        self._failures = 0
        self._returns = 0

    def wanted(self) -> Sequence[int]:
        """Return the clusters to probe now."""
        return (PRIMARY,) if self.current == PRIMARY else (PRIMARY, self.current)

    def probed(self, reachable: Sequence[bool]) -> Sequence[int]:
        """Note the outcomes for `wanted`; return the clusters to move to, best first: use the first reachable
        one. Empty: stay."""
        self._failures = 0 if reachable[-1] else self._failures + 1
        if self.current != PRIMARY:
            self._returns = self._returns + 1 if reachable[0] else 0
            if self._returns >= self._switch_back_threshold:
                return (PRIMARY,)
        if self._failures < self._failover_threshold:
            return ()
        return [index for index in range(self._clusters) if index != self.current]

    def moved(self, index: int) -> None:
        """Use cluster ``index`` from now on."""
        self.current = index
        self._failures = self._returns = 0


class FailoverService(ServiceSource):
    """Prober of the clusters of an `AutoClusterFailover`, on the client's loop."""

    def __init__(self, failover: AutoClusterFailover) -> None:
        self._infos = [failover.primary, *failover.secondary]
        super().__init__(failover.primary)
        self._interval_seconds = failover.check_interval_ms / 1000
        self._choice = ClusterChoice(
            len(self._infos),
            failover_threshold=failover.failover_threshold,
            switch_back_threshold=failover.switch_back_threshold,
        )

    def start(self, context: ClientContext, call_soon: CallSoon) -> None:
        call_soon(self._start, context)

    def _start(self, context: ClientContext) -> None:
        context.background.add(context.task(self._watch(context), "geminga cluster failover"))

    async def _watch(self, context: ClientContext) -> None:
        settings = context.settings
        candidates = [settings_for(settings, info) for info in self._infos]
        while True:
            await asyncio.sleep(self._interval_seconds)
            wanted = self._choice.wanted()
            reachable = await asyncio.gather(*(self._probe(context, candidates[index]) for index in wanted))
            for index in self._choice.probed(reachable):
                if await self._probe(context, candidates[index]):
                    logger.warning(
                        "moving from cluster %s to %s",
                        self.current.service_url,
                        candidates[index].service_url,
                    )
                    self._choice.moved(index)
                    context.move_to(candidates[index])
                    self.current = self._infos[index]
                    break

    async def _probe(self, context: ClientContext, settings: ClientSettings) -> bool:
        """Return whether a host of the cluster accepts a connection now."""
        url = ServiceUrl.parse(settings.service_url)
        limit = min(settings.connection_timeout_seconds, max(PROBE_SECONDS_MIN, self._interval_seconds))
        pool = ConnectionPool(settings, context.loop)
        try:
            for address in url.addresses:
                try:
                    async with asyncio.timeout(limit):
                        await (_connect_http(pool, address) if url.http else pool.get(address, slot=0))
                    return True
                except (PulsarException, OSError) as error:
                    logger.debug("probing %s failed: %s", address, error)
            return False
        finally:
            pool.close()


async def _connect_http(pool: ConnectionPool, address: Address) -> None:
    """Open and close a connection to a REST API."""
    _, writer = await asyncio.open_connection(
        address.host, address.port, ssl=pool.tls_context() if address.tls else None
    )
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def service_source(
    service_url: object, authentication: object, tls_trust_certs_file_path: object
) -> ServiceSource:
    """Return the source of clusters that a client's ``service_url`` argument names. Raises `InvalidUrl`, and
    `InvalidConfiguration` for an argument that is neither a URL nor a source, and for credentials beside a
    source, which supplies them for each cluster."""
    if not isinstance(service_url, (AutoClusterFailover, ServiceInfoProvider)):
        check_type("service_url", service_url, str)
        return ServiceSource(
            ServiceInfo(str(service_url), authentication, tls_trust_certs_file_path)  # type: ignore[arg-type]
        )
    kind = type(service_url).__name__
    for name, value in (
        ("authentication", authentication),
        ("tls_trust_certs_file_path", tls_trust_certs_file_path),
    ):
        if value is not None:
            refuse(name, value, f"None with a {kind}: give it to each ServiceInfo")
    if isinstance(service_url, AutoClusterFailover):
        return FailoverService(service_url)
    return ProvidedService(service_url)
