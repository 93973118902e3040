"""Costs of 512 partitions inside Spark before a row is read, beside a Python source that sends no requests.

The Python source has 512 partitions, too, and shows Spark's own share. Everything runs in a process of its
own. A batch query's plan is the time until Spark knows its tasks, for which it requests the partitions from a
Python process; an idle trigger is Spark's own ``triggerExecution`` of triggers without new messages. That
includes the progress report, which Spark otherwise makes every ten seconds for idle triggers.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

import geminga
from benchmarks.harness import OURS, Figure, emit
from geminga.spark import session

EMPTY_SOURCE = "a Python source that asks nobody"
PARTITIONS = 512
PLANS, IDLE_TRIGGERS = 7, 20
TOPIC = "persistent://public/default/in-spark"


class Wide(DataSource):
    """``format("wide")``: `PARTITIONS` empty partitions."""

    @classmethod
    def name(cls) -> str:
        return "wide"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: Any) -> DataSourceReader:
        return WideReader()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return WideStream()


class WideReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())


class WideStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream without new rows, with offsets as long as those of a topic of `PARTITIONS` partitions."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {TOPIC: {str(number): f"{number}:0" for number in range(PARTITIONS)}}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return start

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self.initialOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())


def plan_ms(frame: Any) -> float:
    """Until Spark knows the tasks of a query over it."""
    execution = frame._jdf.queryExecution()
    start = time.perf_counter()
    assert execution.toRdd().getNumPartitions() == PARTITIONS
    return (time.perf_counter() - start) * 1000


def idle_ms(query: Any) -> float:
    """The median of triggers that found nothing; the first few are not warm."""
    found: dict[str, float] = {}
    end = time.monotonic() + 240
    while len(found) < IDLE_TRIGGERS + 3:
        if time.monotonic() > end or query.exception() is not None:
            raise RuntimeError(f"{len(found)} idle triggers in 240 s: {query.exception()}")
        last = query.lastProgress
        if last is not None:
            found[last["timestamp"]] = last["durationMs"]["triggerExecution"]
        time.sleep(0.02)
    return statistics.median(list(found.values())[3:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--admin-url", required=True)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with geminga.Admin(given.admin_url) as admin, geminga.Client(given.url) as client:
        admin.topics.create(TOPIC, partitions=PARTITIONS)
        count = PARTITIONS * 20
        with client.create_producer(TOPIC, batching_max_messages=10) as producer:
            keys = [str(number) for number in range(count)]
            producer.send_table(pa.table({"key": keys, "value": pa.array([b"x" * 100] * count, pa.binary())}))
    settings = {
        "spark.ui.enabled": "false", "spark.sql.streaming.noDataProgressEventInterval": "1ms",
        "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false",
    }  # fmt: skip
    spark = session("local[2]", "wide", settings)
    spark.dataSource.register(Wide)
    work = f"Spark, {PARTITIONS} partitions"
    options = {"service.url": given.url, "columns": "value"}

    def over(reader: Any, who: str) -> Any:
        if who == EMPTY_SOURCE:
            return reader.format("wide").load()
        return reader.format("pulsar").options(**options).load(TOPIC)

    for run in range(given.runs + 1):
        for who in (EMPTY_SOURCE, OURS):
            value = statistics.median(plan_ms(over(spark.read, who)) for _ in range(PLANS))
            if run:
                emit(Figure(work=f"{work}: a batch query's plan, in Spark", who=who, value=value, unit="ms"))
    for _ in range(given.runs):
        for who in (EMPTY_SOURCE, OURS):
            with tempfile.TemporaryDirectory() as folder:
                writer = over(spark.readStream, who).writeStream.format("noop")
                writer = writer.option("checkpointLocation", folder).trigger(processingTime="0 seconds")
                query = writer.start()
                try:
                    value = idle_ms(query)
                finally:
                    query.stop()
            emit(Figure(work=f"{work}: an idle trigger, in Spark", who=who, value=value, unit="ms"))
    spark.stop()


if __name__ == "__main__":
    main()
