"""Topics that grow and come into being while consumers are subscribed."""

import asyncio
import contextlib
import re
from collections import Counter

from geminga import ConsumerType, InitialPosition, PulsarException
from geminga.broker.admin.topic_actions import TopicActions
from geminga.ids import MessageId, TopicName
from geminga.ledger.api import Done
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
        await self.until_acknowledged("s")

    async def judge(self) -> None:
        stored = await self.stored()
        contents = {content for _, content, _ in stored}
        for content in self.receipted():
            assert content in contents, f"lost: {content}"
        for content in contents:
            assert content in {event.content for event in self.history.of("send")}, f"never sent: {content}"


class Patterns(Workload):
    """A pattern subscription finds topics that are created, and deleted ones do not stop it.

    Beside them a topic is created and deleted again and again: it exists or not as was confirmed.
    """

    name = "pattern"
    keeps_all = True

    async def prepare(self) -> None:
        self.other = TopicName.parse("persistent://public/default/other")
        self.exists: bool | None = False
        """Whether this topic exists; None while that is not known."""
        consumer = await self.subscribe(
            "s", ConsumerType.Shared, topic=re.compile("persistent://public/default/pattern-.*"),
            pattern_auto_discovery_period=self.numbers.choice([1, 20]),
            initial_position=InitialPosition.Earliest,
        )  # fmt: skip
        self.start(self.consume("s", consumer))

    async def work(self) -> None:
        creating = [self.create(number) for number in range(self.numbers.randrange(1, 5))]
        await asyncio.gather(*creating, self.come_and_go())

    async def create(self, number: int) -> None:
        await self.pause(0, 8)
        await self.publish(f"m{number}", self.numbers.choice([1, 15]), topic=f"{self.topic}-{number}")
        if self.numbers.random() < 0.3:
            name = TopicName.parse(f"{self.topic}-gone{number}")
            await self.administer("create", lambda actions, _, done: actions.create(name, done))
            await self.pause(0, 5)
            await self.administer("delete", lambda actions, _, done: actions.delete(name, True, done))

    async def come_and_go(self) -> None:
        name = self.other

        def subscribe(actions: TopicActions, _: TopicName, done: Done) -> None:
            actions.cursors.create(name, "s", MessageId.earliest, done)

        for _ in range(self.numbers.choice([1, 4, 12])):
            self.exists = None
            if await self.administer("create", lambda actions, _, done: actions.create(name, done)):
                self.exists = True
                await self.administer("subscribe", subscribe)
                await self.look_soon()
                producer = await self.until_it_works(lambda: self.world.client.create_producer(str(name)))
                with contextlib.suppress(PulsarException):
                    await producer.send(b"")
                with contextlib.suppress(PulsarException):
                    await producer.close()
            self.exists = None
            if await self.administer("delete", lambda actions, _, done: actions.delete(name, True, done)):
                self.exists = False
                await self.look_soon()

    async def look_soon(self) -> None:
        """Look at it after a while, when a broker runs: perhaps another one than that which confirmed."""
        await self.pause(0, 1)
        await self.until(lambda: self.world.machine.is_up, lambda: "the broker is down")
        self.look()

    def look(self) -> None:
        """Check whether the other topic exists, and that nothing is left of it otherwise."""

        def look(actions: TopicActions) -> None:
            exists, store = actions.topics.is_stored(self.other), self.world.machine.server.store
            assert self.exists in (None, exists), f"the topic exists: {exists}"
            kinds = ("topic/", "ledgers/", "cursor/", "counts/", "dedup/", "delays/")
            left = [key for kind in kinds for key in store.keys.names(f"{kind}{self.other}")]
            assert exists or not (left or store.ledgers(str(self.other))), f"left of a deleted topic: {left}"

        self.world.machine.administer(look)

    async def judge(self) -> None:
        self.look()

    async def settle(self) -> None:
        await self.until_acknowledged("s")


class Passing(Workload):
    """A topic that stores nothing: messages may be lost, none is invented, and in calm they arrive."""

    name = "passing"
    domain = "non-persistent"

    async def prepare(self) -> None:
        kind = self.numbers.choice([ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared])
        for number in range(2):
            consumer = await self.subscribe("s", kind, consumer_name=f"s.{number}", receiver_queue_size=50)
            self.start(self.consume("s", consumer, refuses=0.0))

    async def work(self) -> None:
        await asyncio.gather(*(self.publish(f"v{number}", 30) for number in range(2)))

    async def settle(self) -> None:
        end = self.world.clock.now + self.world.patience
        while not any(event.content.startswith("calm-") for event in self.history.of("received")):
            assert self.world.clock.now < end, "nothing arrives"
            await self.publish("calm", 1)
            await self.world.pass_time(1)

    async def judge(self) -> None:
        sends, receipts = (
            {event.content: event.at for event in self.history.of(kind)} for kind in ("send", "receipt")
        )
        ended = [event.at for event in self.history.of("connection ended")]
        received = Counter(event.content for event in self.history.of("received"))
        for content, count in received.items():
            assert content in sends, f"never sent: {content}"
            until = receipts.get(content, float("inf"))
            may_be_sent_again = any(sends[content] <= at <= until for at in ended)
            assert count == 1 or may_be_sent_again, f"received {count} times: {content}"
