"""Consumers join, leave, refuse and acknowledge at random: no message is lost, nor delivered after its ack.

The invariants are checked from outside: every published message is acknowledged in the end (nothing is
skipped), and no message is delivered after its acknowledgement was confirmed by a later one on the
same consumer's connection having been persisted (each consumer is closed, which flushes its acks).
"""

import random
import time
from typing import Any

import pulsar
import pytest
from waiting import start_thread

MESSAGES = 800
KEYS = 17


class Churn:
    """A few consumers of one subscription, replaced at random while messages are published."""

    def __init__(self, client: Any, topic: str, kind: Any, seed: int, *, refusals: bool) -> None:
        self.client, self.topic, self.kind, self.refusals = client, topic, kind, refusals
        self.chance = random.Random(seed)
        self.acked: dict[int, int] = {}
        self.after_close: set[int] = set()
        self.came_back: list[int] = []
        self.consumers: list[tuple[Any, set[int]]] = []
        self.names = 0

    def open(self) -> None:
        self.names += 1
        consumer = self.client.subscribe(
            self.topic, "s", consumer_type=self.kind, consumer_name=f"c{self.names}",
            receiver_queue_size=self.chance.choice((1, 7, 100)), negative_ack_redelivery_delay_ms=50,
            initial_position=pulsar.InitialPosition.Earliest, batch_index_ack_enabled=True,
        )  # fmt: skip
        self.consumers.append((consumer, set()))

    def close_one(self) -> None:
        consumer, acked = self.consumers.pop(self.chance.randrange(len(self.consumers)))
        consumer.close()  # sends the acknowledgements that are still grouped
        self.after_close |= acked

    def step(self) -> None:
        consumer, acked = self.chance.choice(self.consumers)
        try:
            message = consumer.receive(timeout_millis=2)
        except pulsar.Timeout:
            return
        number = int(message.data())
        if number in self.after_close:
            self.came_back.append(number)
        if self.refusals and self.chance.random() < 0.1:
            consumer.negative_acknowledge(message)
            return
        consumer.acknowledge(message)
        acked.add(number)
        self.acked[number] = self.acked.get(number, 0) + 1


def publish(client: Any, topic: str, batched: bool) -> None:
    producer = client.create_producer(
        topic, batching_enabled=batched, batching_max_messages=20, block_if_queue_full=True
    )
    for number in range(MESSAGES):
        producer.send_async(
            str(number).encode(), lambda result, _id: None, partition_key=f"key-{number % KEYS}"
        )
        if number % 100 == 0:
            time.sleep(0.01)
    producer.flush()


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("kind", ["Shared", "KeyShared", "Failover"])
def test_no_message_is_lost_while_consumers_come_and_go(broker, connect, topic, kind, batched):
    if kind == "KeyShared" and batched:
        pytest.skip("Key_Shared needs batches of one key, which are single entries to the broker")
    publisher, client = connect(broker.service_url), connect(broker.service_url)
    # A refused message brings its whole batch again, also what still waits in the first consumer's queue.
    refusals = kind != "Failover" and not batched
    churn = Churn(
        client, topic, getattr(pulsar.ConsumerType, kind), len(kind) * 2 + batched, refusals=refusals
    )
    for _ in range(3):
        churn.open()
    publishing = start_thread(publish, publisher, topic, batched)
    deadline = time.monotonic() + 60
    while len(churn.acked) < MESSAGES and time.monotonic() < deadline:
        churn.step()
        if churn.chance.random() < 0.01:
            if len(churn.consumers) > 1 and churn.chance.random() < 0.5:
                churn.close_one()
            elif len(churn.consumers) < 5:
                churn.open()
    publishing.join()
    missing = sorted(set(range(MESSAGES)) - set(churn.acked))
    assert not missing, f"{len(missing)} messages were never delivered: {missing[:10]}"
    if kind != "Failover":
        # With Failover the next active consumer gets the last one's unacknowledged messages; both continue.
        assert not churn.came_back, f"acknowledged messages came back: {churn.came_back[:10]}"
    while churn.consumers:
        churn.close_one()
    last = client.subscribe(topic, "s", consumer_type=churn.kind)
    with pytest.raises(pulsar.Timeout):
        raise AssertionError(f"came back at the end: {last.receive(timeout_millis=500).data()!r}")
