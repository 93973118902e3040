"""Ten everyday jobs of ``format("pulsar")`` beside the same jobs written with Spark's own means.

A job over payloads stands beside ``from_json`` over the column ``value``; a job that moves rows beside the
same query with the ``noop`` sink. Messages are published in batches. CPU is that of driver, JVM and Python
workers together, without the broker's; the time is that of the whole query, its start included.
``--publish`` writes the figures from which ``make docs`` draws ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, functions

import geminga
from benchmarks import brokers, figures, output
from benchmarks.harness import OURS, Measurement
from benchmarks.spark_rows import SPARK_ITSELF, Bench
from geminga.tuning.measuring.host import machine

PUBLISHED = Path(__file__).parent.parent / "docs/proof/spark_jobs.json"
FROM_JSON = "from_json over value"
SMALL_TOPICS = 200
BAD_EVERY = 16_384
START_MS = 1_700_000_000_000
"""Event time of a topic's first row; each row is 10 ms later."""

PLAIN = "id BIGINT, name STRING, price DOUBLE"
PAYLOADS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "plain fields": (PLAIN, lambda i: {"id": i, "name": f"item{i % 100}", "price": i * 0.25}),
    "a map": (
        "id BIGINT, name STRING, counts MAP<STRING, INT>",
        lambda i: {"id": i, "name": f"item{i % 100}", "counts": {"a": i, "b": 1}},
    ),
    "objects in a STRING column": (
        "id BIGINT, name STRING, more STRING",
        lambda i: {"id": i, "name": f"item{i % 100}", "more": {"a": i, "b": "x"}},
    ),
    "a timestamp and a decimal": (
        "id BIGINT, at TIMESTAMP, price DECIMAL(20, 4)",
        lambda i: {"id": i, "at": f"2024-02-29T12:30:{i % 60:02d}.25Z", "price": f"{i}.2500"},
    ),
}


