"""``pulsar-client``'s own test suite, four ways: both libraries, each on our broker and on Apache Pulsar.

    make suite SUITE=~/pulsar-client-python/tests

The suite is in no wheel of ``pulsar-client``, and PyPI has nothing else of it: ``SUITE`` is the folder
``tests`` of a checkout of its repository, at the version that is installed (3.13). Nothing in it is changed
except the address of the broker, in a copy. For Geminga's runs ``import pulsar`` imports `geminga`.

Each column has a broker of its own, with the namespaces that the suite takes for granted; the keys that
``test-conf`` lacks (they are in no checkout) are made.

What counts are the tests that pass with ``pulsar-client`` on Apache Pulsar; the others ask for a broker that
is set up in a certain way (TLS, tokens, a second cluster). Prints a table of the files, then each test that
counts and fails somewhere, and exits 1 when there is one that fails with `geminga`, uses no helper that is
private to ``pulsar-client``, and is not explained by a difference (``client_differences.SUITE``).
``--publish`` writes what ``docs/coming-from-pulsar-client.md`` shows.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree

import client_differences
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from geminga import Admin
from geminga.broker.serving.embedded import embedded
from geminga.testing.apache_pulsar import ApachePulsar

LIBRARIES = ("geminga", "pulsar")
ROOT = Path(__file__).parent.parent
HOME = ROOT / ".cache/apache-pulsar-4.0.4"
PUBLISHED = ROOT / "docs/proof/suite.json"
JUDGE = "pulsar on Apache Pulsar"
SECONDS_MAX = 1800
PULSAR, WEB = "localhost:6650", "localhost:8080"

PRIVATE = "private to pulsar-client"
ALIAS = f'''
"""Every import of pulsar gets geminga; what is private to pulsar-client is there, and refuses to be used."""
import importlib, sys, types
import geminga
from geminga.schema_info import SchemaType

def private(name):
    if name.startswith("__"):
        raise AttributeError(name)
    def refuse(*_, **__):
        raise NotImplementedError(f"{PRIVATE}: {{name}}")
    return refuse

for name in ("", ".asyncio", ".exceptions", ".functions", ".functions.context", ".functions.function",
             ".functions.serde", ".schema", ".schema.definition", ".schema.schema", ".schema.schema_avro",
             ".schema.schema_protobuf", ".tableview"):
    sys.modules["pulsar" + name] = importlib.import_module("geminga" + name)
geminga.asyncio._set_future = private("_set_future")
extension = sys.modules["_pulsar"] = types.ModuleType("_pulsar")
extension.__getattr__ = lambda name: getattr(geminga, name, None) or private(name)
extension.SchemaType = SchemaType
'''.lstrip()

Outcomes = dict[str, str]
"""``file::class::test`` to ``passed``, ``failed``, ``private`` (uses what is `PRIVATE`) or ``skipped``."""


class Broker(Protocol):
    """Addresses of a broker."""

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


def prepare(broker: Broker) -> None:
    """The namespaces that the suite uses and does not make."""
    with Admin(broker.admin_url) as admin:
        admin.tenants.create("private")
        for namespace in ("public/default-2", "private/auth"):
            admin.namespaces.create(namespace)


def make_keys(folder: Path) -> None:
    """The pair of keys for the tests of encryption, unless there is one."""
    private, public = folder / "private-key.client-rsa.pem", folder / "public-key.client-rsa.pem"
    if private.exists():
        return
    folder.mkdir(exist_ok=True)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def run(library: str, broker: Broker, suite: Path, seconds_max: float = SECONDS_MAX) -> Outcomes:
    """Each file in a process of its own."""
    outcomes: Outcomes = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text) / "suite"
        files = copy_of(suite, folder, broker)
        make_keys(folder / "test-conf")
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
    """Results in a JUnit report."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        if outcome == "failed" and any(PRIVATE in (child.get("message") or "") for child in case):
            outcome = "private"
        name = case.get("classname", "").rpartition(".")[2]
        found[f"{file}::{name}::{case.get('name')}"] = outcome
    return found


