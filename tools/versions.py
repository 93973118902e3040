"""Other versions of Apache Pulsar: Geminga's client on their broker, their clients on Geminga's broker.

``python tools/versions.py 2.11.0`` fetches a version and runs the tests (as ``make interop VERSION=2.11.0``
does), ``next`` takes the release that ``ROTATION`` of tests/conftest.py chooses, ``clients`` runs a program
with each version of the official clients, ``all`` does all of this in turn. ``--publish`` writes the outcomes
from which ``make docs`` draws ``docs/versions.md``.
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
import other_python

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "docs/proof/versions.json"
VERSIONS = ("2.10.1", "2.11.0", "3.0.7", "3.3.6", "4.0.8", "4.2.4", "5.0.1")
JAVA_TOOLS = "test_java_tools_against_geminga"
FILES = ("test_client_against_apache_pulsar", "test_administration", "test_operating", JAVA_TOOLS)


Outcomes = list[tuple[str, str, str]]
"""Class and name of each test, then ``passed``, ``failed``, or why it was skipped or expected to fail."""


def outcomes(*arguments: str, **environment: str) -> tuple[int, Outcomes]:
    """Run tests of Apache Pulsar; return pytest's exit status, and the outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        status = subprocess.run(command, env=os.environ | environment, cwd=ROOT, check=False).returncode
        cases = list(ET.parse(report).iter("testcase"))
    found = []
    for case in cases:
        passed = case.find("failure") is None and case.find("error") is None
        skipped = case.find("skipped")
        outcome = skipped.get("message", "") if skipped is not None else "passed" if passed else "failed"
        found.append((case.get("classname", ""), case.get("name", ""), outcome))
    return status, found


def today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def java_for(version: str) -> dict[str, str]:
    """Return the variable that names a Java for a version, where it must be a newer one than the default."""
    newer = sorted(Path("/usr/lib/jvm").glob("*-2[1-9]-*")) if version.startswith("5.") else []
    return {"JAVA_HOME": str(newer[0])} if newer else {}


def test(version: str) -> tuple[int, dict[str, Any]]:
    """Run the tests with a version that is here; return pytest's exit status, and the outcomes."""
    home = fetch_pulsar.home_of(version)
    has_tools = any(home.glob("lib/*pulsar-client-tools-[0-9]*"))
    files = [f"tests/interop/{name}.py" for name in FILES if has_tools or name != JAVA_TOOLS]
    # pulsar-admin is started once for all its commands by a class that older versions do not have.
    kinds = ["-m", "interop and not long", "-k", "not pulsar_admin and not pulsar_perf"]
    environment = {"PULSAR_HOME": str(home), **java_for(version)}
    status, found = outcomes(*kinds, *files, **environment)
    if failed := {(place, name) for place, name, outcome in found if outcome == "failed"}:
        # Releases have races of their own: a test fails that fails on a fresh broker, too.
        names = ", ".join(sorted(name for _, name in failed))
        print(f"Apache Pulsar {version}: once more on a fresh broker: {names}", file=sys.stderr)
        status, again = outcomes(
            "--last-failed", "--last-failed-no-failures=none", *kinds, *files, **environment
        )
        found = [case for case in found if case[:2] not in failed] + again
    ours, java = Counter[str](), Counter[str]()
    for place, _, outcome in found:
        (java if JAVA_TOOLS in place else ours).update(["tests", *["passed"] * (outcome == "passed")])
    lacks = sorted({outcome for _, _, outcome in found} - {"passed", "failed"})
    return status, {"ours": dict(ours), "java": dict(java), "lacks": lacks, "at": today()}


def test_clients() -> tuple[int, dict[str, Any]]:
    """Run the programs with all versions of the clients; return pytest's exit status, and the outcomes."""
    status, found = outcomes("--every", "tests/interop/test_other_clients.py")
    clients: dict[str, Any] = {}
    for _, name, outcome in found:
        client, version = name.partition("[")[2].rstrip("]").split("-")
        clients.setdefault(client, {"at": today(), "versions": {}})["versions"][version] = outcome
    return status, clients


def _numbers(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version)]


_NAMES = {"java": "Java", "go": "Go", "python": "Python (`pulsar-client`)"}


def page(values: Mapping[str, Any]) -> str:
    """The outcomes as a page shows them."""
    lines = [
        "| Apache Pulsar | Geminga's client, `Admin` and commands on its broker | its Java client on "
        "Geminga's broker | failing tests: what this version lacks | run |",
        "|---|---:|---:|---|---|",
    ]
    for version, found in sorted(values["brokers"].items(), key=lambda row: _numbers(row[0])):
        counts = (
            f"{found[each]['passed']} of {found[each]['tests']}" if found[each] else "not run"
            for each in ("ours", "java")
        )
        lines.append(f"| {' | '.join([version, *counts, '; '.join(found['lacks']), found['at']])} |")
    lines += [
        "",
        "| official client | versions with which its program passes on Geminga's broker | not | run |",
    ]
    lines += ["|---|---|---|---|"]
    for client, found in values["clients"].items():
        passed = ", ".join(version for version, outcome in found["versions"].items() if outcome == "passed")
        others = (f"{version}: {why}" for version, why in found["versions"].items() if why != "passed")
        lines.append(f"| {_NAMES[client]} | {passed} | {'; '.join(others)} | {found['at']} |")
    return "\n".join([*lines, "", "`python tools/versions.py all --publish` made this; numbers are tests."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="such as 2.11.0; next; clients; all")
    parser.add_argument("--publish", action="store_true", help=f"write docs/proof/{PUBLISHED.name}")
    given = parser.parse_args()
    values = json.loads(PUBLISHED.read_text())
    released = [version for version in VERSIONS if "-" not in version]
    chosen = released[other_python.rotation() % len(released)]
    several = {"all": (*VERSIONS, "clients"), "next": (chosen,)}
    statuses = []
    for version in several.get(given.version, (given.version,)):
        if version == "clients":
            status, values["clients"] = test_clients()
        elif fetch_pulsar.main(version):
            if given.version == "next":
                print(f"Apache Pulsar {version} cannot be fetched: its tests are left out.", file=sys.stderr)
                return 0
            return 1
        else:
            status, values["brokers"][version] = test(version)
        statuses.append(status)
        if given.publish:
            PUBLISHED.write_text(json.dumps(values, indent=1) + "\n")
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
