"""Readers and seeks: every message from a position on, in order, without a gap."""

import asyncio
from typing import Any

from geminga import AlreadyClosed, ConsumerType, MessageId, Timeout
from tests.simulation import rules
from tests.simulation.history import Position
from tests.simulation.workloads.base import Workload


class Sequence(Workload):
    """Base of workloads on one topic without partitions, with producers of drawn kinds."""

    keeps_all = True
    judges_flips = True

    async def prepare(self) -> None:
        await self.create_topic()

    async def work(self) -> None:
        count = self.numbers.randrange(1, 3)
        await asyncio.gather(
            *(self.publish(f"w{number}", self.numbers.choice([5, 40])) for number in range(count))
        )

    def last_is_received(self, name: str) -> bool:
        """Whether the message with the highest position of all receipts was received.

        Of a chunked message that was sent again in part, the first copy is complete, and the receipt is that
        of the second one's last chunk, which no client delivers: as with the official clients.
        """
        receipts = [event for event in self.history.of("receipt") if event.position is not None]
        last = max(receipts, key=lambda event: event.position or (), default=None)
        received = list(self.history.of("received", who=name))
        return (
            last is None
            or any(event.position == last.position for event in received)
            or (last.content in self.large and any(event.content == last.content for event in received))
        )


class Reading(Sequence):
    """Readers follow the topic from its start, through reconnects and restarts: each message once."""

    name = "reading"

    async def prepare(self) -> None:
        await super().prepare()
        self.readers = [f"r{number}" for number in range(self.numbers.randrange(1, 3))]
        for name in self.readers:
            reader = await self.until_it_works(
                lambda: self.world.client.create_reader(
                    self.topic, MessageId.earliest, receiver_queue_size=self.numbers.choice([1, 5, 100])
                )
            )
            self.start(self.read(name, reader))

    async def read(self, name: str, reader: Any) -> None:
        while True:
            self.received(name, await reader.read_next())
            if self.numbers.random() < 0.1:
                await self.pause(0, 0.3)

    async def settle(self) -> None:
        for name in self.readers:
            await self.until(
                lambda name=name: self.last_is_received(name), lambda name=name: f"{name} does not go on"
            )
        await self.world.pass_time(10)

    async def judge(self) -> None:
        stored = await self.stored()
        for name in self.readers:
            rules.contiguous(self.history, stored, name, repeats=False)
            rules.all_received(self.history, stored, name)


class Seeking(Sequence):
    """A consumer, or an administrator, moves an exclusive subscription; then all follows from there."""

    name = "seeking"

    async def prepare(self) -> None:
        await super().prepare()
        self.known: list[tuple[Position, Any]] = []
        self.start(self.consume_and_seek(await self.subscribe("s", ConsumerType.Exclusive)))

    async def consume_and_seek(self, consumer: Any) -> None:
        r = self.numbers
        while True:
            if self.known and r.random() < 0.04 and not self.world.machine.calm:
                await self.seek(consumer)
            try:
                message = await consumer.receive(60_000)
            except AlreadyClosed:
                return
            except Timeout:
                continue
            content, position = self.received("s", message)
            self.known.append((position, message.message_id()))
            if r.random() < 0.8:
                await self.acknowledge("s", consumer, message, content, position)

    async def seek(self, consumer: Any) -> None:
        r = self.numbers
        position, message_id = r.choice(self.known)
        how = r.choice(["id", "earliest", "time"])
        self.history.add("seeking", "s", how)
        if how == "id":
            await self.until_it_works(lambda: consumer.seek(message_id))
            self.history.add("sought", "s", how, position)
        elif how == "earliest":
            await self.until_it_works(lambda: consumer.seek(MessageId.earliest))
            first = min(position for position, _ in self.known)
            self.history.add("sought", "s", how, first if first[3] == 0 else None)
        else:
            moment = int(self.world.clock.wall * 1000) - r.randrange(0, 5000)
            await self.until_it_works(lambda: consumer.seek(moment))
            self.history.add("sought", "s", how)

    async def settle(self) -> None:
        sought = [event.content for event in self.history.of("sought", who="s")]
        if sought[-1:] != ["time"]:  # a time may be after the last message
            await self.until(lambda: self.last_is_received("s"), lambda: "the consumer does not go on")
        await self.world.pass_time(10)

    async def judge(self) -> None:
        rules.contiguous(self.history, await self.stored(), "s", repeats=True)


