"""Proofs as tables and sentences, from runs that are made up here."""

from dataclasses import replace

import pytest

from geminga.errors import InvalidConfiguration
from geminga.tuning.measuring.outcome import Latency, RunOutcome
from geminga.tuning.proof_report import picture, summary, table
from geminga.tuning.prove import Proof
from geminga.tuning.traffic import TrafficProfile

PROFILE = TrafficProfile(rate_messages_per_second=1000, message_bytes=200, partitions=4)
CONDITIONS = {"profile": PROFILE.to_dict(), "payload": "logs", "seconds": 10.0, "warm_seconds": 1.0}
STOCK, TUNED = "Geminga, stock, LZ4", "Geminga, formula, ZSTD 6"


def outcome(subject: str, run: int, *, idle: float, cpu: float, wire: int) -> RunOutcome:
    return RunOutcome(
        subject=subject, library="geminga", settings={}, seconds=10.0, window_seconds=10.0, offered=10_000,
        receipts=10_000, receipts_in_window=10_000, sent=10_000, entries=400, batch_fill=25.0,
        client_cpu_seconds=1.0, run=run,
        broker_cpu_seconds=cpu, broker_idle_per_second=idle, wire_published_bytes=wire,
        wire_delivered_bytes=wire, receipt=Latency(p50_ms=2.0, p99_ms=5.0), others_per_second=0.1 * run,
        end_to_end=Latency(p50_ms=3.0, p99_ms=6.0), at=f"2026-01-0{run + 1}T00:00:00+00:00",
    )  # fmt: skip


OUTCOMES = [
    outcome(STOCK, 0, idle=0.01, cpu=2.1, wire=10_000_000),
    outcome(TUNED, 0, idle=0.09, cpu=0.3, wire=4_000_000),  # another process was cleaning up before
    outcome(STOCK, 1, idle=0.01, cpu=2.1, wire=10_000_000),
    outcome(TUNED, 1, idle=0.01, cpu=0.3, wire=4_000_000),
]


def proof() -> Proof:
    machine = {"cores": 2, "processor": "a processor", "at": "2026-01-02"}
    return Proof("a broker", CONDITIONS, machine, OUTCOMES)


def test_the_idle_brokers_cpu_is_the_median_of_a_parts_runs():
    runs = proof().by_subject()
    assert [o.broker_cpu_above_idle for o in runs[TUNED]] == pytest.approx([0.2, 0.2])
    assert OUTCOMES[1].broker_idle_per_second == 0.09  # the measurement stays in the files


def test_the_measuring_loops_cpu_is_the_median_of_all_runs():
    seen = [replace(o, loop_cpu_seconds=0.5 + n, client_cpu_seconds=3.0 - n) for n, o in enumerate(OUTCOMES)]
    other = replace(OUTCOMES[0], subject="another", loop_cpu_seconds=0.0, client_cpu_seconds=2.0)
    runs = replace(proof(), outcomes=[*seen, other]).by_subject()
    assert {round(o.client_cpu_seconds, 9) for name in (STOCK, TUNED) for o in runs[name]} == {1.5}
    assert runs["another"][0].client_cpu_seconds == 2.0


def test_the_summary_shows_stock_formula_and_other_load():
    text = summary(proof())
    assert "| broker CPU above idle, s | 2.00 | 0.20 | -90 % |" in text
    assert "| wire, MB | 20.0 | 8.0 | -60 % |" in text
    assert "2 cores (a processor), 0.05 (0.00–0.10) of them used by other processes, 2026-01-02" in text
    assert "Medians of 2 runs" in text
    assert "× 1" not in text


def test_without_the_needed_runs_the_summary_is_the_table():
    partial = replace(proof(), outcomes=OUTCOMES[:1])
    assert summary(partial) == table(partial)
    assert "One run of each" in table(partial)


def test_a_saved_comparison_is_loaded(tmp_path):
    with pytest.raises(InvalidConfiguration, match="holds no comparison"):
        Proof.load(tmp_path)
    proof().save(tmp_path)
    found = Proof.load(tmp_path)
    assert found == proof()
    picture(found, tmp_path / "proof.svg")
    assert "<svg" in (tmp_path / "proof.svg").read_text()
