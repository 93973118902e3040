"""Producers and consumers of all subscription types on one topic, and what every topic promises."""

import asyncio
from typing import Any, Final

from geminga import AlreadyClosed, BatchingType, ConsumerType, MessageId
from geminga.ids import TopicName
from tests.simulation import checker
from tests.simulation.workloads.base import Workload

KINDS: Final = (ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Exclusive, ConsumerType.Failover)


class Everyday(Workload):
    """Publishing, receiving and acknowledging; seeks to the first message; consumers that come and go."""

    name = "t"
    judges_flips = True

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        r = self.numbers
        self.subscriptions: dict[str, ConsumerType] = {
            f"s{number}": r.choice(KINDS) for number in range(r.randrange(1, 4))
        }
        self.batches_by_key = ConsumerType.KeyShared in self.subscriptions.values()
        self.sought: set[str] = set()

    async def prepare(self) -> None:
        r = self.numbers
        for name, kind in self.subscriptions.items():
            for number in range(1 if kind is ConsumerType.Exclusive else r.randrange(1, 4)):
                consumer = await self.open(name, f"{name}.{number}")
                self.start(self.consume_as(name, f"{name}.{number}", consumer))

    async def work(self) -> None:
        options: dict[str, Any] = {"batching_type": BatchingType.KeyBased} if self.batches_by_key else {}
        count = self.numbers.randrange(1, 4)
        await asyncio.gather(
            *(
                self.publish(f"p{number}", self.numbers.choice([1, 20, 60]), **options)
                for number in range(count)
            )
        )

    async def open(self, name: str, consumer_name: str) -> Any:
        return await self.subscribe(name, self.subscriptions[name], consumer_name=consumer_name)

    async def consume_as(self, name: str, consumer_name: str, consumer: Any) -> None:
        """Receive and acknowledge until cancelled; at times negatively, or by another consumer afterwards."""
        r = self.numbers
        acknowledging: set[asyncio.Task[bool]] = set()
        while True:
            if r.random() < 0.01:
                await consumer.close()
                consumer = await self.open(name, consumer_name)
            elif self.may_seek(name) and r.random() < 0.02:
                self.sought.add(name)
                self.history.add("seeking", name)
                await self.until_it_works(lambda consumer=consumer: consumer.seek(MessageId.earliest))
                self.history.add("sought", name)
            try:
                message = await consumer.receive()
            except AlreadyClosed:
                return
            content, position = self.received(name, message, consumer_name)
            if r.random() < 0.1:
                await self.pause(0, 0.05)
            if r.random() < 0.1:
                self.history.add("refusing", name, content, position)
                await consumer.negative_acknowledge(message)
                continue
            await self.begin_acknowledging(
                acknowledging, self.acknowledge(name, consumer, message, content, position)
            )

    def may_seek(self, name: str) -> bool:
        exclusive = self.subscriptions[name] is ConsumerType.Exclusive
        return exclusive and self.world.keeps_all and name not in self.sought and not self.world.machine.calm

    async def settle(self) -> None:
        """Wait until each subscription has acknowledged all that has a receipt."""
        expected, missing = self.expected(), checker.missing
        for name in self.subscriptions:
            await self.until(
                lambda name=name: not missing(self.history, expected, name),
                lambda name=name: f"{name} never acknowledged {missing(self.history, expected, name)}",
            )

    async def judge(self) -> None:
        await self.no_backlog_is_left()
        kinds = {name: kind.name for name, kind in self.subscriptions.items()}
        checker.check(
            self.history, await self.stored(), kinds, deduplicated=self.world.deduplicates,
            keeps_all=self.world.keeps_all, order_of=self.order_of, large=self.large,
        )  # fmt: skip

    def backlogs(self) -> dict[str, tuple[int, int] | None]:
        return {name: self.backlog(name) for name in self.subscriptions}

    def order_of(self, key: str) -> str:
        """Batches of one key overtake each other; a message without a key waits for any partition."""
        if self.batches_by_key:
            return key
        return "keyed" if key and self.world.partitions else ""

    async def no_backlog_is_left(self) -> None:
        """Wait until the broker counts no backlog: all that is stored is acknowledged."""
        names = [f"{self.topic}-partition-{n}" for n in range(self.world.partitions)] or [self.topic]
        end = self.world.clock.now + self.world.patience
        while True:
            found = {}
            for topic in names:
                stats = self.world.machine.administer(
                    lambda actions, topic=topic: actions.stats(TopicName.parse(topic))
                )
                subscriptions = (stats or {"subscriptions": {"down": {"msgBacklog": 1}}})["subscriptions"]
                found |= {(topic, name): each["msgBacklog"] for name, each in subscriptions.items()}
            if not any(found.values()):
                return
            assert self.world.clock.now < end, f"the backlog stays: {found}"
            await self.world.pass_time(0.5)
