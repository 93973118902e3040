"""Bring a real Apache Pulsar here for ``make interop`` and ``make bench``: ``fetch_pulsar.py [VERSION]``.

Uses the distribution that ``PULSAR_HOME`` names, else asks Maven for
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


def pulsar_home(version: str = VERSION) -> Path | None:
    """The folder of the distribution if it is here already."""
    named = os.environ.get("PULSAR_HOME")
    if named:
        return Path(named)
    home = CACHE / f"apache-pulsar-{version}"
    return home if (home / "bin/pulsar").exists() else None


def main(version: str = VERSION) -> int:
    here = pulsar_home(version)
    if here is None:
        if shutil.which("mvn") is None:
            print(
                f"Apache Pulsar {version} is needed and Maven (mvn) is not here to fetch it: install Maven, "
                "or unpack the distribution yourself and set PULSAR_HOME to its folder.",
                file=sys.stderr,
            )
            return 1
        CACHE.mkdir(exist_ok=True)
        print(f"Fetching Apache Pulsar {version} with Maven (240 MB, once) ...", flush=True)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"
        artifact = f"org.apache.pulsar:pulsar-server-distribution:{version}:tar.gz:bin"
        subprocess.run(
            ["mvn", "-q", "-B", goal, f"-Dartifact={artifact}", f"-DoutputDirectory={CACHE}"], check=True
        )
        archive = CACHE / f"pulsar-server-distribution-{version}-bin.tar.gz"
        with tarfile.open(archive) as tar:
            tar.extractall(CACHE, filter="data")
        archive.unlink()
        here = pulsar_home(version)
    print(f"Apache Pulsar: {here}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
