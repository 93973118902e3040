"""The client with and without the interpreter lock: ``python -m benchmarks.free_threading --python PYTHON``.

PYTHON is a free-threaded CPython (3.13t or newer) that has Geminga's core dependencies. It runs the client
with the lock off and on, in turn in every round with the interpreters beside it (``--beside``: the ordinary
build of the same version, say) and the one that runs this command and the broker. Each run is a process of
its own that warms up first; CPU seconds are the client's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import brokers
from benchmarks.everyday import Topics, in_process
from benchmarks.everyday_programs import PROGRAMS
from geminga.tuning.measuring.host import machine

PUBLISHED = Path(__file__).parent.parent / "docs/proof/free_threading.json"
NAMES = (
    "send-async-batched", "send-async", "send-many", "receive-batched-shared", "receive-2-threads",
    "receive-4-threads",
)  # fmt: skip
"""Programs of `benchmarks.everyday_programs`."""


@dataclass(frozen=True)
class Party:
    """An interpreter and its environment."""

    name: str
    python: str
    environment: dict[str, str]

    def measure(self, name: str, arguments: dict[str, Any]) -> dict[str, float]:
        """Run a program; raise `RuntimeError` if it prints no figures."""
        try:
            return in_process(
                name, "geminga", arguments,
                python=self.python, environment=self.environment, seconds_max=180,
            )  # fmt: skip
        except RuntimeError as error:
            raise RuntimeError(f"{self.name}: {error}") from error


def asked(python: str, code: str, environment: dict[str, str]) -> str:
    """Return the output of an interpreter; raise `SystemExit` with its errors if it fails."""
    run = subprocess.run(
        [python, "-c", f"import sys; print({code})"],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    if run.returncode:
        raise SystemExit(f"{python!r} does not run: {run.stderr.strip()[-300:]}")
    return run.stdout.strip()


def parties_of(python: str, beside: list[str]) -> list[Party]:
    """Return the interpreters to measure; raise `SystemExit` if ``python`` is not free-threaded."""
    off, on = {"PYTHON_GIL": "0"}, {"PYTHON_GIL": "1"}
    if asked(python, "getattr(sys, '_is_gil_enabled', lambda: True)()", off) != "False":
        raise SystemExit(f"--python is {python!r}; allowed: a free-threaded CPython")
    number = asked(python, "sys.version.split()[0]", off)
    parties = [Party(f"{number}t, lock off", python, off), Party(f"{number}t, lock on", python, on)]
    for other in (*beside, sys.executable):
        parties.append(Party(f"{asked(other, 'sys.version.split()[0]', {})}, ordinary", other, {}))
    return list({party.name: party for party in parties}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="a free-threaded CPython")
    parser.add_argument("--beside", action="append", default=[], metavar="PYTHON", help="another interpreter")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=NAMES, action="append", help="program to run; may be repeated")
    parser.add_argument("--publish", action="store_true", help=f"write {PUBLISHED.name}")
    given = parser.parse_args()
    parties = parties_of(given.python, given.beside)
    programs = [PROGRAMS[name] for name in given.only or NAMES]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    loads = []
    with brokers.work_folder() as folder, brokers.geminga(folder) as broker:
        topics = Topics(broker, folder)
        for _ in range(given.rounds):
            for program in programs:
                for party in parties:
                    topic = topics.for_program(program, program.count)
                    arguments = {
                        "url": broker.service_url, "tls_url": "", "topic": topic, "count": program.count,
                        "folder": str(folder),
                    }  # fmt: skip
                    loads.append(os.getloadavg()[0])
                    run = party.measure(program.name, arguments)
                    found.setdefault((program.title, party.name), []).append(run)
                    print(program.name, "|", party.name, "|", json.dumps(run), file=sys.stderr, flush=True)
    print(
        f"{os.cpu_count()} CPUs, load {min(loads):.1f} to {max(loads):.1f}; medians of {given.rounds} rounds"
    )
    for (name, party_name), runs in found.items():
        rate = statistics.median(run["messages"] / run["seconds"] for run in runs)
        cpu = statistics.median(run["cpu"] / run["messages"] for run in runs) * 1e6
        busy = statistics.median(run["cpu"] / run["seconds"] for run in runs)
        print(f"{name:36} {party_name:24} {rate / 1000:8.0f} k/s {cpu:7.3f} µs a message, {busy:4.2f} CPUs")
    if given.publish:
        values = {
            "machine": machine(),
            "load": [round(min(loads), 1), round(max(loads), 1)],
            "rows": [{"work": work, "who": who, "runs": runs} for (work, who), runs in found.items()],
        }
        PUBLISHED.write_text(json.dumps(values, indent=1) + "\n")
        print(f"wrote {PUBLISHED}; `make docs` draws the page")


if __name__ == "__main__":
    main()
