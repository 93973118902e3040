"""One run of both simulations for people: the figures side by side, with the broker CPU they come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geminga.errors import InvalidConfiguration
from geminga.tuning.batch_model import predict
from geminga.tuning.cost import CostModel, Estimate, Load
from geminga.tuning.modelled_broker import BrokerModel, Fault
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.simulation import SimulatedRun, simulate
from geminga.tuning.traffic import TrafficProfile

GRAINS = ("core", "batches")
"""The real producer core, and the model by batches."""

Runs = Mapping[str, SimulatedRun | str]
"""By grain: the run, or why that grain cannot follow it."""

_MILLISECONDS = "{:.2f} ms"
ROWS: tuple[tuple[str, str, Callable[[SimulatedRun], float]], ...] = (
    ("messages a second", "{:,.0f}", lambda run: run.rate),
    ("messages an entry", "{:.1f}", lambda run: run.batch_fill),
    ("entries a second", "{:,.1f}", lambda run: run.entries_per_second),
    ("bytes a second to the broker", "{:,.0f}", lambda run: run.wire_bytes_per_second),
    ("latency p50", _MILLISECONDS, lambda run: 1000 * run.latency_p50),
    ("latency p90", _MILLISECONDS, lambda run: 1000 * run.latency_p90),
    ("latency p99", _MILLISECONDS, lambda run: 1000 * run.latency_p99),
    ("latency p99.9", _MILLISECONDS, lambda run: 1000 * run.latency_p999),
    ("latency at the most", _MILLISECONDS, lambda run: 1000 * run.latency_max),
    ("without a receipt, at the most", "{:,.0f} messages", lambda run: run.pending_messages_max),
    ("senders stood still", "{:.2f} s", lambda run: run.waited_seconds),
    ("refused", "{:,.0f} messages", lambda run: run.refused),
    ("partitions stepped over", "{:,.0f} times", lambda run: run.stepped_over),
)


def play(
    profile: TrafficProfile,
    settings: PublishSettings,
    broker: BrokerModel,
    grains: Sequence[str] = GRAINS,
    *,
    seconds: float = 10.0,
    seed: int = 0,
    even: bool = False,
    faults: Sequence[Fault] = (),
) -> Runs:
    """A run with each grain. Raises `InvalidConfiguration` when no grain can follow what is asked."""
    found: dict[str, SimulatedRun | str] = {}
    for grain in grains:
        follow = simulate if grain == "core" else predict
        try:
            found[grain] = follow(
                profile, settings, broker, seconds=seconds, seed=seed, even=even, faults=faults
            )
        except InvalidConfiguration as error:
            if all(isinstance(run, str) for run in found.values()) and len(found) == len(grains) - 1:
                raise
            found[grain] = str(error)
    return found


def cpu(profile: TrafficProfile, cost: CostModel, run: SimulatedRun) -> Estimate:
    """CPU seconds a second of the broker, above idle."""
    return cost.broker_cpu(
        Load(
            entries_per_second=run.entries_per_second, stored_bytes_per_second=run.wire_bytes_per_second,
            subscriptions=profile.subscriptions, write_quorum=profile.write_quorum,
            partitions=profile.partitions,
        )
    )  # fmt: skip


def table(profile: TrafficProfile, cost: CostModel, runs: Runs) -> str:
    """The figures of each grain in a column."""
    played = {grain: run for grain, run in runs.items() if isinstance(run, SimulatedRun)}
    rows = [("", *played)]
    for title, form, value in ROWS:
        rows.append((title, *(_shown(form, value(run)) for run in played.values())))
    rows.append(("broker CPU above idle", *(_cpu(cpu(profile, cost, run)) for run in played.values())))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += [f"{grain}: {run}" for grain, run in runs.items() if isinstance(run, str)]
    return "\n".join(lines)


def as_dict(
    profile: TrafficProfile, settings: PublishSettings, broker: BrokerModel, cost: CostModel, runs: Runs
) -> dict[str, Any]:
    """Plain values for JSON; what a grain does not follow is null."""
    return {
        "profile": profile.to_dict(),
        "settings": settings.to_dict(),
        "broker": broker.to_dict(),
        "runs": {
            grain: {"problem": run} if isinstance(run, str) else _plain(profile, cost, run)
            for grain, run in runs.items()
        },
    }


def _plain(profile: TrafficProfile, cost: CostModel, run: SimulatedRun) -> dict[str, Any]:
    estimate = cpu(profile, cost, run)
    values = {
        name: None if value == -1 or math.isnan(value) else value for name, value in run.to_dict().items()
    }
    return {
        **values,
        "rate": run.rate,
        "entries_per_second": run.entries_per_second,
        "broker_cpu": {"value": estimate.value, "low": estimate.low, "high": estimate.high},
    }


def _shown(form: str, value: float) -> str:
    return "" if value == -1 or math.isnan(value) else form.format(value)


def _cpu(estimate: Estimate) -> str:
    shown = estimate.scaled(100)
    return f"{shown.value:.1f} % of a core ({shown.low:.1f} to {shown.high:.1f})"


__all__ = ["GRAINS", "Runs", "as_dict", "cpu", "play", "table"]
