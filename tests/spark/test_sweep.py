"""A small sweep on real Spark: the same rows as without it, resumable, refused where it does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from geminga.cli.main import command
from geminga.errors import InvalidConfiguration
from geminga.tuning import cost, sweep
from geminga.tuning.sweep import Sweep, read, run_one
from geminga.tuning.sweep_plan import Axis, SweepPlan
from geminga.tuning.traffic import Bursts, TrafficProfile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STEADY = TrafficProfile(rate_messages_per_second=5000, message_bytes=200, partitions=8, name="steady")
PROFILES = (
    STEADY,
    STEADY.changed(name="bursty", bursts=Bursts(factor=4, burst_seconds=0.1, period_seconds=0.5)),
)


def plan(**fields: Any) -> SweepPlan:
    return SweepPlan(**{"profiles": PROFILES, "runs": 40, "seconds": 4.0, **fields})


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    table = read(folder).drop_columns(["cpu_seconds"])
    return {row["run_id"]: row for row in table.to_pylist()}


def test_spark_gives_what_the_model_gives(spark: SparkSession, tmp_path: Path) -> None:
    wanted = plan()
    model = cost.standard()
    assert Sweep(wanted, tmp_path, model).play(spark) == 40
    found = rows(tmp_path)
    assert len(found) == 40
    for spec in wanted.specs()[::7]:
        alone = run_one(spec, 4.0, wanted.broker, model)
        alone.pop("cpu_seconds")
        assert {name: found[spec.run_id][name] for name in alone} == alone


def test_an_interrupted_sweep_goes_on_and_ends_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "PORTION_RUNS_MIN", 20)
    monkeypatch.setattr(sweep, "TASKS_PER_CORE", 1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    Sweep(plan(), whole, cost.standard()).play(spark)

    class InterruptedError(Exception):
        pass

    def interrupt(done: int) -> None:
        if done >= 20:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        Sweep(plan(), broken, cost.standard()).play(spark, interrupt)
    assert len(rows(broken)) == 20
    again = Sweep(plan(), broken, cost.standard())
    assert len(again.left()) == 20
    assert again.play(spark) == 20
    assert again.play(spark) == 0
    assert rows(broken) == rows(whole)
    assert read(broken).num_rows == 40, "nothing was run twice"


def test_a_folder_with_another_plan_is_refused(tmp_path: Path) -> None:
    Sweep(plan(), tmp_path, cost.standard())
    Sweep(plan(), tmp_path, cost.standard())
    with pytest.raises(InvalidConfiguration, match="another plan"):
        Sweep(plan(seconds=5.0), tmp_path, cost.standard())


def test_points_without_sense_are_rows_with_a_problem(spark: SparkSession, tmp_path: Path) -> None:
    axes = (Axis.parsed("batch-messages=0,100"), Axis.parsed("delay-ms=5"))
    wanted = plan(axes=axes, design="grid")
    Sweep(wanted, tmp_path, cost.standard()).play(spark)
    found = rows(tmp_path).values()
    assert sum("batching_max_messages=0" in row["problem"] for row in found) == 2
    assert sum(row["batch_fill"] is None for row in found) == 2


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="no runs"):
        read(tmp_path)


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.json"
    profiles.write_text(json.dumps([profile.to_dict() for profile in PROFILES]))
    folder = tmp_path / "sweep"
    arguments = [
        "tune", "sweep", "--profiles", str(profiles), "--runs", "24", "--seconds", "3", "--axis",
        "delay-ms=2:50", "--fix", "compression", "--output", str(folder), "--scaling",
    ]  # fmt: skip
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert "### bursty" in result.stdout
    assert "| tasks at once | runs |" in result.stdout
    assert {path.name for path in folder.iterdir()} >= {
        "plan.json",
        "front.md",
        "front.svg",
        "front.json",
        "runs",
    }
    table = read(folder)
    assert set(table.column("compression").to_pylist()) == {"NONE"}
    again = CliRunner().invoke(command, [*arguments[:-1], "--json"])
    assert again.exit_code == 0, again.output
    assert len(json.loads(again.stdout)["fronts"]) == 2
    assert spark.range(1).count() == 1, "a session that was there before is left alone"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--axis", "dely-ms=1:2"], "delay-ms"),
        (["--fix", "colour"], "no axis 'colour'"),
        (["--partitions", "0"], "partitions"),
        (["--seconds", "nan"], "not a number"),
    ],
)
def test_bad_input_gets_a_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(command, ["tune", "sweep", "--output", str(tmp_path / "s"), *arguments])
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)
