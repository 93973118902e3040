"""Draining: nothing more comes, what was delivered is settled, then the consumer is closed."""

import asyncio
import threading
import time
from typing import Any

import pytest
from insides import inner_consumer, queue_of
from waiting import eventually, loop_turns, start_thread

import geminga.asyncio
from geminga import ConsumerBatchReceivePolicy, ConsumerType
from geminga.errors import AlreadyClosed, InvalidConfiguration

SHARED: dict[str, Any] = {"consumer_type": ConsumerType.Shared}


def publish(client: Any, topic: str, count: int, *, first: int = 0, **settings: Any) -> list[bytes]:
    values = [b"%d" % number for number in range(first, first + count)]
    with client.create_producer(topic, **settings) as producer:
        producer.send_many(values, callback=lambda _: None)
        producer.flush()
    return values


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
@pytest.mark.parametrize("batching", [False, True], ids=["one by one", "batches"])
def test_delivered_messages_are_processed_and_the_rest_stay_at_the_broker(
    pulsar_client, pulsar_topic, kind, batching
):
    consumer = pulsar_client.subscribe(pulsar_topic, "s", kind, receiver_queue_size=10)
    values = publish(pulsar_client, pulsar_topic, 50, batching_enabled=batching, batching_max_messages=5)
    done: list[bytes] = []
    begun = threading.Event()

    def work() -> None:
        for message in consumer:
            begun.set()
            time.sleep(0.005)
            done.append(message.data())
            consumer.acknowledge(message)

    workers = [threading.Thread(target=work) for _ in range(1 if kind is ConsumerType.Exclusive else 3)]
    for worker in workers:
        worker.start()
    assert begun.wait(60)
    assert consumer.drain(60_000) == 0
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive(), "its loop has ended"
    assert not consumer.is_connected()
    assert len(done) < len(values), "it went on as if nothing had been said"
    with pulsar_client.subscribe(pulsar_topic, "s", kind) as following:
        others = []
        for _ in range(len(values) - len(done)):
            message = following.receive(60_000)
            following.acknowledge(message)
            others.append(message.data())
    assert sorted(done + others) == sorted(values)


def test_messages_held_at_the_timeout_go_to_other_consumers(pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s", **SHARED)
    publish(pulsar_client, pulsar_topic, 6, batching_enabled=True)
    publish(pulsar_client, pulsar_topic, 2, first=6)
    held = [consumer.receive(60_000) for _ in range(8)]
    consumer.acknowledge(held[0])
    consumer.acknowledge(held[7])
    assert consumer.drain(100) == 6
    with pytest.raises(AlreadyClosed):
        consumer.receive(1000)
    assert consumer.drain(100) == 0, "it is closed"
    with pulsar_client.subscribe(pulsar_topic, "s", **SHARED) as following:
        came = {following.receive(60_000).data() for _ in range(6)}
    assert came == {b"%d" % number for number in range(1, 7)}


def test_refused_and_covered_messages_are_settled(pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    publish(pulsar_client, pulsar_topic, 5)
    held = [consumer.receive(60_000) for _ in range(5)]
    consumer.acknowledge_cumulative(held[3])
    consumer.negative_acknowledge(held[4])
    begin = time.monotonic()
    assert consumer.drain(60_000) == 0
    assert time.monotonic() - begin < 30
    with pulsar_client.subscribe(pulsar_topic, "s") as following:
        assert following.receive(60_000).data() == b"4"


def test_a_listener_processes_the_delivered_messages(pulsar_client, pulsar_topic):
    heard: list[bytes] = []

    def listener(consumer: Any, message: Any) -> None:
        time.sleep(0.002)
        heard.append(message.data())
        consumer.acknowledge(message)

    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", message_listener=listener, receiver_queue_size=20, **SHARED
    )
    publish(pulsar_client, pulsar_topic, 100)
    eventually(lambda: len(heard) > 0)
    assert consumer.drain(60_000) == 0
    with pulsar_client.subscribe(pulsar_topic, "s", **SHARED) as following:
        others = []
        for _ in range(100 - len(heard)):
            others.append(following.receive(60_000).data())
    assert len({*heard, *others}) == 100


def test_a_receiver_that_would_wait_forever_gets_an_error(pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    ended = threading.Event()

    def wait() -> None:
        for _ in consumer:
            raise AssertionError("nothing was published")
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    eventually(lambda: len(inner_consumer(consumer).receive_waiters) > 0)
    assert consumer.drain() == 0
    assert ended.wait(60)


def test_the_last_messages_of_a_drain_are_a_batch(pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", batch_receive_policy=ConsumerBatchReceivePolicy(10, -1, 60_000)
    )
    values = publish(pulsar_client, pulsar_topic, 3)
    eventually(lambda: len(queue_of(consumer)) == 3)
    drained: list[int] = []
    thread = start_thread(lambda: drained.append(consumer.drain(60_000)))
    batch = consumer.batch_receive()
    assert [message.data() for message in batch] == values
    consumer.acknowledge(batch)
    thread.join(60)
    assert drained == [0]


@pytest.mark.parametrize("millis", [-1, True, "soon"])
def test_drain_refuses_an_invalid_timeout(pulsar_client, pulsar_topic, millis):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    with pytest.raises(InvalidConfiguration, match="timeout_millis"):
        consumer.drain(millis)
    publish(pulsar_client, pulsar_topic, 1)
    assert consumer.receive(60_000).data() == b"0"


async def test_tasks_process_the_delivered_messages(pulsar_broker, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(pulsar_topic, "s", ConsumerType.Shared)
        producer = await client.create_producer(pulsar_topic)
        for number in range(20):
            await producer.send(b"%d" % number)
        done = []

        async def work() -> None:
            async for message in consumer:
                await loop_turns(5)
                done.append(message.data())
                await consumer.acknowledge(message)

        workers = [asyncio.create_task(work()) for _ in range(4)]
        await loop_turns()
        assert await consumer.drain(60_000) == 0
        await asyncio.wait_for(asyncio.gather(*workers), 60)
        following = await client.subscribe(pulsar_topic, "s", ConsumerType.Shared)
        while len(done) < 20:
            done.append((await following.receive(60_000)).data())
        assert len(set(done)) == 20


async def test_a_consumer_receives_nothing_after_a_cancelled_drain(pulsar_broker, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(pulsar_topic, "s", ConsumerType.Shared)
        producer = await client.create_producer(pulsar_topic)
        await producer.send(b"1")
        held = await consumer.receive(60_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.drain(60_000), 0.1)
        await producer.send(b"2")
        with pytest.raises(AlreadyClosed, match="draining"):
            await consumer.receive(60_000)
        await consumer.acknowledge(held)
        assert await consumer.drain(60_000) == 0
        following = await client.subscribe(pulsar_topic, "s", ConsumerType.Shared)
        assert (await following.receive(60_000)).data() == b"2"


def test_the_end_of_the_broker_ends_the_drain(pulsar_broker, pulsar_topic):
    with geminga.Client(pulsar_broker.service_url, operation_timeout_seconds=2) as client:
        consumer = client.subscribe(pulsar_topic, "s", **SHARED)
        publish(client, pulsar_topic, 3)
        consumer.receive(60_000)
        ended: list[int] = []
        thread = start_thread(lambda: ended.append(consumer.drain(60_000)))
        eventually(lambda: inner_consumer(consumer).draining)
        pulsar_broker.close()
        thread.join(60)
        assert ended == [0], "what was in hand comes again, and nobody here can settle it"
