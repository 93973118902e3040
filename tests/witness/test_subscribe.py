"""All subscription types, acknowledgements, redelivery and seeking, through the official client."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from waiting import eventually

from geminga.broker.serving.embedded import embedded

Earliest = pulsar.InitialPosition.Earliest


def publish(client: Any, topic: str, values: list[str], **options: Any) -> list[Any]:
    producer = client.create_producer(topic, **{"batching_enabled": False, **options})
    ids = [producer.send(value.encode()) for value in values]
    producer.close()
    return ids


def texts(consumer: Any, count: int, *, ack: bool = True, timeout_millis: int = 30_000) -> list[str]:
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=timeout_millis)
        found.append(message.data().decode())
        if ack:
            consumer.acknowledge(message)
    return found


def nothing_more(consumer: Any, millis: int = 300) -> bool:
    try:
        consumer.receive(timeout_millis=millis)
    except pulsar.Timeout:
        return True
    return False


def test_a_subscription_starts_at_its_initial_position(client: Any, topic: str) -> None:
    publish(client, topic, ["a", "b"])
    early = client.subscribe(topic, "early", initial_position=Earliest)
    late = client.subscribe(topic, "late")
    publish(client, topic, ["c"])
    assert texts(early, 3) == ["a", "b", "c"]
    assert texts(late, 1) == ["c"]


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_shared_consumers_divide_messages(client: Any, other_client: Any, topic: str, batched: bool) -> None:
    options = {"consumer_type": pulsar.ConsumerType.Shared, "receiver_queue_size": 10}
    first = client.subscribe(topic, "s", **options)
    second = other_client.subscribe(topic, "s", **options)
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_messages=10)
    for index in range(200):
        producer.send_async(str(index).encode(), lambda result, _id: None)
    producer.flush()
    found: dict[int, list[int]] = {0: [], 1: []}
    deadline = time.monotonic() + 60
    while sum(map(len, found.values())) < 200 and time.monotonic() < deadline:
        for number, consumer in enumerate((first, second)):
            try:
                message = consumer.receive(timeout_millis=100)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            found[number].append(int(message.data()))
    assert sorted(found[0] + found[1]) == list(range(200))
    assert found[0]
    assert found[1]


def test_a_consumer_of_another_type_is_refused(client: Any, other_client: Any, topic: str) -> None:
    client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        other_client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Failover)


def test_acknowledged_messages_are_not_given_to_a_new_consumer(client: Any, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, initial_position=Earliest
    )
    publish(client, topic, [str(n) for n in range(10)])
    for _ in range(10):
        message = consumer.receive(timeout_millis=30_000)
        if int(message.data()) % 3:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert sorted(texts(again, 4)) == ["0", "3", "6", "9"]
    assert nothing_more(again)


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_a_reader_starts_at_the_named_message(client: Any, topic: str, batched: bool) -> None:
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_messages=4)
    for index in range(20):
        producer.send_async(str(index).encode(), lambda result, _id: None)
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found, positions = [], []
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=30_000)
        found.append(int(message.data()))
        positions.append(message.message_id())
    assert found == list(range(20))
    reader.close()
    middle = client.create_reader(topic, positions[9])
    assert [int(middle.read_next(timeout_millis=30_000).data()) for _ in range(10)] == list(range(10, 20))
    inclusive = client.create_reader(topic, positions[9], start_message_id_inclusive=True)
    assert int(inclusive.read_next(timeout_millis=30_000).data()) == 9
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()
    producer.send(b"99")
    assert latest.read_next(timeout_millis=30_000).data() == b"99"


def test_a_reader_leaves_no_subscription(client: Any, topic: str, admin: Callable[..., Any]) -> None:
    publish(client, topic, ["a"])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    reader.read_next(timeout_millis=30_000)
    reader.close()
    path = topic.replace("://", "/")
    eventually(lambda: not admin("GET", f"{path}/subscriptions"))
    assert admin("GET", f"{path}/subscriptions") == []


def test_shared_consumers_of_a_partitioned_topic_receive_all_messages(
    client: Any, other_client: Any, topic: str, admin: Callable[..., Any]
) -> None:
    admin("PUT", topic.replace("://", "/") + "/partitions", 4)
    options = {"consumer_type": pulsar.ConsumerType.Shared, "receiver_queue_size": 10}
    first = client.subscribe(topic, "s", **options)
    second = other_client.subscribe(topic, "s", **options)
    publish(client, topic, [str(n) for n in range(80)])
    found: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < 80 and time.monotonic() < deadline:
        for consumer in (first, second):
            try:
                message = consumer.receive(timeout_millis=50)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            found.append(int(message.data()))
    assert sorted(found) == list(range(80))


def test_a_slow_consumer_holds_back_only_itself(client: Any, topic: str) -> None:
    slow = client.subscribe(topic, "slow", receiver_queue_size=1)
    fast = client.subscribe(topic, "fast", receiver_queue_size=100)
    values = [str(n) for n in range(300)]
    publish(client, topic, values)
    assert texts(fast, 300) == values
    assert texts(slow, 300) == values


@pytest.mark.parametrize("kind", ["Shared", "Exclusive", "KeyShared"])
def test_unacknowledged_messages_are_delivered_again_after_the_timeout(
    connect: Callable[..., Any], topic: str, kind: str
) -> None:
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
