"""The sync client against a scripted broker: errors, time-outs, closing, forking, threads."""

import logging
import threading
import time
import warnings

import pytest
from waiting import eventually

import geminga
import geminga.asyncio
from geminga.errors import (
    AlreadyClosed,
    AuthorizationError,
    ConnectError,
    InvalidConfiguration,
    InvalidTopicName,
    InvalidUrl,
    OperationNotSupported,
    ProducerBusy,
    Timeout,
)
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand


@pytest.fixture
def client(broker):
    with geminga.Client(broker.url, operation_timeout_seconds=5) as client:
        yield client


def test_close_closes_producers_and_connections(broker):
    client = geminga.Client(broker.url)
    producer = client.create_producer("t")
    client.close()
    client.close()
    assert broker.count(Type.CLOSE_PRODUCER) == 1
    with pytest.raises(AlreadyClosed):
        client.create_producer("t")
    with pytest.raises(AlreadyClosed):
        producer.send(b"x")
    with pytest.raises(AlreadyClosed), client:
        pass


def test_shutdown_does_not_wait(broker):
    broker.answers[Type.CLOSE_PRODUCER] = lambda peer, frame: None
    client = geminga.Client(broker.url)
    client.create_producer("t")
    started = time.monotonic()
    client.shutdown()
    client.shutdown()
    assert time.monotonic() - started < 20  # nor for the 30 seconds of an answer


def test_threads_share_a_client(client, broker):
    producers = []

    def work(index):
        producer = client.create_producer(f"t-{index}")
        producer.send(b"x")
        producers.append(producer)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(producers) == 8
    assert len(broker.peers) == 1


def test_nothing_listens():
    with geminga.Client("pulsar://127.0.0.1:1", operation_timeout_seconds=0.8) as client:
        with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1 refused the connection"):
            client.create_producer("t")
        with pytest.raises(ConnectError):
            client.get_topic_partitions("t")


def test_a_broker_that_comes_up_late(broker, caplog):
    broker.run(broker.stop())
    producers = []
    with geminga.Client(broker.url) as client:
        thread = threading.Thread(target=lambda: producers.append(client.create_producer("t")))
        thread.start()
        eventually(lambda: "for a broker" in caplog.text)
        broker.run(broker.start())
        thread.join(60)
        assert [producer.is_connected() for producer in producers] == [True]


def test_a_silent_broker_does_not_hang_the_caller(broker):
    broker.answers[Type.PARTITIONED_METADATA] = lambda peer, frame: None
    with geminga.Client(broker.url, operation_timeout_seconds=0.1) as client:
        started = time.monotonic()
        with pytest.raises(Timeout, match=r"0\.1 s"):
            client.create_producer("t")
        assert time.monotonic() - started < 20


def test_errors_of_the_broker_are_raised_with_its_message(client, broker):
    def refuse(peer, frame):
        broker.refuse(peer, frame.command.producer.request_id, pb.ProducerBusy, "name in use")

    broker.answers[Type.PRODUCER] = refuse
    with pytest.raises(ProducerBusy, match="name in use"):
        client.create_producer("t")

    def deny(peer, frame):
        broker.answer_lookup(
            peer, frame, pb.CommandLookupTopicResponse.Failed, error=pb.AuthorizationError, message="denied"
        )

    broker.answers[Type.LOOKUP] = deny
    with pytest.raises(AuthorizationError, match="denied"):
        client.create_producer("t")


@pytest.mark.parametrize("url", ["localhost:6650", "http://localhost:8080/x", "", "pulsar://h:0"])
def test_wrong_urls(url):
    with pytest.raises(InvalidUrl):
        geminga.Client(url)


