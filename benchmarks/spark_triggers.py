"""Time of a micro-batch of one row, beside a Python source that generates its row, in a process of its own.

A message is published after each micro-batch, so that every micro-batch has a single row; the time is Spark's
own (``triggerExecution``) of micro-batches with a row. Both queries have one partition, the noop sink and a
trigger without an interval.

Also measures the bytes that the broker dispatches to the driver and the tasks for each published byte, in a
query with limited micro-batches over several partitions.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import geminga
from benchmarks.harness import OURS, Figure, emit
from geminga.spark import session

PYTHON_SOURCE = "a Python source that makes its row up"
TRIGGERS = 40
WARM = 10
ROW_BYTES = 100
ROWS, PARTITIONS, LIMIT = 200_000, 8, 50_000
"""Rows, partitions and rows of a micro-batch of the query whose bytes are counted."""


class OneRow(DataSource):
    """``format("onerow")``: a row in each micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "onerow"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return OneRowStream()


class OneRowStream(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        self.row = getattr(self, "row", 0) + 1
        return {"row": self.row}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"x" * ROW_BYTES], pa.binary())})


def trigger_ms(query: Any, publish: Any) -> float:
    """The median of the micro-batches of one row."""
    found: dict[int, float] = {}
    end = time.monotonic() + 240
    while len(found) < TRIGGERS + WARM:
        if time.monotonic() > end or query.exception() is not None:
            raise RuntimeError(f"{len(found)} micro-batches in 240 s: {query.exception()}")
        publish()
        for progress in query.recentProgress:
            if progress["numInputRows"] == 1:
                found[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        time.sleep(0.02)
    return statistics.median(list(found.values())[WARM:])


def moved(spark: Any, client: geminga.Client, admin_url: str, options: dict[str, str], folder: str) -> Figure:
    """Return the bytes that the broker sends for each stored byte."""
    with geminga.Admin(admin_url) as admin:
        topic = f"moved-{time.time_ns()}"
        admin.topics.create(topic, partitions=PARTITIONS)
        with client.create_producer(topic, batching_enabled=True, batching_max_messages=100) as producer:
            producer.send_table(pa.table({"value": pa.array([b"x" * ROW_BYTES] * ROWS, pa.binary())}))
        options = {**options, "topic": topic, "maxRowsPerTrigger": str(LIMIT)}
        frame = spark.readStream.format("pulsar").options(**options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", f"{folder}/moved")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(240)
        assert sum(each["numInputRows"] for each in query.recentProgress) == ROWS
        stats = admin.topics.stats(topic)
    value = stats.bytes_out_counter / stats.bytes_in_counter
    return Figure(work="Spark, bytes moved for each byte of its rows", who=OURS, value=value, unit="×")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--admin-url", required=True)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    settings = {"spark.ui.enabled": "false", "spark.sql.streaming.numRecentProgressUpdates": "1000"}
    spark = session("local[2]", "triggers", settings)
    spark.dataSource.register(OneRow)
    options = {"service.url": given.url, "startingOffsets": "earliest"}
    with geminga.Client(given.url) as client, tempfile.TemporaryDirectory() as folder:
        for run in range(given.runs):
            topic = f"one-row-{time.time_ns()}"
            producer = client.create_producer(topic)
            ours = spark.readStream.format("pulsar").options(**options, topic=topic).load()
            theirs = spark.readStream.format("onerow").load()
            for who, frame in ((PYTHON_SOURCE, theirs), (OURS, ours.select("value"))):
                place = f"{folder}/{run}-{who[:1]}"
                writer = frame.writeStream.format("noop").option("checkpointLocation", place)
                query = writer.start()
                sent = [-1]

                def publish(query: Any = query, sent: list[int] = sent, producer: Any = producer) -> None:
                    done = len([each for each in query.recentProgress if each["numInputRows"]])
                    if done > sent[0]:
                        producer.send(b"x" * ROW_BYTES)
                        sent[0] = done

                try:
                    value = trigger_ms(query, publish if who == OURS else lambda: None)
                finally:
                    query.stop()
                emit(Figure(work="Spark, a micro-batch of one row", who=who, value=value, unit="ms"))
        emit(moved(spark, client, given.admin_url, options, folder))


if __name__ == "__main__":
    main()
