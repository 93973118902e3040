"""Whole programs in virtual time: the asyncio API and Geminga's broker, in an order that a seed decides.

Programs send, receive, acknowledge, cancel, read, follow a table view and close, all at once; connections
break meanwhile. The auditor records receipts and deliveries. It checks that no task sleeps while a message
is there for it, that nothing hangs at the end, and that cancelled calls left nothing attached.
"""

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest
from virtual import Clock, Network, Remembered, VirtualLoop, pass_time

import geminga.asyncio
from geminga import (
    AlreadyClosed,
    BatchingType,
    ConsumerBatchReceivePolicy,
    ConsumerType,
    InitialPosition,
    MessageId,
    PulsarException,
    Timeout,
)
from geminga.broker.serving.server import BrokerServer
from geminga.broker.settings import BrokerSettings

TOPIC = "persistent://public/default/t"
PATIENCE_SECONDS = 240.0


class World:
    """Program of one seed, with the auditor's records."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.numbers = r = random.Random(seed)
        self.clock = Clock()
        self.network = Network(r)
        self.loop = VirtualLoop(r, self.clock, self.network, r.choice([0.0, 0.2, 0.6]))
        self.faulty = r.random() < 0.5
        self.partitions = r.choice([0, 0, 3])
        self.kind = r.choice([ConsumerType.Shared, ConsumerType.Shared, ConsumerType.KeyShared,
                              ConsumerType.Exclusive, ConsumerType.Failover])  # fmt: skip
        self.nacks = r.random() < 0.3
        self.receipted: set[bytes] = set()
        self.handed_over: set[bytes] = set()
        self.came: Counter[bytes] = Counter()
        self.read: dict[int, list[tuple[int, bytes]]] = {}
        self.heard: dict[str, list[bytes]] = {}
        self.gave_up: Counter[str] = Counter()
        self.ends: list[str] = []
        self.senders: list[asyncio.Task[None]] = []
        self.actors: list[asyncio.Task[None]] = []
        self.consumers: list[Any] = []
        self.over = False
        self.loop.at_idle.append(self.nobody_sleeps)

    # --- the play ---
    def play(self) -> None:
        self.loop.play(self.seed, self.main())

    async def main(self) -> None:
        kinds = {"auto_create_topic_kind": "partitioned", "auto_create_partitions": 3}
        self.server = BrokerServer(
            BrokerSettings(
                memory=True,
                port=0,
                web_port=None,
                failover_delay_seconds=0.1,
                **(kinds if self.partitions else {}),
            )
        )
        await self.server.start()
        before = asyncio.all_tasks()
        self.client = geminga.asyncio.Client(
            self.server.settings.service_url,
            initial_backoff_interval_ms=10,
            max_backoff_interval_ms=300,
            memory_limit_bytes=self.numbers.choice([0, 0, 20_000]),
        )
        await self.act()
        self.came_at = self.clock.now
        await self.end()
        await pass_time(30)
        assert not self.server.connections, "connections outlive their client"
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        assert not left, f"tasks outlive their client: {left}"
        await self.server.stop()

    async def act(self) -> None:
        r = self.numbers
        for _ in range(1 if self.kind is ConsumerType.Exclusive else r.randrange(1, 4)):
            self.consumers.append(await self.subscribe("s"))
        for consumer in self.consumers:
            one = self.kind in (ConsumerType.Exclusive, ConsumerType.Failover)
            for _ in range(1 if one and r.random() < 0.3 else r.randrange(1, 5)):
                self.start(self.receive(consumer))
            for _ in range(r.randrange(3)):
                self.start(self.pass_by(consumer))
        for number in range(r.randrange(1, 4)):
            self.senders.append(asyncio.create_task(self.send(number)))
        for number in range(r.randrange(0, 3)):
            self.start(self.follow(number))
        view = await self.until_it_works(lambda: self.client.create_table_view(TOPIC))
        self.start(self.listen(view))
        self.view = view
        self.senders.append(asyncio.create_task(self.give_up_openings()))
        if self.faulty:
            self.senders.append(asyncio.create_task(self.break_things()))
        for sender in self.senders:
            await asyncio.wait_for(sender, PATIENCE_SECONDS)
        self.network.refuses = False
        await self.everything_comes()

    async def subscribe(self, name: str) -> Any:
        r = self.numbers
        queue = r.choice([1, 3, 50, 1000])
        delay = 50
        policy = r.choice([None, ConsumerBatchReceivePolicy(3, -1, 20)])
        grouping = r.choice([0, 5, 100])
        return await self.until_it_works(
            lambda: self.client.subscribe(
                TOPIC, name, self.kind, receiver_queue_size=queue, negative_ack_redelivery_delay_ms=delay,
                initial_position=InitialPosition.Earliest, batch_receive_policy=policy,
                ack_grouping_time_ms=grouping,
            )
        )  # fmt: skip

    async def until_it_works(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await asyncio.wait_for(call(), PATIENCE_SECONDS)

    def start(self, actor: Coroutine[Any, Any, None]) -> None:
        async def to_the_end() -> None:
            try:
                await actor
            except (AlreadyClosed, StopAsyncIteration):
                self.ends.append("closed")

        self.actors.append(asyncio.create_task(to_the_end()))

    async def send(self, number: int) -> None:
        r = self.numbers
        batching = r.random() < 0.5
        options: dict[str, Any] = {"batching_enabled": batching, "block_if_queue_full": True}
        if batching:
            options |= {"batching_max_messages": r.choice([2, 10]), "batching_max_publish_delay_ms": 5}
        if self.kind is ConsumerType.KeyShared:
            options["batching_type"] = BatchingType.KeyBased
        producer = await self.until_it_works(
            lambda: self.client.create_producer(TOPIC, max_pending_messages=r.choice([1, 5, 1000]), **options)
        )
        under_way: list[asyncio.Task[None]] = []
        for i in range(r.choice([1, 20, 60])):
            content = b"%d.%d" % (number, i)
            key = f"{number}-{r.randrange(3)}" if r.random() < 0.7 else None
            task = asyncio.create_task(self.send_one(producer, content, key))
            under_way.append(task)
            chance = r.random()
            if r.random() < 0.2:
                self.loop.victims.add(task)
                task.add_done_callback(self.loop.victims.discard)
            if chance < 0.2:
                await asyncio.wait([task])
            elif chance < 0.3:
                await pass_time(r.choice([0, 0.001, 0.02]))
                self.gave_up["send"] += task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        if r.random() < 0.5:
            await producer.close()

    async def send_one(self, producer: Any, content: bytes, key: str | None) -> None:
        self.handed_over.add(content)
        await producer.send(content, partition_key=key)
        self.receipted.add(content)

    async def receive(self, consumer: Any) -> None:
        r = self.numbers
        while True:
            way = r.random()
            if way < 0.4:
                call = consumer.receive()
            elif way < 0.7:
                call = consumer.receive(r.choice([0, 1, 20, 1000]))
            elif way < 0.85:
                call = consumer.batch_receive()
            else:
                call = anext(aiter(consumer))
            messages = await self.perhaps("receive", call)
            for message in messages if isinstance(messages, list) else [messages]:
                if message is None:
                    continue
                if r.random() < 0.1:
                    await pass_time(r.uniform(0, 0.05))
                if self.nacks and r.random() < 0.2:
                    await consumer.negative_acknowledge(message)
                    continue
                self.came[message.data()] += 1
                await consumer.acknowledge(message)

    async def pass_by(self, consumer: Any) -> None:
        """Wait for a message at times, and mostly go without one."""
        while not self.over:
            await pass_time(self.numbers.uniform(0, 0.1))
            message = await self.perhaps("receive", consumer.receive(self.numbers.choice([None, 0, 1, 5])))
            if message is not None:
                self.came[message.data()] += 1
                await consumer.acknowledge(message)

    async def perhaps(self, name: str, call: Coroutine[Any, Any, Any]) -> Any:
        """Await it, or give it up; None when it brought nothing."""
        r = self.numbers
        task = asyncio.ensure_future(call)
        if not self.over and r.random() < 0.5:
            self.loop.victims.add(task)
            task.add_done_callback(self.loop.victims.discard)
        elif not self.over and r.random() < 0.5:
            await pass_time(r.choice([0, 0, 0.0005, 0.01]))
            self.gave_up[name] += task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                raise
            return None
        except Timeout:
            return None

    async def follow(self, number: int) -> None:
        reader = await self.until_it_works(
            lambda: self.client.create_reader(
                TOPIC, MessageId.earliest, receiver_queue_size=self.numbers.choice([1, 10])
            )
        )
        found = self.read[number] = []
        while True:
            message = await self.perhaps("read", reader.read_next(self.numbers.choice([None, 5, 1000])))
            if message is not None:
                found.append((message.message_id().partition(), message.data()))

    async def listen(self, view: Any) -> None:
        async def told(key: str, value: bytes) -> None:
            if self.numbers.random() < 0.3:
                await pass_time(self.numbers.choice([0, 0.003]))
            self.heard.setdefault(key, []).append(value)

        await view.for_each_and_listen(told)

    async def give_up_openings(self) -> None:
        """Subscriptions, producers and readers that are cancelled at some moment leave nothing behind."""
        r = self.numbers
        several = [f"{TOPIC}-{i}" for i in range(3)]
        for _ in range(r.randrange(4)):
            calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
                lambda: self.client.subscribe(several, "given-up", ConsumerType.Exclusive),
                lambda: self.client.create_reader(TOPIC, MessageId.earliest),
                lambda: self.client.create_producer(TOPIC, "given-up"),
                lambda: self.client.create_table_view(TOPIC),
            ]
            task = asyncio.create_task(r.choice(calls)())
            self.loop.victims.add(task)
            task.add_done_callback(self.loop.victims.discard)
            await pass_time(r.choice([0, 0.001, 0.01, 0.02, 0.05]))
            self.gave_up["open"] += task.cancel()
            try:
                handle = await task
            except (asyncio.CancelledError, PulsarException):
                continue
            await handle.close()
        if not self.faulty:
            # Exclusive: a consumer that was left attached would make the broker refuse it.
            consumer = await self.until_it_works(
                lambda: self.client.subscribe(several, "given-up", ConsumerType.Exclusive)
            )
            producer = await self.until_it_works(lambda: self.client.create_producer(TOPIC, "given-up"))
            await producer.close()
            await consumer.close()

    async def break_things(self) -> None:
        r = self.numbers
        for _ in range(r.randrange(1, 6)):
            await pass_time(r.uniform(0, 0.3))
            self.network.cut()
            if r.random() < 0.3:
                self.network.refuses = True
                await pass_time(r.uniform(0, 0.5))
                self.network.refuses = False

    # --- the auditor ---
    def nobody_sleeps(self) -> None:
        """Check, while no task can run, that no receiver waits with a message in its queue."""
        for consumer in self.consumers:
            waiting = len(consumer.receive_waiters)
            assert not (waiting and consumer.queue), (
                f"{waiting} receivers sleep before {len(consumer.queue)} messages"
            )

    async def everything_comes(self) -> None:
        """Check that each message with a receipt reaches consumers, readers and table views."""

        def missing() -> list[Any]:
            lists = [sorted(self.receipted - set(self.came))]
            lists += [sorted(self.receipted - {c for _, c in found}) for found in self.read.values()]
            return [some for some in lists if some]

        end = self.clock.now + PATIENCE_SECONDS
        while missing():
            assert self.clock.now < end, (
                f"never came: {missing()}; in the queues: {[len(c.queue) for c in self.consumers]}, waiting: "
                f"{[len(c.receive_waiters) for c in self.consumers]}, connected: "
                f"{[c.is_connected() for c in self.consumers]}"
            )
            await pass_time(0.5)
        await pass_time(5)
        assert set(self.came) <= self.handed_over
        if not self.faulty and not self.nacks:  # a nack brings a whole batch back
            twice = [content for content, count in self.came.items() if count > 1]
            assert not twice, f"delivered twice, without a reason: {twice}"
        await self.order_is_kept()

    async def order_is_kept(self) -> None:
        """Check that readers and listeners received all stored messages in order, and none twice."""
        stored: dict[int, list[bytes]] = {}
        of_key: dict[str, list[bytes]] = {}
        reader = await self.until_it_works(lambda: self.client.create_reader(TOPIC, MessageId.earliest))
        while await reader.has_message_available():
            message = await reader.read_next(5_000)
            stored.setdefault(message.message_id().partition(), []).append(message.data())
            if message.has_partition_key():
                of_key.setdefault(message.partition_key(), []).append(message.data())
        await reader.close()
        for found in self.read.values():
            for partition, contents in stored.items():
                own = [content for where, content in found if where == partition]
                assert own == contents, f"the reader of partition {partition} read otherwise"
        fresh = await self.until_it_works(lambda: self.client.create_table_view(TOPIC))
        newest = {key: contents[-1] for key, contents in of_key.items()}
        assert dict(fresh.values) == dict(self.view.values) == newest, "the view is behind"
        assert set(self.heard) == set(newest)
        for key, values in self.heard.items():
            # The value at the time that the listener was added, and every later change.
            assert values == of_key[key][-len(values) :], f"the listener heard {key} otherwise"
        await fresh.close()

    async def end(self) -> None:
        r = self.numbers
        self.over = True
        if r.random() < 0.3:
            await asyncio.wait_for(self.numbers.choice(self.consumers).close(), PATIENCE_SECONDS)
        if r.random() < 0.2:
            self.network.cut()
        if r.random() < 0.3:
            self.client.shutdown()
        else:
            closing = [asyncio.create_task(self.client.close()) for _ in range(r.randrange(1, 3))]
            _, late = await asyncio.wait(closing, timeout=PATIENCE_SECONDS)
            assert not late, "close hangs"
            for task in closing:
                task.result()
        _, asleep = await asyncio.wait(self.actors, timeout=60)
        assert not asleep, f"still waiting for a client that is closed: {asleep}"
        for actor in self.actors:
            actor.result()


class Told(NamedTuple):
    """Record of a run."""

    came: tuple[tuple[bytes, int], ...]
    came_at: float
    cuts: int
    receipted: int
    heard: bool
    gave_up: Counter[str]


def run_seed(seed: int) -> Told:
    world = World(seed)
    try:
        world.play()
    except Exception as error:
        raise AssertionError(f"--seed {seed}: {type(error).__name__}: {error}") from error
    return Told(
        tuple(world.came.items()), world.came_at, world.network.cuts, len(world.receipted), bool(world.heard),
        world.gave_up,
    )  # fmt: skip


told = Remembered(run_seed)


@pytest.mark.simulation(8, 8)
def test_no_message_is_lost_and_no_call_hangs(seeds):
    for seed in seeds:
        told.play(seed)
    gc.collect()


def test_the_simulation_reaches_what_it_is_meant_to_reach():
    runs = [told.of(seed) for seed in range(15)]
    gave_up: Counter[str] = Counter()
    for run in runs:
        gave_up += run.gave_up
    assert min(gave_up[name] for name in ("send", "receive", "read", "open")) > 10
    assert sum(run.cuts for run in runs) > 10
    assert sum(run.receipted for run in runs) > 500
    assert any(run.heard for run in runs)


def test_the_same_seed_repeats_the_same_run():
    for seed in range(5):
        first, second = told.of(seed), told.play(seed)
        assert first.came == second.came
        assert first.came_at == second.came_at
