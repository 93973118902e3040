"""Search guided by coverage for one target: ``python -m tests.fuzz.by_coverage TARGET [libFuzzer options]``.

It needs the package ``atheris``. A folder among the options is the corpus, which the search reads and grows:
``build/corpus -max_total_time=60``. The target's seeds are written into it first.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["geminga"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    for folder in (Path(option) for option in options if not option.startswith("-")):
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(target.seeds()):
            (folder / f"seed-{number}").write_bytes(data)

    def run(data: bytes) -> None:
        try:
            target.decode(data)
        except target.allowed:
            pass

    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
