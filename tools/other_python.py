"""Run the core tests on another Python, in an environment of its own.

    python tools/other_python.py 3.13 [arguments of pytest]   # a version, or the path of an interpreter
    python tools/other_python.py any     # the quickest tests, on a promised version that is here

Interpreters are found in PATH and in pyenv. With ``any`` the date chooses among them; none is no error.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

PROMISED = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = "broker,columnar,encryption,security,avro,otel,oauth2,cli,tune"
TOOLS = (
    "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "pydantic", "opentelemetry-sdk",
    "playwright",
)  # fmt: skip
QUICK = tuple(f"tests/{name}" for name in ("wire", "connection", "producer", "consumer", "client"))
TESTS = (*QUICK, *(f"tests/{name}" for name in (
    "schema", "ledger", "broker", "offload", "cli", "functions", "mirror", "testing", "tuning", "console",
)))  # fmt: skip
NOT_THERE = "not interop and not spark and not witness and not long"


def interpreter(version: str) -> str | None:
    """Return the path of an interpreter of this version that starts."""
    places = Path.home().glob(f".pyenv/versions/{version}*/bin/python")
    for path in (shutil.which(f"python{version}"), shutil.which(version), *map(str, places)):
        if path is not None and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return None


def another() -> str | None:
    """Return a promised version that is here and does not run this, another one each day."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    here = [version for version in PROMISED if version != running and interpreter(version)]
    return here[date.today().toordinal() % len(here)] if here else None


def main(version: str, arguments: list[str]) -> int:
    tests = TESTS
    if version == "any":
        found = another()
        if found is None:
            print(f"nothing was tested: no other of Python {', '.join(PROMISED)} is here")
            return 0
        version, tests = found, QUICK
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
    given = arguments if any("tests" in each for each in arguments) else [*arguments, *tests]
    return subprocess.run([python, "-m", "pytest", "-q", "-m", NOT_THERE, "-n", "2", *given]).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
