"""What the driver asks about a query's partitions, of all of them at once.

One consumer a partition stays open to ask for the newest message. It is granted no permits, so that it
receives nothing. Every question goes to all partitions before the first answer is waited for: five hundred
partitions cost little more than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from geminga.errors import PulsarException, Timeout
from geminga.ids import MessageId
from geminga.spark.admission import Cost, Peek, Seen
from geminga.spark.offsets import Offset, Partition, partition_topic

if TYPE_CHECKING:
    from geminga.client.async_consumer import AsyncConsumer
    from geminga.client.sync import Client
    from geminga.wire.metadata import RawEntry

T = TypeVar("T")
Q = TypeVar("Q")

LOOK_SECONDS = 0.1
"""After so long without an entry it is asked whether there is one; then after twice as long, and so on."""
READERS_MAX = 128
"""Readers that are open at once to look at entries."""


class PulsarWatch:
    """The questions of one query's driver. May be used from one thread at a time."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self._consumers: dict[Partition, AsyncConsumer] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._readers = asyncio.Semaphore(READERS_MAX)

    # --- questions --------------------------------------------------------------------------------

    def newest(self, partitions: Iterable[Partition]) -> dict[Partition, MessageId]:
        """The newest message of each; its entry id is -1 where there is none."""
        asked = list(partitions)
        return dict(zip(asked, self._all(self._newest, asked), strict=True))

    def first(self, places: Sequence[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        """The first entry at or after each place; None where nothing lies there any more.

        Raises `Timeout` when an entry that is there does not come: silence is no answer.
        """
        return self._all(self._first, places)

    def look(self, peeks: Sequence[Peek]) -> list[tuple[list[Seen], bool]]:
        """The entries of each peek, and whether they are all up to its end. Raises `Timeout` likewise."""
        return self._all(self._look, peeks)

    def close(self) -> None:
        if not self.client.runtime.closed and not self.client.runtime.forked:
            self.client.runtime.call(self._close())

    def _all(self, answer: Callable[[Q], Awaitable[T]], questions: Sequence[Q]) -> list[T]:
        async def ask() -> list[T]:
            tasks = [asyncio.ensure_future(answer(question)) for question in questions]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()

        return self.client.runtime.call(ask()) if questions else []

    # --- on the client's loop ---------------------------------------------------------------------

    async def _newest(self, partition: Partition) -> MessageId:
        consumer = self._consumers.get(partition)
        if consumer is not None:
            try:
                return await consumer.get_last_message_id()
            except PulsarException:
                # The reader ended, for example because the topic was deleted and made again.
                self._close_later(self._consumers.pop(partition))
        consumer = await self._open(partition, MessageId.latest, 0)
        self._consumers[partition] = consumer
        return await consumer.get_last_message_id()

    async def _first(self, question: tuple[Partition, MessageId]) -> RawEntry | None:
        partition, place = question
        async with self._readers:
            consumer = await self._open(partition, place, 1)
            try:
                return await self._next(consumer, place)
            finally:
                self._close_later(consumer)

    async def _look(self, peek: Peek) -> tuple[list[Seen], bool]:
        from geminga.client.entry_reader import widen
        from geminga.wire.columnar import message_counts

        seen: list[Seen] = []
        cost = Cost()
        place = peek.start.reader_start
        async with self._readers:
            consumer = await self._open(peek.partition, place, 1)
            try:
                while True:
                    entry = await self._next(consumer, place)
                    at = None if entry is None else Offset.after_entry(entry.ledger_id, entry.entry_id)
                    if entry is None or at is None or at > peek.end:
                        return seen, True
                    place = MessageId(-1, entry.ledger_id, entry.entry_id + 1)
                    if at <= peek.start:
                        continue
                    (rows,) = message_counts([entry])
                    one = Cost(1, rows, len(entry.entry))
                    seen.append(Seen(entry, at, one))
                    cost += one
                    if at == peek.end or not peek.wants_more(cost):
                        return seen, at == peek.end
                    # No further than the rest of the budget, if the entries to come are like these.
                    more = int((peek.bytes - cost.bytes) / cost.each.bytes)
                    widen(consumer, max(1, more))
            finally:
                self._close_later(consumer)

    async def _open(self, partition: Partition, start: MessageId, queue_size: int) -> AsyncConsumer:
        from geminga.client.entry_reader import open_entries

        return await open_entries(
            self.client.core,
            partition_topic(partition),
            start,
            queue_size=queue_size,
            subscription_role_prefix=self.name,
        )

    async def _next(self, consumer: AsyncConsumer, place: MessageId) -> RawEntry | None:
        """The next entry of a reader at ``place``; None when there is none at or after it."""
        from geminga.client.entry_reader import next_entry

        core = self.client.core
        limit = core.settings.operation_timeout_seconds
        deadline = core.now() + limit
        pause = LOOK_SECONDS
        while core.now() < deadline:
            entry = await next_entry(consumer, min(deadline, core.now() + pause))
            if entry is not None:
                return entry
            last = await consumer.get_last_message_id()
            if last.entry_id < 0 or (last.ledger_id, last.entry_id) < (place.ledger_id, place.entry_id):
                return None
            pause *= 2
        raise Timeout(
            f"the first entry at {place.ledger_id}:{place.entry_id} of {consumer.topic()} is there and did "
            f"not come for {limit:g} s: is the broker overloaded? The option operationTimeoutMs allows more"
        )

    def _close_later(self, consumer: AsyncConsumer) -> None:
        """Nobody waits for a reader to be closed; its connection sends the command in order."""
        task = self.client.core.loop.create_task(consumer.close())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def _close(self) -> None:
        for consumer in self._consumers.values():
            self._close_later(consumer)
        self._consumers.clear()
        if self._closings:
            await asyncio.wait(self._closings)
