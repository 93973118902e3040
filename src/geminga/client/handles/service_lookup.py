"""Lookups of topics: over the binary protocol, or over HTTP.

The scheme of the service URL selects one of them. Both try the URL's hosts in turn and return the same
answers; connections to brokers always use the binary protocol.
"""

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TypeVar

from geminga.client.io.pool import BrokerConnection, ConnectionPool, Unreachable
from geminga.client.io.tasks import seen
from geminga.client.options.settings import ClientSettings
from geminga.connection import commands, http_lookup
from geminga.connection.addresses import Address, ServiceUrl
from geminga.connection.lookup import BrokerLocation, TopicLookup, partition_count
from geminga.errors import (
    AuthenticationError,
    ConnectError,
    OperationNotSupported,
    PulsarException,
    ServiceUnitNotReady,
    Timeout,
)
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

T = TypeVar("T")


class ServiceUnreachable(ConnectError):
    """None of the service URL's hosts could be reached; the message names each with its reason.

    ``worth_waiting``: a broker that starts later would help, unlike with an unknown host name or a
    certificate.
    """

    def __init__(self, *arguments: object, worth_waiting: bool = True) -> None:
        super().__init__(*arguments)
        self.worth_waiting = worth_waiting


class ServiceUnreachableInTime(Timeout, ServiceUnreachable):
    """`ServiceUnreachable` for the whole time limit of an operation; ``Result.Timeout``, as in
    pulsar-client."""


class Hosts:
    """The hosts of a service URL: the last one that worked, then the others in turn."""

    def __init__(self, addresses: tuple[Address, ...], start: int) -> None:
        self._addresses = addresses
        self._index = start
        self.last_failure: PulsarException | None = None
        self.told = False
        """Whether the current outage of all hosts was logged."""

    @property
    def current(self) -> Address:
        return self._addresses[self._index]

    def next(self, failed: Address) -> None:
        """Start with the host after ``failed`` from now on, unless another call has done so."""
        if self.current == failed:
            self._index = (self._index + 1) % len(self._addresses)

    async def first_that(self, attempt: Callable[[Address], Awaitable[T]]) -> T:
        """Return the result of ``attempt`` for the first reachable host. Raises `ServiceUnreachable` if no
        host is reachable, and errors that a broker reported at once."""
        failures: list[ConnectError] = []
        worth_waiting = False
        for _ in self._addresses:
            address = self.current
            try:
                result = await attempt(address)
            except (ConnectError, Timeout) as error:
                if isinstance(error, http_lookup.HttpAnswered):
                    if error.retriable:
                        self.next(address)  # perhaps another host is ready
                    raise
                if isinstance(error, AuthenticationError):
                    raise
                failures.append(ConnectError(str(error)))
                worth_waiting = worth_waiting or not isinstance(error, Unreachable)
                self.last_failure = error
                self.next(address)
            else:
                self.last_failure = None
                self.told = False
                return result
        text = "; ".join(str(failure) for failure in failures)
        raise ServiceUnreachable(text, worth_waiting=worth_waiting) from failures[-1]


class ServiceLookup(ABC):
    """Requests of a client to its cluster. ``remaining``: seconds left for the answer. Raises
    `ServiceUnreachable`, and the errors that a broker or connecting reports."""

    def __init__(self, pool: ConnectionPool, settings: ClientSettings, url: ServiceUrl, start: int) -> None:
        self.hosts = Hosts(url.addresses, start)
        self._pool = pool
        self._settings = settings
        self._url = url

    @abstractmethod
    async def connection(self) -> BrokerConnection:
        """Return a binary connection to a host of the service URL."""

    @abstractmethod
    async def place(self, topic: str, remaining: float) -> BrokerLocation:
        """Return the broker that serves ``topic``, a full name with its partition suffix."""

    @abstractmethod
    async def partitions(self, topic: TopicName, *, auto_creation: bool, remaining: float) -> int:
        """Return the number of partitions of ``topic``; 0: it is not partitioned."""

    async def partitions_and_place(
        self, topic: TopicName, remaining: float
    ) -> tuple[int, BrokerLocation | None]:
        """Return the number of partitions, and the broker of an unpartitioned topic if its lookup, sent at
        the same time, names it at once. The broker may create the topic."""
        return await self.partitions(topic, auto_creation=True, remaining=remaining), None

    def only_location(self) -> BrokerLocation | None:
        """Return the location of all topics, if a connected broker has named it; see `BrokerConnection`."""
        return None

    @abstractmethod
    async def topics(
        self, namespace: str, mode: int, remaining: float
    ) -> pb.CommandGetTopicsOfNamespaceResponse:
        """Return the topics of ``tenant/namespace``."""

    async def ack_holes(self, topic: str, subscription: str) -> int | None:
        """Return the ack holes of a subscription of an unpartitioned topic or a partition; None if unknown
        here: no command of the binary protocol returns them."""
        return None

    def close(self) -> None:  # noqa: B027 - there may be none
        """Close the connections that only lookups use."""


