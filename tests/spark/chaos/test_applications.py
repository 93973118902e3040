"""Applications that lose their driver, or an executor, at scripted moments; and twins of slow tasks."""

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from chaos import KEEPING, Audience, GemingaBroker, Rows, rows
from faulty_source import Script
from waiting import eventually

from geminga.testing.processes import Process
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(2400)]

CHAOS = str(Path(__file__).parent)
SETTINGS = {
    "spark.ui.enabled": "false", "spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
}  # fmt: skip
SECONDS_MAX = 600.0


@pytest.fixture(scope="module")
def audience(tmp_path_factory):
    with GemingaBroker(tmp_path_factory.mktemp("broker")) as broker:
        broker.wait_ready()
        with Audience.open(broker) as audience:
            yield audience


@dataclass
class Stream:
    """From a topic of its own into another."""

    audience: Audience
    folder: Path
    exactly_once: bool = True

    def __post_init__(self) -> None:
        self.folder.mkdir()
        number = uuid4().hex[:10]
        self.source = f"persistent://{KEEPING}/from-{number}"
        self.target = f"persistent://{KEEPING}/to-{number}"
        self.given: Rows = Counter()
        for topic in (self.source, self.target):
            self.audience.make_topic(topic)

    def publish(self, count: int) -> None:
        fresh = rows(self.given.total(), count)
        self.given += fresh
        self.audience.publish(self.source, fresh)

    def options(self, script: Script, rows_per_trigger: int) -> dict[str, Any]:
        common = {
            "service.url": self.audience.broker.service_url, "script": script.text,
            "operationTimeoutMs": "60000",
        }  # fmt: skip
        source = {
            **common, "topic": self.source, "columns": "value,__key", "startingOffsets": "earliest",
            "maxRowsPerTrigger": str(rows_per_trigger),
        }  # fmt: skip
        sink = {
            **common, "topic": self.target, "batchingMaxMessages": "10",
            "exactlyOnce": str(self.exactly_once).lower(),
            "checkpointLocation": str(self.folder / "checkpoint"),
        }  # fmt: skip
        return {"source": source, "sink": sink}

    def audit(self) -> None:
        found = self.audience.found(self.target)
        missing, surplus = self.given - found, found - self.given
        told = f"of {self.given.total()} rows {missing.total()} are lost, {surplus.total()} doubled"
        assert not missing, told
        assert set(found) == set(self.given), "rows that nobody gave"
        assert not self.exactly_once or not surplus, told


def _python_path() -> str:
    """Return where Spark's processes find the faults and, as this process does, the package."""
    return os.pathsep.join([CHAOS, os.environ.get("PYTHONPATH", "")])


def started(folder: Path, master: str, streams: list[dict[str, Any]], **settings: str) -> Process:
    job = {"master": master, "settings": {**SETTINGS, **settings}, "streams": streams}
    command = [sys.executable, f"{CHAOS}/application.py", json.dumps(job)]
    return Process.start(
        f"application-{uuid4().hex[:6]}", folder, command,
        PYTHONPATH=_python_path(), PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )  # fmt: skip


def test_a_stream_survives_kills_of_its_driver_at_every_point(audience, tmp_path):
    """The whole application is killed at each point; each time it continues from its checkpoint."""
    moments = (
        "written", "committing", "deciding", "decided", "publishing", "published", "finished", "planned",
        "looking", "reading",
    )  # fmt: skip
    stream = Stream(audience, tmp_path / "stream")
    stream.publish(60 * 3 * len(moments))
    for point in moments:
        folder = tmp_path / point
        folder.mkdir()
        script = Script(str(folder), point, 1, "wait")
        application = started(tmp_path, "local[2]", [stream.options(script, 60)])
        try:
            wait_until_struck(script, application)
        finally:
            application.kill()
    last = started(tmp_path, "local[2]", [stream.options(Script(str(tmp_path)), 600)])
    finish(last)
    stream.audit()


def wait_until_struck(script: Script, application: Process) -> None:
    def has_struck() -> bool:
        assert application.process.poll() is None, f"it ended before {script.point}: {log_of(application)}"
        return script.has_struck

    eventually(has_struck, SECONDS_MAX, f"never reached {script.point}")


def finish(application: Process) -> None:
    try:
        assert application.process.wait(SECONDS_MAX) == 0, log_of(application)
    finally:
        application.kill()


def log_of(application: Process) -> str:
    return application.log.read_text(errors="replace")[-3000:]


def test_killed_executors_and_speculative_tasks_lose_and_double_nothing(audience, tmp_path):
    """Two workers, as two machines: a twin never runs where its task does."""
    faults = [
        (point, fault, exactly_once)
        for fault in ("kill executor", "stall")
        for point in ("reading", "writing", "staging", "written")
        for exactly_once in (True, False)
        if exactly_once or point != "staging"
    ]
    streams, jobs, scripts = [], [], []
    for number, (point, fault, exactly_once) in enumerate(faults):
        stream = Stream(audience, tmp_path / f"{number}", exactly_once)
        stream.publish(180)
        script = Script(str(stream.folder), point, 2, fault)
        streams.append(stream)
        scripts.append(script)
        jobs.append(stream.options(script, 60))
    with SparkCluster.start(tmp_path / "cluster", hosts=("127.0.0.1", "127.0.0.2"), cores=2) as cluster:
        application = started(
            tmp_path, cluster.url, jobs,
            **{
                "spark.executor.memory": "700m", "spark.speculation": "true",
                "spark.speculation.interval": "100ms", "spark.speculation.multiplier": "1.5",
                "spark.speculation.quantile": "0.5", "spark.speculation.minTaskRuntime": "500ms",
                "spark.deploy.maxExecutorRetries": "-1", "spark.task.maxFailures": "8",
                "spark.excludeOnFailure.enabled": "false",
                "spark.executorEnv.PYTHONPATH": _python_path(),
            },
        )  # fmt: skip
        finish(application)
    for stream, script in zip(streams, scripts, strict=True):
        assert script.has_struck, script
        try:
            stream.audit()
        except AssertionError as error:
            raise AssertionError(f"{script.fault} at {script.point}: {error}") from error
