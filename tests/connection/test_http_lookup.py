"""Paths, requests and answers of the REST API."""

import pytest

from geminga import errors
from geminga.connection import http_lookup
from geminga.connection.addresses import Address
from geminga.connection.authentication import TokenCredentials
from geminga.connection.lookup import BrokerLocation
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

HOST = Address("h", 8080)
MODES = pb.CommandGetTopicsOfNamespace


def test_requests_have_their_paths_and_headers():
    topic = TopicName.parse("persistent://t/n/a topic/x".replace("/x", "%x"))
    assert http_lookup.place_path(str(topic), None) == "/lookup/v2/topic/persistent/t/n/a%20topic%25x"
    assert http_lookup.place_path("t", "inner one").endswith("/public/default/t?listenerName=inner+one")
    assert (
        http_lookup.partitions_path(TopicName.parse("t"), auto_creation=True)
        == "/admin/v2/persistent/public/default/t/partitions?checkAllowAutoCreation=true"
    )
    assert http_lookup.topics_path("t/n", MODES.ALL) == "/admin/v2/namespaces/t/n/topics?mode=ALL"
    headers = TokenCredentials("abc").credentials().http_headers
    said = http_lookup.request(HOST, "/p?q=1", headers).decode().split("\r\n")
    assert said[:2] == ["GET /p?q=1 HTTP/1.1", "Host: h:8080"]
    assert "Authorization: Bearer abc" in said
    assert said[-2:] == ["", ""]


@pytest.mark.parametrize("token", ["a\r\nX-Admin: yes", "a\x00", "\u20ac", "\udce9"])
def test_credentials_cannot_write_headers(token):
    with pytest.raises(errors.AuthenticationError, match="line break"):
        http_lookup.request(HOST, "/", (("Authorization", f"Bearer {token}"),))


@pytest.mark.parametrize(
    ("content", "tls", "place"),
    [
        ({"brokerUrl": "pulsar://b:6650"}, False, Address("b", 6650)),
        (
            {"brokerUrl": "pulsar://b:6650", "brokerUrlTls": "pulsar+ssl://b:6651"},
            True,
            Address("b", 6651, True),
        ),
        ({"brokerUrlSsl": "pulsar+ssl://b:6651", "brokerUrlTls": ""}, True, Address("b", 6651, True)),
    ],
)
def test_a_lookup_returns_the_topics_broker(content, tls, place):
    found = http_lookup.place_of(content, "t", tls=tls)
    assert found == BrokerLocation(place)


@pytest.mark.parametrize(
    ("content", "tls", "kind", "said"),
    [
        ([], False, errors.ProtocolError, "list"),
        ({}, False, errors.LookupError, "no address for plain connections"),
        ({"brokerUrl": "pulsar://b:1"}, True, errors.LookupError, "no address for TLS"),
        ({"brokerUrlTls": "pulsar://b:1"}, True, errors.LookupError, "from TLS to a plain address"),
        ({"brokerUrl": "http://b:1"}, False, errors.LookupError, "REST API"),
        ({"brokerUrl": 5}, False, errors.LookupError, "no address"),
    ],
)
def test_unusable_addresses_are_refused(content, tls, kind, said):
    with pytest.raises(kind, match=said):
        http_lookup.place_of(content, "t", tls=tls)


def test_partitions_and_topics_are_decoded():
    assert http_lookup.partitions_of({"partitions": 3}, "t") == 3
    for wrong in (
        {},
        [],
        {"partitions": -1},
        {"partitions": "3"},
        {"partitions": True},
        {"partitions": 10**9},
    ):
        with pytest.raises(errors.ProtocolError, match="partitions"):
            http_lookup.partitions_of(wrong, "t")
    assert list(http_lookup.topics_of(["a", "b"], "t/n").topics) == ["a", "b"]
    for wrong in ({}, [1], None):
        with pytest.raises(errors.ProtocolError, match="not answer with a list"):
            http_lookup.topics_of(wrong, "t/n")


@pytest.mark.parametrize(
    ("status", "kind", "retriable"),
    [
        (401, errors.AuthenticationError, False),
        (403, errors.AuthorizationError, False),
        (404, errors.TopicNotFound, False),
        (409, errors.ConnectError, False),
        (412, errors.ConnectError, False),
        (429, errors.TooManyLookupRequestException, True),
        (500, errors.ServiceUnitNotReady, True),
        (503, errors.ServiceUnitNotReady, True),
    ],
)
def test_error_answers_become_exceptions(status, kind, retriable):
    with pytest.raises(kind, match=f"asking: HTTP {status}: because") as caught:
        http_lookup.content_of(status, b'{"reason": "because"}', "asking")
    assert isinstance(caught.value, errors.ConnectError)  # as in pulsar-client
    assert caught.value.retriable is retriable
    if kind is not errors.ConnectError:
        assert caught.value.error().name == kind.__name__


def test_an_error_answer_without_json_is_reported():
    for body, said in (
        (b"go\naway", "go away"),
        (b"<html>go away</html>", "refused"),
        (b"", "no reason given"),
    ):
        with pytest.raises(errors.ConnectError, match=f"asking: HTTP 400: {said}"):
            http_lookup.content_of(400, body, "asking")
    with pytest.raises(errors.ProtocolError, match="other than JSON"):
        http_lookup.content_of(200, b"<html>", "asking")


@pytest.mark.parametrize(
    ("content", "holes"),
    [
        ({"subscriptions": {"s": {"nonContiguousDeletedMessagesRanges": 3}}}, 3),
        ({"subscriptions": {"s": {"nonContiguousDeletedMessagesRanges": True}}}, None),
        ({"subscriptions": {"s": {}}}, None),
        ({"subscriptions": {"s": []}}, None),
        ({"subscriptions": {}}, None),
        ([], None),
    ],
)
def test_ack_holes_are_read_from_the_stats(content, holes):
    assert http_lookup.ack_holes_of(content, "s") == holes
    path = http_lookup.stats_path(TopicName.parse("t-partition-0"))
    assert path == "/admin/v2/persistent/public/default/t-partition-0/stats"
