"""What the data source asks of a Pulsar cluster, and the connections that a Python worker keeps.

Spark reuses Python workers over tasks and queries: clients are cached in the process, one a set of
connection options, and made anew after a fork.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from geminga.errors import PulsarException, TopicNotFound
from geminga.ids import MessageId, TopicName
from geminga.spark.offsets import Partition, partition_topic
from geminga.spark.options import ConnectionOptions

if TYPE_CHECKING:
    from geminga.client.sync import Client
    from geminga.wire.metadata import RawEntry

CLIENTS_MAX = 16
"""Clients that one process keeps; the oldest is closed when another is needed."""


class EntrySource(Protocol):
    """Entries of one partition from a place on, in order; leaves no subscription behind."""

    def read(self, max_entries: int, timeout: float) -> list[RawEntry]:
        """Up to ``max_entries``; waits ``timeout`` seconds for the first one only, then gives none."""

    def last_message_id(self) -> MessageId:
        """The topic's newest message; its entry id is -1 when there is none."""

    def close(self) -> None: ...


class Cluster(Protocol):
    """A cluster as planner and tasks see it."""

    def partitions(self, topic: str) -> list[Partition]:
        """Raises `TopicNotFound`."""

    def topics_matching(self, pattern: str) -> list[str]:
        """Topics, without partition suffixes, whose local name matches; see `matching_topics`."""

    def open(self, partition: Partition, start: MessageId, *, queue_size: int, name: str) -> EntrySource:
        """Entries from ``start`` on, the one at ``start`` included."""


def matching_topics(pattern: str, topics: list[str]) -> list[str]:
    """The topics, partitions folded into theirs, whose whole local name matches the pattern's."""
    local = re.compile(TopicName.parse(pattern).local)
    bases = {str(TopicName.parse(topic).base) for topic in topics}
    return sorted(
        base
        for base in bases
        if local.fullmatch(TopicName.parse(base).local) and not TopicName.parse(base).local.startswith("__")
    )


class PulsarCluster:
    """A real cluster, through a `geminga.Client`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def partitions(self, topic: str) -> list[Partition]:
        name = TopicName.parse(topic)
        core = self.client.core
        if name.partition >= 0:
            return [(str(name.base), name.partition)]
        count = self.client.runtime.call(core.partitions(topic, auto_creation=False))
        return [(str(name), index) for index in range(count)] if count else [(str(name), -1)]

    def topics_matching(self, pattern: str) -> list[str]:
        from geminga.wire.proto import pulsar_wire_pb2 as pb

        name = TopicName.parse(pattern)
        mode = pb.CommandGetTopicsOfNamespace.PERSISTENT
        if not name.persistent:
            mode = pb.CommandGetTopicsOfNamespace.NON_PERSISTENT
        answer = self.client.runtime.call(self.client.core.topics_of_namespace(name.namespace_name, mode))
        return matching_topics(pattern, list(answer.topics))

    def open(self, partition: Partition, start: MessageId, *, queue_size: int, name: str) -> EntrySource:
        from geminga.client.entry_reader import EntryReader

        return EntryReader.open(
            self.client,
            partition_topic(partition),
            start,
            queue_size=queue_size,
            subscription_role_prefix=name,
        )


def open_client(options: ConnectionOptions) -> Client:
    """A new client for the options."""
    from geminga.client.authentication import AuthenticationToken
    from geminga.client.sync import Client

    return Client(
        options.service_url,
        authentication=AuthenticationToken(options.token) if options.token else None,
        operation_timeout_seconds=options.operation_timeout_ms / 1000,
        tls_trust_certs_file_path=options.tls_trust_certs_file_path,
        tls_allow_insecure_connection=options.tls_allow_insecure_connection,
        tls_validate_hostname=options.tls_validate_hostname,
    )


_lock = threading.Lock()
_clients: dict[tuple[int, ConnectionOptions], Client] = {}


def client_for(options: ConnectionOptions) -> Client:
    """This process's client for the options; connections are shared by all tasks of a worker."""
    place = (os.getpid(), options)
    with _lock:
        client = _clients.pop(place, None)
        if client is None:
            client = open_client(options)
        _clients[place] = client
        while len(_clients) > CLIENTS_MAX:
            oldest = next(iter(_clients))
            stale = _clients.pop(oldest)
            if oldest[0] == os.getpid():
                stale.close()
        return client


def _pulsar_cluster(options: ConnectionOptions) -> Cluster:
    return PulsarCluster(client_for(options))


connect: Callable[[ConnectionOptions], Cluster] = _pulsar_cluster
"""How readers get their cluster; tests put a scripted one here."""


def discover(
    cluster: Cluster, topics: tuple[str, ...], pattern: str | None, *, missing_is_empty: bool
) -> list[Partition]:
    """Every partition to read, in order. Raises `TopicNotFound` naming the topic and what to do."""
    found: list[Partition] = []
    for topic in cluster.topics_matching(pattern) if pattern else topics:
        try:
            found += cluster.partitions(topic)
        except TopicNotFound as error:
            if missing_is_empty or pattern:
                continue
            raise TopicNotFound(
                f"topic {topic} does not exist ({error}): check its name, publish to it first, or set "
                "waitingForNonExistedTopic=true"
            ) from None
    return found


def closed_quietly(source: EntrySource) -> None:
    """Close a source whose work is done; an error while closing changes nothing about what was read."""
    try:
        source.close()
    except PulsarException:
        return
