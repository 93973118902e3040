"""A project from `create` to a checked lake, with Spark; and what is refused before Spark starts."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from doubles import raising

import geminga
from geminga.client.cluster import Cluster
from geminga.client.handles.service_lookup import ServiceUnreachable
from geminga.errors import UsageError
from geminga.spark.pipelines import connection, lake, running
from geminga.spark.pipelines.checkpoints import check_checkpoints, remove_unfinished_offsets, tables
from geminga.spark.pipelines.connection import handed_over
from geminga.spark.pipelines.project import configuration, create, places
from geminga.spark.pipelines.running import Outcome, _SparkOutput, alone, run
from geminga.testing.apache_pulsar import free_ports

ROWS = 600
EVOLVED = "id BIGINT, name STRING, at TIMESTAMP"


def publish(client: Any, first: int) -> None:
    """`ROWS` messages; one in twenty is no JSON object, one in fifty has a field of another type, one in
    thirty has a nested field more than the others."""
    producer = client.create_producer("events", batching_enabled=True, block_if_queue_full=True)
    for number in range(first, first + ROWS):
        row = {
            "id": number if number % 50 else f"number {number}",
            "name": f"n{number % 3}",
            "at": f"2026-11-02T{number // 60:02}:{number % 60:02}:00Z",
            "user": {"id": number, "email": "x"} if number % 30 == 0 else {"id": number},
        }
        content = b"{ broken" if number % 20 == 1 else json.dumps(row).encode()
        producer.send_async(content, lambda r, m: None, partition_key=str(number))
    producer.flush()
    producer.close()


def successful(folder: Path, lines: list[str] | None = None) -> Outcome:
    outcome = run(folder, (lambda line: None) if lines is None else lines.append)
    assert outcome.exit_code == 0, "\n".join([outcome.error, *outcome.output[-60:]])
    return outcome


@pytest.mark.parametrize("release", ["4.0.5", "4.1.4"])
def test_an_older_pyspark_is_named(monkeypatch, release):
    """Installing the extra would replace it."""
    monkeypatch.setattr(running, "installed", lambda package: release)
    with pytest.raises(UsageError, match=f"pipelines need PySpark 4.2 or newer; this is PySpark {release}"):
        running.command()


def test_a_folder_without_a_project_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"holds no spark-pipeline.yml; make a project with"):
        run(tmp_path)


def test_a_projects_table_folder_is_read_from_its_files(tmp_path):
    project = tmp_path / "mine"
    create(project, "ingest")
    assert places(project).warehouse == f"{project.as_uri()}/lake"
    for name in ("events", "other.db/events", "delta/_delta_log"):
        (project / "lake" / name).mkdir(parents=True)
    assert tables(project) == {
        "events": f"{project.as_uri()}/lake/events",
        "other.events": f"{project.as_uri()}/lake/other.db/events",
    }
    spec = project / "spark-pipeline.yml"
    spec.write_text("configuration: [a]\n")
    with pytest.raises(UsageError, match=r"configuration is \['a'\]; write NAME: VALUE lines"):
        configuration(project)
    spec.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no valid YAML"):
        configuration(project)
    spec.write_text("name: mine\n")
    with pytest.raises(UsageError, match="has no valid storage"):
        places(project)


def test_a_second_run_of_a_project_is_refused_also_after_its_lock_file_is_deleted(tmp_path):
    project = tmp_path / "mine"
    create(project, "ingest")
    with alone(project):
        for _ in range(2):
            with pytest.raises(UsageError, match="is in use"):
                run(project)
            (project / running.LOCK_FILE).unlink()
    with alone(project):
        pass


def test_the_client_of_a_run_asks_its_spark_for_the_port(tmp_path, monkeypatch):
    """Nothing of PySpark's switch for it is left but the port: not the limits of its own tests."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    assert DefaultChannelBuilder.default_port() == 15002
    (script,) = [each for each in running.command() if each.endswith(".py")]
    monkeypatch.setenv("SPARK_TESTING", "")
    monkeypatch.setattr(runpy, "run_module", lambda *arguments, **named: None)
    runpy.run_path(script, run_name="__main__")
    session = SimpleNamespace(_jvm=SimpleNamespace(**{
        "org.apache.spark.sql.connect.service.SparkConnectService$": SimpleNamespace(
            **{"MODULE$": SimpleNamespace(localPort=lambda: 4711)}
        )
    }))  # fmt: skip
    monkeypatch.setattr("pyspark.sql.session.SparkSession._instantiatedSession", session)
    assert DefaultChannelBuilder.default_port() == 4711


