"""The data source inside a real Spark session, against the embedded broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from waiting import eventually, moment_between

from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.client.admin import admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from geminga import Client

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def client(broker):
    return broker.client()


class Topics:
    """Makes topics of its own for a test."""

    def __init__(self, broker: EmbeddedBroker, client: Client, name: str) -> None:
        self.broker = broker
        self.client = client
        self.name = f"persistent://public/default/{name}"

    def partitioned(self, count: int) -> str:
        admin(self.broker.admin_url, "PUT", self.name.replace("://", "/") + "/partitions", count)
        return self.name

    def publish(self, values: list[bytes], keys: list[str] | None = None, topic: str | None = None) -> None:
        columns: dict[str, Any] = {"value": pa.array(values, pa.binary())}
        if keys is not None:
            columns["key"] = keys
        with self.client.create_producer(topic or self.name, batching_max_messages=10) as producer:
            producer.send_table(pa.table(columns))

    def subscriptions(self) -> list[str]:
        return admin(self.broker.admin_url, "GET", self.name.replace("://", "/") + "/subscriptions")


@pytest.fixture
def topics(broker, client, request):
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return Topics(broker, client, name)


def reader(spark: SparkSession, topics: Topics, /, **options: Any) -> DataFrameReader:
    found = spark.read.format("pulsar").option("service.url", topics.broker.service_url)
    for name, value in options.items():
        found = found.option(name, str(value))
    return found


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % i for i in range(first, first + count)]


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.select("value").collect()]


# --- batch ---
def test_a_batch_query_reads_all_columns(spark, topics):
    with topics.client.create_producer(topics.name) as producer:
        producer.send(b"v", properties={"a": "b"}, partition_key="k", event_timestamp=1_600_000_000_123)
        producer.send(b"w")
    frame = reader(spark, topics).load(topics.name)
    assert frame.columns == [
        "value", "__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties",
    ]  # fmt: skip
    first, second = frame.collect()
    assert (bytes(first.value), bytes(first["__key"])) == (b"v", b"k")
    assert first["__messageProperties"] == {"a": "b"}
    assert first["__topic"] == topics.name
    assert first["__eventTime"].microsecond == 123_000
    assert abs(first["__publishTime"].timestamp() - time.time()) < 600
    assert second["__key"] is None
    assert second["__eventTime"] is None
    assert second["__messageProperties"] == {}
    assert topics.subscriptions() == []


def test_partitions_are_split_and_columns_selected(spark, topics):
    topic = topics.partitioned(3)
    topics.publish(numbers(600), keys=[f"k{i % 50}" for i in range(600)])
    frame = reader(spark, topics, columns="value,__key,__partition,__entryId", maxEntriesPerSplit=5).load(
        topic
    )
    rows = frame.collect()
    assert sorted(bytes(row.value) for row in rows) == numbers(600)
    assert {row["__partition"] for row in rows} == {0, 1, 2}
    assert frame.rdd.getNumPartitions() > 6
    for partition in range(3):
        mine = [bytes(row.value) for row in rows if row["__partition"] == partition]
        assert mine == sorted(mine)


def test_a_given_schema_selects_columns_and_text(spark, topics):
    topics.publish(numbers(30), keys=["k"] * 30)
    frame = reader(spark, topics).schema("__key string, value string").load(topics.name)
    assert frame.filter("value = '000007'").collect() == [("k", "000007")]


def test_topics_are_selected_by_list_pattern_and_starting_time(spark, topics):
    topics.publish([b"a"], topic=f"{topics.name}-one")
    middle = moment_between()
    topics.publish([b"b"], topic=f"{topics.name}-two")
    topics.publish([b"c"], topic=f"{topics.name}-one")
    both = f"{topics.name}-one, {topics.name}-two"
    assert sorted(values(reader(spark, topics, topics=both).load())) == [b"a", b"b", b"c"]
    assert sorted(values(reader(spark, topics, topicsPattern=f"{topics.name}-.*").load())) == [
        b"a",
        b"b",
        b"c",
    ]
    later = reader(spark, topics, topics=both, startingTime=middle)
    assert sorted(values(later.load())) == [b"b", b"c"]


def test_pushed_filters_skip_partitions(spark, topics):
    topic = topics.partitioned(3)
    topics.publish(numbers(300), keys=[f"k{i % 10}" for i in range(300)])
    name = "spark.sql.python.filterPushdown.enabled"
    condition = "__key = 'k3' AND __partition < 3 AND value >= '000100'"
    found = []
    for enabled in ("false", "true"):
        spark.conf.set(name, enabled)
        try:
            frame = reader(spark, topics).schema("value string, __key string, __partition int").load(topic)
            found.append(sorted(frame.filter(condition).collect()))
            one = frame.filter("__partition = 1 AND __key IS NOT NULL")
            assert {row["__partition"] for row in one.collect()} <= {1}
            assert one.rdd.getNumPartitions() == (1 if enabled == "true" else 3)
        finally:
            spark.conf.unset(name)
    assert found[0] == found[1]
    assert len(found[0]) == 20


def test_a_written_batch_is_read_back(spark, topics):
    topic = topics.partitioned(4)
    frame = spark.range(5000).selectExpr(
        "cast(id as string) as value",
        "case when id % 3 = 0 then null else concat('k', id % 100) end as __key",
        "timestamp_millis(1600000000000 + id) as __eventTime",
        "map('n', cast(id as string)) as __messageProperties",
    )
    (
        frame.write.format("pulsar").option("service.url", topics.broker.service_url).option("topic", topic)
        .option("compression", "lz4").mode("append").save()
    )  # fmt: skip
    back = reader(spark, topics).load(topic).selectExpr(
        "cast(value as string) value", "cast(__key as string) __key", "__eventTime", "__messageProperties"
    )  # fmt: skip
    assert sorted(back.collect(), key=lambda row: int(row.value)) == frame.collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOfsets": "latest"}, r"unknown option 'startingofsets'.*did you mean 'startingOffsets'\?"),
        ({"columns": "value,__kee"}, r"no column '__kee' \(did you mean '__key'\?\)"),
        ({"startingOffsets": "latest"}, "gives a batch query nothing to read"),
    ],
    ids=["misspelt", "column", "latest"],
)
def test_bad_options_are_refused(spark, topics, options, message):
    with pytest.raises(Exception, match=f"(?s){message}"):
        reader(spark, topics, **options).load(topics.name).collect()


def test_an_unknown_topic_is_named(spark, topics):
    with pytest.raises(Exception, match=f"topic {topics.name} does not exist"):
        reader(spark, topics).load(topics.name).collect()
    frame = spark.range(1).selectExpr("id as value")
    writer = frame.write.format("pulsar").option("service.url", topics.broker.service_url)
    with pytest.raises(Exception, match="column 'value' must be binary or string"):
        writer.option("topic", topics.name).mode("append").save()


# --- streams ---
class Sink:
    """A streaming query into memory that can be stopped and started again from its checkpoint."""

    def __init__(self, spark: SparkSession, topics: Topics, folder: Path) -> None:
        self.spark = spark
        self.topics = topics
        self.folder = folder
        self.batches: list[list[bytes]] = []
        self._places: dict[int, int] = {}

    def start(self, **options: Any) -> StreamingQuery:
        source = self.spark.readStream.format("pulsar").option("service.url", self.topics.broker.service_url)
        options = {"startingOffsets": "earliest", "topic": self.topics.name, "columns": "value", **options}
        trigger = options.pop("trigger", {"availableNow": True})
        for name, value in options.items():
            if value is not None:
                source = source.option(name, str(value))
        return (
            source.load().writeStream.foreachBatch(self._keep).trigger(**trigger)
            .option("checkpointLocation", str(self.folder / "checkpoint")).start()
        )  # fmt: skip

    def _keep(self, frame: DataFrame, number: int) -> None:
        # A query that is stopped before it has noted a batch as done gives the same batch again.
        place = self._places.setdefault(number, len(self.batches))
        self.batches[place : place + 1] = [values(frame)]

    def run(self, **options: Any) -> list[bytes]:
        """Everything there is now, then stop."""
        known = len(self.batches)
        query = self.start(**options)
        assert query.awaitTermination(90)
        return [value for batch in self.batches[known:] for value in batch]


@pytest.fixture
def sink(spark, topics, tmp_path):
    return Sink(spark, topics, tmp_path)


def test_a_stream_resumes_from_its_checkpoint(topics, sink):
    topics.publish(numbers(100))
    assert sink.run() == numbers(100)
    assert sink.run() == []
    topics.publish(numbers(50, 100))
    assert sink.run() == numbers(50, 100)
    # The driver's readers end with its Python process, which Spark stops behind our back.
    _wait_for(lambda: topics.subscriptions() == [])


def test_the_subscription_follows_sparks_commits(topics, sink):
    """The last micro-batch of an AvailableNow run included, for which Spark never calls commit."""
    topics.publish(numbers(100))
    assert sink.run(durableSubscription="true", maxRowsPerTrigger=40) == numbers(100)
    path = topics.name.replace("://", "/")

    def durable() -> dict[str, int]:
        found = admin(topics.broker.admin_url, "GET", f"{path}/stats")["subscriptions"]
        return {name: each["msgBacklog"] for name, each in found.items() if each["isDurable"]}

    ((name, backlog),) = durable().items()
    assert (name[:6], backlog) == ("spark-", 0)
    topics.publish(numbers(50, 100))
    assert durable()[name] > 0
    assert sink.run(durableSubscription="true") == numbers(50, 100)
    assert durable() == {name: 0}


def test_a_running_stream_reads_new_partitions(topics, sink):
    topic = topics.partitioned(1)
    topics.publish(numbers(10))
    query = sink.start(trigger={"processingTime": "100 milliseconds"})
    try:
        _wait_for(lambda: sum(map(len, sink.batches)) == 10, query)
        admin(topics.broker.admin_url, "POST", topic.replace("://", "/") + "/partitions", 3)
        topics.publish(numbers(10, 10), topic=f"{topic}-partition-2")
        _wait_for(lambda: sum(map(len, sink.batches)) == 20, query)
    finally:
        query.stop()
    assert sorted(value for batch in sink.batches for value in batch) == numbers(20)
    topics.publish(numbers(5, 20), topic=f"{topic}-partition-1")
    assert sink.run() == numbers(5, 20)


def test_the_star_of_a_start_applies_to_unnamed_partitions(topics, sink):
    topic = topics.partitioned(1)
    topics.publish(numbers(10))
    named = {topic: {"0": "latest"}}
    # Added between noting the offsets and the query's start.
    admin(topics.broker.admin_url, "POST", topic.replace("://", "/") + "/partitions", 2)
    topics.publish(numbers(10, 10), topic=f"{topic}-partition-1")
    assert (
        reader(sink.spark, topics, startingOffsets=json.dumps({**named, "*": "latest"})).load(topic).count()
        == 0
    )
    assert sink.run(startingOffsets=json.dumps({**named, "*": "earliest"})) == numbers(10, 10)


def _wait_for(condition: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    def is_so() -> bool:
        if query is not None and (error := query.exception()) is not None:
            raise error
        return condition()

    eventually(is_so)


# --- streaming sinks ---
def test_streams_are_written_exactly_once(spark, topics, tmp_path):
    out, folder = f"{topics.name}-out", tmp_path / "c"
    options = {"service.url": topics.broker.service_url, "startingOffsets": "earliest"}

    def copy() -> None:
        rows = spark.readStream.format("pulsar").options(**options, maxRowsPerTrigger=100).load(topics.name)
        writer = rows.selectExpr("value", "__key").writeStream.format("pulsar").trigger(availableNow=True)
        sink = {"service.url": topics.broker.service_url, "topic": out, "exactlyOnce": "true"}
        assert writer.options(**sink).start(checkpointLocation=str(folder)).awaitTermination(120)

    admin(topics.broker.admin_url, "POST", "namespaces/public/default/deduplication", True)
    try:
        topics.publish(numbers(250), keys=[f"k{i % 7}" for i in range(250)])
        copy()
        topics.publish(numbers(50, 250))
        # As if Spark had died before it noted the last micro-batch as committed: it is run again.
        last = max((folder / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
        copy()
        assert sorted(values(reader(spark, topics).load(out))) == numbers(300)
    finally:
        admin(topics.broker.admin_url, "POST", "namespaces/public/default/deduplication", False)
