import pytest

from geminga.connection.addresses import Address
from geminga.connection.lookup import REDIRECTS_MAX, AskBroker, BrokerLocation, TopicLookup
from geminga.errors import LookupError
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"


def answer(kind, url="pulsar://b:1", tls_url="pulsar+ssl://b:2", **fields):
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE)
    body = command.lookupTopicResponse
    body.response = kind
    body.request_id = 1
    body.brokerServiceUrl = url
    body.brokerServiceUrlTls = tls_url
    for name, value in fields.items():
        setattr(body, name, value)
    return command


CONNECT = pb.CommandLookupTopicResponse.Connect
REDIRECT = pb.CommandLookupTopicResponse.Redirect


def test_redirects_pass_authoritative_on():
    lookup = TopicLookup(TOPIC, tls=False)
    assert lookup.answered(answer(REDIRECT, "pulsar://c:3", authoritative=True)) is None
    assert lookup.question == AskBroker(Address("c", 3), True)
    assert lookup.answered(answer(REDIRECT, "pulsar://d:4")) is None
    assert lookup.question == AskBroker(Address("d", 4), False)
    assert lookup.answered(answer(CONNECT, "pulsar://e:5")) == BrokerLocation(Address("e", 5))


def test_a_proxied_redirect_asks_the_service_url_again():
    lookup = TopicLookup(TOPIC, tls=False)
    lookup.answered(answer(REDIRECT, proxy_through_service_url=True, authoritative=True))
    assert lookup.question == AskBroker(None, True)


def test_twenty_redirects_are_followed_and_no_more():
    lookup = TopicLookup(TOPIC, tls=False)
    for _ in range(REDIRECTS_MAX):
        assert lookup.answered(answer(REDIRECT)) is None
    with pytest.raises(LookupError, match="more than 20 times"):
        lookup.answered(answer(REDIRECT))


def test_redirects_from_tls_to_a_plain_address_are_refused():
    for kind in (CONNECT, REDIRECT):
        with pytest.raises(LookupError, match="leads from TLS to a plain address"):
            TopicLookup(TOPIC, tls=True).answered(answer(kind, tls_url="pulsar://evil:6650"))


@pytest.mark.parametrize(
    ("tls", "urls"), [(False, {"url": ""}), (True, {"tls_url": ""}), (False, {"url": "nonsense"})]
)
def test_an_answer_without_a_usable_address_is_refused(tls, urls):
    with pytest.raises(LookupError, match=TOPIC):
        TopicLookup(TOPIC, tls=tls).answered(answer(CONNECT, **urls))
