"""Pages of other web sites are refused, under every host name."""

from urllib.parse import urlsplit

import pytest
import web_requests

from geminga.broker.admin.origins import WebHosts
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration

TOPIC = "/admin/v2/persistent/public/default/kept"


def ask(broker: EmbeddedBroker, method: str, path: str, **headers: str) -> tuple[int, bytes]:
    return web_requests.ask(broker.admin_url + path, method, **headers)[:2]


def test_requests_by_a_rebound_host_name_are_refused(broker):
    port = urlsplit(broker.admin_url).port
    assert ask(broker, "PUT", TOPIC)[0] == 204
    rebound = f"attacker.example.com:{port}"
    status, reason = ask(broker, "DELETE", TOPIC, Host=rebound, Origin=f"http://{rebound}")
    assert status == 421
    assert b"--web-host" in reason
    # A page's own GET carries no Origin.
    assert ask(broker, "GET", "/admin/v2/persistent/public/default", Host=rebound)[0] == 421
    assert ask(broker, "GET", "/metrics", Host=rebound)[0] == 421
    assert b"kept" in ask(broker, "GET", "/admin/v2/persistent/public/default")[1]


def test_requests_of_foreign_pages_to_the_brokers_own_name_are_refused(broker):
    for origin in ("http://attacker.example.com", "null"):
        assert ask(broker, "GET", "/admin/v2/clusters", Origin=origin)[0] == 403
    assert ask(broker, "GET", "/admin/v2/clusters", Sec_Fetch_Site="cross-site")[0] == 403
    own = broker.admin_url
    assert ask(broker, "GET", "/admin/v2/clusters", Origin=own)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8080", "[::1]:8080", "192.168.7.9", "localhost:8080", "LOCALHOST", "pulsar:8080",
        "broker.local", "broker.svc.cluster.local:8080", "pulsar.internal.", "broker.test", "",
    ],
)  # fmt: skip
def test_host_names_that_no_page_can_have_are_accepted(host):
    assert WebHosts(BrokerSettings(memory=True)).is_ours(host)


@pytest.mark.parametrize("host", ["example.com", "127.0.0.1.example.com:8080", "local.dev", "a.b:1:2"])
def test_other_host_names_are_not_accepted(host):
    assert not WebHosts(BrokerSettings(memory=True)).is_ours(host)


def test_settings_allow_further_host_names():
    hosts = WebHosts(BrokerSettings(memory=True, advertised_address="pulsar.example.com"))
    assert hosts.is_ours("pulsar.example.com:8080")
    assert WebHosts(BrokerSettings(memory=True, web_hosts=("a.example.com",))).is_ours("A.example.com.")
    WebHosts(BrokerSettings(memory=True, web_hosts=("*",))).check({"Host": "any.example.com"}, "/")


def test_a_web_host_that_is_no_name_is_refused():
    with pytest.raises(InvalidConfiguration, match="web_hosts='http://a'"):
        BrokerSettings(memory=True, web_hosts=("http://a",))
