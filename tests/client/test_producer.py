"""Producers against the embedded broker, through the public API."""

import asyncio
import time
from collections import Counter

import pytest
from insides import publisher_of
from published import read
from waiting import eventually

import geminga
import geminga.asyncio
from geminga import errors
from geminga.broker.commands import answers
from geminga.client.admin import admin, topic_path
from geminga.errors import Result
from geminga.ids import TopicName
from geminga.producer.interceptors import ProducerInterceptor


@pytest.fixture
def client(pulsar_client):
    return pulsar_client


def partitioned(broker, topic, count, method="PUT"):
    admin(broker.admin_url, method, f"{topic_path(TopicName.parse(topic))}/partitions", count)


def test_a_producer_with_a_latency_budget_fills_batches_and_loses_nothing(client, pulsar_broker, topic):
    partitioned(pulsar_broker, topic, 4)
    with client.create_producer(topic, latency_budget_ms=100, block_if_queue_full=True) as producer:
        outcomes, begun = Counter(), time.monotonic()
        for number in range(3000):
            producer.send_async(b"%d" % number, lambda result, message_id: outcomes.update([result]))
            if number % 10 == 0:
                time.sleep(0.001)
        seconds = time.monotonic() - begun
        producer.flush()
        statistics = producer.statistics()
        assert producer.send(b"3000") is not None, "a sender that waits is not kept"
    assert outcomes == {Result.Ok: 3000}
    assert statistics.batch_fill > min(20, 3000 / seconds * 0.1 / 4 / 2)  # half of what a partition gets
    assert {m.data() for m in read(client, topic, 3001)} == {b"%d" % n for n in range(3001)}


def test_a_producer_without_a_name_shows_the_generated_one(client, topic):
    with client.create_producer(topic) as producer:
        assert producer.producer_name()
        assert repr(producer) == f"<Producer {producer.producer_name()!r} on {topic}>"


@pytest.mark.parametrize("kind", [geminga.CompressionType.ZSTD, geminga.CompressionType.ZLib])
def test_a_level_compresses_harder(client, pulsar_broker, topic, kind):
    sizes = []
    for level in (1, 9):
        name = f"{topic}-{level}"
        producer = client.create_producer(
            name,
            compression_type=kind,
            compression_level=level,
            batching_enabled=True,
            batching_max_publish_delay_ms=60_000,
        )
        payloads = [b'{"number":%d,"what":"reading %d"}' % (n * n % 977, n % 31) for n in range(900)]
        for payload in payloads:
            producer.send_async(payload, None)
        producer.flush()
        assert [m.data() for m in read(client, name, len(payloads))] == payloads
        sizes.append(_stored(pulsar_broker, name))
    assert sizes[1] < sizes[0]


def _stored(broker, topic):
    return admin(broker.admin_url, "GET", f"{topic_path(TopicName.parse(topic))}/stats")["bytesInCounter"]


def test_chunks_are_never_batched(client, topic):
    producer = client.create_producer(topic, chunking_enabled=True, chunk_max_message_size=10_000)
    first, second = [], []
    producer.send_async(b"small", lambda r, m: first.append(m))
    producer.send_async(bytes(25_000), lambda r, m: second.append(m))
    producer.flush()
    assert first[0].batch_index == -1
    assert second[0].first_chunk < second[0]
    assert [message.data() for message in read(client, topic, 2)] == [b"small", bytes(25_000)]
    with pytest.raises(geminga.InvalidConfiguration, match="chunking_enabled"):
        client.create_producer(topic, chunking_enabled=True, batching_enabled=True)


def test_lazy_partitions_start_with_their_first_message(pulsar_broker, client, topic):
    partitioned(pulsar_broker, topic, 5)
    producer = client.create_producer(topic, lazy_start_partitioned_producers=True)
    states = Counter(p.state for p in producer.statistics().partitions)
    assert states == {"ready": 1, "not started": 4}
    for number in range(50):
        producer.send(b"x", partition_key=str(number))
    assert Counter(p.state for p in producer.statistics().partitions) == {"ready": 5}


def test_added_partitions_are_found(pulsar_broker, client, topic):
    partitioned(pulsar_broker, topic, 1)
    seen = []

    class Watcher(ProducerInterceptor):
        def on_partitions_change(self, name, partitions):
            seen.append((name, partitions))

    producer = client.create_producer(
        topic, partitions_refresh_seconds=0.05, batching_enabled=False, interceptors=[Watcher()]
    )
    partitioned(pulsar_broker, topic, 3, "POST")
    used = set()
    eventually(lambda: used.add(int(producer.send(b"x").partition)) or (used == {0, 1, 2} and seen))
    assert seen == [(topic, 3)]