class BinaryLookup(ServiceLookup):
    """Lookups in the binary protocol (framing.md section 4)."""

    async def connection(self) -> BrokerConnection:
        return await self.hosts.first_that(partial(self._pool.get, slot=0))

    def only_location(self) -> BrokerLocation | None:
        connection = self._pool.opened(self.hosts.current)
        return None if connection is None else connection.only_location

    async def place(self, topic: str, remaining: float) -> BrokerLocation:
        deadline = self._pool.loop.time() + remaining
        lookup = TopicLookup(topic, tls=self._url.tls, redirects_max=self._settings.lookup_redirects_max)
        while True:
            question = lookup.question
            if question.address is None:
                connection = await self.connection()
            else:
                connection = await self._pool.get(question.address, slot=0)
            make = partial(self._lookup_command, topic, authoritative=question.authoritative)
            try:
                answer = await connection.request(make, max(0.0, deadline - self._pool.loop.time()))
            except ServiceUnitNotReady:
                self.hosts.next(self.hosts.current)  # perhaps another broker is ready
                raise
            location = _answered(connection, lookup, answer)
            if location is not None:
                return location

    async def partitions(self, topic: TopicName, *, auto_creation: bool, remaining: float) -> int:
        make = partial(commands.partitioned_metadata, str(topic), auto_creation=auto_creation)
        return partition_count(await self._ask(make, remaining))

    async def partitions_and_place(
        self, topic: TopicName, remaining: float
    ) -> tuple[int, BrokerLocation | None]:
        connection, name = await self.connection(), topic.text
        place_id = connection.new_request_id()
        place = connection.ask(self._lookup_command(name, place_id, authoritative=False), place_id, remaining)
        try:
            make = partial(commands.partitioned_metadata, name)
            count = partition_count(await connection.request(make, remaining))
            if count:
                return count, None
            try:
                return 0, _answered(connection, TopicLookup(name, tls=self._url.tls), await place)
            except PulsarException:
                return 0, None  # the next lookup repeats it
        finally:
            connection.abandon(place_id)
            if place.done():
                seen(place)

    def _lookup_command(self, topic: str, request_id: int, *, authoritative: bool) -> pb.BaseCommand:
        return commands.lookup(
            topic, request_id, authoritative=authoritative, listener_name=self._settings.listener_name
        )

    async def topics(
        self, namespace: str, mode: int, remaining: float
    ) -> pb.CommandGetTopicsOfNamespaceResponse:
        answer = await self._ask(
            lambda request_id: commands.topics_of_namespace(namespace, request_id, mode), remaining
        )
        return answer.getTopicsOfNamespaceResponse

    async def _ask(self, make: Callable[[int], pb.BaseCommand], remaining: float) -> pb.BaseCommand:
        deadline = self._pool.loop.time() + remaining
        connection = await self.connection()
        return await connection.request(make, max(0.0, deadline - self._pool.loop.time()))


def _answered(
    connection: BrokerConnection, lookup: TopicLookup, answer: pb.BaseCommand
) -> BrokerLocation | None:
    """Return the location that an answer names, if it does; keep it if it is that of all topics."""
    location = lookup.answered(answer)
    if connection.server_version.startswith("Geminga"):
        connection.only_location = location
    return location


class HttpLookup(ServiceLookup):
    """Lookups over the REST API."""

    def __init__(self, pool: ConnectionPool, settings: ClientSettings, url: ServiceUrl, start: int) -> None:
        from geminga.client.admin.exchange import AdminSettings  # imports that most clients do not need
        from geminga.client.admin.transport import THREADS_MAX, AsyncAdminSender

        super().__init__(pool, settings, url, start)
        self._slots = asyncio.Semaphore(THREADS_MAX)  # a call that waits for a thread has no host yet
        self._sender = AsyncAdminSender(
            AdminSettings(
                admin_url=url.text,
                credentials=settings.credentials,
                operation_timeout_seconds=settings.operation_timeout_seconds,
                connection_timeout_seconds=settings.connection_timeout_seconds,
                tls=settings.tls,
                redirects_max=settings.lookup_redirects_max,
            )
        )

    async def connection(self) -> BrokerConnection:
        """Raise `OperationNotSupported`: the hosts of this service URL speak HTTP."""
        raise OperationNotSupported(f"{self._url.text} is not an address of the binary protocol")

    async def place(self, topic: str, remaining: float) -> BrokerLocation:
        path = http_lookup.place_path(topic, self._settings.listener_name)
        content = await self._ask(path, f"lookup of {topic!r}")
        return http_lookup.place_of(content, topic, tls=self._url.tls)

    async def partitions(self, topic: TopicName, *, auto_creation: bool, remaining: float) -> int:
        path = http_lookup.partitions_path(topic, auto_creation=auto_creation)
        content = await self._ask(path, f"asking for the partitions of '{topic}'")
        return http_lookup.partitions_of(content, str(topic))

    async def topics(
        self, namespace: str, mode: int, remaining: float
    ) -> pb.CommandGetTopicsOfNamespaceResponse:
        path = http_lookup.topics_path(namespace, mode)
        return http_lookup.topics_of(await self._ask(path, f"listing the topics of {namespace!r}"), namespace)

    async def ack_holes(self, topic: str, subscription: str) -> int | None:
        path = http_lookup.stats_path(TopicName.parse(topic))
        return http_lookup.ack_holes_of(await self._ask(path, f"statistics of {topic!r}"), subscription)

    async def _ask(self, path: str, what: str) -> object:
        from geminga.client.admin.exchange import Request, RequestNotSent

        async def attempt(address: Address) -> object:
            try:
                answer = await self._sender.follow(Request("GET", path), None, address)
            except RequestNotSent as error:
                never = isinstance(error.__cause__, (ssl.SSLError, socket.gaierror))
                raise (Unreachable if never else ConnectError)(str(error)) from error
            return http_lookup.content_of(answer.status, answer.body, what)

        async with self._slots:
            return await self.hosts.first_that(attempt)

    def close(self) -> None:
        self._sender.close()


def make_lookup(pool: ConnectionPool, settings: ClientSettings, random: Random) -> ServiceLookup:
    """Return the lookup for the service URL of ``settings``. The first host is chosen at random, so that many
    clients spread over the hosts."""
    url = ServiceUrl.parse(settings.service_url)
    start = random.randrange(len(url.addresses))
    return (HttpLookup if url.http else BinaryLookup)(pool, settings, url, start)
