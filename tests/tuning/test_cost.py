"""The cost model: it finds what synthetic brokers were made of, and fits recorded runs of a real one."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from geminga.errors import InvalidConfiguration
from geminga.tuning.cost import Load, Observation, features, standard

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import fit_cost_model

fit = fit_cost_model.fit


def made_up(truth: dict[str, float], awake_seconds: float, noise: float) -> list[Observation]:
    draw = random.Random(3)
    runs = []
    for entries in (20.0, 100.0, 400.0, 1000.0, 3000.0):
        for entry_bytes in (300.0, 30_000.0):
            for subscriptions in (0, 1, 3):
                for copies in (1, 2):
                    partitions = 1 if entry_bytes < 1000 else 40
                    load = Load(
                        entries_per_second=entries, stored_bytes_per_second=entries * entry_bytes,
                        subscriptions=subscriptions, write_quorum=copies, partitions=partitions,
                    )  # fmt: skip
                    cpu = sum(truth[n] * x for n, x in features(load, awake_seconds).items())
                    runs.append(
                        Observation(
                            title=f"{entries} {entry_bytes} {subscriptions} {copies}", seconds=10.0,
                            entries=10 * entries, stored_bytes=10 * entries * entry_bytes,
                            subscriptions=subscriptions, partitions=partitions, write_quorum=copies,
                            cpu_seconds=10 * cpu * draw.lognormvariate(0, noise), idle_per_second=0.01,
                            wire_published_bytes=round(10 * entries * (entry_bytes + 60)),
                            wire_delivered_bytes=round(10 * entries * subscriptions * (entry_bytes + 40)),
                            receipt_p50_ms=2.0, receipt_p99_ms=6.0,
                        )
                    )  # fmt: skip
    return runs


TRUTH = {
    "flowing": 0.006,
    "entry": 5e-5, "delivered_entry": 3e-5, "copied_entry": 3e-5,
    "wake": 4e-4, "delivered_wake": 2e-4, "copied_wake": 1e-4,
    "position": 3e-4,
    "byte": 1.5e-9, "delivered_byte": 1e-9, "copied_byte": 5e-10,
}  # fmt: skip


def test_the_fit_recovers_known_coefficients() -> None:
    model = fit(made_up(TRUTH, 0.002, 0.03), broker="made up", machine={})
    assert model.awake_seconds == 0.002
    for name, value in TRUTH.items():
        found = model.terms[name]
        # A further copy is the smallest part of any run's CPU.
        assert found.value == pytest.approx(value, rel=0.25 if not name.startswith("copied") else 0.7)
        assert found.low <= value * 1.05
        assert found.high >= value * 0.8
    assert model.error < 0.1
    assert model.published_overhead_bytes == pytest.approx(60, abs=1)
    assert model.delivered_overhead_bytes == pytest.approx(40, abs=1)
    assert model.receipt_p99_seconds == pytest.approx(0.006)


def test_without_awake_time_the_cost_is_linear() -> None:
    model = fit(made_up(TRUTH, 0.0, 0.02), broker="made up", machine={})
    one = model.broker_cpu(Load(entries_per_second=100, stored_bytes_per_second=0)).value
    ten = model.broker_cpu(Load(entries_per_second=1000, stored_bytes_per_second=0)).value
    flowing = model.terms["flowing"].value + model.terms["position"].value
    assert ten - flowing == pytest.approx(10 * (one - flowing), rel=0.05)
    assert model.broker_cpu(Load(entries_per_second=0, stored_bytes_per_second=0)).value == 0


def test_no_coefficient_is_below_zero() -> None:
    free = {**TRUTH, "delivered_byte": 0.0, "copied_byte": 0.0}
    model = fit(made_up(free, 0.002, 0.1), broker="made up", machine={})
    assert all(term.value >= 0 and term.low >= 0 for term in model.terms.values())
    assert model.terms["delivered_byte"].value < 3e-10


def test_copies_without_measurements_cost_as_much_as_the_first() -> None:
    runs = [run for run in made_up(TRUTH, 0.002, 0.02) if run.write_quorum == 1]
    model = fit(runs, broker="made up", machine={})
    assert "copied_entry" not in model.terms
    load = Load(entries_per_second=100, stored_bytes_per_second=1e6, subscriptions=0)
    twice = Load(entries_per_second=100, stored_bytes_per_second=1e6, subscriptions=0, write_quorum=2)
    flowing = model.terms["flowing"].value
    once = model.broker_cpu(load).value
    assert model.broker_cpu(twice).value - flowing == pytest.approx(2 * (once - flowing))
    assert model.network(twice) - model.network(load) == 1e6


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"runs=3.*at least 8"):
        fit(made_up(TRUTH, 0.002, 0.02)[:3], broker="x", machine={})


def test_the_standard_model_is_the_fit_of_its_recorded_runs() -> None:
    model = standard()
    assert model.broker == "Apache Pulsar 4.0.4"
    again = fit(model.observations, broker=model.broker, machine=model.machine)
    for name, term in model.terms.items():
        assert again.terms[name].value == pytest.approx(term.value, rel=1e-6)
    assert again.awake_seconds == model.awake_seconds
    assert again.error == pytest.approx(model.error)
    assert again.error_of_means == pytest.approx(model.error_of_means)
    # What is left is what one load differs by when it is measured again.
    again_measured = fit_cost_model.repeated_error(model.observations)
    assert again_measured is not None
    assert model.error < again_measured < 0.31
    assert model.error_of_means is not None
    assert model.error_of_means < 0.17
    ratios = [
        model.broker_cpu(fit_cost_model.load_of(run)).value / (run.cpu_seconds / run.seconds)
        for run in model.observations
        if run.cpu_seconds > 0
    ]
    assert sum(0.6 < ratio < 1.7 for ratio in ratios) >= 0.85 * len(ratios)


def test_fewer_and_larger_entries_cost_a_real_broker_far_less() -> None:
    model = standard()
    crumbs = Load(entries_per_second=750, stored_bytes_per_second=1.15e6)
    full = Load(entries_per_second=25, stored_bytes_per_second=0.5e6)
    assert model.broker_cpu(full).value < 0.2 * model.broker_cpu(crumbs).value


def test_frequent_entries_cost_less_each_than_rare_ones() -> None:
    model = standard()

    def of_an_entry(rate: float, subscriptions: int = 1) -> float:
        load = Load(entries_per_second=rate, stored_bytes_per_second=rate * 1000, subscriptions=subscriptions)
        without = replace(load, entries_per_second=1e-9, stored_bytes_per_second=0)
        return (model.broker_cpu(load).value - model.broker_cpu(without).value) / rate

    assert of_an_entry(3000) < 0.35 * of_an_entry(100)
    assert of_an_entry(100, subscriptions=3) > 1.2 * of_an_entry(100)


def test_positions_cost_once_per_second_and_active_partition() -> None:
    load = Load(entries_per_second=100, stored_bytes_per_second=0, subscriptions=2, partitions=60)
    assert load.positions_per_second == 120
    assert replace(load, entries_per_second=25).positions_per_second == 50
    assert replace(load, subscriptions=0).positions_per_second == 0


def test_the_error_is_computed_without_any_run_of_the_predicted_load() -> None:
    """A load that nothing else resembles, measured twice: its own second run must not foretell it."""
    runs = made_up(TRUTH, 0.002, 0.01)
    odd = replace(
        runs[0], title="odd", entries=200_000.0, stored_bytes=1e6, cpu_seconds=90.0, subscriptions=0
    )
    model = fit([*runs, odd, replace(odd, cpu_seconds=91.0)], broker="made up", machine={})
    assert model.error_of_means is not None
    assert model.error_of_means > 0.3
    assert fit(runs, broker="made up", machine={}).error_of_means is None