def judged(columns: Mapping[str, Outcomes], judge: str) -> list[str]:
    """The tests that count: those that pass in the column ``judge``."""
    return [test for test, outcome in columns[judge].items() if outcome == "passed"]


def table(columns: Mapping[str, Outcomes], judge: str) -> str:
    """Return how many of the counted tests pass, by file and column; then those that fail in any."""
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


def figures(columns: Mapping[str, Outcomes], suite: str) -> dict[str, Any]:
    """Return the published results: how many tests pass, and the names of the others."""
    count = judged(columns, JUDGE)
    return {
        "at": datetime.now(UTC).date().isoformat(),
        "pulsar_client": importlib.metadata.version("pulsar-client"),
        "suite": suite,
        "tests": len(count),
        "passed": {
            column: sum(of.get(test) == "passed" for test in count) for column, of in columns.items()
        },
        "failed": {
            test: failing for test in count
            if (failing := {name: of.get(test, "missing") for name, of in columns.items()
                            if of.get(test) != "passed"})
        },
    }  # fmt: skip


def page(values: Mapping[str, Any]) -> str:
    """The figures as a page shows them."""
    lines = [
        f"On {values['at']}, {values['tests']} tests of `pulsar-client`'s own suite ({values['suite']}) "
        f"passed with `pulsar-client` {values['pulsar_client']} on Apache Pulsar 4.0.4. Of these pass:",
        "",
        "| library and broker | tests |",
        "|---|---|",
    ]
    lines += [f"| {column} | {count} |" for column, count in values["passed"].items()]
    failed: Mapping[str, Mapping[str, str]] = values["failed"]
    private = [test for test, of in failed.items() if "private" in of.values()]
    if private:
        told = ", ".join(f"`{test.rpartition('::')[2]}`" for test in private)
        lines += ["", f"Not with Geminga, as they test what is private to `pulsar-client`: {told}."]
    for test, of in failed.items():
        if test not in private:
            why = client_differences.SUITE.get(test.rpartition("::")[2])
            lines += ["", f"Fails: `{test}` ({', '.join(of)}){f': {why}' if why else ''}."]
    lines += [
        "",
        "`make suite SUITE=DIR` runs them, with the folder `tests` of a checkout of `pulsar-client`.",
    ]
    return "\n".join(lines)


@contextmanager
def apache() -> Iterator[ApachePulsar]:
    home = Path(os.environ.get("PULSAR_HOME", HOME))
    with (
        tempfile.TemporaryDirectory() as folder,
        ApachePulsar.start(
            home, Path(folder), timeout_seconds=180, acknowledgmentAtBatchIndexLevelEnabled=True
        ) as broker,
    ):
        yield broker


BROKERS: Mapping[str, Callable[[], AbstractContextManager[Broker]]] = {
    "Apache Pulsar": apache,
    "Geminga": lambda: embedded(failover_delay_seconds=0.1),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("suite", type=Path, help="the folder tests of a checkout of pulsar-client")
    parser.add_argument("--publish", action="store_true", help=f"write {PUBLISHED.relative_to(ROOT)}")
    parser.add_argument("--version", default="3.13", help="which version of the suite it is, for the page")
    given = parser.parse_args()
    if not list(given.suite.glob("*_test.py")):
        raise SystemExit(
            f"{given.suite} holds no *_test.py: give the folder tests of a checkout of pulsar-client's "
            "repository, at the version that is installed"
        )
    columns: dict[str, Outcomes] = {}
    for name, start in BROKERS.items():
        for library in reversed(LIBRARIES):
            with start() as broker:
                prepare(broker)
                columns[f"{library} on {name}"] = run(library, broker, given.suite)
            print(f"{library} on {name}: done", file=sys.stderr, flush=True)
    print(table(columns, JUDGE))
    if given.publish:
        PUBLISHED.write_text(json.dumps(figures(columns, given.version), indent=1) + "\n")
    ours_fail = [
        test for test in judged(columns, JUDGE)
        for column, of in columns.items()
        if column.startswith("geminga") and of.get(test) not in ("passed", "private")
        and test.rpartition("::")[2] not in client_differences.SUITE
    ]  # fmt: skip
    return int(bool(ours_fail))


if __name__ == "__main__":
    sys.exit(main())
