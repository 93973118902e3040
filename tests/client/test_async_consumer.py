"""Consumers for asyncio programs against the embedded broker."""

import asyncio
from typing import Any

import pytest
from published import backlog, data, publish
from waiting import eventually_async, loop_turns

import geminga.asyncio
from geminga import InitialPosition
from geminga.errors import Timeout
from geminga.wire.proto import pulsar_wire_pb2 as pb

EARLIEST = InitialPosition.Earliest


async def test_batch_receive_leaves_a_message_beyond_the_limit_of_bytes(
    pulsar_broker, pulsar_client, pulsar_topic
):
    """As in pulsar-client; only a message that is larger alone is received, alone."""
    options: dict[str, Any] = {
        "batch_receive_policy": geminga.ConsumerBatchReceivePolicy(-1, 5, -1),
        "unacked_messages_timeout_ms": 60_000,
    }
    consumer = pulsar_client.subscribe(pulsar_topic, "sync", **options)
    expected = [[b"abcd"], [b"ef", b"gh"], [b"i" * 9], [b"jklmn"]]
    producer = pulsar_client.create_producer(pulsar_topic)

    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        other = await client.subscribe(pulsar_topic, "asyncio", **options)
        for value in [value for batch in expected for value in batch]:
            producer.send(value)
        assert [data(await other.batch_receive()) for _ in expected] == expected
    assert [data(consumer.batch_receive()) for _ in expected] == expected


async def test_asyncio_receipts_share_commands(pulsar_broker, pulsar_client, pulsar_topic):
    publish(pulsar_client, pulsar_topic, 100, batched=False)

    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(
            pulsar_topic, "s", initial_position=EARLIEST, ack_receipt_enabled=True
        )
        messages = [await consumer.receive(30_000) for _ in range(100)]
        await asyncio.gather(*(consumer.acknowledge(message) for message in messages))
        assert backlog(pulsar_broker, pulsar_topic) == 0


async def test_a_cancelled_receive_loses_nothing(pulsar_broker, pulsar_client, pulsar_topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(pulsar_topic, "s")
        producer = await client.create_producer(pulsar_topic)
        for number in range(50):
            waiters = [asyncio.create_task(consumer.receive()) for _ in range(3)]
            await loop_turns()
            await producer.send(b"%d" % number)
            waiters[number % 3].cancel()
            done, pending = await asyncio.wait(waiters, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            got = [t.result().data() for t in done if not t.cancelled()]
            if not got:
                done, pending = await asyncio.wait(pending, timeout=60, return_when=asyncio.FIRST_COMPLETED)
                got = [t.result().data() for t in done]
            assert got == [b"%d" % number]
            for task in pending:
                task.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)


@pytest.mark.parametrize("turns", range(5))
async def test_a_woken_and_then_cancelled_receive_leaves_the_message_to_the_next(
    pulsar_broker, pulsar_client, pulsar_topic, turns
):
    """``turns`` of the loop after a message has come, the receiver that may have been woken is cancelled."""
    publish(pulsar_client, pulsar_topic, 1)
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(pulsar_topic, "s", initial_position=EARLIEST)
        message = await consumer.receive(30_000)
        first = asyncio.create_task(consumer.receive())
        second = asyncio.create_task(consumer.receive())
        await loop_turns()
        consumer.queue.put_back([message])
        await loop_turns(turns)
        first.cancel()
        await asyncio.wait([first])
        again = await (second if first.cancelled() else first)
        assert again.message_id() == message.message_id()
        second.cancel()


async def test_the_timeout_of_a_receive_does_not_restart_when_another_takes_its_message(
    pulsar_broker, pulsar_client, pulsar_topic
):
    publish(pulsar_client, pulsar_topic, 1)
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        consumer = await client.subscribe(pulsar_topic, "s", initial_position=EARLIEST)
        message = await consumer.receive(30_000)
        started = asyncio.get_running_loop().time()
        waiting = asyncio.create_task(consumer.receive(300))
        while not waiting.done():
            await loop_turns()
            consumer.queue.put_back([message])
            # Another receiver is quicker than the one that was woken for it.
            assert consumer.queue.take().message_id() == message.message_id()
            assert asyncio.get_running_loop().time() - started < 3
        with pytest.raises(Timeout):
            waiting.result()


async def test_a_cancelled_subscribe_to_several_topics_leaves_no_consumer(scripted):
    """Two topics answer and the third does not; the client sends all three a close of the consumer."""
    broker = scripted()
    answered: list[int] = []
    closed: list[int] = []

    def on_subscribe(peer: Any, frame: Any) -> None:
        body = frame.command.subscribe
        if not body.topic.endswith("-2"):
            broker.ok(peer, body.request_id)
        answered.append(body.consumer_id)

    def on_close(peer: Any, frame: Any) -> None:
        closed.append(frame.command.close_consumer.consumer_id)
        broker.ok(peer, frame.command.close_consumer.request_id)

    broker.answers[pb.BaseCommand.SUBSCRIBE] = on_subscribe
    broker.answers[pb.BaseCommand.CLOSE_CONSUMER] = on_close
    await broker.start()
    async with geminga.asyncio.Client(broker.url) as client:
        subscribing = asyncio.create_task(client.subscribe(["t-0", "t-1", "t-2"], "s"))
        await eventually_async(lambda: len(answered) >= 3)
        await asyncio.sleep(0.05)  # the answers are read
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        assert sorted(closed) == sorted(answered)
    await broker.stop()
