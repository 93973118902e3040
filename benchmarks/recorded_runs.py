"""Real runs for the simulations to be held to: ``python -m benchmarks.recorded_runs``.

Each case is published by Geminga's producer at a rate, to our own broker and to a real Apache Pulsar; beside
the load, round trips of lone entries are measured, and become the modelled broker of the simulation. The
file that this writes (`tests/vectors/recorded_tuning_runs.json`) is what `tests/tuning/test_recorded_runs.py`
reads. A busy machine spoils it: latencies are then those of the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import threading
from pathlib import Path
from typing import Any

from benchmarks import brokers
from geminga.producer.settings import CompressionType, ProducerSettings
from geminga.tuning.measuring.broker_view import BrokerView
from geminga.tuning.measuring.outcome import Outcome
from geminga.tuning.measuring.run import Conditions, Run, Subject
from geminga.tuning.publish_settings import PublishSettings
from geminga.tuning.round_trips import fitted, measure_round_trips
from geminga.tuning.traffic import Bursts, TrafficProfile

FILE = Path(__file__).parent.parent / "tests/vectors/recorded_tuning_runs.json"
STEADY = TrafficProfile(rate_messages_per_second=20_000, message_bytes=200, partitions=60, subscriptions=0)
FORMULA: dict[str, Any] = {
    "max_pending_messages_across_partitions": 60_000,
    "batching_max_messages": 500,
    "batching_max_allowed_size_in_bytes": 1 << 20,
    "batching_max_publish_delay_seconds": 0.02,
    "batching_partition_switch_frequency": 1,
    "compression_type": CompressionType.LZ4,
    "block_if_queue_full": True,
}
CASES: dict[str, tuple[TrafficProfile, dict[str, Any]]] = {
    "formula": (STEADY, FORMULA),
    "defaults": (STEADY, {"block_if_queue_full": True}),
    "40 ms, full by count": (STEADY, {**FORMULA, "batching_max_publish_delay_seconds": 0.04}),
    "5 ms, ZSTD": (
        STEADY,
        {
            **FORMULA,
            "batching_max_publish_delay_seconds": 0.005,
            "compression_type": CompressionType.ZSTD,
        },
    ),
    "1 ms": (STEADY, {**FORMULA, "batching_max_publish_delay_seconds": 0.001}),
    "bursts": (
        STEADY.changed(
            rate_messages_per_second=8000, bursts=Bursts(factor=4, burst_seconds=0.2, period_seconds=1.0)
        ),
        FORMULA,
    ),
    "keys": (
        STEADY.changed(rate_messages_per_second=5000, partitions=16, keys=500, key_skew=1.0),
        FORMULA,
    ),
    "500 a second": (STEADY.changed(rate_messages_per_second=500), FORMULA),
    "1,000 bytes": (
        STEADY.changed(rate_messages_per_second=5000, message_bytes=1000),
        {**FORMULA, "batching_max_publish_delay_seconds": 0.01},
    ),
    "tunes itself, 50 ms": (
        STEADY,
        {
            "latency_budget_seconds": 0.05,
            "compression_type": CompressionType.LZ4,
            "block_if_queue_full": True,
        },
    ),
}
PROBE_SIZES = (200, 5_000, 30_000)
PROBES_PER_SECOND = 30.0


def record(
    view: BrokerView, profile: TrafficProfile, fields: dict[str, Any], seconds: float, warm_seconds: float
) -> dict[str, Any]:
    """One run, with the round trips beside it."""
    settings = PublishSettings(producer=ProducerSettings(**fields))
    subject = Subject(title="recorded", library="geminga", settings=settings)
    conditions = Conditions(profile=profile, seconds=seconds, warm_seconds=warm_seconds)
    trips: dict[int, list[float]] = {}

    class Probe:
        """Begins with the measured part."""

        def measuring(self, *_: object) -> None:
            entries = int(seconds * PROBES_PER_SECOND / len(PROBE_SIZES)) - 10
            self.thread = threading.Thread(
                target=lambda: trips.update(
                    measure_round_trips(
                        view.service_url, "public/default/recorded-round-trips", sizes=PROBE_SIZES,
                        entries=entries, per_second=PROBES_PER_SECOND,
                    )
                )
            )  # fmt: skip
            self.thread.start()

    probe = Probe()
    outcome = Run(view, conditions, subject).measure(probe)
    probe.thread.join(60)
    return {"outcome": outcome, "trips": trips}


def median_run(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several runs of one case: medians, and all round trips together."""
    outcomes: list[Outcome] = [run["outcome"] for run in runs]
    trips = {size: [t for run in runs for t in run["trips"][size]] for size in PROBE_SIZES}

    def median(values: list[float | None]) -> float:
        return statistics.median([value for value in values if value is not None])

    return {
        "batch_fill": median([o.batch_fill for o in outcomes]),
        "entries_per_second": median([o.entries_per_second for o in outcomes]),
        "stored_bytes_per_second": median([o.stored_bytes / o.seconds for o in outcomes]),
        "rate": median([o.receipts / o.seconds for o in outcomes]),
        "latency_p50": median([o.receipt.p50_ms for o in outcomes]) / 1000,
        "latency_p90": median([o.receipt.p90_ms for o in outcomes]) / 1000,
        "latency_p99": median([o.receipt.p99_ms for o in outcomes]) / 1000,
        "spread_p99": [(o.receipt.p99_ms or 0.0) / 1000 for o in outcomes],
        "behind_seconds_max": max(o.behind_seconds_max for o in outcomes),
        # The sender's own loop takes about as much for a receipt as for a message.
        "broker": fitted(trips)
        .changed(telling_seconds=median([o.loop_cpu_seconds / o.receipts for o in outcomes]))
        .to_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--broker", nargs="*", default=["geminga", "apache"])
    parser.add_argument("--output", type=Path, default=FILE)
    chosen = parser.parse_args()
    recorded: list[dict[str, Any]] = []
    for kind in chosen.broker:
        with brokers.work_folder() as folder, getattr(brokers, kind)(folder) as broker:
            view = BrokerView(broker.service_url, broker.admin_url)
            for name in chosen.only:
                profile, fields = CASES[name]
                runs = [record(view, profile, fields, chosen.seconds, 4.0) for _ in range(chosen.repeats)]
                settings = PublishSettings(producer=ProducerSettings(**fields))
                row = {
                    "case": name,
                    "broker_title": view.title,
                    "profile": profile.to_dict(),
                    "settings": settings.to_dict(),
                    **median_run(runs),
                }
                recorded.append(row)
                print(
                    view.title,
                    name,
                    {k: row[k] for k in ("batch_fill", "latency_p50", "latency_p99")},
                    flush=True,
                )
    if chosen.output.exists():
        # What was not recorded anew is kept.
        fresh = {(row["broker_title"], row["case"]) for row in recorded}
        before = json.loads(chosen.output.read_text())["runs"]
        recorded = [row for row in before if (row["broker_title"], row["case"]) not in fresh] + recorded
    chosen.output.write_text(
        json.dumps({"machine": platform.platform(), "seconds": chosen.seconds, "runs": recorded}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
