"""Queries of a broker and its topics: version, machine, entries, bytes, CPU.

The CPU of a local broker is read from the operating system, that of a remote one from its metrics
(``process_cpu_seconds_total``, which Apache Pulsar exports).
"""

import re
from dataclasses import dataclass, field, replace

from geminga import Admin
from geminga.admin import Persistence, topic_path
from geminga.client.cluster import Cluster
from geminga.errors import ConnectError, NotAllowedError, PulsarException, TopicNotFound
from geminga.ids import TopicName
from geminga.tuning.measuring import host

APACHE = "Apache Pulsar "
"""Prefix of the title of a Java broker."""
_CPU_METRIC = re.compile(r"^process_cpu_seconds_total(?:\{[^}]*\})?\s+([0-9.eE+-]+)", re.M)
_SYNCS_METRIC = re.compile(r"^geminga_store_syncs_total(?:\{[^}]*\})?\s+([0-9.eE+-]+)", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCounts:
    """Counts of messages published to a topic since it was loaded, all partitions together, and the numbers
    of its connected producers and durable subscriptions."""

    messages: int
    entries: int
    bytes_in: int
    bytes_out: int
    by_partition: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Messages and entries by partition."""
    producers: int = 0
    subscriptions: int = 0


def published_counts(admin: Admin, topic: TopicName, partitioned: bool) -> PublishedCounts:
    """Query the counts of a topic so far."""
    path = topic_path(topic)
    if partitioned:
        stats = admin.call("GET", f"{path}/partitioned-stats?perPartition=true")
        rows, inside = (
            stats["partitions"],
            admin.call("GET", f"{path}/partitioned-internalStats")["partitions"],
        )
    else:
        stats = admin.call("GET", f"{path}/stats")
        rows, inside = {str(topic): stats}, {str(topic): admin.call("GET", f"{path}/internalStats")}
    entries = {name: row.get("entriesAddedCounter", 0) for name, row in inside.items()}
    return PublishedCounts(
        messages=stats["msgInCounter"],
        entries=sum(entries.values()),
        bytes_in=stats["bytesInCounter"],
        bytes_out=stats["bytesOutCounter"],
        by_partition={
            max(0, TopicName.parse(name).partition): (row["msgInCounter"], entries.get(name, 0))
            for name, row in rows.items()
        },
        # A producer of a partitioned topic has a producer on each partition, all with one name.
        producers=max((len(row["publishers"]) for row in rows.values()), default=0),
        subscriptions=sum(one.get("durable", True) for one in stats["subscriptions"].values()),
    )


def _title(cluster: Cluster) -> str:
    # Report a wrong address early.
    with cluster.client(operation_timeout_seconds=5) as client:
        client.get_topic_partitions("public/default/geminga-tune")  # any request opens a connection
        said = client.context.pool.connections[0].server_version
    return APACHE + said.removeprefix("Pulsar Server").strip() if said.startswith("Pulsar Server") else said


class BrokerView:
    """View of a cluster through its admin REST and, if it is local, the operating system."""

    def __init__(
        self,
        service_url: str,
        admin_url: str | None,
        server_pids: tuple[int, ...] = (),
        cluster: Cluster | None = None,
    ) -> None:
        """``cluster``: only authentication and TLS are used. ``admin_url`` None: requested from the
        broker."""
        self.service_url = service_url
        found = replace(cluster or Cluster(), service_url=service_url, admin_url=admin_url)
        self.admin_url = found.find_admin_url()
        self.cluster = replace(found, admin_url=self.admin_url)
        self.admin = self.cluster.admin()
        self.title = _title(self.cluster)
        """Name and version of the broker for tables, from its CONNECTED command."""
        self.pids = server_pids or self._local_pids()

    def _local_pids(self) -> tuple[int, ...]:
        """Return the processes of brokers and bookies; empty unless all of them are local."""
        addresses = [host.host_and_port(self.service_url, 6650)]
        for path, key in (("brokers", None), ("bookies/all", "bookies")):
            try:
                answer = self.admin.call("GET", path)
            except PulsarException:
                continue  # no such resource: a standalone broker or Geminga
            names = answer if key is None else [row["bookieId"] for row in (answer or {}).get(key, [])]
            addresses += [host.host_and_port(name, 0) for name in names or []]
        found: list[int] = []
        for name, port in addresses:
            pid = host.listening_pid(port) if host.is_local(name) else None
            if pid is None:
                return ()
            if pid not in found:
                found.append(pid)
        return tuple(found)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all server processes so far.

        Raises `ConnectError` if a local process has ended, `NotAllowedError` if the CPU is unknown.
        """
        if self.pids:
            try:
                return sum(host.cpu_seconds(pid) for pid in self.pids)
            except ProcessLookupError as error:
                raise ConnectError(f"the broker's process {error} has ended") from None
        match = _CPU_METRIC.search(self.admin.brokers.metrics())
        if match is None:
            raise NotAllowedError(
                f"{self.admin_url} is on another machine and its metrics hold no process_cpu_seconds_total: "
                "run this where the broker runs, or name its processes with --server-pid"
            )
        return float(match[1])

    def disk_written_bytes(self) -> int | None:
        """Return the bytes that the server processes have written to disk; None for a remote broker."""
        written = [host.disk_written_bytes(pid) for pid in self.pids]
        known = [count for count in written if count is not None]
        return sum(known) if known and len(known) == len(written) else None

    def disk_syncs(self) -> int | None:
        """Return how often the broker has synced its store; None for Apache Pulsar, which does not say."""
        match = None if self.title.startswith(APACHE) else _SYNCS_METRIC.search(self.admin.brokers.metrics())
        return None if match is None else int(float(match[1]))

    def create_topic(self, topic: TopicName, partitions: int, write_quorum: int = 1) -> None:
        """Create a test topic. More than one copy requires a cluster with topic policies."""
        self.admin.topics.create(topic, partitions=partitions)
        if write_quorum > 1:
            copies = Persistence(ensemble=write_quorum, write_quorum=write_quorum, ack_quorum=write_quorum)
            self.admin.topic_policies.persistence.set(str(topic), copies)

    def delete_topic(self, topic: TopicName) -> None:
        """Delete a topic with its messages; a missing topic is ignored."""
        try:
            self.admin.call("DELETE", f"{topic_path(topic)}/partitions?force=true")
        except TopicNotFound:
            pass

    def counts(self, topic: TopicName, partitions: int) -> PublishedCounts:
        """Return the counts of a topic so far; ``partitions`` is 0 if it is not partitioned."""
        return published_counts(self.admin, topic, partitions > 0)
