"""Clients that know several clusters, against embedded brokers that come and go."""

import importlib
from typing import Any

import pytest
from waiting import eventually, start_thread

import geminga
from geminga import errors
from geminga.testing.apache_pulsar import free_ports

TIMEOUT_MILLIS = 10_000


@pytest.fixture(params=["geminga", pytest.param("pulsar", marks=pytest.mark.witness)])
def p(request):
    module = pytest.importorskip(request.param)
    importlib.import_module(f"{request.param}.asyncio")
    return module


@pytest.fixture
def clusters():
    brokers = [geminga.embedded(port=port) for port in free_ports(2)]
    yield brokers
    for broker in brokers:
        broker.close()


def connect(p: Any, service: Any) -> Any:
    return p.Client(service, operation_timeout_seconds=10, logger=p.ConsoleLogger(p.LoggerLevel.Error))


def failover(p: Any, clusters: list[Any]) -> Any:
    infos = [p.ServiceInfo(broker.service_url) for broker in clusters]
    return p.AutoClusterFailover(infos[0], infos[1:], check_interval_ms=100)


def test_failing_over_and_back(p, clusters):
    urls = [broker.service_url for broker in clusters]
    client = connect(p, failover(p, clusters))
    producer = client.create_producer("t", send_timeout_millis=TIMEOUT_MILLIS)
    producer.send(b"before")
    assert client.get_service_info().service_url == urls[0]
    port = int(urls[0].rpartition(":")[2])
    clusters[0].close()
    eventually(lambda: client.get_service_info().service_url == urls[1])
    producer.send(b"after")
    with clusters[1].client() as there:
        assert (
            there.create_reader("t", geminga.MessageId.earliest).read_next(TIMEOUT_MILLIS).data() == b"after"
        )
    clusters[0] = geminga.embedded(port=port)
    eventually(lambda: client.get_service_info().service_url == urls[0])
    producer.send(b"back")
    with clusters[0].client() as here:
        assert here.create_reader("t", geminga.MessageId.earliest).read_next(TIMEOUT_MILLIS).data() == b"back"
    client.close()


def make_provider(p: Any, first: str) -> Any:
    class Provider(p.ServiceInfoProvider):
        calls: list[str]

        def __init__(self) -> None:
            self.calls = []
            self.update: Any = None

        def initial_service_info(self) -> Any:
            self.calls.append("initial")
            return p.ServiceInfo(first)

        def initialize(self, on_service_info_update: Any) -> None:
            self.calls.append("initialize")
            self.update = on_service_info_update

        def close(self) -> None:
            self.calls.append("close")

    return Provider()


def is_served(admin: Any) -> bool:
    """Whether topic ``t`` has a producer and a consumer."""
    if "persistent://public/default/t" not in admin.topics.list("public/default"):
        return False
    stats = admin.topics.stats("t")
    return bool(stats.publishers) and any(found.consumers for found in stats.subscriptions.values())


def test_a_provider_moves_the_client(p, clusters):
    urls = [broker.service_url for broker in clusters]
    provider = make_provider(p, urls[0])
    client = connect(p, provider)
    assert provider.calls == ["initial", "initialize"]
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t")
    producer.send(b"before")
    assert consumer.receive(TIMEOUT_MILLIS).data() == b"before"
    mover = start_thread(provider.update, p.ServiceInfo(urls[1]))
    mover.join()
    assert client.get_service_info().service_url == urls[1]
    with geminga.Admin(clusters[1].admin_url) as there:
        eventually(lambda: is_served(there))
    eventually(lambda: producer.is_connected() and consumer.is_connected())
    producer.send(b"after")
    assert consumer.receive(TIMEOUT_MILLIS).data() == b"after"
    client.close()
    eventually(lambda: "close" in provider.calls)


SAY = {
    "the message": lambda consumer, message: consumer.acknowledge(message),
    "its id": lambda consumer, message: consumer.acknowledge(message.message_id()),
    "an id that was kept as bytes": lambda consumer, message: consumer.acknowledge(
        geminga.MessageId.deserialize(message.message_id().serialize())
    ),
    "all up to the message": lambda consumer, message: consumer.acknowledge_cumulative(message),
    "all up to its id": lambda consumer, message: consumer.acknowledge_cumulative(message.message_id()),
    "no to the message": lambda consumer, message: consumer.negative_acknowledge(message),
}


