"""Both simulations beside runs of real brokers (`benchmarks/recorded_runs.py` records them).

Each recorded run carries the round trips of lone entries that were measured before it: they make the modelled
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
LATENCIES_WITHIN = {"1 ms": 0.35, "5 ms, ZSTD": 0.4, "1,000 bytes": 0.12, "500 a second": 0.12}
"""Where the load itself makes the broker answer later than it answered lone entries before: the shorter the
delay, the larger the part of that in all (docs/decisions/tuning-measurements.md)."""
SENDER_TICK_SECONDS = 0.00026
"""The recorded sender sleeps 0.2 ms (`load.TICK_SECONDS`), from which the system makes a little more."""


def off(recorded: dict[str, Any], run: SimulatedRun) -> dict[str, float]:
    """The figures that are further from the recorded ones than they may be, with their relative error."""
    errors = {name: getattr(run, name) / recorded[name] - 1 for name in FIGURES}
    latencies = LATENCIES_WITHIN.get(recorded["case"], WITHIN)
    within = {name: latencies if name.startswith("latency") else WITHIN for name in FIGURES}
    return {name: round(error, 3) for name, error in errors.items() if abs(error) > within[name]}


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
    assert (
        off(recorded, predict(*parts(recorded), seconds=31.0, seed=3, tick_seconds=SENDER_TICK_SECONDS)) == {}
    )
