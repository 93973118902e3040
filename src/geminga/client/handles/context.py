"""Client context, shared by the asyncio and the synchronous API: lookups, connections and open handles."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random as random_module
import sys
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from geminga.client.handles.schema_versions import SchemaVersions
from geminga.client.handles.service_lookup import ServiceUnreachable as ServiceUnreachable
from geminga.client.handles.service_lookup import ServiceUnreachableInTime, make_lookup
from geminga.client.io.pool import BrokerConnection, ConnectionPool
from geminga.client.io.runtime import FAREWELL_SECONDS_MAX
from geminga.client.io.tasks import OnceTask, run_task
from geminga.client.observe.outages import OutageLog
from geminga.client.observe.statistics_log import StatisticsLog
from geminga.client.options.settings import ClientSettings
from geminga.connection import commands
from geminga.connection.addresses import ServiceUrl
from geminga.connection.backoff import Backoff
from geminga.connection.lookup import BrokerLocation, partition_names
from geminga.errors import (
    AlreadyClosed,
    ConnectError,
    NotAllowedError,
    PulsarException,
    ServerReportedError,
    Timeout,
    TopicNotFound,
)
from geminga.ids import TopicName
from geminga.producer.pending_limits import ByteBudget
from geminga.wire.proto import pulsar_wire_pb2 as pb

if TYPE_CHECKING:
    from geminga.client.observe.metrics import ClientMetrics

T = TypeVar("T")

LAST_ATTEMPT_SECONDS = 0.5
"""Time limit in seconds of an attempt that begins as the time limit of the whole operation ends."""

MAYBE_PARTITIONED = (NotAllowedError, TopicNotFound)
"""Refusals of a handle that was opened without asking for partitions: ask, and open it again."""

logger = logging.getLogger("geminga")
# No output without a handler of the application, as libraries should.
logger.addHandler(logging.NullHandler())


class Closable(Protocol):
    """A producer, consumer or reader that the client closes when it is closed itself."""

    async def close(self) -> None:
        """Send pending work, notify the broker, and close."""

    def abort(self) -> None:
        """Close at once, notifying only local waiters."""

    def loop_ended(self, reason: AlreadyClosed) -> None:
        """Raise ``reason`` in later calls: the handle was closed with its event loop."""


class ProducerEngine(Protocol):
    """A producer's engine, as the context sees it."""

    def fail_leftovers(self) -> None:
        """Fail the messages that were submitted while the loop ended."""


H = TypeVar("H", bound=Closable)


async def all_or_none(openings: Iterable[Coroutine[Any, Any, H]]) -> list[H]:
    """Open several handles at the same time and return them in order. If one fails, or the call is cancelled,
    the opened ones are closed."""
    tasks = [asyncio.ensure_future(opening) for opening in openings]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.shield(_close_opened(tasks))
        raise


async def _close_opened(tasks: Sequence[asyncio.Task[H]]) -> None:
    opened = await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(close_unasked(each) for each in opened if not isinstance(each, BaseException)))


async def close_unasked(handle: Closable) -> None:
    """Close a handle that has no owner to raise to; failures are logged, as it may have ended with its
    client."""
    try:
        await handle.close()
    except AlreadyClosed:
        pass
    except Exception as error:
        logger.warning("closing a handle failed: %s", error)


def metrics_of(settings: ClientSettings) -> ClientMetrics | None:
    """Return the client's metrics, None if they are off."""
    wanted = settings.metrics
    if wanted is False or (wanted is None and "opentelemetry.metrics" not in sys.modules):
        return None
    from geminga.client.observe.metrics import ClientMetrics

    return ClientMetrics(
        None if wanted is None or wanted is True else wanted,
        by_topic=settings.metrics_by_topic,
        http=ServiceUrl.parse(settings.service_url).http,
    )


