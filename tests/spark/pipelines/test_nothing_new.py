"""Runs of the template ingest without new messages end before Spark starts, and no others do."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import geminga
from geminga.client.cluster import Cluster
from geminga.errors import TopicNotFound
from geminga.spark.datasource import PulsarStreamReader
from geminga.spark.options import read_options
from geminga.spark.pipelines import running
from geminga.spark.pipelines.connection import VARIABLE, handed_over
from geminga.spark.pipelines.nothing_new import FINISHED_FILE, definitions
from geminga.spark.pipelines.project import create
from geminga.spark.pipelines.running import run
from geminga.spark.releases import ReadAllAvailable

TABLES = ("events", "events_dead_letters")


@pytest.fixture
def broker():
    with geminga.embedded(web_port=0) as broker, broker.client() as client:
        client.create_producer("events").send(b"{}")
        yield broker


@pytest.fixture
def project(broker, tmp_path):
    """A project as a finished run of Spark leaves it, without rows."""
    folder = tmp_path / "mine"
    create(folder, "ingest", {"service_url": broker.service_url})
    reader = PulsarStreamReader(
        read_options({"service.url": broker.service_url, "topic": "events", "startingOffsets": "earliest"}),
        StructType(),
    )
    end = json.dumps(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    reader.stop()
    for table in TABLES:
        for name, lines in (("offsets", ["v1", "{}", end]), ("commits", ["v1", "{}"])):
            path = checkpoint(folder, table) / name / "0"
            path.parent.mkdir(parents=True)
            path.write_text("\n".join(lines))
        (folder / "lake" / table).mkdir(parents=True)
    (folder / FINISHED_FILE).parent.mkdir()
    (folder / FINISHED_FILE).write_text(definitions(folder))
    return folder


@pytest.fixture(autouse=True)
def started(tmp_path, monkeypatch):
    """The file that is there once a run has started Spark."""
    monkeypatch.setattr(running, "command", lambda arguments: ["touch", str(tmp_path / "started")])
    return tmp_path / "started"


def checkpoint(folder: Path, table: str) -> Path:
    return folder / f"checkpoints/_checkpoints/spark_catalog/default/{table}/{table}/0"


def test_a_run_without_new_messages_starts_no_spark(project, started):
    assert run(project).rows_read == {"events": 0, "events_dead_letters": 0}
    assert not started.exists()


def test_a_run_that_finished_is_remembered_and_one_that_failed_is_not(project, started, monkeypatch):
    (project / FINISHED_FILE).unlink()
    monkeypatch.setattr(running, "command", lambda arguments: ["false"])
    assert run(project).exit_code == 1
    assert not (project / FINISHED_FILE).exists()
    monkeypatch.setattr(running, "command", lambda arguments: ["touch", str(started)])
    run(project)
    assert started.exists()
    started.unlink()
    (project / "transformations/__pycache__").mkdir()  # as Spark's import of the flows leaves it
    (project / "transformations/__pycache__/ingest.pyc").touch()
    run(project)
    assert not started.exists()


def send(broker: Any, project: Path) -> None:
    with broker.client() as client:
        client.create_producer("events").send(b"{}")


def make_again(broker: Any, project: Path) -> None:
    with geminga.Admin(broker.admin_url) as admin:
        admin.topics.delete("persistent://public/default/events", force=True)
    send(broker, project)


def plan(broker: Any, project: Path) -> None:
    offsets = checkpoint(project, "events") / "offsets"
    (offsets / "1").write_text((offsets / "0").read_text())


def lose_commit(broker: Any, project: Path) -> None:
    (checkpoint(project, "events_dead_letters") / "commits/0").unlink()


def begin_again(broker: Any, project: Path) -> None:
    (checkpoint(project, "events").parent / "1").mkdir()


def drop(broker: Any, project: Path) -> None:
    (project / "lake/events").rmdir()


def add_column(broker: Any, project: Path) -> None:
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("name STRING", "name STRING, more STRING"))


def add_flow(broker: Any, project: Path) -> None:
    (project / "transformations/more.sql").touch()
    (project / FINISHED_FILE).write_text(definitions(project))


def add_library(broker: Any, project: Path) -> None:
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("libraries:", "libraries:\n  - {glob: {include: more/**}}"))
    (project / FINISHED_FILE).write_text(definitions(project))


def move_tables(broker: Any, project: Path) -> None:
    spec = project / "spark-pipeline.yml"
    spec.write_text(f"database: more\n{spec.read_text()}")
    (project / FINISHED_FILE).write_text(definitions(project))


def write_latin_1(broker: Any, project: Path) -> None:
    flows = project / "transformations/ingest.py"
    flows.write_text(f"# coding: latin-1\n# \xe9\n{flows.read_text()}", encoding="latin-1")
    (project / FINISHED_FILE).write_text(definitions(project))


def damage(broker: Any, project: Path) -> None:
    (project / FINISHED_FILE).write_bytes(b"\xff")


def change_flow(broker: Any, project: Path) -> None:
    flows = project / "transformations/ingest.py"
    flows.write_text(flows.read_text().replace(".coalesce(1)", ""))
    (project / FINISHED_FILE).write_text(definitions(project))


@pytest.mark.parametrize(
    "change",
    [
        send, make_again, plan, lose_commit, begin_again, drop, add_column, add_flow, add_library,
        change_flow, move_tables, write_latin_1, damage,
    ],
)  # fmt: skip
def test_a_run_with_anything_to_do_starts_spark(change, broker, project, started):
    change(broker, project)
    run(project)
    assert started.exists()


def test_a_deleted_topic_is_named_before_spark_starts(broker, project, started):
    with geminga.Admin(broker.admin_url) as admin:
        admin.topics.delete("persistent://public/default/events", force=True)
    with pytest.raises(TopicNotFound, match="topic events does not exist"):
        run(project)
    assert not started.exists()


@pytest.mark.parametrize(
    "some", [{"full_refresh": ["events"]}, {"arguments": ("--refresh", "events")}], ids=["full", "part"]
)
def test_a_run_of_some_tables_starts_spark_and_so_does_the_next(some, project, started):
    run(project, **some)
    assert started.exists()
    started.unlink()
    run(project)
    assert started.exists()


def test_the_connection_of_a_surrounding_run_is_not_used(broker, project, started, monkeypatch):
    with geminga.embedded(web_port=0) as other:
        send(other, project)
        cluster = Cluster(service_url=other.service_url)
        monkeypatch.setenv(VARIABLE, handed_over(cluster, is_addressed=True))
        send(broker, project)
        run(project)
    assert started.exists()


def test_a_run_succeeds_although_the_disk_has_no_room_to_record_it(project, monkeypatch):
    (project / FINISHED_FILE).unlink()
    monkeypatch.setattr(running, "command", lambda arguments: ["ln", "-s", "/dev/full", FINISHED_FILE])
    assert run(project).exit_code == 0
