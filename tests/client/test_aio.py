import asyncio
from contextlib import asynccontextmanager

import pytest
from scripted_broker import ScriptedBroker

import geminga
import geminga.asyncio
from geminga.errors import AlreadyClosed


@asynccontextmanager
async def connected():
    """A scripted broker and a client of it."""
    async with ScriptedBroker() as broker, geminga.asyncio.Client(broker.url) as client:
        yield broker, client


async def test_close_is_final_and_repeatable():
    async with connected() as (_broker, client):
        await client.create_producer("t")
        await client.close()
        await client.close()
        with pytest.raises(AlreadyClosed):
            await client.create_producer("t")


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
