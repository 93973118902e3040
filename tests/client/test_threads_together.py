"""Real threads on one producer and one consumer, as fast as they can: what counts is what each single step of
theirs promises, so that an interpreter without its lock has to pass this, too."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from waiting import start_thread

import geminga
from geminga import AlreadyClosed, ConsumerType, InitialPosition, Result

SENDERS, RECEIVERS, EACH = 4, 4, 1500


def together(works: list[Callable[[], None]]) -> list[threading.Thread]:
    """Running; what one raises is a failure of the test (pytest's unhandled thread exceptions)."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        start.wait(60)
        work()

    threads = [start_thread(run, work) for work in works]
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "hangs"


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("batched", [True, False])
def test_every_message_is_receipted_and_received_once(pulsar_broker, batched):
    receipts: list[Any] = []
    came: list[list[bytes]] = [[] for _ in range(RECEIVERS)]

    def receipted(result: Any, _message_id: Any) -> None:
        receipts.append(result)

    with geminga.Client(pulsar_broker.service_url) as client:
        consumer = client.subscribe(
            "together",
            "all",
            consumer_type=ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            receiver_queue_size=500,
        )
        producer = client.create_producer(
            "together", batching_enabled=batched, block_if_queue_full=True, max_pending_messages=200
        )

        def send(sender: int) -> None:
            for number in range(EACH):
                content = b"%d.%d" % (sender, number)
                way = number % 50
                if way == 7:
                    producer.send(content)
                    receipts.append(Result.Ok)
                elif way == 13:
                    producer.send_many(
                        [content], lambda sent: receipts.append(Result.Ok if sent.ok else sent)
                    )
                elif way == 19:
                    producer.send_async(content, receipted, partition_key="key")
                else:
                    producer.send_async(content, receipted)
            producer.flush()

        def receive(mine: list[bytes]) -> None:
            while True:
                try:
                    message = consumer.receive()
                except AlreadyClosed:
                    return
                mine.append(message.data())
                consumer.acknowledge(message)

        receive_waiters = together([lambda mine=mine: receive(mine) for mine in came])
        join(together([lambda number=number: send(number) for number in range(SENDERS)]))
        tick = threading.Event()
        for _ in range(1200):
            if sum(map(len, came)) >= SENDERS * EACH:
                break
            tick.wait(0.05)
        assert consumer.drain() == 0
        join(receive_waiters)
        producer.close()
    assert Counter(receipts) == {Result.Ok: SENDERS * EACH}
    everything = {b"%d.%d" % (sender, number) for sender in range(SENDERS) for number in range(EACH)}
    assert Counter(content for mine in came for content in mine) == Counter(everything)
