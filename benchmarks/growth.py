"""Growth of an operation's cost with the number of objects it concerns: CPU seconds at four sizes each.

``python -m benchmarks.growth`` runs every axis against brokers of its own and prints a table: the CPU
seconds at each size, the exponent fitted from the second size on (1 is in proportion), and at the largest
size the longest wait of a PING on a calm connection, the broker's CPU in that wait, and its memory.
``--publish`` writes the figures from which ``make docs`` draws ``docs/limits-and-growth.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import math
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geminga
import geminga.asyncio
from benchmarks import brokers, figures, output
from benchmarks.harness import resident_megabytes, threads_cpu_seconds
from benchmarks.topics import Probe, Standalone, Waits, probing
from geminga.functions import FunctionRunner, FunctionSettings
from geminga.mirror import Cluster, Mirror, MirrorSettings
from geminga.testing.apache_pulsar import ApachePulsar
from geminga.tuning.measuring.host import machine

PUBLISHED = Path(__file__).parent.parent / "docs/proof/growth.json"

NAMESPACE = "/admin/v2/persistent/public/default"
AT_ONCE = 50
DELAY_SECONDS = 20.0
DELAYED_PER_SECOND = 300
"""Delayed messages that are surely published in a second, before the first of them is due."""
Consumers = list[geminga.asyncio.Consumer[bytes]]


class Collector:
    """CPU seconds of the garbage collector of this process."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0
        gc.callbacks.append(self._passed)

    def _passed(self, phase: str, _: object) -> None:
        """Add a pass, called by the collector before and behind it."""
        if phase == "start":
            self._began = time.process_time()
        else:
            self.seconds += time.process_time() - self._began


COLLECTOR = Collector()


def client_cpu() -> float:
    """CPU seconds of this process, without those of `COLLECTOR`."""
    return time.process_time() - COLLECTOR.seconds


