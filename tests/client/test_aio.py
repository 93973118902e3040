import asyncio

import pytest
from waiting import eventually_async

import geminga
import geminga.asyncio
from geminga.errors import AlreadyClosed
from geminga.wire.proto import pulsar_wire_pb2 as pb


def run(scripted, body, **arguments):
    async def main():
        broker = scripted()
        await broker.start()
        try:
            async with geminga.asyncio.Client(broker.url, **arguments) as client:
                return await asyncio.wait_for(body(broker, client), 60)
        finally:
            await broker.stop()

    return asyncio.run(main())


def test_close_is_final_and_repeatable(scripted):
    async def body(broker, client):
        await client.create_producer("t")
        await client.close()
        await client.close()
        with pytest.raises(AlreadyClosed):
            await client.create_producer("t")

    run(scripted, body)


def test_shutdown(scripted):
    async def body(broker, client):
        await client.create_producer("t")
        client.shutdown()
        with pytest.raises(AlreadyClosed):
            await client.get_topic_partitions("t")

    run(scripted, body)


def test_the_error_of_a_handle_of_an_ended_loop_names_the_reason(pulsar_broker):
    client = geminga.asyncio.Client(pulsar_broker.service_url)

    async def opened():
        start = geminga.MessageId.earliest
        return (
            await client.create_producer("t"),
            await client.subscribe("t", "s"),
            await client.create_reader("t", start),
        )

    async def refused(call):
        with pytest.raises(AlreadyClosed, match=r"event loop that has ended.*asyncio\.run"):
            await call()

    producer, consumer, reader = asyncio.run(opened())
    for call in (lambda: producer.send(b"x"), consumer.receive, reader.read_next):
        asyncio.run(refused(call))
    client.shutdown()


def test_an_unused_client_is_shut_down_without_a_loop():
    client = geminga.asyncio.Client("pulsar://localhost")
    client.shutdown()


def test_cancelling_a_creation(scripted):
    async def body(broker, client):
        broker.answers[pb.BaseCommand.PRODUCER] = lambda peer, frame: None
        creating = asyncio.ensure_future(client.create_producer("t"))
        await eventually_async(lambda: broker.count(pb.BaseCommand.PRODUCER))
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert all(connection.handles_count == 0 for connection in client.context.pool.connections)

    run(scripted, body)
