"""Work that brokers and sources do in turn; every function returns the measurements of all of them."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import geminga
from benchmarks import ack_holes, brokers, hostile, load, stuck_partition
from benchmarks.brokers import APACHE, RunningBroker, slug
from benchmarks.harness import (
    OURS,
    Figure,
    Measurement,
    collect,
    process_cpu_seconds,
    python,
    resident_megabytes,
)

Results = list[Measurement | Figure]
SYNC_NOTE = {OURS: "every receipt synced", APACHE: "no sync (its default)", brokers.LITE: "no sync"}


def _topic(name: str, run: int) -> str:
    return f"persistent://public/default/{slug(name)}-{run}-{time.time_ns()}"


def broker_ready_made(folder: Path, runs: int) -> Results:
    """Batches of 1,000 × 100 B that are built beforehand; the first run of each broker is its warm-up."""
    return _broker_load(
        folder, runs, "broker: batches of 1,000 × 100 B", entries=3_000, messages=1_000, window=64
    )


def broker_unbatched(folder: Path, runs: int) -> Results:
    """Single messages of 100 B with 2,000 in flight."""
    return _broker_load(folder, runs, "broker: unbatched 100 B", entries=100_000, messages=1, window=2_000)


def _broker_load(folder: Path, runs: int, work: str, *, entries: int, messages: int, window: int) -> Results:
    results: Results = []
    with ExitStack() as stack:
        running = [
            stack.enter_context(start(folder)) for start in (brokers.geminga, brokers.apache, brokers.lite)
        ]
        for run in range(runs + 1):
            for broker in running:
                one = load.measure(
                    work, broker.who, broker.address, broker.pid, _topic(work, run),
                    entries=entries, messages=messages, window=window, note=SYNC_NOTE[broker.who],
                )  # fmt: skip
                if run:
                    results.append(one)
    results += _disk_bound(folder, runs) if messages > 1 else []
    return results


def delivery(folder: Path, runs: int) -> Results:
    """Delivery to one Exclusive consumer, from the beginning; the first run of each broker is its warm-up.

    pulsar-lite is left out: it stops within a backlog of 2,000 entries.
    """
    results: Results = []
    ways = (
        ("delivery to one consumer: batches of 1,000 × 100 B", 2_000, 1_000, 200_000),
        ("delivery to one consumer: unbatched 100 B", 100_000, 1, 20_000),
    )
    with ExitStack() as stack:
        running = [stack.enter_context(start(folder)) for start in (brokers.geminga, brokers.apache)]
        for work, entries, messages, permits in ways:
            topic = _topic(work, 0)
            for broker in running:
                window = 64 if messages > 1 else 2_000
                load.measure(
                    work, broker.who, broker.address, broker.pid, topic,
                    entries=entries, messages=messages, window=window,
                )  # fmt: skip
            for run in range(runs + 1):
                for broker in running:
                    one = load.measure_delivery(
                        work, broker.who, broker.address, broker.pid, topic,
                        entries=entries, messages=messages, permits=permits,
                    )  # fmt: skip
                    if run:
                        results.append(one)
    return results


def _disk_bound(folder: Path, runs: int) -> Results:
    """A bare loop of write and fdatasync of 2 MiB on the same disk, as messages of 100 B a second."""
    import os

    results: Results = []
    block = os.urandom(2 << 20)
    for _ in range(runs):
        path = folder / "bound"
        with path.open("wb", buffering=0) as file:
            start = time.perf_counter()
            for _ in range(100):
                file.write(block)
                os.fdatasync(file.fileno())
            seconds = time.perf_counter() - start
        path.unlink()
        messages = 100 * len(block) // 108
        note = f"{100 * len(block) / seconds / 1e6:.0f} MB/s"
        work = "broker: batches of 1,000 × 100 B"
        results.append(
            Measurement(
                work=work, who="bound: write + fdatasync", messages=messages, seconds=seconds, note=note
            )
        )
    return results


def spark(folder: Path, runs: int) -> Results:
    """Spark's batches and streams of 100 B rows through ``format("pulsar")``."""
    with brokers.geminga(folder, extra=("--deduplication",)) as ours:
        command = python("benchmarks.spark_rows", "--url", ours.service_url, "--runs", str(runs))
        return collect(command, timeout_seconds=1200)


