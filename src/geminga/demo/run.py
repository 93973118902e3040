"""The demo from end to end: broker, publishing, Spark with a break, proof, summary."""

from __future__ import annotations

import contextlib
import logging
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import geminga
from geminga.client.admin import admin, topic_path
from geminga.demo import flights, pipeline
from geminga.demo.console import Console
from geminga.demo.flights import Checksum
from geminga.errors import PulsarException, UsageError
from geminga.ids import TopicName

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC = "persistent://public/default/flights"
PARTITIONS = 4
ROWS_PER_BATCH = 40_000
MARKER = ".geminga-demo"
SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
}


class ProofFailed(PulsarException):
    """The lake does not hold what was published: rows were lost or doubled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One way of publishing and what it took."""

    how: str
    rows: int
    bytes: int
    seconds: float
    cpu_seconds: float


def prepare_folder(folder: Path) -> Path:
    """An empty folder for the output; one of an earlier demo is emptied, anything else is left alone."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise UsageError(
                f"{folder} holds files that are not from this demo: choose another with --output"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    return folder.absolute()


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def publish_rows(client: Any, table: pa.Table, console: Console) -> Published:
    """One ``send_async`` an event, as any program would."""
    keys = table.column("key").to_pylist()
    values = table.column("value").to_pylist()
    times = table.column("event_time").cast("int64").to_pylist()
    failed: list[Any] = []

    def receipted(result: Any, _message_id: Any) -> None:
        if result != geminga.Result.Ok:
            failed.append(result)

    producer = client.create_producer(
        TOPIC,
        batching_enabled=True,
        block_if_queue_full=True,
        compression_type=geminga.CompressionType.LZ4,
    )
    started, cpu = time.perf_counter(), _cpu_seconds()
    with console.progress("publishing row by row", len(values)) as progress:
        for index, (key, value, event_time) in enumerate(zip(keys, values, times, strict=True)):
            producer.send_async(value, receipted, partition_key=key, event_timestamp=event_time)
            if not index % 5_000:
                progress(index)
        producer.flush()
        progress(len(values))
    seconds, cpu = time.perf_counter() - started, _cpu_seconds() - cpu
    producer.close()
    if failed:
        raise ProofFailed(f"{len(failed)} of {len(values)} sends were not receipted: {failed[0]}")
    size = sum(map(len, values))
    return Published(how="rows", rows=len(values), bytes=size, seconds=seconds, cpu_seconds=cpu)


def publish_columns(client: Any, table: pa.Table, console: Console) -> Published:
    """The same events as Arrow tables."""
    size = table.column("value").nbytes
    # Partition, encoding and compression kernels are compiled at their first use.
    warm = client.create_producer("persistent://public/default/warm-up")
    warm.send_table(table.slice(0, 100))
    warm.close()
    producer = client.create_producer(TOPIC, compression_type=geminga.CompressionType.LZ4)
    started, cpu = time.perf_counter(), _cpu_seconds()
    with console.progress("publishing columns", table.num_rows) as progress:
        for first in range(0, table.num_rows, 50_000):
            part = table.slice(first, 50_000)
            producer.send_table(part)
            progress(first + part.num_rows)
    seconds, cpu = time.perf_counter() - started, _cpu_seconds() - cpu
    producer.close()
    return Published(how="columns", rows=table.num_rows, bytes=size, seconds=seconds, cpu_seconds=cpu)


def publish_closing(client: Any, last: datetime) -> None:
    """One event long after the last, so that the watermark passes and every window is written."""
    producer = client.create_producer(TOPIC)
    closing = last + timedelta(days=366)
    producer.send(
        b"{}",
        properties={pipeline.CLOSING_PROPERTY: "true"},
        event_timestamp=int(closing.timestamp() * 1000),
    )
    producer.close()


def run_demo(folder: Path, console: Console, *, rows: int | None = None) -> dict[str, Any]:
    """Run everything; returns the summary that is printed. Raises `ProofFailed` when a row is missing."""
    from geminga.spark.java import check_java

    check_java()  # before minutes of work, not behind them
    folder = prepare_folder(folder)
    started = time.perf_counter()
    console.step("Reading the flights")
    table = flights.events(rows)
    expected = Checksum.of(table.column("value").to_pylist())
    half = table.num_rows // 2
    with geminga.embedded(folder / "store") as broker:
        console.step(
            f"Broker at {broker.service_url}, its store in {folder / 'store'} (every receipt synced)"
        )
        with broker.client() as client:
            _create_topic(broker.admin_url)
            published = [
                publish_rows(client, table.slice(0, half), console),
                publish_columns(client, table.slice(half), console),
            ]
            for one in published:
                console.line(
                    f"{one.how:>8}: {one.rows:,} events in {one.seconds:.2f} s = "
                    f"{one.rows / one.seconds:,.0f} a second, "
                    f"{one.cpu_seconds / one.rows * 1e6:.1f} µs of CPU each (broker included)"
                )
            runs = _stream(folder, broker, client, table, console)
        lake, spark_runs, sums, best = runs
    summary = {
        "events": expected.count,
        "published": [
            {"how": p.how, "rows": p.rows, "bytes": p.bytes, "seconds": round(p.seconds, 3)}
            for p in published
        ],
        "spark": [
            {"query": r.query, "rows": r.rows, "batches": r.batches, "seconds": round(r.seconds, 2)}
            for r in spark_runs
        ],
        "lake": {"flights": lake.table("flights"), "delays": lake.table("delays")},
        "windows": sums.window_count,
        "proof": {
            "published": {"count": expected.count, "crc32_sum": expected.total},
            "rows": {"count": sums.rows.count, "crc32_sum": sums.rows.total},
            "windows": {"count": sums.windows.count, "crc32_sum": sums.windows.total},
            "dropped_late": sum(r.dropped_late for r in spark_runs),
        },
        "airlines": best,
        "seconds": round(time.perf_counter() - started, 1),
    }
    console.summary(summary)
    if not expected == sums.rows == sums.windows:
        raise ProofFailed(
            f"published {expected}, but the lake's rows are {sums.rows} and its windows {sums.windows}"
        )
    return summary


def _create_topic(admin_url: str) -> None:
    admin(admin_url, "PUT", f"{topic_path(TopicName.parse(TOPIC))}/partitions", PARTITIONS)


@contextlib.contextmanager
def _quiet_ctrl_c() -> Iterator[None]:
    """Ctrl-C inside breaks off without a word.

    PySpark's own handler calls the JVM in the middle of another call, and py4j logs a traceback for each
    call that is broken off.
    """

    def break_off(_number: int, _frame: object) -> None:
        logging.disable(logging.CRITICAL)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, break_off)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stream(folder: Path, broker: Any, client: Any, table: pa.Table, console: Console) -> tuple[Any, ...]:
    """Both queries: half the way, a break, on from the checkpoint, the closing event, the sums."""
    from geminga.spark import session

    console.step("Starting Spark")
    spark = session("local[2]", "geminga-demo", SPARK_SETTINGS)
    # A query that is broken off on purpose would fill the screen; real failures come as exceptions.
    spark.sparkContext.setLogLevel("OFF")
    lake = pipeline.Lake(folder=folder)
    source = {
        "service.url": broker.service_url,
        "topic": TOPIC,
        "startingOffsets": "earliest",
        "maxRowsPerTrigger": str(ROWS_PER_BATCH),
    }
    try:
        with _quiet_ctrl_c():
            return _run_queries(spark, source, lake, client, table, console)
    finally:
        spark.stop()


def _run_queries(
    spark: Any, source: dict[str, str], lake: pipeline.Lake, client: Any, table: pa.Table, console: Console
) -> tuple[Any, ...]:
    total = table.num_rows
    runs: list[pipeline.RunReport] = []
    dimensions = pipeline.dimension_frames(spark)
    for query in pipeline.QUERIES:
        with console.progress(f"query {query!r}, first half", total) as progress:
            first = pipeline.run_query(
                spark, query, source, lake, dimensions,
                progress=progress, stop_after_rows=total // 2,
            )  # fmt: skip
        console.line(f"{query!r} broken off after {first.rows:,} rows in {first.batches} batches")
        with console.progress(f"query {query!r}, on from its checkpoint", total) as progress:
            second = pipeline.run_query(
                spark, query, source, lake, dimensions,
                progress=progress, rows_before=first.rows,
            )  # fmt: skip
        runs += [first, second]
    last = table.column("event_time")[-1].as_py().astimezone(UTC)
    publish_closing(client, last)
    for query in pipeline.QUERIES:
        runs.append(pipeline.run_query(spark, query, source, lake, dimensions))
    console.step("Counting and summing what lies in the lake")
    return lake, runs, pipeline.sums(spark, lake), pipeline.highlights(spark, lake)
