"""Corners of the official client's interface against our broker."""

import queue

import pytest

import geminga
from geminga.broker.serving.embedded import embedded
from geminga.client.admin import admin
from geminga.testing.apache_pulsar import free_ports


def test_the_largest_messages_are_received(client, topic):
    consumer = client.subscribe(topic, "s", receiver_queue_size=3)
    producer = client.create_producer(topic, batching_enabled=False)
    payload = bytes(range(256)) * 19_000
    for _ in range(6):
        producer.send(payload)
    for _ in range(6):
        message = consumer.receive(timeout_millis=30_000)
        assert message.data() == payload
        consumer.acknowledge(message)


def test_a_consumer_that_stops_reading_does_not_block_others(broker, connect, topic):
    # Half a gigabyte of permits that are never used up.
    lazy = connect(broker.service_url).subscribe(topic, "lazy", receiver_queue_size=100_000)
    client = connect(broker.service_url)
    busy = client.subscribe(topic, "busy", receiver_queue_size=1000)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for _ in range(2000):
        producer.send_async(b"x" * 5000, lambda result, _id: None)
    producer.flush()
    for _ in range(2000):
        busy.acknowledge(busy.receive(timeout_millis=30_000))
    assert lazy.receive(timeout_millis=30_000).data() == b"x" * 5000


@pytest.mark.parametrize("library", ["pulsar", "geminga"])
def test_clients_reconnect_after_a_restart_on_the_same_port(connect, topic, tmp_path, library):
    (port,) = free_ports(1)
    with embedded(tmp_path / "s", web_port=None, port=port) as first:
        client = connect(first.service_url) if library == "pulsar" else geminga.Client(first.service_url)
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"before")
    with embedded(tmp_path / "s", web_port=None, port=port):
        producer.send(b"after")
        found = []
        while len(found) < 2:
            message = consumer.receive(timeout_millis=30_000)
            consumer.acknowledge(message)
            if message.data() not in found:
                found.append(message.data())
        assert found == [b"before", b"after"]
        client.close()


@pytest.mark.parametrize("library", ["pulsar", "geminga"])
def test_a_producer_held_by_a_quota_resumes(connect, topic, library):
    with embedded(backlog_quota_bytes=20_000) as broker:
        client = connect(broker.service_url) if library == "pulsar" else geminga.Client(broker.service_url)
        subscriber = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=30_000)
        for _ in range(30):
            producer.send(bytes(1000))
        admin(broker.admin_url, "GET", "brokers/backlog-quota-check")
        outcome: queue.Queue[object] = queue.Queue()
        producer.send_async(b"held", lambda result, message_id: outcome.put(result))
        with pytest.raises(queue.Empty):
            outcome.get(timeout=1.5)
        for _ in range(30):
            subscriber.acknowledge(subscriber.receive(timeout_millis=30_000))
        assert str(outcome.get(timeout=60)).endswith("Ok")
        assert subscriber.receive(timeout_millis=30_000).data() == b"held"
        client.close()
