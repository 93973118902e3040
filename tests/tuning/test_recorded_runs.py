"""Both simulations beside runs of real brokers (`benchmarks/recorded_runs.py` records them).

Each recorded run carries the round trips of lone entries that were measured beside it: they make the modelled
broker. From it and the settings, and from nothing else of the run, both simulations have to foretell batch
fill, entries a second and latencies.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geminga.tuning.batch_model import predict
from geminga.tuning.modelled_broker import BrokerModel
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.simulation import SimulatedRun, simulate
from geminga.tuning.traffic import TrafficProfile

FILE = Path(__file__).parents[1] / "vectors/recorded_tuning_runs.json"
RUNS: list[dict[str, Any]] = json.loads(FILE.read_text())["runs"]
FIGURES = ("batch_fill", "entries_per_second", "latency_p50", "latency_p90", "latency_p99")
WITHIN = 0.1
DISTURBED = 0.15
"""Of runs during which nobody watched what else the machine did."""
SENDER_TICK_SECONDS = 0.001
"""The recorded sender hands over what is due every millisecond."""


def off(recorded: dict[str, Any], run: SimulatedRun) -> dict[str, float]:
    """The figures that are further from the recorded ones than they may be, with their relative error."""
    within = DISTURBED if recorded["others_cores"] is None else WITHIN
    errors = {name: getattr(run, name) / recorded[name] - 1 for name in FIGURES}
    return {name: round(error, 3) for name, error in errors.items() if abs(error) > within}


def parts(recorded: dict[str, Any]) -> tuple[TrafficProfile, PublishSettings, BrokerModel]:
    return (
        TrafficProfile.from_dict(recorded["profile"]),
        PublishSettings.from_dict(recorded["settings"]),
        BrokerModel.from_dict(recorded["broker"]),
    )


@pytest.mark.parametrize("recorded", RUNS, ids=lambda run: f"{run['broker_title']}, {run['case']}")
def test_the_real_producer_in_virtual_time_does_what_it_did_in_real_time(recorded: dict[str, Any]) -> None:
    run = simulate(*parts(recorded), seconds=11.0, seed=3, tick_seconds=SENDER_TICK_SECONDS)
    assert off(recorded, run) == {}


@pytest.mark.parametrize(
    "recorded",
    [run for run in RUNS if run["settings"]["latency_budget_seconds"] is None],
    ids=lambda run: f"{run['broker_title']}, {run['case']}",
)
def test_the_model_by_batches_does_what_the_producer_did(recorded: dict[str, Any]) -> None:
    assert off(recorded, predict(*parts(recorded), seconds=31.0, seed=3)) == {}