class ClientContext:
    """State of a client on one event loop; every method runs on the loop's thread.

    `now` is the loop's monotonic clock in seconds, `now_ms` the wall clock in milliseconds.
    """

    def __init__(
        self,
        settings: ClientSettings,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        random: random_module.Random | None = None,
    ) -> None:
        self.settings = settings
        self.loop = loop or asyncio.get_running_loop()
        self.now: Callable[[], float] = self.loop.time
        self.random = random or random_module.Random()
        self.pool = ConnectionPool(settings, self.loop)
        self.metrics = metrics_of(settings)
        if self.metrics is not None:
            self.metrics.add_pool(self.pool)
        self.closed = False
        self.memory_budget = ByteBudget(settings.memory_limit_bytes)
        """Budget of bytes of messages without a receipt, over all producers."""
        self.publishers: dict[ProducerEngine, None] = {}
        """Engines of the open producers, which share the memory budget."""
        self.handovers: weakref.WeakKeyDictionary[ProducerEngine, None] = weakref.WeakKeyDictionary()
        """All engines that may still receive messages, those of closed producers included."""
        self.schemas = SchemaVersions(self)
        """Cache of the topics' schemas."""
        self.coordinators: dict[int, BrokerConnection] = {}
        """Connections to transaction coordinators, by their numbers; a closed one is replaced."""
        self.coordinator_count = 0
        """Number of transaction coordinators of the cluster; 0: not known yet."""
        self._producer_ids = itertools.count()
        self._consumer_ids = itertools.count()
        self._handles: dict[Closable, None] = {}  # closed in the order of their opening
        self._statistics = StatisticsLog(
            self.loop, settings.statistics_interval_seconds, lambda: list(self._handles)
        )
        self._lookups = asyncio.Semaphore(settings.concurrent_lookup_requests)
        self._places: dict[str, BrokerLocation] = {}
        """Brokers of topics that are being opened, looked up together with the number of partitions."""
        self.service = make_lookup(self.pool, settings, self.random)
        """Lookups of topics."""
        self.outages = OutageLog(self.now)
        self.moves = 0
        """Number of times the client moved to another cluster."""
        self.background: set[asyncio.Task[Any]] = set()
        """Tasks that are cancelled with the client."""
        self._ending = OnceTask(self.loop)
        self._until_end: AsyncGenerator[None, None] | None = None

    def task(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine on the loop as a task."""
        return run_task(self.loop, coroutine, name)

    # --- clocks, ids, handles --------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970, for publish times."""
        return int(time.time() * 1000)

    def new_producer_id(self) -> int:
        return next(self._producer_ids)

    def new_consumer_id(self) -> int:
        return next(self._consumer_ids)

    def backoff(self) -> Backoff:
        """Return a fresh series of reconnect delays."""
        return Backoff(
            self.random.random,
            initial_seconds=self.settings.backoff_initial_seconds,
            maximum_seconds=self.settings.backoff_max_seconds,
        )

    async def opened(self, factory: Callable[..., Awaitable[H]], *arguments: Any) -> H:
        """Await ``factory(context, *arguments)``, which opens a handle, and `register` it."""
        self.check_open()
        handle = await factory(self, *arguments)
        if self.closed or self._ending.begun:
            await close_unasked(handle)
            raise AlreadyClosed("the client is closed")
        self.register(handle)
        return handle

    def discard(self, handle: Closable) -> None:
        """Close a handle whose opener was cancelled."""
        task = self.task(close_unasked(handle))
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    def register(self, handle: Closable) -> None:
        """Add a handle that the client's close will close."""
        self.check_open()
        self._handles[handle] = None
        self._statistics.start()

    def unregister(self, handle: Closable) -> None:
        """Remove a handle that was closed by its user."""
        self._handles.pop(handle, None)

    def check_open(self) -> None:
        """Raise `AlreadyClosed` if the client is closed."""
        if self.closed:
            raise AlreadyClosed("the client is closed")

    # --- finding topics --------------------------------------------------------------------------

    async def service_connection(self) -> BrokerConnection:
        """Return a connection to a host of the service URL: the last one that worked, else the next one that
        does. Raises `ServiceUnreachable` (a `ConnectError`) if no host can be reached, at once the broker's
        refusal of the credentials, and `OperationNotSupported` for an HTTP service URL."""
        self.check_open()
        return await self.service.connection()

    async def lookup(self, topic: str, timeout: float | None = None) -> BrokerLocation:
        """Return the broker that serves ``topic`` (a full name, with its partition suffix).

        Transient refusals are retried until ``timeout`` (default: the operation time-out).
        """
        return await self.retrying(f"lookup of {topic!r}", self._lookup_once, topic, timeout=timeout)

    async def _lookup_once(self, topic: str, remaining: float) -> BrokerLocation:
        self.check_open()
        async with self._lookups:
            return await self._asked("topic", self.service.place(topic, remaining))

    def _asked(self, kind: str, answer: Awaitable[T]) -> Awaitable[T]:
        """Measure the time until an answer about topics, if metrics are on."""
        return answer if self.metrics is None else self.metrics.lookup(kind, answer)

    async def connect(self, location: BrokerLocation) -> BrokerConnection:
        """Return the connection to a broker: direct, or through the service URL's proxy."""
        if not location.through_service_url:
            return await self.pool.get(location.broker)
        return await self.pool.get(self.service.hosts.current, proxy_to_broker=location.broker.host_port)

    async def connection_to(self, topic: str, *, awaits_service: bool = True) -> BrokerConnection:
        """Return the connection on which ``topic`` is served: lookup, then connect, retried until the
        operation time-out."""
        what = f"connecting to the broker of {topic!r}"
        return await self.retrying(what, self.connection_once, topic, awaits_service=awaits_service)

    async def connection_once(self, topic: str, remaining: float) -> BrokerConnection:
        """Look up a topic and connect, once, within ``remaining`` seconds."""
        moves = self.moves
        location = self._places.pop(topic, None) or self.service.only_location()
        location = location or await self._lookup_once(topic, remaining)
        connection = await self.connect(location)
        if self.moves != moves:
            raise ConnectError("the client went to another cluster meanwhile")
        return connection

    async def partitions(
        self, topic: str, *, auto_creation: bool = True, timeout: float | None = None, opening: bool = False
    ) -> int:
        """Return the number of partitions of ``topic``; 0: it is not partitioned, or it is a partition
        itself. ``opening``: look the topic up at the same time, for the handle that is opened next."""
        name = TopicName.parse(topic)

        async def ask(_: str, remaining: float) -> int:
            self.check_open()
            if not opening or self.service.only_location() is not None:
                answer = self.service.partitions(name, auto_creation=auto_creation, remaining=remaining)
                return await self._asked("metadata", answer)
            async with self._lookups:
                both = self.service.partitions_and_place(name, remaining)
                count, place = await self._asked("topic", self._asked("metadata", both))
            if place is not None:
                self._places[name.text] = place
            return count

        return await self.retrying(f"asking for the partitions of '{name}'", ask, "", timeout=timeout)

    def opens_unasked(self, topic: str) -> bool:
        """Return whether to open a handle as if the topic had no partitions: the broker of all topics is
        known, and refuses (`MAYBE_PARTITIONED`) a persistent topic that has some, or will be created with
        some."""
        return self.service.only_location() is not None and TopicName.parse(topic).persistent

    async def partition_topics(self, topic: str) -> list[str]:
        """Return the full names to connect to: the partitions in order, or the topic itself."""
        return partition_names(topic, await self.partitions(topic))

    async def topics_of_namespace(self, namespace: str, mode: int) -> pb.CommandGetTopicsOfNamespaceResponse:
        """Return the topics of ``tenant/namespace``. ``mode``: pb.CommandGetTopicsOfNamespace.PERSISTENT
        ..."""

        async def ask(_: str, remaining: float) -> pb.CommandGetTopicsOfNamespaceResponse:
            self.check_open()
            return await self._asked("list-topics", self.service.topics(namespace, mode, remaining))

        return await self.retrying(f"listing the topics of {namespace!r}", ask, "")

    async def schema(self, topic: str, version: bytes | None = None) -> pb.Schema | None:
        """Return a version of the topic's schema (None: the newest); None if the topic has no such schema."""
        answer = await self.schema_answer(topic, version)
        return None if answer is None else answer.schema

    async def schema_answer(
        self, topic: str, version: bytes | None = None
    ) -> pb.CommandGetSchemaResponse | None:
        """Return a schema with its version, as `schema` does."""
        name = str(TopicName.parse(topic))
        try:
            asked = self.request_on_topic(
                name, lambda request_id: commands.get_schema(name, request_id, version)
            )
            answer = await self._asked("schema", asked)
        except TopicNotFound:
            return None
        return answer.getSchemaResponse

    async def request_on_topic(
        self, topic: str, make_command: Callable[[int], pb.BaseCommand]
    ) -> pb.BaseCommand:
        """Send a command to the broker of ``topic`` and return its answer; transient refusals are retried.

        ``make_command`` gets the request id.
        """

        async def attempt(topic: str, remaining: float) -> pb.BaseCommand:
            deadline = self.now() + remaining
            connection = await self.connection_once(topic, remaining)
            return await connection.request(make_command, max(0.0, deadline - self.now()))

        return await self.retrying(f"a request about {topic!r}", attempt, topic)

    async def retrying(
        self,
        what: str,
        attempt: Callable[[str, float], Awaitable[T]],
        topic: str,
        *,
        timeout: float | None = None,
        awaits_service: bool = True,
    ) -> T:
        """Run ``attempt(topic, seconds left)`` until it succeeds or ``timeout`` (may be infinite) has passed.

        Errors with ``retriable`` are retried after a backoff delay, at the latest once at the time limit, for
        at most `LAST_ATTEMPT_SECONDS`; so is an unreachable service URL
        (`ServiceUnreachableInTime` in the end): the broker may be about to start. The wait is logged. An
        unknown host name or an untrusted certificate is raised at once; so is any unreachable service URL
        without ``awaits_service``. After repeated refusals by the broker, the last one is raised.
        """
        limit = self.settings.operation_timeout_seconds if timeout is None else timeout
        deadline = self.now() + limit
        backoff: Backoff | None = None
        last: PulsarException | None = None
        while True:
            now = self.now()
            remaining = deadline - now if last is None else max(deadline - now, LAST_ATTEMPT_SECONDS)
            try:
                async with asyncio.timeout_at(now + remaining if remaining < float("inf") else None):
                    return await attempt(topic, remaining)
            except PulsarException as error:
                if not error.retriable or (
                    isinstance(error, ServiceUnreachable) and not (awaits_service and error.worth_waiting)
                ):
                    raise
                last = error
            except TimeoutError:
                if isinstance(last, ServerReportedError):
                    # As below: it is chance whether the time ends during an attempt or between two.
                    raise last from None
                raise self._timed_out(what, limit, last) from last
            backoff = backoff or self.backoff()
            delay = min(backoff.next(), deadline - self.now())
            if delay <= 0:
                if isinstance(last, ServiceUnreachableInTime):
                    raise last  # raised by a part of the attempt, which waited as long
                if isinstance(last, (Timeout, ServiceUnreachable)) or last is None:
                    raise self._timed_out(what, limit, last) from last
                raise last
            if isinstance(last, ServiceUnreachable):
                self._log_waiting(what, deadline, last)
            logger.debug("%s failed, again in %.1f s: %s", what, delay, last)
            await asyncio.sleep(delay)
            self.check_open()

    def _log_waiting(self, what: str, deadline: float, last: ServiceUnreachable) -> None:
        """Log once for all callers that wait for the same service URL."""
        hosts = self.service.hosts
        if not hosts.told:
            hosts.told = True
            seconds = "any time" if deadline == float("inf") else f"{deadline - self.now():.0f} s more"
            logger.warning("%s waits %s for a broker: %s", what, seconds, last)

    def _timed_out(self, what: str, limit: float, last: PulsarException | None) -> Timeout:
        last = last or self.service.hosts.last_failure
        if isinstance(last, ServiceUnreachable):
            return ServiceUnreachableInTime(f"{what}: no broker came up within {limit:.3g} s; {last}")
        reason = f"; the last attempt failed with {type(last).__name__}: {last}" if last else ""
        return Timeout(f"{what} did not succeed within {limit:g} s{reason}")

    # --- another cluster -------------------------------------------------------------------------

    def move_to(self, settings: ClientSettings) -> None:
        """Use the cluster of ``settings`` from now on.

        All connections are closed; producers and consumers look their topics up there and continue. Messages
        received before are not acknowledged in the new cluster, where they have other ids.
        """
        self.settings = settings
        self.service = make_lookup(self.pool, settings, self.random)
        self.schemas.forget()
        self._places.clear()
        self.coordinators.clear()
        self.coordinator_count = 0
        self.moves += 1
        self.pool.move_to(settings)

    # --- the end ---------------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Whether handles are open."""
        return bool(self._handles)

    def close_with_loop(self) -> None:
        """Close the context when the loop ends as in ``asyncio.run``: by closing its async generators."""
        self._until_end = self._wait_for_end()
        with contextlib.suppress(StopIteration):
            self._until_end.__anext__().send(None)

    async def _wait_for_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if not self.closed:
                handles = list(self._handles)
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(FAREWELL_SECONDS_MAX):
                        await self.close()
                for handle in handles:
                    handle.loop_ended(
                        AlreadyClosed(
                            "it was opened on an event loop that has ended, and closed with it: open it "
                            "again in each asyncio.run(), or keep one loop (asyncio.Runner)"
                        )
                    )

    async def close(self) -> None:
        """Close all handles (which flush their pending work), then the connections.

        Concurrent calls wait for the same end. A cancelled call completes in the background.
        """
        if not self.closed or self._ending.begun:
            await self._ending.wait(self._close)

    async def _close(self) -> None:
        handles, self._handles = list(self._handles), {}
        try:
            await asyncio.gather(*map(close_unasked, handles), return_exceptions=True)
        finally:
            self._handles |= dict.fromkeys(handles)  # those that were not closed
            if self.loop.is_closed():
                self.closed = True  # an interrupt closed the loop: nothing runs on it any more
            else:
                self.shutdown()

    def shutdown(self) -> None:
        """Close everything at once, without waiting for pending work; waiters are notified."""
        self.closed = True
        self._statistics.stop()
        handles, self._handles = list(self._handles), {}
        for handle in handles:
            try:
                handle.abort()
            except Exception:
                logger.exception("unexpected error while dropping %r", handle)
        for task in self.background:
            task.cancel()
        self.service.close()
        self.pool.close()

    def fail_leftovers(self) -> None:
        """Fail messages that other threads submitted while the loop ended; runs on the loop's thread."""
        for engine in list(self.handovers):
            engine.fail_leftovers()
