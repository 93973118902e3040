"""Topics that grow and come into being while consumers are subscribed."""

import asyncio
import re

from geminga import ConsumerType, InitialPosition
from geminga.ids import TopicName
from tests.simulation import checker
from tests.simulation.workloads.base import Workload


class Growth(Workload):
    """A partitioned topic grows: producers and consumers find the new partitions, and nothing is skipped."""

    name = "growth"
    keeps_all = True

    async def prepare(self) -> None:
        self.count = self.numbers.randrange(1, 3)
        await self.administer_surely(
            "create",
            lambda actions, topic, done: (
                done(None) if actions.exists(topic) else actions.create_partitioned(topic, self.count, done)
            ),
        )
        kind = self.numbers.choice([ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared])
        for number in range(2):
            consumer = await self.subscribe("s", kind, consumer_name=f"s.{number}")
            self.start(self.consume("s", consumer))

    async def work(self) -> None:
        growing = asyncio.create_task(self.grow())
        await asyncio.gather(*(self.publish(f"g{number}", 40) for number in range(2)))
        growing.cancel()

    async def grow(self) -> None:
        while self.count < 6:
            await self.pause(1, 10)
            self.count += self.numbers.randrange(1, 3)
            await self.administer_surely(
                f"grow to {self.count}",
                lambda actions, topic, done: actions.update_partitions(topic, self.count, done),
            )

    async def settle(self) -> None:
        missing, expected = checker.missing, self.expected()
        await self.until(
            lambda: not missing(self.history, expected, "s"),
            lambda: f"never acknowledged: {missing(self.history, expected, 's')}",
        )

    async def judge(self) -> None:
        stored = await self.stored()
        contents = {content for _, content, _ in stored}
        for content in self.receipted():
            assert content in contents, f"lost: {content}"
        for content in contents:
            assert content in {event.content for event in self.history.of("send")}, f"never sent: {content}"


class Patterns(Workload):
    """A pattern subscription finds topics that are created, and deleted ones do not stop it."""

    name = "pattern"
    keeps_all = True

    async def prepare(self) -> None:
        consumer = await self.subscribe(
            "s", ConsumerType.Shared, topic=re.compile("persistent://public/default/pattern-.*"),
            pattern_auto_discovery_period=self.numbers.choice([1, 20]),
            initial_position=InitialPosition.Earliest,
        )  # fmt: skip
        self.start(self.consume("s", consumer))

    async def work(self) -> None:
        await asyncio.gather(*(self.create(number) for number in range(self.numbers.randrange(1, 5))))

    async def create(self, number: int) -> None:
        await self.pause(0, 8)
        await self.publish(f"m{number}", self.numbers.choice([1, 15]), topic=f"{self.topic}-{number}")
        if self.numbers.random() < 0.3:
            name = TopicName.parse(f"{self.topic}-gone{number}")
            await self.administer("create", lambda actions, _, done: actions.create(name, done))
            await self.pause(0, 5)
            await self.administer("delete", lambda actions, _, done: actions.delete(name, True, done))

    async def settle(self) -> None:
        missing, expected = checker.missing, self.expected()
        await self.until(
            lambda: not missing(self.history, expected, "s"),
            lambda: f"never acknowledged: {missing(self.history, expected, 's')}",
        )
