"""``format("pulsar_stats")``: the statistics of subscriptions as a stream, a micro-batch for each sample.

::

    spark.readStream.format("pulsar_stats").option("admin.url", "http://localhost:8080").load("public/default")

The path is a namespace, or several separated by commas. Each row is one subscription of one topic (or one
partition of it) at one time; a topic without subscriptions has one row too. Spark's tasks ask about
`TOPICS_PER_TASK` topics each, so that their number is a matter of cores. A topic that goes away in between
has no row; a broker that does not answer fails the query. Authentication and TLS are the options of
``format("pulsar")``: ``auth.token``, ``tls.trustCertsFilePath`` and their like.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from geminga.admin import topic_path
from geminga.client.admin.sync import Admin
from geminga.config import check_choice, refuse
from geminga.errors import InvalidConfiguration, TopicNotFound
from geminga.ids import TopicName
from geminga.spark.cluster.clients import open_admin
from geminga.spark.options import ACCESS, ConnectionOptions, access_options
from geminga.spark.releases import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
    need_planning_by_start,
)

TOPICS_PER_TASK = 500
CALLS_AT_ONCE = 8
"""Admin calls of one task in parallel."""
_OPTIONS = {
    "path": "Namespaces, separated by commas.",
    "admin.url": "`http://host:port` or `https://host:port` of the admin REST.",
    "pattern": "Regular expression for the local names of topics; default: all.",
    "every": "Seconds between two samples; default 60.",
    "samples": "Samples of one run of `AvailableNow`; default 1.",
    **{name: option.text for name, option in ACCESS.items()},
}
_US = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema(
    [
        pa.field("sampled_at", _US),
        pa.field("topic", pa.string()),
        pa.field("subscription", pa.string()),  # null: the topic has none
        pa.field("type", pa.string()),
        pa.field("consumers", pa.int64()),
        pa.field("backlog", pa.int64()),  # entries
        pa.field("ack_holes", pa.int64()),  # ranges acknowledged after an unacknowledged entry
        pa.field("unacked_messages", pa.int64()),
        pa.field("is_blocked", pa.bool_()),  # delivery stopped: too many unacknowledged messages
        pa.field("delivered_messages", pa.int64()),  # counters since the broker loaded the topic
        pa.field("last_acknowledged_at", _US),
        pa.field("mark_delete_position", pa.string()),
        pa.field("published_messages", pa.int64()),
        pa.field("published_entries", pa.int64()),
        pa.field("published_bytes", pa.int64()),
        pa.field("batch_fill", pa.float64()),  # messages per entry since the topic was loaded
        pa.field("stored_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """The checked options of the source."""

    admin_url: str
    namespaces: tuple[str, ...]
    pattern: str = ".*"
    every_seconds: float = 60.0
    samples: int = 1
    access: ConnectionOptions = field(default_factory=lambda: access_options({}))

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StatsOptions:
        given = {name.lower(): value for name, value in options.items()}
        known = tuple(name.lower() for name in _OPTIONS)
        for name in given:
            check_choice("option", name, known)
        namespaces = tuple(name.strip() for name in given.get("path", "").split(",") if name.strip())
        if not namespaces or not given.get("admin.url"):
            raise InvalidConfiguration("format('pulsar_stats') needs admin.url, and namespaces as its path")
        for name in namespaces:
            if not re.fullmatch(r"[^/\s]+/[^/\s]+", name):
                refuse("path", name, "namespaces of the form tenant/namespace")
        pattern = given.get("pattern", ".*")
        try:
            re.compile(pattern)
        except re.error as error:
            refuse("pattern", pattern, f"a regular expression: {error}")
        return cls(
            admin_url=given["admin.url"],
            namespaces=namespaces,
            pattern=pattern,
            every_seconds=_number("every", given.get("every", "60"), 0.0),
            samples=int(_number("samples", given.get("samples", "1"), 1.0)),
            access=access_options(given),
        )


def _number(name: str, text: str, least: float) -> float:
    """Parse a number, or a duration in seconds (`10 seconds`)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:s|seconds?)?\s*", text)
    if match is None or float(match[1]) < least:
        refuse(name, text, f"a number of at least {least:g}")
    return float(match[1])


