"""The Spark driver as a process: followed, killed, and never quietly gone."""

import contextlib
import os
import subprocess
import sys
import textwrap

import pytest
from doubles import raising

from geminga.demo import application
from geminga.demo import driver as driver_module
from geminga.demo.application import DriverProgress, SparkFailed, follow
from geminga.demo.driver import DriverJob

JOB = DriverJob(
    service_url="pulsar://nowhere:6650", topic="t", rollup_topic="r", folder="f", rows_per_batch=1,
    last_event="2013-12-31T23:59:00+00:00", events_fd=-1,
)  # fmt: skip
PROGRESS = {"event": "progress", "query": "flights", "batch": 0, "rows": 7, "dropped_late": 0}


@pytest.fixture
def driver(monkeypatch, tmp_path):
    """Replace the driver by a program, which can write to ``pipe``."""

    def put(program: str) -> None:
        head = "import json, os, sys, time\npipe = os.fdopen(json.loads(sys.argv[1])['events_fd'], 'w')\n"
        (tmp_path / "scripted_driver.py").write_text(head + textwrap.dedent(program))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(application.driver, "__name__", "scripted_driver")

    return put


def test_the_events_of_a_killed_driver_are_kept(driver, tmp_path):
    driver(f"""
        print(os.getpid(), flush=True)
        print(json.dumps({ {**PROGRESS, "lag_messages": 5, "lag_bytes": 50}!r}), file=pipe, flush=True)
        time.sleep(600)
    """)
    log, told, heard = tmp_path / "spark.log", DriverProgress(), []
    follow(JOB, log, told, heard.append, kill_when=lambda told: told.queries["flights"].rows >= 7)
    assert heard == [told]
    assert (told.queries["flights"].batches, told.queries["flights"].lag_messages) == (1, 5)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


def test_a_failing_driver_reports_its_error_and_other_output_is_logged(driver, tmp_path, capfd):
    driver("""
        print("WARNING: Using incubator modules", file=sys.stderr)
        print(json.dumps(dict(event='failed', kind='StreamingQueryException', error='no disk')), file=pipe)
    """)
    log = tmp_path / "spark.log"
    with pytest.raises(SparkFailed, match=r"StreamingQueryException: no disk; its log is .*spark\.log"):
        follow(JOB, log, DriverProgress(), lambda told: None)
    assert "incubator" in log.read_text()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("is_killed_later", [True, False])
def test_a_driver_that_ends_by_itself_is_an_error(driver, tmp_path, is_killed_later):
    """Also in the middle of a line, and also when it was done before it could be killed."""
    last = '{"event": "done"}\\n' if is_killed_later else '{"event": "do'
    driver(f"pipe.write('{last}'); pipe.flush(); os._exit(9)")
    kill_when = (lambda told: False) if is_killed_later else None
    with pytest.raises(SparkFailed, match="ended by itself"):
        follow(JOB, tmp_path / "log", DriverProgress(), lambda told: None, kill_when=kill_when)


def test_the_driver_is_killed_if_a_listener_fails(driver, tmp_path):
    driver("""
        print(os.getpid(), flush=True)
        print(json.dumps({"event": "caught up", "seconds": 1.0}), file=pipe, flush=True)
        time.sleep(600)
    """)
    with pytest.raises(KeyboardInterrupt):
        follow(JOB, tmp_path / "log", DriverProgress(), raising(KeyboardInterrupt))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "log").read_text()), 0)


class Query:
    """Streaming query that ends at once, with an error or without."""

    isActive = False  # noqa: N815
    recentProgress = ()  # noqa: N815

    def __init__(self, error: str) -> None:
        self._error = RuntimeError(error) if error else None

    def exception(self) -> Exception | None:
        return self._error


@pytest.mark.parametrize(
    ("errors", "fails"),
    [(["Python worker failed to connect back."], ""), (["no disk"], "no disk"),
     (["Python worker failed to connect back."] * 2, "connect back")],
)  # fmt: skip
def test_a_query_without_a_python_worker_is_started_again_once(monkeypatch, errors, fails):
    left = {name: list(errors) if name == "flights" else [] for name in driver_module.pipeline.QUERIES}

    def start(_spark: object, name: str, *_: object, **__: object) -> Query:
        return Query(left[name].pop() if left[name] else "")

    monkeypatch.setattr(driver_module.pipeline, "start", start)
    monkeypatch.setattr(driver_module, "POLL_SECONDS", 0)
    told = DriverProgress()
    with pytest.raises(RuntimeError, match=fails) if fails else contextlib.nullcontext():
        driver_module.run_queries(
            None, JOB, {}, {}, lambda event, **fields: told.hear({"event": event, **fields})
        )
    assert told.restarted == ([] if fails == "no disk" else ["flights"])


def test_a_driver_ends_with_the_demo():
    """However the demo ends, the driver's standard input ends with it."""
    program = "from geminga.demo.driver import _end_with_parent; _end_with_parent(); print('still here')"
    ended = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (1, b"")
