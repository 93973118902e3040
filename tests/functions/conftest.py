import pytest

from tests.functions.place import Place


@pytest.fixture(scope="module")
def pulsar_settings():
    return {"deduplication": True}


@pytest.fixture
def place(pulsar_broker, pulsar_client, pulsar_topic):
    return Place(pulsar_broker, pulsar_client, pulsar_topic)


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level("CRITICAL", "geminga.function")
    caplog.set_level("CRITICAL", "geminga.functions")