def spark_plans(folder: Path, runs: int) -> Results:
    """Costs of 512 partitions for a query before a row is read: Geminga's half, and inside Spark."""
    with brokers.geminga(folder) as ours:
        given = ("--url", ours.service_url, "--admin-url", ours.admin_url, "--runs", str(runs))
        found = collect(python("benchmarks.spark_plans", *given), timeout_seconds=600)
        return found + collect(python("benchmarks.spark_wide", *given), timeout_seconds=900)


def spark_triggers(folder: Path, runs: int) -> Results:
    """A micro-batch of one row, and the bytes that a trigger moves."""
    with brokers.geminga(folder) as ours:
        urls = ("--url", ours.service_url, "--admin-url", ours.admin_url)
        return collect(python("benchmarks.spark_triggers", *urls, "--runs", str(runs)), timeout_seconds=900)


def start_and_memory(folder: Path, runs: int) -> Results:
    """Milliseconds until the first PONG, resident memory 2 s later, CPU of 5 idle seconds.

    And the memory of ours after its first clients, and after the first request to its web port.
    """
    results: Results = []
    for run in range(runs):
        for start in (brokers.geminga, brokers.lite, *((brokers.apache,) if run == 0 else ())):
            place = folder / f"start-{run}"
            place.mkdir(exist_ok=True)
            with start(place) as broker:
                time.sleep(2)
                memory = resident_megabytes(broker.pid)
                cpu = process_cpu_seconds(broker.pid)
                time.sleep(5)
                idle = process_cpu_seconds(broker.pid) - cpu
                if start is brokers.geminga:
                    results += _memory_in_use(broker)
            results += [
                Figure(
                    work="broker: first answer after start",
                    who=broker.who,
                    value=broker.start_seconds * 1000,
                    unit="ms",
                ),
                Figure(work="broker: resident when idle", who=broker.who, value=memory, unit="MB"),
                Figure(
                    work="broker: CPU while idle", who=broker.who, value=idle / 5 * 1000, unit="ms a second"
                ),
            ]
    return results


def _memory_in_use(broker: RunningBroker) -> Results:
    with geminga.Client(broker.service_url) as client:
        consumer, producer = client.subscribe("first", "s"), client.create_producer("first")
        for _ in range(1000):
            producer.send(b"a message")
            consumer.acknowledge(consumer.receive())
    served = resident_megabytes(broker.pid)
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
        answer.read()
    found = {"clients": served, "web requests": resident_megabytes(broker.pid)}
    return [
        Figure(work=f"broker: resident after its first {what}", who=broker.who, value=value, unit="MB")
        for what, value in found.items()
    ]


def under_attack(folder: Path, runs: int) -> Results:
    """Waits of a calm peer while others attack; one run of each attack on a new broker."""
    results: Results = []
    for number, name in enumerate(hostile.ATTACKS):
        with brokers.geminga(folder / str(number)) as broker:
            host, port = broker.address
            results += collect(
                python(
                    "benchmarks.hostile", "--host", host, "--port", str(port), "--pid", str(broker.pid),
                    "--admin-url", broker.admin_url, "--attack", name,
                ),
                timeout_seconds=120,
            )  # fmt: skip
    return results


WORKS: dict[str, Callable[[Path, int], Results]] = {
    "start": start_and_memory,
    "ready-made": broker_ready_made,
    "unbatched": broker_unbatched,
    "delivery": delivery,
    "stuck-partition": stuck_partition.measure,
    "spark": spark,
    "spark-plans": spark_plans,
    "spark-triggers": spark_triggers,
    "under-attack": under_attack,
    "ack-holes": ack_holes.measure,
}