def test_interceptors_change_messages_and_see_outcomes(client, topic):
    seen = []

    class Stamp(ProducerInterceptor):
        def before_send(self, producer, message):
            return message.replace(properties=(*message.properties, ("stamp", "1")))

        def on_send_acknowledgement(self, producer, message, message_id, error):
            seen.append((message.payload, message_id, error))

        def close(self):
            seen.append("closed")

    producer = client.create_producer(topic, interceptors=[Stamp()])
    got = []
    producer.send_async(b"1", lambda r, m: got.append(m))
    message_id = producer.send(b"2")
    producer.close()
    assert [m.properties() for m in read(client, topic, 2)] == [{"stamp": "1"}] * 2
    assert seen == [(b"1", got[0], None), (b"2", message_id, None), "closed"]


def test_an_exclusive_mode_that_the_broker_does_not_know_is_refused(client, topic, monkeypatch):
    """As Apache Pulsar 2.10, which takes ExclusiveWithFencing for a shared producer."""
    frame = answers.frame

    def without_epoch(field, **values):
        values.pop("topic_epoch", None)
        return frame(field, **values)

    monkeypatch.setattr(answers, "frame", without_epoch)
    mode = geminga.ProducerAccessMode.ExclusiveWithFencing
    with pytest.raises(errors.UnsupportedVersionError, match="ExclusiveWithFencing"):
        client.create_producer(topic, access_mode=mode)
    monkeypatch.undo()
    client.create_producer(topic, access_mode=geminga.ProducerAccessMode.Exclusive).send(
        b"nobody else is there"
    )


async def test_tasks_that_send_together_share_a_batch(pulsar_broker, topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(topic, batching_enabled=True)
        ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(100)))
        assert ids == sorted(ids)
        assert producer.statistics().sent_batches == 1
        await producer.send(b"alone", partition_key="k", properties={"a": "b"})
        got = []
        producer.send_async(b"later", lambda r, m: got.append(r))
        await producer.flush()
        assert got == [Result.Ok]
        with pytest.raises(errors.InvalidMessage):
            await producer.send(b"", event_timestamp=-1)
        await producer.close()
        with pytest.raises(errors.AlreadyClosed):
            await producer.send(b"x")


async def test_a_full_queue_makes_tasks_wait_without_blocking_the_loop(pulsar_broker, topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(topic, max_pending_messages=5, block_if_queue_full=True)
        ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(300)))
        assert len(set(map(str, ids))) == 300
        refusing = await client.create_producer(topic, max_pending_messages=5)
        results = await asyncio.gather(*(refusing.send(b"x") for _ in range(20)), return_exceptions=True)
        kinds = Counter(type(r) for r in results)
        assert kinds[errors.ProducerQueueIsFull] >= 1


@pytest.mark.parametrize("partitions", [0, 3])
def test_messages_with_keys_go_in_runs_where_nothing_is_batched(
    pulsar_broker, pulsar_client, pulsar_topic, partitions
):
    if partitions:
        partitioned(pulsar_broker, pulsar_topic, partitions)
    producer = pulsar_client.create_producer(pulsar_topic, block_if_queue_full=True)
    consumer = pulsar_client.subscribe(pulsar_topic, "s", geminga.ConsumerType.KeyShared)
    state, runs = publisher_of(producer).state, []
    for partition in state.partitions:
        enqueue = partition.enqueue
        partition.enqueue = lambda operation, enqueue=enqueue: (runs.append(operation), enqueue(operation))
    sent = []
    for number in range(3000):
        key = (None, "a", "b", "c" * 2000, "", "ключ")[number % 6 if number < 60 else number % 3]
        extras = {"properties": {"p": "q"}} if number % 500 == 7 else {}
        producer.send_async(b"%d" % number, None, partition_key=key, **extras)
        sent.append((b"%d" % number, key or "", extras.get("properties", {})))
    producer.flush()
    received = [consumer.receive(30_000) for _ in sent]
    found = [(m.data(), m.partition_key(), m.properties()) for m in received]
    assert sorted(found, key=lambda each: int(each[0])) == sent
    assert all(m.message_id().batch_index() == -1 for m in received)
    for key in ("a", "b", "ключ"):
        assert [each for each in found if each[1] == key] == [each for each in sent if each[1] == key]
    assert len(runs) < 1000
