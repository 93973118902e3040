"""Raw entries of a topic from a given position on, for Spark tasks and other columnar readers.

Messages are not decoded, and the broker keeps no position: the subscription is not durable and ends with the
reader. Every entry is returned as stored: chunks one by one, encrypted and damaged ones too, so that a reader
of a range can account for all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from geminga.client.api.entry_consumer import open_durable
from geminga.client.handles.context import ClientContext
from geminga.client.io.delegation import Closing
from geminga.client.receive.async_consumer import AsyncConsumer
from geminga.client.receive.columnar_consumer import raw_entry
from geminga.client.receive.reader import AsyncReader, reader_subscription
from geminga.client.receive.topic_set import TopicSet
from geminga.config import check_int, check_seconds
from geminga.consumer.message import ReceivedEntry
from geminga.consumer.settings import ConsumerSettings, ReaderSettings
from geminga.errors import AlreadyClosed, NotAllowedError, OperationNotSupported
from geminga.ids import MessageId
from geminga.wire.metadata import RawEntry

if TYPE_CHECKING:
    from geminga.client.api.sync import Client

QUEUE_SIZE_DEFAULT = 200_000
"""Number of messages to prefetch."""
QUEUE_BYTES_MAX_DEFAULT = 64 * 1024 * 1024
"""Bytes that may be queued, estimated from the average entry."""
_FORGETTING_SECONDS = 0.05


class EntryReading(TypedDict, total=False):
    """Options of an `EntryReader`, besides its topic and start."""

    inclusive: bool
    """Whether the entry of the start position is read; default True."""
    stop_at: MessageId | None
    """The last entry to read, so that no later ones are fetched."""
    queue_size: int
    """Messages to prefetch; 0, for `open_entries` alone: none."""
    queue_bytes_max: int
    """Bytes that may be queued."""
    subscription_role_prefix: str | None
    """Beginning of the subscription's name."""
    compacted: bool
    """True reads the compacted topic, followed by the entries after it."""


class EntryReader(Closing):
    """Reader of the entries of one topic or partition, for threads. Made by `open`.

    Checksums are not verified here, but by `geminga.wire.columnar.decode_entries`.
    """

    def __init__(
        self, client: Client, consumer: AsyncConsumer[Any], start: MessageId, inclusive: bool
    ) -> None:
        from geminga.client.receive.consumer import Consumer

        self._runtime = client.runtime
        self._inner = consumer
        self._consumer = Consumer(client.runtime, consumer)
        self._reader = AsyncReader(consumer, start, inclusive)
        self._last: ReceivedEntry | None = None

    @classmethod
    def open(
        cls, client: Client, topic: str, start: MessageId, **reading: Unpack[EntryReading]
    ) -> EntryReader:
        """Open a reader of ``topic`` (a partition, or an unpartitioned topic) from ``start`` on.

        The first entry is that of ``start`` (the one after it, unless ``inclusive``); an index into its batch
        shows in the ``ack_set`` of the `RawEntry`. ``reading``: as declared in `EntryReading`.
        """
        for name in ("queue_size", "queue_bytes_max"):
            check_int(name, reading.get(name, 1), 1)
        consumer = client.runtime.call(open_entries(client.context, topic, start, **reading))
        return cls(client, consumer, start, reading.get("inclusive", True))

    @property
    def topic(self) -> str:
        return self._inner.topic()

    def read(self, max_entries: int = 1000, timeout: float | None = None) -> list[RawEntry]:
        """Return the next entries in order: those that are queued, at most ``max_entries``.

        Waits for the first one, at most ``timeout`` seconds (None: without limit); returns an empty list on a
        time-out. Raises `AlreadyClosed`, or the error that ended the subscription.
        """
        check_int("max_entries", max_entries, 1)
        if timeout is not None:
            check_seconds("timeout", timeout)
        queued = self._inner.queue.entries
        if not queued:
            deadline = None if timeout is None else time.monotonic() + timeout
            while self._consumer.wait(deadline) and not queued:
                pass  # taken by another thread
        entries: list[ReceivedEntry] = []
        pop = queued.popleft
        while len(entries) < max_entries:
            try:
                entries.append(pop())
            except IndexError:
                break
        if entries:
            self._last = entries[-1]
        if any(entry.releases for entry in entries):
            self._runtime.post(self._took, entries)
        return [raw_entry(entry) for entry in entries]

    def _took(self, entries: list[ReceivedEntry]) -> None:
        self._inner.group.took_entries(entries)
        # Keeps the broker's statistics of the reader's position correct.
        last = entries[-1]
        handle = self._inner.group.handles.get(last.origin.topic)
        if handle is not None:
            handle.consumer.acknowledge_id_through(last.message_id(-1), self._inner.context.now())

    @property
    def gives_all(self) -> bool:
        """Whether the broker returned every stored entry when this reader was opened: one that is missing is
        lost. Brokers withhold entries of aborted transactions; Apache Pulsar's also withholds entries that
        hold no messages, for example the ends of transactions."""
        handles = list(self._inner.group.handles.values())
        return bool(handles) and all(handle.gives_all for handle in handles)

    def last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; its entry id is -1 if the topic is empty."""
        return self._runtime.call(self._inner.get_last_message_id())

    def has_message_available(self) -> bool:
        """Return whether `read` would return entries without waiting for a new publication."""
        last = self._last
        if last is None or self._inner.queue:
            return self._runtime.call(self._reader.has_message_available())
        newest = self.last_message_id()
        return (newest.ledger_id, newest.entry_id) > (last.ledger_id, last.entry_id)

    def seek(self, position: MessageId | int) -> None:
        """Continue at another message, or at a publish time in milliseconds since 1970."""
        self._runtime.call(self._reader.seek(position))
        self._last = None

    def close(self) -> None:
        """Close the reader; nothing remains on the broker. A second call does nothing."""
        with contextlib.suppress(AlreadyClosed):
            if not self._runtime.closed and not self._runtime.forked:
                self._runtime.call(self._close())

    async def _close(self) -> None:
        await self._inner.close()


@lru_cache(maxsize=64)
def _settings(
    start: MessageId,
    inclusive: bool = True,
    stop_at: MessageId | None = None,
    queue_size: int = QUEUE_SIZE_DEFAULT,
    queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
    subscription_role_prefix: str | None = None,
    compacted: bool = False,
) -> tuple[ConsumerSettings, ReaderSettings]:
    """Return the settings, checked once for all partitions that are opened with the same arguments."""
    settings = ConsumerSettings(
        durable=False,
        start_message_id=start,
        start_message_id_inclusive=inclusive,
        stop_at_message_id=stop_at,
        receiver_queue_size=queue_size,
        receiver_queue_bytes_max=queue_bytes_max,
        is_read_compacted=compacted,
        force_topic_creation=False,
    )
    return settings, ReaderSettings(subscription_role_prefix=subscription_role_prefix)


async def open_entries(
    context: ClientContext, topic: str, start: MessageId, **reading: Unpack[EntryReading]
) -> AsyncConsumer[Any]:
    """Open the consumer of an `EntryReader`, for code that runs on the client's loop."""
    settings, names = _settings(start, **reading)
    random_hex = f"{context.random.getrandbits(40):010x}"
    topics = TopicSet(context, topic)
    parts = await topics.current()
    if len(parts) != 1:
        raise OperationNotSupported(f"{topic} has {len(parts)} partitions: open a reader for each of them")
    consumer = AsyncConsumer(context, topics, reader_subscription(names, random_hex), random_hex, settings)
    consumer.group.whole_entries = True
    consumer.group.untouched_entries = True
    await consumer.open()
    context.register(consumer)
    return consumer


