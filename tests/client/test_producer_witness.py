"""The official Python client reads what our producers write, in every combination that it knows."""

import random

import pytest

import geminga

pulsar = pytest.importorskip("pulsar")
pytestmark = pytest.mark.witness

COUNT = 40


@pytest.fixture(scope="module")
def pulsar_broker(pulsar_module_broker):
    """The module's, as the official client is."""
    return pulsar_module_broker


@pytest.fixture(scope="module")
def witness(pulsar_broker):
    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def read(witness, topic, count):
    consumer = witness.subscribe(topic, "witness", initial_position=pulsar.InitialPosition.Earliest)
    messages = [consumer.receive(30_000) for _ in range(count)]
    consumer.close()
    return messages


@pytest.mark.parametrize("batching", ["off", "default", "keyed"])
@pytest.mark.parametrize("compression", list(geminga.CompressionType))
def test_rows(pulsar_client, pulsar_topic, witness, compression, batching):
    producer = pulsar_client.create_producer(
        pulsar_topic,
        compression_type=compression,
        batching_enabled=batching != "off",
        batching_type=geminga.BatchingType.KeyBased if batching == "keyed" else geminga.BatchingType.Default,
    )
    ids = {}
    for number in range(COUNT):
        payload = b"%d" % number * 30
        producer.send_async(
            payload,
            lambda r, m, payload=payload: ids.setdefault(payload, m),
            properties={"n": str(number)},
            partition_key=f"k{number % 3}" if number % 4 else None,
            event_timestamp=1_700_000_000_000 + number,
        )
    producer.flush()
    messages = read(witness, pulsar_topic, COUNT)
    assert len({m.data() for m in messages}) == COUNT
    for message in messages:
        number = int(message.properties()["n"])
        assert message.data() == b"%d" % number * 30
        assert message.partition_key() == (f"k{number % 3}" if number % 4 else "")
        assert message.event_timestamp() == 1_700_000_000_000 + number
        place, ours = message.message_id(), ids[message.data()]
        assert (place.ledger_id(), place.entry_id()) == (ours.ledger_id, ours.entry_id)
        assert place.batch_index() == ours.batch_index


@pytest.mark.parametrize("compression", [geminga.CompressionType.NONE, geminga.CompressionType.ZSTD])
def test_chunks(pulsar_client, pulsar_topic, witness, compression):
    producer = pulsar_client.create_producer(
        pulsar_topic,
        batching_enabled=False,
        chunking_enabled=True,
        chunk_max_message_size=5_000,
        compression_type=compression,
    )
    payloads = [random.Random(n).randbytes(size) for n, size in enumerate((10, 30_000, 4_000))]
    for payload in payloads:
        producer.send(payload)
    assert [m.data() for m in read(witness, pulsar_topic, 3)] == payloads


@pytest.mark.parametrize("compression", list(geminga.CompressionType))
def test_tables(pulsar_client, pulsar_topic, witness, compression):
    pa = pytest.importorskip("pyarrow")
    producer = pulsar_client.create_producer(
        pulsar_topic, compression_type=compression, batching_enabled=True, batching_max_messages=15
    )
    table = pa.table(
        {
            "value": [b"%d" % n for n in range(COUNT)],
            "key": [f"k{n % 2}" for n in range(COUNT)],
            "event_time": pa.array([1_700_000_000_000 + n for n in range(COUNT)], pa.timestamp("ms")),
        }
    )
    producer.send_table(table)
    got = [(m.data(), m.partition_key(), m.event_timestamp()) for m in read(witness, pulsar_topic, COUNT)]
    assert sorted(got) == sorted((b"%d" % n, f"k{n % 2}", 1_700_000_000_000 + n) for n in range(COUNT))


def test_null_values_and_sequence_ids(pulsar_client, pulsar_topic, witness):
    producer = pulsar_client.create_producer(pulsar_topic, initial_sequence_id=9)
    producer.send(None, partition_key="gone")
    producer.send(b"x", sequence_id=500)
    first, second = read(witness, pulsar_topic, 2)
    assert first.has_null_value()
    assert first.partition_key() == "gone"
    assert second.data() == b"x"
