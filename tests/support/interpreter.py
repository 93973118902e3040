"""Programs that run in a Python process of their own."""

import os
import subprocess
import sys


def run_python(
    program: str, *arguments: str, options: tuple[str, ...] = (), seconds_max: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with its output captured; fail with its errors if its status is not 0."""
    done = subprocess.run(
        [sys.executable, *options, "-c", program, *arguments],
        capture_output=True, text=True, timeout=seconds_max, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done
