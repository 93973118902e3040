import pytest
from cases import cases

from geminga.connection.addresses import Address, ServiceUrl, parse_broker_url
from geminga.errors import InvalidUrl


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("pulsar://localhost", [Address("localhost", 6650)]),
        ("pulsar://localhost:7000/", [Address("localhost", 7000)]),
        (" PULSAR://h:1 ", [Address("h", 1)]),
        ("pulsar+ssl://h", [Address("h", 6651, True)]),
        ("pulsar://a:1,b,c:3", [Address("a", 1), Address("b", 6650), Address("c", 3)]),
        ("pulsar://[::1]:6650", [Address("::1", 6650)]),
        ("http://h,g:80", [Address("h", 8080), Address("g", 80)]),
        ("https://h", [Address("h", 8443, True)]),
        ("pulsar+ssl://[fe80::1]", [Address("fe80::1", 6651, True)]),
    ],
)
def test_service_urls_are_parsed(text, addresses):
    assert list(ServiceUrl.parse(text).addresses) == addresses


@pytest.mark.parametrize(("text", "hint"), cases("service_urls_refused"))
def test_invalid_service_urls_are_refused(text, hint):
    with pytest.raises(InvalidUrl, match=hint):
        ServiceUrl.parse(text)


@pytest.mark.parametrize(
    "host", ["a.b.", "bücher.example", "under_score", "a" * 63 + ".b", "[fe80::1%eth0.5]"]
)
def test_valid_addresses_are_accepted(host):
    assert ServiceUrl.parse(f"pulsar://{host}").addresses[0].host == host.strip("[]")


def test_user_data_is_refused_and_never_echoed():
    with pytest.raises(InvalidUrl) as caught:
        ServiceUrl.parse("pulsar://user:canary-secret@broker:6650")
    assert "canary-secret" not in str(caught.value)
    assert "authentication" in str(caught.value)


def test_addresses_are_formatted_as_text():
    assert str(Address("::1", 6650)) == "pulsar://[::1]:6650"
    assert str(Address("h", 6651, True)) == "pulsar+ssl://h:6651"


def test_a_broker_url_names_one_host():
    assert parse_broker_url("pulsar://b:1") == Address("b", 1)
    with pytest.raises(InvalidUrl, match="2 hosts"):
        parse_broker_url("pulsar://a:1,b:2")


def test_http_and_binary_urls_are_distinguished():
    assert [ServiceUrl.parse(url).http for url in ("pulsar://h", "http://h", "https://h")] == [
        False,
        True,
        True,
    ]
    with pytest.raises(InvalidUrl, match="REST API"):
        parse_broker_url("http://h:8080")
