"""Offloaded ledgers in Spark: ``format("pulsar")`` and `geminga.spark.snapshot` beside Spark's own Parquet.

All give the same columns of the same rows to Spark's noop sink, in turn in one session, after warm-up runs.
Times are of whole queries: planning, tasks, and for Geminga the requests to the broker and Python workers.
Spark's own source gets the schema, so that it does not infer it. CPU is that of Python, the JVM and the
broker.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import offload_beside
from benchmarks.brokers import RunningBroker
from benchmarks.offload_beside import BATCH, OLD, spread
from benchmarks.spark_rows import cpu_seconds
from geminga.spark import session, snapshot

WARM_RUNS = 3
VALUE, SEVEN = "value", "7 columns"
SOURCE, SNAPSHOT, PARQUET_SOURCE = '`format("pulsar")`', "`snapshot`", "Parquet source"
PARQUET = {
    VALUE: ["value"],
    SEVEN: ["value", "key", "topic", "ledger_id", "entry_id", "batch_index", "publish_time", "event_time",
            "properties"],
}  # fmt: skip
"""The columns of the files that hold what is in those of the source: ids there are three columns."""
PULSAR = {
    VALUE: ["value"],
    SEVEN: ["value", "__key", "__topic", "__ledgerId", "__entryId", "__batchIndex", "__publishTime",
            "__eventTime", "__messageProperties"],
}  # fmt: skip


def offloaded(
    broker: RunningBroker, store: Path, entries: list[bytes], ledgers: int, rows: int
) -> list[Path]:
    """Offload ``ledgers`` ledgers of the old topic; return their files."""
    for _ in range(ledgers):
        offload_beside.fill(broker, store, entries, rows // ledgers // BATCH)
    offload_beside.command(broker)
    while offload_beside.status(broker) == "RUNNING":
        time.sleep(0.1)
    return sorted((store / "tier").rglob("*.parquet"))


def measure(base: Path | None, *, rows: int, ledgers: int, runs: int) -> str:
    """Measure and print; returns what counts most in one line."""
    settings = {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g",
        "spark.log.level": "OFF",
    }  # fmt: skip
    with offload_beside.fresh(base, offload_beside.DISK, drops=True) as (broker, store):
        files = offloaded(broker, store, offload_beside.old_entries(200), ledgers, rows)
        spark = session("local[2]", "bench", settings)
        try:
            told = []
            print(
                f"{rows / 1e6:g} M rows of about 100 B in {len(files)} files of "
                f"{sum(each.stat().st_size for each in files) / 1e6:.0f} MB together, {runs} turns:\n\n"
                "| columns | of | M rows/s | Parquet source | ratio (quarters) | CPU µs a row, both |\n"
                "|---|---|---|---|---|---|"
            )
            for columns in (VALUE, SEVEN):
                told += _turns(spark, broker, store, files, columns, rows, runs)
        finally:
            spark.stop()
    return f"Spark beside its own Parquet source: {', '.join(told)}"


def _turns(
    spark: Any, broker: RunningBroker, store: Path, files: list[Path], columns: str, rows: int, runs: int
) -> list[str]:
    options = {
        "service.url": broker.service_url, "topic": OLD, "offloadLocation": str(store / "tier"),
        "columns": ",".join(PULSAR[columns]),
    }  # fmt: skip
    paths = [str(each) for each in files]
    schema = spark.read.parquet(*paths).schema
    frames: dict[str, Callable[[], Any]] = {
        SOURCE: lambda: spark.read.format("pulsar").options(**options).load(),
        SNAPSHOT: lambda: snapshot(spark, options).frame,
        PARQUET_SOURCE: lambda: spark.read.schema(schema).parquet(*paths).select(*PARQUET[columns]),
    }
    counts = [frame().count() for frame in frames.values()]
    if counts[0] != counts[1] or not rows <= counts[2] <= counts[0] <= rows + ledgers_ends(files):
        raise RuntimeError(f"{counts} rows of {rows}")

    def timed(frame: Callable[[], Any]) -> tuple[float, float]:
        cpu, start = cpu_seconds(), time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start, cpu_seconds() - cpu

    for _ in range(WARM_RUNS):
        for frame in frames.values():
            timed(frame)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in frames}
    for run in range(runs):
        for name in list(frames)[:: 1 if run % 2 else -1]:
            taken[name].append(timed(frames[name]))
    theirs = taken[PARQUET_SOURCE]
    told = []
    for name in (SOURCE, SNAPSHOT):
        ratio = spread([b[0] / a[0] for a, b in zip(taken[name], theirs, strict=True)])
        rates = [rows / statistics.median(each[0] for each in who) / 1e6 for who in (taken[name], theirs)]
        cpus = [statistics.median(each[1] for each in who) / rows * 1e6 for who in (taken[name], theirs)]
        print(
            f"| {columns} | {name} | {rates[0]:.2f} | {rates[1]:.2f} | {ratio} "
            f"| {cpus[0]:.2f} and {cpus[1]:.2f} |",
            flush=True,
        )
        told.append(f"{name}, {columns} × {ratio}")
    return told


def ledgers_ends(files: list[Path]) -> int:
    """The messages that closed the ledgers."""
    return len(files) + 1
