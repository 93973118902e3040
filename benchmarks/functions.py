"""Costs of a function: CPU for rows and tables, and the time that it adds at a low rate.

``python -m benchmarks.functions`` starts a broker of its own in another process. CPU is that of the
instance's process without its start; on a busy machine it is more reliable than the rate. The time added is
the difference between a message's time through the function and its time to a consumer of the input, for
the same messages in the same run.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import geminga
from benchmarks import brokers
from benchmarks.harness import OURS, Figure, Measurement, emit, python
from geminga.functions import FunctionRunner, FunctionSettings

SIZE = 100


def same(value: bytes) -> bytes:
    """The row function."""
    return value


def same_table(table: Any) -> Any:
    """The function of tables."""
    return table


def _instance(url: str, topic: str, kind: str, guarantee: str, messages: int) -> None:
    settings = FunctionSettings(
        function=same_table if kind == "tables" else same, inputs=(topic,), output=f"{topic}-out",
        arrow=kind == "tables", guarantee=guarantee, service_url=url, name=topic.lower(),
        receiver_queue_size=None if kind == "tables" else 20_000,
    )  # fmt: skip
    runner = FunctionRunner(settings).start()
    warm = messages // 10
    while runner.metrics.processed < warm:
        time.sleep(0.002)
    first, started, before = runner.metrics.processed, time.perf_counter(), _cpu()
    while runner.metrics.processed < messages:
        time.sleep(0.002)
    seconds, cpu, count = time.perf_counter() - started, _cpu() - before, runner.metrics.processed - first
    runner.close()
    print(json.dumps([count, seconds, cpu]), flush=True)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _throughput(url: str, rows: int, tables: int) -> None:
    for kind, guarantee, messages in (
        ("rows", "ATLEAST_ONCE", rows),
        ("rows", "EFFECTIVELY_ONCE", rows // 2), ("tables", "ATLEAST_ONCE", tables),
    ):  # fmt: skip
        topic = f"bench-{kind}-{guarantee}"
        with geminga.Client(url) as client:
            client.subscribe(
                topic,
                f"public/default/bench-{kind}-{guarantee}".lower(),
                geminga.ConsumerType.Shared if guarantee == "ATLEAST_ONCE" else geminga.ConsumerType.Failover,
            ).close()
            producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True,
                                              max_pending_messages=20_000)  # fmt: skip
            values = [bytes(SIZE)] * 10_000
            for _ in range(messages // len(values)):
                producer.send_many(values)
        arguments = ["--instance", url, topic, kind, guarantee, str(messages)]
        run = subprocess.run(
            python("benchmarks.functions", *arguments),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
        )
        count, seconds, cpu = json.loads(run.stdout)
        emit(
            Measurement(
                work=f"function of {kind} {SIZE} B, {guarantee.lower()}",
                who=OURS,
                messages=count,
                seconds=seconds,
                cpu_seconds=cpu,
            )
        )


def _added(url: str, messages: int, rate: float) -> None:
    settings = FunctionSettings(function=same, inputs=("low",), output="low-out", service_url=url)
    text = settings.__class__(**{**_fields(settings), "function": "benchmarks.functions:same"}).to_json()
    instance = subprocess.Popen([sys.executable, "-m", "geminga.functions.instance"], stdin=subprocess.PIPE)
    assert instance.stdin is not None
    instance.stdin.write(text.encode() + b"\n")
    instance.stdin.flush()
    times: dict[str, dict[int, float]] = {"low": {}, "low-out": {}}
    with geminga.Client(url) as client:
        done = threading.Event()

        def listen(topic: str) -> Any:
            kept = times[topic]

            def received(consumer: Any, message: Any) -> None:
                kept[int(message.data())] = time.perf_counter()
                consumer.acknowledge(message)
                if len(times["low"]) == len(times["low-out"]) == messages:
                    done.set()

            return client.subscribe(topic, "watch", message_listener=received)

        listen("low")
        listen("low-out")
        producer = client.create_producer("low")
        sent = []
        for number in range(messages):
            sent.append(time.perf_counter())
            producer.send(b"%d" % number)
            time.sleep(1 / rate)
        if not done.wait(60):
            raise RuntimeError("results are missing")
    instance.stdin.close()
    instance.wait(60)
    added = sorted((times["low-out"][n] - times["low"][n]) * 1000 for n in range(messages // 10, messages))
    own = sorted((times["low"][n] - sent[n]) * 1000 for n in range(messages // 10, messages))
    work = f"function: time added at {rate:.0f} msg/s"
    emit(
        Figure(work=f"{work}, median", who=OURS, value=statistics.median(added), unit="ms"),
        Figure(work=f"{work}, p99", who=OURS, value=added[int(len(added) * 0.99)], unit="ms"),
        Figure(
            work="the same messages to a consumer, median", who=OURS, value=statistics.median(own), unit="ms"
        ),
        Figure(
            work="the same messages to a consumer, p99", who=OURS, value=own[int(len(own) * 0.99)], unit="ms"
        ),
    )


def _fields(settings: FunctionSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--tables", type=int, default=5_000_000)
    parser.add_argument("--low", type=int, default=1000, help="messages at the low rate")
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--folder", type=Path, help="where the broker keeps its store")
    parser.add_argument("--instance", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.instance:
        url, topic, kind, guarantee, messages = given.instance
        _instance(url, topic, kind, guarantee, int(messages))
        return
    with (
        brokers.work_folder(given.folder) as folder,
        brokers.geminga(Path(folder), extra=("--deduplication",)) as broker,
    ):
        _added(broker.service_url, given.low, given.rate)
        _throughput(broker.service_url, given.rows, given.tables)


if __name__ == "__main__":
    main()
