"""The capacity: the search for the edge, its limits, and the report, from runs that are made up here."""

import random
from dataclasses import replace
from typing import Any

import pytest

import geminga
from geminga.tuning.capacity import (
    CapacityFinder,
    capacities,
    delivery_seconds,
    edge_runs,
    is_kept,
    limit_of,
    next_rate,
)
from geminga.tuning.capacity_report import picture, table
from geminga.tuning.measuring.outcome import Latency, RunOutcome
from geminga.tuning.prove import Proof, ProofPlan
from geminga.tuning.traffic import TrafficProfile

PROFILE = TrafficProfile(rate_messages_per_second=1000, message_bytes=200, partitions=4)
STOCK, TUNED = "Geminga, stock, LZ4", "Geminga, formula, ZSTD"


def outcome(rate: float, p99: float | None, subject: str = STOCK, **others: object) -> RunOutcome:
    values = {
        "library": "geminga", "settings": {}, "seconds": 10.0, "window_seconds": 10.0, "entries": 400,
        "offered": int(10 * rate), "sent": int(10 * rate), "receipts": int(10 * rate),
        "profile": PROFILE.changed(rate_messages_per_second=rate).to_dict(),
        "end_to_end": Latency(p99_ms=p99), "receipt": Latency(p99_ms=1.0), **others,
    }  # fmt: skip
    return RunOutcome(subject=subject, **values)


def proof(outcomes: list[RunOutcome]) -> Proof:
    conditions = {"profile": PROFILE.to_dict(), "payload": "logs", "seconds": 10.0}
    machine = {"cores": 2, "processor": "a processor", "at": "2026-01-02"}
    return Proof("a broker", conditions, machine, outcomes)


def searched(edge: float, first: float, noise: random.Random | None = None) -> list[RunOutcome]:
    """Search with a broker that keeps rates up to the edge, and sometimes errs near it."""
    outcomes: list[RunOutcome] = []
    while True:
        tried = [(o.profile["rate_messages_per_second"], is_kept(o)) for o in outcomes]
        rate = next_rate(tried, first, crossings=6)
        if rate is None:
            return outcomes
        here = edge * (noise.uniform(0.9, 1.1) if noise else 1)
        outcomes.append(outcome(rate, 20.0 if rate <= here else 80.0))


@pytest.mark.parametrize("first", [1000.0, 50_000.0, 1e6], ids=lambda first: f"from {first:g}")
def test_the_search_ends_within_a_step_of_the_edge(first):
    outcomes = searched(50_000.0, first)
    (found,) = capacities(proof(outcomes))
    assert 50_000 / 1.1 <= found.rate <= 50_000
    assert len(outcomes) < 30


def test_the_search_ends_if_no_rate_keeps_the_budget():
    outcomes = searched(1.0, 1000.0)
    assert len(outcomes) < 12
    assert not capacities(proof(outcomes))


def test_the_search_ends_if_every_rate_misses_after_a_kept_one():
    tried = [(1000.0, True)]
    while (rate := next_rate(tried, 1000.0, crossings=6)) is not None and len(tried) < 100:
        tried.append((rate, False))
    assert len(tried) < 50


def test_a_crossing_by_a_wide_step_does_not_tell_the_edge():
    tried = [(1000, True), (1500, False), (1364, True), (1500, True), (2250, False), (2045, True)]
    rows = [outcome(rate, 20.0 if kept else 80.0) for rate, kept in tried]
    assert [o.profile["rate_messages_per_second"] for o in edge_runs(rows)] == [1364, 2045]
    assert [o.profile["rate_messages_per_second"] for o in edge_runs(rows[:2])] == [1000]


def test_a_run_that_misses_far_below_the_edge_costs_few_runs():
    tried = [(1000.0, True), (1500.0, False)]
    while (rate := next_rate(tried, 1000.0, crossings=6)) is not None:
        tried.append((rate, rate <= 500_000))
    assert len(tried) < 35
    assert 500_000 / 1.1 <= max(rate for rate, kept in tried if kept) <= 500_000


def test_single_wrong_runs_do_not_move_the_result_far():
    for seed in range(200):
        (found,) = capacities(proof(searched(50_000.0, 1000.0, random.Random(seed))))
        assert 40_000 < found.rate < 58_000, seed


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({}, True),
        ({"end_to_end": Latency(p99_ms=51.0)}, False),
        ({"end_to_end": Latency()}, False),
        ({"failure": "Timeout"}, False),
        ({"receipts": 9_000}, False),
        ({"profile": PROFILE.changed(subscriptions=0).to_dict(), "end_to_end": Latency()}, True),
        ({"profile": PROFILE.changed(subscriptions=0).to_dict(), "receipt": Latency(p99_ms=51.0)}, False),
    ],
)
def test_a_run_is_kept_if_all_messages_arrive_in_time(changed, kept):
    assert is_kept(replace(outcome(1000, 50.0), **changed)) is kept


