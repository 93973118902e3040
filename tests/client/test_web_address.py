"""The web address of a service URL is taken only from the broker that listens at the service URL."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

import geminga
from geminga.broker.commands import answers
from geminga.broker.listeners import ListenerAddresses
from geminga.broker.serving import server
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.client.cluster import Cluster
from geminga.client.handles import web_address
from geminga.connection.addresses import ServiceUrl
from geminga.errors import ConnectError, InvalidConfiguration
from geminga.mirror import Mirror, MirrorSettings


def port_of(url: str) -> int:
    return ServiceUrl.parse(url).addresses[0].port


@pytest.fixture
def brokers():
    with geminga.embedded() as one, geminga.embedded() as other:
        yield one, other


@pytest.fixture
def without_ids(monkeypatch):
    """Brokers send no instance id and no web addresses, as Apache Pulsar's do."""
    monkeypatch.setattr(server, "uuid4", lambda: SimpleNamespace(hex=""))


def take_as_default(monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, web: EmbeddedBroker) -> None:
    """Have the ports of the two be the default ones."""
    ports = {"pulsar": port_of(broker.service_url), "http": port_of(web.admin_url)}
    monkeypatch.setattr(web_address, "DEFAULT_PORTS", ports)


def test_geminga_sends_its_web_address_over_the_binary_protocol(brokers):
    for broker in brokers:
        cluster = Cluster(service_url=broker.service_url)
        assert cluster.find_admin_url() == broker.admin_url
        with cluster.admin() as admin:
            admin.topics.create(f"at-{port_of(broker.service_url)}")
            assert len(admin.topics.list("public/default")) == 1


def test_a_given_address_is_taken_without_a_question():
    assert (
        Cluster(service_url="pulsar://nowhere.invalid", admin_url="http://a:1").find_admin_url()
        == "http://a:1"
    )
    assert Cluster(service_url="https://a:1,b:2").find_admin_url() == "https://a:1,b:2"
    assert Cluster(admin_url="http://a:1").service_url == "http://a:1"


def announce(monkeypatch: pytest.MonkeyPatch, http_url: str) -> None:
    """Have brokers send this web address: as behind ports that a container publishes under other numbers."""
    settings: Any = SimpleNamespace(
        max_message_size=1 << 20, own_addresses=lambda: ListenerAddresses(http=http_url)
    )
    make = answers.connected
    monkeypatch.setattr(answers, "connected", lambda version, _, *more: make(version, settings, *more))


def test_the_web_port_of_another_broker_is_refused(brokers, monkeypatch):
    one, other = brokers
    take_as_default(monkeypatch, one, other)
    announce(monkeypatch, other.admin_url)
    with pytest.raises(InvalidConfiguration, match=r"belongs to another broker.*--admin-url"):
        Cluster(service_url=one.service_url).find_admin_url()


def test_the_default_web_port_is_used_if_the_announced_one_is_not_reached(brokers, monkeypatch):
    one, other = brokers
    take_as_default(monkeypatch, one, one)
    announce(monkeypatch, other.admin_url)
    assert Cluster(service_url=one.service_url).find_admin_url() == one.admin_url


def test_no_credentials_are_sent_to_an_address_that_is_not_confirmed(brokers, monkeypatch):
    received: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        announce(monkeypatch, f"http://127.0.0.1:{web.server_port}")
        cluster = Cluster(service_url=brokers[0].service_url, auth_plugin="token", auth_params="token:secret")
        with pytest.raises(InvalidConfiguration, match="belongs to another broker"):
            cluster.find_admin_url()
        web.shutdown()
    assert received == [None]


@pytest.mark.usefixtures("without_ids")
def test_the_default_ports_of_one_broker_belong_together(monkeypatch):
    with geminga.embedded() as one, geminga.embedded() as other:
        take_as_default(monkeypatch, one, one)
        assert Cluster(service_url=one.service_url).find_admin_url() == one.admin_url
        with pytest.raises(
            InvalidConfiguration, match=r"its port is not \d+\); give the address: --admin-url"
        ):
            Cluster(service_url=other.service_url).find_admin_url()


@pytest.mark.usefixtures("without_ids")
def test_default_ports_of_two_brokers_are_refused(monkeypatch):
    with geminga.embedded() as one, geminga.embedded() as other:
        take_as_default(monkeypatch, one, other)
        with pytest.raises(InvalidConfiguration, match="belongs to another broker, pulsar://"):
            Cluster(service_url=one.service_url).find_admin_url()
    with geminga.embedded(web_port=None) as one:
        monkeypatch.setitem(web_address.DEFAULT_PORTS, "pulsar", port_of(one.service_url))
        with pytest.raises(ConnectError, match="--admin-url"):
            Cluster(service_url=one.service_url).find_admin_url()


def test_find_admin_url_of_a_broker_without_a_web_port_is_refused():
    with (
        geminga.embedded(web_port=None) as broker,
        pytest.raises(InvalidConfiguration, match="has no web port"),
    ):
        Cluster(service_url=broker.service_url).find_admin_url()


def test_a_mirror_learns_both_web_addresses(brokers):
    one, other = brokers
    with geminga.Client(one.service_url) as client:
        client.create_producer("t").send(b"a")
    settings = MirrorSettings(
        source=Cluster(service_url=one.service_url), target=Cluster(service_url=other.service_url),
        topics=["public/default/t"], source_name="one", target_name="other", once=True,
    )  # fmt: skip
    assert not Mirror(settings).run(signals=False).failed
    with geminga.Admin(other.admin_url) as admin:
        assert any(name.endswith("/t") for name in admin.topics.list("public/default"))
