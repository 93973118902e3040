"""Calibration: it measures what is missing, keeps what it has, and fits all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import geminga
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.cli.main import command
from geminga.errors import InvalidConfiguration
from geminga.tuning.calibrate import DESIGN, Calibration, CalibrationPlan, observation, proof_observations
from geminga.tuning.cost import CostModel, fit
from geminga.tuning.measuring.outcome import Outcome

RECORDED = Path(__file__).parent / "data/calibration-runs.jsonl"
"""Runs of one calibration of Apache Pulsar 4.0.4 standalone."""


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with geminga.embedded() as running:
        yield running


def recorded() -> list[Outcome]:
    return [Outcome.from_dict(json.loads(line)) for line in RECORDED.read_text().splitlines()]


def test_recorded_runs_of_a_real_broker_give_a_model() -> None:
    runs = recorded()
    assert {outcome.subject for outcome in runs} == {point.title for point in DESIGN}
    model = fit([observation(outcome) for outcome in runs], broker="recorded", machine={})
    assert model.error < 0.35
    assert model.awake_seconds > 0  # entries that come together cost less
    assert model.terms["wake"].low > 0
    assert 0.001 < model.receipt_p50_seconds < 0.01
    assert 20 < model.delivered_overhead_bytes < model.published_overhead_bytes < 120


def test_runs_of_a_proof_count_as_loads(tmp_path: Path) -> None:
    one, *_ = recorded()
    rows = [
        replace(one, part="settings", subject="formula", broker_idle_per_second=idle)
        for idle in (0.0, 0.01, 0.05)
    ]
    rows += [replace(one, part="slow"), replace(one, part="settings", failure="gone")]
    (tmp_path / "conditions.json").write_text('{"broker": "Apache Pulsar 4.0.4"}')
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row.to_dict()) + "\n" for row in rows))
    found = proof_observations(tmp_path, "Apache Pulsar 4.0.4")
    assert [run.idle_per_second for run in found] == [0.01] * 3
    assert len({run.title for run in found}) == 1
    assert {run.receipt_p50_ms for run in found} == {None}
    with pytest.raises(InvalidConfiguration, match=r"runs of 'Apache Pulsar 4\.0\.4', not of 'Geminga"):
        proof_observations(tmp_path, "Geminga 0.1.0")
    with pytest.raises(InvalidConfiguration, match="holds no runs"):
        proof_observations(tmp_path / "nothing", "Geminga 0.1.0")


@pytest.mark.slow
def test_a_calibration_goes_on_where_it_stopped(broker: EmbeddedBroker, tmp_path: Path) -> None:
    missing = DESIGN[1].title
    lines = [line for line in RECORDED.read_text().splitlines() if json.loads(line)["subject"] != missing]
    (tmp_path / "runs.jsonl").write_text("\n".join([*lines, '{"subject": "cut off']) + "\n")
    result = CliRunner().invoke(
        command,
        ["tune", "calibrate", "--service-url", broker.service_url, "--admin-url", broker.admin_url,
         "--seconds", "0.5", "--runs", str(tmp_path), "--output", str(tmp_path / "model.json"),
         "--picture", str(tmp_path / "fit.svg")],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert f"1 of 1: {missing}" in result.output
    assert "error on loads left out of the fit" in result.output
    model = CostModel.load(tmp_path / "model.json")
    assert len(model.observations) == len(lines) + 1
    assert model.broker.startswith("Geminga")
    (measured,) = (run for run in model.observations if run.title == missing)
    assert measured.entries / measured.seconds == pytest.approx(100, rel=0.3)
    assert (tmp_path / "fit.svg").exists()


def test_a_broker_that_goes_away_leaves_the_model_of_what_there_is(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    lines = RECORDED.read_text().splitlines()[:12]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines) + "\n")
    plan = CalibrationPlan(service_url=broker.service_url, admin_url=broker.admin_url, seconds=0.2)
    calibration = Calibration(
        plan, tmp_path, lambda line: broker.close() if line.startswith("1 of") else None
    )
    model = calibration.calibrate()
    assert "is the broker running" in calibration.stopped
    assert len(model.observations) == 12


def test_too_little_for_a_fit_is_a_sentence(broker: EmbeddedBroker, tmp_path: Path) -> None:
    plan = CalibrationPlan(service_url=broker.service_url, admin_url=broker.admin_url, seconds=0.2)
    calibration = Calibration(
        plan, tmp_path, lambda line: broker.close() if line.startswith("1 of") else None
    )
    with pytest.raises(InvalidConfiguration, match=r"runs=0 .* at least 8 measured loads"):
        calibration.calibrate()
