"""Compaction and table views: the last value of each key."""

import asyncio
from collections import defaultdict

from geminga import PulsarException
from tests.simulation import rules
from tests.simulation.checker import Stored
from tests.simulation.workloads.base import Workload


class Compaction(Workload):
    """Values of a few keys, compacted again and again; readers see each key's values in order."""

    name = "compaction"

    async def prepare(self) -> None:
        await self.create_topic()
        await self.create_subscription("holds")

    def draw_key(self, name: str) -> str:
        return f"{name}.{self.numbers.randrange(5)}"

    async def work(self) -> None:
        compacting = asyncio.create_task(self.compact_often())
        reading = asyncio.create_task(self.read_often())
        await asyncio.gather(
            *(self.publish(f"c{number}", self.numbers.choice([5, 40])) for number in range(2))
        )
        for task in (compacting, reading):
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def send(self, producer: object, name: str, **options: object) -> None:
        """Send a key's next value, or delete it."""
        number = self.handed_over[name]
        self.handed_over[name] += 1
        is_gone = self.numbers.random() < 0.15
        content = f"{name}-{number}" + ("-" if is_gone else "")
        self.history.add("send", name, content, detail=(key := self.draw_key(name)))
        data = b"" if is_gone else content.encode() + b" " * self.numbers.choice([0, 100, 3000])
        try:
            await producer.send(data, partition_key=key)
        except PulsarException as error:
            self.history.add("not sent", name, content, detail=type(error).__name__)
        else:
            self.history.add("receipt", name, content)

    async def compact(self) -> None:
        def start(actions, topic, done):
            actions.compact(topic)
            done(None)

        await self.administer("compact", start)

    async def compact_often(self) -> None:
        while True:
            await self.pause(0, 2)
            await self.compact()

    async def read_often(self) -> None:
        while True:
            await self.pause(0, 3)
            self.check_order(await self.until_it_works(lambda: self.stored(is_read_compacted=True)))

    def check_order(self, stored: Stored) -> None:
        newest: dict[str, int] = defaultdict(lambda: -1)
        for position, content, key in stored:
            if content and self.world.deduplicates:  # a producer that connects again repeats some otherwise
                number = int(content.partition("-")[2])
                assert number > newest[key], f"{key} goes back to {content} at {position}"
                newest[key] = number

    async def settle(self) -> None:
        await self.compact_to_the_end()
        if self.numbers.random() < 0.5:  # compacted messages stay readable without a subscription
            await self.administer(
                "unsubscribe", lambda actions, topic, done: actions.cursors.delete(topic, "holds", done)
            )

    async def compact_to_the_end(self) -> None:
        status: list[str] = []

        def look(actions, topic, done):
            status[:] = [actions.compaction_status(topic)["status"]]
            done(None)

        end = self.world.clock.now + self.world.patience
        await self.compact()
        while True:
            await self.administer("compaction status", look)
            if status == ["SUCCESS"]:
                return
            assert self.world.clock.now < end, f"compaction is {status}"
            await self.world.pass_time(0.5)
            if status != ["RUNNING"]:
                await self.compact()

    async def judge(self) -> None:
        expected = rules.possible_last(self.history)
        stored = await self.stored(is_read_compacted=True)
        self.check_order(stored)
        found: dict[str, str] = {}
        for _, content, key in stored:
            found[key] = content
        rules.last_values(expected, {key: content for key, content in found.items() if content}, "compacted")
        view = await self.until_it_works(lambda: self.world.client.create_table_view(self.topic))
        values = {key: bytes(view.get(key)).decode().rstrip() for key in view}
        rules.last_values(expected, values, "the table view")
        await view.close()