def test_a_run_starts_python_with_all_cores_for_its_spark(tmp_path, monkeypatch):
    """`bin/spark-pipelines` would start further JVMs first, and a Spark with one core."""
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere:15002")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss2m")
    given = running.environment(tmp_path)
    assert running.command()[0] == sys.executable
    assert given["SPARK_REMOTE"] == "local[*]"
    assert given["SPARK_SUBMIT_OPTS"].split()[-1] == "-Xss2m", "of two values Java takes the last"


def test_a_run_of_a_submitted_program_starts_a_spark_of_its_own(tmp_path, monkeypatch):
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.setenv(name, "1")
        assert name not in running.environment(tmp_path)


def test_an_interrupted_run_ends_after_all_processes_of_spark(tmp_path, monkeypatch):
    """Java may still write to the tables when Python has ended."""
    java = f"trap '' TERM; echo Flow events is RUNNING; sleep 1; touch {tmp_path}/ended"
    monkeypatch.setattr(running, "command", lambda arguments: ["sh", "-c", f"({java}) & wait"])
    monkeypatch.setattr(running, "reach", lambda *arguments: None)
    create(tmp_path / "mine", "ingest")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "mine", raising(KeyboardInterrupt))
    assert (tmp_path / "ended").exists()


def test_a_missing_package_of_sparks_pipelines_is_named(monkeypatch):
    monkeypatch.setattr(running, "find_spec", lambda name: None if name == "grpc" else object())
    with pytest.raises(UsageError, match=r"no grpc: pip install 'geminga\[pipelines\]'"):
        running.command()


def test_an_address_where_no_broker_answers_ends_a_run_before_spark_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "REACH_SECONDS", 0.2)
    monkeypatch.setattr(running, "command", lambda arguments: ["touch", str(tmp_path / "started")])
    (port,) = free_ports(1)
    create(tmp_path / "wrong", "ingest", {"service_url": f"pulsar://127.0.0.1:{port}"})
    with pytest.raises(ServiceUnreachable, match=f"127.0.0.1:{port}"):
        run(tmp_path / "wrong")
    # The address of the command line replaces the project's.
    create(tmp_path / "right", "ingest")
    elsewhere = handed_over(Cluster(service_url=f"pulsar://127.0.0.1:{port}"), is_addressed=True)
    with pytest.raises(ServiceUnreachable, match=f"127.0.0.1:{port}"):
        run(tmp_path / "right", cluster=elsewhere)
    assert not (tmp_path / "started").exists()


def test_a_missing_topic_is_named_before_spark_starts(tmp_path, monkeypatch):
    """Spark would call its flow completed, try it again twice, and fail after more than a minute."""
    monkeypatch.setattr(running, "command", lambda arguments: ["touch", str(tmp_path / "started")])
    with geminga.embedded() as broker:
        for template, topic in (("ingest", "events"), ("rollup", "persistent://public/none/events")):
            create(tmp_path / template, template, {"service_url": broker.service_url, "topic": topic})
            with pytest.raises(
                geminga.TopicNotFound, match=rf"topic {topic} does not exist .*check its name"
            ):
                run(tmp_path / template)
        assert not (tmp_path / "started").exists()
        create(tmp_path / "replay", "replay", {"service_url": broker.service_url, "topic": "made-by-it"})
        run(tmp_path / "replay")
        (tmp_path / "started").unlink()
        flows = tmp_path / "ingest/transformations/ingest.py"
        flows.write_text(flows.read_text() + '# .option("waitingForNonExistedTopic", "true")')
        run(tmp_path / "ingest")
        assert (tmp_path / "started").exists()


def test_a_table_that_is_ahead_of_its_checkpoint_is_refused(tmp_path):
    """Spark would skip micro-batches whose numbers the table has already, and lose what they hold."""
    project = tmp_path / "mine"
    create(project, "ingest")
    log = project / "lake/events/_spark_metadata"
    log.mkdir(parents=True)
    for batch in range(3):
        (log / f"{batch}.compact").write_text("v1")
    with pytest.raises(UsageError, match=r"events has micro-batches up to 2, its checkpoint .* up to -1"):
        run(project)
    offsets = project / "checkpoints/_checkpoints/spark_catalog/default/events/events/0/offsets"
    offsets.mkdir(parents=True)
    for batch in range(2):
        (offsets / str(batch)).touch()
    with pytest.raises(UsageError, match=r"up to 1: .*--full-refresh events"):
        check_checkpoints(project)
    check_checkpoints(project, ["events"])
    # A micro-batch that was planned, but not noted as done, is the same one when Spark runs it again.
    (offsets / "2").touch()
    check_checkpoints(project)
    # A newer version of the checkpoint is what a full refresh has begun with.
    (offsets.parents[1] / "1/offsets").mkdir(parents=True)
    with pytest.raises(UsageError, match="up to -1"):
        check_checkpoints(project)


