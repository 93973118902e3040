"""Metrics in Prometheus' text format, under the names that Apache Pulsar's dashboards use.

Figures come from the topics' stats, the store's counters and the process. Topics in memory have all series of
a topic; of the others there are the backlogs alone, kept by `geminga.broker.topics.resting`.
"""

import contextlib
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from geminga._version import __version__
from geminga.broker.admin.metric_table import ACKS, METRICS, WRITES, MetricScope, sources
from geminga.broker.runtime.cooperative import Steps
from geminga.broker.topics.resting import Figures, RestingTopics, Traffic, traffic_of
from geminga.broker.topics.topic import Topic
from geminga.ids import TopicName
from geminga.ledger.api import StoreStats, TierStats
from geminga.ledger.damage import Damage, DamageLoss

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


def escape(value: str) -> str:
    """Escape a label's value for the text format."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """Format a sample's value; whole numbers without a fraction."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value)) if value != int(value) or abs(value) > 1e15 else f"{int(value)}.0"


class Exposition:
    """Collector of samples that writes each metric as one block, as the format requires.

    A sample is a value and a text of labels that all samples of a topic share; lines are formatted while they
    are written, so very many topics take little memory.
    """

    def __init__(self, common: Labels = ()) -> None:
        self._common = common
        self._samples: defaultdict[str, tuple[list[str], list[float]]] = defaultdict(lambda: ([], []))
        self._sums: defaultdict[tuple[str, str], float] = defaultdict(float)

    def labels(self, labels: Labels = ()) -> str:
        """Return the text of labels for `add`, made once for many samples."""
        text = ",".join(f'{key}="{escape(item)}"' for key, item in (*self._common, *labels))
        return f"{{{text}}}" if text else ""

    def add(self, name: str, value: float, labels: Labels | str = ()) -> None:
        """Add a sample of a metric of `METRICS`."""
        texts, values = self._samples[name]
        texts.append(labels if isinstance(labels, str) else self.labels(labels))
        values.append(value)

    def add_to(self, name: str, value: float, labels: str) -> None:
        """Add to the sample of a metric with these labels, of those that `SUMMED` lists."""
        if name in SUMMED:
            self._sums[name, labels] += value

    def lines(self) -> Iterator[str]:
        """Yield the lines with their line ends."""
        for (name, text), value in self._sums.items():
            self.add(name, value, text)
        self._sums.clear()
        for name, (texts, values) in self._samples.items():
            metric = METRICS.get(name)
            if metric is not None:  # tests check that it is there; a scrape does not fail
                yield f"# HELP {name} {metric.text}\n# TYPE {name} {metric.kind}\n"
            for text, value in zip(texts, values, strict=True):
                yield f"{name}{text} {number(value)}\n"

    def text(self) -> str:
        return "".join(self.lines())


_TOPIC: Final = sources(MetricScope.TOPIC)
_COMPACTION: Final = sources(MetricScope.TOPIC, "compaction.")
_SUBSCRIPTION: Final = sources(MetricScope.SUBSCRIPTION)
_OFFLOAD: Final = sources(MetricScope.OFFLOAD)
_STORE: Final = sources(MetricScope.STORE, "store.")
_DISK: Final = sources(MetricScope.STORE, "disk.")
SUMMED: Final = frozenset((
    "pulsar_producers_count", "pulsar_consumers_count", "pulsar_rate_in", "pulsar_rate_out",
    "pulsar_throughput_in", "pulsar_throughput_out", "pulsar_storage_backlog_size",
    "pulsar_storage_offloaded_size", "pulsar_subscription_delayed", "pulsar_subscription_unacked_messages",
    *WRITES, *ACKS,
))  # fmt: skip
"""Metrics of topics and subscriptions that namespaces have as sums if topics are left out, beside those of
`_FIGURES` and `_TRAFFIC`, which topics that are not in memory have, too."""
_FIGURES: Final = {
    "pulsar_subscriptions_count": "subscriptions", "pulsar_msg_backlog": "backlog",
    "pulsar_subscription_back_log": "backlog", "pulsar_storage_size": "size_bytes",
    "pulsar_storage_logical_size": "size_bytes",
}  # fmt: skip
_TRAFFIC: Final = (
    "pulsar_in_messages_total", "pulsar_in_bytes_total", "pulsar_out_messages_total",
    "pulsar_out_bytes_total",
)  # fmt: skip
_BROKER_SUMS: Final = sources(MetricScope.BROKER)


