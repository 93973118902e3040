"""The row path where rates are not the point: a sender that waits, and what one bad partition does.

``python -m benchmarks.row_produce`` starts our standalone broker (synced) and prints a Markdown table;
``--peer`` runs pulsar-client beside ours where it can do the same. Rates and CPU: ``benchmarks.client``.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import brokers

CONTENT = b"x" * 100


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


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


MEASURES: dict[str, Callable[..., str]] = {
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
            _in_process("latency", library, broker.service_url, topic, "send() and wait, synced broker")
    for stuck in ((), ("3",)):
        with withholding(*stuck) as url:
            work = "8 partitions, one stuck" if stuck else "8 partitions, none stuck"
            for library in libraries:
                _in_process("for-seconds", library, url, f"stuck-{library}", work)


if __name__ == "__main__":
    main()