def test_temporary_files_of_first_offsets_are_deleted_and_no_others(tmp_path):
    create(tmp_path / "mine", "ingest")
    flows = tmp_path / "mine/checkpoints/_checkpoints"
    killed, planned = flows / "spark_catalog/default/events/events/0/offsets", flows / "sink/flow/0/offsets"
    for folder, names in ((killed, (".0.a1.tmp", "..0.a1.tmp.crc")), (planned, ("0", ".1.b2.tmp"))):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    remove_unfinished_offsets(tmp_path / "mine")
    assert [each.name for each in killed.iterdir()] == ["..0.a1.tmp.crc"]
    assert len(list(planned.iterdir())) == 2


def test_output_of_spark_becomes_lines_about_its_progress():
    told: list[str] = []
    heard = _SparkOutput(told.append)
    lag = {"persistent://public/default/t": {"entries": 1, "messages": 7, "bytes": 70}}
    progress = {
        "id": "1",
        "name": "spark_catalog.default.rows",
        "batchId": 3,
        "numInputRows": 12,
        "processedRowsPerSecond": 40.0,
        "sources": [{"latestOffset": {"lag": lag}}],
    }
    text = "26/11/02 08:00:00 INFO ProgressReporter: Streaming query made progress: "
    lines = [
        "2026-11-02 08:00:00: Flow spark_catalog.default.rows is RUNNING.",
        *(text + json.dumps(progress, indent=2)).splitlines(),
        text + "{",
        "torn",
        "}",
        "2026-11-02 08:00:01: Flow 'spark_catalog.default.rows' has FAILED.",
        "Error: it broke",
    ]
    for line in lines:
        heard.line(line)
    assert told == [
        "rows: running", "rows: micro-batch 3: 12 rows, 40 a second, 7 messages behind", "rows: failed",
    ]  # fmt: skip
    assert (heard.rows, heard.lag, heard.error(1)) == ({"rows": 12}, {"rows": 7}, "it broke")
    assert len(heard.output) == 3


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            [
                "pyspark.errors.exceptions.connect.ParseException: ",
                "[PARSE_SYNTAX_ERROR] at 'BIGNT'.",
                "",
                "---^^^",
            ],
            "[PARSE_SYNTAX_ERROR] at 'BIGNT'.",
        ),
        (
            [
                "pyspark.errors.exceptions.connect.AnalysisException: [PYTHON_DATA_SOURCE_ERROR] Failed: "
                "Traceback (most recent call last):",
                '  File "datasource.py", line 3, in schema',
                "26/11/27 21:09:55 WARN Utils: something else",
                "geminga.errors.TopicNotFound: there is no topic nowhere",
                "more",
            ],
            "[PYTHON_DATA_SOURCE_ERROR] Failed: geminga.errors.TopicNotFound: there is no topic nowhere",
        ),
    ],
)
def test_an_error_whose_text_is_on_a_later_line_is_whole(lines, error):
    heard = _SparkOutput(lambda event: None)
    for line in lines:
        heard.line(line)
    assert heard.error(1) == error


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")
def test_spark_ends_when_the_process_that_runs_it_is_killed(tmp_path):
    """The program runs with a stand-in for PySpark, which has a child process as Spark has Java's. It ends
    after that, as it has the lock of the project."""
    package = tmp_path / "pyspark/pipelines"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    child = "import time; time.sleep(600)"
    ended = tmp_path / "ended"
    java = f"trap 'sleep 1; touch {ended}; exit' TERM; echo $$; while :; do sleep 0.1; done"
    (package / "cli.py").write_text(
        "import subprocess, sys, time\n"
        "from types import SimpleNamespace as Some\n"
        f"java = subprocess.Popen(['sh', '-c', {java!r}], stdout=subprocess.PIPE)\n"
        "assert java.stdout.readline()\n"
        "context = Some(_gateway=Some(proc=java))\n"
        "sys.modules['pyspark.core.context'] = Some(SparkContext=context)\n"
        "print('both are ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    program = Path(running.__file__).parent / "free_port/cli.py"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with (
        subprocess.Popen([sys.executable, "-c", child]) as runner,
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**environment, "GEMINGA_PIPELINE_PROCESS": str(runner.pid)},
            stdout=subprocess.PIPE, start_new_session=True,
        ) as spark,
    ):  # fmt: skip
        assert spark.stdout.readline()
        runner.kill()
        assert spark.wait(60) == -signal.SIGTERM
        assert ended.exists()


