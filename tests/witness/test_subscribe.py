"""All subscription types, acknowledgements, redelivery and seeking, through the official client."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from waiting import eventually

from geminga.broker.serving.embedded import embedded


def publish(client: Any, topic: str, values: list[str], **options: Any) -> list[Any]:
    producer = client.create_producer(topic, **{"batching_enabled": False, **options})
    ids = [producer.send(value.encode()) for value in values]
    producer.close()
    return ids


def test_a_consumer_of_another_type_is_refused(client, other_client, topic):
    client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        other_client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Failover)


def test_a_reader_leaves_no_subscription(client, topic, admin):
    publish(client, topic, ["a"])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    reader.read_next(timeout_millis=30_000)
    reader.close()
    path = topic.replace("://", "/")
    eventually(lambda: not admin("GET", f"{path}/subscriptions"))
    assert admin("GET", f"{path}/subscriptions") == []


@pytest.mark.parametrize("kind", ["Shared", "Exclusive", "KeyShared"])
def test_unacknowledged_messages_are_delivered_again_after_the_timeout(connect, topic, kind):
    with embedded(redeliver_unacked_after_seconds=1) as broker:
        client = connect(broker.service_url)
        consumer = client.subscribe(topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind))
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(3):
            producer.send(str(number).encode(), partition_key="k")
        first = [consumer.receive(timeout_millis=30_000) for _ in range(3)]
        consumer.acknowledge(first[0])
        consumer.acknowledge(first[2])
        again = consumer.receive(timeout_millis=30_000)
        assert (again.data(), again.redelivery_count()) == (b"1", 1)
        consumer.acknowledge(again)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(timeout_millis=2500)
