"""Messages of the official client are received byte for byte."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import geminga

PAYLOADS = [b"", b"x", b"hello", bytes(range(256)), b"z" * 100_000]
COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


def drain(consumer: Any, count: int, timeout_millis: int = 30_000) -> list[Any]:
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=timeout_millis)
        consumer.acknowledge(message)
        found.append(message)
    return found


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_payloads_are_received_unchanged(client, topic, compression, batching):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, compression_type=compression, batching_enabled=batching, batching_max_publish_delay_ms=5
    )
    # The client itself cannot read back an empty payload that it compressed with zlib alone.
    payloads = PAYLOADS[1:] if compression == pulsar.CompressionType.ZLib and not batching else PAYLOADS
    for payload in payloads:
        producer.send_async(payload, lambda result, _id: None)
    producer.flush()
    assert [m.data() for m in drain(consumer, len(payloads))] == payloads


def test_a_producer_name_in_use_is_refused(client, other_client, topic):
    first = client.create_producer(topic, producer_name="one")
    with pytest.raises(pulsar.ProducerBusy):
        other_client.create_producer(topic, producer_name="one")
    first.close()
    other_client.create_producer(topic, producer_name="one").send(b"x")


@pytest.mark.parametrize("library", [pulsar, geminga], ids=["pulsar-client", "geminga"])
def test_a_fenced_producer_does_not_disturb_others_on_its_connection(broker, admin, topic, library):
    """All of it over one connection, which stays open throughout."""
    client = library.Client(broker.service_url)
    modes = library.ProducerAccessMode
    first = client.create_producer(topic, access_mode=modes.Exclusive, send_timeout_millis=10_000)
    other = client.create_producer(f"{topic}-other")
    consumer = client.subscribe(f"{topic}-other", "s")
    first.send(b"1")

    def addresses() -> set[str]:
        path = f"{topic}-other".replace("://", "/")
        stats = admin("GET", f"{path}/stats")
        return {each["address"] for each in [*stats["publishers"], *stats["subscriptions"]["s"]["consumers"]]}

    before = addresses()
    second = client.create_producer(topic, access_mode=modes.ExclusiveWithFencing)
    for _ in range(2):
        with pytest.raises(library.PulsarException):
            first.send(b"too late")
    second.send(b"2")
    other.send(b"x")
    assert consumer.receive(30_000).redelivery_count() == 0
    assert len(before) == 1
    assert addresses() == before
    client.close()


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("rich", [(), ("keys",), ("keys", "properties")])
def test_the_official_client_reads_what_send_many_published(broker, client, topic, batched, compressed, rich):
    """Check messages of `send_async` as received: payloads, keys, properties, order, and batch indexes."""
    values = [b"%d" % number * (number % 40) for number in range(700)]
    keys = [None if number % 4 == 0 else f"k{number % 9}" for number in range(700)]
    properties = [{} if number % 3 == 0 else {"n": str(number)} for number in range(700)]
    with geminga.Client(broker.service_url) as ours:
        options = {
            "batching_enabled": batched,
            "batching_max_messages": 100,
            "batching_max_publish_delay_ms": 1000,
            "compression_type": getattr(geminga.CompressionType, "ZSTD" if compressed else "NONE"),
        }
        said = []
        for name in ("many", "singly"):
            producer = ours.create_producer(f"{topic}-{name}", **options)
            if name == "many":
                more = {"keys": keys, "properties": properties}
                more = {name: more[name] for name in rich}
                producer.send_many(values, lambda sent: None, **more)
            else:
                for value, key, own in zip(values, keys, properties, strict=True):
                    extras = {"partition_key": key} if "keys" in rich else {}
                    if "properties" in rich:
                        extras["properties"] = own
                    producer.send_async(value, None, **extras)
            producer.flush()
            reader = client.create_reader(f"{topic}-{name}", pulsar.MessageId.earliest)
            messages = [reader.read_next(30_000) for _ in values]
            first = messages[0].message_id().entry_id()
            said.append(
                [
                    (
                        message.data(),
                        message.partition_key(),
                        message.properties(),
                        message.message_id().entry_id() - first,
                        message.message_id().batch_index(),
                    )
                    for message in messages
                ]
            )
    assert said[0] == said[1]
    assert [each[0] for each in said[0]] == values