class Jobs(Bench):
    """The jobs, over topics that are filled once."""

    def fill(self) -> None:
        self.spark.conf.set("spark.sql.shuffle.partitions", "4")
        with geminga.Client(self.url) as client:
            for number, (_, row) in enumerate(PAYLOADS.values()):
                self._publish(client, f"jobs-{number}", map(row, range(self.rows)))
            plain = PAYLOADS["plain fields"][1]
            self._publish(
                client, "jobs-bad", (b"{" if i % BAD_EVERY == 9 else plain(i) for i in range(self.rows))
            )
            for number in range(SMALL_TOPICS):
                self._publish(client, f"small-{number}", [plain(number)])

    def _publish(self, client: geminga.Client, topic: str, rows: Any) -> None:
        with client.create_producer(topic, batching_enabled=True, block_if_queue_full=True) as producer:
            for number, row in enumerate(rows):
                payload = row if isinstance(row, bytes) else json.dumps(row).encode()
                producer.send_async(
                    payload, None, partition_key=f"k{number % 1000}", event_timestamp=START_MS + 10 * number
                )
            producer.flush()

    def batch(self, **options: Any) -> Any:
        return self.spark.read.format("pulsar").options(**{"service.url": self.url, **options})

    def changes(self, **options: Any) -> Any:
        reader = self.spark.readStream.format("pulsar").option("startingOffsets", "earliest")
        return reader.options(**{"service.url": self.url, **options})

    def typed(self, reader: Any, schema: str, more: str = "") -> DataFrame:
        return reader.options(valueSchema="JSON", mode="PERMISSIVE").schema(f"{schema}{more}").load()

    def parsed(self, reader: Any, schema: str, more: str = "") -> DataFrame:
        rows = reader.option("columns", "value" + more).load()
        row = functions.from_json(functions.col("value").cast("string"), schema)
        return rows.withColumn("row", row).drop("value").select("row.*", "*").drop("row")

    def to_noop(self, rows: DataFrame) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def run_stream(self, rows: DataFrame, kind: str = "noop", **options: Any) -> None:
        folder = str(self.folder / f"c{time.time_ns()}")
        writer = rows.writeStream.format(kind).options(**options).trigger(availableNow=True)
        writer.start(checkpointLocation=folder).awaitTermination()

    def counted(self, rows: DataFrame) -> DataFrame:
        timed = rows.withWatermark("__eventTime", "1 minute")
        return timed.groupBy(functions.window("__eventTime", "1 minute"), "name").count()

    def jobs(self) -> dict[str, dict[str, Callable[[], None]]]:
        """Ways to do each job, by their names."""
        payloads = {name: (f"jobs-{n}", schema) for n, (name, (schema, _)) in enumerate(PAYLOADS.items())}
        payloads["one bad row in 16,384"] = ("jobs-bad", PLAIN)
        found = {f"JSON with {name}": self.of_payload(*given) for name, given in payloads.items()}
        timed = self.typed(self.changes(topic="jobs-0"), PLAIN, ", __eventTime TIMESTAMP")
        found["stream: counts by minute and name"] = {
            OURS: lambda: self.run_stream(self.counted(timed)),
            FROM_JSON: lambda: self.run_stream(
                self.counted(self.parsed(self.changes(topic="jobs-0"), PLAIN, ",__eventTime"))
            ),
        }
        found["stream: JSON to Parquet"] = {
            OURS: lambda: self.to_table(self.typed(self.changes(topic="jobs-0"), PLAIN)),
            FROM_JSON: lambda: self.to_table(self.parsed(self.changes(topic="jobs-0"), PLAIN)),
        }
        found["stream: copy a topic"] = self.copies(exactly_once=False)
        found["stream: copy a topic exactly once"] = self.copies(exactly_once=True)
        small = ",".join(f"small-{number}" for number in range(SMALL_TOPICS))
        found[f"{SMALL_TOPICS} topics of one row"] = {
            OURS: lambda: self.to_noop(self.batch(topics=small).load()),
            "one topic": lambda: self.to_noop(self.batch(topic="small-0").load()),
        }
        return found

    def of_payload(self, topic: str, schema: str) -> dict[str, Callable[[], None]]:
        return {
            OURS: lambda: self.to_noop(self.typed(self.batch(topic=topic), schema)),
            FROM_JSON: lambda: self.to_noop(self.parsed(self.batch(topic=topic), schema)),
        }

    def copies(self, *, exactly_once: bool) -> dict[str, Callable[[], None]]:
        def copy() -> None:
            target = {"topic": f"copy-{time.time_ns()}", "exactlyOnce": str(exactly_once).lower()}
            rows = self.changes(topic="jobs-0").load()
            self.run_stream(rows, "pulsar", **{"service.url": self.url, **target})

        return {OURS: copy, SPARK_ITSELF: lambda: self.run_stream(self.changes(topic="jobs-0").load())}

    def to_table(self, rows: DataFrame) -> None:
        self.run_stream(rows, "parquet", path=str(self.folder / f"t{time.time_ns()}"))

    def measure(self, runs: int) -> list[Measurement]:
        results = []
        for run in range(runs + 1):
            for work, ways in self.jobs().items():
                for who, action in ways.items():
                    seconds, cpu = self.timed(action)
                    rows = SMALL_TOPICS if "topics" in work else self.rows
                    row = Measurement(work=work, who=who, messages=rows, seconds=seconds, cpu_seconds=cpu)
                    print(f"run {run}: {work}, {who}: {seconds:.1f} s, CPU {cpu:.1f} s", file=sys.stderr)
                    results += [row] if run else []
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each job, after one that is not")
    parser.add_argument("--rows", type=int, default=500_000, help="messages of each topic")
    output.add_options(parser, PUBLISHED)
    given = parser.parse_args()
    before = os.getloadavg()[0]
    with brokers.work_folder() as folder, brokers.geminga(folder, extra=("--deduplication",)) as ours:
        jobs = Jobs(ours.service_url, given.rows, ours.pid)
        try:
            jobs.fill()
            results = jobs.measure(given.runs)
        finally:
            jobs.close()
    load = sorted(round(each, 1) for each in (before, os.getloadavg()[0]))
    values = {
        "machine": machine(), "load": load, "rows": [asdict(each) for each in results],
        "messages": given.rows, "runs": given.runs,
    }  # fmt: skip
    if given.publish:
        output.publish(PUBLISHED, values)
    output.show(given, figures.spark_jobs(values))


if __name__ == "__main__":
    main()
