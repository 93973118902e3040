"""The Pareto front of a sweep, as table and picture."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from geminga.tuning.sweep import Speed, schema
from geminga.tuning.sweep_report import (
    OBJECTIVES,
    Front,
    fronts,
    pareto,
    picture,
    scaling_table,
    table,
    thinned,
    write,
)


def row(
    latency: float, cpu: float, network: float = 1e6, memory: float = 1e5, **fields: Any
) -> dict[str, Any]:
    return {
        "run_id": f"{latency}-{cpu}", "profile": "steady", "profile_json": "{}", "settings_json": "{}",
        "problem": "", "rate_wanted": 10.0, "delay_ms": 5.0, "batch_messages": 100, "batch_bytes": 1 << 17,
        "permits": 1000, "stay": 1, "compression": "LZ4", "batch_fill": 10.0, "entries_per_second": 1.0,
        "wire_bytes_per_second": 1.0, "rate": 10.0, "latency_mean": 0.0, "latency_p50": 0.0,
        "latency_p90": 0.0, "latency_p99": latency, "latency_p999": 0.0, "latency_max": 0.0,
        "waited_seconds": 0.0, "refused": 0.0, "pending_messages_max": 1.0, "stepped_over": 0.0,
        "broker_cpu": cpu, "broker_cpu_low": cpu, "broker_cpu_high": cpu, "network_bytes_per_second": network,
        "memory_bytes": memory, "cpu_seconds": 0.0, **fields,
    }  # fmt: skip


def runs(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema())


def test_the_front_is_what_a_search_through_all_pairs_finds() -> None:
    points = np.random.default_rng(2).integers(0, 6, (300, 4)).astype(float)
    kept = pareto(points)
    for index, point in enumerate(points):
        dominated = any(
            np.all(other <= point) and (np.any(other < point) or place < index)
            for place, other in enumerate(points)
            if place != index
        )
        assert kept[index] is np.bool_(not dominated)


def test_dominated_and_useless_runs_are_not_on_the_front() -> None:
    found = fronts(
        runs(
            row(0.01, 0.5), row(0.02, 0.2), row(0.03, 0.3), row(0.005, 0.1, refused=5.0),
            row(0.001, 0.001, problem="no such settings"), row(0.02, 0.1999),
        )
    )  # fmt: skip
    assert len(found) == 1
    assert [(r["latency_p99"], r["broker_cpu"]) for r in found[0].rows] == [(0.01, 0.5), (0.02, 0.2)]
    assert (found[0].runs, found[0].left_out) == (4, 2)
    best = found[0].best_within(0.02)
    assert best is not None
    assert best["broker_cpu"] == 0.2
    assert found[0].best_within(0.001) is None


def test_each_profile_has_its_front() -> None:
    found = fronts(runs(row(0.01, 0.5), row(0.01, 0.9, profile="bursty")))
    assert [(f.profile, len(f.rows)) for f in found] == [("bursty", 1), ("steady", 1)]


def test_a_long_front_is_thinned_out_along_latency() -> None:
    rows = [row(0.001 * 1.1**step, 1.0 / (step + 1)) for step in range(60)]
    found = thinned(rows, 10)
    assert len(found) == 10
    latencies = [r["latency_p99"] for r in found]
    assert latencies == sorted(latencies)
    assert max(b / a for a, b in itertools.pairwise(latencies)) < 3


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_table_and_picture(tmp_path: Path, suffix: str) -> None:
    found = fronts(runs(row(0.01, 0.5), row(0.02, 0.2), row(0.03, 0.6)))
    text = table(found)
    assert "| 10.0 | 0.5000 | 1.00 | 0.10 |" in text
    assert "3 runs took every message, 0 did not; 2 are on the front." in text
    path = tmp_path / f"front{suffix}"
    picture(found, path)
    assert path.stat().st_size > 5000
    write(found, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} >= {"front.md", "front.json", "front.svg"}


def test_an_empty_front_is_drawn_too(tmp_path: Path) -> None:
    empty = Front(profile="none", runs=0, left_out=1, rows=[], others=[])
    assert "0 runs took every message" in table([empty])
    picture([empty], tmp_path / "front.svg")


def test_the_scaling_table_compares_with_one_task() -> None:
    text = scaling_table([Speed(tasks=1, runs=100, seconds=10.0), Speed(tasks=2, runs=100, seconds=5.5)])
    assert "| 2 | 100 | 5.5 | 18 | 1.82 |" in text


def test_objectives_are_columns() -> None:
    assert set(OBJECTIVES) <= set(schema().names)