def test_a_run_that_fails_by_a_race_of_spark_is_repeated(tmp_path, monkeypatch):
    """A Spark that fails as the real one does now and then, and one that fails otherwise."""
    project = tmp_path / "mine"
    create(project, "ingest")

    def failing(times: int, error: str) -> None:
        script = tmp_path / "spark-pipelines"
        script.write_text(
            "#!/bin/sh\n"
            'echo begun >> begun; test "$(wc -l < begun)" -gt '
            f"{times} && exit 0\n"
            f"echo 'Error: [STREAM_FAILED] Task not serializable'; echo '{error}'; exit 1\n"
        )
        script.chmod(0o755)
        (project / "begun").unlink(missing_ok=True)

    monkeypatch.setattr(running, "command", lambda arguments: [str(tmp_path / "spark-pipelines")])
    monkeypatch.setattr(running, "reach", lambda *arguments: None)
    lines: list[str] = []
    failing(2, "Illegal size 5 of collection, expected 6")
    assert run(project, lines.append).exit_code == 0
    assert [line.startswith("again: ") for line in lines] == [True, True]
    failing(9, "Illegal size 5 of collection, expected 6")
    outcome = run(project)
    assert outcome.exit_code == 1
    assert "Task not serializable" in outcome.error
    assert len((project / "begun").read_text().split()) == 1 + running.RACES_MAX
    failing(9, "something else")
    assert run(project).exit_code == 1
    assert len((project / "begun").read_text().split()) == 1


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(580)
def test_ingest_takes_every_message_once_while_schema_and_files_change(tmp_path):
    project = tmp_path / "lake_of_events"
    with geminga.embedded(web_port=None) as broker, broker.client() as client:
        publish(client, 0)
        schema = "id BIGINT, name STRING, user STRUCT<id: BIGINT>"
        create(project, "ingest", {"service_url": broker.service_url, "schema": schema})
        lines: list[str] = []
        first = successful(project, lines)
        assert "events: completed" in lines
        assert any(re.match("events: micro-batch 0: [1-9]", line) for line in lines)
        assert not list((project / "checkpoints").rglob("state")), "ids of messages need not be remembered"
        assert first.before == {}
        assert first.rows_read == {"events": ROWS, "events_dead_letters": ROWS}
        assert first.lag_messages == {"events": 0, "events_dead_letters": 0}
        # Files are put together, the messages get a column, and the user looks at the table with Spark.
        table = str(project / "lake/events")
        assert lake.compact(table).files_after == 1
        lake.clean(table, keep_seconds=0)
        spec = project / "spark-pipeline.yml"
        spec.write_text(spec.read_text().replace("id BIGINT, name STRING", EVOLVED))
        with (project / "transformations/ingest.py").open("a") as definitions:
            definitions.write(
                '@dp.materialized_view(name="seen_by_spark", format="parquet")\n'
                "def seen() -> DataFrame:\n"
                '    counts = [F.count("*").alias("n"), F.count("at").alias("at")]\n'
                '    return spark.read.table("events").agg(*counts)\n'
            )
        publish(client, ROWS)
        second = successful(project)
    assert second.before["events"].rows == first.after["events"].rows
    valid = [number for number in range(2 * ROWS) if number % 20 != 1]
    rows = lake.table_dataset(table).to_table().to_pylist()
    assert sorted(int(row["__key"]) for row in rows) == valid
    for row in rows:
        number = int(row["__key"])
        assert row["id"] == (number if number % 50 else None)
        assert (row["at"] is not None) == (number >= ROWS)
        # Fields that are missing in the schema of that time are in the row too.
        assert (row["__rescued"] is not None) == (number < ROWS or number % 50 == 0 or number % 30 == 0)
        assert row["__rescued"] is None or json.loads(row["__rescued"])["name"] == row["name"]
    dead = lake.table_dataset(str(project / "lake/events_dead_letters")).to_table()
    assert sorted(map(int, dead["__key"].to_pylist())) == sorted(set(range(2 * ROWS)) - set(valid))
    assert set(dead["value"].to_pylist()) == {b"{ broken"}
    (seen,) = lake.table_dataset(str(project / "lake/seen_by_spark")).to_table().to_pylist()
    assert seen == {"n": len(valid), "at": sum(number >= ROWS for number in valid)}


def test_rows_are_counted_by_sparks_file_list(tmp_path):
    parquet.write_table(pa.table({"id": [1, 2]}), tmp_path / "part-0.parquet")
    assert lake.size(str(tmp_path)) == lake.TableSize(2, 1)
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "_spark_metadata/0.compact").write_text("v1")
    assert lake.size(str(tmp_path)) == lake.TableSize(0, 0)