@dataclass
class TaskTopics(InputPartition):
    """Topics that one task queries, by their full names."""

    names: tuple[str, ...]


class SubscriptionStatsSource(DataSource):
    """The data source ``pulsar_stats``; streams only."""

    @classmethod
    def name(cls) -> str:
        return "pulsar_stats"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(COLUMNS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        need_planning_by_start("format('pulsar_stats')")
        return StatsReader(StatsOptions.of(self.options))


class StatsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader whose offset is the number of samples. A rerun micro-batch takes new samples."""

    clock = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def __init__(self, options: StatsOptions) -> None:
        self.options = options
        self._left: int | None = None
        self._sampled: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"sample": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._left = self.options.samples

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self._left == 0:
            return start
        if self._sampled is not None:
            self.sleep(max(0.0, self._sampled + self.options.every_seconds - self.clock()))
        self._sampled = self.clock()
        if self._left is not None:
            self._left -= 1
        return {"sample": int(start["sample"]) + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        names = topics_of(self.options)
        step = TOPICS_PER_TASK
        return [TaskTopics(tuple(names[at : at + step])) for at in range(0, len(names), step)] or [
            TaskTopics(())
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskTopics) and partition.names:
            yield sample(self.options, partition.names)


def topics_of(options: StatsOptions) -> list[str]:
    """Return the persistent topics and partitions whose local name matches, in order."""
    wanted = re.compile(options.pattern)
    with open_admin(options.access, options.admin_url) as admin:
        names = {name for namespace in options.namespaces for name in admin.topics.list(namespace)}
    return sorted(name for name in names if wanted.fullmatch(TopicName.parse(name).base.local))


def sample(options: StatsOptions, topics: Sequence[str]) -> pa.RecordBatch:
    """Return the statistics of these topics from admin REST, as rows of `COLUMNS`."""
    with open_admin(options.access, options.admin_url) as admin, ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        rows = [row for found in pool.map(lambda name: _rows(admin, name), topics) for row in found]
    return pa.RecordBatch.from_pylist(rows, schema=COLUMNS)


def _rows(admin: Admin, topic: str) -> list[dict[str, Any]]:
    path = topic_path(TopicName.parse(topic))
    try:
        stats = admin.call("GET", f"{path}/stats")
        inside = admin.call("GET", f"{path}/internalStats")
    except TopicNotFound:
        return []
    messages, entries = stats.get("msgInCounter", 0), inside.get("entriesAddedCounter", 0)
    about = {
        "sampled_at": int(time.time() * 1_000_000),
        "topic": topic,
        "published_messages": messages,
        "published_entries": entries,
        "published_bytes": stats.get("bytesInCounter", 0),
        "batch_fill": messages / entries if messages and entries else None,
        "stored_bytes": stats.get("storageSize", 0),
    }
    subscriptions = stats.get("subscriptions") or {}
    if not subscriptions:
        return [about]
    cursors = inside.get("cursors") or {}
    return [
        {
            **about,
            "subscription": name,
            "type": one.get("type"),
            "consumers": len(one.get("consumers") or ()),
            "backlog": one.get("msgBacklog", 0),
            "ack_holes": one.get("nonContiguousDeletedMessagesRanges", 0),
            "unacked_messages": one.get("unackedMessages", 0),
            "is_blocked": bool(one.get("blockedSubscriptionOnUnackedMsgs", False)),
            "delivered_messages": one.get("msgOutCounter", 0),
            "last_acknowledged_at": _time(one.get("lastAckedTimestamp", 0)),
            "mark_delete_position": (cursors.get(name) or {}).get("markDeletePosition"),
        }
        for name, one in sorted(subscriptions.items())
    ]


def _time(milliseconds: int) -> int | None:
    return milliseconds * 1000 if milliseconds > 0 else None
