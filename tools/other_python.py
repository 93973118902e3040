"""Run the core tests on another Python, or with the lowest allowed versions, in an environment of its own.

    python tools/other_python.py 3.13 [arguments of pytest]   # a version, or the path of an interpreter
    python tools/other_python.py lowest  # this Python; the lowest versions that pyproject.toml allows
    python tools/other_python.py any     # the quickest tests, in one of these environments

Interpreters are found in PATH and in pyenv. With ``any``, ``ROTATION`` of tests/conftest.py chooses: of 3.12,
3.13, 3.14 and ``lowest`` in turn, without what this machine does not have. `make test-python` prints it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOWEST = "lowest"
PROMISED = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = "broker,columnar,encryption,security,avro,otel,oauth2,cli,tune"
TOOLS = (
    "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "pydantic", "opentelemetry-sdk",
    "playwright", "pyyaml",
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


def rotation() -> int:
    """Return the number that chooses what a run of the tests takes of what rotates."""
    [found] = re.findall(r"^ROTATION = ([\d_]+)$", (ROOT / "tests/conftest.py").read_text(), re.M)
    return int(found)


def another() -> str:
    """Return the environment of this run: a promised Python that is here and does not run this, or lowest."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    here = [version for version in PROMISED if version != running and interpreter(version)]
    return [*here, LOWEST][rotation() % (len(here) + 1)]


def main(version: str, arguments: list[str]) -> int:
    tests = TESTS
    if version == "any":
        version, tests = another(), QUICK
    path = sys.executable if version == LOWEST else interpreter(version)
    if path is None:
        print(f"no Python {version} in PATH or pyenv", file=sys.stderr)
        return 1
    name = LOWEST if version == LOWEST else f"python{Path(version).name.removeprefix('python')}"
    environment = Path(f".venv-{name}")
    uv = (str(Path(sys.executable).with_name("uv")), "--quiet")
    if not environment.exists():
        subprocess.run([*uv, "venv", "--python", path, environment], check=True)
    python = environment / "bin" / "python"
    print(subprocess.run([python, "--version"], capture_output=True, text=True).stdout.strip(), flush=True)
    install = (*uv, "pip", "install", "--python", python)
    subprocess.run([*install, "-c", "requirements/all.lock", "-e", f".[{EXTRAS}]", *TOOLS], check=True)
    if version == LOWEST:
        print("with the lowest versions of requirements/lowest.lock", flush=True)
        lowest = ("--no-deps", "--require-hashes", "-r", "requirements/lowest.lock")
        subprocess.run([*install, *lowest], check=True)
    given = arguments if any("tests" in each for each in arguments) else [*arguments, *tests]
    return subprocess.run([python, "-m", "pytest", "-q", "-m", NOT_THERE, "-n", "2", *given]).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
