"""Broker settings and policies as the official client feels them."""

from __future__ import annotations

import queue
import time
import urllib.request
from typing import Any

import pulsar
import pytest

import geminga
from geminga.broker.serving.embedded import EmbeddedBroker, embedded


def test_without_auto_creation_an_unknown_topic_is_not_found(connect, topic):
    with embedded(auto_create_topics=False) as broker:
        client = connect(broker.service_url)
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer(topic)
        with pytest.raises(pulsar.TopicNotFound):
            client.subscribe(topic, "s")


def test_a_topic_of_an_unknown_namespace_is_not_found(client):
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer("persistent://public/nowhere/t")


def test_partitions_are_created_by_policy(connect, topic):
    with embedded(auto_create_topic_kind="partitioned", auto_create_partitions=3) as broker:
        client = connect(broker.service_url)
        client.create_producer(topic).send(b"x")
        assert len(client.get_topic_partitions(topic)) == 3


def test_terminated_topics_take_no_more_messages(client, topic, admin):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, send_timeout_millis=3000)
    producer.send(b"last")
    admin("POST", topic.replace("://", "/") + "/terminate")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert consumer.receive(timeout_millis=30_000).data() == b"last"


def test_clients_reconnect_after_an_unload(client, topic, admin):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"before")
    admin("PUT", topic.replace("://", "/") + "/unload")
    producer.send(b"after")
    found = set()
    while len(found) < 2:
        message = consumer.receive(timeout_millis=30_000)
        consumer.acknowledge(message)
        found.add(message.data())
    assert found == {b"before", b"after"}


def test_a_cursor_reset_over_rest_delivers_again(client, topic, admin):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(5):
        producer.send(str(index).encode())
    for _ in range(5):
        consumer.acknowledge(consumer.receive(timeout_millis=30_000))
    path = topic.replace("://", "/")
    admin("POST", f"{path}/subscription/s/resetcursor/{int(time.time() * 1000) - 60_000}")
    assert [consumer.receive(timeout_millis=30_000).data() for _ in range(5)] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]


def test_messages_of_non_persistent_topics_are_received(client, topic):
    name = topic.replace("persistent://", "non-persistent://")
    consumer = client.subscribe(name, "s")
    producer = client.create_producer(name)
    producer.send(b"now or never")
    assert consumer.receive(timeout_millis=30_000).data() == b"now or never"


@pytest.mark.parametrize("library", ["pulsar", "geminga"])
def test_a_producer_held_by_a_quota_resumes(connect, topic, library):
    with embedded(backlog_quota_bytes=20_000) as broker:
        client = connect(broker.service_url) if library == "pulsar" else geminga.Client(broker.service_url)
        subscriber = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=30_000)
        for _ in range(30):
            producer.send(bytes(1000))
        _call(broker, "GET", "brokers/backlog-quota-check")
        outcome: queue.Queue[Any] = queue.Queue()
        producer.send_async(b"held", lambda result, message_id: outcome.put(result))
        with pytest.raises(queue.Empty):
            outcome.get(timeout=1.5)
        for _ in range(30):
            subscriber.acknowledge(subscriber.receive(timeout_millis=30_000))
        assert str(outcome.get(timeout=20)).endswith("Ok")
        assert subscriber.receive(timeout_millis=30_000).data() == b"held"
        client.close()


def _call(broker: EmbeddedBroker, method: str, path: str) -> None:
    request = urllib.request.Request(f"{broker.admin_url}/admin/v2/{path}", method=method)
    urllib.request.urlopen(request, timeout=10).close()
