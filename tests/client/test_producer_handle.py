"""One partition's handle: creation that is late, refused or has to wait, and what ends or moves it."""

import asyncio

import pytest
from waiting import eventually, eventually_async, loop_turns

import geminga
import geminga.asyncio
from geminga import errors
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand


@pytest.fixture
def client(broker):
    with geminga.Client(broker.url, operation_timeout_seconds=5) as made:
        yield made


def record(broker):
    """Return the received PRODUCER commands, answered as usual."""
    commands = []

    def on_producer(peer, frame):
        commands.append(frame.command.producer)
        broker.on_producer(peer, frame)

    broker.answers[Type.PRODUCER] = on_producer
    return commands


@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("partitions", [0, 3])
async def test_a_creation_that_is_cancelled_leaves_nothing_at_the_broker(scripted, partitions, cancels):
    """Cancel while some partitions have their answer and others wait for it; ``cancels`` times."""
    broker = scripted()
    broker.partitions = {"persistent://public/default/t": partitions}
    asked = asyncio.Event()

    def on_producer(peer, frame):
        if frame.command.producer.producer_id % 2 == 1:
            broker.on_producer(peer, frame)
        if broker.count(Type.PRODUCER) == max(1, partitions):
            asked.set()

    broker.answers[Type.PRODUCER] = on_producer
    await broker.start()
    client = geminga.asyncio.Client(broker.url)
    creating = asyncio.create_task(client.create_producer("t"))
    await asked.wait()
    await asyncio.sleep(0.05)
    for _ in range(cancels):
        creating.cancel()
        await loop_turns()
    with pytest.raises(asyncio.CancelledError):
        await creating
    async with asyncio.timeout(60):
        await eventually_async(lambda: broker.count(Type.CLOSE_PRODUCER) >= max(1, partitions))
    await client.close()
    await broker.stop()


def test_a_storage_error_creates_the_producer_again_and_resends(broker, client):
    commands = record(broker)
    producer = client.create_producer("t")
    broker.answers[Type.SEND] = lambda peer, send: broker.refuse_send(peer, send, 2)
    got = []
    producer.send_async(b"x", lambda r, m: got.append(r))
    eventually(lambda: broker.count(Type.SEND) >= 1)
    broker.answers[Type.SEND] = broker.on_send
    producer.flush()
    assert got == [geminga.Result.Ok]
    assert len(commands) >= 2
    assert [c.epoch for c in commands] == sorted(c.epoch for c in commands)
    assert commands[-1].epoch >= 1
    assert {c.producer_id for c in commands} == {0}


def test_fenced_on_reconnect_fails_what_is_pending_and_ends(broker, client):
    broker.answers[Type.SEND] = lambda peer, frame: None
    producer = client.create_producer("t", access_mode=geminga.ProducerAccessMode.Exclusive)
    got = []
    producer.send_async(b"x", lambda r, m: got.append(r))
    eventually(lambda: broker.count(Type.SEND) == 1)
    broker.answers[Type.PRODUCER] = lambda peer, frame: broker.refuse(
        peer, frame.command.producer.request_id, 25, "another owner"
    )
    broker.call(broker.peers[-1].drop)
    eventually(lambda: got == [geminga.Result.ProducerFenced])
    with pytest.raises(errors.ProducerFenced, match="another owner"):
        producer.send(b"y")
    assert producer.statistics().state == "fenced"
    producer.close()
