"""Producers that must not double a message, or must be alone on their topic."""

import asyncio
from typing import Any

from geminga import ConsumerType, ProducerAccessMode, PulsarException, Result
from tests.simulation import rules
from tests.simulation.workloads.base import Workload


class Restarts(Workload):
    """A program that copies a numbered source, dies and is restarted: one copy of each is stored.

    Where messages are deleted once they are acknowledged, a consumer sees them before.
    """

    name = "restarts"
    keeps_all = True

    async def prepare(self) -> None:
        await self.create_topic()
        await self.set_policy("deduplicationEnabled", True)
        self.total = self.numbers.choice([5, 30, 80])
        self.next = 0
        self.sizes = [0, 0, 100, 5000, 20_000]
        self.deletes = self.world.drawn("deletion", 0.4)
        if self.deletes:
            self.sizes = [0, 100]  # a consumer gives up chunked messages that are incomplete for a minute
            nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
            await self.set_policy("retention_policies", nothing)
            self.start(self.consume("s", await self.subscribe("s", ConsumerType.Exclusive), refuses=0.0))

    async def work(self) -> None:
        """Run the program until its source is copied, a few messages each time."""
        while self.next < self.total:
            await self.run_once()
            await self.pause(0, 0.3)

    async def run_once(self) -> None:
        r = self.numbers
        options = self.producer_options() | {"max_pending_messages": 1000}
        if not options["batching_enabled"] and r.random() < 0.5:
            options |= {"chunking_enabled": True, "chunk_max_message_size": 2000}
        producer = await self.until_it_works(
            lambda: self.world.client.create_producer(self.topic, "app", **options)
        )
        # Some programs ask the broker where they were, others know the last receipt. A batch that begins with
        # a duplicate is dropped as a whole, as Apache Pulsar does.
        if r.random() < 0.6 or options["batching_enabled"]:
            self.next = max(self.next, producer.last_sequence_id() + 1)
        end = min(self.total, self.next + r.choice([1, 10, 40]))
        sending = []
        for number in range(self.next, end):
            padding = b" " * r.choice(self.sizes)
            sending.append(self.hand_over(producer, number, padding))
            if r.random() < 0.2:
                await self.pause(0, 0.1)
        # Some programs die while messages are on their way.
        waited = (
            sending if r.random() < 0.5 or end == self.total else sending[: r.randrange(len(sending) + 1)]
        )
        for future in waited:
            if not await future:
                break
            self.next += 1
        if r.random() < 0.5:
            producer.abort()
        else:
            await self.close(producer)

    def hand_over(self, producer: Any, number: int, padding: bytes) -> asyncio.Future[bool]:
        """Send a message of the source; the result is whether it has a receipt."""
        future: asyncio.Future[bool] = self.world.loop.create_future()
        content = f"app-{number}"
        self.history.add("send", "app", content)

        def done(result: Any, message_id: Any) -> None:
            kind = "receipt" if result is Result.Ok else "not sent"
            self.history.add(kind, "app", content, detail="" if kind == "receipt" else result)
            if not future.done():
                future.set_result(result is Result.Ok)

        producer.send_async(content.encode() + padding, done, sequence_id=number)
        return future

    async def close(self, producer: Any) -> None:
        try:
            await producer.close()
        except PulsarException as error:
            self.history.add("not closed", "app", detail=type(error).__name__)

    async def settle(self) -> None:
        if self.deletes:
            await self.until_no_backlog("s")

    async def judge(self) -> None:
        received = {event.position: event.content for event in self.history.of("received") if event.position}
        seen = [(position, content, "") for position, content in sorted(received.items())]
        rules.exactly_once(seen if self.deletes else await self.stored(), self.total)


class Access(Workload):
    """Producers that want the topic for themselves: none writes after a later one has begun."""

    name = "access"
    keeps_all = True

    async def work(self) -> None:
        await asyncio.gather(*(self.compete(f"e{number}") for number in range(3)))

    async def compete(self, name: str) -> None:
        r = self.numbers
        for number in range(r.randrange(1, 4)):
            mode = r.choice(
                [
                    ProducerAccessMode.Exclusive, ProducerAccessMode.WaitForExclusive,
                    ProducerAccessMode.ExclusiveWithFencing,
                ]
            )  # fmt: skip
            await self.hold(f"{name}.{number}", mode)
            await self.pause(0, 1)

    async def hold(self, name: str, mode: ProducerAccessMode) -> None:
        """Publish some messages as the only producer; another one may fence this one."""
        r = self.numbers
        try:
            producer = await asyncio.wait_for(
                self.world.client.create_producer(
                    self.topic, access_mode=mode, **self.producer_options() | {"send_timeout_millis": 60_000}
                ),
                30 * self.world.pace,
            )
        except (PulsarException, TimeoutError) as error:
            self.history.add("no producer", name, mode.name, detail=type(error).__name__)
            return
        self.history.add("producer", name, mode.name)
        for _ in range(r.randrange(1, 12)):
            sending = asyncio.create_task(self.send(producer, name))
            if r.random() < 0.5:
                await asyncio.wait([sending])
            await self.pause(0, 0.2)
        await asyncio.wait([sending])
        try:
            await producer.close()
        except PulsarException:
            pass

    async def judge(self) -> None:
        stored = await self.until_it_works(self.stored)
        waits = ProducerAccessMode.WaitForExclusive.name
        returning = {event.who for event in self.history.of("producer") if event.content == waits}
        rules.in_blocks(stored, self.receipted(), returning)
