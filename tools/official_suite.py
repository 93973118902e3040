"""``pulsar-client``'s own test suite, four ways: both libraries, each on our broker and on Apache Pulsar.

    make suite SUITE=~/pulsar-client-python/tests

The suite is in no wheel of ``pulsar-client``, and PyPI has nothing else of it: ``SUITE`` is the folder
``tests`` of a checkout of its repository, at the version that is installed (3.13). Nothing in it is changed
but where it looks for a broker, in a copy. With `geminga` in its place ``import pulsar`` gives `geminga`.

What counts are the tests that pass with ``pulsar-client`` on Apache Pulsar; the others ask for a broker that
is set up in a certain way (TLS, tokens, a second cluster). Prints a table of the files, then each test that
counts and fails somewhere, and exits 1 when there is one that fails with `geminga`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from xml.etree import ElementTree

from geminga.broker.serving.embedded import embedded
from geminga.testing.apache_pulsar import ApachePulsar

LIBRARIES = ("geminga", "pulsar")
HOME = Path(__file__).parent.parent / ".cache/apache-pulsar-4.0.4"
SECONDS_MAX = 1800
PULSAR, WEB = "localhost:6650", "localhost:8080"

ALIAS = '''"""Every import of pulsar gets geminga."""
import importlib, sys
import geminga
for name in ("", ".asyncio", ".exceptions", ".functions", ".functions.context", ".functions.function",
             ".functions.serde", ".schema", ".schema.definition", ".schema.schema", ".schema.schema_avro",
             ".schema.schema_protobuf", ".tableview"):
    try:
        sys.modules["pulsar" + name] = importlib.import_module("geminga" + name)
    except ModuleNotFoundError:
        pass
sys.modules["_pulsar"] = geminga
'''

Outcomes = dict[str, str]
"""``file::class::test`` to ``passed``, ``failed`` or ``skipped``."""


class Broker(Protocol):
    """Where a broker listens."""

    @property
    def service_url(self) -> str: ...
    @property
    def admin_url(self) -> str: ...


def copy_of(suite: Path, folder: Path, broker: Broker) -> list[Path]:
    """The suite's files, looking for ``broker``."""
    shutil.copytree(suite, folder, dirs_exist_ok=True)
    places = {
        PULSAR: broker.service_url.removeprefix("pulsar://"), WEB: broker.admin_url.removeprefix("http://")
    }  # fmt: skip
    for path in folder.rglob("*.py"):
        text = path.read_text()
        for theirs, ours in places.items():
            text = text.replace(theirs, ours)
        path.write_text(text)
    return sorted(folder.glob("*_test.py"))


def run(library: str, broker: Broker, suite: Path, seconds_max: float = SECONDS_MAX) -> Outcomes:
    """Each file in a process of its own."""
    outcomes: Outcomes = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text) / "suite"
        files = copy_of(suite, folder, broker)
        (folder / "pulsar_is_geminga.py").write_text(ALIAS)
        for file in files:
            report = folder / f"{file.stem}.xml"
            command = [
                sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}",
                "-c", os.devnull, f"--junitxml={report}", "-o", "junit_family=xunit1", file.name,
            ]  # fmt: skip
            if library == "geminga":
                command[3:3] = ["-p", "pulsar_is_geminga"]
            try:
                subprocess.run(
                    command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    timeout=seconds_max, check=False, env={**os.environ, "PYTHONPATH": str(folder)},
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                outcomes[f"{file.stem}::hangs"] = "failed"
            if report.exists():
                outcomes |= outcomes_of(report, file.stem)
    return outcomes


def outcomes_of(report: Path, file: str) -> Outcomes:
    """What a JUnit report tells."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        name = case.get("classname", "").rpartition(".")[2]
        found[f"{file}::{name}::{case.get('name')}"] = outcome
    return found


def judged(columns: Mapping[str, Outcomes], judge: str) -> list[str]:
    """The tests that count: those that pass in the column ``judge``."""
    return [test for test, outcome in columns[judge].items() if outcome == "passed"]


def table(columns: Mapping[str, Outcomes], judge: str) -> str:
    """How many of the tests that count pass, by file and column; then those that fail somewhere."""
    count = judged(columns, judge)
    lines = ["| file | tests | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for file in [*sorted({test.split("::")[0] for test in count}), "all"]:
        tests = [test for test in count if file in ("all", test.split("::")[0])]
        passed = [sum(of.get(test) == "passed" for test in tests) for of in columns.values()]
        lines.append(f"| {file} | {len(tests)} | " + " | ".join(map(str, passed)) + " |")
    for test in count:
        failing = [column for column, of in columns.items() if of.get(test) != "passed"]
        if failing:
            lines.append(f"{test}: {', '.join(failing)}")
    return "\n".join(lines)


@contextmanager
def apache() -> Iterator[ApachePulsar]:
    home = Path(os.environ.get("PULSAR_HOME", HOME))
    with tempfile.TemporaryDirectory() as folder, ApachePulsar.start(home, Path(folder)) as broker:
        yield broker


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite", type=Path, help="the folder tests of a checkout of pulsar-client")
    given = parser.parse_args()
    if not list(given.suite.glob("*_test.py")):
        raise SystemExit(
            f"{given.suite} holds no *_test.py: give the folder tests of a checkout of pulsar-client's "
            "repository, at the version that is installed"
        )
    columns: dict[str, Outcomes] = {}
    with embedded(failover_delay_seconds=0.1) as ours, apache() as theirs:
        brokers: dict[str, Broker] = {"Apache Pulsar": theirs, "Geminga": ours}
        for name, broker in brokers.items():
            for library in reversed(LIBRARIES):
                columns[f"{library} on {name}"] = run(library, broker, given.suite)
                print(f"{library} on {name}: done", file=sys.stderr, flush=True)
    judge = "pulsar on Apache Pulsar"
    print(table(columns, judge))
    ours_fail = [
        test for test in judged(columns, judge)
        for column, of in columns.items() if column.startswith("geminga") and of.get(test) != "passed"
    ]  # fmt: skip
    return int(bool(ours_fail))


if __name__ == "__main__":
    sys.exit(main())
