"""Fuzz the decoders of foreign bytes: ``python -m tests.fuzz [--target NAME] [--executions N] [--seed N]``.

Inputs are mutations of valid ones, drawn from the seed; all targets by default. An input that raises an error
which its target does not allow is kept in ``tests/fuzz/found/TARGET``, where the tests run it again.
"""

import argparse
import hashlib
import random
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Target

FOUND = Path(__file__).parent / "found"


def failure(target: Target, data: bytes) -> str:
    """Return the traceback of an error that the target does not allow, or an empty text."""
    try:
        target.decode(data)
    except target.allowed:
        pass
    except Exception:
        return traceback.format_exc()
    return ""


def fuzz(name: str, executions: int, seed: int) -> int:
    """Run mutated inputs; return the number of different failures, each kept and printed once."""
    target, draw = TARGETS[name], random.Random(f"{name} {seed}")
    seeds, failures = list(target.seeds()), set()
    started, slowest, slow = time.process_time(), 0.0, b""
    for _ in range(executions):
        data = mutated(draw, seeds)
        before = time.process_time()
        problem = failure(target, data)
        taken = time.process_time() - before
        if taken > slowest:
            slowest, slow = taken, data
        where = "\n".join(line for line in problem.splitlines() if line.lstrip().startswith("File"))
        if problem and where not in failures:
            failures.add(where)
            keep(name, data)
            print(f"{name}: {data[:200]!r}\n{problem}", flush=True)
    rate = executions / max(1e-9, time.process_time() - started)
    print(
        f"{name}: {executions} executions from seed {seed}, {rate:,.0f} per CPU second, {len(failures)} "
        f"failures; the slowest took {1000 * slowest:.0f} ms ({len(slow)} bytes)",
        flush=True,
    )
    return len(failures)


def keep(name: str, data: bytes) -> None:
    (FOUND / name).mkdir(parents=True, exist_ok=True)
    (FOUND / name / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: all; may be repeated")
    parser.add_argument("--executions", type=int, default=10_000, help="inputs for each target (10,000)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    return sum(fuzz(name, given.executions, given.seed) for name in given.target or TARGETS) > 0


if __name__ == "__main__":
    sys.exit(main())
