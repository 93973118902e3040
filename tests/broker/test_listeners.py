"""Listener names: their notation, and what look-ups answer."""

from typing import Any

import pytest

from geminga.broker.listeners import parse_listeners
from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC

TWO = (
    "internal:pulsar://10.0.0.5:6650",
    "external:pulsar://example.org:6650",
    "external:pulsar+ssl://example.org:6651",
    "external:https://example.org:8443/",
)


def test_listeners_are_parsed():
    found = parse_listeners((*TWO, "six:pulsar://[fd00::1]:6650"))
    assert list(found) == ["internal", "external", "six"]
    assert found["internal"].pulsar == "pulsar://10.0.0.5:6650"
    assert (found["internal"].pulsar_tls, found["internal"].http) == (None, None)
    assert found["external"].pulsar_tls == "pulsar+ssl://example.org:6651"
    assert found["external"].https == "https://example.org:8443"
    assert found["six"].pulsar == "pulsar://[fd00::1]:6650"


@pytest.mark.parametrize(
    ("listeners", "said"),
    [
        (("pulsar://a:1",), "NAME:URL"), (("a:kafka://a:1",), "NAME:URL"), (("a:pulsar://a",), "NAME:URL"),
        (("a:pulsar://a:0",), "NAME:URL"), (("a:pulsar://a:65536",), "NAME:URL"),
        (("a:pulsar://user:word@a:1",), "NAME:URL"), ((7,), "NAME:URL"), (([],), "NAME:URL"),
        ("a:pulsar://a:1", "tuple"), (("a:pulsar://a:1", "a:pulsar://b:1"), "two addresses"),
        (("a:pulsar://a:1", "b:pulsar://A:1"), "is of listener 'a' and of 'b'"),
        (("a:http://a:1",), "no pulsar://"),
    ],
)  # fmt: skip
def test_invalid_listeners_are_named(listeners, said):
    with pytest.raises(InvalidConfiguration, match="advertised_listeners") as caught:
        BrokerSettings(memory=True, advertised_listeners=listeners)
    assert said in str(caught.value)


def test_settings_of_listeners_and_ports_are_checked():
    with pytest.raises(InvalidConfiguration, match="internal_listener"):
        BrokerSettings(memory=True, advertised_listeners=TWO, internal_listener="inside")
    for name in ("tls_port", "web_tls_port"):
        with pytest.raises(InvalidConfiguration, match=f"{name}.*tls_certificate"):
            BrokerSettings(memory=True, **{name: 6651})
    with pytest.raises(InvalidConfiguration, match="tls_port"):
        BrokerSettings(memory=True, tls_certificate="x", tls_port=6650)
    with pytest.raises(InvalidConfiguration, match="web_tls_port"):
        BrokerSettings(memory=True, tls_certificate="x", web_port=None, web_tls_port=8443)


def test_addresses_follow_ports_and_tls():
    plain = BrokerSettings(memory=True)
    assert plain.addresses() == plain.own_addresses()
    assert plain.addresses("internal") is None
    tls = BrokerSettings(memory=True, tls_certificate="x").own_addresses()
    assert (tls.pulsar, tls.pulsar_tls) == (None, "pulsar+ssl://127.0.0.1:6650")
    assert (tls.http, tls.https) == (None, "https://127.0.0.1:8080")
    both = BrokerSettings(memory=True, tls_certificate="x", tls_port=6651, web_tls_port=8443)
    assert (both.service_url, both.admin_url) == ("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")
    own = both.own_addresses("::1")
    assert (own.pulsar_tls, own.https) == ("pulsar+ssl://[::1]:6651", "https://[::1]:8443")
    one = BrokerSettings(memory=True, tls_certificate="x", tls_port=6651).own_addresses()
    # Only the binary protocol has a plain port, as requested: passwords of administrators stay under TLS.
    assert (one.pulsar, one.pulsar_tls, one.http, one.https) == (
        "pulsar://127.0.0.1:6650", "pulsar+ssl://127.0.0.1:6651", None, "https://127.0.0.1:8080",
    )  # fmt: skip
    other = BrokerSettings(memory=True, tls_certificate="x", web_tls_port=8443).own_addresses()
    assert (other.pulsar, other.pulsar_tls, other.http, other.https) == (
        None, "pulsar+ssl://127.0.0.1:6650", "http://127.0.0.1:8080", "https://127.0.0.1:8443",
    )  # fmt: skip
    named = BrokerSettings(memory=True, host="0.0.0.0", advertised_listeners=TWO)
    assert not named.lookup_through_service_url
    first, second = named.addresses(), named.addresses("external")
    assert first is not None
    assert second is not None
    assert (first.pulsar, first.http) == ("pulsar://10.0.0.5:6650", "http://localhost:8080")
    assert (second.https, second.http) == ("https://example.org:8443", None)
    chosen = BrokerSettings(memory=True, advertised_listeners=TWO, internal_listener="external")
    assert chosen.addresses() == second


def test_lookups_return_the_named_listener(make_harness):
    peer = make_harness(advertised_listeners=TWO).peer()

    def ask(name: str | None) -> Any:
        fields = {} if name is None else {"advertised_listener_name": name}
        answer = peer.request("lookupTopic", topic=TOPIC, authoritative=False, **fields)
        return answer.command.lookupTopicResponse

    for name in (None, "", "internal"):
        answer = ask(name)
        assert (answer.brokerServiceUrl, answer.HasField("brokerServiceUrlTls")) == (
            "pulsar://10.0.0.5:6650", False,
        )  # fmt: skip
    answer = ask("external")
    assert answer.brokerServiceUrl == "pulsar://example.org:6650"
    assert answer.brokerServiceUrlTls == "pulsar+ssl://example.org:6651"
    refused = ask("nowhere")
    assert refused.response == pb.CommandLookupTopicResponse.Failed
    assert refused.error == pb.ServiceNotReady
    assert "internal, external" in refused.message
    assert len(ask("x" * 1_000_000).message) < 300
