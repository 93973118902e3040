"""Delayed messages, dead letters, and exact counts of backlogs."""

import asyncio
from typing import Any

from geminga import (
    AlreadyClosed,
    BatchingType,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    MessageId,
    PulsarException,
)
from geminga.ids import TopicName
from tests.simulation import checker, rules
from tests.simulation.history import Position
from tests.simulation.workloads.base import Workload

LATE_SECONDS = 30.0
"""A tick of the broker, the client's reconnect, and the write of a slow disk."""


class Delayed(Workload):
    """Messages for a later time on the wall clock: never early, never lost. Some are acknowledged before."""

    name = "delayed"

    async def prepare(self) -> None:
        self.due: dict[str, float] = {}
        self.cancelled: set[str] = set()
        self.consumers: list[Any] = []
        self.ttl = 300.0 if self.world.drawn("ttl from the delivery time", 0.5) else 0.0
        """Less than the longest delay, in seconds."""
        if self.ttl:
            await self.set_policy("message_ttl_in_seconds", int(self.ttl))
            await self.set_policy("message_ttl_from_delivery", True)
        by_key = self.world.drawn("delayed by key", 0.5)
        for _ in range(self.numbers.randrange(1, 3)):
            kind = ConsumerType.KeyShared if by_key else ConsumerType.Shared
            self.consumers.append(await self.subscribe("s", kind, receiver_queue_size=50))
            self.start(self.consume("s", self.consumers[-1], refuses=0.05))

    async def work(self) -> None:
        counts = [self.numbers.choice([5, 30]) for _ in range(2)]
        await asyncio.gather(
            *(
                self.publish(f"d{number}", count, batching_enabled=False)
                for number, count in enumerate(counts)
            )
        )

    async def send(self, producer: Any, name: str, **options: Any) -> None:
        r, clock = self.numbers, self.world.clock
        due = int((clock.wall + r.choice([0.0, 1.0, 10.0, 60.0, 600.0]) * r.random()) * 1000)
        content = f"{name}-{self.handed_over[name]}"
        self.due[content] = due / 1000
        await super().send(producer, name, deliver_at=due)
        if self.world.drawn(f"{content} is cancelled", 0.2):
            await self.cancel(content)

    async def cancel(self, content: str) -> None:
        """Acknowledge a message by its id, mostly before its time."""
        found = [event.position for event in self.history.of("receipt") if event.content == content]
        if found and found[0] is not None and not self.world.partitions:
            _, ledger_id, entry_id, _ = found[0]
            self.cancelled.add(content)
            meant = MessageId(-1, ledger_id, entry_id, -1)
            await self.acknowledge("s", self.consumers[0], meant, content, found[0])

    def producer_options(self) -> dict[str, Any]:
        options = super().producer_options()
        options.pop("chunking_enabled", None)
        return options

    async def settle(self) -> None:
        self.calm = self.world.clock.wall
        receipted = set(self.receipted())
        latest = max((self.due[content] for content in receipted), default=0.0) - self.world.clock.wall
        if latest > 0:  # the clock was set back
            await self.world.pass_time(min(latest, 500 * 86_400.0))
        wanted = receipted - self.may_expire()
        await self.until(lambda: not self.left(wanted), lambda: f"never acknowledged: {self.left(wanted)}")

    def may_expire(self) -> set[str]:
        """Return the messages whose time to live may have ended before consumers could receive them."""
        if not self.ttl:
            return set()
        surely = self.calm + self.late_seconds - self.ttl
        return {content for content, due in self.due.items() if due <= surely or self.world.walls[1:]}

    @property
    def late_seconds(self) -> float:
        # The offload storage's claim is checked in the broker's thread here.
        return LATE_SECONDS + self.world.pace + (60.0 if self.world.offloads else 0.0)

    def left(self, wanted: set[str]) -> set[str]:
        return wanted - {event.content for event in self.history.of("acknowledging")}

    async def judge(self) -> None:
        await self.until_no_backlog("s")
        excused = self.cancelled | self.may_expire()
        rules.delayed(self.history, self.due, self.world.walls, "s", self.late_seconds, excused)


