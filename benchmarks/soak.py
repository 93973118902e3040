"""An hour under load with kills, offloading, compaction and 2,000 topics: ``python -m benchmarks.soak``.

Messages of 200 bytes go to a partitioned topic of 16 partitions in batches, small ones to 1,980 topics, and
new values of 1,000 keys to 4 topics that are compacted. Consumers of each receive and acknowledge, with
receipts of their acknowledgements. The broker is killed with SIGKILL about every two minutes and started
again; full ledgers move to Parquet. Every ten seconds a sample is taken: rates, latency of receipts and of
delivery, memory and descriptors of the broker, size of its folder.

In the end each message with a receipt must have been received, in order in each partition; none may have
been redelivered after its acknowledgement was confirmed; each compacted topic must hold the last value of
each key.

``--publish`` writes figures and a picture for the docs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import geminga
from benchmarks import brokers, figures, output
from benchmarks.harness import process_cpu_seconds, python, resident_megabytes
from geminga.admin import Retention
from geminga.testing.apache_pulsar import free_ports
from geminga.tuning.measuring.host import machine

PUBLISHED = Path(__file__).parent.parent / "docs/proof/soak.json"
PARTITIONS, SMALL_TOPICS, COMPACTED_TOPICS, KEYS = 16, 1_980, 4, 1_000
STREAM, SMALL, COMPACTED = "soak-stream", "soak-small", "soak-compacted"
SAMPLE_SECONDS = 10.0
AFTER_A_KILL_SECONDS = 20.0
"""Latencies in this time after a kill are those of the restart: they are counted apart."""
HEAD = struct.Struct(">QdI")
"""Sequence number, time of sending, number of the sender."""


@dataclass
class Sample:
    """Figures of the last ten seconds."""

    seconds: float
    receipts: int
    received: int
    receipt_p50_ms: float
    receipt_p99_ms: float
    delivery_p99_ms: float
    broker_megabytes: float
    broker_descriptors: int
    broker_cpu: float
    store_megabytes: float
    offloaded_megabytes: float
    is_after_kill: bool


@dataclass
class Ledger:
    """Counts of what was sent and received, by sender: numbers rise by one for each sender."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    receipted: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Highest number with a receipt; receipts of a sender have the order of its messages."""
    received: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Highest number up to which all were received."""
    confirmed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Highest number whose acknowledgement was confirmed."""
    again: int = 0
    """Messages that were redelivered after their acknowledgement was confirmed."""
    gaps: int = 0
    failed: int = 0
    receipt_ms: list[float] = field(default_factory=list)
    delivery_ms: list[float] = field(default_factory=list)

    def receipt(self, sender: int, number: int, sent_at: float, result: Any) -> None:
        """Count a receipt."""
        with self.lock:
            if result is not geminga.Result.Ok:
                self.failed += 1
                return
            self.receipted[sender] = max(self.receipted[sender], number)
            self.receipt_ms.append((time.time() - sent_at) * 1e3)

    def deliver(self, payload: bytes) -> tuple[int, int]:
        """Count a received message; return its sender and number."""
        number, sent_at, sender = HEAD.unpack_from(payload)
        with self.lock:
            if number <= self.confirmed[sender]:
                self.again += 1
            elif number == self.received[sender] + 1:
                self.received[sender] = number
                self.delivery_ms.append((time.time() - sent_at) * 1e3)
            elif number > self.received[sender] + 1:
                self.gaps += 1
                self.received[sender] = number
        return sender, number

    def missing(self) -> int:
        """Return the number of messages that have a receipt and were not received."""
        return sum(max(0, number - self.received[sender]) for sender, number in self.receipted.items())


class Broker:
    """A broker in a process of its own, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.web_port = free_ports(2)
        self.url, self.admin_url = f"pulsar://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.web_port}"
        self.kills = 0
        self.killed_at = float("-inf")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = python(
            "geminga.cli.main", "standalone", "--data-dir", str(self.folder / "store"),
            "--port", str(self.port), "--web-port", str(self.web_port),
            "--offload-location", str(self.folder / "tier"),
            "--offload-threshold", "0", "--deduplication",
        )  # fmt: skip
        started = time.perf_counter()
        with (self.folder / "broker.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=os.environ | {"GEMINGA_LEDGER_BYTES_DEFAULT": str(2 << 20)},
            )
        brokers.wait_for_pong(("127.0.0.1", self.port), process, started)
        return process

    def kill(self) -> None:
        """Kill the broker with SIGKILL and start it again."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1
        self.killed_at = time.monotonic()
        self.process = self._start()

    def stop(self) -> int:
        """Stop the broker; return its exit status."""
        self.process.terminate()
        return self.process.wait(timeout=60)


