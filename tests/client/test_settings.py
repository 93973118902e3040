import dataclasses

import pytest

from geminga.client.settings import ClientSettings, TlsSettings
from geminga.errors import InvalidConfiguration, InvalidUrl

URL = "pulsar://localhost:6650"


def test_defaults_are_the_official_clients():
    settings = ClientSettings(service_url=URL)
    assert settings.operation_timeout_seconds == 30
    assert settings.connection_timeout_seconds == 10
    assert settings.keepalive_interval_seconds == 30
    assert (settings.backoff_initial_seconds, settings.backoff_max_seconds) == (0.1, 60)
    assert settings.lookup_redirects_max == 20
    assert settings.connections_per_broker == 1
    assert settings.concurrent_lookup_requests == 50_000


def test_tls_verifies_by_default():
    assert TlsSettings().validate_hostname
    assert not TlsSettings().allow_insecure_connection


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("operation_timeout_seconds", 0),
        ("operation_timeout_seconds", "30"),
        ("connection_timeout_seconds", -1),
        ("backoff_max_seconds", 0.01),
        ("concurrent_lookup_requests", 0),
        ("connections_per_broker", 0),
        ("connections_per_broker", True),
        ("listener_threads", 0),
        ("listener_name", 7),
        ("memory_limit_bytes", -1),
        ("statistics_interval_seconds", -1),
    ],
)
def test_refusals_name_the_field(field, value):
    with pytest.raises(InvalidConfiguration, match=field):
        ClientSettings(service_url=URL, **{field: value})


def test_the_url_is_checked_at_once():
    with pytest.raises(InvalidUrl):
        ClientSettings(service_url="localhost:6650")


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ClientSettings(service_url=URL).service_url = "pulsar://other"  # type: ignore[misc]
