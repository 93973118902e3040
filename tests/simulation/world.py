"""One seed's run: production client, broker and store in virtual time, with faults; see `World.play`."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

import geminga.asyncio
from geminga import AlreadyClosed, BatchingType, ConsumerType, InitialPosition, MessageId, PulsarException
from geminga.ids import TopicName
from tests.client.virtual import Clock, Network
from tests.simulation import checker
from tests.simulation.history import History, Position
from tests.simulation.machine import PORT, LivesLoop, Machine

TOPIC: Final = "persistent://public/default/t"
PATIENCE_SECONDS: Final = 600.0
KINDS: Final = (ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Exclusive, ConsumerType.Failover)


def position_of(message_id: Any) -> Position:
    return (
        max(message_id.partition(), 0), message_id.ledger_id(), message_id.entry_id(),
        max(message_id.batch_index(), 0),
    )  # fmt: skip


class World:
    """Everything of one seed; ``history`` is what its clients saw."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.numbers = r = random.Random(seed)
        self.clock = Clock()
        self.network = Network(r)
        self.loop = LivesLoop(r, self.clock, self.network, r.choice([0.0, 0.2, 0.6]))
        self.history = History(lambda: self.clock.now)
        self.partitions = r.choice([0, 0, 3])
        self.deduplicates = r.random() < 0.5
        self.keeps_all = r.random() < 0.7
        self.subscriptions: dict[str, ConsumerType] = {
            f"s{number}": r.choice(KINDS) for number in range(r.randrange(1, 4))
        }
        self.batches_by_key = ConsumerType.KeyShared in self.subscriptions.values()
        self.handed_over: Counter[str] = Counter()
        self.sought: set[str] = set()
        self.consumers: list[Any] = []
        settings = {
            "deduplication": self.deduplicates,
            "retention_minutes": -1 if self.keeps_all else 0,
            "retention_megabytes": -1 if self.keeps_all else 0,
            "ledger_entries_max": r.choice([3, 20, 50_000]),
            "failover_delay_seconds": 0.1,
        }
        if self.partitions:
            settings |= {"auto_create_topic_kind": "partitioned", "auto_create_partitions": self.partitions}
        self.machine = Machine(
            self.loop, self.network, r, settings, lambda how: self.history.add("fault", how)
        )

    # --- the run ---
    def play(self) -> History:
        """Run it to the end and check it; the same seed gives the same history."""
        self.loop.play(self.seed, self.main())
        return self.history

    async def main(self) -> None:
        self.keeper = keeper = asyncio.create_task(self.machine.run())
        keeper.add_done_callback(self.keeper_ended)
        self.client = geminga.asyncio.Client(
            f"pulsar://127.0.0.1:{PORT}",
            initial_backoff_interval_ms=10,
            max_backoff_interval_ms=300,
            operation_timeout_seconds=PATIENCE_SECONDS,
        )
        receiving = await self.subscribe_all()
        faults = asyncio.create_task(self.break_things())
        producers = range(self.numbers.randrange(1, 4))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(self.publish(f"p{number}") for number in producers))
        faults.cancel()
        self.machine.calm = True
        if self.numbers.random() < 0.7:  # the calm begins with a process that has no fault planned
            self.machine.kill()
        await self.everything_is_acknowledged()
        if self.numbers.random() < 0.7:  # and what is acknowledged stays so
            self.numbers.choice([self.machine.kill, self.machine.lose_power])()
        await asyncio.sleep(20)
        for task in receiving:
            task.cancel()
        await self.no_backlog_is_left()
        self.judge(await self.stored())
        await asyncio.wait_for(self.client.close(), PATIENCE_SECONDS)
        keeper.cancel()
        await self.machine.stop()

    def keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self.loop.call_exception_handler({"message": "no broker runs any more", "exception": error})

    def judge(self, stored: checker.Stored) -> None:
        kinds = {name: kind.name for name, kind in self.subscriptions.items()}
        checker.check(
            self.history, stored, kinds, deduplicated=self.deduplicates, keeps_all=self.keeps_all,
            order_of=self.order_of,
        )  # fmt: skip

    def order_of(self, key: str) -> str:
        """Batches of one key overtake each other; a message without a key waits for any partition."""
        if self.batches_by_key:
            return key
        return "keyed" if key and self.partitions else ""

    async def until_it_works(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Call again after each refusal: the broker is going, or its disk fails."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    return await call()
                except PulsarException:
                    await asyncio.sleep(0.1)

    # --- publishing ---
    async def publish(self, name: str) -> None:
        r = self.numbers
        is_batched = r.random() < 0.5
        options: dict[str, Any] = {"batching_enabled": is_batched, "block_if_queue_full": True}
        if is_batched:
            options |= {"batching_max_messages": r.choice([2, 10]), "batching_max_publish_delay_ms": 5}
        if self.batches_by_key:
            options["batching_type"] = BatchingType.KeyBased
        if not is_batched and r.random() < 0.3:
            options |= {"chunking_enabled": True, "chunk_max_message_size": 2000}
        producer = await self.until_it_works(
            lambda: self.client.create_producer(
                TOPIC, name, send_timeout_millis=0, max_pending_messages=r.choice([1, 5, 1000]), **options
            )
        )
        sending: list[asyncio.Task[None]] = []
        for number in range(r.choice([1, 20, 60])):
            sending.append(asyncio.create_task(self.send(producer, name, number)))
            if r.random() < 0.3:
                await asyncio.wait([sending[-1]])
            elif r.random() < 0.3:
                await asyncio.sleep(r.choice([0, 0.02, 0.5]))
        await asyncio.gather(*sending)
        await producer.close()

    async def send(self, producer: Any, name: str, number: int) -> None:
        r = self.numbers
        size = r.choice([0, 0, 0, 100, 5000])
        key = f"{name}.{r.randrange(3)}" if r.random() < 0.7 else ""
        content = f"{name}-{self.handed_over[name]}"  # numbered when handed over, not when the task was made
        self.handed_over[name] += 1
        self.history.add("send", name, content, detail=key)
        try:
            found = await producer.send(content.encode() + b" " * size, partition_key=key or None)
        except PulsarException as error:
            self.history.add("not sent", name, content, detail=type(error).__name__)
        else:
            position = position_of(found)
            self.history.add("receipt", name, content, None if position[1] < 0 else position)

    # --- receiving ---
    async def subscribe_all(self) -> list[asyncio.Task[None]]:
        r = self.numbers
        tasks = []
        for name, kind in self.subscriptions.items():
            for number in range(1 if kind is ConsumerType.Exclusive else r.randrange(1, 4)):
                consumer = await self.subscribe(name, f"{name}.{number}")
                tasks.append(asyncio.create_task(self.consume(name, f"{name}.{number}", consumer)))
        return tasks

    async def subscribe(self, name: str, consumer_name: str) -> Any:
        r = self.numbers
        return await self.until_it_works(
            lambda: self.client.subscribe(
                TOPIC, name, self.subscriptions[name], consumer_name=consumer_name,
                receiver_queue_size=r.choice([1, 3, 50]), negative_ack_redelivery_delay_ms=50,
                initial_position=InitialPosition.Earliest, ack_receipt_enabled=True,
                ack_grouping_time_ms=r.choice([0, 5, 100]),
            )
        )  # fmt: skip

    async def consume(self, name: str, consumer_name: str, consumer: Any) -> None:
        """Receive and acknowledge until cancelled; at times negatively, or by another consumer afterwards."""
        r = self.numbers
        acknowledging: set[asyncio.Task[None]] = set()
        while True:
            if r.random() < 0.01:
                await consumer.close()
                consumer = await self.subscribe(name, consumer_name)
            elif self.may_seek(name) and r.random() < 0.02:
                await self.seek(name, consumer)
            try:
                message = await consumer.receive()
            except AlreadyClosed:
                return
            position, content = position_of(message.message_id()), message.data().decode().rstrip()
            self.history.add("received", name, content, position, consumer_name)
            if r.random() < 0.1:
                await asyncio.sleep(r.uniform(0, 0.05))
            if r.random() < 0.1:
                await consumer.negative_acknowledge(message)
                continue
            task = asyncio.create_task(self.acknowledge(name, consumer, message, content, position))
            acknowledging.add(task)
            task.add_done_callback(acknowledging.discard)
            if r.random() < 0.3:
                await asyncio.wait([task])

    async def acknowledge(
        self, name: str, consumer: Any, message: Any, content: str, position: Position
    ) -> None:
        self.history.add("acknowledging", name, content, position)
        try:
            await consumer.acknowledge(message)
        except PulsarException as error:
            self.history.add("not acknowledged", name, content, position, f"{type(error).__name__}: {error}")
        else:
            self.history.add("acknowledged", name, content, position)

    def may_seek(self, name: str) -> bool:
        exclusive = self.subscriptions[name] is ConsumerType.Exclusive
        return exclusive and self.keeps_all and name not in self.sought and not self.machine.calm

    async def seek(self, name: str, consumer: Any) -> None:
        self.sought.add(name)
        self.history.add("seeking", name)
        await self.until_it_works(lambda: consumer.seek(MessageId.earliest))
        self.history.add("sought", name)

    # --- faults ---
    async def break_things(self) -> None:
        r = self.numbers
        while True:
            await asyncio.sleep(r.uniform(0, 2))
            chance = r.random()
            if chance < 0.5:
                self.history.add("fault", "a connection breaks")
                self.network.cut()
            elif chance < 0.6:
                self.history.add("fault", "the topic is unloaded")
                self.machine.unload([TopicName.parse(TOPIC).partition_name(0), TopicName.parse(TOPIC)])
            elif chance < 0.65:
                self.machine.kill()
            elif chance < 0.7:
                self.machine.lose_power()

    # --- the end ---
    async def everything_is_acknowledged(self) -> None:
        """Wait until each subscription has acknowledged all that has a receipt."""
        receipted = [event.content for event in self.history.of("receipt")]
        end = self.clock.now + PATIENCE_SECONDS
        for name in self.subscriptions:
            while left := checker.missing(self.history, receipted, name):
                assert self.clock.now < end, f"{name} never acknowledged {left}"
                await asyncio.sleep(0.5)

    async def no_backlog_is_left(self) -> None:
        """Wait until the broker counts no backlog: all that is stored is acknowledged."""
        names = [f"{TOPIC}-partition-{n}" for n in range(self.partitions)] or [TOPIC]
        end = self.clock.now + PATIENCE_SECONDS
        while True:
            found = {}
            for topic in names:
                stats = self.machine.administer(
                    lambda actions, topic=topic: actions.stats(TopicName.parse(topic))
                )
                for name, each in (stats or {"subscriptions": {"down": {"msgBacklog": 1}}})[
                    "subscriptions"
                ].items():
                    found[topic, name] = each["msgBacklog"]
            if not any(found.values()):
                return
            assert self.clock.now < end, f"the backlog stays: {found}"
            await asyncio.sleep(0.5)

    async def stored(self) -> checker.Stored:
        """Read the whole topic."""
        reader = await self.until_it_works(lambda: self.client.create_reader(TOPIC, MessageId.earliest))
        found = []
        while await reader.has_message_available():
            message = await reader.read_next(5_000)
            key = message.partition_key() if message.has_partition_key() else ""
            found.append((position_of(message.message_id()), message.data().decode().rstrip(), key))
        await reader.close()
        return found


def run_seed(seed: int) -> World:
    """Play one seed; an error names it."""
    world = World(seed)
    try:
        world.play()
    except BaseException as error:
        error.add_note(f"python -m tests.simulation --seed {seed}")
        raise
    finally:
        gc.collect()
    return world
