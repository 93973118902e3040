"""Interface of the data source to a Pulsar cluster, and the clients that a Python worker keeps.

Spark reuses Python workers over tasks and queries: clients are cached in the process, one for each set of
connection options, and recreated after a fork.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from geminga.errors import InvalidConfiguration, PulsarException, TopicNotFound
from geminga.ids import MessageId, TopicName
from geminga.schema_info import SchemaInfo
from geminga.spark.cluster.watch import PulsarCursors, PulsarPartitions, all_at_once
from geminga.spark.offsets import Offset, Partition, partition_topic
from geminga.spark.option_values import matches
from geminga.spark.options import ConnectionOptions
from geminga.wire.metadata import RawEntry

if TYPE_CHECKING:
    from geminga.client.admin.sync import Admin
    from geminga.client.api.sync import Client
    from geminga.client.options.authentication import Authentication

CLIENTS_MAX = 16
"""Maximum clients of one process; the oldest is closed when another is needed."""


class EntrySource(Protocol):
    """Entries of one partition from an offset on, in order; leaves no subscription behind."""

    def read(self, max_entries: int, timeout: float) -> list[RawEntry]:
        """Return up to ``max_entries``; wait ``timeout`` seconds for the first one, if needed."""

    @property
    def gives_all(self) -> bool:
        """Whether readers receive every stored entry: one that is missing before a later entry of its ledger
        is lost. If False, the broker may leave out entries that are no messages."""

    def last_message_id(self) -> MessageId:
        """Return the id of the topic's newest message; its entry id is -1 in an empty topic."""

    def close(self) -> None: ...


def matching_topics(pattern: str, topics: list[str]) -> list[str]:
    """Return the topics, without partition suffixes, whose whole local name matches the pattern's."""
    bases = {TopicName.parse(topic).base for topic in topics}
    return sorted(
        str(base) for base in bases if matches(pattern, str(base)) and not base.local.startswith("__")
    )


class Cluster:
    """A cluster as planner and tasks use it, through a `geminga.Client`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def reach(self, topic: str) -> None:
        """Connect as a query starts. Raises `ServiceUnreachable` after a third of the operation time-out."""
        from geminga.client.handles.service_lookup import ServiceUnreachable

        context = self.client.context
        limit = context.settings.operation_timeout_seconds / 3
        try:
            self.client.runtime.call(context.partitions(topic, auto_creation=False, timeout=limit))
        except ServiceUnreachable as error:
            error.add_note("a query that starts waits for a third of the option operationTimeoutMs")
            raise
        except PulsarException:
            return  # the query's own requests raise it

    def partitions(self, topics: Sequence[str]) -> list[list[Partition] | TopicNotFound]:
        """Return the partitions of each topic, or `TopicNotFound`."""
        return all_at_once(self.client, self._of_topic, topics)

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
        """Return the topics, without partition suffixes, whose local name matches; see `matching_topics`."""
        from geminga.wire.proto import pulsar_wire_pb2 as pb

        name = TopicName.parse(pattern)
        mode = pb.CommandGetTopicsOfNamespace.PERSISTENT
        if not name.persistent:
            mode = pb.CommandGetTopicsOfNamespace.NON_PERSISTENT
        answer = self.client.runtime.call(self.client.context.topics_of_namespace(name.namespace_name, mode))
        return matching_topics(pattern, list(answer.topics))

    def watch(self, *, name: str, from_first: bool = False, compacted: bool = False) -> PulsarPartitions:
        """Open the queries of one query's driver; ``name`` begins the names of its readers. ``from_first``:
        it will query the first entries too. ``compacted``: a topic whose own ledgers are empty has the newest
        message that compaction kept."""
        return PulsarPartitions(self.client, name, from_first=from_first, compacted=compacted)

    def cursors(self, subscription: str) -> PulsarCursors:
        """Open one query's own durable subscription, for its driver."""
        return PulsarCursors(self.client, subscription)

    def newest_schemas(self, partitions: Sequence[Partition]) -> list[tuple[SchemaInfo, bytes] | None]:
        """Return the newest schema of each partition's topic with its version; None if it has no schema."""
        schemas = self.client.context.schemas
        return all_at_once(
            self.client, lambda each: schemas.newest_with_version(partition_topic(each)), partitions
        )

    def schema(self, partition: Partition, version: bytes) -> SchemaInfo | None:
        """Return a version of its topic's schema; None when there is no such version."""
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
        """Read entries from ``start`` on, including the one at ``start``; few after ``stop``, if any.

        ``compacted``: read the compacted topic; `EntrySource.last_message_id` is then its newest message,
        once compaction has seen all messages.
        """
        from geminga.client.api.entry_reader import EntryReader

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
    """Return a new client for the options."""
    from geminga.client.api.sync import Client

    return Client(
        options.service_url,
        operation_timeout_seconds=options.operation_timeout_ms / 1000,
        connection_timeout_ms=options.connection_timeout_ms,
        keep_alive_interval_seconds=options.keep_alive_interval_seconds,
        listener_name=options.listener_name,
        **_access(options),
    )


def open_admin(options: ConnectionOptions, admin_url: str) -> Admin:
    """Return a new admin client. Raises `InvalidConfiguration` naming the faulty option."""
    from geminga.client.admin.sync import Admin

    return Admin(admin_url, **_access(options))


def _access(options: ConnectionOptions) -> dict[str, Any]:
    """Return the arguments of clients and admins for credentials and TLS."""
    return {
        "authentication": _authentication(options),
        "tls_trust_certs_file_path": options.tls_trust_certs_file_path,
        "tls_allow_insecure_connection": options.tls_allow_insecure_connection,
        "tls_validate_hostname": options.tls_validate_hostname,
        "tls_certificate_file_path": options.tls_certificate_file_path,
        "tls_private_key_file_path": options.tls_key_file_path,
    }


def _authentication(options: ConnectionOptions) -> Authentication | None:
    from geminga.client.options.authentication import Authentication, AuthenticationTLS

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
"""Process in which `gc.freeze` was called."""


def client_for(options: ConnectionOptions) -> Client:
    """Return this process's client for the options; all tasks of a worker share its connections."""
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
    """Exempt all loaded objects from garbage collection, in a process that Spark made for tasks or plans.

    Such a process collects garbage after every task or plan, and the next one waits for that. Once a process:
    later garbage must be found.
    """
    global _kept_loaded_in
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER" and _kept_loaded_in != os.getpid():
        _kept_loaded_in = os.getpid()
        gc.freeze()


connect: Callable[[ConnectionOptions], Cluster] = lambda options: Cluster(client_for(options))  # noqa: E731
"""Factory of the readers' cluster; tests replace it with a scripted one."""


def discover(
    cluster: Cluster, topics: tuple[str, ...], pattern: str | None, *, missing_is_empty: bool
) -> list[Partition]:
    """Return every partition to read, in order. Raises `TopicNotFound` naming the topic and what to do."""
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
    """Close a source that is no longer needed; log errors, since everything was read."""
    try:
        source.close()
    except PulsarException:
        return
