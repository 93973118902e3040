"""What the driver asks about a query's partitions, of all of them at once.

One consumer a partition stays open to ask for the newest message. It receives nothing; or the first
message, for a planner that asks for that next. Every question goes
to all partitions before the first answer is waited for: five hundred cost little more than one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from geminga.errors import PulsarException, SubscriptionNotFound, Timeout
from geminga.ids import MessageId
from geminga.spark.admission import EntryCost, EntrySample, MeasuredEntry
from geminga.spark.cursor import SubscriptionCursor
from geminga.spark.offsets import Offset, Partition, partition_topic

if TYPE_CHECKING:
    from geminga.client.async_consumer import AsyncConsumer
    from geminga.client.sync import Client
    from geminga.wire.metadata import RawEntry

T = TypeVar("T")
Q = TypeVar("Q")

LOOK_SECONDS = 0.1
"""After so long without an entry it is asked whether there is one; then after twice as long, and so on."""
_PERMITS_MAX = 1000
"""A look asks for so many messages ahead at the most, and for no entry that is not wanted."""
MANY = 64
"""Questions from which on they are put without Python's garbage collector."""
READERS_MAX = 128
"""Readers that are open at once to look at entries."""


class PulsarPartitions:
    """The questions of one query's driver. May be used from one thread at a time."""

    def __init__(
        self, client: Client, name: str, *, from_first: bool = False, compacted: bool = False
    ) -> None:
        self.client = client
        self.name = name
        self._compacted = compacted
        self._start = MessageId.earliest if from_first else MessageId.latest
        self._consumers: dict[Partition, AsyncConsumer[Any]] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._readers = asyncio.Semaphore(READERS_MAX)

    # --- questions --------------------------------------------------------------------------------

    def newest(self, partitions: Iterable[Partition]) -> dict[Partition, MessageId]:
        """The newest message of each; its entry id is -1 where there is none."""
        asked = list(partitions)
        found = dict(zip(asked, all_at_once(self.client, self._newest, asked), strict=True))
        if self._compacted:
            empty = [partition for partition, newest in found.items() if newest.entry_id < 0]
            answers = all_at_once(self.client, self._newest_compacted, empty)
            found.update(zip(empty, answers, strict=True))
        return found

    def first(self, places: Sequence[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        """The first entry at or after each place; None where nothing lies there any more.

        Raises `Timeout` when an entry that is there does not come: silence is no answer.
        """
        return all_at_once(self.client, self._first, places)

    def look(self, peeks: Sequence[EntrySample]) -> list[tuple[list[MeasuredEntry], bool]]:
        """The entries of each peek, and whether they are all up to its end. Raises `Timeout` likewise."""
        return all_at_once(self.client, self._look, peeks)

    def close(self) -> None:
        """Nobody waits until all is closed; it is soon, or with the process."""
        if not self.client.runtime.closed and not self.client.runtime.forked:
            self.client.runtime.call(self._close())

    # --- on the client's loop ---------------------------------------------------------------------

    async def _newest(self, partition: Partition) -> MessageId:
        consumer = self._consumers.get(partition)
        if consumer is not None:
            try:
                return await consumer.get_last_message_id()
            except PulsarException:
                # The reader ended, for example because the topic was deleted and made again.
                self._close_later(self._consumers.pop(partition))
        from_first = self._start == MessageId.earliest
        consumer = await self._open(partition, self._start, _PERMITS_MAX if from_first else 0)
        self._consumers[partition] = consumer
        return await consumer.get_last_message_id()

    async def _newest_compacted(self, partition: Partition) -> MessageId:
        """Of a topic whose own ledgers hold nothing any more: who reads it as it is is told of nothing."""
        async with self._readers:
            consumer = await self._open(partition, MessageId.earliest, 0, compacted=True)
            try:
                return await consumer.get_last_message_id()
            finally:
                self._close_later(consumer)

    async def _first(self, question: tuple[Partition, MessageId]) -> RawEntry | None:
        partition, place = question
        known = self._consumers.get(partition)
        if known is not None and place == self._start == MessageId.earliest:
            return await self._next(known, place, take=False)
        async with self._readers:
            consumer = await self._open(partition, place, _PERMITS_MAX)
            try:
                return await self._next(consumer, place)
            finally:
                self._close_later(consumer)

    async def _look(self, peek: EntrySample) -> tuple[list[MeasuredEntry], bool]:
        from geminga.client.entry_reader import stop_at
        from geminga.wire.columnar import message_counts

        seen: list[MeasuredEntry] = []
        cost = EntryCost()
        place = peek.start.next_place
        async with self._readers:
            consumer = await self._open(peek.partition, place, _PERMITS_MAX)
            try:
                while True:
                    entry = await self._next(consumer, place)
                    at = None if entry is None else Offset.after_entry(entry.ledger_id, entry.entry_id)
                    if entry is None or at is None or at > peek.end:
                        return seen, True
                    place = MessageId(-1, entry.ledger_id, entry.entry_id + 1)
                    if at <= peek.start:
                        stop_at(consumer, place)
                        continue
                    (rows,) = message_counts([entry])
                    one = EntryCost(1, rows, len(entry.entry))
                    seen.append(MeasuredEntry(entry, at, one))
                    cost += one
                    if at == peek.end or not peek.wants_more(cost):
                        return seen, at == peek.end
                    # No further than the rest of the budget, if the entries to come are like these.
                    more = max(1, int((peek.bytes - cost.bytes) / cost.each.bytes))
                    stop_at(consumer, MessageId(-1, place.ledger_id, entry.entry_id + more))
            finally:
                self._close_later(consumer)

    async def _open(
        self, partition: Partition, start: MessageId, queue_size: int, *, compacted: bool = False
    ) -> AsyncConsumer[Any]:
        from geminga.client.entry_reader import open_entries

        return await open_entries(
            self.client.context,
            partition_topic(partition),
            start,
            stop_at=start,
            queue_size=queue_size,
            subscription_role_prefix=self.name,
            compacted=compacted,
        )

    async def _next(
        self, consumer: AsyncConsumer[Any], place: MessageId, *, take: bool = True
    ) -> RawEntry | None:
        """The next entry of a reader at ``place``; None when there is none at or after it."""
        from geminga.client.entry_reader import next_entry

        context = self.client.context
        limit = context.settings.operation_timeout_seconds
        deadline = context.now() + limit
        pause = LOOK_SECONDS
        while context.now() < deadline:
            entry = await next_entry(consumer, min(deadline, context.now() + pause), take=take)
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

    def _close_later(self, consumer: AsyncConsumer[Any]) -> None:
        """Nobody waits for a reader to be closed; its connection sends the command in order."""
        task = self.client.context.loop.create_task(consumer.close())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def _close(self) -> None:
        for consumer in self._consumers.values():
            self._close_later(consumer)
        self._consumers.clear()


class PulsarCursors:
    """One durable subscription on a query's partitions, moved from the driver."""

    def __init__(self, client: Client, subscription: str) -> None:
        self.client = client
        self.subscription = subscription
        self._consumers: dict[Partition, AsyncConsumer[Any]] = {}

    def states(
        self,
        partitions: Iterable[Partition],
        *,
        from_latest: Collection[Partition] = (),
        known: Collection[Partition] = (),
    ) -> dict[Partition, SubscriptionCursor | None]:
        """See `geminga.spark.cursor.SubscriptionCursors`. Raises `ConsumerBusy` when another query has it."""
        asked = [(partition, partition in from_latest, partition in known) for partition in partitions]
        found = all_at_once(self.client, self._state, asked)
        return {partition: state for (partition, *_), state in zip(asked, found, strict=True)}

    def move(self, places: Mapping[Partition, MessageId]) -> None:
        all_at_once(self.client, self._move, list(places.items()))

    def rewind(self, places: Mapping[Partition, MessageId]) -> None:
        all_at_once(self.client, self._rewind, list(places.items()))

    def close(self) -> None:
        if not self.client.runtime.closed and not self.client.runtime.forked:
            all_at_once(self.client, lambda consumer: consumer.close(), list(self._consumers.values()))
        self._consumers.clear()

    async def _state(self, question: tuple[Partition, bool, bool]) -> SubscriptionCursor | None:
        from geminga.client.entry_reader import cursor_state, make_cursor, open_cursor

        partition, from_latest, is_known = question
        consumer = self._consumers.get(partition)
        if consumer is not None:
            try:
                return SubscriptionCursor(*await cursor_state(consumer))
            except PulsarException:
                await self._consumers.pop(partition).close()
        opened = partial(
            open_cursor, self.client.context, partition_topic(partition), self.subscription,
            from_latest=from_latest, must_exist=True,
        )  # fmt: skip
        try:
            consumer = await opened()
        except SubscriptionNotFound:
            if is_known:
                return None
            await make_cursor(
                self.client.context, partition_topic(partition), self.subscription, from_latest=from_latest
            )
            consumer = await opened()
        self._consumers[partition] = consumer
        return SubscriptionCursor(*await cursor_state(consumer))

    async def _move(self, question: tuple[Partition, MessageId]) -> None:
        partition, place = question
        consumer = self._held(partition)
        limit = self.client.context.settings.operation_timeout_seconds
        try:
            async with asyncio.timeout(limit):
                await consumer.acknowledge_cumulative(place)
        except TimeoutError as error:
            if isinstance(error, PulsarException):
                raise
            topic = partition_topic(partition)
            raise Timeout(
                f"{topic}: moving {self.subscription} was not receipted within {limit:g} s"
            ) from None

    async def _rewind(self, question: tuple[Partition, MessageId]) -> None:
        partition, place = question
        await self._held(partition).seek(place)

    def _held(self, partition: Partition) -> AsyncConsumer[Any]:
        from geminga.client.entry_reader import check_cursor

        consumer = self._consumers[partition]
        check_cursor(consumer)
        return consumer


def all_at_once(client: Client, answer: Callable[[Q], Awaitable[T]], questions: Sequence[Q]) -> list[T]:
    """The answers to all questions, put together on the client's loop; the first error ends them all."""

    async def ask() -> list[T]:
        tasks = [asyncio.ensure_future(answer(question)) for question in questions]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    if not questions:
        return []
    with _collector_rests() if len(questions) >= MANY else contextlib.nullcontext():
        return client.runtime.call(ask())


@contextlib.contextmanager
def _collector_rests() -> Iterator[None]:
    """So many tasks and futures at once have Python's collector walk the whole heap again and again, which
    takes a third of the time; none of them is in a cycle, and all are gone a moment later."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
