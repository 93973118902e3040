"""Each template from `create` to a checked lake, with Spark and a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest

import geminga
from geminga.errors import UsageError
from geminga.spark.pipelines.project import create
from geminga.spark.pipelines.running import FlowChanged, Outcome, run

SCHEMA = "id BIGINT, name STRING, at TIMESTAMP"
ROWS = 600


def publish(client: Any, first: int) -> None:
    """`ROWS` messages over five minutes from ``first`` on; one in twenty is no JSON object."""
    producer = client.create_producer("events", batching_enabled=True, block_if_queue_full=True)
    for number in range(first, first + ROWS):
        row = {
            "id": number,
            "name": f"n{number % 3}",
            "at": f"2026-11-02T{number // 60:02}:{number % 60:02}:00Z",
        }
        producer.send_async(b"{ broken" if number % 20 == 0 else json.dumps(row).encode(), lambda r, m: None)
    producer.flush()
    producer.close()


def successful(folder: Path, events: list[FlowChanged] | None = None) -> Outcome:
    outcome = run(folder, (lambda event: None) if events is None else events.append)
    assert outcome.exit_code == 0, "\n".join([outcome.error, *outcome.output[-60:]])
    return outcome


def test_a_folder_without_a_project_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no spark-pipeline.yml; make a project with"):
        run(tmp_path)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(420)
def test_ingest_takes_every_message_once_over_two_runs(tmp_path: Path) -> None:
    with geminga.embedded(web_port=None) as broker, broker.client() as client:
        publish(client, 0)
        project = tmp_path / "lake_of_events"
        create(project, "ingest", {"service_url": broker.service_url, "schema": SCHEMA})
        events: list[FlowChanged] = []
        first = successful(project, events)
        assert FlowChanged("events", "COMPLETED") in events
        assert first.before == {}
        publish(client, ROWS)
        second = successful(project)
    assert second.before == first.after
    valid = [number for number in range(2 * ROWS) if number % 20]
    rows = dataset.dataset(project / "lake" / "events", format="parquet").to_table()
    assert sorted(rows["id"].to_pylist()) == valid
    assert second.after["events"].rows == len(valid)
    assert second.after["events"].files <= 8
    dead = dataset.dataset(project / "lake" / "events_dead_letters", format="parquet").to_table()
    assert dead["value"].to_pylist() == [b"{ broken"] * (2 * ROWS - len(valid))
    assert "not a JSON object of" in dead["reason"][0].as_py()
