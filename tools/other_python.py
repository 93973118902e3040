"""Run the core tests on another Python, in an environment of its own.

    python tools/other_python.py 3.13 [arguments of pytest]   # a version, or the path of an interpreter

Interpreters are found in PATH and in pyenv.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

EXTRAS = "broker,columnar,encryption,security,avro,otel,oauth2,cli"
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "pydantic", "opentelemetry-sdk")
TESTS = tuple(f"tests/{name}" for name in (
    "wire", "connection", "producer", "consumer", "schema", "client", "ledger", "broker", "offload", "cli",
    "functions", "mirror", "testing", "tuning", "console",
))  # fmt: skip
NOT_THERE = "not interop and not spark and not witness and not long"


def interpreter(version: str) -> str | None:
    """Return the path of an interpreter of this version that starts."""
    places = Path.home().glob(f".pyenv/versions/{version}*/bin/python")
    for path in (shutil.which(f"python{version}"), shutil.which(version), *map(str, places)):
        if path is not None and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return None


def main(version: str, arguments: list[str]) -> int:
    path = interpreter(version)
    if path is None:
        print(f"no Python {version} in PATH or pyenv", file=sys.stderr)
        return 1
    environment = Path(f".venv-python{Path(version).name.removeprefix('python')}")
    uv = (str(Path(sys.executable).with_name("uv")), "--quiet")
    if not environment.exists():
        subprocess.run([*uv, "venv", "--python", path, environment], check=True)
    python = environment / "bin" / "python"
    print(subprocess.run([python, "--version"], capture_output=True, text=True).stdout.strip(), flush=True)
    locked = ("-c", "requirements/all.lock")
    subprocess.run(
        [*uv, "pip", "install", "--python", python, *locked, "-e", f".[{EXTRAS}]", *TOOLS], check=True
    )
    return subprocess.run([python, "-m", "pytest", "-q", "-m", NOT_THERE, *(arguments or TESTS)]).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
