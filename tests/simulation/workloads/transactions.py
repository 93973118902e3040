"""Workers that read a topic and write their results to two others, each message in one transaction."""

import contextlib
from typing import Any

from geminga import AlreadyClosed, ConsumerType, PulsarException, Timeout
from tests.simulation import rules
from tests.simulation.workloads.base import Workload

OUTS = 2
SUBSCRIPTION = "worker"


class Transactions(Workload):
    """Each message of the source has one result, in both topics, after any number of transactions."""

    name = "transactions"
    keeps_all = True

    async def prepare(self) -> None:
        await self.create_topic()
        self.source, self.attempts = self.topic, 0
        self.outs = [f"{self.source}-out-{number}" for number in range(OUTS)]
        for out in self.outs:
            self.topic = out
            await self.create_topic()
        self.topic = self.source
        await self.create_subscription(SUBSCRIPTION)
        for out in self.outs:
            consumer = await self.subscribe(f"{out[-1]}", ConsumerType.Exclusive, topic=out)
            self.start(self.read(out[-1], consumer))
        kind = self.numbers.choice([ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover])
        for _ in range(1 if kind is ConsumerType.Failover else self.numbers.choice([1, 2])):
            self.start(self.process(kind))

    async def work(self) -> None:
        await self.publish("w", self.numbers.choice([5, 25]))

    async def read(self, name: str, consumer: Any) -> None:
        with contextlib.suppress(AlreadyClosed):
            async for message in consumer:
                content, position = self.received(name, message)
                await self.acknowledge(name, consumer, message, content, position)

    async def process(self, kind: ConsumerType) -> None:
        consumer = await self.subscribe(SUBSCRIPTION, kind)
        producers = [
            await self.until_it_works(
                lambda out=out: self.world.client.create_producer(
                    out, send_timeout_millis=0, batching_enabled=self.numbers.random() < 0.5
                )
            )
            for out in self.outs
        ]
        while True:
            try:
                message = await consumer.receive(60_000)
            except Timeout:
                continue
            content, position = self.received(SUBSCRIPTION, message)
            # A message that was sent again is stored twice: each is processed.
            source = f"{content}/{':'.join(map(str, position))}"
            if not await self.attempt(consumer, producers, message, source):
                with contextlib.suppress(PulsarException):
                    await consumer.negative_acknowledge(message)

    async def attempt(self, consumer: Any, producers: list[Any], message: Any, source: str) -> bool:
        """Process a message in a transaction; return whether it is committed."""
        r = self.numbers
        self.attempts += 1
        result = f"{source}/{self.attempts}"
        try:
            txn = await self.world.client.new_transaction(timeout=r.choice([1, 5, 30]) * self.world.pace)
            for producer in producers:
                await producer.send(result.encode(), txn=txn)
            await consumer.acknowledge(message, txn=txn)
            fate = r.random()
            if fate < 0.1:
                self.history.add("left", SUBSCRIPTION, result)
                return False
            if r.random() < 0.2:
                await self.pause(0, 3)
            self.history.add("aborting" if fate < 0.2 else "committing", SUBSCRIPTION, result)
            await (txn.abort() if fate < 0.2 else txn.commit())
        except PulsarException as error:
            self.history.add("failed", SUBSCRIPTION, result, detail=type(error).__name__)
            return False
        self.history.add("aborted" if fate < 0.2 else "committed", SUBSCRIPTION, result)
        return fate >= 0.2

    def processed(self, name: str) -> set[str]:
        return {event.content.partition("/")[0] for event in self.history.of("received", who=name)}

    async def settle(self) -> None:
        for out in self.outs:
            await self.until(
                lambda name=out[-1]: self.processed(name) >= set(self.expected()),
                lambda name=out[-1]: f"no results of {set(self.expected()) - self.processed(name)} in {name}",
            )
        await self.world.pass_time(40 * self.world.pace)

    async def judge(self) -> None:
        stored = [await self.stored(out) for out in self.outs]
        rules.transactions(self.history, stored, [out[-1] for out in self.outs], self.receipted())
        if not self.world.deduplicates:
            return
        for found in stored:
            contents = [content for _, content, _ in found]
            assert len(contents) == len(set(contents)), f"stored twice: {contents}"
