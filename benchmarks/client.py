"""The client beside ``pulsar-client`` and a warm ``pulsar-perf``: ``python -m benchmarks.client``.

Every party has a process of its own and its turn in every round, so that ratios of one run compare; CPU
seconds are those of the client's process. What ``pulsar-perf`` does is told by its own interval rates and the
CPU of its JVM meanwhile, after a first interval to warm up: with ``-m`` it counts its start, and stops too
early to be warm. ``--publish`` writes the figures where the documentation draws them from.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks import brokers
from benchmarks.brokers import RunningBroker
from benchmarks.harness import process_cpu_seconds
from geminga.tuning.measuring.run_log import machine

CONTENT = b"x" * 100
KEYS = [f"key-{number}" for number in range(100)]
MANY = 1000
"""Values in a call of `send_many`."""
SECONDS = 3.0
"""How long each measurement lasts, about."""
BACKLOG = 30_000_000
"""Messages to be consumed: enough for a JVM that warms up first."""
LEFT = 3_000_000
"""So many are there for tables in any case."""
PUBLISHED = Path(__file__).parent.parent / "docs/proof/client.json"
OURS, PULSAR_CLIENT, PULSAR_PERF = "Geminga", "pulsar-client 3.13", "pulsar-perf 4.0.4"
LIBRARIES = {OURS: "geminga", PULSAR_CLIENT: "pulsar"}


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Stopwatch:
    """Wall and CPU seconds, of the process and of the calling thread."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), _cpu(), time.thread_time()
        self._thread = 0.0

    def thread_done(self) -> None:
        """What the calling thread does from here on is waiting."""
        self._thread = time.thread_time() - self._began[2]

    def result(self, messages: int, failed: int = 0) -> dict[str, float]:
        start, cpu, _ = self._began
        found = {"messages": messages, "seconds": time.perf_counter() - start, "cpu": _cpu() - cpu}
        return {**found, "thread": self._thread, "failed": failed}


# --- what is measured: in a process of its own ------------------------------------------------------


def send_async(library: Any, url: str, topic: str, *, batching: bool, keyed: bool) -> dict[str, float]:
    """One thread that publishes with a callback for each message; everything has its receipt at the end."""
    client = library.Client(url)
    producer = client.create_producer(
        topic, batching_enabled=batching, block_if_queue_full=True, max_pending_messages=20_000
    )
    ok, failed = library.Result.Ok, 0

    def receipted(result: Any, _message_id: Any) -> None:
        nonlocal failed
        if result != ok:
            failed += 1

    def publish(count: int) -> None:
        if keyed:
            for key in islice(cycle(KEYS), count):
                producer.send_async(CONTENT, receipted, partition_key=key)
        else:
            for _ in range(count):
                producer.send_async(CONTENT, receipted)

    return _publishing(publish, producer.flush, lambda: failed)


