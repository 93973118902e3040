"""Draining: nothing more comes, what was delivered is settled, then the consumer is closed."""

import asyncio
import threading
import time
from typing import Any

import pytest
from insides import inner_consumer, queue_of
from published import publish
from waiting import Blocked, eventually, join_threads, loop_turns, start_thread

import geminga.asyncio
from geminga import ConsumerBatchReceivePolicy, ConsumerType
from geminga.errors import AlreadyClosed, InvalidConfiguration

SHARED: dict[str, Any] = {"consumer_type": ConsumerType.Shared}


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
@pytest.mark.parametrize("batching", [False, True], ids=["one by one", "batches"])
def test_delivered_messages_are_processed_and_the_rest_stay_at_the_broker(
    pulsar_client, pulsar_topic, kind, batching
):
    consumer = pulsar_client.subscribe(pulsar_topic, "s", kind, receiver_queue_size=10)
    values = publish(pulsar_client, pulsar_topic, 50, batched=batching, batching_max_messages=5)
    done: list[bytes] = []
    begun = threading.Event()

    def work() -> None:
        for message in consumer:
            begun.set()
            time.sleep(0.005)
            done.append(message.data())
            consumer.acknowledge(message)

    workers = [start_thread(work) for _ in range(1 if kind is ConsumerType.Exclusive else 3)]
    assert begun.wait(60)
    assert consumer.drain(60_000) == 0
    join_threads(*workers)
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
    publish(pulsar_client, pulsar_topic, 6)
    publish(pulsar_client, pulsar_topic, 2, batched=False, start=6)
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
    publish(pulsar_client, pulsar_topic, 5, batched=False)
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
    publish(pulsar_client, pulsar_topic, 100, batched=False)
    eventually(lambda: len(heard) > 0)
    assert consumer.drain(60_000) == 0
    with pulsar_client.subscribe(pulsar_topic, "s", **SHARED) as following:
        others = [following.receive(60_000).data() for _ in range(100 - len(heard))]
    assert len({*heard, *others}) == 100


def test_a_receiver_that_would_wait_forever_gets_an_error(pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    waiting = Blocked(lambda: list(consumer))
    eventually(lambda: len(inner_consumer(consumer).receive_waiters) > 0)
    assert consumer.drain() == 0
    assert waiting.ended() == []


def test_the_last_messages_of_a_drain_are_a_batch(pulsar_client, pulsar_topic):
    consumer = pulsar_client.subscribe(
        pulsar_topic, "s", batch_receive_policy=ConsumerBatchReceivePolicy(10, -1, 60_000)
    )
    values = publish(pulsar_client, pulsar_topic, 3, batched=False)
    eventually(lambda: len(queue_of(consumer)) == 3)
    draining = Blocked(lambda: consumer.drain(60_000))
    batch = consumer.batch_receive()
    assert [message.data() for message in batch] == values
    consumer.acknowledge(batch)
    assert draining.ended() == 0


@pytest.mark.parametrize("millis", [-1, True, "soon"])
def test_drain_refuses_an_invalid_timeout(pulsar_client, pulsar_topic, millis):
    consumer = pulsar_client.subscribe(pulsar_topic, "s")
    with pytest.raises(InvalidConfiguration, match="timeout_millis"):
        consumer.drain(millis)
    publish(pulsar_client, pulsar_topic, 1, batched=False)
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
        publish(client, pulsar_topic, 3, batched=False)
        consumer.receive(60_000)
        draining = Blocked(lambda: consumer.drain(60_000))
        eventually(lambda: inner_consumer(consumer).draining)
        pulsar_broker.close()
        assert draining.ended() == 0, "what was in hand comes again, and nobody here can settle it"
