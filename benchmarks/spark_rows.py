"""Spark batch read and write of 100 B rows through ``format("pulsar")``, in a process of its own.

Rates are Spark's whole query, planning included, after a warm-up query: what a user waits for. CPU is
that of the driver, the JVM and the Python workers together. The Scala connector does not run on this
Spark; its figures on a machine of this kind are 0.4-0.6 M rows/s for a batch read and 0.6 M for a write.
"""

from __future__ import annotations

import argparse
import time

import psutil

from benchmarks.harness import OURS, Measurement, emit
from geminga.spark import session

SIZE = 100


def _cpu() -> float:
    """CPU of this process and all that it has started (the JVM and Spark's Python workers)."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=3_000_000)
    given = parser.parse_args()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.log.level": "OFF",
    }
    spark = session("local[2]", "bench", settings)
    rows = spark.range(0, given.rows, numPartitions=2).selectExpr(
        f"cast(rpad(cast(id as string), {SIZE}, 'x') as binary) as value"
    )

    def write(topic: str) -> None:
        rows.write.format("pulsar").option("service.url", given.url).option("topic", topic).mode(
            "append"
        ).save()

    def read(topic: str) -> None:
        reader = spark.read.format("pulsar").option("service.url", given.url).option("columns", "value")
        reader.load(topic).write.format("noop").mode("overwrite").save()

    for run in range(given.runs + 1):
        topic = f"persistent://public/default/spark-{run}-{time.time_ns()}"
        for work, action in (
            ("Spark batch write 100 B", write),
            ("Spark batch read 100 B, value only", read),
        ):
            cpu, start = _cpu(), time.perf_counter()
            action(topic)
            seconds, cpu = time.perf_counter() - start, _cpu() - cpu
            if run:
                emit(Measurement(work=work, who=OURS, messages=given.rows, seconds=seconds, cpu_seconds=cpu))
    spark.stop()


if __name__ == "__main__":
    main()
