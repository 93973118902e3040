"""A scripted broker for the client's tests: real sockets, answers that the test decides."""

import sys
from pathlib import Path

import pytest
from scripted_broker import ScriptedBroker

import geminga
from geminga.client.io.runtime import LoopThread

# For helpers such as `virtual`: tests are imported file by file, without packages.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def client(pulsar_broker):
    """Client of an embedded broker, with short time-outs."""
    with geminga.Client(pulsar_broker.service_url, operation_timeout_seconds=10) as client:
        yield client


@pytest.fixture
def topic(pulsar_topic):
    """Name of an unused topic."""
    return pulsar_topic


@pytest.fixture
def scripted():
    """A scripted broker class for tests that run their own event loop."""
    return ScriptedBroker


@pytest.fixture
def broker():
    """A scripted broker on a thread of its own, for the sync client. ``call`` runs a function there."""
    runtime = LoopThread("scripted-broker")
    scripted_broker = ScriptedBroker()
    runtime.call(scripted_broker.start(), 10)
    scripted_broker.run = runtime.call

    async def called(function, arguments):
        return function(*arguments)

    scripted_broker.call = lambda function, *arguments: runtime.call(called(function, arguments), 60)
    yield scripted_broker
    runtime.call(scripted_broker.stop(), 10)
    runtime.close()
