"""Arrow tables through both APIs: sent rows arrive, in any order of the waits."""

import asyncio
import threading
import uuid

import pytest
from insides import inner_consumer
from waiting import eventually, loop_turns

import geminga
import geminga.asyncio

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def topic():
    return f"columns-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def table():
    return pa.table(
        {
            "value": pa.array([b"%d" % i for i in range(1000)], pa.binary()),
            "key": pa.array([f"k{i % 10}" for i in range(1000)]),
        }
    )


def test_a_waiting_receiver_is_woken(pulsar_client, topic):
    consumer = pulsar_client.subscribe(topic, "s")
    producer = pulsar_client.create_producer(topic)
    got = []
    waiting = threading.Thread(target=lambda: got.append(consumer.receive_table(timeout_millis=30_000)))
    waiting.start()
    eventually(lambda: inner_consumer(consumer).receive_waiters)
    producer.send(b"x")
    waiting.join(60)
    assert [t.num_rows for t in got] == [1]


async def test_asyncio(pulsar_broker, topic, table):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(topic, "s")
        producer = await client.create_producer(topic)
        receiving = asyncio.ensure_future(consumer.receive_table())
        await loop_turns(3)
        result = await producer.send_table(table)
        assert result.rows == 1000
        rows = (await asyncio.wait_for(receiving, 60)).num_rows
        while rows < 1000:
            rows += (await asyncio.wait_for(consumer.receive_table(), 60)).num_rows
