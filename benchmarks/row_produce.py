"""The row path in detail: what a message costs the thread that sends it, with batches and without, and what
one bad partition does.

``python -m benchmarks.row_produce`` starts our standalone broker (synced) and prints a Markdown table;
``--peer`` runs pulsar-client beside ours where it can do the same.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks import brokers

MESSAGES = {"geminga": 1_000_000, "pulsar": 150_000}
UNBATCHED_MESSAGES = 200_000
CONTENT = b"x" * 100


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Count:
    """Receipts, and errors among them."""

    def __init__(self, ok: Any) -> None:
        self.ok = ok
        self.failed = 0

    def receipted(self, result: Any, _message_id: Any) -> None:
        if result != self.ok:
            self.failed += 1


def rate(
    library: Any,
    url: str,
    topic: str,
    work: str,
    *,
    batching_enabled: bool = True,
    keys: Sequence[str] | None = None,
) -> str:
    """Publish from one thread as fast as it goes; a row of the table."""
    client = library.Client(url)
    producer = client.create_producer(
        topic, batching_enabled=batching_enabled, block_if_queue_full=True, max_pending_messages=20_000
    )
    messages = MESSAGES[library.__name__.partition(".")[0]]
    if not batching_enabled:
        messages = min(messages, UNBATCHED_MESSAGES)
    count = Count(library.Result.Ok)
    receipted, content = count.receipted, CONTENT
    for _ in range(5000):
        producer.send_async(content, receipted)
    producer.flush()
    start, cpu, thread = time.perf_counter(), _cpu(), time.thread_time()
    if keys is None:
        for _ in range(messages):
            producer.send_async(content, receipted)
    else:
        for key in islice(cycle(keys), messages):
            producer.send_async(content, receipted, partition_key=key)
    thread = time.thread_time() - thread
    producer.flush()
    seconds, cpu = time.perf_counter() - start, _cpu() - cpu
    client.close()
    note = f"{count.failed} failed" if count.failed else ""
    return (
        f"| {work} | {library.__name__} | {messages / seconds / 1000:.0f} k msg/s | "
        f"{thread / messages * 1e6:.2f} | {cpu / messages * 1e6:.2f} | {note} |"
    )


def keyed(library: Any, url: str, topic: str, work: str) -> str:
    """`rate` of messages with a hundred keys."""
    return rate(library, url, topic, work, keys=[f"key-{number}" for number in range(100)])


def many(library: Any, url: str, topic: str, work: str) -> str:
    """Publish a thousand values in each call, with one callback."""
    client = library.Client(url)
    producer = client.create_producer(
        topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=20_000
    )
    values, failed = [CONTENT] * 1000, 0

    def done(sent: Any) -> None:
        nonlocal failed
        failed += len(sent.failures)

    for _ in range(10):
        producer.send_many(values, done)
    producer.flush()
    messages = MESSAGES[library.__name__]
    start, cpu, thread = time.perf_counter(), _cpu(), time.thread_time()
    for _ in range(messages // len(values)):
        producer.send_many(values, done)
    thread = time.thread_time() - thread
    producer.flush()
    seconds, cpu = time.perf_counter() - start, _cpu() - cpu
    client.close()
    note = f"{failed} failed" if failed else ""
    return (
        f"| {work} | {library.__name__} | {messages / seconds / 1000:.0f} k msg/s | "
        f"{thread / messages * 1e6:.2f} | {cpu / messages * 1e6:.2f} | {note} |"
    )


def latency(library: Any, url: str, topic: str, work: str) -> str:
    """A synchronous sender with the default delay."""
    client = library.Client(url)
    producer = client.create_producer(topic, batching_enabled=True)
    times = []
    for _ in range(50 if library.__name__ == "pulsar" else 2000):
        start = time.perf_counter()
        producer.send(CONTENT)
        times.append(time.perf_counter() - start)
    times.sort()
    client.close()
    median, high = times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000
    return f"| {work} | {library.__name__} | p50 {median:.2f} ms, p99 {high:.2f} ms | | | |"


def for_seconds(library: Any, url: str, topic: str, work: str, seconds: float = 5.0) -> str:
    """What goes through in a fixed time: a producer that is held up stops counting."""
    client = library.Client(url)
    producer = client.create_producer(
        topic, batching_enabled=True, max_pending_messages=5000, batching_max_messages=500
    )
    receipts = [0]
    ok = library.Result.Ok

    def receipted(result: Any, _message_id: Any) -> None:
        if result == ok:
            receipts[0] += 1

    refused, content, full = 0, CONTENT, library.Result.ProducerQueueIsFull

    def counted(result: Any, message_id: Any) -> None:
        nonlocal refused
        if result == full:
            refused += 1
            time.sleep(0.0002)
        else:
            receipted(result, message_id)

    end = time.perf_counter() + seconds
    cpu = _cpu()
    while time.perf_counter() < end:
        for _ in range(100):
            producer.send_async(content, counted)
    cpu, through = _cpu() - cpu, receipts[0]
    # What is stuck would hold up an orderly end: the process just ends.
    return (
        f"| {work} | {library.__name__} | {through / seconds / 1000:.0f} k msg/s | | "
        f"{cpu / max(1, through) * 1e6:.2f} | {refused} refused |"
    )


@contextmanager
def withholding(*partitions: str) -> Iterator[str]:
    """The service URL of a broker that never receipts these partitions."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.withholding", *partitions], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def rate_alone(library: Any, url: str, topic: str, work: str) -> str:
    """`rate`, an entry for each message: what a producer does by default."""
    return rate(library, url, topic, work, batching_enabled=False)


MEASURES: dict[str, Callable[..., str]] = {
    "rate": rate,
    "rate-alone": rate_alone,
    "keyed": keyed,
    "many": many,
    "latency": latency,
    "for-seconds": for_seconds,
}


def _in_process(measure: str, library: str, url: str, topic: str, work: str) -> None:
    """Each measurement has a process of its own, and a line of output."""
    command = [sys.executable, "-m", "benchmarks.row_produce", "--one", measure, library, url, topic, work]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    print(next((line for line in run.stdout.splitlines() if line.startswith("|")), f"| {work} | failed |"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="store_true", help="pulsar-client beside ours")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure, name, url, topic, work = arguments.one
        print(MEASURES[measure](importlib.import_module(name), url, topic, work), flush=True)
        sys.stdout.flush()
        import os

        os._exit(0)
    libraries = ["geminga", "pulsar"] if arguments.peer else ["geminga"]
    print("| work | library | result | CPU µs, sending thread | CPU µs, process | |")
    print("|---|---|---|---|---|---|")
    with brokers.work_folder() as folder, brokers.geminga(Path(folder)) as broker:
        for library in libraries:
            topic = f"persistent://public/default/rows-{library}"
            _in_process("rate", library, broker.service_url, topic, "100 B rows, synced broker")
            _in_process("rate-alone", library, broker.service_url, f"{topic}-a", "the same without batches")
            _in_process("keyed", library, broker.service_url, f"{topic}-k", "the same with 100 keys")
            if library == "geminga":
                _in_process("many", library, broker.service_url, f"{topic}-m", "the same by send_many")
            _in_process("latency", library, broker.service_url, f"{topic}-l", "send() and wait")
    for stuck in ((), ("3",)):
        with withholding(*stuck) as url:
            work = "8 partitions, one stuck" if stuck else "8 partitions, none stuck"
            for library in libraries:
                _in_process("for-seconds", library, url, f"stuck-{library}", work)


if __name__ == "__main__":
    main()
