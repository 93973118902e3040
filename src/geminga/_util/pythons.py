"""Command to start another process of the running Python, with the same import path; for this package."""

import os
import sys
from pathlib import Path


class NoPython(Exception):
    """The executable is not a Python interpreter, but a program that embeds one."""


def command(module: str) -> tuple[list[str], dict[str, str]]:
    """Return arguments and environment of a process that runs ``main()`` of a module; raises `NoPython`.

    It imports from this process's ``sys.path``, including later changes, and nothing from its working
    directory. It does not import the running program, which needs no ``if __name__ == "__main__"``.
    """
    if "python" not in Path(sys.executable or "").name.lower():
        raise NoPython(
            f"{sys.executable or 'this program'!r} is not a Python interpreter that could be started again"
        )
    # A program may have added entries of other types, which import nothing.
    paths = [str(Path(__file__).parents[2]), *(each for each in sys.path if isinstance(each, str) and each)]
    arguments = [sys.executable, "-P", "-c", f"from {module} import main; main()"]
    return arguments, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
