"""Growth of an operation's cost with the number of objects it concerns: CPU seconds at four sizes each.

``python -m benchmarks.growth`` runs every axis against brokers of its own and prints a table: the CPU
seconds at each size, the exponent fitted from the second size on (1 is in proportion), and at the largest
size the longest wait of a PING on a calm connection, the broker's CPU in that wait, and its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geminga
import geminga.asyncio
from benchmarks import brokers
from benchmarks.harness import resident_megabytes, threads_cpu_seconds
from benchmarks.topics import Probe, Standalone, Waits, probing

NAMESPACE = "/admin/v2/persistent/public/default"
AT_ONCE = 50
DELAY_SECONDS = 20.0
Consumers = list[geminga.asyncio.Consumer[bytes]]


class Run:
    """One size of one axis, on a broker of its own."""

    def __init__(self, broker: Standalone, client: geminga.asyncio.Client, probe: Probe) -> None:
        self.broker = broker
        self.client = client
        self.probe = probe
        self.waits = Waits()

    def broker_cpu(self) -> float:
        return threads_cpu_seconds(self.broker.process.pid)

    async def cost(
        self, work: Callable[[], Awaitable[object]], cpu: Callable[[], float] | None = None, times: int = 1
    ) -> float:
        """CPU seconds of the broker, or by the clock ``cpu``, for ``work``; the least of several times."""
        cpu = cpu or self.broker_cpu
        await asyncio.sleep(0.5)  # the work of the set-up ends
        self.probe.waits()
        found = math.inf
        for _ in range(times):
            before = cpu()
            await work()
            found = min(found, cpu() - before)
        self.waits = self.probe.waits()
        return found

    async def web(self, path: str, method: str = "GET", body: object = None) -> bytes:
        return await asyncio.to_thread(self.broker.web, path, method, body)

    async def subscribed(self, count: int, kind: geminga.ConsumerType, first: int = 0) -> Consumers:
        """Consumers of topic ``t``, opened some at a time."""
        found: Consumers = []
        for start in range(first, first + count, AT_ONCE):
            found += await asyncio.gather(
                *(
                    self.client.subscribe("t", "s", consumer_type=kind, consumer_name=f"consumer-{number:06}")
                    for number in range(start, min(start + AT_ONCE, first + count))
                )
            )
        return found


# --- consumers of one subscription ---
async def metrics_scrape(run: Run, count: int) -> float:
    await run.subscribed(count, geminga.ConsumerType.KeyShared)
    return await run.cost(lambda: run.web("/metrics"), times=3)


async def stats_of_key_shared(run: Run, count: int) -> float:
    await run.subscribed(count, geminga.ConsumerType.KeyShared)
    return await run.cost(lambda: run.web(f"{NAMESPACE}/t/stats"), times=3)


async def opening_key_shared(run: Run, count: int) -> float:
    return await run.cost(lambda: run.subscribed(count, geminga.ConsumerType.KeyShared))


async def closing_key_shared(run: Run, count: int) -> float:
    """Each consumer holds messages, and more wait."""
    consumers = await run.subscribed(count, geminga.ConsumerType.KeyShared)
    producer = await run.client.create_producer("t", block_if_queue_full=True)
    await asyncio.gather(*(producer.send(b"x", partition_key=str(n)) for n in range(10 * count)))

    async def close() -> None:
        await asyncio.gather(*(consumer.close() for consumer in consumers))

    return await run.cost(close)


async def failover_join_and_leave(run: Run, count: int) -> float:
    """Ten consumers join and leave beside ``count`` others."""
    await run.subscribed(count, geminga.ConsumerType.Failover)

    async def join_and_leave() -> None:
        for consumer in await run.subscribed(10, geminga.ConsumerType.Failover, count):
            await consumer.close()

    return await run.cost(join_and_leave, times=2)


# --- topics of one consumer: the client's CPU ---
async def _many_topics(run: Run, count: int, work: str) -> float:
    topics = [f"t-{number:05}" for number in range(count)]
    for start in range(0, count, AT_ONCE):
        await asyncio.gather(
            *(run.web(f"{NAMESPACE}/{topic}", "PUT", {}) for topic in topics[start : start + AT_ONCE])
        )
    consumers: Consumers = []

    async def subscribe() -> None:
        consumers.append(await run.client.subscribe(topics, "s"))

    cost = await run.cost(subscribe, time.process_time)
    [consumer] = consumers

    async def reconnect() -> None:
        await asyncio.to_thread(run.broker.kill)
        await asyncio.to_thread(run.broker.start)
        while not consumer.is_connected():
            await asyncio.sleep(0.1)

    if work == "reconnect":
        # The probe's connection ends with the broker.
        before = time.process_time()
        await reconnect()
        return time.process_time() - before
    if work == "seek":
        return await run.cost(lambda: consumer.seek(geminga.MessageId.earliest), time.process_time)
    if work == "close":
        return await run.cost(consumer.close, time.process_time)
    return cost


def many_topics(work: str) -> Axis:
    async def axis(run: Run, count: int) -> float:
        return await _many_topics(run, count, work)

    return axis


# --- topics and messages of the broker ---
async def partitioned_stats(run: Run, count: int) -> float:
    await run.web(f"{NAMESPACE}/p/partitions", "PUT", count)
    await run.web(f"{NAMESPACE}/p/subscription/s", "PUT")
    return await run.cost(lambda: run.web(f"{NAMESPACE}/p/partitioned-stats"))


async def stats_of_subscriptions(run: Run, count: int) -> float:
    await run.web(f"{NAMESPACE}/t", "PUT", {})
    for start in range(0, count, AT_ONCE):
        await asyncio.gather(
            *(run.web(f"{NAMESPACE}/t/subscription/s-{n}", "PUT") for n in range(start, start + AT_ONCE))
        )
    return await run.cost(lambda: run.web(f"{NAMESPACE}/t/stats"), times=3)


async def delayed_messages(run: Run, count: int) -> float:
    """They fall due at one moment, and no consumer has permits."""
    await run.client.subscribe("t", "s", consumer_type=geminga.ConsumerType.Shared, receiver_queue_size=1)
    due = int((time.time() + DELAY_SECONDS) * 1000)
    producer = await run.client.create_producer("t", block_if_queue_full=True)
    await asyncio.gather(*(producer.send(b"x", deliver_at=due) for _ in range(count)))
    await asyncio.sleep(max(0.0, due / 1000 - 2 - time.time()))
    return await run.cost(lambda: asyncio.sleep(due / 1000 + 3 - time.time()))


Axis = Callable[[Run, int], Awaitable[float]]
AXES: dict[str, tuple[Axis, tuple[int, ...]]] = {
    "a scrape of /metrics, n Key_Shared consumers": (metrics_scrape, (30, 100, 300, 1000)),
    "stats, n Key_Shared consumers": (stats_of_key_shared, (30, 100, 300, 1000)),
    "open n Key_Shared consumers": (opening_key_shared, (30, 100, 300, 1000)),
    "close n Key_Shared consumers with 10 messages each": (closing_key_shared, (30, 100, 300, 1000)),
    "10 joins and leaves beside n Failover consumers": (failover_join_and_leave, (30, 100, 300, 1000)),
    "subscribe to n topics (client)": (many_topics("subscribe"), (100, 300, 1000, 3000)),
    "seek on n topics (client)": (many_topics("seek"), (100, 300, 1000, 3000)),
    "reconnect n topics (client)": (many_topics("reconnect"), (100, 300, 1000, 3000)),
    "close a consumer of n topics (client)": (many_topics("close"), (100, 300, 1000, 3000)),
    "partitioned-stats of n partitions": (partitioned_stats, (100, 300, 1000, 3000)),
    "stats, n subscriptions of a topic": (stats_of_subscriptions, (100, 300, 1000, 3000)),
    "n delayed messages fall due at one moment": (delayed_messages, (1000, 3000, 10_000, 30_000)),
}


@dataclass(frozen=True, slots=True)
class Point:
    """Cost of one size."""

    count: int
    cpu_seconds: float
    waits: Waits
    megabytes: float


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Run]:
    broker = Standalone(folder)
    broker.start()
    try:
        with probing(broker) as probe:
            url = f"pulsar://127.0.0.1:{broker.port}"
            client = geminga.asyncio.Client(url, operation_timeout_seconds=120)
            try:
                yield Run(broker, client, probe)
            finally:
                await client.close()
    finally:
        broker.stop()


async def measure(axis: Axis, count: int) -> Point:
    with brokers.work_folder() as folder:
        async with running(folder) as run:
            cpu = await axis(run, count)
            return Point(count, cpu, run.waits, resident_megabytes(run.broker.process.pid))


def exponent(points: list[Point]) -> float:
    """Slope of the line through the logarithms, from the second size on."""
    x = [math.log(point.count) for point in points[1:]]
    y = [math.log(max(point.cpu_seconds, 1e-6)) for point in points[1:]]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)


def row(name: str, points: list[Point]) -> str:
    costs = ", ".join(f"{point.count:,}: {point.cpu_seconds:.3f} s" for point in points)
    last = points[-1]
    return f"| {name} | {costs} | {exponent(points):.2f} | {last.waits} | {last.megabytes:.0f} MB |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="axes whose name contains this text")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    print("| axis | CPU at each size | exponent | longest PING at the largest | broker's memory |")
    print("|---|---|---:|---:|---:|")
    found: dict[str, Any] = {}
    for name, (axis, sizes) in AXES.items():
        if given.only and given.only not in name:
            continue
        points = [asyncio.run(measure(axis, size)) for size in sizes]
        print(row(name, points), flush=True)
        found[name] = {"exponent": exponent(points), "cpu": {p.count: p.cpu_seconds for p in points}}
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
