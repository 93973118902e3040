"""``python -m benchmarks``: ours and the peers in turn, as a Markdown table of ratios."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from benchmarks import brokers
from benchmarks.harness import Figure, Measurement, table
from benchmarks.works import WORKS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=tuple(WORKS), action="append", help="may be repeated")
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each party (default 3)")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    results: list[Measurement | Figure] = []
    failed: list[str] = []
    started = time.perf_counter()
    for name in given.only or WORKS:
        print(f"{time.perf_counter() - started:6.0f} s  {name}", file=sys.stderr, flush=True)
        try:
            with brokers.work_folder() as folder:
                results += WORKS[name](folder, given.runs)
        except Exception as error:
            # One party that does not run must not cost the figures of the others.
            failed.append(f"{name}: {error}")
            print(f"          failed: {error}", file=sys.stderr, flush=True)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    text = f"# Benchmarks\n\n{machine}; medians of {given.runs} runs in turn.\n\n{table(results)}\n"
    if failed:
        text += "\nNot measured:\n\n" + "\n".join(f"* {f.splitlines()[0]}" for f in failed) + "\n"
    print(text)
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(text)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
