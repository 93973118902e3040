"""Bring Prometheus and ``promtool`` here from Debian's packages, for the tests of alert rules and scrapes.

It is unpacked to ``.cache/prometheus``, once. Where there is no ``apt-get``, those tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).parent.parent / ".cache/prometheus"
PROGRAMS = (HOME / "usr/bin/promtool", HOME / "usr/bin/prometheus")


def main() -> int:
    if not all(each.exists() for each in PROGRAMS) and (why := fetch()):
        print(f"no Prometheus: {why}; the tests of alert rules and scrapes are skipped", file=sys.stderr)
        return 0
    print(f"Prometheus: {HOME}")
    return 0


def fetch() -> str:
    """Fetch and unpack the package; return the reason if that is impossible."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "no apt-get here"
    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run(
            ["apt-get", "download", "prometheus"],
            cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        packages = list(Path(folder).glob("*.deb"))
        if found.returncode or not packages:
            return (found.stderr.strip().splitlines() or ["apt-get found no package"])[-1]
        unpacked = Path(folder) / "unpacked"
        subprocess.run(["dpkg", "-x", str(packages[0]), str(unpacked)], timeout=60, check=True)
        for each in PROGRAMS:
            each.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(unpacked / "usr/bin" / each.name, each)
    return ""


if __name__ == "__main__":
    sys.exit(main())
