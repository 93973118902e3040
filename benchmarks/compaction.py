"""Compaction of a topic with many keys, publishing going on: ``python -m benchmarks.compaction``.

``--messages`` of 100 B under ``--keys`` keys, in random order, in batches of 1,000. Told are the seconds and
the broker's CPU until the compaction is done, its memory above what it had before, the rate and the slowest
receipt of a producer meanwhile, and whether the compacted topic has each key once, with its newest value.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import geminga
from benchmarks import brokers
from benchmarks.brokers import RunningBroker
from benchmarks.harness import process_cpu_seconds, resident_megabytes

TABLE = 100_000
BESIDE_PER_SECOND = 10_000
"""Messages a second that are published meanwhile, under keys of their own."""
BESIDE_KEYS = 1_000


def fill(broker: RunningBroker, topic: str, messages: int, keys: int) -> np.ndarray:
    """Publish, and give the number of the newest message of each key."""
    chance = np.random.default_rng(1)
    newest = np.full(keys, -1, np.int64)
    with geminga.Client(broker.service_url) as client:
        producer = client.create_producer(
            topic, batching_enabled=True, batching_max_messages=1_000,
            batching_max_allowed_size_in_bytes=1 << 20,
        )  # fmt: skip
        for first in range(0, messages, TABLE):
            numbers = np.arange(first, first + TABLE)
            chosen = chance.integers(0, keys, TABLE)
            newest[chosen] = numbers  # of equal ones the last counts
            values = pa.array([b"%0100d" % number for number in numbers.tolist()], pa.binary())
            names = pa.array([f"key-{key:08d}" for key in chosen.tolist()])
            producer.send_table(pa.table({"key": names, "value": values}))
    return newest


class Beside:
    """A producer that publishes during the compaction, and the broker's memory meanwhile."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self._broker, self._topic = broker, topic
        self._stop = threading.Event()
        self.receipts = 0
        self.slowest = 0.0
        self.seconds = 0.0
        self.megabytes_max = 0.0
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._look)]

    def __enter__(self) -> Beside:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _publish(self) -> None:
        with geminga.Client(self._broker.service_url) as client:
            producer = client.create_producer(self._topic, batching_enabled=True, block_if_queue_full=True)
            started = time.perf_counter()
            sent = 0
            while not self._stop.is_set():
                due = int((time.perf_counter() - started) * BESIDE_PER_SECOND)
                for number in range(sent, due):
                    begun = time.perf_counter()
                    producer.send_async(
                        b"beside", lambda result, _id, begun=begun: self._receipt(result, begun),
                        partition_key=f"beside-{number % BESIDE_KEYS}",
                    )  # fmt: skip
                sent = due
                time.sleep(0.005)
            producer.flush()
            self.seconds = time.perf_counter() - started

    def _receipt(self, result: geminga.Result, begun: float) -> None:
        if result == geminga.Result.Ok:
            self.receipts += 1
            self.slowest = max(self.slowest, time.perf_counter() - begun)

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self.megabytes_max = max(self.megabytes_max, resident_megabytes(self._broker.pid))


def check(broker: RunningBroker, topic: str, newest: np.ndarray) -> int:
    """Return the number of keys of the compacted topic with a wrong value."""
    found = np.full(len(newest), -1, np.int64)
    doubled = 0
    with geminga.Client(broker.service_url) as client:
        reader = client.create_reader(topic, geminga.MessageId.earliest, is_read_compacted=True)
        seen = 0
        wanted = int((newest >= 0).sum())
        while seen < wanted:
            message = reader.read_next(30_000)
            key = message.partition_key()
            if not key.startswith("key-"):
                continue
            number = int(key[4:])
            doubled += found[number] >= 0
            found[number] = int(message.data())
            seen += 1
    return int((found != newest).sum()) + doubled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    topic = "persistent://public/default/compacted"
    with brokers.work_folder() as work, brokers.geminga(given.folder or work) as broker:
        idle = resident_megabytes(broker.pid)
        newest = fill(broker, topic, given.messages, given.keys)
        filled = resident_megabytes(broker.pid)
        with geminga.Admin(broker.admin_url) as admin, Beside(broker, topic) as beside:
            time.sleep(2)
            cpu, started = process_cpu_seconds(broker.pid), time.perf_counter()
            admin.topics.compact(topic)
            while (status := admin.topics.compaction_status(topic)).status == "RUNNING":
                time.sleep(0.05)
            seconds, cpu = time.perf_counter() - started, process_cpu_seconds(broker.pid) - cpu
        if status.status != "SUCCESS":
            sys.exit(f"the compaction ended as {status}")
        wrong = check(broker, topic, newest)
    print(f"compaction of {given.messages:,} messages with {given.keys:,} keys: {seconds:.1f} s,")
    print(f"  {cpu:.1f} s of the broker's CPU, publishing beside it included")
    most = beside.megabytes_max
    print(f"  memory: {idle:.0f} MB idle, {filled:.0f} when filled, at most {most:.0f} meanwhile")
    print(
        f"  beside it: {beside.receipts / beside.seconds:,.0f} of {BESIDE_PER_SECOND:,} messages a second, "
        f"the slowest receipt {1000 * beside.slowest:.0f} ms"
    )
    print(f"  keys that are missing, doubled or not the newest: {wrong}")


if __name__ == "__main__":
    main()