class DeadLetters(Workload):
    """Messages that are refused each time become dead letters, and no others do."""

    name = "letters"
    keeps_all = True

    async def prepare(self) -> None:
        r = self.numbers
        self.kind = r.choice([ConsumerType.Shared, ConsumerType.KeyShared])
        self.limit = r.randrange(1, 4)
        self.waits = r.random() < 0.3  # for the acknowledgement time-out instead of refusing
        self.dead = f"{self.topic}-dead"
        for number in range(r.randrange(1, 3)):
            self.start(self.work_through(await self.open(number)))

    async def open(self, number: int) -> Any:
        options: dict[str, Any] = {"unacked_messages_timeout_ms": 10_000} if self.waits else {}
        return await self.subscribe(
            "s", self.kind, consumer_name=f"s.{number}", receiver_queue_size=50,
            dead_letter_policy=ConsumerDeadLetterPolicy(self.limit, self.dead, "kept"), **options,
        )  # fmt: skip

    def is_bad(self, content: str) -> bool:
        return int(content.partition("-")[2]) % 3 == 0

    async def work(self) -> None:
        await asyncio.gather(
            *(self.publish(f"l{number}", self.numbers.choice([3, 20])) for number in range(2))
        )

    async def work_through(self, consumer: Any) -> None:
        async for message in consumer:
            content, position = self.received("s", message, str(message.redelivery_count()))
            if self.is_bad(content):
                if not self.waits:
                    await consumer.negative_acknowledge(message)
            else:
                await self.acknowledge("s", consumer, message, content, position)

    async def settle(self) -> None:
        if self.receipted():
            await self.until_no_backlog("s")

    async def judge(self) -> None:
        bad = {event.content for event in self.history.of("send") if self.is_bad(event.content)}
        dead = [content for _, content, _ in await self.stored(self.dead)]
        rules.dead_letters(self.history, await self.stored(), "s", dead, bad, self.limit)


class Refusals(Workload):
    """Slow consumers that refuse often, and acknowledge some of what they have just refused."""

    name = "refusals"

    async def prepare(self) -> None:
        r = self.numbers
        self.kind = r.choice([ConsumerType.Shared, ConsumerType.KeyShared])
        self.queue = r.choice([0, 1, 3, 20])
        self.leave = self.world.drawn("leave", 0.3)
        """Whether consumers leave what they hold to others, which have few permits for large batches."""
        if self.leave:
            self.queue = 20
        self.may_be_slow = not self.queue and not self.world.partitions
        """Whether nothing waits in the client for a slow application."""
        self.in_queues = checker.WITHOUT_QUEUE_SECONDS if self.may_be_slow else checker.IN_QUEUES_SECONDS
        if self.leave:
            self.in_queues = self.queue * 2.0
        if self.world.drawn("few", 0.4):
            await self.set_policy("max_unacked_messages_per_subscription", r.choice([10, 20]))
        for number in range(r.randrange(1, 4) + self.leave):
            name = f"s.{number}"
            self.start(self.work_slowly(name, await self.open(name)))

    async def open(self, name: str) -> Any:
        return await self.subscribe("s", self.kind, consumer_name=name, receiver_queue_size=self.queue)

    def producer_options(self) -> dict[str, Any]:
        options = super().producer_options()
        if not self.queue:
            options["batching_enabled"] = False
        elif self.kind is ConsumerType.KeyShared:
            options |= {"batching_type": BatchingType.KeyBased}
        if self.leave:
            options |= {"batching_enabled": True, "batching_max_messages": 10, "max_pending_messages": 1000}
            options.pop("chunking_enabled", None)
        return options

    async def work(self) -> None:
        await asyncio.gather(
            *(self.publish(f"f{number}", self.numbers.choice([5, 40])) for number in range(2))
        )

    async def work_slowly(self, name: str, consumer: Any) -> None:
        r = self.numbers
        while True:
            if self.leave and r.random() < 0.1:
                await consumer.close()
                await self.pause(0, 0.5)
                consumer = await self.open(name)
            try:
                message = await consumer.receive()
            except AlreadyClosed:
                return
            content, position = self.received("s", message)
            if self.kind is ConsumerType.Shared and r.random() < 0.05:
                await consumer.redeliver_unacknowledged_messages()
            refuses = r.random() < 0.4
            if refuses:
                await consumer.negative_acknowledge(message)
            if not refuses or r.random() < 0.3:
                await self.world.pass_time(r.choice([0.0, 0.2, 2.0] if self.leave else [0.0, 0.01, 0.2]))
                await self.acknowledge("s", consumer, message, content, position)
            if self.may_be_slow and r.random() < 0.1:
                await self.world.pass_time(10)

    async def settle(self) -> None:
        await self.until_no_backlog("s")

    async def judge(self) -> None:
        missing = checker.missing(self.history, self.expected(), "s")
        assert not missing, f"never acknowledged: {missing}"
        # Refusing one message of a batch puts off the others, also those of its key.
        checker.check_subscription(self.history, "s", ConsumerType.Shared.name, in_queues=self.in_queues)


