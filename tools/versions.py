"""Other versions of Apache Pulsar: Geminga's client on their broker, their Java tools on Geminga's broker.

``python tools/versions.py 2.11.0`` fetches a version and runs the tests (as ``make interop VERSION=2.11.0``
does), ``next`` takes the version that the rotation of tests chooses, ``all`` takes all of them in turn.
``--publish`` writes the outcomes from which ``make docs`` draws ``docs/versions.md``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fetch_pulsar

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "docs/proof/versions.json"
VERSIONS = ("2.10.1", "2.11.0", "3.3.6", "4.0.8")
JAVA_TOOLS = "test_java_tools_against_geminga"
FILES = ("test_client_against_apache_pulsar", "test_administration", "test_operating", JAVA_TOOLS)


def test(version: str) -> tuple[int, dict[str, Any]]:
    """Run the tests with a version that is here; return pytest's exit status, and the outcomes."""
    environment = {**os.environ, "PULSAR_HOME": str(fetch_pulsar.home_of(version))}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        files = [f"tests/interop/{name}.py" for name in FILES]
        # pulsar-admin is started once for all its commands by a class that older versions do not have.
        kinds = ["-m", "interop and not long", "-k", "not pulsar_admin and not pulsar_perf"]
        command = [sys.executable, "-m", "pytest", "-q", *kinds, f"--junitxml={report}"]
        status = subprocess.run([*command, *files], env=environment, cwd=ROOT, check=False).returncode
        cases = list(ET.parse(report).iter("testcase"))
    ours, java, lacks = Counter[str](), Counter[str](), set[str]()
    for case in cases:
        lacking = case.find("skipped")  # what is expected to fail
        passed = lacking is None and case.find("failure") is None and case.find("error") is None
        (java if JAVA_TOOLS in case.get("classname", "") else ours).update(["tests", *["passed"] * passed])
        lacks |= {lacking.get("message", "")} if lacking is not None else set()
    at = dt.datetime.now(dt.UTC).date().isoformat()
    return status, {"ours": dict(ours), "java": dict(java), "lacks": sorted(lacks), "at": at}


def page(values: Mapping[str, Any]) -> str:
    """The outcomes as a page shows them."""
    lines = [
        "| Apache Pulsar | Geminga's client, `Admin` and commands on its broker | its Java client on "
        "Geminga's broker | failing tests: what this version lacks | run |",
        "|---|---:|---:|---|---|",
    ]
    for version, found in values.items():
        counts = (f"{found[each]['passed']} of {found[each]['tests']}" for each in ("ours", "java"))
        lines.append(f"| {' | '.join([version, *counts, '; '.join(found['lacks']), found['at']])} |")
    return "\n".join([*lines, "", "`python tools/versions.py all --publish` made this; numbers are tests."])


def chosen() -> str:
    """Return the version of this run of the tests."""
    text = (ROOT / "tests/conftest.py").read_text()
    [rotation] = re.findall(r"^ROTATION = ([\d_]+)$", text, re.M)
    return VERSIONS[int(rotation) % len(VERSIONS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="such as 2.11.0; next; all")
    parser.add_argument("--publish", action="store_true", help=f"write docs/proof/{PUBLISHED.name}")
    given = parser.parse_args()
    values = json.loads(PUBLISHED.read_text()) if PUBLISHED.exists() else {}
    statuses = []
    for version in {"all": VERSIONS, "next": (chosen(),)}.get(given.version, (given.version,)):
        if fetch_pulsar.main(version):
            if given.version == "next":
                print(f"Apache Pulsar {version} cannot be fetched: its tests are left out.", file=sys.stderr)
                return 0
            return 1
        status, values[version] = test(version)
        statuses.append(status)
        if given.publish:
            PUBLISHED.write_text(json.dumps(values, indent=1) + "\n")
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
