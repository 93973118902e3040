"""Driver's queries about the partitions of a query, sent to all of them at once.

One consumer per partition stays open to query the newest message. It receives no messages; or only the first
one, for a planner that needs it next. Every query goes to all partitions before the first answer is awaited:
five hundred cost little more than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from geminga.errors import PulsarException, SubscriptionNotFound, Timeout
from geminga.ids import MessageId
from geminga.spark.cluster.entry_samples import EntryCost, EntrySample, MeasuredEntry
from geminga.spark.offsets import Offset, Partition, partition_topic
from geminga.wire.metadata import RawEntry

if TYPE_CHECKING:
    from geminga.client.api.sync import Client
    from geminga.client.receive.async_consumer import AsyncConsumer

T = TypeVar("T")
Q = TypeVar("Q")

LOOK_SECONDS = 0.1
"""Seconds without an entry after which the topic's end is queried; doubled for each further query."""
_PERMITS_MAX = 1000
"""Maximum permits of one reader; it requests no more entries than are wanted."""
READERS_MAX = 128
"""Maximum readers that are open at once."""


class PulsarPartitions:
    """Queries of one query's driver. Use it from one thread at a time."""

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
        """Return the newest message of each partition; its entry id is -1 if the partition is empty."""
        asked = list(partitions)
        found = dict(zip(asked, all_at_once(self.client, self._newest, asked), strict=True))
        if self._compacted:
            empty = [partition for partition, newest in found.items() if newest.entry_id < 0]
            answers = all_at_once(self.client, self._newest_compacted, empty)
            found.update(zip(empty, answers, strict=True))
        return found

    def first(self, places: Sequence[tuple[Partition, MessageId]]) -> list[RawEntry | None]:
        """Return the first entry at or after each position; None if there is no later entry.

        Raises `Timeout` when an existing entry does not arrive.
        """
        return all_at_once(self.client, self._first, places)

    def sample(self, samples: Sequence[EntrySample]) -> list[tuple[list[MeasuredEntry], bool]]:
        """Return the entries of each sample, and whether they are all the entries up to its end. Raises
        `Timeout` when an existing entry does not arrive."""
        return all_at_once(self.client, self._sample, samples)

    def close(self) -> None:
        """Start closing without waiting: it completes soon, or with the process."""
        if not self.client.runtime.closed and not self.client.runtime.forked:
            self.client.runtime.call(self._close())

    # --- on the client's loop ---------------------------------------------------------------------

    async def _newest(self, partition: Partition) -> MessageId:
        consumer = self._consumers.get(partition)
        if consumer is not None:
            try:
                return await consumer.get_last_message_id()
            except PulsarException:
                # The reader ended, for example because the topic was deleted and recreated.
                self._close_later(self._consumers.pop(partition))
        from_first = self._start == MessageId.earliest
        consumer = await self._open(partition, self._start, _PERMITS_MAX if from_first else 0)
        self._consumers[partition] = consumer
        return await consumer.get_last_message_id()

    async def _newest_compacted(self, partition: Partition) -> MessageId:
        """Return the newest message of a topic whose own ledgers are empty: only compacted readers get it."""
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

    async def _sample(self, sample: EntrySample) -> tuple[list[MeasuredEntry], bool]:
        from geminga.client.api.entry_reader import stop_at
        from geminga.wire.columnar import message_counts

        seen: list[MeasuredEntry] = []
        cost = EntryCost()
        place = sample.start.next_place
        async with self._readers:
            consumer = await self._open(sample.partition, place, _PERMITS_MAX)
            try:
                while True:
                    entry = await self._next(consumer, place)
                    at = None if entry is None else Offset.after_entry(entry.ledger_id, entry.entry_id)
                    if entry is None or at is None or at > sample.end:
                        return seen, True
                    place = MessageId(-1, entry.ledger_id, entry.entry_id + 1)
                    if at <= sample.start:
                        stop_at(consumer, place)
                        continue
                    (rows,) = message_counts([entry])
                    one = EntryCost(1, rows, len(entry.entry))
                    seen.append(MeasuredEntry(at, one))
                    cost += one
                    if at == sample.end or not sample.wants_more(cost):
                        return seen, at == sample.end
                    # Request no more than the rest of the budget, assuming similar entries.
                    more = max(1, int((sample.bytes - cost.bytes) / cost.each.bytes))
                    stop_at(consumer, MessageId(-1, place.ledger_id, entry.entry_id + more))
            finally:
                self._close_later(consumer)

    async def _open(
        self, partition: Partition, start: MessageId, queue_size: int, *, compacted: bool = False
    ) -> AsyncConsumer[Any]:
        from geminga.client.api.entry_reader import open_entries

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
        """Return the next entry of a reader at ``place``; None if the topic has no later entry."""
        from geminga.client.api.entry_reader import next_entry

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
            f"the first entry at {place.ledger_id}:{place.entry_id} of {consumer.topic()} exists and did "
            f"not arrive for {limit:g} s: is the broker overloaded? The option operationTimeoutMs allows more"
        )

    def _close_later(self, consumer: AsyncConsumer[Any]) -> None:
        """Close a reader without waiting; its connection sends the command in order."""
        task = self.client.context.loop.create_task(consumer.close())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def _close(self) -> None:
        for consumer in self._consumers.values():
            self._close_later(consumer)
        self._consumers.clear()