async def make_cursor(context: ClientContext, topic: str, subscription: str, *, from_latest: bool) -> None:
    """Create the durable subscription, after the newest message or before the first, if it does not exist."""
    deadline = context.now() + context.settings.operation_timeout_seconds
    while True:
        try:
            consumer = await open_durable(context, topic, subscription, from_latest=from_latest)
        except NotAllowedError:
            # Apache Pulsar deletes the non-durable subscription that checks the existence a moment after its
            # end.
            if context.now() > deadline:
                raise
            await asyncio.sleep(_FORGETTING_SECONDS)
        else:
            await consumer.close()
            return


def check_cursor(consumer: AsyncConsumer[Any]) -> None:
    """Raise the error that ended the consumer of a cursor."""
    if consumer.failure is not None:
        raise consumer.failure


async def cursor_state(consumer: AsyncConsumer[Any]) -> tuple[MessageId, MessageId | None]:
    """Return the newest message of the consumer's topic and its mark-delete position; on the client's loop.
    Raises the error that ended the consumer."""
    check_cursor(consumer)
    (handle,) = consumer.group.handles.values()
    return await handle.last_message_id()


async def next_entry(
    consumer: AsyncConsumer[Any], deadline: float | None, *, take: bool = True
) -> RawEntry | None:
    """Return the consumer's next entry, None when ``deadline``, on the loop's clock, has passed; on the
    client's loop. Without ``take`` the entry stays queued with its permits. Raises the error that ended the
    consumer."""
    queued = consumer.queue.entries
    while not queued:
        if not await consumer.wait(deadline) and not queued:
            return None
    if not take:
        return raw_entry(queued[0])
    entry = queued.popleft()
    consumer.group.took_entries([entry])
    return raw_entry(entry)


def stop_at(consumer: AsyncConsumer[Any], last: MessageId) -> None:
    """Fetch no entries after ``last`` from now on; on the client's loop."""
    for handle in consumer.group.handles.values():
        handle.consumer.stop_at(last)
        handle.flush_soon()
