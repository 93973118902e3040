"""What the data source asks of a Pulsar cluster, and the connections that a Python worker keeps.

Spark reuses Python workers over tasks and queries: clients are cached in the process, one a set of
connection options, and made anew after a fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from geminga.errors import InvalidConfiguration, PulsarException, Timeout, TopicNotFound
from geminga.ids import MessageId, TopicName
from geminga.spark.offsets import Offset, Partition, partition_topic
from geminga.spark.options import ConnectionOptions

if TYPE_CHECKING:
    from geminga.client.admin.sync.admin import Admin
    from geminga.client.authentication import Authentication
    from geminga.client.sync import Client
    from geminga.schema_info import SchemaInfo
    from geminga.spark.admission import EntrySample, MeasuredEntry
    from geminga.spark.counting import CountsTopic
    from geminga.spark.cursor import SubscriptionCursors
    from geminga.wire.metadata import RawEntry

MAIL_MAX = 10_000
"""Posted messages that may wait to be looked at; the broker drops others."""
CLIENTS_MAX = 16
"""Clients that one process keeps; the oldest is closed when another is needed."""


class EntrySource(Protocol):
    """Entries of one partition from a place on, in order; leaves no subscription behind."""

    def read(self, max_entries: int, timeout: float) -> list[RawEntry]:
        """Up to ``max_entries``; waits ``timeout`` seconds for the first one only, then gives none."""

    @property
    def gives_all(self) -> bool:
        """Whether an entry that does not come, with later ones of its ledger there, is lost. Else the broker
        may keep entries to itself that are no messages."""

    def last_message_id(self) -> MessageId:
        """The topic's newest message; its entry id is -1 when there is none."""

    def close(self) -> None: ...


