"""One Spark session for all tests of this folder; brokers are the package's own fixtures."""

import sys
from pathlib import Path

import pytest

# For `scripted_cluster` and its like: tests are imported file by file, without packages.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "chaos"))

from local_session import local_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A small local session with ``format("pulsar")``; skips where Java is missing."""
    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="module", autouse=True)
def no_client_is_left():
    """Close the driver's cached clients after a module's tests: their brokers are gone, and the clients would
    try to reconnect during other tests."""
    yield
    cluster = sys.modules.get("geminga.spark.cluster.clients")
    while cluster is not None and cluster._clients:
        cluster._clients.popitem()[1].shutdown()


@pytest.fixture
def older_release(monkeypatch):
    """Have the source plan as on PySpark 4.0 and 4.1."""
    for module in ("datasource", "releases"):
        monkeypatch.setattr(f"geminga.spark.{module}.PLANS_BY_START", False)


@pytest.fixture(scope="module")
def pulsar_broker(pulsar_module_broker):
    """The module's: Spark keeps connections for longer than a test."""
    return pulsar_module_broker


@pytest.fixture
def client(broker):
    with broker.client() as found:
        yield found
