"""Both simulations beside runs of real brokers (`benchmarks/recorded_runs.py` records them).

Round trips of lone entries were measured before each run. Those before all runs with one broker make the
modelled broker, one for all its loads; the client's part (its event loop, what it takes to encode a batch and
to tell receipts) was measured without any broker. From that and the settings, and from nothing else of the
runs, both simulations have to foretell batch fill, entries a second and latencies of all ten loads.

``counted_late_seconds`` of a run is what its recorder counted too much of each latency: it held messages back
until the next one was due, and took the first of those that it handed over together for all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geminga.tuning.batch_model import predict
from geminga.tuning.modelled_broker import BrokerModel, pooled
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.simulation import SimulatedRun, simulate
from geminga.tuning.traffic import TrafficProfile

FILE = Path(__file__).parents[1] / "vectors/recorded_tuning_runs.json"
RECORDED = json.loads(FILE.read_text())
RUNS: list[dict[str, Any]] = RECORDED["runs"]
AGAIN: list[dict[str, Any]] = RECORDED["again"]
"""Cases that were recorded once more."""
FIGURES = ("batch_fill", "entries_per_second", "latency_p50", "latency_p90", "latency_p99")
WITHIN = 0.08
SENDER_TICK_SECONDS = 0.00026
"""The recorded sender sleeps 0.2 ms (`load.TICK_SECONDS`), from which the system makes a little more."""
SENDER: dict[str, Any] = {"seed": 3, "tick_seconds": SENDER_TICK_SECONDS}


def measured(recorded: dict[str, Any], name: str) -> float:
    late: float = recorded["counted_late_seconds"] if name.startswith("latency") else 0.0
    return float(recorded[name]) - late


def off(recorded: dict[str, Any], run: SimulatedRun) -> dict[str, float]:
    """The figures that are further from the recorded ones than they may be, with their relative error.

    Where a case was recorded again, what both recordings lie apart is no error: the 99th percentile of
    Apache Pulsar at 1 ms is made of its pauses, and which of them ten seconds hold is chance.
    """
    who = (recorded["broker_title"], recorded["case"])
    same = [recorded, *(row for row in AGAIN if (row["broker_title"], row["case"]) == who)]
    found = {}
    for name in FIGURES:
        value, values = getattr(run, name), [measured(row, name) for row in same]
        nearest = min(max(value, min(values)), max(values))
        if abs(value / nearest - 1) > WITHIN:
            found[name] = round(value / nearest - 1, 3)
    return found


def broker_of(recorded: dict[str, Any]) -> BrokerModel:
    """What was measured of its broker before any run, beside this load's client."""
    seen = [
        BrokerModel.from_dict(run["broker"])
        for run in RUNS + AGAIN
        if run["broker_title"] == recorded["broker_title"]
    ]
    client = BrokerModel.from_dict(recorded["broker"])
    return pooled(seen).changed(
        event_loop=client.event_loop,
        encoding_seconds=client.encoding_seconds,
        encoding_byte_seconds=client.encoding_byte_seconds,
        telling_seconds=client.telling_seconds,
    )


def parts(recorded: dict[str, Any]) -> tuple[TrafficProfile, PublishSettings, BrokerModel]:
    return (
        TrafficProfile.from_dict(recorded["profile"]),
        PublishSettings.from_dict(recorded["settings"]),
        broker_of(recorded),
    )


def test_runs_that_were_recorded_again_differ_by_their_pauses_alone() -> None:
    for again in AGAIN:
        who = (again["broker_title"], again["case"])
        (first,) = (row for row in RUNS if (row["broker_title"], row["case"]) == who)
        apart = {name: abs(measured(again, name) / measured(first, name) - 1) for name in FIGURES}
        assert apart.pop("latency_p99") > 0.1, "then there is no need for the second one"
        assert max(apart.values()) < 0.03


@pytest.mark.parametrize("recorded", RUNS, ids=lambda run: f"{run['broker_title']}, {run['case']}")
def test_the_real_producer_in_virtual_time_does_what_it_did_in_real_time(recorded: dict[str, Any]) -> None:
    run = simulate(*parts(recorded), seconds=11.0, even=True, **SENDER)
    assert off(recorded, run) == {}


@pytest.mark.parametrize(
    "recorded",
    [run for run in RUNS if run["settings"]["latency_budget_seconds"] is None],
    ids=lambda run: f"{run['broker_title']}, {run['case']}",
)
def test_the_model_by_batches_does_what_the_producer_did(recorded: dict[str, Any]) -> None:
    assert off(recorded, predict(*parts(recorded), seconds=31.0, even=True, **SENDER)) == {}
