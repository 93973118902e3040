"""One consumer's connection: refusals, retries, lost brokers, late answers; with a scripted broker."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from entries import batch_entry, in_batch, single_entry
from scripted_broker import UNSOLICITED, Peer, ScriptedBroker, Type, command
from waiting import eventually_async, loop_turns, never_async

import geminga.asyncio
from geminga import MessageId, errors
from geminga.wire.frames import Frame
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"


def entry(*payloads: bytes) -> bytes:
    if len(payloads) == 1:
        return single_entry(payloads[0])
    return batch_entry([in_batch(payload, sequence_id=n) for n, payload in enumerate(payloads)])


@asynccontextmanager
async def scripted(**options: Any) -> AsyncIterator[tuple[ScriptedBroker, geminga.asyncio.Client]]:
    settings = {"initial_backoff_interval_ms": 10, "operation_timeout_seconds": 2, **options}
    async with ScriptedBroker() as broker, geminga.asyncio.Client(broker.url, **settings) as client:
        yield broker, client


async def test_a_subscribe_without_an_answer_is_closed_at_the_broker():
    async with scripted(operation_timeout_seconds=1) as (broker, client):
        del broker.answers[Type.SUBSCRIBE]
        with pytest.raises(errors.Timeout):
            await client.subscribe(TOPIC, "s")
        await broker.until(Type.CLOSE_CONSUMER)


async def test_a_refusal_while_reconnecting_is_final_for_some_errors(caplog):
    with caplog.at_level(logging.ERROR, "geminga"):
        async with scripted() as (broker, client):
            consumer = await client.subscribe(TOPIC, "s")
            waiting = asyncio.create_task(consumer.receive())
            await loop_turns(3)
            broker.answers[Type.SUBSCRIBE] = lambda p, f: broker.refuse(
                p, f.command.subscribe.request_id, pb.AuthorizationError
            )
            broker.peers[-1].drop()
            with pytest.raises(errors.AuthorizationError):
                await waiting
            with pytest.raises(errors.AuthorizationError):
                await consumer.receive()
            assert not consumer.is_connected()
            await consumer.close()
            with pytest.raises(errors.AlreadyClosed):
                await consumer.receive()
    assert "has failed" in caplog.text


async def test_a_busy_subscription_while_reconnecting_is_not_final():
    async with scripted() as (broker, client):
        consumer = await client.subscribe(TOPIC, "s")
        await broker.until(Type.FLOW)
        fine = broker.answers[Type.SUBSCRIBE]
        broker.answers[Type.SUBSCRIBE] = lambda p, f: broker.refuse(
            p, f.command.subscribe.request_id, pb.ConsumerBusy
        )
        broker.peers[-1].drop()
        await broker.until(Type.SUBSCRIBE, 3)
        assert not consumer.is_connected()
        broker.answers[Type.SUBSCRIBE] = fine
        await broker.until(Type.FLOW, 2)
        assert consumer.is_connected()


async def test_seek_waits_for_the_answer_before_it_subscribes_again():
    async with scripted() as (broker, client):
        consumer = await client.subscribe(TOPIC, "s")

        def on_seek(peer: Peer, frame: Frame) -> None:
            request_id = frame.command.seek.request_id
            peer.message(7, entry(b"of the old position"))
            peer.send(command(Type.CLOSE_CONSUMER, "close_consumer", consumer_id=0, request_id=UNSOLICITED))
            asked.append((peer, request_id))

        asked: list[tuple[Peer, int]] = []
        broker.answers[Type.SEEK] = on_seek
        task = asyncio.create_task(consumer.seek(MessageId.earliest))
        await broker.until(Type.SEEK)
        await never_async(lambda: broker.count(Type.SUBSCRIBE) != 1, 0.1)
        broker.ok(*asked.pop())
        await task
        assert broker.count(Type.SUBSCRIBE) == 2
        broker.peers[-1].message(0, entry(b"first"))
        assert (await consumer.receive()).data() == b"first"


async def test_a_reader_from_a_time_grants_no_permits_before_its_seek():
    async with scripted() as (broker, client):

        def on_seek(peer: Peer, frame: Frame) -> None:
            before.append(broker.count(Type.FLOW))
            peer.send(command(Type.CLOSE_CONSUMER, "close_consumer", consumer_id=0, request_id=UNSOLICITED))
            broker.ok(peer, frame.command.seek.request_id)

        before: list[int] = []
        broker.answers[Type.SEEK] = on_seek
        reader = await client.create_reader(TOPIC, start_time=0)
        await broker.until(Type.FLOW)
        assert (before, broker.count(Type.SUBSCRIBE)) == ([0], 2)
        broker.peers[-1].message(0, entry(b"first"))
        assert (await reader.read_next()).data() == b"first"


async def test_a_refused_seek_changes_nothing():
    async with scripted() as (broker, client):
        consumer = await client.subscribe(TOPIC, "s")

        def on_seek(peer: Peer, frame: Frame) -> None:
            peer.message(7, entry(b"arrived meanwhile"))
            broker.refuse(peer, frame.command.seek.request_id, pb.UnknownError)

        broker.answers[Type.SEEK] = on_seek
        with pytest.raises(errors.UnknownError):
            await consumer.seek(MessageId.earliest)
        assert (await consumer.receive()).data() == b"arrived meanwhile"
        assert broker.count(Type.SUBSCRIBE) == 1
        lookups = broker.count(Type.LOOKUP)
        # An unload: the topic's new owner is unknown.
        close = command(Type.CLOSE_CONSUMER, "close_consumer", consumer_id=0, request_id=UNSOLICITED)
        broker.peers[-1].send(close)
        await broker.until(Type.SUBSCRIBE, 2)
        assert broker.count(Type.LOOKUP) == lookups + 1


async def test_a_second_seek_is_refused_and_the_first_one_succeeds():
    async with scripted() as (broker, client):
        consumer = await client.subscribe(TOPIC, "s")
        asked: list[tuple[Peer, int]] = []
        broker.answers[Type.SEEK] = lambda peer, frame: asked.append((peer, frame.command.seek.request_id))
        first = asyncio.create_task(consumer.seek(MessageId(-1, 1, 3)))
        await broker.until(Type.SEEK)
        with pytest.raises(errors.ConsumerNotInitialized):
            await consumer.seek(MessageId.latest)
        broker.ok(*asked.pop())
        await first
        for number in (3, 4):
            broker.peers[-1].message(number, entry(b"%d" % number))
        assert (await consumer.receive()).data() == b"4"


async def test_after_a_final_refusal_calls_that_need_the_topic_raise_it():
    async with scripted() as (broker, client):
        consumer = await client.subscribe(TOPIC, "s")
        await broker.until(Type.FLOW)
        broker.answers[Type.CONNECT] = lambda p, f: broker.refuse(p, 0, pb.AuthenticationError, "expired")
        broker.peers[-1].drop()
        with pytest.raises(errors.AuthenticationError):
            await consumer.receive()
        calls = (
            lambda: consumer.seek(MessageId.earliest),
            consumer.get_last_message_id,
            consumer.get_last_message_ids,
            consumer.unsubscribe,
        )
        for call in calls:
            with pytest.raises(errors.AuthenticationError, match="expired"):
                await call()


async def test_seek_names_the_reason_why_the_consumer_is_not_reconnected():
    async with scripted(operation_timeout_seconds=1) as (broker, client):
        consumer = await client.subscribe(TOPIC, "s")
        broker.answers[Type.SUBSCRIBE] = lambda p, f: broker.refuse(
            p, f.command.subscribe.request_id, pb.ServiceNotReady
        )
        broker.peers[-1].drop()
        await broker.until(Type.SUBSCRIBE, 2)
        with pytest.raises(errors.NotConnected, match="said so"):
            await consumer.seek(MessageId.earliest)


async def test_an_error_in_the_last_moment_of_the_wait_for_a_connection_is_raised():
    async with scripted(operation_timeout_seconds=1) as (broker, client):
        consumer = await client.subscribe(TOPIC, "s")
        (handle,) = consumer.group.handles.values()
        broker.answers[Type.SUBSCRIBE] = lambda p, f: None
        broker.peers[-1].drop()
        await eventually_async(lambda: not consumer.is_connected())
        loop = asyncio.get_running_loop()
        loop.call_later(0.02, handle.on_failed, errors.AuthorizationError("not any more"))
        loop.call_soon(time.sleep, 0.1)  # then the error and the time-out are due in the same iteration
        with pytest.raises(errors.AuthorizationError, match="not any more"):
            await handle.connected_within(0.05)


async def test_a_reader_that_failed_does_not_say_that_all_is_read():
    async with scripted(operation_timeout_seconds=1) as (broker, client):
        reader = await client.create_reader(TOPIC, MessageId.earliest)
        broker.answers[Type.SUBSCRIBE] = lambda p, f: broker.refuse(
            p, f.command.subscribe.request_id, pb.TopicNotFound
        )
        broker.peers[-1].drop()
        await eventually_async(lambda: reader.consumer.failure is not None)
        with pytest.raises(errors.TopicNotFound):
            await reader.has_message_available()


async def test_receipts_that_never_come():
    async with scripted(operation_timeout_seconds=1) as (broker, client):
        consumer = await client.subscribe(TOPIC, "s", ack_receipt_enabled=True)
        await broker.until(Type.FLOW)
        broker.peers[-1].message(0, entry(b"a"))
        message = await consumer.receive()
        with pytest.raises(errors.Timeout, match="receipt"):
            await consumer.acknowledge(message)
        task = asyncio.create_task(consumer.acknowledge(message))
        await loop_turns(3)
        await consumer.close()
        with pytest.raises((errors.AlreadyClosed, errors.Timeout)):
            await task


async def test_receipts_survive_a_reconnect():
    async with scripted() as (broker, client):
        consumer = await client.subscribe(TOPIC, "s", ack_receipt_enabled=True)
        await broker.until(Type.FLOW)
        broker.peers[-1].message(0, entry(b"a"))
        message = await consumer.receive()
        task = asyncio.create_task(consumer.acknowledge(message))
        await broker.until(Type.ACK)

        def receipt(peer: Peer, frame: Frame) -> None:
            request_id = frame.command.ack.request_id
            peer.send(command(Type.ACK_RESPONSE, "ackResponse", consumer_id=0, request_id=request_id))

        broker.answers[Type.ACK] = receipt
        broker.peers[-1].drop()
        await task


async def test_a_silent_broker_does_not_hold_up_closing(monkeypatch):
    monkeypatch.setattr("geminga.client.handles.consumer_handle.CLOSE_TIMEOUT_SECONDS", 0.1)

    async with scripted() as (broker, client):
        consumer = await client.subscribe(TOPIC, "s")
        del broker.answers[Type.CLOSE_CONSUMER]
        await consumer.close()
