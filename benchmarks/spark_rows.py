"""Spark and ``format("pulsar")`` with 100 B rows, in a process of its own.

Batch rates are Spark's whole query, planning included, after a warm-up: what a user waits for. Stream rates
leave out the query's start: time is that of its triggers, CPU is what the same query takes less with an
empty topic. CPU is that of the driver, the JVM and the Python workers together. The *floor* beside a read is
a Python source that yields ready Arrow batches of the same columns: what Spark's own hand-over takes.

The Scala connector does not run on this Spark; its figures on a machine of this kind are 0.4-0.6 M rows/s for
a batch read and 0.6 M for a write.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

import geminga
from benchmarks.harness import OURS, Measurement, emit
from geminga.spark import session

SIZE = 100
FLOOR = "floor: ready batches"
SPARK_ITSELF = "Spark, noop sink"
BATCH_ROWS = 200_000
"""Rows of a micro-batch with a limit."""
COLUMNS = (
    "value binary, __key binary, __topic string, __messageId binary, __publishTime timestamp, "
    "__eventTime timestamp, __messageProperties map<string,string>"
)


def cpu_seconds(broker_pid: int = 0) -> float:
    """CPU of this process and all that it has started but a broker: the JVM and Spark's Python workers."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        if process.pid == broker_pid:
            continue
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


# --- the floor -----------------------------------------------------------------------------------


def _ready(schema: Any, rows: int) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import to_arrow_schema

    size = 16_384
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [
        pa.array([b"x" * SIZE] * size, each.type) if each.name == "value" else _filled(each, size)
        for each in arrow
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow)
    for first in range(0, rows, size):
        yield batch.slice(0, min(size, rows - first))


def _filled(field: pa.Field, size: int) -> pa.Array:
    """As our rows have them: a topic, an id and a time, no key, event time and properties."""
    if field.name == "__topic":
        return pa.array(["persistent://public/default/some-topic"] * size, field.type)
    if field.name == "__messageId":
        return pa.array([b"\x08\x05\x10\x80\x02\x20\x01"] * size, field.type)
    if field.name == "__publishTime":
        return pa.array([1_700_000_000_000_000] * size, pa.int64()).cast(field.type)
    return pa.array([[]] * size, field.type) if pa.types.is_map(field.type) else pa.nulls(size, field.type)


