"""Savings of tuned producers on a real Apache Pulsar: ``make bench-tuning``.

Two proofs (`geminga.tuning.prove`). The headline: 20,000 messages a second of 200 B log lines over 60
partitions, stock settings against the formula's. A second profile: orders of 1 kB with keys, hard to
compress, read by two subscriptions. And the capacity (`geminga.tuning.capacity`) with the log lines of four
producers, of Apache Pulsar and of Geminga's broker. Tables, pictures and every run go to the output folder;
a run that is already there is not repeated. With ``--publish`` figures and pictures also go into the
documentation, and the pages that quote them are drawn again: ``make publish-proof``.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks import brokers
from geminga.tuning import capacity_report, proof_report
from geminga.tuning.capacity import SUBJECTS, CapacityFinder
from geminga.tuning.prove import FILE, Proof, ProofPlan, Prover
from geminga.tuning.traffic import TrafficProfile

HEADLINE = TrafficProfile(
    rate_messages_per_second=20_000, message_bytes=200, partitions=60, latency_budget_seconds=0.05,
    name="log lines",
)  # fmt: skip
ORDERS = TrafficProfile(
    rate_messages_per_second=4_000, message_bytes=1_000, message_bytes_variation=0.3, partitions=12,
    keys=20_000, subscriptions=2, latency_budget_seconds=0.1, name="orders",
)  # fmt: skip
CAPACITIES = {"capacity_apache": brokers.apache, "capacity_geminga": brokers.geminga}
NAMES = ("headline", "orders", *CAPACITIES)
CROSSINGS = 6
ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "docs/proof"


def say(line: str) -> None:
    """Progress goes to standard error, tables to standard output."""
    print(line, file=sys.stderr, flush=True)


def prove(plan: ProofPlan, folder: Path) -> str:
    """Carry a plan out, and write table, picture and figures; gives the table."""
    proof = Prover(plan, folder, say).prove()
    text = proof_report.table(proof)
    (folder / "proof.md").write_text(text)
    proof_report.picture(proof, folder / "proof.svg")
    return text


def find_capacity(service_url: str, admin_url: str, folder: Path) -> str:
    """Find a broker's capacity, and write table, picture and figures; gives the table."""
    plan = ProofPlan(
        service_url=service_url, admin_url=admin_url, only=SUBJECTS, repeats=CROSSINGS,
        profile=HEADLINE.changed(rate_messages_per_second=60_000, producers=4),
        seconds=8, warm_seconds=3, idle_seconds=1,
    )  # fmt: skip
    found = CapacityFinder(plan, folder, say).prove()
    capacity_report.picture(found, folder / "capacity.svg")
    return capacity_report.table(found)


def publish(folder: Path, docs: Path) -> list[str]:
    """Put what was measured so far where the documentation takes it from; gives what was found."""
    docs.mkdir(parents=True, exist_ok=True)
    found = [name for name in NAMES if (folder / name / FILE).exists()]
    for name in found:
        proof = Proof.load(folder / name)
        report = capacity_report if name in CAPACITIES else proof_report
        report.picture(proof, docs / f"{name}.svg")
        (docs / f"{name}.json").write_text(json.dumps(proof.to_dict(), indent=1) + "\n")
    return found


def plans_for(service_url: str, admin_url: str, repeats: int) -> dict[str, ProofPlan]:
    """Return the plans for a broker, by the name of their folder."""
    return {
        "headline": ProofPlan(
            service_url=service_url, admin_url=admin_url, profile=HEADLINE, repeats=repeats
        ),
        "orders": ProofPlan(
            service_url=service_url, admin_url=admin_url, profile=ORDERS, payload="orders", repeats=repeats,
            clients=("geminga",)
        ),
    }  # fmt: skip


def measure(folder: Path, names: list[str], repeats: int) -> list[str]:
    """Carry the plans with these names out, those at one rate on one broker; return their tables."""
    tables = []
    at_one_rate = [name for name in names if name not in CAPACITIES]
    if at_one_rate:
        with brokers.work_folder() as work, brokers.apache(work) as broker:
            plans = plans_for(broker.service_url, broker.admin_url, repeats)
            tables += [prove(plans[name], folder / name) for name in at_one_rate]
    for name in names:
        if name in CAPACITIES:
            with brokers.work_folder() as work, CAPACITIES[name](work) as broker:
                tables.append(find_capacity(broker.service_url, broker.admin_url, folder / name))
    return tables


def main() -> None:
    # Started processes end with this one, also after SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/tuning"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=NAMES, action="append")
    parser.add_argument("--publish", action="store_true", help="put figures and pictures into docs/proof")
    parser.add_argument("--as-is", action="store_true", help="measure nothing: publish what there is")
    given = parser.parse_args()
    only = given.only or list(NAMES)
    tables = [] if given.as_is else measure(given.output, only, given.repeats)
    if given.publish or given.as_is:
        say(f"published: {', '.join(publish(given.output, PUBLISHED)) or 'nothing, for nothing is there'}")
        subprocess.run([sys.executable, str(ROOT / "tools/generate_docs.py")], check=True)
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