def send_many(library: Any, url: str, topic: str, *, keyed: bool, each: bool) -> dict[str, float]:
    """A thousand values a call, with one callback for them or one for each."""
    client = library.Client(url)
    producer = client.create_producer(
        topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=20_000
    )
    values, failed, ok = [CONTENT] * MANY, 0, library.Result.Ok

    def done(sent: Any) -> None:
        nonlocal failed
        failed += len(sent.failures)

    def receipted(result: Any, _message_id: Any) -> None:
        nonlocal failed
        if result != ok:
            failed += 1

    callback: Any = [receipted] * MANY if each else done
    keys = list(islice(cycle(KEYS), MANY)) if keyed else None

    def publish(count: int) -> None:
        for _ in range(count // MANY):
            producer.send_many(values, callback, keys=keys)

    return _publishing(publish, producer.flush, lambda: failed)


def send_table(library: Any, url: str, topic: str, *, keyed: bool) -> dict[str, float]:
    """Tables of a hundred thousand rows, two of them on their way at a time."""
    import pyarrow as pa

    rows = 100_000
    columns: dict[str, Any] = {"value": pa.array([CONTENT] * rows, pa.binary())}
    if keyed:
        columns["key"] = pa.array(list(islice(cycle(KEYS), rows)))
    table = pa.table(columns)
    producer = library.Client(url).create_producer(topic, block_if_queue_full=True)
    futures: list[Any] = []

    def publish(count: int) -> None:
        for _ in range(max(1, count // rows)):
            futures.append(producer.submit_table(table))
            if len(futures) > 2:
                futures.pop(0).result()

    def flush() -> None:
        while futures:
            futures.pop().result()

    return _publishing(publish, flush, lambda: 0, first=rows)


def _publishing(
    publish: Callable[[int], None], flush: Callable[[], None], failed: Callable[[], int], first: int = 10_000
) -> dict[str, float]:
    publish(first)
    flush()
    start = time.perf_counter()
    publish(first * 3)
    flush()
    count = int(first * 3 / (time.perf_counter() - start) * SECONDS) // first * first or first
    watch = Stopwatch()
    publish(count)
    watch.thread_done()
    flush()
    return watch.result(count, failed())


def receive(library: Any, url: str, topic: str, *, kind: str, threads: int = 1) -> dict[str, float]:
    """Threads that receive from one consumer of a subscription of a kind and acknowledge, message by
    message."""
    client = library.Client(url)
    consumer = client.subscribe(
        topic,
        f"rows-{time.time_ns()}",
        consumer_type=getattr(library.ConsumerType, kind),
        initial_position=library.InitialPosition.Earliest,
        receiver_queue_size=10_000,
    )

    def take_alone(count: int) -> None:
        for _ in range(count):
            consumer.acknowledge(consumer.receive(30_000))

    spent: list[float] = []

    def take_beside(count: int) -> None:
        take_alone(count)
        spent.append(time.thread_time())

    def take(count: int) -> None:
        others = [threading.Thread(target=take_beside, args=(count // threads,)) for _ in range(1, threads)]
        for other in others:
            other.start()
        take_alone(count - len(others) * (count // threads))
        for other in others:
            other.join()

    take(20_000)
    start = time.perf_counter()
    take(20_000)
    count = int(20_000 / (time.perf_counter() - start) * SECONDS)
    spent.clear()
    watch = Stopwatch()
    take(count)
    watch.thread_done()
    found = watch.result(count)
    return {**found, "thread": found["thread"] + sum(spent)}


def receive_table(library: Any, url: str, topic: str, *, columns: Sequence[str] | None) -> dict[str, float]:
    """One thread that receives tables and acknowledges them."""
    consumer = library.Client(url).subscribe(
        topic,
        f"tables-{time.time_ns()}",
        initial_position=library.InitialPosition.Earliest,
        receiver_queue_size=200_000,
    )

    def take(seconds: float, rows_max: int) -> int:
        rows, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end and rows < rows_max:
            table = consumer.receive_table(timeout_millis=30_000, columns=columns)
            rows += table.num_rows
            consumer.acknowledge_table(table)
        return rows

    take(0.5, LEFT // 5)
    watch = Stopwatch()
    rows = take(SECONDS, LEFT)
    watch.thread_done()
    return watch.result(rows)


def fill(url: str, topic: str, messages: int) -> None:
    """A backlog in batches of 1,000, that somebody is going to read."""
    import pyarrow as pa

    import geminga

    rows = 500_000
    table = pa.table({"value": pa.array([CONTENT] * rows, pa.binary())})
    with geminga.Client(url, operation_timeout_seconds=60) as client:
        client.subscribe(topic, "keeps", initial_position=geminga.InitialPosition.Earliest).close()
        producer = client.create_producer(topic, block_if_queue_full=True)
        for _ in range(messages // rows):
            producer.send_table(table)


# --- pulsar-perf ------------------------------------------------------------------------------------

_INTERVAL = re.compile(r"Throughput (?:produced|received):.*?([\d.]+)\s+msg/s")


def perf(arguments: Sequence[str], *, warm: int = 1, counted: int = 2) -> dict[str, float]:
    """Its rate over ``counted`` intervals of ten seconds behind the ``warm`` first ones, and the JVM's CPU of
    the same time. Raises `RuntimeError` with what it said when it said no rates."""
    process = subprocess.Popen(
        [str(brokers.pulsar_home() / "bin/pulsar-perf"), *arguments, "-time", "300"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "PULSAR_MEM": "-Xms1g -Xmx1g", "PULSAR_GC_LOG": " "},
    )  # fmt: skip
    watchdog = threading.Timer(150, process.kill)
    watchdog.start()
    said: list[str] = []
    marks: list[tuple[float, float, float]] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said = [*said[-19:], line]
            match = _INTERVAL.search(line)
            if match is None:
                continue
            if float(match[1]) or marks:
                marks.append((time.perf_counter(), process_cpu_seconds(process.pid), float(match[1])))
            if len(marks) > warm + counted - 1:
                break
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    if len(marks) < warm + counted:
        raise RuntimeError(f"pulsar-perf {' '.join(arguments)} said:\n{''.join(said)}")
    (start, cpu, _), (end, cpu_end, _) = marks[warm - 1], marks[-1]
    rate = sum(rate for _, _, rate in marks[warm:]) / counted
    seconds = end - start
    return {"messages": rate * seconds, "seconds": seconds, "cpu": cpu_end - cpu, "thread": 0.0, "failed": 0}


def perf_produce(url: str, topic: str) -> dict[str, float]:
    return perf(["produce", topic, "-u", url, "-r", "10000000", "-s", "100", "-o", "20000"])


def perf_consume(url: str, topic: str, *, kind: str) -> dict[str, float]:
    subscription = f"perf-{time.time_ns()}"
    return perf(
        ["consume", topic, "-u", url, "-ss", subscription, "-st", kind, "-sp", "Earliest", "-q", "10000"]
    )


# --- all of it --------------------------------------------------------------------------------------

BATCHED = "send_async, batched"
ALONE = "send_async, an entry each"
KEYED = "send_async with keys, batched"
KEYED_ALONE = "send_async with keys, an entry each"
ROWS = "receive and acknowledge, rows"
SHARED = ", Shared"
_EXCLUSIVE, _SHARED = {"kind": "Exclusive"}, {"kind": "Shared"}
TABLES = "receive_table, all columns"
VALUES = "receive_table, values"
FROM_APACHE = " from Apache Pulsar"

MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "send_async": send_async,
    "send_many": send_many,
    "send_table": send_table,
    "receive": receive,
    "receive_table": receive_table,
}

PRODUCING: list[tuple[str, str, str, dict[str, Any]]] = [
    *((BATCHED, who, "send_async", {"batching": True, "keyed": False}) for who in LIBRARIES),
    (BATCHED, PULSAR_PERF, "perf_produce", {}),
    *((ALONE, who, "send_async", {"batching": False, "keyed": False}) for who in LIBRARIES),
    *((KEYED, who, "send_async", {"batching": True, "keyed": True}) for who in LIBRARIES),
    *((KEYED_ALONE, who, "send_async", {"batching": False, "keyed": True}) for who in LIBRARIES),
    ("send_many, one callback", OURS, "send_many", {"keyed": False, "each": False}),
    ("send_many, one callback each", OURS, "send_many", {"keyed": False, "each": True}),
    ("send_many with keys, one callback", OURS, "send_many", {"keyed": True, "each": False}),
    ("send_table", OURS, "send_table", {"keyed": False}),
    ("send_table with keys", OURS, "send_table", {"keyed": True}),
]
CONSUMING: list[tuple[str, str, str, dict[str, Any]]] = [
    *((ROWS, who, "receive", _EXCLUSIVE) for who in LIBRARIES),
    (ROWS, PULSAR_PERF, "perf_consume", _EXCLUSIVE),
    *((ROWS + SHARED, who, "receive", _SHARED) for who in LIBRARIES),
    (ROWS + SHARED, PULSAR_PERF, "perf_consume", _SHARED),
    (TABLES, OURS, "receive_table", {"columns": None}),
    (VALUES, OURS, "receive_table", {"columns": ["value"]}),
]
CONSUMING_APACHE: list[tuple[str, str, str, dict[str, Any]]] = [
    *((ROWS + FROM_APACHE, who, "receive", _EXCLUSIVE) for who in LIBRARIES),
    (ROWS + FROM_APACHE, PULSAR_PERF, "perf_consume", _EXCLUSIVE),
    *((ROWS + SHARED + FROM_APACHE, who, "receive", _SHARED) for who in LIBRARIES),
    (ROWS + SHARED + FROM_APACHE, PULSAR_PERF, "perf_consume", _SHARED),
    (TABLES + FROM_APACHE, OURS, "receive_table", {"columns": None}),
    (VALUES + FROM_APACHE, OURS, "receive_table", {"columns": ["value"]}),
]


class Run:
    """Rounds of measurements; ``rows`` maps what is done and who does it to what was found each time."""

    def __init__(self, only: str) -> None:
        self.only = re.compile(only)
        self.rows: dict[tuple[str, str], list[dict[str, float]]] = {}
        self.failed: list[str] = []
        self.loads: list[float] = []

    def wanted(self, works: list[tuple[str, str, str, dict[str, Any]]]) -> Any:
        return [work for work in works if self.only.search(f"{work[0]} {work[1]}")]

    def measure(self, broker: RunningBroker, topic: str, work: tuple[str, str, str, dict[str, Any]]) -> None:
        name, who, measure, options = work
        self.loads.append(os.getloadavg()[0])
        try:
            if measure.startswith("perf"):
                found = globals()[measure](broker.service_url, topic, **options)
            else:
                found = in_process(measure, LIBRARIES[who], broker.service_url, topic, options)
        except (RuntimeError, OSError, subprocess.SubprocessError, ValueError) as error:
            self.failed.append(f"{name}, {who}: {error}")
            print(f"{name} | {who} | failed: {error}", file=sys.stderr, flush=True)
            return
        self.rows.setdefault((name, who), []).append(found)
        rate, cpu = found["messages"] / found["seconds"], found["cpu"] / found["messages"] * 1e6
        thread = found["thread"] / found["messages"] * 1e6
        print(
            f"{name:45} {who:20} {rate / 1000:9.0f} k/s  {cpu:6.3f} µs  {thread:6.3f} µs in the thread"
            + (f"  {found['failed']:.0f} FAILED" if found["failed"] else ""),
            file=sys.stderr,
            flush=True,
        )

    def values(self) -> dict[str, Any]:
        return {
            "machine": machine(),
            "load": [round(min(self.loads), 1), round(max(self.loads), 1)],
            "rows": [
                {"work": work, "who": who, "runs": runs} for (work, who), runs in self.rows.items()
            ],
            "failed": self.failed,
        }  # fmt: skip


def in_process(
    measure: str,
    library: str,
    url: str,
    topic: str,
    options: dict[str, Any],
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    seconds_max: float = 120,
) -> dict[str, float]:
    """What one process measures; raises `RuntimeError` when it says nothing."""
    run = subprocess.run(
        [python, "-m", "benchmarks.client", "--one", measure, library, url, topic, json.dumps(options)],
        stdout=subprocess.PIPE, text=True, timeout=seconds_max, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"it ended with {run.returncode} and said nothing")
    found: dict[str, float] = json.loads(lines[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a pattern of what is done and who does it")
    parser.add_argument("--no-apache", action="store_true")
    parser.add_argument("--backlog", type=int, default=BACKLOG, help=f"to be consumed (default {BACKLOG:,})")
    parser.add_argument("--publish", action="store_true", help=f"write {PUBLISHED.name}")
    given = parser.parse_args()
    if given.one:
        measure, library, url, topic, options = given.one
        found = MEASURES[measure](importlib.import_module(library), url, topic, **json.loads(options))
        print(json.dumps(found), flush=True)
        os._exit(0)  # what an orderly end costs is not measured here
    run = Run(given.only)
    with brokers.work_folder() as folder, brokers.geminga(folder) as ours:
        consuming = run.wanted(CONSUMING)
        filled = "persistent://public/default/filled"
        if consuming:
            perf_too = any(work[1] == PULSAR_PERF for work in consuming)
            fill(ours.service_url, filled, given.backlog if perf_too else given.backlog // 3)
        for number in range(given.rounds):
            for place, work in enumerate(run.wanted(PRODUCING)):
                run.measure(ours, f"persistent://public/default/made-{number}-{place}", work)
            for work in consuming:
                run.measure(ours, filled, work)
    if not given.no_apache and run.wanted(CONSUMING_APACHE):
        with brokers.work_folder() as folder, brokers.apache(folder) as apache:
            fill(apache.service_url, filled, given.backlog)
            for _ in range(given.rounds):
                for work in run.wanted(CONSUMING_APACHE):
                    run.measure(apache, filled, work)
    values = run.values()
    print(json.dumps(values["machine"]), platform.python_version(), "load", values["load"])
    if given.publish:
        PUBLISHED.write_text(json.dumps(values, indent=1) + "\n")
        print(f"wrote {PUBLISHED}; `make docs` draws the pages")


if __name__ == "__main__":
    main()