class Watch(Protocol):
    """What the driver asks about partitions, of many at once. See `geminga.spark.watch`."""

    def newest(self, partitions: Iterable[Partition]) -> dict[Partition, MessageId]:
        """The newest message of each; its entry id is -1 where there is none."""

    def first(self, places: Sequence[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        """The first entry at or after each place; None where nothing lies there any more."""

    def look(self, peeks: Sequence[EntrySample]) -> list[tuple[list[MeasuredEntry], bool]]:
        """The entries of each peek, and whether they are all up to its end."""

    def close(self) -> None: ...


class Cluster(Protocol):
    """A cluster as planner and tasks see it."""

    def partitions(self, topics: Sequence[str]) -> list[list[Partition] | TopicNotFound]:
        """Of each topic, or that it does not exist."""

    def topics_matching(self, pattern: str) -> list[str]:
        """Topics, without partition suffixes, whose local name matches; see `matching_topics`."""

    def watch(self, *, name: str, from_first: bool = False, compacted: bool = False) -> Watch:
        """For one query's driver; ``name`` begins the names of its readers. ``from_first``: it will ask for
        the first entries too. ``compacted``: where nothing of a topic is left but what compaction made of it,
        that has its newest message."""

    def cursors(self, subscription: str) -> SubscriptionCursors:
        """For one query's driver: its own durable subscription."""

    def newest_schemas(self, partitions: Sequence[Partition]) -> list[tuple[SchemaInfo, bytes] | None]:
        """Of each partition's topic the newest schema with its version; None where it has none."""

    def schema(self, partition: Partition, version: bytes) -> SchemaInfo | None:
        """A version of its topic's schema; None when there is no such version."""

    def mailbox(self, topic: str) -> CountsTopic:
        """What is posted to ``topic``, which is not persistent, from now on."""

    def post(self, topic: str, message: bytes) -> None:
        """Returns when the broker has it, or raises."""

    def open(
        self,
        partition: Partition,
        start: MessageId,
        stop: Offset,
        *,
        queue_size: int,
        name: str,
        compacted: bool = False,
    ) -> EntrySource:
        """Entries from ``start`` on, the one at ``start`` included; few behind ``stop``, if any.

        ``compacted``: what compaction has left of them; `EntrySource.last_message_id` is then the newest of
        that, where compaction has seen all."""


def matching_topics(pattern: str, topics: list[str]) -> list[str]:
    """The topics, partitions folded into theirs, whose whole local name matches the pattern's."""
    local = re.compile(TopicName.parse(pattern).local)
    bases = {str(TopicName.parse(topic).base) for topic in topics}
    return sorted(
        base
        for base in bases
        if local.fullmatch(TopicName.parse(base).local) and not TopicName.parse(base).local.startswith("__")
    )


class PulsarMailbox:
    """A subscription of its own on a topic that is not persistent; nothing of it stays."""

    def __init__(self, client: Client, topic: str) -> None:
        self._consumer = client.subscribe(topic, "driver", receiver_queue_size=MAIL_MAX)

    def messages(self) -> list[bytes]:
        found = []
        with contextlib.suppress(Timeout):
            while True:
                found.append(self._consumer.receive(timeout_millis=1).data())
        return found

    def close(self) -> None:
        with contextlib.suppress(PulsarException):
            self._consumer.close()


class PulsarCluster:
    """A real cluster, through a `geminga.Client`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def partitions(self, topics: Sequence[str]) -> list[list[Partition] | TopicNotFound]:
        return self.client.runtime.call(self._partitions(topics))

    async def _partitions(self, topics: Sequence[str]) -> list[list[Partition] | TopicNotFound]:
        return list(await asyncio.gather(*(self._of_topic(topic) for topic in topics)))

    async def _of_topic(self, topic: str) -> list[Partition] | TopicNotFound:
        name = TopicName.parse(topic)
        if name.partition >= 0:
            return [(str(name.base), name.partition)]
        try:
            count = await self.client.context.partitions(topic, auto_creation=False)
        except TopicNotFound as error:
            return error
        return [(str(name), index) for index in range(count)] if count else [(str(name), -1)]

    def topics_matching(self, pattern: str) -> list[str]:
        from geminga.wire.proto import pulsar_wire_pb2 as pb

        name = TopicName.parse(pattern)
        mode = pb.CommandGetTopicsOfNamespace.PERSISTENT
        if not name.persistent:
            mode = pb.CommandGetTopicsOfNamespace.NON_PERSISTENT
        answer = self.client.runtime.call(self.client.context.topics_of_namespace(name.namespace_name, mode))
        return matching_topics(pattern, list(answer.topics))

    def watch(self, *, name: str, from_first: bool = False, compacted: bool = False) -> Watch:
        from geminga.spark.watch import PulsarPartitions

        return PulsarPartitions(self.client, name, from_first=from_first, compacted=compacted)

    def cursors(self, subscription: str) -> SubscriptionCursors:
        from geminga.spark.watch import PulsarCursors

        return PulsarCursors(self.client, subscription)

    def mailbox(self, topic: str) -> CountsTopic:
        return PulsarMailbox(self.client, topic)

    def post(self, topic: str, message: bytes) -> None:
        with self.client.create_producer(topic) as producer:
            producer.send(message)

    def newest_schemas(self, partitions: Sequence[Partition]) -> list[tuple[SchemaInfo, bytes] | None]:
        return self.client.runtime.call(self._newest_schemas(partitions))

    async def _newest_schemas(self, partitions: Sequence[Partition]) -> list[tuple[SchemaInfo, bytes] | None]:
        schemas = self.client.context.schemas
        asked = (schemas.newest_with_version(partition_topic(each)) for each in partitions)
        return list(await asyncio.gather(*asked))

    def schema(self, partition: Partition, version: bytes) -> SchemaInfo | None:
        topic, name = partition_topic(partition), version.decode("latin-1")
        schemas = self.client.context.schemas
        return schemas.known(topic, name) or self.client.runtime.call(schemas.get(topic, name))

    def open(
        self,
        partition: Partition,
        start: MessageId,
        stop: Offset,
        *,
        queue_size: int,
        name: str,
        compacted: bool = False,
    ) -> EntrySource:
        from geminga.client.entry_reader import EntryReader

        return EntryReader.open(
            self.client,
            partition_topic(partition),
            start,
            stop_at=MessageId(-1, stop.ledger, stop.entry) if stop.entry >= 0 else None,
            queue_size=queue_size,
            subscription_role_prefix=name,
            compacted=compacted,
        )


def open_client(options: ConnectionOptions) -> Client:
    """A new client for the options."""
    from geminga.client.sync import Client

    return Client(
        options.service_url,
        authentication=_authentication(options),
        operation_timeout_seconds=options.operation_timeout_ms / 1000,
        connection_timeout_ms=options.connection_timeout_ms,
        keep_alive_interval_seconds=options.keep_alive_interval_seconds,
        listener_name=options.listener_name,
        tls_trust_certs_file_path=options.tls_trust_certs_file_path,
        tls_allow_insecure_connection=options.tls_allow_insecure_connection,
        tls_validate_hostname=options.tls_validate_hostname,
        tls_certificate_file_path=options.tls_certificate_file_path,
        tls_private_key_file_path=options.tls_key_file_path,
    )


def open_admin(options: ConnectionOptions, admin_url: str) -> Admin:
    """A new admin for the same options. Raises `InvalidConfiguration` naming what is amiss."""
    from geminga.client.admin.sync.admin import Admin

    return Admin(
        admin_url,
        _authentication(options),
        tls_trust_certs_file_path=options.tls_trust_certs_file_path,
        tls_allow_insecure_connection=options.tls_allow_insecure_connection,
        tls_validate_hostname=options.tls_validate_hostname,
        tls_certificate_file_path=options.tls_certificate_file_path,
        tls_private_key_file_path=options.tls_key_file_path,
    )


def _authentication(options: ConnectionOptions) -> Authentication | None:
    from geminga.client.authentication import Authentication, AuthenticationTLS

    if options.auth_plugin is None:
        return None
    if options.auth_params is not None:
        return Authentication(options.auth_plugin, options.auth_params)
    if options.tls_certificate_file_path is None or options.tls_key_file_path is None:
        raise InvalidConfiguration(
            "option auth.plugin='tls' needs auth.params, or tls.certificateFilePath and tls.keyFilePath"
        )
    return AuthenticationTLS(options.tls_certificate_file_path, options.tls_key_file_path)


_lock = threading.Lock()
_clients: dict[tuple[int, ConnectionOptions], Client] = {}
_kept_loaded_in = 0
"""The process whose collector was told what stays."""


def client_for(options: ConnectionOptions) -> Client:
    """This process's client for the options; connections are shared by all tasks of a worker."""
    place = (os.getpid(), options)
    with _lock:
        client = _clients.pop(place, None)
        if client is None:
            client = open_client(options)
            _keep_loaded()
        _clients[place] = client
        while len(_clients) > CLIENTS_MAX:
            oldest = next(iter(_clients))
            stale = _clients.pop(oldest)
            if oldest[0] == os.getpid():
                stale.close()
        return client


def _keep_loaded() -> None:
    """In a process that Spark made for its tasks or plans, leave what is loaded by now to no collection more.

    Such a process collects garbage after every piece of work, and what it is asked next waits for that. Once
    a process: what becomes garbage later has to be found.
    """
    global _kept_loaded_in
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER" and _kept_loaded_in != os.getpid():
        _kept_loaded_in = os.getpid()
        gc.freeze()


def _pulsar_cluster(options: ConnectionOptions) -> Cluster:
    return PulsarCluster(client_for(options))


connect: Callable[[ConnectionOptions], Cluster] = _pulsar_cluster
"""How readers get their cluster; tests put a scripted one here."""


def discover(
    cluster: Cluster, topics: tuple[str, ...], pattern: str | None, *, missing_is_empty: bool
) -> list[Partition]:
    """Every partition to read, in order. Raises `TopicNotFound` naming the topic and what to do."""
    found: list[Partition] = []
    names = cluster.topics_matching(pattern) if pattern else topics
    for topic, partitions in zip(names, cluster.partitions(names), strict=True):
        if not isinstance(partitions, TopicNotFound):
            found += partitions
        elif not (missing_is_empty or pattern):
            raise TopicNotFound(
                f"topic {topic} does not exist ({partitions}): check its name, publish to it first, or set "
                "waitingForNonExistedTopic=true"
            )
    return found


def closed_quietly(source: EntrySource) -> None:
    """Close a source whose work is done; an error while closing changes nothing about what was read."""
    try:
        source.close()
    except PulsarException:
        return
