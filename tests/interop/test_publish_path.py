"""Our publish path against a real Apache Pulsar 4.0.4, read by our consumer."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest
from waiting import eventually, never, start_thread

import geminga
from geminga.client.admin import admin, topic_path
from geminga.testing.apache_pulsar import ApachePulsar

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

Topic = Callable[[str], str]
WAIT_MS = 60_000
"""For what has to come, however busy the machine is."""


@pytest.fixture(scope="module")
def ours(apache_pulsar):
    with geminga.Client(apache_pulsar.service_url) as client:
        yield client


def rest(broker: ApachePulsar, method: str, topic: str, action: str) -> Any:
    """One REST call on a topic."""
    return admin(broker.admin_url, method, f"{topic_path(geminga.TopicName.parse(topic))}/{action}")


def read_all(
    client: geminga.Client, topic: str, *, count: int = 0, last: bytes | None = None, quiet_ms: int = 500
) -> list[bytes]:
    """Everything in a topic from its start: ``count`` messages, and up to the one that says ``last``, are
    waited for; and then whether more come."""
    consumer = client.subscribe(
        topic, f"reader-{random.random()}", initial_position=geminga.InitialPosition.Earliest
    )
    contents: list[bytes] = []
    misses = {last} - {None}
    while True:
        try:
            message = consumer.receive(WAIT_MS if len(contents) < count or misses else quiet_ms)
        except geminga.Timeout:
            consumer.close()
            return contents
        contents.append(message.data())
        misses.discard(contents[-1])
        consumer.acknowledge(message)


def read_these(client: geminga.Client, topic: str, expected: Sequence[bytes]) -> None:
    """They are in the topic, in this order, and nothing else."""
    found = read_all(client, topic, count=len(expected))
    assert found == list(expected), f"{len(found)} messages, and there should be {len(expected)}"


class Outcomes:
    """Results of a producer's callbacks, in order."""

    def __init__(self) -> None:
        self.results: list[tuple[geminga.Result, geminga.MessageId]] = []

    def __call__(self, result: geminga.Result, message_id: geminga.MessageId) -> None:
        self.results.append((result, message_id))

    def codes(self) -> set[geminga.Result]:
        return {result for result, _ in self.results}

    def wait(self, count: int, seconds: float = 60) -> None:
        eventually(lambda: len(self.results) >= count)


# --- what is written is read ---
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
    assert len(read_all(ours, name, count=4 + len(sent))) == 4 + len(sent)


def test_a_message_that_is_too_big_fails_alone(ours, topic):
    name = topic("too-big")
    outcomes = Outcomes()
    with ours.create_producer(
        name, batching_enabled=True, batching_max_allowed_size_in_bytes=1 << 30
    ) as producer:
        for size in (10, 6 << 20, 3 << 20, 3 << 20, 20):  # the broker takes 5 MiB
            producer.send_async(bytes(size), outcomes)
        producer.flush()
    codes = [result for result, _ in outcomes.results]
    assert sorted(codes, key=lambda code: code.value) == [geminga.Result.Ok] * 4 + [
        geminga.Result.MessageTooBig
    ]
    assert [len(content) for content in read_all(ours, name, count=4)] == [10, 3 << 20, 3 << 20, 20]


# --- sequence ids ---
@pytest.mark.parametrize("batching", [True, False])
def test_explicit_sequence_ids_are_deduplicated(ours, topic, batching):
    name = topic("dedup")
    with ours.create_producer(name, producer_name="p", batching_enabled=batching) as producer:
        first = [producer.send(b"%d" % i, sequence_id=i) for i in (10, 20, 30)]
        again = [producer.send(b"%d" % i, sequence_id=i) for i in (10, 30)]
        assert all(m.ledger_id() >= 0 for m in first)
        assert [(m.ledger_id(), m.entry_id()) for m in again] == [(-1, -1)] * 2
        assert producer.statistics().duplicates == 2
        assert producer.last_sequence_id() == 30
    with ours.create_producer(name, producer_name="p", batching_enabled=batching) as producer:
        assert producer.last_sequence_id() == 30
        assert producer.send(b"30", sequence_id=30).ledger_id() == -1
        assert producer.send(b"31").ledger_id() >= 0  # automatic ids continue after the broker's last one
        assert producer.last_sequence_id() == 31
    read_these(ours, name, [b"10", b"20", b"30", b"31"])


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
        rest(apache_pulsar, "PUT", name, "unload")
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
        by_count = client.create_producer(name, max_pending_messages=2_000)
        by_bytes = client.create_producer(limited, max_pending_messages=0)
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


def test_sends_to_a_suspended_broker_time_out(apache_pulsar, ours, topic):
    name = topic("time-out")
    with (
        ours.create_producer(name) as patient,
        ours.create_producer(name, send_timeout_millis=2_000) as producer,
    ):
        patient.send(b"before")  # the broker makes a ledger, which may take longer than the time-out
        outcomes = Outcomes()
        apache_pulsar.suspend()
        try:
            started = time.monotonic()
            for i in range(50):
                producer.send_async(b"%d" % i, outcomes)
            outcomes.wait(50)
            assert 1.9 < time.monotonic() - started < 20, "neither at once nor after the usual half minute"
            assert outcomes.codes() == {geminga.Result.Timeout}
            with pytest.raises(geminga.Timeout):
                producer.send(b"waits in vain")
        finally:
            apache_pulsar.resume()
        # A paused JVM may need longer than the time-out for its first answers: others wait for those.
        patient.send(b"awake")
        producer.send(b"after")
        # A time-out leaves open whether the broker has stored the message.
        contents = read_all(ours, name, last=b"after")
        assert contents[0] == b"before"
        assert contents[-1] == b"after"
        assert len(contents) == len(set(contents))


def test_a_waiting_sender_resumes_after_the_pause(apache_pulsar, ours, topic):
    name = topic("blocking")
    sent = [b"%d" % i for i in range(500)]
    with ours.create_producer(name, max_pending_messages=50, block_if_queue_full=True) as producer:
        producer.send(b"before")
        outcomes = Outcomes()
        apache_pulsar.suspend()
        try:
            thread = start_thread(lambda: [producer.send_async(c, outcomes) for c in sent])
            never(lambda: not thread.is_alive() or producer.statistics().pending_messages > 50, 0.5)
        finally:
            apache_pulsar.resume()
        thread.join(60)
        producer.flush()
        assert outcomes.codes() == {geminga.Result.Ok}
    read_these(ours, name, [b"before", *sent])
