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


def test_send_and_receive(pulsar_client, topic, table):
    consumer = pulsar_client.subscribe(topic, "s")
    producer = pulsar_client.create_producer(topic)
    assert producer.send_table(table).rows == 1000
    got = []
    while sum(t.num_rows for t in got) < 1000:
        got.append(consumer.receive_table(timeout_millis=30_000))
        consumer.acknowledge_table(got[-1])
    received = pa.concat_tables(got)
    assert received["value"].to_pylist() == table["value"].to_pylist()
    assert received["key"].to_pylist() == table["key"].to_pylist()
    with pytest.raises(geminga.Timeout):
        consumer.receive_table(timeout_millis=50)


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


def test_rows_and_tables_from_one_consumer(pulsar_client, topic, table):
    consumer = pulsar_client.subscribe(topic, "s")
    producer = pulsar_client.create_producer(topic)
    producer.send_table(table)
    first = consumer.receive(30_000)
    assert first.data() == b"0"
    rest = []
    while sum(t.num_rows for t in rest) < 999:
        rest.append(consumer.receive_table(timeout_millis=30_000))
    assert pa.concat_tables(rest)["value"].to_pylist() == table["value"].to_pylist()[1:]
    producer.send(b"row")
    assert consumer.receive(30_000).data() == b"row"


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
