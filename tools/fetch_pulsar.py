"""Bring a real Apache Pulsar here for ``make interop`` and ``make bench``: ``fetch_pulsar.py [VERSION]``.

Without a version, uses the distribution that ``PULSAR_HOME`` names. Otherwise asks Maven for
``org.apache.pulsar:pulsar-server-distribution`` and unpacks it to ``.cache/``. Prints the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "4.0.4"
CACHE = Path(__file__).parent.parent / ".cache"


def home_of(version: str) -> Path:
    """Return the folder that a version is unpacked to."""
    return CACHE / f"apache-pulsar-{version}"


def main(version: str = "") -> int:
    """Fetch a version unless it is here; return the exit status."""
    named = "" if version else os.environ.get("PULSAR_HOME", "")
    home = Path(named) if named else home_of(version or VERSION)
    if not named and not (home / "bin/pulsar").exists() and not fetch(version or VERSION):
        return 1
    print(f"Apache Pulsar: {home}")
    return 0


def fetch(version: str) -> bool:
    """Fetch a version with Maven and unpack it; return whether that worked."""
    if shutil.which("mvn") is None:
        print(
            f"Apache Pulsar {version} is needed and Maven (mvn) is not here to fetch it: install Maven, "
            f"or unpack the distribution yourself to {home_of(version)}.",
            file=sys.stderr,
        )
        return False
    CACHE.mkdir(exist_ok=True)
    print(f"Fetching Apache Pulsar {version} with Maven (240 MB, once) ...", flush=True)
    goal = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"
    artifact = f"org.apache.pulsar:pulsar-server-distribution:{version}:tar.gz:bin"
    command = ["mvn", "-q", "-B", goal, f"-Dartifact={artifact}", f"-DoutputDirectory={CACHE}"]
    if subprocess.run(command, check=False).returncode:
        return False
    archive = CACHE / f"pulsar-server-distribution-{version}-bin.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(CACHE, filter="data")
    archive.unlink()
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