class TopicMetrics:
    """Metrics of topics, then the sums of namespaces and of the broker, topics not in memory included."""

    def __init__(self, out: Exposition, *, by_topic: bool = True) -> None:
        """``by_topic``: one series per topic and subscription; else sums of namespaces alone."""
        self._out = out
        self._by_topic = by_topic
        self._sums: dict[str, float] = dict.fromkeys((key for _, key in _BROKER_SUMS), 0.0)
        self._counts = {"producers": 0, "consumers": 0}
        self._listed: dict[str, tuple[str, Figures]] = {}
        self._traffic: dict[str, tuple[Topic, Traffic]] = {}
        """Topic and its counters, by name; without ``by_topic``."""

    def __contains__(self, topic: TopicName) -> bool:
        return str(topic) in self._listed

    def add(
        self,
        topic: TopicName,
        found: Mapping[str, Any],
        histograms: Iterable[tuple[str, float]] = (),
        loaded: Topic | None = None,
    ) -> Steps[None]:
        """Add the stats of a ``loaded`` topic, and its histograms."""
        named: Labels = (("namespace", topic.namespace_name),)
        labels = self._out.labels((*named, ("topic", str(topic))) if self._by_topic else named)
        for name, value in histograms:
            (self._out.add if self._by_topic else self._out.add_to)(name, value, labels)
        for key in self._sums:
            self._sums[key] += found.get(key, 0)
        figures = yield from _add_topic(self._out, topic, found, self._counts, self._by_topic)
        self._listed[str(topic)] = topic.namespace_name, figures
        if loaded is not None and not self._by_topic:
            self._traffic[str(topic)] = loaded, traffic_of(loaded)

    def finish(
        self, topics: Mapping[str, int], resting: RestingTopics, in_memory: Callable[[str], object]
    ) -> None:
        """Add the sums. ``topics`` are topic counts by namespace, topics that are not in memory included;
        ``in_memory`` returns a loaded topic, or None.

        A topic that was listed and has left memory since is among those of ``resting``.
        """
        out, counts = self._out, self._counts
        parts = defaultdict(list, {namespace: [each] for namespace, each in resting.sums.items()})
        for text, (namespace, figures) in self._listed.items():
            if in_memory(text) is not None:
                parts[namespace].append(figures)
        # One step: columns of many topics are summed at once.
        sums = {namespace: Figures(*map(sum, zip(*each, strict=True))) for namespace, each in parts.items()}
        traffic = defaultdict(list, {namespace: [each] for namespace, each in resting.traffic.items()})
        for text, (loaded, counters) in self._traffic.items():
            if in_memory(text) is loaded:
                traffic[loaded.name.namespace_name].append(counters)
        for namespace, count in topics.items():
            labels, figures = out.labels((("namespace", namespace),)), sums.get(namespace, Figures())
            out.add("pulsar_topics_count", count, labels)
            out.add("geminga_namespace_msg_backlog", figures.backlog, labels)
            if not self._by_topic:
                for name, key in _FIGURES.items():
                    out.add(name, getattr(figures, key), labels)
                for name, *values in zip(_TRAFFIC, *traffic[namespace], strict=True):
                    out.add(name, sum(values), labels)
        for text, backlogs in resting.listed.items():
            if text not in self._listed and self._by_topic:
                _add_resting(out, TopicName.parse(text), backlogs)
        total = reduce(Figures.plus, sums.values(), Figures())
        out.add("pulsar_broker_topics_count", sum(topics.values()))
        out.add("pulsar_broker_subscriptions_count", total.subscriptions)
        out.add("pulsar_broker_producers_count", counts["producers"])
        out.add("pulsar_broker_consumers_count", counts["consumers"])
        out.add("pulsar_broker_msg_backlog", total.backlog)
        out.add("pulsar_broker_storage_size", total.size_bytes)
        out.add("pulsar_broker_storage_logical_size", total.size_bytes)
        out.add("geminga_backlogs_complete", resting.is_complete)
        out.add("geminga_subscriptions_not_listed", resting.not_listed)
        for metric, key in _BROKER_SUMS:
            out.add(metric, self._sums[key])


def _add_resting(out: Exposition, topic: TopicName, backlogs: Mapping[str, int]) -> None:
    """Add the backlogs of a topic that is not in memory, and of its subscriptions."""
    named: Labels = (("namespace", topic.namespace_name), ("topic", str(topic)))
    out.add("pulsar_msg_backlog", sum(backlogs.values()), named)
    for name, backlog in backlogs.items():
        inner = out.labels((*named, ("subscription", name)))
        out.add("pulsar_subscription_back_log", backlog, inner)
        out.add("pulsar_subscription_consumers_count", 0, inner)


