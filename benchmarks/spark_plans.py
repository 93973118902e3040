"""Costs of a query over many partitions before a row is read, in a process of its own, without Spark.

Measures the driver's half of ``format("pulsar")``: the plan of a batch query, and the trigger of a stream
without new messages. Both query all partitions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

import geminga
from benchmarks.harness import OURS, Figure, emit
from geminga.client.admin import admin
from geminga.spark.datasource import PulsarDataSource, PulsarReader, PulsarStreamReader

PARTITIONS = 512
TRIGGERS = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--admin-url", required=True)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    topic = f"wide-{time.time_ns()}"
    path = f"persistent/public/default/{topic}/partitions"
    admin(given.admin_url, "PUT", path, json.loads(str(PARTITIONS)))
    count = PARTITIONS * 20
    with (
        geminga.Client(given.url) as client,
        client.create_producer(topic, batching_max_messages=10) as producer,
    ):
        keys = [str(number) for number in range(count)]
        values = pa.array([b"x" * 100] * count, pa.binary())
        producer.send_table(pa.table({"key": keys, "value": values}))
    options = {"service.url": given.url, "topic": topic, "startingoffsets": "earliest"}
    source = PulsarDataSource(options)
    schema = source.schema()
    name = f"Spark, {PARTITIONS} partitions"

    def ms(start: float) -> float:
        return (time.perf_counter() - start) * 1000

    for run in range(given.runs + 1):
        start, cpu = time.perf_counter(), time.process_time()
        batch = source.reader(schema)
        assert isinstance(batch, PulsarReader)
        assert len(batch.partitions()) == PARTITIONS
        found, cpu = ms(start), (time.process_time() - cpu) * 1000
        if run:
            emit(Figure(work=f"{name}: a batch query's plan", who=OURS, value=found, unit="ms"))
            emit(Figure(work=f"{name}: a batch query's plan, client's CPU", who=OURS, value=cpu, unit="ms"))
    stream = source.streamReader(schema)
    assert isinstance(stream, PulsarStreamReader)
    begin = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for run in range(given.runs + 1):
        times, cpus = [], []
        for _ in range(TRIGGERS):
            start, cpu = time.perf_counter(), time.process_time()
            assert stream.latestOffset(begin, ReadAllAvailable()) == begin
            times.append(ms(start))
            cpus.append((time.process_time() - cpu) * 1000)
        if run:
            emit(Figure(work=f"{name}: an idle trigger", who=OURS, value=statistics.median(times), unit="ms"))
            emit(
                Figure(
                    work=f"{name}: an idle trigger, client's CPU", who=OURS, value=statistics.median(cpus),
                    unit="ms",
                )
            )  # fmt: skip
    stream.stop()


if __name__ == "__main__":
    main()