class Run:
    """One size of one axis, on a broker of its own."""

    def __init__(self, broker: Standalone, client: geminga.asyncio.Client, probe: Probe) -> None:
        self.broker = broker
        self.client = client
        self.probe = probe
        self.waits = Waits()
        self.collector_seconds = 0.0

    def broker_cpu(self) -> float:
        return threads_cpu_seconds(self.broker.process.pid)

    async def cost(
        self, work: Callable[[], Awaitable[object]], cpu: Callable[[], float] | None = None, times: int = 1
    ) -> float:
        """CPU seconds of the broker, or by the clock ``cpu``, for ``work``; the least of several times."""
        cpu = cpu or self.broker_cpu
        await asyncio.sleep(0.5)  # the work of the set-up ends
        self.probe.waits()
        found, collected = math.inf, COLLECTOR.seconds
        for _ in range(times):
            before = cpu()
            await work()
            found = min(found, cpu() - before)
        self.waits = self.probe.waits()
        self.collector_seconds = (COLLECTOR.seconds - collected) / times
        return found

    async def web(self, path: str, method: str = "GET", body: object = None) -> bytes:
        return await asyncio.to_thread(self.broker.web, path, method, body)

    async def created_topics(self, count: int) -> list[str]:
        """Create topics ``t-00000``, ``t-00001``, ..."""
        topics = [f"t-{number:05}" for number in range(count)]
        for start in range(0, count, AT_ONCE):
            await asyncio.gather(
                *(self.web(f"{NAMESPACE}/{topic}", "PUT", {}) for topic in topics[start : start + AT_ONCE])
            )
        return topics

    async def published(self, topics: list[str], messages: int = 1) -> None:
        """Publish some messages to each topic."""
        for topic in topics:
            producer = await self.client.create_producer(topic, batching_enabled=False)
            await asyncio.gather(*(producer.send(b"x") for _ in range(messages)))
            await producer.close()

    async def created_subscriptions(self, count: int) -> None:
        """Create topic ``t`` with subscriptions ``s-0``, ``s-1``, ..."""
        await self.web(f"{NAMESPACE}/t", "PUT", {})
        for start in range(0, count, AT_ONCE):
            await asyncio.gather(
                *(self.web(f"{NAMESPACE}/t/subscription/s-{n}", "PUT") for n in range(start, start + AT_ONCE))
            )

    async def subscribed(
        self, count: int, kind: geminga.ConsumerType, first: int = 0, **options: Any
    ) -> Consumers:
        """Consumers of topic ``t``, opened some at a time."""
        found: Consumers = []
        for start in range(first, first + count, AT_ONCE):
            found += await asyncio.gather(
                *(
                    self.client.subscribe(
                        "t",
                        options.get("subscription", "s").format(number),
                        consumer_type=kind,
                        consumer_name=f"consumer-{number:06}",
                        receiver_queue_size=options.get("queue", 1000),
                    )
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


def opening(kind: geminga.ConsumerType) -> Axis:
    async def axis(run: Run, count: int) -> float:
        return await run.cost(lambda: run.subscribed(count, kind))

    return axis


async def held(run: Run, count: int, kind: geminga.ConsumerType) -> Consumers:
    """Consumers that hold messages, while more wait."""
    consumers = await run.subscribed(count, kind)
    producer = await run.client.create_producer("t", block_if_queue_full=True, batching_enabled=False)
    await asyncio.gather(*(producer.send(b"x", partition_key=str(n)) for n in range(10 * count)))
    return consumers


def closing(kind: geminga.ConsumerType) -> Axis:
    async def axis(run: Run, count: int) -> float:
        consumers = await held(run, count, kind)

        async def close() -> None:
            await asyncio.gather(*(consumer.close() for consumer in consumers))

        return await run.cost(close)

    return axis


def stopping(kind: geminga.ConsumerType) -> Axis:
    """The broker gets SIGTERM."""

    async def axis(run: Run, count: int) -> float:
        await held(run, count, kind)
        before = run.broker_cpu() + _cpu_of_ended_processes()
        await asyncio.to_thread(run.broker.stop)
        cost = _cpu_of_ended_processes() - before
        await asyncio.to_thread(run.broker.start)
        return cost

    return axis


def _cpu_of_ended_processes() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def messages_beside_blocked_consumers(run: Run, count: int) -> float:
    """Each of the others holds as many messages as it may; 300 messages go to one that acknowledges."""
    await run.web("/admin/v2/namespaces/public/default/maxUnackedMessagesPerConsumer", "POST", 1)
    await run.subscribed(count, geminga.ConsumerType.Shared)
    producer = await run.client.create_producer("t", block_if_queue_full=True, batching_enabled=False)
    await asyncio.gather(*(producer.send(b"x") for _ in range(count)))
    [consumer] = await run.subscribed(1, geminga.ConsumerType.Shared, count)

    async def exchange() -> None:
        for _ in range(300):
            await producer.send(b"x")
            await consumer.acknowledge(await consumer.receive())

    return await run.cost(exchange)


async def redelivery(run: Run, count: int) -> float:
    """A Key_Shared consumer asks for all of its messages again."""
    [consumer] = await run.subscribed(1, geminga.ConsumerType.KeyShared, queue=count)
    producer = await run.client.create_producer("t", block_if_queue_full=True, batching_enabled=False)
    await asyncio.gather(*(producer.send(b"x", partition_key=str(n)) for n in range(count)))
    await asyncio.sleep(1)

    async def redeliver() -> None:
        await consumer.redeliver_unacknowledged_messages()
        await asyncio.sleep(1)

    return await run.cost(redeliver)


async def failover_join_and_leave(run: Run, count: int) -> float:
    """Ten consumers join and leave beside ``count`` others."""
    await run.subscribed(count, geminga.ConsumerType.Failover)

    async def join_and_leave() -> None:
        for consumer in await run.subscribed(10, geminga.ConsumerType.Failover, count):
            await consumer.close()

    return await run.cost(join_and_leave, times=2)


# --- topics of one consumer: the client's CPU ---
async def _many_topics(run: Run, count: int, work: str) -> float:
    topics = await run.created_topics(count)
    if work == "subscribe with pulsar-client":
        return await _subscribe_with_pulsar_client(run, topics)
    consumers: Consumers = []

    async def subscribe() -> None:
        consumers.append(await run.client.subscribe(topics, "s"))

    cost = await run.cost(subscribe, client_cpu)
    [consumer] = consumers
    if work == "seek with messages":
        await run.published(topics, 10)

    async def seek() -> None:
        await consumer.seek(geminga.MessageId.earliest)
        if work == "seek with messages":
            await asyncio.sleep(1)  # until all are received again: with few topics few are when it returns

    async def reconnect() -> None:
        await asyncio.to_thread(run.broker.kill)
        await asyncio.to_thread(run.broker.start)
        while not consumer.is_connected():
            await asyncio.sleep(0.1)

    if work == "reconnect":
        # The probe's connection ends with the broker.
        before, collected = client_cpu(), COLLECTOR.seconds
        await reconnect()
        run.collector_seconds = COLLECTOR.seconds - collected
        return client_cpu() - before
    if work.startswith("seek"):
        return await run.cost(seek, client_cpu, times=10)
    if work == "close":
        return await run.cost(consumer.close, client_cpu)
    return cost


async def _subscribe_with_pulsar_client(run: Run, topics: list[str]) -> float:
    import pulsar

    url = f"pulsar://127.0.0.1:{run.broker.port}"
    client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    try:
        return await run.cost(
            lambda: asyncio.to_thread(client.subscribe, topics, "s"), client_cpu
        )  # fmt: skip
    finally:
        await asyncio.to_thread(client.close)


async def empty_receives(run: Run, count: int) -> float:
    """100 receives without a queue, of messages of one topic among ``count``."""
    topics = [f"t-{number:05}" for number in range(count)]
    consumer = await run.client.subscribe(topics, "s", receiver_queue_size=0)
    producer = await run.client.create_producer(topics[0])

    async def exchange() -> None:
        for _ in range(100):
            await producer.send(b"x")
            await consumer.acknowledge(await consumer.receive())

    return await run.cost(exchange, client_cpu)


def many_topics(work: str) -> Axis:
    async def axis(run: Run, count: int) -> float:
        return await _many_topics(run, count, work)

    return axis


# --- programs that use the client: their CPU ---
async def spark_plan(run: Run, count: int) -> float:
    """The plan of a batch query over ``count`` partitions with a message each, without Spark."""
    from geminga.spark.datasource import PulsarDataSource

    await run.web(f"{NAMESPACE}/p/partitions", "PUT", count)
    await run.published([f"p-partition-{number}" for number in range(count)])
    url = f"pulsar://127.0.0.1:{run.broker.port}"
    source = PulsarDataSource({"service.url": url, "topic": "p", "startingoffsets": "earliest"})

    def plan() -> None:
        assert source.reader(source.schema()).partitions()

    return await run.cost(lambda: asyncio.to_thread(plan), client_cpu, times=3)


async def function_inputs(run: Run, count: int) -> float:
    """A function starts and is called for a message of each of ``count`` topics."""
    topics = await run.created_topics(count)
    await run.published(topics)
    called: list[object] = []
    url = f"pulsar://127.0.0.1:{run.broker.port}"
    runner = FunctionRunner(FunctionSettings(function=called.append, inputs=topics, service_url=url))

    async def call() -> None:
        runner.start()
        while len(called) < count:
            await asyncio.sleep(0.1)

    try:
        return await run.cost(call, client_cpu)
    finally:
        await asyncio.to_thread(runner.close)


async def mirrored_topics(run: Run, count: int) -> float:
    """A mirror copies ``count`` topics with a message each to another broker."""
    await run.published(await run.created_topics(count))
    with brokers.work_folder() as folder:
        target = Standalone(folder)
        target.start()
        try:
            source, other = (
                Cluster(
                    service_url=f"pulsar://127.0.0.1:{each.port}",
                    admin_url=f"http://127.0.0.1:{each.web_port}",
                )
                for each in (run.broker, target)
            )
            mirror = Mirror(
                MirrorSettings(source=source, target=other, topics=["t-.*"], name="growth", once=True)
            )
            copy = functools.partial(asyncio.to_thread, mirror.run, signals=False)
            return await run.cost(copy, client_cpu)
        finally:
            target.stop()


# --- topics and messages of the broker ---
async def metrics_of_topics(run: Run, count: int) -> float:
    """``count`` topics with a message, a subscription and a consumer."""
    topics = await run.created_topics(count)
    await run.client.subscribe(topics, "s", receiver_queue_size=1)
    await run.published(topics)
    return await run.cost(lambda: run.web("/metrics"), times=3)


async def partitioned_stats(run: Run, count: int) -> float:
    await run.web(f"{NAMESPACE}/p/partitions", "PUT", count)
    await run.web(f"{NAMESPACE}/p/subscription/s", "PUT")
    return await run.cost(lambda: run.web(f"{NAMESPACE}/p/partitioned-stats"))


def of_subscriptions(path: str, method: str = "GET", at_once: int = 1) -> Axis:
    """A request about a topic with subscriptions that have a backlog, some ``at_once``."""

    async def axis(run: Run, count: int) -> float:
        await run.created_subscriptions(count)
        producer = await run.client.create_producer("t")
        await producer.send(b"x")

        async def ask() -> None:
            await asyncio.gather(*(run.web(path, method) for _ in range(at_once)))

        return await run.cost(ask, times=1 if method == "POST" else 3)

    return axis


async def dispatch_to_subscriptions(run: Run, count: int) -> float:
    """A message reaches a consumer of each subscription."""
    await run.subscribed(count, geminga.ConsumerType.Exclusive, subscription="s-{}", queue=10)
    producer = await run.client.create_producer("t")

    async def send() -> None:
        await producer.send(b"x")
        await asyncio.sleep(1)

    return await run.cost(send, times=3)


def _definition(number: int) -> dict[str, Any]:
    field = {"name": f"f{number}", "type": "int", "default": 0}
    text = json.dumps({"type": "record", "name": "r", "fields": [field]})
    return {"type": "JSON", "schema": text, "properties": {}}


async def schema_versions(run: Run, count: int) -> float:
    """A schema with ``count`` versions gets 100 more, each of which is registered twice."""
    path = "/admin/v2/schemas/public/default/t/schema"
    await run.web(f"{NAMESPACE}/t", "PUT", {})
    for number in range(count):
        await run.web(path, "POST", _definition(number))

    async def register() -> None:
        for number in range(count, count + 100):
            await run.web(path, "POST", _definition(number))
            await run.web(path, "POST", _definition(number))

    return await run.cost(register)


async def delayed_messages(run: Run, count: int) -> float:
    """They fall due at one moment, and no consumer has permits."""
    await run.client.subscribe("t", "s", consumer_type=geminga.ConsumerType.Shared, receiver_queue_size=1)
    due = int((time.time() + max(DELAY_SECONDS, count / DELAYED_PER_SECOND)) * 1000)
    producer = await run.client.create_producer("t", block_if_queue_full=True, batching_enabled=False)
    await asyncio.gather(*(producer.send(b"x", deliver_at=due) for _ in range(count)))
    await asyncio.sleep(max(0.0, due / 1000 - 2 - time.time()))
    return await run.cost(lambda: asyncio.sleep(due / 1000 + 3 - time.time()))


class Apache(Standalone):
    """Apache Pulsar's standalone broker instead of ours."""

    def start(self) -> float:
        began = time.perf_counter()
        self._started = ApachePulsar.start(brokers.pulsar_home(), self.folder, timeout_seconds=300)
        self.process = self._started.process.process
        self.port, self.web_port = self._started.port, self._started.web_port
        return time.perf_counter() - began

    def stop(self) -> None:
        self._started.stop()


KEY_SHARED, SHARED, FAILOVER = (
    geminga.ConsumerType.KeyShared, geminga.ConsumerType.Shared, geminga.ConsumerType.Failover
)  # fmt: skip
HUNDREDS = (30, 100, 300, 1000)
THOUSANDS = (100, 300, 1000, 3000)
TEN_THOUSANDS = (1000, 3000, 10_000, 30_000)
Axis = Callable[[Run, int], Awaitable[float]]
AXES: dict[str, tuple[Axis, tuple[int, ...]]] = {
    "a scrape of /metrics, n Key_Shared consumers": (metrics_scrape, HUNDREDS),
    "a scrape of /metrics, n topics with a message each": (metrics_of_topics, (300, 1000, 3000, 10_000)),
    "stats, n Key_Shared consumers": (stats_of_key_shared, HUNDREDS),
    **{f"open n {kind.name} consumers": (opening(kind), HUNDREDS) for kind in (KEY_SHARED, SHARED, FAILOVER)},
    **{
        f"close n {kind.name} consumers with 10 messages each": (closing(kind), HUNDREDS)
        for kind in (KEY_SHARED, SHARED)
    },
    **{f"SIGTERM with n {kind.name} consumers": (stopping(kind), HUNDREDS) for kind in (KEY_SHARED, SHARED)},
    "300 messages beside n blocked Shared consumers": (messages_beside_blocked_consumers, HUNDREDS),
    "redeliver n messages of a Key_Shared consumer": (redelivery, TEN_THOUSANDS),
    "10 joins and leaves beside n Failover consumers": (failover_join_and_leave, HUNDREDS),
    "subscribe to n topics (client)": (many_topics("subscribe"), THOUSANDS),
    "subscribe to n topics (pulsar-client)": (many_topics("subscribe with pulsar-client"), THOUSANDS),
    "100 receives of n topics without a queue (client)": (empty_receives, HUNDREDS),
    "seek on n topics (client)": (many_topics("seek"), THOUSANDS),
    "seek on n topics with 10 messages each (client)": (many_topics("seek with messages"), HUNDREDS),
    "reconnect n topics (client)": (many_topics("reconnect"), THOUSANDS),
    "close a consumer of n topics (client)": (many_topics("close"), THOUSANDS),
    "plan of a Spark query over n partitions (client)": (spark_plan, HUNDREDS),
    "a function of n topics with a message each (client)": (function_inputs, HUNDREDS),
    "mirror n topics with a message each (client)": (mirrored_topics, HUNDREDS),
    "partitioned-stats of n partitions": (partitioned_stats, THOUSANDS),
    "stats, n subscriptions of a topic": (of_subscriptions(f"{NAMESPACE}/t/stats"), THOUSANDS),
    "10 stats at once, n subscriptions of a topic": (
        of_subscriptions(f"{NAMESPACE}/t/stats", at_once=10),
        THOUSANDS,
    ),
    "internalStats, n subscriptions of a topic": (
        of_subscriptions(f"{NAMESPACE}/t/internalStats"),
        THOUSANDS,
    ),
    "expireMessages of n subscriptions": (
        of_subscriptions(f"{NAMESPACE}/t/all_subscription/expireMessages/1", "POST"),
        THOUSANDS,
    ),
    "clearBacklog of n subscriptions": (
        of_subscriptions("/admin/v2/namespaces/public/default/clearBacklog", "POST"),
        THOUSANDS,
    ),
    "one message for n subscriptions": (dispatch_to_subscriptions, THOUSANDS),
    "100 versions of a schema beside n": (schema_versions, HUNDREDS),
    "n delayed messages fall due at one moment": (delayed_messages, TEN_THOUSANDS),
}
BESIDE = "(Apache Pulsar)"
AXES |= {
    f"{name} {BESIDE}": (AXES[name][0], AXES[name][1][:3])
    for name in (
        "a scrape of /metrics, n Key_Shared consumers",
        "stats, n Key_Shared consumers",
        "partitioned-stats of n partitions",
    )
}


@dataclass(frozen=True, slots=True)
class Point:
    """Cost of one size."""

    count: int
    cpu_seconds: float
    collector_seconds: float
    waits: Waits
    megabytes: float


@asynccontextmanager
async def running(broker: Standalone) -> AsyncIterator[Run]:
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


async def measure(axis: Axis, count: int, kind: type[Standalone]) -> Point:
    with brokers.work_folder() as folder:
        async with running(kind(folder)) as run:
            cpu = await axis(run, count)
            megabytes = resident_megabytes(run.broker.process.pid)
            return Point(count, cpu, run.collector_seconds, run.waits, megabytes)


def exponent(points: list[Point]) -> float:
    """Slope of the line through the logarithms, from the second size on."""
    x = [math.log(point.count) for point in points[1:]]
    y = [math.log(max(point.cpu_seconds, 1e-6)) for point in points[1:]]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)


def row(name: str, points: list[Point]) -> dict[str, Any]:
    last = points[-1]
    return {
        "axis": name,
        "cpu": {str(point.count): point.cpu_seconds for point in points},
        "collector": {str(point.count): point.collector_seconds for point in points if "(client)" in name},
        "exponent": exponent(points),
        "wait": last.waits.longest,
        "wait_cpu": last.waits.loop_cpu,
        "megabytes": last.megabytes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="axes whose name contains this text")
    output.add_options(parser, PUBLISHED)
    given = parser.parse_args()
    loads = [os.getloadavg()[0]]
    values = json.loads(PUBLISHED.read_text()) if given.publish and PUBLISHED.exists() else {"rows": []}
    found = {row["axis"]: row for row in values["rows"]}  # the axes that are not measured keep their figures
    for name, (axis, sizes) in AXES.items():
        if given.only and given.only not in name:
            continue
        try:
            kind = Apache if name.endswith(BESIDE) else Standalone
            found[name] = row(name, [asyncio.run(measure(axis, size, kind)) for size in sizes])
        except Exception as error:
            # One axis that cannot be measured must not cost the figures of the others.
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        print(figures.growth_row(found[name]), file=sys.stderr, flush=True)
        loads.append(os.getloadavg()[0])
        load = [round(min(loads), 1), round(max(loads), 1)]
        rows = [found[name] for name in AXES if name in found]
        values = {"machine": machine(), "load": load, "rows": rows}
        if given.publish:
            output.publish(PUBLISHED, values)
    output.show(given, figures.growth(values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