def _add_topic(
    out: Exposition, topic: TopicName, found: Mapping[str, Any], counts: dict[str, int], by_topic: bool
) -> Steps[Figures]:
    add = out.add if by_topic else out.add_to
    named: Labels = (("namespace", topic.namespace_name), *((("topic", str(topic)),) if by_topic else ()))
    labels = out.labels(named)
    subscriptions: Mapping[str, Mapping[str, Any]] = found.get("subscriptions", {})
    consumers = sum(len(s.get("consumers", ())) for s in subscriptions.values())
    publishers = len(found.get("publishers", ()))
    reading = {name: each for name, each in subscriptions.items() if not _reads_metadata(each)}
    backlog = sum(s.get("msgBacklog", 0) for s in reading.values())
    counts["producers"] += publishers
    counts["consumers"] += consumers
    add("pulsar_subscriptions_count", len(subscriptions), labels)
    add("pulsar_producers_count", publishers, labels)
    add("pulsar_consumers_count", consumers, labels)
    add("pulsar_msg_backlog", backlog, labels)
    for metric, key in _TOPIC:
        if key in found:
            add(metric, found[key], labels)
    compaction: Mapping[str, float] = found.get("compaction", {})
    for metric, key in _COMPACTION:
        if key in compaction and "succeeded" in compaction:
            add(metric, compaction[key], labels)
    for name, subscription in reading.items():
        inner = out.labels((*named, ("subscription", name))) if by_topic else labels
        add("pulsar_subscription_consumers_count", len(subscription.get("consumers", ())), inner)
        for metric, key in _SUBSCRIPTION:
            if key in subscription:
                add(metric, subscription[key], inner)
        yield
    return Figures(len(subscriptions), backlog, found.get("storageSize", 0))


def _reads_metadata(subscription: Mapping[str, Any]) -> bool:
    """Return whether a reader has never asked for messages, such as one that Spark's driver opens to learn
    the last message id: its backlog is no work that waits."""
    return not subscription.get("isDurable", True) and not subscription.get("lastConsumedFlowTimestamp", 0)


def add_tier(out: Exposition, stats: TierStats) -> None:
    """Add the counters of offload storage since the store was opened."""
    for metric, name in _OFFLOAD:
        out.add(metric, getattr(stats, name))


def add_store(out: Exposition, stats: StoreStats, *, healthy: bool) -> None:
    """Add the store's counters since it was opened."""
    out.add("geminga_store_healthy", healthy)
    out.add("pulsar_health", healthy)
    for metric, name in _STORE:
        out.add(metric, getattr(stats, name))


def add_disk(out: Exposition, found: Mapping[str, Any]) -> None:
    """Add the space on the disk and the limits in force; nothing without a disk."""
    if not found:
        return
    for metric, key in _DISK:
        out.add(metric, found[key])
    left = found["secondsToLowWater"]
    out.add("geminga_disk_seconds_to_low_water", float("inf") if left is None else left)
    out.add("geminga_publishing_refused", found["publishingRefused"] is not None)


def add_damage(out: Exposition, damage: Sequence[Damage]) -> None:
    """Add the damaged resources that are not settled, by kind of loss."""
    counts = Counter(each.lost for each in damage)
    for lost in DamageLoss:
        out.add("geminga_store_damaged_things", counts[lost], (("lost", str(lost)),))


def add_failures(out: Exposition, failures: Mapping[str, int]) -> None:
    """Add the numbers of isolated exceptions, by the kind of callback that raised them."""
    for kind, count in failures.items():
        out.add("geminga_callback_failures_total", count, (("kind", kind),))


def add_transactions(out: Exposition, counts: Mapping[str, int]) -> None:
    """Add the counts of the only coordinator of transactions, by the last part of the metrics' names."""
    for name, count in counts.items():
        out.add(f"pulsar_txn_{name}", count, (("coordinator_id", "0"),))


def add_process(
    out: Exposition,
    *,
    started_at_ms: int,
    connections: int,
    connections_created: int,
    connections_refused: int,
) -> None:
    """Add the process and its connections."""
    out.add("pulsar_version_info", 1, (("version", __version__), ("implementation", "geminga")))
    out.add("pulsar_active_connections", connections)
    out.add("pulsar_connection_created_total_count", connections_created)
    out.add("pulsar_connection_closed_total_count", connections_created - connections)
    out.add("geminga_connections_refused_total", connections_refused)
    out.add("process_start_time_seconds", started_at_ms / 1000)
    out.add("process_cpu_seconds_total", time.process_time())
    virtual, resident = _memory()
    if resident:
        out.add("process_virtual_memory_bytes", virtual)
        out.add("process_resident_memory_bytes", resident)
    with contextlib.suppress(ImportError, OSError):  # not on Linux
        import resource

        out.add("process_open_fds", len(os.listdir("/proc/self/fd")))
        out.add("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def add_security(out: Exposition, failures: Mapping[str, int], certificate_expires_at: float | None) -> None:
    """Add failed logins and handshakes, and the expiry of the certificate; None: no TLS."""
    for port in ("binary", "web"):
        out.add("geminga_logins_failed_total", failures[port], (("port", port),))
    out.add("geminga_tls_handshakes_failed_total", failures["tls"])
    if certificate_expires_at is not None:
        out.add("geminga_tls_certificate_expiry_timestamp_seconds", certificate_expires_at)


def resident_bytes() -> int:
    """Return the process's resident memory; 0 if the system does not provide it."""
    return _memory()[1]


def _memory() -> tuple[int, int]:
    """Return the process's virtual and resident memory; 0 if the system does not provide it."""
    if not sys.platform.startswith("linux"):
        return 0, 0
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident = file.read().split()[:2]
    except (OSError, ValueError):
        return 0, 0
    page = os.sysconf("SC_PAGE_SIZE")
    return int(virtual) * page, int(resident) * page
