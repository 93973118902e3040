"""Producers and consumers of all subscription types on one topic, and what every topic promises."""

import asyncio
from typing import Any, Final

from geminga import AlreadyClosed, BatchingType, ConsumerType, MessageId
from tests.simulation import checker, rules
from tests.simulation.history import Event
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
        self.cumulative = {
            name
            for name, kind in self.subscriptions.items()
            if kind in (ConsumerType.Exclusive, ConsumerType.Failover) and world.drawn(f"through {name}", 0.4)
        }
        """Subscriptions of which some acknowledgements are cumulative."""
        self.sought: set[str] = set()
        self.rate = 5 if world.drawn("rates", 0.15) else 0
        """Messages that each subscription of a partition gets in a second at most; 0: any number."""

    async def prepare(self) -> None:
        r = self.numbers
        if self.rate:
            limits = {"dispatchThrottlingRateInMsg": self.rate, "ratePeriodInSecond": 1}
            await self.set_policy("subscriptionDispatchRate", {"standalone": limits})
            limits = {"publishThrottlingRateInMsg": 10 * self.rate}
            await self.set_policy("publishMaxMessageRate", {"standalone": limits})
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
            below: list[Event] = []
            if name in self.cumulative and r.random() < 0.3:
                below = [
                    event
                    for event in self.history.of("received", who=name)
                    if event.position and event.position[0] == position[0] and event.position < position
                ]
            await self.begin_acknowledging(
                acknowledging, self.acknowledge(name, consumer, message, content, position, *below)
            )

    def may_seek(self, name: str) -> bool:
        exclusive = self.subscriptions[name] is ConsumerType.Exclusive
        return exclusive and self.world.keeps_all and name not in self.sought and not self.world.machine.calm

    async def settle(self) -> None:
        for name in self.subscriptions:
            await self.until_acknowledged(name)

    async def judge(self) -> None:
        for name in self.subscriptions:
            await self.until_no_backlog(name)
            if self.rate:
                parts, lives = max(1, self.world.partitions), self.world.machine.life
                rules.within_rate(self.history, name, self.rate * parts, lives)
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