class Load:
    """Producers and consumers, each on a thread of its own, until `stop`."""

    def __init__(self, url: str, rate: float, ledger: Ledger) -> None:
        self.client = geminga.Client(url, operation_timeout_seconds=120)
        self.ledger = ledger
        self.rate = rate
        self.last_values: dict[tuple[int, str], int] = {}
        """Number of the last value of each key of each compacted topic."""
        self._is_sending = threading.Event()
        self._is_sending.set()
        self._is_receiving = threading.Event()
        self._is_receiving.set()
        self._senders: list[threading.Thread] = []
        self._receivers: list[threading.Thread] = []
        self.errors: list[str] = []

    def start(self) -> None:
        """Open consumers and producers, and begin."""
        small = [f"{SMALL}-{number}" for number in range(SMALL_TOPICS)]
        for topics in (STREAM, small, [f"{COMPACTED}-{n}" for n in range(COMPACTED_TOPICS)]):
            consumer = self.client.subscribe(
                topics, "soak", initial_position=geminga.InitialPosition.Earliest, receiver_queue_size=5000,
                batch_receive_policy=geminga.ConsumerBatchReceivePolicy(2000, -1, 200),
                ack_receipt_enabled=True,
            )  # fmt: skip
            self._receivers.append(self._thread(self._receive, consumer))
        streams = [
            self._producer(f"{STREAM}-partition-{number}", batched=True) for number in range(PARTITIONS)
        ]
        others = [self._producer(topic) for topic in small]
        compacted = [self._producer(f"{COMPACTED}-{number}") for number in range(COMPACTED_TOPICS)]
        self._senders = [
            self._thread(self._send_stream, streams),
            self._thread(self._send_small, others, PARTITIONS),
            self._thread(self._send_keys, compacted, PARTITIONS + SMALL_TOPICS),
        ]

    def stop_sending(self) -> None:
        """Stop sending, and wait until each message has its receipt."""
        self._is_sending.clear()
        for thread in self._senders:
            thread.join()

    def stop(self) -> None:
        """Stop receiving and close the client."""
        self._is_receiving.clear()
        for thread in self._receivers:
            thread.join()
        self.client.close()

    def _thread(self, work: Any, *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:
                self.errors.append(f"{work.__name__}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _producer(self, topic: str, *, batched: bool = False) -> Any:
        return self.client.create_producer(
            topic, producer_name=f"soak-{topic}", send_timeout_millis=0, block_if_queue_full=True,
            batching_enabled=batched, batching_max_publish_delay_ms=5,
        )  # fmt: skip

    def _send(self, producer: Any, sender: int, size: int, **fields: Any) -> None:
        ledger = self.ledger
        ledger.sent[sender] += 1
        number, now = ledger.sent[sender], time.time()
        payload = HEAD.pack(number, now, sender).ljust(size, b"-")
        producer.send_async(payload, lambda result, _: ledger.receipt(sender, number, now, result), **fields)

    def _until_stopped(self, producers: list[Any], send_some: Callable[[], None]) -> None:
        """Send again and again until `stop_sending`, then wait for the receipts."""
        while self._is_sending.is_set():
            send_some()
        for producer in producers:
            producer.flush()

    def _send_stream(self, producers: list[Any]) -> None:
        sent, started = 0, time.monotonic()

        def send_some() -> None:
            nonlocal sent
            for sender, producer in enumerate(producers):
                for _ in range(20):
                    self._send(producer, sender, 200)
                sent += 20
            if self.rate:
                time.sleep(max(0.0, started + sent / self.rate - time.monotonic()))

        self._until_stopped(producers, send_some)

    def _send_small(self, producers: list[Any], first: int) -> None:
        choice = random.Random(1)

        def send_some() -> None:
            for _ in range(20):
                number = choice.randrange(len(producers))
                self._send(producers[number], first + number, 60)
            time.sleep(0.1)

        self._until_stopped(producers, send_some)

    def _send_keys(self, producers: list[Any], first: int) -> None:
        choice = random.Random(2)

        def send_some() -> None:
            for _ in range(50):
                number, key = choice.randrange(len(producers)), f"key-{choice.randrange(KEYS)}"
                self._send(producers[number], first + number, 100, partition_key=key)
                self.last_values[number, key] = self.ledger.sent[first + number]
            time.sleep(0.1)

        self._until_stopped(producers, send_some)

    def _receive(self, consumer: Any) -> None:
        while self._is_receiving.is_set():
            messages = consumer.batch_receive()
            seen = dict(self.ledger.deliver(message.data()) for message in messages)
            if messages:
                consumer.acknowledge(messages)  # returns when the broker has confirmed it
            with self.ledger.lock:
                self.ledger.confirmed.update(seen)
        consumer.close()


def percentile(values: list[float], share: float) -> float:
    """Return a percentile, 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def folder_megabytes(folder: Path) -> float:
    """Return the size of the files below a folder."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except OSError:
            continue  # it was deleted meanwhile
    return total / 1e6


def sample(broker: Broker, ledger: Ledger, started: float, before: tuple[int, int, float]) -> Sample:
    """Return the figures since the last sample; ``before``: its receipts, received messages and CPU."""
    with ledger.lock:
        receipts, ledger.receipt_ms = ledger.receipt_ms, []
        deliveries, ledger.delivery_ms = ledger.delivery_ms, []
        counts = sum(ledger.receipted.values()), sum(ledger.received.values())
    pid = broker.process.pid
    now = time.monotonic()
    return Sample(
        round(now - started, 1), counts[0] - before[0], counts[1] - before[1],
        percentile(receipts, 0.5), percentile(receipts, 0.99), percentile(deliveries, 0.99),
        resident_megabytes(pid), len(os.listdir(f"/proc/{pid}/fd")), process_cpu_seconds(pid) - before[2],
        folder_megabytes(broker.folder / "store"), folder_megabytes(broker.folder / "tier"),
        now - broker.killed_at < AFTER_A_KILL_SECONDS,
    )  # fmt: skip


def watch(broker: Broker, ledger: Ledger, seconds: float, kill_every: float) -> list[Sample]:
    """Take samples, and kill the broker now and then, for a while."""
    samples: list[Sample] = []
    chance = random.Random(3)
    started = time.monotonic()
    next_kill = started + kill_every
    receipts = received = 0
    cpu = process_cpu_seconds(broker.process.pid)
    while time.monotonic() - started < seconds:
        if time.monotonic() >= next_kill:
            broker.kill()
            next_kill = time.monotonic() + kill_every * chance.uniform(0.5, 1.5)
            cpu = 0.0
        time.sleep(max(0.0, started + (len(samples) + 1) * SAMPLE_SECONDS - time.monotonic()))
        found = sample(broker, ledger, started, (receipts, received, cpu))
        receipts, received, cpu = receipts + found.receipts, received + found.received, cpu + found.broker_cpu
        samples.append(found)
        print(
            f"{found.seconds:6.0f} s  {found.receipts:8,} receipts  {found.received:8,} received  "
            f"p99 {found.receipt_p99_ms:7.1f} ms  {found.broker_megabytes:5.0f} MB  "
            f"{found.broker_descriptors:4d} descriptors  {broker.kills} kills",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    return samples


def wrong_values(load: Load, url: str) -> int:
    """Return the number of keys whose compacted topic does not hold their last value."""
    wrong = 0
    with geminga.Client(url) as client:
        for topic in range(COMPACTED_TOPICS):
            found: dict[str, int] = {}
            reader = client.create_reader(
                f"{COMPACTED}-{topic}", geminga.MessageId.earliest, is_read_compacted=True
            )
            while reader.has_message_available():
                message = reader.read_next(30_000)
                found[message.partition_key()] = HEAD.unpack_from(message.data())[0]
            wanted = {key: number for (of, key), number in load.last_values.items() if of == topic}
            wrong += sum(found.get(key) != number for key, number in wanted.items())
    return wrong


def run(folder: Path, minutes: float, rate: float, kill_every: float) -> dict[str, Any]:
    """Run the load, and return the figures."""
    broker, ledger, loads = Broker(folder), Ledger(), [os.getloadavg()[0]]
    with geminga.Admin(broker.admin_url) as admin:
        admin.topics.create(STREAM, partitions=PARTITIONS)
        admin.namespaces.retention.set("public/default", Retention(minutes=5, megabytes=-1))
        for number in range(COMPACTED_TOPICS):
            admin.topics.create(f"{COMPACTED}-{number}")
            admin.topic_policies.compaction_threshold.set(f"{COMPACTED}-{number}", 1 << 20)
    load = Load(broker.url, rate, ledger)
    load.start()
    samples = watch(broker, ledger, minutes * 60, kill_every)
    load.stop_sending()
    deadline = time.monotonic() + 120
    while ledger.missing() and time.monotonic() < deadline:
        time.sleep(0.5)
    load.stop()
    wrong = wrong_values(load, broker.url)
    status = broker.stop()
    checks = {
        "receipted": sum(ledger.receipted.values()), "received": sum(ledger.received.values()),
        "missing": ledger.missing(), "gaps": ledger.gaps, "again": ledger.again, "failed": ledger.failed,
        "wrong_values": wrong, "kills": broker.kills, "errors": load.errors, "exit_status": status,
    }  # fmt: skip
    loads.append(os.getloadavg()[0])
    return {
        "machine": machine(), "load": [round(min(loads), 1), round(max(loads), 1)],
        "minutes": minutes, "rate": rate, "checks": checks,
        "samples": [{name: round(value, 2) for name, value in asdict(each).items()} for each in samples],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="default 60")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="messages a second to the partitions; default: all"
    )
    parser.add_argument("--kill-every", type=float, default=120.0, help="seconds between kills; default 120")
    output.add_options(parser, PUBLISHED)
    given = parser.parse_args()
    with brokers.work_folder() as folder:
        values = run(folder, given.minutes, given.rate, given.kill_every)
    output.show(given, figures.soak(values))
    if given.publish:
        output.publish(PUBLISHED, values)
        figures.draw_soak(values, PUBLISHED.with_suffix(".svg"))
    checks = values["checks"]
    bad = ("missing", "gaps", "again", "failed", "wrong_values", "exit_status")
    return int(bool(checks["errors"] or any(checks[name] for name in bad)))


if __name__ == "__main__":
    sys.exit(main())
