"""Bring a real Apache Pulsar here for ``make interop`` and ``make bench``: ``fetch_pulsar.py [VERSION]``.

Without a version, uses the distribution that ``PULSAR_HOME`` names. Otherwise asks Maven for
``org.apache.pulsar:pulsar-server-distribution`` and unpacks it to ``.cache/``. Where Maven has none of a
version, takes the broker's libraries, with scripts and configuration of the default version: a home without
Java tools. Prints the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
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
    artifact = f"org.apache.pulsar:pulsar-server-distribution:{version}:tar.gz:bin"
    if not maven("copy", f"-Dartifact={artifact}", f"-DoutputDirectory={CACHE}"):
        return version != VERSION and fetch_libraries(version)
    archive = CACHE / f"pulsar-server-distribution-{version}-bin.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(CACHE, filter="data")
    archive.unlink()
    return True


def maven(goal: str, *options: str, folder: Path = CACHE) -> bool:
    """Run a goal of Maven's plugin for dependencies; return whether it succeeded.

    Its repository is ours: Spark's ``--packages`` looks into the user's, and fails on a POM without JAR.
    """
    command = [
        "mvn",
        "-q",
        "-B",
        "-U",
        f"-Dmaven.repo.local={CACHE / 'maven'}",
        f"org.apache.maven.plugins:maven-dependency-plugin:2.8:{goal}",
        *options,
    ]
    return subprocess.run(command, cwd=folder, check=False).returncode == 0


POM = """<project><modelVersion>4.0.0</modelVersion><artifactId>libraries</artifactId>
<parent><groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId><version>{0}</version><relativePath/>
</parent>{1}<dependencies><dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId>
<version>{0}</version><exclusions><exclusion><groupId>io.netty</groupId>
<artifactId>netty-resolver-dns-native-macos</artifactId></exclusion><exclusion>
<groupId>org.apache.distributedlog</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
</dependencies></project>"""
"""The parent chooses the versions of what the libraries depend on."""
MANAGED = """<dependencyManagement><dependencies><dependency><groupId>com.fasterxml.jackson</groupId>
<artifactId>jackson-bom</artifactId><version>2.21.3</version><type>pom</type><scope>import</scope></dependency>
<dependency><groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId><version>3.9.5</version>
</dependency></dependencies></dependencyManagement>"""
"""From 5.0 on it does not, and Maven would take versions that do not fit together. A standalone broker needs
no ZooKeeper, whose version 3.9.6 some mirrors lack."""


def fetch_libraries(version: str) -> bool:
    """Make a home of a version's libraries; return whether that worked."""
    print(f"There is no distribution of {version}: fetching its libraries (330 MB, once) ...", flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "pom.xml").write_text(POM.format(version, MANAGED if version.startswith("5.") else ""))
        options = ("-DoutputDirectory=lib", "-DincludeScope=runtime", "-Dmdep.prependGroupId=true")
        if main(VERSION) or not maven("copy-dependencies", *options, folder=folder):
            return False
        for part in ("bin", "conf"):
            shutil.copytree(home_of(VERSION) / part, folder / part)
        folder.rename(home_of(version))
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