@pytest.mark.parametrize(
    "arguments",
    [
        {"authentication": "token"},
        {"operation_timeout_seconds": 0},
        {"operation_timeout_seconds": "30"},
        {"io_threads": 0},
        {"message_listener_threads": 0},
        {"connection_timeout_ms": 0},
        {"tls_allow_insecure_connection": "yes"},
        {"listener_name": 1},
        {"logger": "stdout"},
        {"service_url": 7},
    ],
)
def test_wrong_client_arguments(arguments):
    arguments.setdefault("service_url", "pulsar://localhost")
    with pytest.raises(ValueError, match=next(iter(arguments))):
        geminga.Client(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"topic": 7},
        {"producer_name": 7},
        {"schema": "json"},
        {"send_timeout_millis": -1},
        {"compression_type": 1.5},
        {"max_pending_messages": -1},
        {"batching_enabled": 1},
        {"batching_enabled": None},
        {"batching_max_messages": 0},
        {"batching_max_publish_delay_ms": "10"},
        {"message_routing_mode": "RoundRobin"},
        {"properties": ["a"]},
        {"access_mode": 9.5},
        {"chunking_enabled": True, "batching_enabled": True},
        {"chunking_enabled": "yes"},
        {"latency_budget_ms": 1, "batching_enabled": True},
        {"latency_budget_ms": "50"},
        {"batching_max_messages": 500, "latency_budget_ms": 50, "batching_enabled": True},
    ],
)
def test_wrong_producer_arguments(client, broker, arguments):
    arguments.setdefault("topic", "t")
    with pytest.raises(InvalidConfiguration, match=next(iter(arguments))):
        client.create_producer(**arguments)
    assert broker.peers == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"subscription_name": ""},
        {"consumer_type": 1},
        {"receiver_queue_size": -1},
        {"message_listener": 7},
        {"initial_position": 0},
        {"properties": {"a": 1}},
        {"key_shared_policy": 1},
    ],
)
def test_wrong_consumer_arguments(client, broker, arguments):
    arguments.setdefault("subscription_name", "s")
    name = next(iter(arguments))
    with pytest.raises(InvalidConfiguration, match=name):
        client.subscribe("t", **arguments)
    assert broker.peers == []


def test_wrong_reader_arguments(client):
    with pytest.raises(InvalidConfiguration, match="start_message_id"):
        client.create_reader("t", "earliest")
    with pytest.raises(InvalidTopicName):
        client.create_reader("a/b", geminga.MessageId.earliest)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.create_table_view("non-persistent://public/default/t"),
    ],
)
def test_what_is_not_supported_is_refused(client, call):
    with pytest.raises(OperationNotSupported):
        call(client)


def test_service_info(client, broker):
    info = client.get_service_info()
    assert info.service_url == broker.url
    assert not info.use_tls


def test_a_token_is_in_no_log_line_or_repr(broker, caplog):
    canary = "canary-5f3e"
    broker.answers[Type.PRODUCER] = lambda peer, frame: peer.drop()
    with (
        caplog.at_level(logging.DEBUG),
        geminga.Client(
            broker.url,
            authentication=geminga.AuthenticationToken(canary),
            operation_timeout_seconds=1,
            logger=geminga.ConsoleLogger(geminga.LoggerLevel.Debug),
        ) as client,
    ):
        with pytest.raises(geminga.PulsarException) as caught:
            client.create_producer("t")
        objects = caught.value, client, client.context.settings
        texts = [caplog.text, str(caught.value), *map(repr, objects)]
    assert broker.peers[0].connect.auth_data == canary.encode()
    assert all(canary not in text for text in texts)


def test_loggers(broker, tmp_path):
    path = tmp_path / "client.log"
    with geminga.Client(
        broker.url, logger=geminga.FileLogger(geminga.LoggerLevel.Debug, str(path))
    ) as client:
        client.get_topic_partitions("t")
    assert "connected to" in path.read_text()
    records = []
    target = logging.getLogger("application")
    target.setLevel(logging.DEBUG)
    target.addHandler(handler := logging.Handler())
    handler.emit = records.append
    try:
        with geminga.Client(broker.url, logger=target) as client:
            client.get_topic_partitions("t")
    finally:
        target.removeHandler(handler)
    assert any("connected to" in record.getMessage() for record in records)
    before = len(records)
    with geminga.Client(broker.url) as client:
        client.get_topic_partitions("t")
    assert len(records) == before


def test_closing_that_is_interrupted_while_it_waits_leaves_nothing(broker, tmp_path, monkeypatch):
    """The program is interrupted while close waits for a listener, and never calls close again."""
    path = tmp_path / "client.log"
    client = geminga.Client(broker.url, logger=geminga.FileLogger(geminga.LoggerLevel.Debug, str(path)))

    def interrupted(threads, seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("geminga.client.listener.ListenerThreads.close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    logging.getLogger("geminga").debug("of another program")
    assert "of another program" not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"io_threads": 4}, "one I/O thread"),
        ({"log_conf_file_path": "/etc/log.conf"}, "use logger"),
        ({"use_tls": True}, "NOT encrypted"),
    ],
)
@pytest.mark.parametrize("kind", [geminga.Client, geminga.asyncio.Client])
def test_arguments_without_effect_say_so(kind, arguments, said):
    with pytest.warns(UserWarning, match=said) as told:
        client = kind("pulsar://localhost", **arguments)
    (mine,) = (
        one for one in told if one.category is UserWarning
    )  # garbage of other tests may tell of itself
    assert mine.filename == __file__, "the warning names the caller's line"
    if kind is geminga.Client:
        client.close()


def test_arguments_with_effect_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        geminga.Client("pulsar+ssl://localhost", use_tls=True, io_threads=1).close()
