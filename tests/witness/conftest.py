"""Fixtures: our broker in this process, the official client against it."""

import contextlib
import uuid
from functools import partial
from typing import Any

import pytest

pulsar = pytest.importorskip("pulsar", reason="needs the official client: pip install pulsar-client")

from geminga.broker.serving.embedded import embedded  # noqa: E402
from geminga.client.admin import admin as call_admin  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "witness" in item.path.parts:
            item.add_marker(pytest.mark.witness)


@pytest.fixture(scope="module")
def broker():
    with embedded(failover_delay_seconds=0.1, batch_index_ack=True) as running:
        yield running


@pytest.fixture
def connect():
    """``connect(service_url, **options)``: an official client that is quiet, does not hang, and is closed."""
    made = []

    def new(service_url: str, **options: Any) -> Any:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        settings = {"operation_timeout_seconds": 10, "logger": logger, **options}
        made.append(pulsar.Client(service_url, **settings))
        return made[-1]

    yield new
    for official in made:
        with contextlib.suppress(pulsar.AlreadyClosed):
            official.close()


@pytest.fixture
def client(broker, connect):
    return connect(broker.service_url)


@pytest.fixture
def topic():
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def admin(broker):
    """``admin("PUT", "persistent/public/default/t/partitions", 3)`` -> the JSON answer, or None."""
    return partial(call_admin, broker.admin_url)
