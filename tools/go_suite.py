"""The Go client's own tests of transactions, on Apache Pulsar and on Geminga's broker.

    make suite

The tests are those of the Go module ``github.com/apache/pulsar-client-go``, which ``go mod download``
fetches. In a copy, the addresses in ``pulsar/helper_for_test.go`` are those of a broker that the tests have
for themselves; nothing else is changed. Both brokers have the module's certificates, the ``maxMessageSize``
of its ``standalone.conf``, and no authentication.

Prints the results of each broker, and exits 1 if a test that passes on Apache Pulsar fails on Geminga's.
``--publish`` writes what ``docs/coming-from-pulsar-client.md`` shows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from official_suite import HOME, ROOT

from geminga.broker.serving.embedded import EmbeddedBroker, embedded
from geminga.testing.apache_pulsar import ApachePulsar, free_ports

MODULE, VERSION = "github.com/apache/pulsar-client-go", "0.19.0"
TESTS = "^TestTxn"
PUBLISHED = ROOT / "docs/proof/go_suite.json"
MESSAGE_BYTES_MAX = 1 << 20
SECONDS_MAX = 1800

Ports = tuple[int, int, int, int]
"""Ports of the binary protocol and of admin REST, and both with TLS."""


def go(folder: Path, *arguments: str) -> str:
    """Run ``go`` and return its output."""
    return subprocess.run(
        ["go", *arguments], cwd=folder, env={**os.environ, "CGO_ENABLED": "0"}, timeout=SECONDS_MAX,
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip


def copied(folder: Path) -> Path:
    """Return a writable copy of the module's sources."""
    found = json.loads(go(folder, "mod", "download", "-json", f"{MODULE}@v{VERSION}"))
    copy = folder / "module"
    shutil.copytree(found["Dir"], copy, copy_function=shutil.copyfile)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def build(sources: Path, ports: Ports) -> None:
    """Compile the tests for a broker on these ports."""
    helper = sources / "pulsar/helper_for_test.go"
    text = helper.read_text()
    for theirs, ours in zip(("6650", "8080", "6651", "8443"), ports, strict=True):
        assert text.count(f'//localhost:{theirs}"') == 1, f"{helper} has other addresses"
        text = text.replace(f'//localhost:{theirs}"', f'//localhost:{ours}"')
    helper.write_text(text)
    go(sources / "pulsar", "test", "-c", "-vet=off", "-o", "tests", ".")


def run(sources: Path) -> dict[str, str]:
    """Return ``pass``, ``fail`` or ``skip`` for each test."""
    output = subprocess.run(
        ["./tests", "-test.v", "-test.timeout=15m", f"-test.run={TESTS}"], cwd=sources / "pulsar",
        timeout=SECONDS_MAX, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    ).stdout  # fmt: skip
    print(*re.findall(r"(?m)^--- .*|^panic.*|^\s+(?:Error|Messages).*", output), sep="\n", file=sys.stderr)
    return {name: outcome.lower() for outcome, name in re.findall(r"(?m)^--- (\w+): (\S+)", output)}


@contextmanager
def apache(certificates: Path, folder: Path) -> Iterator[Ports]:
    tls_port, web_tls_port = free_ports(2)
    with ApachePulsar.start(
        Path(os.environ.get("PULSAR_HOME", HOME)), folder, timeout_seconds=600,
        advertisedAddress="localhost", brokerServicePortTls=tls_port, webServicePortTls=web_tls_port,
        tlsCertificateFilePath=f"{certificates}/broker-cert.pem",
        tlsKeyFilePath=f"{certificates}/broker-key.pem",
        tlsTrustCertsFilePath=f"{certificates}/cacert.pem",
        transactionCoordinatorEnabled=True, acknowledgmentAtBatchIndexLevelEnabled=True,
        maxMessageSize=MESSAGE_BYTES_MAX,
    ) as broker:  # fmt: skip
        yield broker.port, broker.web_port, tls_port, web_tls_port


def ours(certificates: Path, ports: Ports) -> EmbeddedBroker:
    port, web_port, tls_port, web_tls_port = ports
    return embedded(
        advertised_address="localhost", port=port, web_port=web_port, tls_port=tls_port,
        web_tls_port=web_tls_port, tls_certificate=certificates / "broker-cert.pem",
        tls_key=certificates / "broker-key.pem", max_message_size=MESSAGE_BYTES_MAX,
    )  # fmt: skip


def page(values: Mapping[str, Any]) -> str:
    """Return the results as a page shows them."""
    columns: Mapping[str, Mapping[str, str]] = values["outcomes"]
    lines = [
        f"On {values['at']}, of the {len(columns['Apache Pulsar'])} tests of transactions of the Go client "
        f"{values['version']} (`{TESTS[1:]}*`), unmodified except for the addresses, pass:",
        "",
        "| broker | tests | failed |",
        "|---|---|---|",
    ]
    for broker, outcomes in columns.items():
        failed = ", ".join(f"`{name}`" for name, outcome in outcomes.items() if outcome != "pass") or "none"
        lines.append(f"| {broker} | {list(outcomes.values()).count('pass')} | {failed} |")
    return "\n".join([*lines, "", "`make suite` runs them; it needs Go."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--publish", action="store_true", help=f"write {PUBLISHED.relative_to(ROOT)}")
    given = parser.parse_args()
    outcomes = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        sources = copied(folder)
        certificates = sources / "integration-tests/certs"
        with apache(certificates, folder / "apache") as ports:
            build(sources, ports)
            outcomes["Apache Pulsar"] = run(sources)
        with ours(certificates, ports):
            outcomes["Geminga"] = run(sources)
    values = {"at": datetime.now(UTC).date().isoformat(), "version": VERSION, "outcomes": outcomes}
    print(page(values))
    if given.publish:
        PUBLISHED.write_text(json.dumps(values, indent=1) + "\n")
    counted = [test for test, outcome in outcomes["Apache Pulsar"].items() if outcome == "pass"]
    return int(not counted or any(outcomes["Geminga"].get(test) != "pass" for test in counted))


if __name__ == "__main__":
    sys.exit(main())
