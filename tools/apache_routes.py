"""The REST paths of Apache Pulsar, read from the annotations of its classes, and why some are not served.

``python tools/apache_routes.py PULSAR_HOME`` (a JDK's ``javap`` is needed) writes ``apache_routes.txt``:
a method and a path on each line. ``docs/reference/rest.md`` is drawn from it and from the broker's own
routes; a path that is neither served nor named in `REASONS` fails the docs test.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSION = "4.0.4"
ROUTES = Path(__file__).with_suffix(".txt")
_V2, _V3 = "org.apache.pulsar.broker.admin.v2.", "org.apache.pulsar.broker.admin.v3."
_CLASSES = {
    "/admin/v2": [
        _V2 + name
        for name in (
            "Bookies", "BrokerStats", "Brokers", "Clusters", "NonPersistentTopics", "PersistentTopics",
            "ExtPersistentTopics", "ExtNonPersistentTopics", "Namespaces", "ResourceGroups",
            "ResourceQuotas", "SchemasResource", "Tenants", "Worker", "WorkerStats",
        )
    ],
    "/admin/v3": [
        _V3 + name
        for name in ("Functions", "Packages", "Sink", "Sinks", "Source", "Sources", "Transactions")
    ],
    "/lookup": ["org.apache.pulsar.broker.lookup.v2.TopicLookup"],
    "/topics": ["org.apache.pulsar.broker.rest.Topics"],
}  # fmt: skip
_METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD", "PATCH")

REASONS: tuple[tuple[str, str], ...] = (
    (
        r"/admin/v3/functions|/admin/v2/functions|/admin/v2/worker",
        "functions run as separate programs: see [functions](../functions.md) and `geminga function run`",
    ),
    (
        r"/admin/v3/(sources?|sinks?)\b",
        "there are no connectors; use Spark instead: see [Spark](../spark.md)",
    ),
    (r"/admin/v3/packages", "there is no package store: functions are imported from the Python path"),
    (r"/admin/v3/transactions", "there is one coordinator, and a transaction is one record in the store"),
    (r"/admin/v2/bookies", "there are no bookies: the broker has its own store"),
    (r"/admin/v2/resource-quotas", "one broker serves all bundles: quotas cannot distribute load"),
    (r"/admin/v2/broker-stats", "these are statistics of the JVM; for others see `/metrics`"),
    (r"/admin/v2/clusters/.*(namespaceIsolationPolicies|failureDomains)", "there is only one broker"),
    (r"/admin/v2/clusters/.*migrate", "the broker redirects no clients"),
    (r"/admin/v2/(resourcegroups|namespaces/.*resourcegroup)", "rates belong to namespaces and topics here"),
    (
        r"/admin/v2/namespaces/(grant|revoke)PermissionsOnTopics",
        "permissions are granted for one topic or for a namespace",
    ),
    (r"/admin/v2/namespaces/.*antiAffinity", "there is only one broker"),
    (r"/admin/v2/namespaces/.*bookieAffinity", "there are no bookies: the broker has its own store"),
    (
        r"/admin/v2/namespaces/.*scanOffloadedLedgers",
        "`GET .../offload` of a topic returns its offload status",
    ),
    (
        r"/admin/v2/namespaces/[^/]*/[^/]*/\{bundle\}",
        "all bundles belong to this broker: a single bundle cannot be deleted",
    ),
    (r"/admin/v2/.*shadowTopics", "there are no shadow topics"),
    (
        r"/admin/v2/.*/\{subName\}/dispatchRate",
        "rates are set for all subscriptions of a topic, with `subscriptionDispatchRate`",
    ),
    (r"/admin/v2/brokers/shutdown", "a broker is stopped by SIGTERM, not over its web port"),
)
"""Pattern at the start of a path to the reason; the first that matches counts."""


def _described(home: Path, name: str) -> Iterator[str]:
    """Yield the output of ``javap`` for a class and for the classes of Pulsar that it extends."""
    jars = [str(jar) for jar in (home / "lib").glob("org.apache.pulsar-*.jar")]
    while name.startswith("org.apache.pulsar."):
        command = ["javap", "-v", "-p", "-cp", ":".join(jars), name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        yield text
        extends = re.search(r"^public .*class \S+ extends ([\w.]+)", text, re.M)
        name = extends[1] if extends else ""


def _routes(texts: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the methods and paths of one class, including inherited ones."""
    found: list[tuple[str, str]] = []
    base = ""
    text = "\n".join(texts)
    for block in re.split(r"^(?=\s*RuntimeVisibleAnnotations:)", text, flags=re.M)[1:]:
        lines = block.splitlines()
        inside = len(lines[0]) - len(lines[0].lstrip())
        body = [lines[0]]
        for line in lines[1:]:
            if line.strip() and len(line) - len(line.lstrip()) <= inside:
                break
            body.append(line)
        noted = "\n".join(body)
        path = re.search(r'javax\.ws\.rs\.Path\(\s*value="([^"]*)"', noted)
        methods = re.findall(rf"javax\.ws\.rs\.({'|'.join(_METHODS)})\b", noted)
        if methods:
            found += [(method, path[1] if path else "") for method in methods]
        elif path is not None and inside == 0:
            base = base or path[1]
    for method, path_ in found:
        yield method, re.sub(r"/+", "/", f"/{base}/{path_}").rstrip("/")


def read(home: Path) -> list[str]:
    """Every route of a release, as ``METHOD path``; names of parts without their patterns."""
    routes = set()
    for prefix, names in _CLASSES.items():
        for name in names:
            for method, path in _routes(_described(home, name)):
                plain = re.sub(r"\{\s*(\w+)\s*(:[^{}]*(\{[^{}]*\}[^{}]*)*)?\}", r"{\1}", prefix + path)
                routes.add(f"{method} {plain}".replace("{property}", "{tenant}"))
    return sorted(routes, key=lambda route: route.partition(" ")[::-1])


def listed() -> list[tuple[str, str]]:
    """Return method and path of each route in ``apache_routes.txt``."""
    lines = ROUTES.read_text().splitlines()
    return [(method, path) for method, _, path in (line.partition(" ") for line in lines) if path]


def reason(path: str) -> str:
    """Return why a path is not served; empty if no reason is given yet."""
    return next((why for pattern, why in REASONS if re.match(pattern, path)), "")


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    routes = read(Path(sys.argv[1]))
    ROUTES.write_text("\n".join(routes) + "\n")
    print(f"{len(routes)} routes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
