"""The client over broker restarts and lost connections: nothing is lost, nothing hangs."""

import contextlib
import time

import pytest

import geminga
from geminga.broker.serving.embedded import embedded
from geminga.errors import Timeout
from geminga.testing.apache_pulsar import free_ports


@pytest.fixture
def restartable(tmp_path):
    """A broker that keeps its port and its folder over restarts."""

    class Restartable:
        def __init__(self):
            self.broker = None
            (self.port,) = free_ports(1)
            self.start()

        def start(self):
            self.broker = embedded(tmp_path / "store", port=self.port, web_port=None)

        def stop(self):
            broker, self.broker = self.broker, None
            if broker is not None:
                broker.close()

        def restart(self):
            self.stop()
            self.start()

        @property
        def url(self):
            return f"pulsar://127.0.0.1:{self.port}"

    running = Restartable()
    yield running
    running.stop()


@pytest.fixture
def client(restartable):
    with geminga.Client(restartable.url, operation_timeout_seconds=10, max_backoff_interval_ms=200) as client:
        yield client


def receive_until(consumer, expected, seconds=20):
    """Everything received and acknowledged until each of ``expected`` was seen."""
    seen = []
    deadline = time.monotonic() + seconds
    while not expected <= set(seen):
        assert time.monotonic() < deadline, f"missing {sorted(expected - set(seen))[:5]}"
        with contextlib.suppress(Timeout):
            message = consumer.receive(500)
            consumer.acknowledge(message)
            seen.append(message.data())
    return seen


def test_what_is_sent_during_an_outage_arrives(restartable, client):
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", block_if_queue_full=True)
    restartable.stop()
    outcomes = []
    for i in range(50):
        producer.send_async(b"%d" % i, lambda result, message_id: outcomes.append(result))
    assert not producer.is_connected() or outcomes == []
    restartable.start()
    producer.flush()
    assert outcomes == [geminga.Result.Ok] * 50
    receive_until(consumer, {b"%d" % i for i in range(50)})


def test_send_times_out_during_a_long_outage(restartable, client):
    producer = client.create_producer("t", send_timeout_millis=300)
    restartable.stop()
    started = time.monotonic()
    with pytest.raises(Timeout):
        producer.send(b"x")
    assert time.monotonic() - started < 30
    restartable.start()
    deadline = time.monotonic() + 60
    while True:  # the producer lives on
        try:
            producer.send(b"y")
            break
        except Timeout:
            assert time.monotonic() < deadline


def test_closing_during_an_outage_does_not_hang(restartable):
    client = geminga.Client(restartable.url, operation_timeout_seconds=60)
    producer = client.create_producer("t")
    consumer = client.subscribe("t", "s")
    restartable.stop()
    started = time.monotonic()
    consumer.close()
    producer.close()
    client.close()
    assert time.monotonic() - started < 30


def test_acknowledgements_survive_a_restart(restartable, client):
    consumer = client.subscribe("t", "s", consumer_type=geminga.ConsumerType.Shared, ack_receipt_enabled=True)
    producer = client.create_producer("t", batching_enabled=False)
    for i in range(20):
        producer.send(b"%d" % i)
    messages = [consumer.receive(30_000) for _ in range(20)]
    for message in messages[::2]:
        consumer.acknowledge(message)
    restartable.restart()
    rest = receive_until(consumer, {b"%d" % i for i in range(1, 20, 2)})
    assert set(rest) == {b"%d" % i for i in range(1, 20, 2)}
