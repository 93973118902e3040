"""A small fleet on real Spark, from Parquet and from the embedded broker's admin REST."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import geminga
from geminga.cli.main import command
from geminga.errors import InvalidConfiguration
from geminga.tuning import cost
from geminga.tuning.fleet import FleetPlan, advise_fleet, advise_topic
from geminga.tuning.fleet_statistics import gather, topics_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def fleet(count: int) -> pa.Table:
    return pa.table(
        {
            "topic": [f"persistent://public/default/t{number}" for number in range(count)],
            "rate_messages_per_second": [50.0 * (number + 1) for number in range(count)],
            "message_bytes": [100.0 + 50 * (number % 4) for number in range(count)],
            "partitions": [1 + number % 5 for number in range(count)],
            "entries_per_second": [None if number % 3 else 40.0 * (number + 1) for number in range(count)],
            "owner": ["somebody"] * count,
        }
    )


def test_advice_of_many_topics_equals_that_of_single_ones(spark: SparkSession) -> None:
    plan = FleetPlan(cost=cost.standard())
    topics = fleet(30)
    found = advise_fleet(spark, topics, plan).to_pylist()
    assert [row["topic"] for row in found] == topics.column("topic").to_pylist()
    for row, given in zip(found[::9], topics.to_pylist()[::9], strict=True):
        alone: dict[str, Any] = advise_topic(given, plan)
        assert {name: row[name] for name in alone} == alone


def test_the_command_reads_parquet(spark: SparkSession, tmp_path: Path) -> None:
    file, output = tmp_path / "topics.parquet", tmp_path / "out"
    pq.write_table(fleet(12), file)
    arguments = ["tune", "fleet", "--topics", str(file), "--output", str(output), "--compression", "ZSTD"]
    result = CliRunner().invoke(command, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    sums = json.loads(result.stdout)
    assert sums["topics"] == 12
    assert sums["after"]["entries_per_second"] < 0.7 * sums["before"]["entries_per_second"]
    settings = pq.read_table(output / "settings.parquet")
    assert set(settings.column("compression").to_pylist()) == {"ZSTD"}
    assert "12 topics" in (output / "fleet.md").read_text()


def test_statistics_come_from_admin_rest(pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str) -> None:
    producer = pulsar_client.create_producer(pulsar_topic, batching_enabled=True, batching_max_messages=10)
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(0.005):
            producer.send_async(bytes(100), None)

    sender = threading.Thread(target=publish)
    sender.start()
    try:
        table = gather(pulsar_broker.admin_url, watch_seconds=0.6)
    finally:
        stop.set()
        sender.join()
    rows = {row["topic"]: row for row in table.to_pylist()}
    row = rows[pulsar_topic]
    assert row["rate_messages_per_second"] > 10
    assert row["entries_per_second"] <= row["rate_messages_per_second"] * 1.001
    assert row["message_bytes"] > 90
    assert row["producers"] == 1


def test_idle_topics_are_reported(pulsar_broker: Any, pulsar_client: Any, pulsar_topic: str) -> None:
    pulsar_client.create_producer(pulsar_topic).close()
    assert pulsar_topic in [
        str(name) for name, _ in topics_of(geminga.Admin(pulsar_broker.admin_url), "public/default")
    ]
    with pytest.raises(InvalidConfiguration, match="nothing was published"):
        gather(pulsar_broker.admin_url, ["public/default"], watch_seconds=0.1)


def test_a_file_that_is_no_parquet_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "topics.parquet"
    file.write_text("topic,rate\n")
    result = CliRunner().invoke(command, ["tune", "fleet", "--topics", str(file), "--output", str(tmp_path)])
    assert result.exit_code != 0
    assert "is no Parquet file" in str(result.exception)
