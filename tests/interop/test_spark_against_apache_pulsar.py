"""The Spark data source against a real Apache Pulsar: planner, tasks and sinks, without a JVM beside it."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType
from waiting import eventually, until_accepted

from geminga import Client, InitialPosition
from geminga.client.admin import admin
from geminga.errors import PulsarException
from geminga.spark.datasource import PulsarDataSource, PulsarReader, PulsarStreamReader
from geminga.spark.options import write_options
from geminga.spark.sink.exactly_once import ExactlyOnceWriter, StagedCommit
from geminga.spark.sink.writing import PulsarWriter
from geminga.spark.source.data_loss import DataLossError
from geminga.testing.apache_pulsar import ApachePulsar, version_of
from tests.spark import driven_query

pytestmark = pytest.mark.interop

SCHEMA = (
    StructType().add("value", BinaryType()).add("__ledgerId", LongType()).add("__entryId", LongType())
)  # fmt: skip


@pytest.fixture(scope="module")
def client(apache_pulsar):
    with Client(apache_pulsar.service_url) as found:
        yield found


class Topic:
    def __init__(self, pulsar: ApachePulsar, client: Client, name: str) -> None:
        self.pulsar = pulsar
        self.client = client
        self.name = name
        self.path = name.replace("://", "/")

    def publish(self, first: int, count: int) -> None:
        values = [b"%d" % i for i in range(first, first + count)]
        with self.client.create_producer(self.name, batching_max_messages=10) as producer:
            producer.send_table(pa.table({"value": pa.array(values, pa.binary())}))

    def ledgers(self) -> list[dict[str, Any]]:
        return admin(self.pulsar.admin_url, "GET", f"{self.path}/internalStats")["ledgers"]

    def roll_ledger(self) -> None:
        until_accepted(lambda: admin(self.pulsar.admin_url, "PUT", f"{self.path}/unload"))

    def source(self, **options: Any) -> PulsarDataSource:
        given = {"service.url": self.pulsar.service_url, "topic": self.name, **options}
        return PulsarDataSource({name.lower(): str(value) for name, value in given.items()})

    def rows(self, reader: PulsarReader | PulsarStreamReader, parts: Any) -> list[tuple[int, int, int]]:
        found = []
        for part in parts:
            for batch in reader.read(part):
                found += [tuple(row.values()) for row in batch.to_pylist()]
        return [(int(value), ledger, entry) for value, ledger, entry in found]

    def batch(self, **options: Any) -> list[tuple[int, int, int]]:
        reader = self.source(**options).reader(SCHEMA)
        return self.rows(reader, reader.partitions())


@pytest.fixture(scope="module")
def namespace(apache_pulsar):
    """Namespace with unlimited retention. Without it a rolled ledger is deleted as soon as deduplication has
    saved its state of it, which happens every two minutes for all topics at once."""
    name = "public/spark-kept"
    admin(apache_pulsar.admin_url, "PUT", f"namespaces/{name}", {})
    everything = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin(apache_pulsar.admin_url, "POST", f"namespaces/{name}/retention", everything)
    return name


@pytest.fixture
def topic(namespace, apache_pulsar, client):
    return Topic(apache_pulsar, client, f"persistent://{namespace}/spark-{uuid4().hex[:10]}")


@pytest.fixture
def three_ledgers(topic):
    for first in (0, 100, 200):
        topic.publish(first, 100)
        topic.roll_ledger()
    return topic


def test_a_batch_is_split_over_several_ledgers(three_ledgers):
    rows = three_ledgers.batch(maxEntriesPerSplit=3)
    assert [row[0] for row in rows] == list(range(300))
    ledgers = sorted({row[1] for row in rows})
    assert len(ledgers) == 3
    reader = three_ledgers.source().reader(SCHEMA)
    assert len(reader.partitions()) >= 3
    start = json.dumps({three_ledgers.name: f"{ledgers[0]}:9"})
    end = json.dumps({three_ledgers.name: f"{ledgers[2]}:0:4"})
    part = three_ledgers.batch(startingOffsets=start, endingOffsets=end)
    assert [row[0] for row in part] == list(range(90, 205))


@pytest.mark.parametrize(
    "options", [{"maxRowsPerTrigger": 70}, {"maxEntriesPerTrigger": 7}, {"maxBytesPerTrigger": "1k"}], ids=str
)
def test_micro_batches_read_every_row_once(three_ledgers, options):
    source = three_ledgers.source(startingOffsets="earliest", **options)
    reader = source.streamReader(SCHEMA)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    seen = []
    three_ledgers.publish(300, 10)
    for _ in range(50):
        end = reader.latestOffset(start, limit)
        if end == start:
            break
        rows = [row[0] for row in three_ledgers.rows(reader, reader.partitions(start, end))]
        assert 0 < len(rows) <= 100
        seen += rows
        start = end
    assert seen == list(range(300))
    reader.stop()
    restarted = source.streamReader(SCHEMA)
    end = restarted.latestOffset(start, ReadAllAvailable())
    rows = [row[0] for row in three_ledgers.rows(restarted, restarted.partitions(start, end))]
    assert rows == list(range(300, 310))
    restarted.stop()


def test_a_batch_starts_at_a_time_and_leaves_no_subscription(three_ledgers):
    schema = StructType().add("value", BinaryType()).add("__publishTime", "timestamp")
    reader = three_ledgers.source().reader(schema)
    assert isinstance(reader, PulsarReader)
    times = [
        row["__publishTime"].timestamp() * 1000 for part in reader.partitions() for b in reader.read(part)
        for row in b.to_pylist()
    ]  # fmt: skip
    middle = round(times[100])
    assert [row[0] for row in three_ledgers.batch(startingTime=middle)] == list(range(100, 300))
    # Closing readers is asynchronous: the broker may close the last ones later.
    eventually(
        lambda: not admin(three_ledgers.pulsar.admin_url, "GET", f"{three_ledgers.path}/subscriptions")
    )


def test_requested_columns_are_filled(topic):
    """Each message has an id; messages that a consumer negatively acknowledged have redelivery count 0."""
    topic.publish(0, 40)
    with topic.client.subscribe(topic.name, "s", initial_position=InitialPosition.Earliest) as consumer:
        for _ in range(40):
            consumer.negative_acknowledge(consumer.receive(30_000))
    schema = StructType().add("value", BinaryType())
    for name in ("__sequenceId", "__ledgerId", "__entryId"):
        schema = schema.add(name, LongType())
    for name in ("__partition", "__batchIndex", "__redeliveryCount"):
        schema = schema.add(name, IntegerType())
    reader = topic.source().reader(schema)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [int(row["value"]) for row in rows] == list(range(40))
    assert [row["__batchIndex"] for row in rows] == list(range(10)) * 4
    places = [(row["__ledgerId"], row["__entryId"], row["__batchIndex"]) for row in rows]
    assert places == sorted(set(places))
    assert {(row["__partition"], row["__redeliveryCount"]) for row in rows} == {(-1, 0)}
    assert [row["__sequenceId"] for row in rows] == sorted(row["__sequenceId"] for row in rows)


def test_written_rows_are_complete_and_single(topic, tmp_path):
    admin(topic.pulsar.admin_url, "PUT", f"{topic.path}/partitions", 3)
    schema = StructType().add("value", StringType()).add("__key", StringType())
    options = {"service.url": topic.pulsar.service_url, "topic": topic.name, "compression": "ZSTD"}

    def rows(first: int) -> Iterator[pa.RecordBatch]:
        values = [str(i) for i in range(first, first + 100)]
        yield pa.record_batch(
            {"value": values, "__key": [f"k{int(v) % 9}" if int(v) % 3 else None for v in values]}
        )

    PulsarWriter(write_options(options), schema).write(rows(0))
    exact = {**options, "exactlyOnce": "true", "checkpointLocation": str(tmp_path)}

    def writer() -> ExactlyOnceWriter:
        return ExactlyOnceWriter(write_options(exact), schema)

    for epoch in range(2):
        commit = writer().write(rows(100 + 100 * epoch))
        assert isinstance(commit, StagedCommit)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("geminga.spark.sink.staging.Staging.finish", _die)
            with pytest.raises(KeyboardInterrupt):
                writer().commit([commit], epoch)
        writer().commit([writer().write(rows(100 + 100 * epoch))], epoch)
    assert sorted(row[0] for row in topic.batch()) == list(range(300))


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_sink_whose_deduplication_state_is_lost_writes_no_row_twice(
    apache_pulsar, client, tmp_path, monkeypatch
):
    """As one that was silent for long; here deduplication is turned off and on, which forgets all."""
    namespace = "public/spark-forgotten"
    admin(apache_pulsar.admin_url, "PUT", f"namespaces/{namespace}", {})
    everything = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin(apache_pulsar.admin_url, "POST", f"namespaces/{namespace}/retention", everything)
    topic = Topic(apache_pulsar, client, f"persistent://{namespace}/t")

    def remembers() -> bool:
        """Return whether the broker still has the sequence id of a named producer that reconnects."""
        with client.create_producer(topic.name, producer_name="probe") as producer:
            producer.send(b"-1")
        with client.create_producer(topic.name, producer_name="probe") as producer:
            return producer.last_sequence_id() >= 0

    def switch(is_on: bool) -> None:
        admin(apache_pulsar.admin_url, "POST", f"namespaces/{namespace}/deduplication", is_on)
        eventually(lambda: remembers() == is_on)

    def writer() -> ExactlyOnceWriter:
        given = {
            "service.url": apache_pulsar.service_url, "topic": topic.name, "exactlyOnce": "true",
            "checkpointLocation": str(tmp_path), "batchingMaxMessages": "5",
        }  # fmt: skip
        return ExactlyOnceWriter(write_options(given), StructType().add("value", BinaryType()))

    def task(first: int, count: int) -> StagedCommit:
        values = [b"%d" % number for number in range(first, first + count)]
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        commit = writer().write(iter([batch]))
        return commit

    switch(True)
    writer().commit([task(0, 10)], 0)
    with monkeypatch.context() as patched:
        patched.setattr("geminga.spark.sink.staging.Staging.finish", _die)
        with pytest.raises(KeyboardInterrupt):
            writer().commit([task(10, 50)], 1)
    switch(False)
    switch(True)
    writer().commit([task(10, 50)], 1)
    writer().commit([task(60, 10)], 2)
    assert sorted(row[0] for row in topic.batch() if row[0] >= 0) == list(range(70))


# --- the query's subscription ---
class Query(driven_query.Query):
    """A streaming query as Spark drives its source."""

    def __init__(self, topic: Topic, **options: Any) -> None:
        given = {"startingOffsets": "earliest", "operationTimeoutMs": 30_000, **options}
        super().__init__(topic.pulsar, topic.name, **given)

    def values(self) -> list[int]:
        """Return the values of the next micro-batch."""
        return [int(value) for value in self.batch()]

    def cursor(self) -> str:
        path = self.topic.replace("://", "/")
        cursors = admin(self.broker.admin_url, "GET", f"{path}/internalStats")["cursors"]
        (found,) = (cursors[name]["markDeletePosition"] for name in self.stats())
        return str(found)


def test_the_cursor_follows_spark(topic):
    topic.publish(0, 250)
    query = Query(topic, durableSubscription=True, maxRowsPerTrigger=100)
    for first, size, left in ((0, 100, 25), (100, 100, 15), (200, 50, 5)):
        assert query.latest() != (query.log or [None])[-1]
        assert query.backlog == left  # entries of ten messages
        assert query.values() == list(range(first, first + size))
        query.restart()
    assert query.latest() == query.log[-1]
    assert query.backlog == 0
    assert query.cursor() == query.log[-1][topic.name]["-1"]


@pytest.fixture(scope="module")
def trimming(apache_pulsar):
    """A namespace that keeps nothing which no subscription needs."""
    if version_of(apache_pulsar.home) < (2, 11):
        pytest.skip(
            "it has no call that trims a topic, and keeps the ledger of the last acknowledged message"
        )
    # Deduplication has a cursor of its own, which holds ledgers back.
    admin(apache_pulsar.admin_url, "PUT", "namespaces/public/trimmed", {})
    admin(apache_pulsar.admin_url, "POST", "namespaces/public/trimmed/deduplication", False)
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    admin(apache_pulsar.admin_url, "POST", "namespaces/public/trimmed/retention", nothing)
    return "persistent://public/trimmed"


def trimmed(topic: Topic, before: Callable[[], object] = lambda: None) -> None:
    """Have the broker delete all ledgers but the one that is written to."""

    def is_trimmed() -> bool:
        before()
        admin(topic.pulsar.admin_url, "POST", f"{topic.path}/trim")
        return len(topic.ledgers()) == 1

    eventually(is_trimmed, detail=topic.ledgers, but=PulsarException)


def test_a_first_micro_batch_with_deleted_messages_fails(apache_pulsar, client, trimming):
    """It was planned, the driver was killed, and the broker has trimmed before it came back."""
    topic = Topic(apache_pulsar, client, f"{trimming}/first")
    for first in (0, 100):
        topic.publish(first, 100)
        topic.roll_ledger()
    query = Query(topic, maxRowsPerTrigger=150)
    planned = query.latest()
    query.reader.stop()
    topic.publish(200, 10)
    trimmed(topic)
    query.restart()
    parts = query.reader.partitions(query.reader.initialOffset(), planned)
    with pytest.raises(DataLossError, match="is gone, the first one left is"):
        topic.rows(query.reader, parts)
    query.reader.stop()


def test_a_task_whose_ledger_is_deleted_reads_all_or_fails(apache_pulsar, client, trimming):
    """It has begun with a ledger, and the broker deletes that."""
    topic = Topic(apache_pulsar, client, f"{trimming}/overtaken")
    with client.create_producer(topic.name, batching_max_messages=10) as producer:
        values = [b"%d" % number for number in range(60_000)]
        producer.send_table(pa.table({"value": pa.array(values, pa.binary())}))
    topic.roll_ledger()
    topic.publish(60_000, 10)
    reader = topic.source(receiverQueueSize=100).reader(SCHEMA)
    first = reader.partitions()[0]
    batches = reader.read(first)
    try:  # the broker may trim by itself before
        seen = next(batches).num_rows
        trimmed(topic)
        seen += sum(batch.num_rows for batch in batches)
    except DataLossError:
        pass  # it may not be quiet about what is gone
    else:
        assert seen == 60_000


def test_trimming_behind_the_cursor_is_no_loss(apache_pulsar, client, trimming):
    topic = Topic(apache_pulsar, client, f"{trimming}/t")
    query = Query(topic, durableSubscription=True)
    for run in range(3):
        topic.publish(100 * run, 100)
        assert query.values() == list(range(100 * run, 100 * run + 100))
        query.latest()
        topic.roll_ledger()
        query.restart()
    # A topic that is unloaded right after loading may be loaded with an older position of the cursor
    # ("version conflict" in the broker's log). The next trigger moves it again.
    trimmed(topic, query.latest)
    topic.publish(300, 10)
    assert query.values() == list(range(300, 310))
    query.latest()
    assert query.backlog == 0


def trimmed_empty(topic: Topic) -> None:
    trimmed(topic)
    eventually(lambda: not topic.ledgers()[0]["entries"], detail=topic.ledgers)


@pytest.mark.parametrize("what", ["removed", "removed while running", "moved"])
def test_a_subscription_that_lost_unread_messages_fails_the_query(
    apache_pulsar, client, trimming, what, caplog
):
    """The topic is trimmed empty: what is left of it is the same as if all had been read."""
    topic = Topic(apache_pulsar, client, f"{trimming}/{what.replace(' ', '-')}")
    query = Query(topic, predefinedSubscription="s", maxRowsPerTrigger=50)
    topic.publish(0, 20)
    assert query.values() == list(range(20))
    query.latest()
    if what == "moved":
        topic.publish(20, 100)
        assert query.values() == list(range(20, 70))
        query.latest()
        query.reader.stop()
        admin(apache_pulsar.admin_url, "POST", f"{topic.path}/subscription/s/skip_all")
    else:
        if what == "removed":
            query.reader.stop()
        admin(apache_pulsar.admin_url, "DELETE", f"{topic.path}/subscription/s?force=true")
        topic.publish(20, 100)
    topic.roll_ledger()
    trimmed_empty(topic)
    for _ in range(2):
        with pytest.raises(DataLossError, match="was moved to" if what == "moved" else "was removed"):
            query.latest()
        query.reader.stop()
        query.restart()
    topic.publish(120, 10)
    query.reader.stop()
    query.options["failOnDataLoss"] = False
    query.restart()
    assert query.values() == list(range(120, 130))
    query.reader.stop()


def test_a_cursor_ahead_of_the_query_is_set_back(topic):
    topic.publish(0, 100)
    query = Query(topic, predefinedSubscription="s", maxRowsPerTrigger=30)
    query.batch()
    query.latest()
    assert query.cursor().endswith(":2")
    name = f"{topic.path}/subscription/s"
    query.reader.stop()
    admin(topic.pulsar.admin_url, "POST", f"{name}/skip_all")
    query.restart()
    assert query.latest() != query.log[-1]
    assert query.cursor().endswith(":2")
    assert query.backlog == 7
    query.reader.stop()
    until_accepted(lambda: admin(topic.pulsar.admin_url, "DELETE", name))
    query.restart()
    assert query.values() == list(range(30, 60))
    assert query.cursor().endswith(":2")
    # Another query that starts at the first message.
    query.reader.stop()
    again = Query(topic, predefinedSubscription="s")
    again.latest()
    assert again.backlog == 10