@pytest.mark.parametrize(
    ("used", "limit"),
    [
        ({"broker_cpu_seconds": 9.5, "machine_cpu_seconds": 19.0}, "all 2 cores (broker 0.95"),
        ({"broker_cpu_seconds": 9.5, "machine_cpu_seconds": 12.0}, "the broker's CPU (0.95 cores"),
        (
            {"client_cpu_seconds": 6.0, "loop_cpu_seconds": 3.5},
            "the producers' CPU (0.95 cores in 1 process)",
        ),
        ({"disk_wait_seconds": 6.0}, "the disk"),
        ({"failure": "no answer"}, "no answer"),
        ({}, "latency: broker 0.00"),
    ],
)
def test_what_was_used_up_is_named(used, limit):
    missed = outcome(1000, 80.0, **used)
    assert limit_of(proof([missed]), missed).startswith(limit)


@pytest.mark.parametrize(
    ("p99_ms", "left"),
    [(None, 0.013), (45.0, 0.013), (50.0, 0.0175), (400.0, 0.025)],
    ids=["nothing measured", "quicker than expected", "a quarter more", "at most half of the budget"],
)
def test_the_formula_leaves_more_time_than_delivery_took_in_the_run_before(p99_ms, left):
    settings = {"batching_max_publish_delay_seconds": 0.036}
    profile = PROFILE.changed(latency_budget_seconds=0.05).to_dict()
    before = outcome(1000, p99_ms, TUNED, settings=settings, profile=profile)
    assert delivery_seconds([]) == 0.013
    assert delivery_seconds([outcome(1000, 20.0, TUNED), before]) == pytest.approx(left)


def test_the_report_says_what_it_means_in_machines(tmp_path):
    rows = [outcome(rate, 20.0 if rate < 3000 else 80.0) for rate in (1000, 2000, 3000, 2700, 3000)]
    rows += [outcome(rate, 20.0 if rate < 9000 else 80.0, TUNED) for rate in (4000, 8100, 9000, 8100)]
    assert [o.profile["rate_messages_per_second"] for o in edge_runs(rows[:5])] == [2700, 2700]
    text = table(proof(rows))
    assert "| Geminga, stock, LZ4: 2,700 msg/s |" in text
    assert f"{TUNED}: 3.0 × the rate of {STOCK}. Traffic that needs 10 such machines needs 4 then." in text
    assert "for the same CPU" not in text
    costs = {STOCK: 4.0, TUNED: 3.0}
    costly = [replace(row, broker_cpu_seconds=costs[row.subject]) for row in rows]
    assert f"costs the broker 148.15 µs of CPU with {STOCK}, 37.04 µs with {TUNED}: 4.0 × as many" in table(
        proof(costly)
    )
    picture(proof(rows), tmp_path / "capacity.svg")
    assert "<svg" in (tmp_path / "capacity.svg").read_text()
    missed = f"{TUNED} kept the budget at no rate that was tried, down to 1,000 msg/s."
    assert missed in table(proof([*rows[:5], outcome(1500, 80.0, TUNED), outcome(1000, 80.0, TUNED)]))
    nothing = table(proof([outcome(1000, None, failure="Timeout")]))
    assert "kept the budget at no rate" in nothing
    assert "|" not in nothing
    assert "machines" not in table(proof([outcome(1000, 20.0), outcome(1000, 20.0, TUNED)]))
    assert "The same rate" in table(proof([outcome(1000, 20.0), outcome(1050, 20.0, TUNED)]))


def test_a_search_on_a_broker_is_resumed(tmp_path):
    with geminga.embedded() as broker:
        plan = ProofPlan(
            service_url=broker.service_url, admin_url=broker.admin_url, only=(STOCK, TUNED), repeats=1,
            profile=PROFILE.changed(rate_messages_per_second=1e6, latency_budget_seconds=0.002),
            seconds=0.1, warm_seconds=0.0, idle_seconds=0.1,
        )  # fmt: skip

        def interrupted_after(runs: int) -> Proof:
            class Interrupted(CapacityFinder):
                def _measure(self, *work: Any) -> None:
                    if len(self.proof.outcomes) == runs:
                        raise KeyboardInterrupt
                    super()._measure(*work)

            return Interrupted(plan, tmp_path, lambda line: None).prove()

        with pytest.raises(KeyboardInterrupt):
            interrupted_after(0)
        stopped, resumed = interrupted_after(2), interrupted_after(3)
    assert stopped.stopped == "interrupted"
    assert [(o.subject, o.run) for o in resumed.outcomes] == [(STOCK, 0), (TUNED, 0), (STOCK, 1)]
    assert resumed.outcomes[:2] == stopped.outcomes
    assert resumed.outcomes[2].profile["rate_messages_per_second"] < 1e6
    assert "It ended early: interrupted" in table(stopped)
