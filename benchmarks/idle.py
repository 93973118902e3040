"""Resources of an idle client, its import and its first message: ``python -m benchmarks.idle``.

Each library in turn, each run in a process of its own: CPU and time of the import alone, and from the import
until the first message is received (Geminga imports most modules for its first client); then CPU, wake-ups
(voluntary context switches) and memory with 1 and with 1,000 idle consumers. ``--publish`` writes the figures
from which ``make docs`` draws the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import brokers, figures, output
from benchmarks.everyday import LIBRARIES
from benchmarks.harness import python
from geminga.tuning.measuring.host import machine

PUBLISHED = Path(__file__).parent.parent / "docs/proof/idle.json"
CONSUMERS = (1, 1000)


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Run both libraries in turn; return the figures by name and library."""
    found: dict[str, dict[str, list[float]]] = {}
    loads = [os.getloadavg()[0]]
    with brokers.work_folder() as folder, brokers.geminga(folder) as broker:
        for number in range(rounds):
            for who, library in LIBRARIES.items():
                for part in ("first", *map(str, CONSUMERS)):
                    topic = f"persistent://public/default/idle-{number}-{library}-{part}"
                    given = (part, library, broker.service_url, topic, str(seconds))
                    run = subprocess.run(
                        python("benchmarks.idle_client", *given),
                        stdout=subprocess.PIPE, text=True, timeout=300, check=True,
                    )  # fmt: skip
                    for name, value in json.loads(run.stdout.splitlines()[-1]).items():
                        found.setdefault(name, {}).setdefault(who, []).append(value)
                    loads.append(os.getloadavg()[0])
    load = [round(min(loads), 1), round(max(loads), 1)]
    return {"machine": machine(), "load": load, "rows": found}


def main() -> None:
    """Run what the command line names and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, help="runs of each library [default: 5; 1 if quick]")
    parser.add_argument("--quick", action="store_true", help="one round, 3 s of idling")
    output.add_options(parser, PUBLISHED)
    given = parser.parse_args()
    values = measure(given.rounds or (1 if given.quick else 5), 3.0 if given.quick else 20.0)
    table = figures.idle(values)
    output.show(given, table)
    if given.publish:
        output.publish(PUBLISHED, values)


if __name__ == "__main__":
    main()
