"""Starting another process of the Python that runs, with what it can import: for modules of this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class NoPython(Exception):
    """Nobody knows how to start one: this is a program with Python inside."""


def command(module: str) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of a process that runs ``main()`` of a module; raises `NoPython`.

    It imports what this process does, whatever was done to ``sys.path`` since, and nothing from where it is
    started. The program that runs is not imported: it needs no ``if __name__ == "__main__"``.
    """
    if "python" not in Path(sys.executable or "").name.lower():
        raise NoPython(f"{sys.executable or 'this program'!r} is no Python that could be started again")
    # A program may have put anything there, which imports nothing.
    paths = [str(Path(__file__).parents[1]), *(each for each in sys.path if isinstance(each, str) and each)]
    arguments = [sys.executable, "-P", "-c", f"from {module} import main; main()"]
    return arguments, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
