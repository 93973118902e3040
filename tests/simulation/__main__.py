"""Play seeds: ``python -m tests.simulation --seed 17`` prints a history, ``--seeds 0-999`` plays many."""

from __future__ import annotations

import argparse
import logging
import time
import traceback
from collections import Counter

from tests.simulation.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed and print its history")
    parser.add_argument("--seeds", metavar="FIRST-LAST", default="0-99", help="play these seeds")
    parser.add_argument("--only", default="", help="workloads to run, separated by commas; default: drawn")
    parser.add_argument("--without", default="", help="workloads and faults to leave out")
    arguments = parser.parse_args()
    only, without = (frozenset(filter(None, each.split(","))) for each in (arguments.only, arguments.without))
    logging.getLogger("geminga").setLevel(logging.CRITICAL)
    first, _, last = arguments.seeds.partition("-")
    seeds = [arguments.seed] if arguments.seed is not None else range(int(first), int(last or first) + 1)
    began, hours = time.process_time(), 0.0
    failed: list[int] = []
    counts: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed, only=only, without=without)
        start = world.clock.now
        try:
            world.play()
        except Exception:
            failed.append(seed)
            traceback.print_exc()
        hours += (world.clock.now - start) / 3600
        if seed % 10 == 9:
            print(f"seed {seed}: {hours:.1f} h, {time.process_time() - began:.0f} s of CPU", flush=True)
        counts += Counter(event.kind for event in world.history.events)
        counts += Counter(event.who for event in world.history.of("fault"))
        if arguments.seed is not None:
            print(world.history.text(), end="")
    spent = time.process_time() - began
    print(f"{len(seeds)} seeds, {hours:.1f} simulated hours, {spent:.0f} s of CPU; {dict(counts)}")
    print(f"failed: {failed}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
