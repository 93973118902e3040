"""Everyday jobs in a session of each release of Spark 4, as `make spark-4.0`, `-4.1` and `-4.2` run them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from offloading import offload_all
from waiting import start_thread

import geminga.spark
from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.spark.observing import query_lag
from geminga.spark.releases import PLANS_BY_START

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# On the usual release other tests of this folder have the same jobs in more detail: one of these is enough.
pytestmark = [
    pytest.mark.spark, pytest.mark.every_release, pytest.mark.rotating(1, group="every release"),
]  # fmt: skip


class Jobs:
    """Reads and writes of one topic's namesakes on one broker."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, topic: str, folder: Path) -> None:
        self.spark = spark
        self.topic = topic
        self.folder = folder
        self.url = {"service.url": broker.service_url, "admin.url": broker.admin_url}

    def publish(self, first: int, count: int, **options: Any) -> None:
        rows = self.spark.range(first, first + count, 1, 1)
        rows = rows.selectExpr("cast(id AS STRING) AS value", "cast(id % 3 AS STRING) AS __key")
        self.write(rows, self.topic, **options)

    def write(self, rows: DataFrame, topic: str, **options: Any) -> None:
        rows.write.format("pulsar").options(**self.url, topic=topic, **options).mode("append").save()

    def read(self, topic: str, **options: Any) -> DataFrame:
        return self.spark.read.format("pulsar").options(**self.url, topic=topic, **options).load()

    def numbers(self, topic: str) -> list[int]:
        return sorted(int(row.value) for row in self.read(topic, columns="value").collect())

    def copy(self, target: str, *, source: dict[str, Any] | None = None, **sink: Any) -> StreamingQuery:
        """Copy the topic to ``target`` up to now; a second call continues the first."""
        stream = self.spark.readStream.format("pulsar").options(
            **self.url, topic=self.topic, **(source or {})
        )
        rows = stream.option("startingOffsets", "earliest").load().select("value", "__key")
        writer = rows.writeStream.format("pulsar").options(**self.url, topic=target, **sink)
        checkpoint = str(self.folder / target.rpartition("/")[2])
        query = writer.trigger(availableNow=True).start(checkpointLocation=checkpoint)
        assert query.awaitTermination(240)
        return query


@pytest.fixture
def jobs(spark, pulsar_broker, pulsar_topic, tmp_path):
    return Jobs(spark, pulsar_broker, pulsar_topic, tmp_path)


@pytest.mark.parametrize("codec", ["AVRO", "JSON"])
def test_a_frame_is_written_with_a_schema_and_read_back(jobs, codec):
    row = (
        1, Decimal("9.999999999999999999"), "ü", dt.datetime(2020, 1, 1, tzinfo=dt.UTC), [1, None], {"k": 2},
    )  # fmt: skip
    schema = "a INT, b DECIMAL(38,18), c STRING, d TIMESTAMP, e ARRAY<INT>, f MAP<STRING, INT>"
    frame = jobs.spark.createDataFrame([row], schema)
    jobs.write(frame, jobs.topic, valueSchema=codec)
    assert jobs.read(jobs.topic, valueSchema="TOPIC").select(*"abcdef").collect() == frame.collect()


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_restarted_copy_has_each_row_once(jobs, exactly_once):
    jobs.publish(0, 30)
    target = f"{jobs.topic}-copy"
    jobs.copy(target, exactlyOnce=exactly_once)
    jobs.publish(30, 20)
    jobs.copy(target, exactlyOnce=exactly_once)
    assert jobs.numbers(target) == list(range(50))


def test_a_restarted_stream_keeps_its_limit(jobs):
    jobs.publish(0, 35, batchingMaxMessages=5)
    target = f"{jobs.topic}-copy"
    source = {"maxOffsetsPerTrigger": 10, "checkpointLocation": str(jobs.folder / target.rpartition("/")[2])}
    runs = 0
    while not runs or len(jobs.numbers(target)) < 35:
        query = jobs.copy(target, source=source)
        assert all(int(each["numInputRows"]) <= 10 for each in query.recentProgress)
        query_lag(query.lastProgress)
        runs += 1
    assert jobs.numbers(target) == list(range(35))
    # Below 4.2 Spark runs one micro-batch for each availableNow.
    assert runs == (1 if PLANS_BY_START else 4)


def test_a_micro_batch_of_foreach_batch_is_written_once(jobs):
    jobs.publish(0, 30)
    target, folder = f"{jobs.topic}-counts", str(jobs.folder / "counts")
    stream = jobs.spark.readStream.format("pulsar").options(**jobs.url, topic=jobs.topic)
    rows = stream.option("startingOffsets", "earliest").load().groupBy("__key").count()
    counts = rows.selectExpr("__key", "cast(count AS STRING) AS value")

    def publish_twice(frame: DataFrame, batch_id: int) -> None:
        once = {"exactlyOnce": "true", "sinkName": "counts", "batchId": batch_id}
        for _ in range(2):
            jobs.write(frame, target, checkpointLocation=folder, **once)

    writer = counts.writeStream.outputMode("update").option("checkpointLocation", folder)
    assert writer.foreachBatch(publish_twice).trigger(availableNow=True).start().awaitTermination(240)
    assert jobs.numbers(target) == [10, 10, 10]


def test_a_registered_session_writes_in_a_thread_of_its_own(jobs):
    frame = jobs.spark.sql("SELECT '1' AS value")
    errors: list[str] = []

    def write() -> None:
        for prepare in (lambda: None, lambda: geminga.spark.register(jobs.spark)):
            prepare()
            try:
                jobs.write(frame, jobs.topic)
            except Exception as error:
                errors.append(str(error))

    thread = start_thread(write)
    thread.join(240)
    assert ["DATA_SOURCE_NOT_FOUND" in each for each in errors] in ([], [True])
    assert jobs.numbers(jobs.topic) == [1] * (2 - len(errors))


def test_a_snapshot_of_offloaded_data_has_each_row_once(spark, pulsar_topic, tmp_path):
    location = str(tmp_path / "offloaded")
    settings = {"ledger_entries_max": 7, "offload_deletion_lag_seconds": 0}
    with embedded(tmp_path / "store", offload_location=location, **settings) as broker:
        jobs = Jobs(spark, broker, pulsar_topic, tmp_path)
        jobs.publish(0, 30, batchingMaxMessages=1)
        offload_all(broker, pulsar_topic)
        jobs.publish(30, 5)
        options = {**jobs.url, "topic": pulsar_topic, "columns": "value", "offloadLocation": location}
        options.pop("admin.url")
        found = geminga.spark.snapshot(spark, options)
        assert found.files >= 3
        assert sorted(int(row.value) for row in found.frame.collect()) == list(range(35))