class Retention(Sequence):
    """An administrator clears, skips and expires; retention deletes what is old and acknowledged only.

    The subscription ``idle`` has no consumer: its backlog shows what the broker does by itself.
    """

    name = "retention"
    keeps_all = False
    judges_flips = False

    async def prepare(self) -> None:
        await super().prepare()
        r = self.numbers
        self.published: dict[str, float] = {}
        self.skips = 0
        self.ttl = r.choice([0, 0, 30, 300])
        self.minutes = r.choice([0, 1, 10])
        await self.set_policy(
            "retention_policies",
            {"retentionTimeInMinutes": self.minutes, "retentionSizeInMB": -1 if self.minutes else 0},
        )
        if self.ttl:
            await self.set_policy("message_ttl_in_seconds", self.ttl)
        if self.world.drawn("quotas", 0.4):  # producers resume when the backlogs are cleared
            quota = {
                "limitSize": r.choice([5000, 50_000]), "limitTime": -1, "policy": "producer_request_hold",
            }  # fmt: skip
            await self.set_policy("backlog_quota_map", {"destination_storage": quota})
        await self.create_subscription("idle")
        self.start(self.consume("s", await self.subscribe("s", ConsumerType.Shared), refuses=0.3))
        self.start(self.look_often())

    async def look_often(self) -> None:
        while True:
            await self.pause(0, 2)
            self.look()

    def look(self) -> int | None:
        """Record the backlog of the subscription without a consumer, if it is known."""
        backlog = self.backlog("idle")
        if backlog is None:
            return None
        self.history.add("backlog", "idle", str(backlog[1]))
        return backlog[1]

    def producer_options(self) -> dict[str, Any]:
        return super().producer_options() | {"batching_enabled": False, "chunking_enabled": False}

    async def send(self, producer: Any, name: str, **options: Any) -> None:
        self.published[f"{name}-{self.handed_over[name]}"] = self.world.clock.now
        await super().send(producer, name, **options)

    async def work(self) -> None:
        ruling = asyncio.create_task(self.rule())
        await super().work()
        ruling.cancel()

    async def rule(self) -> None:
        r = self.numbers
        while True:
            await self.pause(0, 3)
            call = r.choice(["clear", "skip", "expire", "clear idle"])
            if call == "clear idle":
                await self.administer(
                    "clear",
                    lambda actions, topic, done: actions.cursors.skip_all(topic, "idle", done),
                    "idle",
                )
            elif call == "clear":
                await self.administer(
                    "clear", lambda actions, topic, done: actions.cursors.skip_all(topic, "s", done)
                )
            elif call == "skip":
                count = r.randrange(1, 4)
                self.skips += count
                await self.administer(
                    "skip",
                    lambda actions, topic, done, count=count: actions.cursors.skip(topic, "s", count, done),
                )
            else:
                age = r.choice([1, 10, 100])
                await self.administer(
                    f"expire {age}",
                    lambda actions, topic, done, age=age: actions.cursors.expire(
                        topic, "s", done, seconds=age
                    ),
                )

    async def settle(self) -> None:
        await self.until_no_backlog("s")
        if self.ttl and self.published and not self.world.walls[1:]:
            if self.world.drawn("later", 0.5):  # younger messages in the ledger of those that expire
                for _ in range(20):
                    await self.publish("later", 1)
                    await self.world.pass_time(self.ttl / 5)
            await self.world.pass_time(self.ttl)
            await self.until(lambda: self.look() == 0, lambda: "messages outlive their time")

    async def judge(self) -> None:
        # A full disk ends retention early, and a clock that is set forward ends it, too.
        was_full = any(event.who == "the disk is full" for event in self.history.of("fault"))
        if self.minutes and not was_full and not self.world.walls[1:]:
            rules.retained(self.history, await self.stored(), self.minutes * 60, self.world.clock.now)
        if not self.world.walls[1:]:
            rules.skipped_by_rule(self.history, "s", self.published, self.skips, self.ttl)
            rules.backlogs(
                self.history, "idle", self.published, self.ttl, deduplicated=self.world.deduplicates
            )
        rules.cleared_stays_cleared(self.history, "s")
