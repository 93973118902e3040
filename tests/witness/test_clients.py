"""Corners of the official client's interface against our broker."""

import time

import pulsar

from geminga.broker.serving.embedded import embedded
from geminga.testing.apache_pulsar import free_ports

Earliest = pulsar.InitialPosition.Earliest
Shared = pulsar.ConsumerType.Shared


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


def test_a_reader_reads_all_partitions(client, topic, admin):
    admin("PUT", topic.replace("://", "/") + "/partitions", 3)
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(30):
        producer.send(str(index).encode(), partition_key=str(index))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(timeout_millis=30_000).data()))
    assert sorted(found) == list(range(30))


def test_added_partitions_have_the_subscriptions(client, topic, admin):
    path = topic.replace("://", "/")
    admin("PUT", f"{path}/partitions", 2)
    consumer = client.subscribe(topic, "s")
    consumer.close()
    admin("POST", f"{path}/partitions", 4)
    assert len(client.get_topic_partitions(topic)) == 4
    assert admin("GET", f"{path}-partition-3/subscriptions") == ["s"], "new partitions have the subscriptions"


def test_the_initial_subscription_of_a_dead_letter_topic_keeps_its_messages(client, topic):
    dead = f"{topic}-dead"
    policy = pulsar.ConsumerDeadLetterPolicy(1, dead_letter_topic=dead, initial_subscription_name="keep")
    consumer = client.subscribe(
        topic, "s", consumer_type=Shared, negative_ack_redelivery_delay_ms=50, dead_letter_policy=policy
    )
    client.create_producer(topic).send(b"bad")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(timeout_millis=30_000))
    deadline = time.monotonic() + 60
    while True:
        try:
            kept = client.subscribe(dead, "keep")
            break
        except pulsar.PulsarException:
            assert time.monotonic() < deadline
    assert kept.receive(timeout_millis=30_000).data() == b"bad"


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


def test_clients_reconnect_after_a_restart_on_the_same_port(connect, topic, tmp_path):
    (port,) = free_ports(1)
    with embedded(tmp_path / "s", web_port=None, port=port) as first:
        client = connect(first.service_url)
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


def test_messages_of_many_topics_are_received_at_once(client, topic):
    producers = [client.create_producer(f"{topic}-{number}") for number in range(150)]
    for number, producer in enumerate(producers):
        producer.send_async(str(number).encode(), lambda result, _id: None)
    for producer in producers:
        producer.flush()
    readers = [client.create_reader(f"{topic}-{number}", pulsar.MessageId.earliest) for number in range(150)]
    found = [reader.read_next(timeout_millis=30_000).data() for reader in readers]
    assert found == [str(number).encode() for number in range(150)]


def test_sequence_ids_continue_from_the_initial_one(client, topic):
    producer = client.create_producer(topic, producer_name="p", initial_sequence_id=41)
    producer.send(b"x")
    assert producer.last_sequence_id() == 42
