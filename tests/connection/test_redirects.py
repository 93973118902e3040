"""Redirects of the REST API that are followed, with credentials, and those that are refused."""

import pytest
from cases import cases

from geminga.connection.addresses import Address
from geminga.connection.redirects import followed
from geminga.errors import LookupError

HOST = Address("Broker-1", 8080)
SECURE = Address("broker-1", 8443, True)
PATH = "/admin/v2/persistent/public/default/t/stats?x=1"


@pytest.mark.parametrize(
    ("status", "location", "asked", "address", "target"),
    [
        # Apache Pulsar names the broker that owns the topic: 307 and the same path.
        (307, "http://broker-2:8081" + PATH, HOST, Address("broker-2", 8081), PATH),
        (308, "https://broker-2" + PATH, HOST, Address("broker-2", 443, True), PATH),
        (307, "https://[fe80::1]:8443" + PATH, SECURE, Address("fe80::1", 8443, True), PATH),
        (307, "http://broker-1?x=1", HOST, Address("broker-1", 80), "/?x=1"),
        (307, "http://broker-2/admin/v3/x", HOST, Address("broker-2", 80), "/admin/v3/x"),
        # The same host: another path, or TLS.
        (302, "/elsewhere?a=b", HOST, HOST, "/elsewhere?a=b"),
        (301, "https://broker-1:8443" + PATH, HOST, Address("broker-1", 8443, True), PATH),
        (302, "http://BROKER-1:9/login", HOST, Address("broker-1", 9), "/login"),
        (302, "http://broker-1", HOST, Address("broker-1", 80), "/"),
    ],
)
def test_redirects_within_the_cluster_are_followed(status, location, asked, address, target):
    assert followed(status, location, asked, PATH) == (address, target)


@pytest.mark.parametrize(("status", "location", "secure", "why"), cases("redirects_refused"))
def test_other_redirects_are_refused(status, location, secure, why):
    with pytest.raises(LookupError, match=why):
        followed(status, location, SECURE if secure else HOST, PATH)
