"""A broker process with one of eight partitions is stopped: publishing to the others continues.

The brokers are separate processes and the stopped one keeps its connections, as a machine does that
hangs; a scripted broker answers the look-ups. The figures: ``python -m benchmarks --only stuck-partition``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager

import pytest
from waiting import eventually

import geminga
from geminga.testing.apache_pulsar import free_ports
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/eight"
STUCK = "-partition-3"
PERMITS = 500
# Full batches of 100 move round robin on: after five rounds partition 3 would have used up its permits.
MORE_THAN_ALL_PERMITS_HOLD = 10 * 8 * PERMITS
SECONDS_MAX = 60.0


@contextmanager
def standalone():
    """A broker process that keeps everything in memory, and its service URL."""
    port, web_port = free_ports(2)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "geminga.cli.main", "standalone", "--memory",
            "--port", str(port), "--web-port", str(web_port),
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is None and listens(port), "the broker listens")
        yield process, f"pulsar://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(60)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(holds, what: str) -> None:
    """Generous: how long it takes decides nothing, that it never comes does."""
    eventually(holds, SECONDS_MAX, what)


class Sender:
    """Publishes numbered messages from its own thread, which blocks where the producer blocks."""

    def __init__(self, producer) -> None:
        self.offered = 0
        self.receipts: Counter[int] = Counter()
        self.failures: list[geminga.Result] = []
        self._producer = producer
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._producer.send_async(b"%d" % self.offered, self._receipted)
            self.offered += 1

    def _receipted(self, result, message_id) -> None:
        if result == geminga.Result.Ok:
            self.receipts[message_id.partition()] += 1
        else:
            self.failures.append(result)

    @property
    def elsewhere(self) -> int:
        return sum(self.receipts[partition] for partition in range(8) if partition != 3)

    def finish(self) -> None:
        self._ending.set()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive(), "a send blocks for good"
        self._producer.flush()


def read_all(client, count: int) -> Counter[int]:
    """Every number that the eight partitions hold, until ``count`` came and nothing follows."""
    numbers: Counter[int] = Counter()
    consumer = client.subscribe(TOPIC, "back", initial_position=geminga.InitialPosition.Earliest)
    while True:
        try:
            table = consumer.receive_table(timeout_millis=30_000 if numbers.total() < count else 200)
        except geminga.Timeout:
            return numbers
        numbers.update(int(value) for value in table["value"].to_pylist())
        consumer.acknowledge_table(table)


@pytest.fixture
def stoppable(broker):
    """The front's URL, and the process that serves partition 3 alone."""
    with standalone() as (_, serving), standalone() as (process, stuck):
        broker.partitions[TOPIC] = 8

        def answer(peer, frame) -> None:
            topic = frame.command.lookupTopic.topic
            broker.answer_lookup(peer, frame, url=stuck if topic.endswith(STUCK) else serving)

        broker.answers[pb.BaseCommand.LOOKUP] = answer
        yield broker.url, process


def test_publishing_continues_while_one_broker_is_stopped(stoppable):
    url, process = stoppable
    with geminga.Client(url) as client:
        producer = client.create_producer(
            TOPIC, batching_enabled=True, batching_max_messages=100, block_if_queue_full=True,
            max_pending_messages=PERMITS,
        )  # fmt: skip
        sender = Sender(producer)
        wait_until(lambda: len(sender.receipts) == 8, "a receipt of every partition")
        os.kill(process.pid, signal.SIGSTOP)
        try:
            before = sender.elsewhere
            wait_until(
                lambda: sender.elsewhere - before > MORE_THAN_ALL_PERMITS_HOLD, "receipts of the others"
            )
            held = sender.offered - sum(sender.receipts.values())
        finally:
            os.kill(process.pid, signal.SIGCONT)
        at_stop = sender.receipts[3]
        wait_until(lambda: sender.receipts[3] > at_stop + PERMITS, "partition 3 takes part again")
        sender.finish()
        wait_until(lambda: sum(sender.receipts.values()) == sender.offered, "a receipt of every message")
        assert not sender.failures
        # Permits are back a moment before the callbacks run: once more may be offered in between.
        assert held <= 2 * 8 * PERMITS
        assert read_all(client, sender.offered) == Counter(range(sender.offered))
