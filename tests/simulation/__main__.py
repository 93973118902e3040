"""Play seeds: ``python -m tests.simulation --seed 17`` prints a history, ``--seeds 0-999`` plays many."""

import argparse
import gc
import logging
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.simulation.faults import Faults
from tests.simulation.world import World


class TooLong(BaseException):
    """A seed has used more CPU than any should."""


def failure_of(world: World, seconds: float) -> BaseException | None:
    """Play a world and return the error that ended it, also after ``seconds`` of CPU."""
    until, turns, limited = time.process_time() + seconds, 0, world.loop.after_turn

    def after_turn() -> None:
        nonlocal turns
        turns += 1
        if not turns % 1000 and time.process_time() > until:
            raise TooLong(f"it takes more than {seconds} s of CPU")
        limited()

    world.loop.after_turn = after_turn
    try:
        world.play()
    except (Exception, TooLong) as error:
        return error
    finally:
        gc.collect()
    return None


def rule_of(error: BaseException) -> str:
    """Return the function of the simulation that found an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return ([frame.name for frame in frames if "simulation" in frame.filename] or ["?"])[-1]


def shrink(seed: int, options: dict[str, Any], seconds: float) -> frozenset[str]:
    """Return the workloads and faults without which the seed still fails by the same rule."""
    without: frozenset[str] = options["without"]
    error = failure_of(World(seed, **options), seconds)
    if error is None:
        return without
    rule = rule_of(error)
    for part in (*World(seed, **options).names, *Faults.KINDS, "process", "offload", "flips"):
        fewer = options | {"without": without | {part}}
        world = World(seed, **fewer)
        error = failure_of(world, seconds) if world.names else None
        if error is not None and rule_of(error) == rule:
            without = fewer["without"]
    return without


def summary(error: BaseException) -> str:
    return f"`{rule_of(error)}`: {type(error).__name__} {' '.join(str(error).split())[:120]}"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed and print its history")
    parser.add_argument("--seeds", metavar="FIRST-LAST", default="0-99", help="play these seeds")
    parser.add_argument("--only", default="", help="workloads to run, separated by commas; default: drawn")
    parser.add_argument("--without", default="", help="workloads and faults to leave out")
    parser.add_argument("--shrink", action="store_true", help="leave out what --seed does not need to fail")
    parser.add_argument("--log", action="store_true", help="print the histories of all seeds, and no figures")
    parser.add_argument(
        "--first", type=float, metavar="SECONDS", help="stop at a failure, or after CPU seconds"
    )
    arguments = parser.parse_args(given)
    only, without = (frozenset(filter(None, each.split(","))) for each in (arguments.only, arguments.without))
    options: dict[str, Any] = {"only": only, "without": without}
    logging.getLogger("geminga").setLevel(logging.CRITICAL)
    first, _, last = arguments.seeds.partition("-")
    seeds = [arguments.seed] if arguments.seed is not None else range(int(first), int(last or first) + 1)
    if arguments.shrink and arguments.seed is not None:
        options["without"] = shrink(arguments.seed, options, 30.0)
        print(f"--without {','.join(sorted(options['without']))}")
    began, hours = time.process_time(), 0.0
    failed: list[int] = []
    counts: Counter[str] = Counter()
    for number, seed in enumerate(seeds):
        if not number % 20:
            world = error = None
            gc.unfreeze()
            for _ in range(2):  # the first one ends coroutines, whose objects are garbage then
                gc.collect()
            gc.freeze()  # modules imported until now are left out of the collections after each seed
        world = World(seed, **options)
        start = world.clock.now
        error = failure_of(world, 30.0)
        hours += (world.clock.now - start) / 3600
        spent = time.process_time() - began
        counts += Counter(event.kind for event in world.history.events)
        counts += Counter(event.who for event in world.history.of("fault"))
        if arguments.log or arguments.seed is not None:
            print(world.history.text(), end="")
        if error is not None:
            failed.append(seed)
            traceback.print_exception(error)
            print(f"failure: seed {seed}: {summary(error)}")
            parts = [f" --only {arguments.only}"] if arguments.only else []
            print(f"replay it: python -m tests.simulation --seed {seed}", *parts, sep="")
        if arguments.first and (error is not None or spent > arguments.first):
            break
        if seed % 100 == 99 and not arguments.log:
            print(f"seed {seed}: {hours:.1f} h, {spent:.0f} s of CPU", flush=True)
    spent = time.process_time() - began
    if not arguments.log:
        print(dict(counts))
        print(f"seeds {seeds[0]} to {seed}: {hours:.1f} simulated hours, {spent:.0f} s of CPU")
        print(f"failed: {failed}")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
