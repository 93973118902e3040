"""One partition's handle: creation that is late, refused or has to wait, and what ends or moves it."""

import asyncio
import threading

import pytest
from waiting import eventually, eventually_async, loop_turns

import geminga
import geminga.asyncio
from geminga import errors
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand


@pytest.fixture
def client(broker):
    made = geminga.Client(broker.url, operation_timeout_seconds=5)
    yield made
    made.close()


def record(broker):
    """Return the received PRODUCER commands, answered as usual."""
    commands = []

    def on_producer(peer, frame):
        commands.append(frame.command.producer)
        broker.on_producer(peer, frame)

    broker.answers[Type.PRODUCER] = on_producer
    return commands


def send_error(code, text="refused"):
    def answer(peer, frame):
        error = pb.BaseCommand(type=Type.SEND_ERROR)
        error.send_error.producer_id = frame.producer_id
        error.send_error.sequence_id = frame.sequence_id
        error.send_error.error = code
        error.send_error.message = text
        peer.send(error)

    return answer


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
    broker.answers[Type.SEND] = send_error(2)
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


def test_a_producer_that_the_broker_closes_comes_back(broker, client):
    commands = record(broker)
    producer = client.create_producer("t", producer_name="mine")

    async def close():
        command = pb.BaseCommand(type=Type.CLOSE_PRODUCER)
        command.close_producer.producer_id = 0
        command.close_producer.request_id = (1 << 64) - 1
        broker.peers[-1].send(command)

    broker.run(close(), 60)
    eventually(lambda: len(commands) == 2)
    producer.send(b"x")
    assert [(c.producer_name, c.user_provided_producer_name, c.epoch) for c in commands] == [
        ("mine", True, 0),
        ("mine", True, 1),
    ]


def test_fenced_on_reconnect_fails_what_is_pending_and_ends(broker, client):
    broker.answers[Type.SEND] = lambda peer, frame: None
    producer = client.create_producer("t", access_mode=geminga.ProducerAccessMode.Exclusive)
    got = []
    producer.send_async(b"x", lambda r, m: got.append(r))
    eventually(lambda: broker.count(Type.SEND) == 1)
    broker.answers[Type.PRODUCER] = lambda peer, frame: broker.refuse(
        peer, frame.command.producer.request_id, 25, "another owner"
    )

    async def drop():
        broker.peers[-1].drop()

    broker.run(drop(), 60)
    eventually(lambda: got == [geminga.Result.ProducerFenced])
    with pytest.raises(errors.ProducerFenced, match="another owner"):
        producer.send(b"y")
    assert producer.statistics().state == "fenced"
    producer.close()


def test_waiting_for_exclusive_access_outlasts_the_operation_timeout(broker):
    held = []

    def wait(peer, frame):
        held.append((peer, frame))
        answer = pb.BaseCommand(type=Type.PRODUCER_SUCCESS)
        answer.producer_success.request_id = frame.command.producer.request_id
        answer.producer_success.producer_name = "waiting"
        answer.producer_success.producer_ready = False
        peer.send(answer)

    broker.answers[Type.PRODUCER] = wait
    with geminga.Client(broker.url, operation_timeout_seconds=0.2) as client:
        made = []
        thread = threading.Thread(
            target=lambda: made.append(
                client.create_producer("t", access_mode=geminga.ProducerAccessMode.WaitForExclusive)
            ),
            daemon=True,
        )
        thread.start()
        eventually(lambda: held)
        thread.join(0.5)
        assert thread.is_alive()
        assert len(held) == 1

        async def ready():
            broker.on_producer(*held[0])

        broker.run(ready(), 60)
        thread.join(60)
        made[0].send(b"x")
