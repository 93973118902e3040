"""Messages of the official client are received byte for byte."""

import pulsar
import pytest

import geminga


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
@pytest.mark.parametrize("rich", [False, True])
def test_the_official_client_reads_what_send_many_published(broker, client, topic, batched, compressed, rich):
    """Check messages of `send_async` as received: payloads, keys, properties, order, and batch indexes."""
    values = [b"%d" % number * (number % 40) for number in range(700)]
    keys = [f"k{number % 9}" if rich and number % 4 else None for number in range(700)]
    properties = [{"n": str(number)} if rich and number % 3 else {} for number in range(700)]
    options = {
        "batching_enabled": batched, "batching_max_messages": 100, "batching_max_publish_delay_ms": 1000,
        "compression_type": getattr(geminga.CompressionType, "ZSTD" if compressed else "NONE"),
    }  # fmt: skip
    with geminga.Client(broker.service_url) as ours:
        with ours.create_producer(f"{topic}-many", **options) as producer:
            more = {"keys": keys, "properties": properties} if rich else {}
            producer.send_many(values, lambda sent: None, **more)
            producer.flush()
        with ours.create_producer(f"{topic}-singly", **options) as producer:
            for value, key, own in zip(values, keys, properties, strict=True):
                producer.send_async(value, None, partition_key=key, properties=own)
            producer.flush()

    def said(name: str) -> list[tuple[object, ...]]:
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        messages = [reader.read_next(30_000) for _ in values]
        first = messages[0].message_id().entry_id()
        return [
            (m.data(), m.partition_key(), m.properties(), m.message_id().entry_id() - first,
             m.message_id().batch_index()) for m in messages
        ]  # fmt: skip

    assert said(f"{topic}-many") == said(f"{topic}-singly")
    assert [each[0] for each in said(f"{topic}-many")] == values
