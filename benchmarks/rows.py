"""Produce or consume rows with one client library, in a process of its own.

``geminga`` and ``pulsar`` (pulsar-client) have the same API, so the very same lines measure both.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import threading
import time
from typing import Any

from benchmarks.harness import OURS, Measurement, emit

PULSAR_CLIENT = "pulsar-client 3.13.0"
WARM_UP = 5_000


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def produce(library: Any, url: str, topic: str, messages: int, size: int) -> tuple[float, float]:
    """Publish ``messages`` rows with batching on; wall and CPU seconds until the last receipt."""
    client = library.Client(url)
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=10,
        block_if_queue_full=True,
        max_pending_messages=20_000,
    )
    content = bytes(size)
    failed: list[Any] = []

    def receipted(result: Any, _message_id: Any) -> None:
        if result != library.Result.Ok:
            failed.append(result)

    for _ in range(WARM_UP):
        producer.send_async(content, receipted)
    producer.flush()
    cpu, start = _cpu(), time.perf_counter()
    for _ in range(messages):
        producer.send_async(content, receipted)
    producer.flush()
    seconds, cpu = time.perf_counter() - start, _cpu() - cpu
    client.close()
    if failed:
        raise RuntimeError(f"{len(failed)} sends failed: {failed[0]}")
    return seconds, cpu


def consume(library: Any, url: str, topic: str, messages: int) -> tuple[float, float]:
    """Receive and acknowledge ``messages`` rows; wall and CPU seconds."""
    client = library.Client(url)
    consumer = client.subscribe(
        topic,
        f"bench-{library.__name__}-{time.time_ns()}",
        consumer_type=library.ConsumerType.Shared,
        initial_position=library.InitialPosition.Earliest,
        receiver_queue_size=10_000,
    )
    for _ in range(min(WARM_UP, messages // 10)):
        consumer.acknowledge(consumer.receive(30_000))
    left = messages - min(WARM_UP, messages // 10)
    cpu, start = _cpu(), time.perf_counter()
    for _ in range(left):
        consumer.acknowledge(consumer.receive(30_000))
    seconds, cpu = time.perf_counter() - start, _cpu() - cpu
    client.close()
    scale = messages / left
    return seconds * scale, cpu * scale


def produce_columns(url: str, topic: str, messages: int, size: int) -> tuple[float, float]:
    """Publish one Arrow table of ``messages`` rows; wall and CPU seconds until the last receipt."""
    import pyarrow as pa

    import geminga

    table = pa.table({"value": pa.array([bytes(size)] * messages, pa.binary())})
    with geminga.Client(url) as client:
        producer = client.create_producer(topic, block_if_queue_full=True)
        producer.send_table(table.slice(0, 50_000))
        cpu, start = _cpu(), time.perf_counter()
        producer.send_table(table)
        return time.perf_counter() - start, _cpu() - cpu


def consume_columns(url: str, topic: str, messages: int) -> tuple[float, float]:
    """Receive ``messages`` rows as Arrow tables and acknowledge them; wall and CPU seconds."""
    import geminga

    with geminga.Client(url) as client:
        consumer = client.subscribe(
            topic,
            f"bench-columns-{time.time_ns()}",
            initial_position=geminga.InitialPosition.Earliest,
            receiver_queue_size=100_000,
        )
        received = 0
        cpu, start = _cpu(), time.perf_counter()
        while received < messages:
            table = consumer.receive_table(timeout_millis=30_000)
            received += table.num_rows
            consumer.acknowledge_table(table)
        return time.perf_counter() - start, _cpu() - cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("produce", "consume", "produce-columns", "consume-columns"))
    parser.add_argument("--library", choices=("geminga", "pulsar"), default="geminga")
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--work", required=True)
    given = parser.parse_args()
    watchdog = threading.Timer(300, lambda: __import__("os")._exit(3))
    watchdog.daemon = True
    watchdog.start()
    library = importlib.import_module(given.library)
    if given.action == "produce":
        seconds, cpu = produce(library, given.url, given.topic, given.messages, given.size)
    elif given.action == "consume":
        seconds, cpu = consume(library, given.url, given.topic, given.messages)
    elif given.action == "produce-columns":
        seconds, cpu = produce_columns(given.url, given.topic, given.messages, given.size)
    else:
        seconds, cpu = consume_columns(given.url, given.topic, given.messages)
    who = OURS if given.library == "geminga" else PULSAR_CLIENT
    emit(Measurement(work=given.work, who=who, messages=given.messages, seconds=seconds, cpu_seconds=cpu))


if __name__ == "__main__":
    main()
