"""Run the core tests on another Python, in an environment of its own.

    python tools/other_python.py 3.13 [arguments of pytest]   # a version, or the path of an interpreter
    python tools/other_python.py any [arguments of pytest]    # a promised version, each day another one

Promised versions are those of the classifiers in pyproject.toml. Interpreters are found in PATH and in pyenv.
With ``any`` and no interpreter the script prints a line and succeeds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

EXTRAS = "broker,columnar,encryption,security,avro,otel,oauth2,cli"
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "pydantic", "opentelemetry-sdk")
TESTS = tuple(f"tests/{name}" for name in (
    "wire", "connection", "producer", "consumer", "schema", "client", "ledger", "broker", "offload", "cli",
    "functions", "mirror", "testing", "tuning", "console",
))  # fmt: skip
NOT_THERE = "not interop and not spark and not witness and not long"


def promised() -> list[str]:
    """Return the minor versions that pyproject.toml promises, except the running one."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    versions = (name.rpartition(" ")[2] for name in project["classifiers"] if "Python :: 3." in name)
    return [each for each in versions if each != f"{sys.version_info.major}.{sys.version_info.minor}"]


def interpreter(version: str) -> str | None:
    """Return the path of an interpreter of this version that starts."""
    places = Path.home().glob(f".pyenv/versions/{version}*/bin/python")
    for path in (shutil.which(f"python{version}"), shutil.which(version), *map(str, places)):
        if path is not None and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return None


def main(version: str, arguments: list[str]) -> int:
    if version == "any":
        found = [each for each in promised() if interpreter(each)]
        if not found:
            print(f"no other Python is installed ({', '.join(promised())}): its tests are skipped")
            return 0
        version = found[int(time.time() // 86_400) % len(found)]
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
