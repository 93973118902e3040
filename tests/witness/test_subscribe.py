"""All subscription types, acknowledgements, redelivery and seeking, through the official client."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from waiting import eventually, moment_between

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


def test_a_second_exclusive_consumer_is_refused(client: Any, other_client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=Earliest)
    with pytest.raises(pulsar.ConsumerBusy):
        other_client.subscribe(topic, "s")
    publish(client, topic, ["a"])
    assert texts(consumer, 1) == ["a"]
    consumer.close()
    other_client.subscribe(topic, "s")


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


def test_a_standby_failover_consumer_takes_over(client: Any, other_client: Any, topic: str) -> None:
    options = {"consumer_type": pulsar.ConsumerType.Failover}
    consumers = [
        client.subscribe(topic, "s", consumer_name="a", **options),
        other_client.subscribe(topic, "s", consumer_name="b", **options),
    ]
    time.sleep(0.3)
    publish(client, topic, ["1", "2", "3"])
    # Which of them is active is the broker's choice (a hash of the topic's name); one of them is.
    deadline, first = time.monotonic() + 60, None
    while first is None and time.monotonic() < deadline:
        for number, consumer in enumerate(consumers):
            try:
                message = consumer.receive(timeout_millis=100)
            except pulsar.Timeout:
                continue
            assert message.data() == b"1"
            consumer.acknowledge(message)
            first = number
            break
    assert first is not None
    active, waiting = consumers[first], consumers[1 - first]
    assert texts(active, 1) == ["2"]
    assert nothing_more(waiting)
    active.close()
    assert texts(waiting, 1, timeout_millis=30_000) == ["3"]
    publish(client, topic, ["4"])
    assert texts(waiting, 1) == ["4"]


def test_each_key_goes_to_one_key_shared_consumer(client: Any, other_client: Any, topic: str) -> None:
    options = {"consumer_type": pulsar.ConsumerType.KeyShared}
    consumers = [client.subscribe(topic, "s", **options), other_client.subscribe(topic, "s", **options)]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased
    )
    for index in range(300):
        producer.send_async(str(index).encode(), lambda result, _id: None, partition_key=f"k{index % 20}")
    producer.flush()
    owner: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    count, deadline = 0, time.monotonic() + 60
    while count < 300 and time.monotonic() < deadline:
        for number, consumer in enumerate(consumers):
            # How the keys are shared out is another one in every run: who has none left is soon passed by.
            try:
                message = consumer.receive(timeout_millis=5)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            owner.setdefault(message.partition_key(), set()).add(number)
            order.setdefault(message.partition_key(), []).append(int(message.data()))
            count += 1
    assert count == 300
    assert all(len(numbers) == 1 for numbers in owner.values())
    assert {next(iter(numbers)) for numbers in owner.values()} == {0, 1}
    assert all(found == sorted(found) for found in order.values())


def test_a_consumer_of_another_type_is_refused(client: Any, other_client: Any, topic: str) -> None:
    client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        other_client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Failover)


def test_a_cumulative_acknowledgement_covers_earlier_messages(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=Earliest)
    publish(client, topic, list("abcdef"))
    messages = [consumer.receive(timeout_millis=30_000) for _ in range(4)]
    consumer.acknowledge_cumulative(messages[3])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert texts(again, 2) == ["e", "f"]


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


def test_negative_acknowledgement_counts_redeliveries(client: Any, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    publish(client, topic, ["a"])
    for count in range(3):
        message = consumer.receive(timeout_millis=30_000)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    message = consumer.receive(timeout_millis=30_000)
    consumer.acknowledge(message)
    assert nothing_more(consumer)


def test_unacknowledged_messages_are_redelivered_on_request(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=Earliest)
    publish(client, topic, ["a", "b", "c"])
    assert texts(consumer, 3, ack=False) == ["a", "b", "c"]
    consumer.redeliver_unacknowledged_messages()
    assert texts(consumer, 3) == ["a", "b", "c"]


def test_a_message_goes_to_the_dead_letter_topic_after_its_redeliveries(client: Any, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, dead_letter_topic=f"{topic}-dead")
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy,
    )  # fmt: skip
    dead = client.subscribe(f"{topic}-dead", "d", initial_position=Earliest)
    publish(client, topic, ["bad"])
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(timeout_millis=30_000))
    assert dead.receive(timeout_millis=30_000).data() == b"bad"


def test_a_consumer_seeks_by_id_and_by_time(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=Earliest)
    ids = publish(client, topic, ["a", "b"])
    between = moment_between()
    publish(client, topic, ["c", "d"])
    assert texts(consumer, 4) == ["a", "b", "c", "d"]
    consumer.seek(pulsar.MessageId.earliest)
    assert texts(consumer, 4) == ["a", "b", "c", "d"]
    consumer.seek(ids[0])
    assert texts(consumer, 3) == ["b", "c", "d"]
    consumer.seek(between)
    assert texts(consumer, 2) == ["c", "d"]
    consumer.seek(pulsar.MessageId.latest)
    assert nothing_more(consumer)


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


def test_the_last_message_id_is_that_of_the_newest_message(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    ids = publish(client, topic, ["a", "b"])
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id())


def test_acknowledged_messages_of_a_batch_do_not_come_again(client: Any, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True,
        initial_position=Earliest,
    )  # fmt: skip
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for index in range(6):
        producer.send_async(str(index).encode(), lambda result, _id: None)
    producer.flush()
    for _ in range(6):
        message = consumer.receive(timeout_millis=30_000)
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    assert sorted(texts(again, 3)) == ["0", "2", "4"]
    assert nothing_more(again)


def test_a_pattern_subscription_receives_from_matching_topics(client: Any, topic: str) -> None:
    publish(client, f"{topic}-a", ["a"])
    publish(client, f"{topic}-b", ["b"])
    pattern = re.compile(re.escape(topic) + "-.*")
    # New topics are only looked for every 60 s: this client does not pass its discovery period on.
    consumer = client.subscribe(pattern, "s", initial_position=Earliest)
    assert sorted(texts(consumer, 2)) == ["a", "b"]


def test_one_consumer_receives_from_several_topics(client: Any, topic: str) -> None:
    names = [f"{topic}-{n}" for n in range(3)]
    consumer = client.subscribe(names, "s", initial_position=Earliest)
    for name in names:
        publish(client, name, [name])
    assert sorted(texts(consumer, 3)) == names


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


def test_batch_receive_returns_all_messages(client: Any, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(10, -1, 1000),
        initial_position=Earliest,
    )  # fmt: skip
    publish(client, topic, [str(n) for n in range(10)])
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < 10 and time.monotonic() < deadline:
        messages = consumer.batch_receive()
        for message in messages:
            consumer.acknowledge(message)
        found += [m.data().decode() for m in messages]
    assert found == [str(n) for n in range(10)]


def test_unsubscribing_removes_the_position_of_the_subscription(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=Earliest)
    publish(client, topic, ["a"])
    assert texts(consumer, 1) == ["a"]
    consumer.unsubscribe()
    again = client.subscribe(topic, "s", initial_position=Earliest)
    assert texts(again, 1) == ["a"]


def test_a_slow_consumer_holds_back_only_itself(client: Any, topic: str) -> None:
    slow = client.subscribe(topic, "slow", receiver_queue_size=1)
    fast = client.subscribe(topic, "fast", receiver_queue_size=100)
    values = [str(n) for n in range(300)]
    publish(client, topic, values)
    assert texts(fast, 300) == values
    assert texts(slow, 300) == values


def test_a_table_view_has_the_newest_value_of_each_key(client: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    for index in range(10):
        producer.send(str(index).encode(), partition_key=f"k{index % 3}")
    table = client.create_table_view(topic)
    assert table.get("k0") == b"9"
    assert len(table) == 3


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