@pytest.mark.parametrize("say", SAY.values(), ids=SAY)
def test_what_was_received_before_acknowledges_nothing_in_the_new_cluster(say, clusters):
    """The same ids exist in both clusters: an acknowledgement that crossed over would lose a message."""
    provider = make_provider(geminga, clusters[0].service_url)
    for broker, text in zip(clusters, (b"old", b"new"), strict=True):
        with broker.client() as one:
            one.subscribe("t", "s").close()
            one.create_producer("t").send(text)
    client = connect(geminga, provider)
    consumer = client.subscribe("t", "s", negative_ack_redelivery_delay_ms=1)
    old = consumer.receive(TIMEOUT_MILLIS)
    assert old.data() == b"old"
    provider.update(geminga.ServiceInfo(clusters[1].service_url))
    new = consumer.receive(TIMEOUT_MILLIS)
    assert (new.data(), new.message_id()) == (b"new", old.message_id())
    say(consumer, old)
    consumer.close()  # pending acknowledgements have been sent
    again = client.subscribe("t", "s").receive(TIMEOUT_MILLIS)
    assert again.data() == b"new"
    client.close()


def test_what_the_new_cluster_sent_is_acknowledged_there(clusters):
    provider = make_provider(geminga, clusters[0].service_url)
    client = connect(geminga, provider)
    consumer = client.subscribe("t", "s")
    provider.update(geminga.ServiceInfo(clusters[1].service_url))
    eventually(lambda: client.context.moves)
    with clusters[1].client() as there:
        eventually(consumer.is_connected)
        producer = there.create_producer("t")
        for number in range(2):
            producer.send(b"%d" % number)
    consumer.acknowledge(consumer.receive(TIMEOUT_MILLIS))
    consumer.acknowledge(consumer.receive(TIMEOUT_MILLIS).message_id())
    consumer.close()
    with pytest.raises(errors.Timeout):
        client.subscribe("t", "s").receive(200)
    client.close()


def test_a_reader_starts_again_in_the_new_cluster(clusters):
    provider = make_provider(geminga, clusters[0].service_url)
    for broker, count in zip(clusters, (5, 3), strict=True):
        with broker.client() as one:
            producer = one.create_producer("t")
            for number in range(count):
                producer.send(b"%d" % number)
    client = connect(geminga, provider)
    reader = client.create_reader("t", geminga.MessageId.earliest)
    assert [reader.read_next(TIMEOUT_MILLIS).data() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert not reader.has_message_available()
    provider.update(geminga.ServiceInfo(clusters[1].service_url))
    assert [reader.read_next(TIMEOUT_MILLIS).data() for _ in range(3)] == [b"0", b"1", b"2"]
    assert not reader.has_message_available()
    client.close()


def test_schema_versions_are_fetched_again_after_a_move(clusters):
    """Both clusters have a version 0 of the topic's schema, with different fields."""
    pytest.importorskip("fastavro")
    schema = geminga.schema

    class Long(schema.Record):
        x = schema.Long(required=True)

    class Text(schema.Record):
        y = schema.String(required=True)
        x = schema.Long(required=True)

    for broker, kind, values in zip(clusters, (Long, Text), ({"x": 1}, {"x": 2, "y": "why"}), strict=True):
        with broker.client() as one:
            one.subscribe("t", "s").close()
            one.create_producer("t", schema=schema.AvroSchema(kind)).send(kind(**values))
    provider = make_provider(geminga, clusters[0].service_url)
    client = connect(geminga, provider)
    consumer = client.subscribe("t", "s", schema=schema.AvroSchema(Long))
    assert consumer.receive(TIMEOUT_MILLIS).value().x == 1
    provider.update(geminga.ServiceInfo(clusters[1].service_url))
    assert consumer.receive(TIMEOUT_MILLIS).value().x == 2
    client.close()


def test_credentials_belong_to_the_clusters(p):
    info = p.ServiceInfo("pulsar://localhost:1")
    for service in (p.AutoClusterFailover(info, [info]), make_provider(p, "pulsar://localhost:1")):
        with pytest.raises(ValueError, match="authentication"):
            p.Client(service, authentication=p.AuthenticationToken("x"))
        with pytest.raises(ValueError, match="tls_trust_certs_file_path"):
            p.Client(service, tls_trust_certs_file_path="/x")
    with pytest.raises(ValueError, match="service_url"):
        p.Client(5)


def test_a_subclass_of_service_info_may_have_attributes_of_its_own():
    class Named(geminga.ServiceInfo):
        def __init__(self, url: str, name: str) -> None:
            super().__init__(url)
            self.name = name

    assert Named("pulsar://localhost:1", "east").name == "east"


def test_a_provider_must_return_service_info(p):
    class Wrong(p.ServiceInfoProvider):
        def initial_service_info(self) -> Any:
            return "pulsar://localhost:1"

    with pytest.raises(ValueError, match="ServiceInfo"):
        p.Client(Wrong())
