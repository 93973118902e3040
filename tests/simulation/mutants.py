"""Bugs that the simulation must find: ``python -m tests.simulation.mutants`` puts them into the sources.

Each mutant replaces one text of one file, in a copy. Seeds are run until one fails; the table says which,
and by which rule. ``--part 3/8`` runs every eighth mutant from the third.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A bug: ``old`` becomes ``new`` in ``file``, below ``src/geminga``; the workload ``only`` meets it."""

    only: str
    name: str
    file: str
    old: str
    new: str


MUTANTS: Final = tuple(
    Mutant(**each)
    for each in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["mutant"]
)


def run(mutant: Mutant, sources: Path, seeds: str, seconds: float) -> tuple[str, str]:
    """Return the first seed that finds the mutant, and the rule; empty if none does."""
    path = sources / "geminga" / mutant.file
    original = path.read_text()
    if original.count(mutant.old) != 1:
        return "", f"its text is {original.count(mutant.old)} times in {mutant.file}"
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(sources), str(ROOT), os.environ.get("PYTHONPATH", "")])
        }
        played = ["--seeds", seeds, "--first", str(seconds), "--only", mutant.only]
        command = [sys.executable, "-m", "tests.simulation", *played]
        done = subprocess.run(
            command, env=environment, cwd=sources, capture_output=True, text=True, check=False
        )
    finally:
        path.write_text(original)
    found = re.search(r"^failure: seed (\d+): (.*)$", done.stdout, re.MULTILINE)
    missed = f"not found; {done.stdout.splitlines()[-1:]}{done.stderr[-200:]}"
    return (found[1], found[2]) if found else ("", missed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", metavar="FIRST-LAST", default="0-9999")
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds for each mutant")
    parser.add_argument("--part", default="1/1", help="which of how many parts of the mutants to run")
    parser.add_argument("--name", default="", help="run the mutants with this in their names")
    arguments = parser.parse_args()
    number, _, parts = arguments.part.partition("/")
    chosen = [mutant for mutant in MUTANTS[int(number) - 1 :: int(parts)] if arguments.name in mutant.name]
    missed = 0
    print("| bug | workload | found at seed | by |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            seed, rule = run(mutant, sources, arguments.seeds, arguments.seconds)
            missed += not seed
            print(f"| {mutant.name} | {mutant.only} | {seed or 'none'} | {rule} |", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
