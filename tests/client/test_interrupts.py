"""Ctrl-C: it ends a wait at once, and afterwards the client can be used and closed."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from doubles import raising

import geminga
from geminga.errors import Interrupted
from geminga.wire.proto import pulsar_wire_pb2 as pb


def fill(producer: Any) -> None:
    for _ in range(11):
        producer.send_async(b"x", None)


def send_and_flush(producer: Any) -> None:
    producer.send_async(b"x", None)
    producer.flush()


SILENT: dict[str, tuple[int, Callable[[Any, Any], object]]] = {
    "create_producer": (pb.BaseCommand.PRODUCER, lambda client, producer: client.create_producer("u")),
    "subscribe": (pb.BaseCommand.SUBSCRIBE, lambda client, producer: client.subscribe("u", "s")),
    "lookup": (pb.BaseCommand.LOOKUP, lambda client, producer: client.create_producer("u")),
    "send": (pb.BaseCommand.SEND, lambda client, producer: producer.send(b"x")),
    "send_many": (pb.BaseCommand.SEND, lambda client, producer: producer.send_many([b"x"] * 10)),
    "flush": (pb.BaseCommand.SEND, lambda client, producer: send_and_flush(producer)),
    "a full queue": (pb.BaseCommand.SEND, lambda client, producer: fill(producer)),
    "close": (pb.BaseCommand.CLOSE_PRODUCER, lambda client, producer: producer.close()),
    "close the client": (pb.BaseCommand.CLOSE_PRODUCER, lambda client, producer: client.close()),
}


def interrupt_main_thread() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("name", SILENT)
def test_ctrl_c_ends_a_call_that_waits_for_a_broker(broker, name):
    """The broker interrupts the program instead of answering, and answers afterwards."""
    kind, call = SILENT[name]
    answer = broker.answers[kind]

    def interrupt(peer: Any, frame: Any) -> None:
        if not held:
            interrupt_main_thread()
        held.append((peer, frame))

    async def answer_held() -> None:
        broker.answers[kind] = answer
        for peer, frame in held:
            answer(peer, frame)

    held: list[Any] = []
    with geminga.Client(broker.url, operation_timeout_seconds=30) as client:
        producer = client.create_producer("t", max_pending_messages=10, block_if_queue_full=True)
        broker.answers[kind] = interrupt
        with pytest.raises(KeyboardInterrupt):
            call(client, producer)
        if name != "close the client":
            broker.run(answer_held(), 10)
            if name != "close":
                producer.send(b"after")
            client.create_producer("v").send(b"after")


def test_ctrl_c_ends_receive_and_read_next(client, topic):
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    reader = client.create_reader(topic, geminga.MessageId.earliest)
    for wait in (
        consumer.receive,
        lambda: consumer.receive(60_000),
        consumer.batch_receive,
        reader.read_next,
    ):
        start = time.monotonic()
        threading.Timer(0.05, interrupt_main_thread).start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert time.monotonic() - start < 20
    threading.Timer(0.05, interrupt_main_thread).start()
    with pytest.raises(Interrupted):
        consumer.receive()
    producer.send(b"after")
    assert consumer.receive(30_000).data() == reader.read_next(30_000).data() == b"after"


@pytest.fixture
def alarm():
    """Raise `KeyboardInterrupt` in the main thread once, after the given seconds."""
    before = signal.signal(signal.SIGALRM, raising(KeyboardInterrupt))
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_loop_that_ctrl_c_ends_at_any_moment_can_be_started_again(client, topic, alarm):
    """As in a notebook. Every message that was sent is received and acknowledged."""
    consumer = client.subscribe(topic, "s", ack_grouping_time_ms=1)
    producer = client.create_producer(topic, batching_enabled=True, max_pending_messages=0)
    sent, received = 0, set()
    for number in range(60):
        with suppress(KeyboardInterrupt):
            try:
                alarm(0.001 + number * 0.0001)
                while True:
                    producer.send_async(b"%d" % sent, None)
                    sent += 1
                    message = consumer.receive()
                    received.add(message.data())
                    consumer.acknowledge(message)
            finally:
                alarm(0)
    producer.flush()
    consumer.redeliver_unacknowledged_messages()  # one that `receive` returned just before Ctrl-C
    while len(received) < sent:
        received.add(consumer.receive(30_000).data())
    producer.send(b"last")
