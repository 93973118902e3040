"""The pipeline templates that ``make test`` has no time for, with Spark and a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.dataset as dataset
import pytest

import geminga
from geminga.spark.pipelines.project import create
from geminga.spark.pipelines.running import run

SCHEMA = "name STRING, at TIMESTAMP"
pytestmark = pytest.mark.interop


@pytest.mark.timeout(420)
def test_rollup_tells_the_lake_and_a_topic_the_same(tmp_path: Path) -> None:
    settings = {"web_port": None, "deduplication": True}
    with geminga.embedded(**settings) as broker, broker.client() as client:
        producer = client.create_producer("events", batching_enabled=True)
        for number in range(600):
            row = {"name": f"n{number % 3}", "at": f"2026-11-02T00:{number // 60:02}:{number % 60:02}Z"}
            producer.send_async(json.dumps(row).encode(), lambda result, message_id: None)
        producer.flush()
        project = tmp_path / "counted"
        create(
            project,
            "rollup",
            {
                "service_url": broker.service_url,
                "schema": SCHEMA,
                "window": "1 minute",
                "lateness": "1 minute",
            },
        )
        outcome = run(project)
        assert outcome.exit_code == 0, "\n".join([outcome.error, *outcome.output[-60:]])
        reader = client.create_reader("event-counts", geminga.MessageId.earliest)
        told = []
        while reader.has_message_available():
            message = reader.read_next(5000)
            told.append(json.loads(message.data()))
            assert message.partition_key() == told[-1]["name"]
    windows = dataset.dataset(project / "lake" / "event_counts", format="parquet").to_table().to_pylist()
    assert windows
    in_lake = sorted(
        (each["window_start"].isoformat()[:19], each["name"], each["messages"]) for each in windows
    )
    in_topic = sorted((each["window_start"][:19], each["name"], each["messages"]) for each in told)
    assert in_topic == in_lake


@pytest.mark.timeout(240)
def test_what_goes_wrong_is_said_in_a_line(tmp_path: Path) -> None:
    project = tmp_path / "wrong"
    create(project, "ingest", {"schema": "id NUMBERISH"})
    outcome = run(project)
    assert outcome.exit_code != 0
    assert outcome.error
    assert outcome.after == {}
