"""Loss of unkeyed publishing when the broker of one of eight partitions is stopped.

Two standalone brokers are processes of their own; a lookup front that serves nothing itself sends clients
to the second one for partition 3 and to the first one for the others. A producer publishes numbered rows of
100 B at full speed; the second broker is stopped (SIGSTOP: its connections stay open without answers) and
continued (SIGCONT). At the end all partitions are read back: each row with a receipt must be stored once.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import brokers
from benchmarks.figures import PULSAR_CLIENT
from benchmarks.harness import OURS, Figure, Measurement, collect, emit, python, resident_megabytes
from benchmarks.withholding import Peer

STUCK = 3
HEALTHY_WORK = "eight partitions: healthy"
STOPPED_WORK = "eight partitions, one broker stopped"
MEMORY_WORK = "eight partitions, one broker stopped: resident growth"
WARM_UP_SECONDS = 1.0
WINDOW_SECONDS = 4.0
DRAIN_SECONDS_MAX = 60.0
PADDING = b"x" * 88
OFFICIAL_WAY = f"{OURS}, step_over_blocked_partitions=False"
WAYS = {OURS: ("geminga", True), OFFICIAL_WAY: ("geminga", False), PULSAR_CLIENT: ("pulsar", False)}


@contextmanager
def lookup_front(serving: str, stuck: str) -> Iterator[str]:
    """The service URL under which partition `STUCK` is found at ``stuck`` and the rest at ``serving``."""
    from geminga.client.io.runtime import LoopThread

    class Front(Peer):
        def broker_of(self, topic: str) -> str:
            return stuck if topic.endswith(f"-partition-{STUCK}") else serving

    async def listen() -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(Front, "127.0.0.1", 0)

    async def close(server: asyncio.Server) -> None:
        server.close()

    runtime = LoopThread("lookup-front")
    server = runtime.call(listen(), 10)
    try:
        yield f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        runtime.call(close(server), 10)
        runtime.close()


@dataclass(frozen=True, slots=True)
class Mark:
    """Counters at a moment."""

    seconds: float
    cpu_seconds: float
    receipts: int
    resident_megabytes: float


class Sender:
    """Publishes numbered rows from a thread of its own, so that a call that blocks blocks no measurement."""

    def __init__(self, producer: Any, ok: Any) -> None:
        self.offered = 0
        self.receipts = 0
        self.failures: list[str] = []
        self._producer = producer
        self._ok = ok
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        send, receipted, padding, ending = self._producer.send_async, self._receipted, PADDING, self._ending
        while not ending.is_set():
            for number in range(self.offered, self.offered + 100):
                send(b"%012d" % number + padding, receipted)
            self.offered += 100

    def _receipted(self, result: Any, _message_id: Any) -> None:
        if result == self._ok:
            self.receipts += 1
        else:
            self.failures.append(str(result))

    def mark(self) -> Mark:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Mark(
            time.perf_counter(),
            usage.ru_utime + usage.ru_stime,
            self.receipts,
            resident_megabytes(os.getpid()),
        )

    def finish(self) -> None:
        """Stop offering and wait until every row has its receipt or its error."""
        self._ending.set()
        self._thread.join(DRAIN_SECONDS_MAX)
        if self._thread.is_alive():
            raise RuntimeError(f"a send still blocks {DRAIN_SECONDS_MAX} s after the broker went on")
        self._producer.flush()
        # A callback may run on another thread a moment after flush() has returned.
        end = time.monotonic() + DRAIN_SECONDS_MAX
        while self.receipts + len(self.failures) < self.offered and time.monotonic() < end:
            time.sleep(0.01)
        if self.failures or self.receipts != self.offered:
            raise RuntimeError(
                f"{self.offered} rows offered, {self.receipts} receipted, {len(self.failures)} failed: "
                f"{self.failures[:1]}"
            )


def publish(who: str, url: str, topic: str, stop_pid: int) -> None:
    """Publish, healthy and with the process ``stop_pid`` stopped; emits the measurements."""
    name, step_over = WAYS[who]
    library = importlib.import_module(name)
    options = {} if name == "pulsar" else {"step_over_blocked_partitions": step_over}
    client = library.Client(url)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=1000, block_if_queue_full=True,
        max_pending_messages=5_000, **options,
    )  # fmt: skip
    sender = Sender(producer, library.Result.Ok)
    time.sleep(WARM_UP_SECONDS)
    start = sender.mark()
    time.sleep(WINDOW_SECONDS)
    healthy = sender.mark()
    os.kill(stop_pid, signal.SIGSTOP)
    try:
        time.sleep(WINDOW_SECONDS)
        stopped = sender.mark()
    finally:
        os.kill(stop_pid, signal.SIGCONT)
    time.sleep(WARM_UP_SECONDS)
    sender.finish()
    client.close()
    growth = max(0.0, stopped.resident_megabytes - healthy.resident_megabytes)
    emit(
        _measurement(HEALTHY_WORK, who, start, healthy),
        _measurement(STOPPED_WORK, who, healthy, stopped, _read_back(topic, url, sender.offered)),
        Figure(work=MEMORY_WORK, who=who, value=growth, unit="MB"),
    )


def _measurement(work: str, who: str, start: Mark, end: Mark, note: str = "") -> Measurement:
    messages = end.receipts - start.receipts
    cpu = end.cpu_seconds - start.cpu_seconds if messages else None
    seconds = end.seconds - start.seconds
    return Measurement(work=work, who=who, messages=messages, seconds=seconds, cpu_seconds=cpu, note=note)


def _read_back(topic: str, url: str, rows: int) -> str:
    """Read all partitions back; raises `RuntimeError` unless each of ``rows`` numbers is there once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    import geminga

    seen = np.zeros(rows, np.int64)
    read = 0
    with geminga.Client(url) as client:
        consumer = client.subscribe(
            topic, "read-back", initial_position=geminga.InitialPosition.Earliest, receiver_queue_size=50_000
        )
        while True:
            try:
                # A last look when all seem to be there: what was stored twice comes too.
                table = consumer.receive_table(timeout_millis=20_000 if read < rows else 1_000)
            except geminga.Timeout:
                break
            digits = pc.binary_slice(table["value"], 0, 12).cast(pa.string())
            np.add.at(seen, digits.cast(pa.int64()).to_numpy(), 1)
            read += table.num_rows
            consumer.acknowledge_table(table)
    lost, doubled = int((seen == 0).sum()), int((seen > 1).sum())
    if lost or doubled:
        raise RuntimeError(f"of {rows} receipted rows {lost} are lost and {doubled} are stored twice")
    return f"{rows} receipted, none lost or doubled"


def measure(folder: Path, runs: int) -> list[Measurement | Figure]:
    """Ours, ours in the official clients' way, and pulsar-client, in turn and each in its own process."""
    results: list[Measurement | Figure] = []
    with (
        brokers.geminga(folder / "serving") as serving,
        brokers.geminga(folder / "stuck") as stuck,
        lookup_front(serving.service_url, stuck.service_url) as url,
    ):
        for run in range(runs):
            for number, who in enumerate(WAYS):
                topic = f"persistent://public/default/eight-{run}-{number}-{time.time_ns()}"
                command = python(
                    "benchmarks.stuck_partition", "--who", who, "--url", url, "--topic", topic,
                    "--stop-pid", str(stuck.pid),
                )  # fmt: skip
                try:
                    results += collect(command, timeout_seconds=180)
                finally:
                    os.kill(stuck.pid, signal.SIGCONT)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--who", choices=tuple(WAYS), required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--stop-pid", type=int, required=True)
    given = parser.parse_args()
    publish(given.who, given.url, given.topic, given.stop_pid)


if __name__ == "__main__":
    main()
