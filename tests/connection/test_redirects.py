"""Redirects of the REST API that are followed, with credentials, and those that are refused."""

import pytest

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


@pytest.mark.parametrize(
    ("status", "location", "asked", "why"),
    [
        (302, "https://login.example/oauth2/authorize?client=x", HOST, "use that address"),
        (303, "http://broker-2:8080" + PATH, HOST, "use that address"),
        (301, "http://broker-2:8080" + PATH, HOST, "use that address"),
        (307, "https://login.example/oauth2/admin/v2", HOST, "use that address"),
        (307, "https://login.example", HOST, "use that address"),
        (307, "https://login.example/?admin/v2", HOST, "use that address"),
        (307, "http://broker-1:8080" + PATH, SECURE, "from TLS to a plain"),
        (307, "http://broker-2:8080" + PATH, SECURE, "from TLS to a plain"),
        (307, "//broker-2" + PATH, HOST, "not an HTTP address"),
        (307, "ftp://broker-1" + PATH, HOST, "not an HTTP address"),
        (307, "http://broker-2:port" + PATH, HOST, "not an HTTP address"),
        (307, "http:///admin/v2", HOST, "not an HTTP address"),
        (307, "admin/v2", HOST, "not an HTTP address"),
        (307, "", HOST, "not an HTTP address"),
        (307, "/admin/v2 HTTP/1.1", HOST, "not an HTTP address"),
        (307, "http://broker-2?admin/v2", HOST, "use that address"),
        (307, "http://[fe80::1" + PATH, HOST, "not an HTTP address"),
        (307, "http://broker\uff0f2" + PATH, HOST, "not an HTTP address"),
        (307, "http://broker..2" + PATH, HOST, "not an HTTP address"),
        (307, "http://" + "b" * 64 + PATH, HOST, "not an HTTP address"),
        (307, "http://broker 2" + PATH, HOST, "not an HTTP address"),
        (307, "http://broker\0" + PATH, HOST, "not an HTTP address"),
        (307, "http://broker-2:0" + PATH, HOST, "not an HTTP address"),
        (307, "/admin/v2/\udc80", HOST, "not an HTTP address"),
    ],
)
def test_other_redirects_are_refused(status, location, asked, why):
    with pytest.raises(LookupError, match=why):
        followed(status, location, asked, PATH)
