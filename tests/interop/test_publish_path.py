"""Our publish path against a real Apache Pulsar 4.0.4, read by our consumer."""

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil
import pytest
from waiting import eventually, start_thread, until_accepted

import geminga
from geminga.client.admin import admin, topic_path
from geminga.testing.apache_pulsar import ApachePulsar

pytestmark = pytest.mark.interop

WAIT_MS = 60_000
"""For what has to come, however busy the machine is."""


def rest(broker: ApachePulsar, method: str, topic: str, action: str) -> Any:
    """One REST call on a topic."""
    return admin(broker.admin_url, method, f"{topic_path(geminga.TopicName.parse(topic))}/{action}")


def read_all(client: geminga.Client, topic: str, count: int) -> list[bytes]:
    """Everything in a topic from its start: ``count`` messages are waited for, and then whether more come."""
    consumer = client.subscribe(
        topic, f"reader-{random.random()}", initial_position=geminga.InitialPosition.Earliest
    )
    contents: list[bytes] = []
    while True:
        try:
            message = consumer.receive(WAIT_MS if len(contents) < count else 500)
        except geminga.Timeout:
            consumer.close()
            return contents
        contents.append(message.data())
        consumer.acknowledge(message)


def read_these(client: geminga.Client, topic: str, expected: Sequence[bytes]) -> None:
    """They are in the topic, in this order, and nothing else."""
    found = read_all(client, topic, len(expected))
    assert found == list(expected), f"{len(found)} messages, and there should be {len(expected)}"


class Outcomes:
    """Results of a producer's callbacks, in order."""

    def __init__(self) -> None:
        self.results: list[tuple[geminga.Result, geminga.MessageId]] = []

    def __call__(self, result: geminga.Result, message_id: geminga.MessageId) -> None:
        self.results.append((result, message_id))

    def codes(self) -> set[geminga.Result]:
        return {result for result, _ in self.results}


# --- everyday publishing ---
def test_added_partitions_are_used(apache_pulsar, ours, topic):
    name = topic("growing")
    path = topic_path(geminga.TopicName.parse(name))
    admin(apache_pulsar.admin_url, "PUT", f"{path}/partitions", 2)
    sent = []
    with ours.create_producer(name, partitions_refresh_seconds=0.1, batching_enabled=False) as producer:
        used = {int(producer.send(b"before").partition) for _ in range(4)}
        assert used == {0, 1}
        admin(apache_pulsar.admin_url, "POST", f"{path}/partitions", 4)
        deadline = time.monotonic() + 60
        while used != {0, 1, 2, 3} and time.monotonic() < deadline:
            sent.append(producer.send(b"after"))
            used.add(int(sent[-1].partition))
        assert used == {0, 1, 2, 3}
    assert len(read_all(ours, name, 4 + len(sent))) == 4 + len(sent)


# --- when things go wrong ---
def test_a_terminated_topic_ends_the_producer(apache_pulsar, ours, topic):
    name = topic("terminated")
    producer = ours.create_producer(name)
    last = producer.send(b"last")
    place = rest(apache_pulsar, "POST", name, "terminate")
    assert (place["ledgerId"], place["entryId"]) == (last.ledger_id(), last.entry_id())
    with pytest.raises(geminga.TopicTerminated):
        producer.send(b"one too many")
    with pytest.raises(geminga.TopicTerminated):
        producer.send_async(b"and another", None)
    producer.close()
    with pytest.raises(geminga.TopicTerminated):
        ours.create_producer(name)
    read_these(ours, name, [b"last"])


def test_unloading_loses_and_repeats_nothing(apache_pulsar, ours, topic):
    name = topic("unload")
    ours.subscribe(name, "keeps").close()  # else unloading trims messages without a subscription
    outcomes = Outcomes()
    producer = ours.create_producer(name, block_if_queue_full=True)
    stop = threading.Event()
    sent: list[bytes] = []

    def publish() -> None:
        while not stop.is_set():
            sent.append(b"%d" % len(sent))
            producer.send_async(sent[-1], outcomes)
            if len(sent) % 20 == 0:
                time.sleep(0.002)

    thread = start_thread(publish)
    for unloads in range(1, 4):
        time.sleep(0.3)
        until_accepted(lambda: rest(apache_pulsar, "PUT", name, "unload"))
        eventually(lambda unloads=unloads: producer.statistics().reconnects >= unloads)
    time.sleep(0.3)
    stop.set()
    thread.join(60)
    producer.flush()
    statistics = producer.statistics()
    producer.close()
    assert statistics.reconnects >= 3
    assert outcomes.codes() == {geminga.Result.Ok}
    assert len(outcomes.results) == len(sent)
    read_these(ours, name, sent)


@pytest.mark.parametrize("keepalive_seconds", [30, 1])
def test_a_suspended_broker_costs_limited_memory_and_no_message(apache_pulsar, topic, keepalive_seconds):
    """With the long keep-alive the connection outlives the pause; with the short one it is given up."""
    name, limited = topic("suspended"), topic("suspended-memory")
    with geminga.Client(
        apache_pulsar.service_url,
        memory_limit_bytes=4 << 20,
        keep_alive_interval_seconds=keepalive_seconds,
        max_backoff_interval_ms=1_000,
    ) as client:
        by_count = client.create_producer(name, max_pending_messages=2_000, send_timeout_millis=0)
        by_bytes = client.create_producer(limited, max_pending_messages=0, send_timeout_millis=0)
        outcomes, bytes_outcomes = Outcomes(), Outcomes()
        content = bytes(1_000)
        by_count.send_async(b"before", outcomes)
        by_count.flush()
        apache_pulsar.suspend()
        try:
            taken: list[bytes] = []

            def fill() -> None:
                while True:
                    by_count.send_async(b"%d:" % len(taken) + content, None)
                    taken.append(b"%d:" % len(taken) + content)

            with pytest.raises(geminga.ProducerQueueIsFull, match="max_pending_messages=2000"):
                fill()
            assert len(taken) == 2_000
            kept = 0
            while not bytes_outcomes.results:  # the first outcome is the refusal
                by_bytes.send_async(b"%d:" % kept + content, bytes_outcomes)
                kept += 1
            kept -= 1
            assert kept * 1_000 < 4 << 20
            resident = psutil.Process().memory_info().rss
            for _ in range(100_000):
                by_count.send_async(content, outcomes)
            time.sleep(2.5 if keepalive_seconds == 1 else 0.2)  # beyond the short keep-alive
            assert psutil.Process().memory_info().rss - resident < 32 << 20
            assert outcomes.codes() == {geminga.Result.Ok, geminga.Result.ProducerQueueIsFull}
        finally:
            apache_pulsar.resume()
        by_count.flush()
        by_bytes.flush()
        codes = [result for result, _ in bytes_outcomes.results]
        assert codes == [geminga.Result.MemoryBufferIsFull] + [geminga.Result.Ok] * kept
        by_count.send(b"after")
        read_these(client, name, [b"before", *taken, b"after"])
        read_these(client, limited, [b"%d:" % i + content for i in range(kept)])
