"""Messages and acknowledgements of the official client survive a restart of the broker."""

import pulsar

from geminga.broker.serving.embedded import embedded

Shared = pulsar.ConsumerType.Shared
Earliest = pulsar.InitialPosition.Earliest


def test_messages_and_holes_survive_a_restart(connect, tmp_path, topic):
    folder = tmp_path / "store"
    with embedded(folder) as broker:
        client = connect(broker.service_url)
        consumer = client.subscribe(topic, "s", consumer_type=Shared)
        producer = client.create_producer(
            topic, batching_enabled=False, compression_type=pulsar.CompressionType.LZ4
        )
        ids = [producer.send(f"{n}".encode(), properties={"n": str(n)}) for n in range(50)]
        for _ in range(50):
            message = consumer.receive(timeout_millis=30_000)
            if int(message.data()) % 5:
                consumer.acknowledge(message)
        consumer.close()
        client.close()
    with embedded(folder) as broker:
        client = connect(broker.service_url)
        consumer = client.subscribe(topic, "s", consumer_type=Shared)
        left = [consumer.receive(timeout_millis=30_000) for _ in range(10)]
        assert sorted(int(m.data()) for m in left) == list(range(0, 50, 5))
        assert all(m.properties() == {"n": m.data().decode()} for m in left)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        again = [reader.read_next(timeout_millis=30_000) for _ in range(50)]
        assert [int(m.data()) for m in again] == list(range(50))
        places = [(i.ledger_id(), i.entry_id()) for i in ids]
        assert [(m.message_id().ledger_id(), m.message_id().entry_id()) for m in again] == places
        later = client.create_producer(topic, batching_enabled=False).send(b"later")
        assert (later.ledger_id(), later.entry_id()) > places[-1]


def test_metadata_survives_a_restart(connect, tmp_path, topic):
    folder = tmp_path / "store"
    with embedded(folder, auto_create_topic_kind="partitioned", auto_create_partitions=2) as broker:
        client = connect(broker.service_url)
        client.create_producer(topic, producer_name="p", initial_sequence_id=5).send(b"x")
        client.close()
    with embedded(folder, auto_create_topics=False) as broker:
        client = connect(broker.service_url)
        assert len(client.get_topic_partitions(topic)) == 2
        reader_topics = client.get_topic_partitions(topic)
        readers = [client.create_reader(name, pulsar.MessageId.earliest) for name in reader_topics]
        assert sum(reader.has_message_available() for reader in readers) == 1