class FloorSource(DataSource):
    """``format("floor")``: rows from nowhere."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def reader(self, schema: Any) -> DataSourceReader:
        return FloorReader(self.options, schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return FloorStream(self.options, schema)


class FloorReader(DataSourceReader):
    def __init__(self, options: Any, schema: Any) -> None:
        self.rows, self.schema = int(options["rows"]), schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // 2), InputPartition(self.rows // 2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _ready(self.schema, partition.value)


class FloorStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``limit`` rows in each micro-batch."""

    def __init__(self, options: Any, schema: Any) -> None:
        self.rows, self.limit, self.schema = int(options["rows"]), int(options["limit"]), schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """There is never more."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"row": min(self.rows, start["row"] + self.limit)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        half = (end["row"] - start["row"]) // 2
        return [InputPartition(half), InputPartition(half)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _ready(self.schema, partition.value)


# --- measuring -----------------------------------------------------------------------------------


class Bench:
    def __init__(self, url: str, rows: int, broker_pid: int = 0) -> None:
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "4g",
            "spark.log.level": "OFF",
        }
        self.url, self.rows, self.broker_pid = url, rows, broker_pid
        self.folder = Path(tempfile.mkdtemp())
        self.spark = session("local[2]", "bench", settings)
        self.spark.dataSource.register(FloorSource)
        self.frame = self.spark.range(0, rows, numPartitions=2).selectExpr(
            f"cast(rpad(cast(id as string), {SIZE}, 'x') as binary) as value"
        )

    def close(self) -> None:
        self.spark.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def timed(self, action: Callable[[], Any]) -> tuple[float, float]:
        cpu, start = cpu_seconds(self.broker_pid), time.perf_counter()
        action()
        return time.perf_counter() - start, cpu_seconds(self.broker_pid) - cpu

    def tell(self, work: str, who: str, seconds: float, cpu: float) -> None:
        emit(Measurement(work=work, who=who, messages=self.rows, seconds=seconds, cpu_seconds=cpu))

    # --- batches ---

    def write(self, topic: str) -> None:
        writer = self.frame.write.format("pulsar").option("service.url", self.url).option("topic", topic)
        writer.mode("append").save()

    def read(self, topic: str, columns: str | None) -> None:
        reader = self.spark.read.format("pulsar").option("service.url", self.url)
        reader = reader if columns is None else reader.option("columns", columns)
        reader.load(topic).write.format("noop").mode("overwrite").save()

    def floor(self, schema: str) -> None:
        reader = self.spark.read.format("floor").option("rows", self.rows).schema(schema)
        reader.load().write.format("noop").mode("overwrite").save()

    def batches(self, topic: str, told: bool) -> None:
        value = "read, value only"
        for work, who, action in (
            ("write", OURS, lambda: self.write(topic)),
            (value, OURS, lambda: self.read(topic, "value")),
            (value, FLOOR, lambda: self.floor("value binary")),
            ("read, 7 columns", OURS, lambda: self.read(topic, None)),
            ("read, 7 columns", FLOOR, lambda: self.floor(COLUMNS)),
        ):
            seconds, cpu = self.timed(action)
            if told:
                self.tell(f"Spark batch {work}", who, seconds, cpu)

    # --- streams ---

    def run(self, writer: Any) -> float:
        """Seconds of the triggers of a query that reads all there is."""
        query = writer.option("checkpointLocation", str(self.folder / f"c{time.time_ns()}")).start()
        query.awaitTermination()
        return sum(each.durationMs["triggerExecution"] for each in query.recentProgress) / 1000

    def stream(self, work: str, who: str, writer: Callable[[bool], Any], told: bool) -> None:
        """``writer(False)`` is the same query without a row."""
        found: list[float] = []
        _, cpu = self.timed(lambda: found.append(self.run(writer(True))))
        _, idle = self.timed(lambda: self.run(writer(False)))
        if told:
            self.tell(work, who, found[0], cpu - idle)

    def source(self, topic: str, limit: int | None) -> Any:
        reader = self.spark.readStream.format("pulsar").option("service.url", self.url)
        reader = reader.option("startingOffsets", "earliest")
        if limit is not None:
            reader = reader.option("maxRowsPerTrigger", limit)
        return reader.load(topic).writeStream.format("noop").trigger(availableNow=True)

    def floor_source(self, rows: int, limit: int) -> Any:
        reader = self.spark.readStream.format("floor").option("rows", rows).option("limit", limit)
        return reader.schema(COLUMNS).load().writeStream.format("noop").trigger(availableNow=True)

    def reads(self, topic: str, empty: str, told: bool) -> None:
        for name, limit in (("one batch", None), (f"{BATCH_ROWS // 1000} k a batch", BATCH_ROWS)):
            work = f"Spark AvailableNow, 7 columns, {name}"
            self.stream(work, OURS, lambda full, n=limit: self.source(topic if full else empty, n), told)
            size = limit or self.rows
            self.stream(
                work, FLOOR, lambda full, n=size: self.floor_source(self.rows if full else 0, n), told
            )

    def sink(self, files: str, schema: Any, target: str | None, **options: Any) -> Any:
        frame = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1000).parquet(files)
        writer = frame.writeStream.trigger(availableNow=True)
        if target is None:
            return writer.format("noop")
        given = {"service.url": self.url, "topic": target, **options}
        return writer.format("pulsar").options(**given)

    def writes(self, run: int, told: bool) -> None:
        files, empty = str(self.folder / "rows"), str(self.folder / "nothing")
        if not Path(files).exists():
            self.frame.write.parquet(files)
            self.frame.limit(0).write.parquet(empty)
        schema = self.frame.schema
        for name, options in (("at least once", {}), ("exactly once", {"exactlyOnce": "true"})):
            target = f"persistent://public/default/sink-{run}-{time.time_ns()}"
            work = f"Spark stream write, {name}"
            self.stream(
                work, OURS,
                lambda full, t=target, o=options: self.sink(files if full else empty, schema, t, **o), told,
            )  # fmt: skip
        self.stream(
            "Spark stream write, at least once", SPARK_ITSELF,
            lambda full: self.sink(files if full else empty, schema, None), told,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2_000_000)
    given = parser.parse_args()
    bench = Bench(given.url, given.rows)
    empty = f"persistent://public/default/empty-{time.time_ns()}"
    with geminga.Client(given.url) as client:
        client.create_producer(empty).close()
    for run in range(given.runs + 1):
        topic = f"persistent://public/default/spark-{run}-{time.time_ns()}"
        bench.batches(topic, bool(run))
        bench.reads(topic, empty, bool(run))
        bench.writes(run, bool(run))
    bench.close()


if __name__ == "__main__":
    main()
