"""Offloaded ledgers in Spark: ``format("pulsar")`` beside Spark's own Parquet source on the same files.

Both give the same columns of the same rows to a sink that takes them and does nothing, by turns in one
session, after runs that are not counted. What is told are whole queries, as a user waits for them: planning,
tasks, and for ours the questions to the broker and the Python workers. CPU is that of Python, the JVM and the
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
from geminga.spark import session

WARM_RUNS = 3
VALUE, SEVEN = "value", "7 columns"
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
    """So many ledgers of the old topic, as files; they are gone from the broker."""
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
                f"{sum(each.stat().st_size for each in files) / 1e6:.0f} MB together, {runs} pairs:\n\n"
                '| columns | format("pulsar"), M rows/s | Parquet source, M rows/s | ratio (quarters) '
                "| CPU µs a row, both |\n|---|---|---|---|---|"
            )
            for columns in (VALUE, SEVEN):
                told.append(f"{columns} × {_pairs(spark, broker, store, files, columns, rows, runs)}")
        finally:
            spark.stop()
    return f"Spark beside its own Parquet source: {', '.join(told)}"


def _pairs(
    spark: Any, broker: RunningBroker, store: Path, files: list[Path], columns: str, rows: int, runs: int
) -> str:  # fmt: skip
    pulsar = (
        spark.read.format("pulsar").option("service.url", broker.service_url)
        .option("offloadLocation", str(store / "tier")).option("columns", ",".join(PULSAR[columns]))
    )  # fmt: skip

    def ours() -> Any:
        return pulsar.load(OLD)

    def theirs() -> Any:
        return spark.read.parquet(*map(str, files)).select(*PARQUET[columns])

    counts = [each().count() for each in (ours, theirs)]
    if not rows <= counts[1] <= counts[0] <= rows + ledgers_ends(files):
        raise RuntimeError(f"{counts[0]} and {counts[1]} rows of {rows}")

    def timed(frame: Callable[[], Any]) -> tuple[float, float]:
        cpu, start = cpu_seconds(), time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start, cpu_seconds() - cpu

    for _ in range(WARM_RUNS):
        timed(ours), timed(theirs)
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for run in range(runs):
        for is_ours in (True, False) if run % 2 else (False, True):
            taken[is_ours].append(timed(ours if is_ours else theirs))
    ratio = spread([b[0] / a[0] for a, b in zip(taken[True], taken[False], strict=True)])
    rates = [rows / statistics.median(each[0] for each in taken[who]) / 1e6 for who in (True, False)]
    cpus = [statistics.median(each[1] for each in taken[who]) / rows * 1e6 for who in (True, False)]
    print(f"| {columns} | {rates[0]:.2f} | {rates[1]:.2f} | {ratio} | {cpus[0]:.2f} and {cpus[1]:.2f} |")
    return ratio


def ledgers_ends(files: list[Path]) -> int:
    """The messages that closed the ledgers."""
    return len(files) + 1
