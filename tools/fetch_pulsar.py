"""Bring a real Apache Pulsar here for ``make interop`` and ``make bench``.

Uses the distribution that ``PULSAR_HOME`` names, else asks Maven for
``org.apache.pulsar:pulsar-server-distribution:4.0.4`` and unpacks it to ``.cache/``. Prints the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "4.0.4"
ARTIFACT = f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
CACHE = Path(__file__).parent.parent / ".cache"
HOME = CACHE / f"apache-pulsar-{VERSION}"


def pulsar_home() -> Path | None:
    """The folder of the distribution if it is here already."""
    named = os.environ.get("PULSAR_HOME")
    if named:
        return Path(named)
    return HOME if (HOME / "bin/pulsar").exists() else None


def main() -> int:
    here = pulsar_home()
    if here is None:
        if shutil.which("mvn") is None:
            print(
                f"Apache Pulsar {VERSION} is needed and Maven (mvn) is not here to fetch it: install Maven, "
                "or unpack the distribution yourself and set PULSAR_HOME to its folder.",
                file=sys.stderr,
            )
            return 1
        CACHE.mkdir(exist_ok=True)
        print(f"Fetching Apache Pulsar {VERSION} with Maven (240 MB, once) ...", flush=True)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"
        subprocess.run(
            ["mvn", "-q", "-B", goal, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={CACHE}"], check=True
        )
        archive = CACHE / f"pulsar-server-distribution-{VERSION}-bin.tar.gz"
        with tarfile.open(archive) as tar:
            tar.extractall(CACHE, filter="data")
        archive.unlink()
        here = HOME
    print(f"Apache Pulsar: {here}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