class Counts(Workload):
    """At quiet points, the backlog is exactly what was not acknowledged, over every kind of restart."""

    name = "counts"

    async def prepare(self) -> None:
        self.is_cumulative = not self.world.partitions and self.numbers.random() < 0.5
        kind = ConsumerType.Exclusive if self.is_cumulative else ConsumerType.Shared
        self.consumers = [
            await self.subscribe("s", kind, receiver_queue_size=1000, ack_grouping_time_ms=0)
            for _ in range(1 if self.is_cumulative else 2)
        ]

    async def work(self) -> None:
        # Chunks count as messages each.
        await self.publish("n0", self.numbers.choice([10, 40]), chunking_enabled=False)

    async def settle(self) -> None:
        r, machine = self.numbers, self.world.machine
        await self.until(
            lambda: machine.is_up and self.backlog("s") is not None, lambda: "the broker is down"
        )
        positions = {position for position, _, _ in await self.stored_of_subscription()}
        open_positions = dict.fromkeys(sorted(positions))
        for _ in range(3):
            if self.is_cumulative and open_positions:
                last = r.choice(list(open_positions))
                try:
                    await self.consumers[0].acknowledge_cumulative(self.held[last][1])
                except PulsarException:
                    return
                for position in [each for each in open_positions if each <= last]:
                    self.history.add("acknowledging", "s", self.held[position][0], position)
                    del open_positions[position]
            for position in [each for each in open_positions if r.random() < 0.4]:
                content, message = self.held[position]
                # Any consumer may acknowledge it: one that did not receive it knows nothing of its batch.
                if await self.acknowledge("s", r.choice(self.consumers), message, content, position):
                    del open_positions[position]
                else:
                    return  # whether it is stored is not known
            await self.check_count(set(open_positions))
            r.choice([machine.kill, machine.lose_power, self.unload])()
            await self.world.pass_time(10)
            await self.check_count(set(open_positions))

    async def stored_of_subscription(self) -> list[Any]:
        """Receive everything, without acknowledging it."""
        self.held: dict[Any, tuple[str, Any]] = {}
        wanted = set(self.expected())

        async def receive(consumer: Any) -> None:
            while True:
                message = await consumer.receive()
                content, position = self.received("s", message)
                self.held[position] = content, message

        for consumer in self.consumers:
            self.start(receive(consumer))
        await self.until(
            lambda: wanted <= {content for content, _ in self.held.values()}, lambda: "not all are received"
        )
        await self.world.pass_time(20)
        return [(position, content, "") for position, (content, _) in self.held.items()]

    def unload(self) -> None:
        topic = TopicName.parse(self.topic)
        self.world.machine.unload([topic.partition_name(n) for n in range(self.world.partitions)] or [topic])

    async def check_count(self, unacknowledged: set[Position]) -> None:
        """Compare both counts, those of entries and of messages."""
        await self.until(lambda: self.backlog("s") is not None, lambda: "the backlog is not known")
        await self.world.pass_time(1)
        found = self.backlog("s")
        expected = len({position[:3] for position in unacknowledged}), len(unacknowledged)
        assert found in (None, expected), f"the backlog is {found}, unacknowledged are {expected}"
