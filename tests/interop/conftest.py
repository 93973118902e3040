"""A real Apache Pulsar for the whole run, one a worker, and our own broker beside it for its Java tools."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import geminga
import geminga.spark
from geminga.testing.apache_pulsar import ApachePulsar, run_tool, version_of

CACHED = Path(__file__).parents[2] / ".cache/apache-pulsar-4.0.4"
KAFKA = CACHED.parent / "kafka"
_MODULES = ("spark-*", "kafka-clients-*", "commons-pool2-*")

_ADMINISTRATION = "test_each_administration_check_passes_on_apache_pulsar"
_OPERATING = "test_each_operating_check_passes_on_apache_pulsar"
LACKS = {
    "test_failover_follows_priority_and_notifies_listeners": (
        "2.10 2.11", "a Failover consumer of a higher priority that joins is not made active at once",
    ),
    "test_messages_in_flight_at_a_redelivery_request_are_dropped": (
        "2.10", "a redelivery of everything can skip messages while others are in flight",
    ),
    f"{_ADMINISTRATION}[policies_of_topics]": ("2.10", "policies of topics are off by default"),
    f"{_ADMINISTRATION}[tenants]": ("2.11", "deleting a tenant that had a namespace fails"),
    f"{_OPERATING}[tenants]": ("2.11", "deleting a tenant that had a namespace fails"),
    f"{_ADMINISTRATION}[topics]": ("2.10 2.11", "no properties of topics"),
    f"{_OPERATING}[topics]": ("2.10 2.11", "no properties of topics"),
    f"{_ADMINISTRATION}[subscriptions]": ("2.10", "properties of subscriptions cannot be read"),
    f"{_ADMINISTRATION}[brokers]": ("2.10", "no list of brokers without the cluster's name"),
}  # fmt: skip
"""Tests that fail or may fail on older versions: which ones, and what these lack."""


@pytest.fixture
def package_cache():
    """The machine's cache of Spark's ``--packages``, for this test alone: Ivy fills it for one at a time."""
    with (CACHED.parent / "ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def spark_with_modules():
    """Spark with its modules for Kafka and Avro, which ``tools/fetch_kafka.py`` fetches. Java loads them only
    when it starts: in a process that has started it for other tests, `from_avro` fails."""
    jars = [str(jar) for each in _MODULES for jar in KAFKA.glob(f"[as]*/lib/{each}.jar")]
    if not (KAFKA / "avro/lib").exists():
        pytest.skip("no modules for Spark: python tools/fetch_kafka.py")
    settings = {
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.jars": ",".join(jars),
        "spark.sql.session.timeZone": "UTC",
    }  # fmt: skip
    spark = geminga.spark.session("local[2]", "with-modules", settings)
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


_TOLD = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TOLD] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect the failures on the version that ``PULSAR_HOME`` names."""
    home = Path(os.environ.get("PULSAR_HOME", CACHED))
    version = ".".join(map(str, version_of(home)[:2])) if home.exists() else ""
    for item in items:
        versions, lack = LACKS.get(item.name, ("", ""))
        if version in versions.split():
            item.add_marker(pytest.mark.xfail(reason=lack, strict=False))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["told"] = session.config.stash[_TOLD]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended: it has no terminal of its own."""
    node.config.stash[_TOLD] += getattr(node, "workeroutput", {}).get("told", [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for title, text in config.stash[_TOLD]:
        terminalreporter.section(title)
        terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def told(pytestconfig):
    """An object with a title and a text that are printed at the end of the run, from any worker."""
    return lambda title, text: pytestconfig.stash[_TOLD].append((title, text))


@pytest.fixture(scope="session")
def pulsar_home():
    home = Path(os.environ.get("PULSAR_HOME", CACHED))
    if not (home / "bin/pulsar").exists():
        pytest.fail(f"no Apache Pulsar in {home}: run `make interop`, which fetches it")
    return home


@pytest.fixture(scope="session")
def apache_pulsar(pulsar_home, tmp_path_factory):
    """Apache Pulsar in standalone mode. Batch-index acknowledgement is on, so that tests cover both kinds.

    Tenants and namespaces may be deleted with their contents, as Geminga's may without a setting. Inactive
    topics are kept, so that a slow test does not lose its topic. The broker's statistics, a minute old by
    default, are a few seconds old.
    """
    folder = tmp_path_factory.mktemp("apache-pulsar")
    with ApachePulsar.start(
        pulsar_home, folder, timeout_seconds=180, acknowledgmentAtBatchIndexLevelEnabled=True,
        brokerDeduplicationEnabled=True, forceDeleteNamespaceAllowed=True, forceDeleteTenantAllowed=True,
        brokerDeleteInactiveTopicsEnabled=False,
        statsUpdateFrequencyInSecs=2, statsUpdateInitialDelayInSecs=2,
    ) as broker:  # fmt: skip
        yield broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """Our own broker, with a store on the disk."""
    with geminga.embedded(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def client(broker):
    with broker.client() as client:
        yield client


@pytest.fixture(scope="module")
def ours(apache_pulsar):
    """Our client of Apache Pulsar."""
    with geminga.Client(apache_pulsar.service_url) as client:
        yield client


@pytest.fixture
def tool_of(pulsar_home):
    """Return a function of a broker that returns a function: it runs a Java tool and returns its output."""

    def of(broker: Any) -> Callable[..., str]:
        def run(*arguments: str) -> str:
            done = run_tool(
                pulsar_home, *arguments, service_url=broker.service_url, admin_url=broker.admin_url
            )
            assert done.returncode == 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            return done.stdout

        return run

    return of


@pytest.fixture
def topic():
    """A fresh topic name for each call."""
    return lambda name: f"persistent://public/default/{name}-{uuid4().hex[:10]}"
