"""A large fleet: two thousand topics asked by admin REST, and Parquet with a size for each topic."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import geminga
from geminga.client.admin import admin
from geminga.errors import ConnectError
from geminga.tuning import cost
from geminga.tuning.fleet import FleetPlan, advise_fleet, advise_topic, report, savings
from geminga.tuning.fleet_statistics import gather
from geminga.tuning.sample import _standard_sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPICS = 2000
BUSY = 200
"""Topics that are published to while they are watched."""


@pytest.mark.rotating(1, group="large fleet")
@pytest.mark.timeout(600)
def test_two_thousand_topics_of_a_broker_are_advised(spark: SparkSession, tmp_path: Path) -> None:
    with geminga.embedded() as broker, geminga.Client(broker.service_url) as client:
        for number in range(TOPICS):
            admin(broker.admin_url, "PUT", f"persistent/public/default/fleet-{number:04d}")
        producers = [client.create_producer(f"fleet-{n * TOPICS // BUSY:04d}") for n in range(BUSY)]
        ending = threading.Event()

        def publish() -> None:
            while not ending.wait(0.05):
                for producer in producers:
                    producer.send_async(bytes(100), None)

        sender = threading.Thread(target=publish)
        sender.start()
        looks: list[tuple[int, int]] = []
        try:
            table = gather(broker.admin_url, watch_seconds=1.0, progress=lambda *at: looks.append(at))
        finally:
            ending.set()
            sender.join()
        assert looks[-1] == (2 * TOPICS, 2 * TOPICS)
        names = {row["topic"] for row in table.to_pylist()}
        assert len(names) == BUSY, "a topic is told once, and idle ones are left out"
        pq.write_table(table, tmp_path / "statistics.parquet")
        plan = FleetPlan(cost=cost.standard())
        found = advise_fleet(spark, pq.read_table(tmp_path / "statistics.parquet"), plan)
        sums = savings(found, plan)
        assert (sums.topics, sums.problems) == (BUSY, 0)
        assert f"{BUSY} topics" in report(found, sums)


def test_a_broker_that_stops_between_two_queries_is_named() -> None:
    with geminga.embedded() as broker, geminga.Client(broker.service_url) as client:
        for number in range(20):
            client.create_producer(f"fleet-{number}").close()

        def progress(done: int, total: int) -> None:
            if done == 20:
                broker.close()

        with pytest.raises(ConnectError, match="is the broker running"):
            gather(broker.admin_url, watch_seconds=0.1, progress=progress)


@pytest.mark.rotating(1, group="large fleet")
@pytest.mark.timeout(600)
def test_hundreds_of_topics_from_parquet_are_advised(spark: SparkSession) -> None:
    draw = random.Random(1)
    count = 300
    table = pa.table(
        {
            "topic": [f"persistent://public/default/t{n}" for n in range(count)],
            "rate_messages_per_second": [draw.lognormvariate(4, 2) for _ in range(count)],
            "message_bytes": [draw.lognormvariate(6, 1.5) for _ in range(count)],
            "partitions": [draw.choice((1, 4, 16)) for _ in range(count)],
            "subscriptions": [draw.choice((0, 1, 2)) for _ in range(count)],
            "compression": [draw.choice(("NONE", "LZ4", "ZSTD")) for _ in range(count)],
        }
    )
    plan = FleetPlan(cost=cost.standard())
    found = advise_fleet(spark, table, plan)
    sums = savings(found, plan)
    assert (sums.topics, sums.problems) == (count, 0)
    assert sums.after.entries_per_second < sums.before.entries_per_second
    assert sums.after.broker_cpu < sums.before.broker_cpu
    # What Spark's processes do is done here once more: a sample for each range of sizes, not for each size.
    _standard_sample.cache_clear()
    for row in table.slice(0, 100).to_pylist():
        advise_topic(row, plan)
    assert _standard_sample.cache_info().misses < 60
