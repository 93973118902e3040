"""Statistics of all topics of a cluster from admin REST, the input of `geminga.tuning.fleet`.

Each topic is queried twice, some seconds apart: the differences are messages, entries and bytes per second.
Statistics lack the codec and the uncompressed message size; these are read from the newest entry of each
topic. If it is not compressed, the message size is that of the statistics, including metadata.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from geminga import Admin
from geminga.client.cluster import Cluster
from geminga.config import check_seconds
from geminga.errors import InvalidConfiguration, PulsarException, TopicNotFound
from geminga.ids import TopicName
from geminga.tuning.measuring.broker_view import PublishedCounts, published_counts

if TYPE_CHECKING:
    import pyarrow as pa

CALLS_AT_ONCE = 8
"""Concurrent admin requests; a limit for the load on the brokers."""
TOPICS_MAX = 100_000
PARTITIONS_EXAMINED_MAX = 8
"""Maximum partitions that are examined if the first ones are empty."""
FAILURES_MAX = 50
"""Consecutive topics without a response after which the query ends: the broker is unavailable."""


_Look = tuple[float, PublishedCounts]
"""A moment, and the counts of a topic at that moment."""


def namespaces_of(admin: Admin) -> list[str]:
    """Return all namespaces except Pulsar's system namespaces."""
    found: list[str] = []
    for tenant in admin.tenants.list():
        if tenant != "pulsar":
            found += admin.namespaces.list(tenant)
    return [name for name in found if name != "public/functions"]


def topics_of(admin: Admin, namespace: str) -> list[tuple[TopicName, bool]]:
    """Return the persistent topics of a namespace without partitions, each with whether it is partitioned."""
    partitioned = [TopicName.parse(n) for n in admin.topics.list_partitioned(namespace)]
    names = [TopicName.parse(name) for name in admin.topics.list(namespace)]
    bases = {str(name) for name in partitioned}
    plain = [name for name in names if name.partition < 0 and str(name) not in bases]
    return [(name, True) for name in partitioned] + [(name, False) for name in plain]


def gather(
    admin_url: str | None,
    namespaces: Iterable[str] = (),
    *,
    watch_seconds: float = 10.0,
    cluster: Cluster | None = None,
) -> pa.Table:
    """Return statistics of every topic to which messages were published during the measurement.

    ``namespaces``: default: all of the cluster; ``cluster``: authentication and TLS. Raises the broker's
    error, and `InvalidConfiguration` if nothing was published.
    """
    import pyarrow as pa

    check_seconds("watch_seconds", watch_seconds, 0.1, 3600.0)
    admin = replace(cluster or Cluster(), admin_url=admin_url).admin()
    chosen = list(namespaces) or namespaces_of(admin)
    topics = [topic for namespace in chosen for topic in topics_of(admin, namespace)]
    if len(topics) > TOPICS_MAX:
        raise InvalidConfiguration(f"{len(topics)} topics are more than {TOPICS_MAX}: name some namespaces")
    failures: list[PulsarException] = []

    def looks() -> Iterator[_Look | None]:
        with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
            for look in pool.map(lambda topic: _look(admin, topic[0], topic[1], failures), topics):
                if look is not None:
                    failures.clear()
                elif len(failures) >= FAILURES_MAX:
                    pool.shutdown(cancel_futures=True)
                    raise failures[-1]
                yield look

    started = time.monotonic()
    first = list(looks())
    # All topics are measured for the same time: the second query is as long after the first.
    time.sleep(max(0.0, watch_seconds - (time.monotonic() - started)))
    found = [
        (name, row)
        for (name, partitioned), before, after in zip(topics, first, looks(), strict=True)
        if (row := _row(name, partitioned, before, after)) is not None
    ]
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        rows = list(pool.map(lambda each: each[1] | _newest(admin, each[0], each[1]), found))
    if not rows and failures:
        raise failures[-1]
    if not rows:
        raise InvalidConfiguration(
            f"nothing was published to the {len(topics)} topics of {', '.join(chosen) or admin.admin_url} "
            f"within {watch_seconds:g} s: watch for longer"
        )
    table = pa.Table.from_pylist(rows).drop_columns(["partitioned"])
    codecs = table.column("compression").cast(pa.string())  # a column of only nulls would have no type
    return table.set_column(table.schema.get_field_index("compression"), "compression", codecs)


def _look(admin: Admin, topic: TopicName, partitioned: bool, failures: list[PulsarException]) -> _Look | None:
    """Query the counts; return None for a deleted topic, or if its broker does not answer: then the reason is
    added to ``failures``."""
    try:
        counts = published_counts(admin, topic, partitioned)
    except TopicNotFound:
        return None
    except PulsarException as error:
        failures.append(error)
        return None
    return time.monotonic(), counts


def _row(
    topic: TopicName, partitioned: bool, before: _Look | None, after: _Look | None
) -> dict[str, Any] | None:
    """Return a row of statistics; None for a topic without published messages."""
    if before is None or after is None:
        return None
    (began, old), (ended, new) = before, after
    seconds, messages = ended - began, new.messages - old.messages
    entries, size = new.entries - old.entries, new.bytes_in - old.bytes_in
    if messages <= 0 or entries <= 0 or seconds <= 0:
        return None
    return {
        "topic": str(topic),
        "rate_messages_per_second": messages / seconds,
        "message_bytes": max(1.0, size / messages),
        "partitions": max(1, len(new.by_partition)),
        "partitioned": partitioned,
        "producers": max(1, new.producers),
        "subscriptions": new.subscriptions,
        "entries_per_second": entries / seconds,
        "stored_bytes_per_second": size / seconds,
    }


def _newest(admin: Admin, topic: TopicName, row: dict[str, Any]) -> dict[str, Any]:
    """Return the codec of a topic's newest entry, and its mean payload size if compressed.

    Both are null if the topic is encrypted or its broker does not answer.
    """
    unknown = {"compression": None}
    names = [topic]
    if row["partitioned"]:
        names = [
            topic.partition_name(index) for index in range(min(row["partitions"], PARTITIONS_EXAMINED_MAX))
        ]
    for name in names:
        try:
            messages = admin.topics.examine(name)
        except PulsarException:  # this partition is empty, or its broker is unavailable
            continue
        if not messages or messages[0].encrypted:
            return unknown
        codec = messages[0].compression
        if codec == "NONE":
            return {"compression": codec}
        size = sum(len(message.data) for message in messages) / len(messages)
        return {"compression": codec, "message_bytes": max(1.0, size)}
    return unknown
