"""Durable subscriptions of one partition that deliver entries as stored, or only acknowledge: for mirrors.

Everything runs on the client's loop. When the broker or the connection ends a consumer, ``ended`` resolves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from geminga.client.handles.context import ClientContext
from geminga.client.receive.async_consumer import AsyncConsumer
from geminga.client.receive.topic_set import TopicSet
from geminga.consumer.message import ReceivedEntry
from geminga.consumer.settings import ConsumerSettings, ConsumerType, InitialPosition
from geminga.ids import MessageId


async def open_durable(
    context: ClientContext,
    topic: str,
    subscription: str,
    *,
    from_latest: bool = False,
    queue_messages: int = 0,
    queue_bytes_max: int = 1024 * 1024,
    must_exist: bool = False,
    timeout: float | None = None,
) -> AsyncConsumer[Any]:
    """Open an exclusive durable subscription; the arguments are those of `EntryConsumer.open`. If it does not
    exist, it is created: ``from_latest`` after the newest message, else before the first. Without
    ``queue_messages`` it receives nothing: another reader reads, and this one is moved by ids."""
    settings = ConsumerSettings(
        consumer_type=ConsumerType.Exclusive,
        initial_position=InitialPosition.Latest if from_latest else InitialPosition.Earliest,
        receiver_queue_size=queue_messages,
        receiver_queue_bytes_max=queue_bytes_max,
        ack_receipt_enabled=not queue_messages,
        batch_index_ack_enabled=not queue_messages,
        ack_grouping_time_ms=0,
        force_topic_creation=False,
        must_exist=must_exist,
    )
    name = f"{subscription}-{context.random.getrandbits(40):010x}"
    consumer: AsyncConsumer[Any] = AsyncConsumer(
        context, TopicSet(context, topic), subscription, name, settings
    )
    consumer.group.whole_entries = consumer.group.untouched_entries = queue_messages > 0
    await consumer.open(timeout=timeout)
    context.register(consumer)
    return consumer


class EntryConsumer:
    """Exclusive consumer of a topic or partition, made by `open`."""

    def __init__(self, context: ClientContext, consumer: AsyncConsumer[Any]) -> None:
        self._context = context
        self._consumer = consumer
        (self._handle,) = consumer.group.handles.values()

    @classmethod
    async def open(
        cls,
        context: ClientContext,
        topic: str,
        subscription: str,
        *,
        queue_messages: int = 0,
        queue_bytes_max: int = 1024 * 1024,
        must_exist: bool = False,
        timeout: float | None = None,
    ) -> EntryConsumer:
        """Subscribe. ``queue_messages``: messages to prefetch, in at most ``queue_bytes_max`` bytes; 0 to
        receive none. ``must_exist``: do not create the subscription, now or later. ``timeout``: seconds to
        open it; None: those of the client's settings.

        Raises `ConsumerBusy` while another consumer is attached, and `SubscriptionNotFound`.
        """
        consumer = await open_durable(
            context, topic, subscription, queue_messages=queue_messages, queue_bytes_max=queue_bytes_max,
            must_exist=must_exist, timeout=timeout,
        )  # fmt: skip
        return cls(context, consumer)

    @property
    def entries(self) -> deque[ReceivedEntry]:
        """Entries that were received and not taken yet."""
        return self._consumer.queue.entries

    @property
    def ended(self) -> asyncio.Future[Any]:
        """Resolves, to the error if there is one, when the broker or the connection ends the consumer."""
        return self._handle.driver.detached

    def take(self) -> ReceivedEntry:
        """Remove and return the first of `entries`, so that the broker may send another one."""
        entry = self.entries.popleft()
        self._consumer.group.took_entries([entry])
        return entry

    async def wait(self) -> None:
        """Wait for an entry or a `wake`. Raises the error that ended the subscription."""
        await self._consumer.wait(None)

    def wake(self, *_: object) -> None:
        """End the current `wait`."""
        self._consumer.receive_waiters.wake_all()

    def acknowledge_through(self, ledger: int, entry: int) -> None:
        """Acknowledge all entries up to a position."""
        self._handle.consumer.acknowledge_id_through(MessageId(-1, ledger, entry), self._context.now())

    def acknowledge(self, ledger: int, entry: int) -> None:
        """Acknowledge one entry."""
        self._handle.consumer.acknowledge_id(MessageId(-1, ledger, entry), self._context.now())

    def acknowledge_indexes(self, ledger: int, entry: int, messages: int, done: Sequence[int]) -> None:
        """Acknowledge the messages at the indexes ``done`` of a batch of ``messages`` messages."""
        self._handle.consumer.acknowledge_indexes((ledger, entry), messages, done, self._context.now())

    def flush(self) -> None:
        """Send the acknowledgements now."""
        self._handle.consumer.flush_acks()
        self._handle.flush()

    async def receipt(self) -> None:
        """Send the acknowledgements and wait for their receipts. Only without prefetching."""
        await self._consumer.acknowledging.receipt()

    async def seek(self, position: MessageId) -> None:
        """Move the subscription so that ``position`` is its next message."""
        await self._consumer.seek(position)

    async def close(self) -> None:
        """Close the consumer; the subscription stays."""
        await self._consumer.close()