@dataclass(frozen=True, slots=True)
class SubscriptionCursor:
    """A partition's newest message, and the mark-delete position of the subscription; None: unknown."""

    newest: MessageId
    marked: MessageId | None


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
        """Return the cursors. Create a missing subscription: after the newest message for the partitions in
        ``from_latest``, else before the first. For those in ``known``, which had it before, return None
        instead. Raises `ConsumerBusy` when another query uses the subscription."""
        asked = [(partition, partition in from_latest, partition in known) for partition in partitions]
        found = all_at_once(self.client, self._state, asked)
        return {partition: state for (partition, *_), state in zip(asked, found, strict=True)}

    def move(self, places: Mapping[Partition, MessageId]) -> None:
        """Acknowledge everything up to and including these positions; return when it is stored."""
        all_at_once(self.client, self._move, list(places.items()))

    def rewind(self, places: Mapping[Partition, MessageId]) -> None:
        """Set the cursors back before these positions."""
        all_at_once(self.client, self._rewind, list(places.items()))

    def close(self) -> None:
        if not self.client.runtime.closed and not self.client.runtime.forked:
            all_at_once(self.client, lambda consumer: consumer.close(), list(self._consumers.values()))
        self._consumers.clear()

    async def _state(self, question: tuple[Partition, bool, bool]) -> SubscriptionCursor | None:
        from geminga.client.api.entry_consumer import open_durable
        from geminga.client.api.entry_reader import cursor_state, make_cursor

        partition, from_latest, is_known = question
        consumer = self._consumers.get(partition)
        if consumer is not None:
            try:
                return SubscriptionCursor(*await cursor_state(consumer))
            except PulsarException:
                await self._consumers.pop(partition).close()
        opened = partial(
            open_durable, self.client.context, partition_topic(partition), self.subscription,
            from_latest=from_latest, must_exist=True,
        )  # fmt: skip
        try:
            consumer = await opened()
        except SubscriptionNotFound:
            if is_known:
                return None
            await make_cursor(*opened.args, from_latest=from_latest)
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
                f"{topic}: no receipt for the new cursor of {self.subscription} within {limit:g} s"
            ) from None

    async def _rewind(self, question: tuple[Partition, MessageId]) -> None:
        partition, place = question
        await self._held(partition).seek(place)

    def _held(self, partition: Partition) -> AsyncConsumer[Any]:
        from geminga.client.api.entry_reader import check_cursor

        consumer = self._consumers[partition]
        check_cursor(consumer)
        return consumer


def all_at_once(client: Client, answer: Callable[[Q], Awaitable[T]], questions: Sequence[Q]) -> list[T]:
    """Run all queries together on the client's loop and return the answers; the first error ends them all."""

    async def ask() -> list[T]:
        tasks = [asyncio.ensure_future(answer(question)) for question in questions]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    if not questions:
        return []
    return client.runtime.call(ask())
