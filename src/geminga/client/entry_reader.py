"""Raw entries from a fixed position: what Spark tasks and other readers of columns use.

No message is decoded here, and no position is kept on the broker: the subscription is not durable and
ends with the reader. Every entry comes as it is stored: chunks one by one, encrypted and damaged ones too,
so that a reader of a range can account for all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

from geminga.client.async_consumer import AsyncConsumer
from geminga.client.columnar_consumer import raw_entry
from geminga.client.context import ClientContext
from geminga.client.reader import AsyncReader, reader_subscription
from geminga.client.topic_set import TopicSet
from geminga.config import check_int, check_seconds
from geminga.consumer.message import ReceivedEntry
from geminga.consumer.settings import ConsumerSettings, ConsumerType, InitialPosition, ReaderSettings
from geminga.errors import AlreadyClosed, NotAllowedError, OperationNotSupported
from geminga.ids import MessageId
from geminga.wire.metadata import RawEntry

if TYPE_CHECKING:
    from geminga.client.sync import Client

QUEUE_SIZE_DEFAULT = 200_000
"""Messages asked for ahead."""
QUEUE_BYTES_MAX_DEFAULT = 64 * 1024 * 1024
"""Bytes that may wait to be read, judged by the average entry."""
_FORGETTING_SECONDS = 0.05


class EntryReader:
    """Reads the entries of one topic or partition, for threads. Made by `open`.

    Entries are not checked: `geminga.wire.columnar.decode_entries` verifies their checksums.
    """

    def __init__(
        self, client: Client, consumer: AsyncConsumer[Any], start: MessageId, inclusive: bool
    ) -> None:
        from geminga.client.consumer import Consumer

        self._runtime = client.runtime
        self._inner = consumer
        self._consumer = Consumer(client.runtime, consumer)
        self._reader = AsyncReader(consumer, start, inclusive)
        self._last: ReceivedEntry | None = None

    @classmethod
    def open(
        cls,
        client: Client,
        topic: str,
        start: MessageId,
        *,
        inclusive: bool = True,
        stop_at: MessageId | None = None,
        queue_size: int = QUEUE_SIZE_DEFAULT,
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        subscription_role_prefix: str | None = None,
        compacted: bool = False,
    ) -> EntryReader:
        """A reader of ``topic`` (a partition, or a topic without partitions) from ``start`` on.

        The entry of ``start`` is the first one (the one after it, unless ``inclusive``); an index into its
        batch shows in the ``ack_set`` of the `RawEntry`. ``stop_at``: the last entry that is wanted, so that
        the broker is asked for no more. ``queue_size``: messages asked for ahead;
        ``queue_bytes_max``: bytes that may wait. ``compacted``: what compaction has left of the topic, and
        then its own entries.
        """
        check_int("queue_size", queue_size, 1)
        check_int("queue_bytes_max", queue_bytes_max, 1)
        consumer = client.runtime.call(
            open_entries(
                client.context,
                topic,
                start,
                inclusive=inclusive,
                stop_at=stop_at,
                queue_size=queue_size,
                queue_bytes_max=queue_bytes_max,
                subscription_role_prefix=subscription_role_prefix,
                compacted=compacted,
            )
        )
        return cls(client, consumer, start, inclusive)

    @property
    def topic(self) -> str:
        return self._inner.topic()

    def read(self, max_entries: int = 1000, timeout: float | None = None) -> list[RawEntry]:
        """The next entries, in order: those that are there, at most ``max_entries``.

        Waits for the first one, at most ``timeout`` seconds (None: without limit); an empty list when none
        came. Raises `AlreadyClosed`, or why the topic cannot be read any more.
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
        # Keeps the broker's figures of the reader's place right.
        last = entries[-1]
        handle = self._inner.group.handles.get(last.origin.topic)
        if handle is not None:
            handle.consumer.acknowledge_entry_through(last, self._inner.context.now())

    @property
    def gives_all(self) -> bool:
        """Whether the broker gives every entry that it has. Apache Pulsar's keeps those to itself that are no
        messages, the ends of transactions for one; Geminga's has none such, and what is missing is lost."""
        handles = list(self._inner.group.handles.values())
        return bool(handles) and all(handle.gives_all for handle in handles)

    def last_message_id(self) -> MessageId:
        """The id of the topic's last message now; its entry id is -1 when the topic is empty."""
        return self._runtime.call(self._inner.get_last_message_id())

    def has_message_available(self) -> bool:
        """Whether `read` would return entries without waiting for a new publication."""
        last = self._last
        if last is None or self._inner.queue:
            return self._runtime.call(self._reader.has_message_available())
        newest = self.last_message_id()
        return (newest.ledger_id, newest.entry_id) > (last.ledger_id, last.entry_id)

    def seek(self, position: MessageId | int) -> None:
        """Go on at another message, or at a publish time in milliseconds since 1970."""
        self._runtime.call(self._reader.seek(position))
        self._last = None

    def close(self) -> None:
        """End the reader; nothing of it stays on the broker. A second call does nothing."""
        with contextlib.suppress(AlreadyClosed):
            if not self._runtime.closed and not self._runtime.forked:
                self._runtime.call(self._close())

    async def _close(self) -> None:
        await self._inner.close()

    def __enter__(self) -> EntryReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@lru_cache(maxsize=64)
def _settings(
    start: MessageId,
    inclusive: bool,
    stop_at: MessageId | None,
    queue_size: int,
    queue_bytes_max: int,
    compacted: bool,
) -> ConsumerSettings:
    """Checked once for all the partitions that are opened alike."""
    return ConsumerSettings(
        durable=False,
        start_message_id=start,
        start_message_id_inclusive=inclusive,
        stop_at_message_id=stop_at,
        receiver_queue_size=queue_size,
        receiver_queue_bytes_max=queue_bytes_max,
        is_read_compacted=compacted,
        force_topic_creation=False,
    )


async def open_entries(
    context: ClientContext,
    topic: str,
    start: MessageId,
    *,
    inclusive: bool = True,
    stop_at: MessageId | None = None,
    queue_size: int = QUEUE_SIZE_DEFAULT,
    queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
    subscription_role_prefix: str | None = None,
    compacted: bool = False,
) -> AsyncConsumer[Any]:
    """The consumer behind an `EntryReader`, for code that runs on the client's loop."""
    settings = _settings(start, inclusive, stop_at, queue_size, queue_bytes_max, compacted)
    random_hex = f"{context.random.getrandbits(40):010x}"
    names = ReaderSettings(subscription_role_prefix=subscription_role_prefix)
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


async def open_cursor(
    context: ClientContext, topic: str, subscription: str, *, from_latest: bool, must_exist: bool = False
) -> AsyncConsumer[Any]:
    """A durable subscription that receives nothing: somebody else reads, and it is moved by ids.

    One that is not there is made, behind the newest message or before the first. ``must_exist``: it is not,
    now or when a connection is lost, but `SubscriptionNotFound` is raised. Raises `ConsumerBusy` while
    another consumer has it.
    """
    settings = ConsumerSettings(
        consumer_type=ConsumerType.Exclusive,
        initial_position=InitialPosition.Latest if from_latest else InitialPosition.Earliest,
        must_exist=must_exist,
        receiver_queue_size=0,
        ack_receipt_enabled=True,
        ack_grouping_time_ms=0,
        force_topic_creation=False,
    )
    name = f"{subscription}-{context.random.getrandbits(40):010x}"
    consumer = AsyncConsumer(context, TopicSet(context, topic), subscription, name, settings)
    await consumer.open()
    context.register(consumer)
    return consumer


async def make_cursor(context: ClientContext, topic: str, subscription: str, *, from_latest: bool) -> None:
    """Make the durable subscription, behind the newest message or before the first, where it is not there."""
    deadline = context.now() + context.settings.operation_timeout_seconds
    while True:
        try:
            consumer = await open_cursor(context, topic, subscription, from_latest=from_latest)
        except NotAllowedError:
            # Apache Pulsar forgets the one that was made to ask whether it is there a moment after its end.
            if context.now() > deadline:
                raise
            await asyncio.sleep(_FORGETTING_SECONDS)
        else:
            await consumer.close()
            return


def check_cursor(consumer: AsyncConsumer[Any]) -> None:
    """Raises what has ended such a consumer."""
    if consumer.failure is not None:
        raise consumer.failure


async def cursor_state(consumer: AsyncConsumer[Any]) -> tuple[MessageId, MessageId | None]:
    """On the client's loop: the newest message of such a consumer's topic, and its mark-delete position.

    Raises what has ended the consumer.
    """
    check_cursor(consumer)
    (handle,) = consumer.group.handles.values()
    return await handle.last_message_id()


async def next_entry(
    consumer: AsyncConsumer[Any], deadline: float | None, *, take: bool = True
) -> RawEntry | None:
    """On the client's loop: such a consumer's next entry; None when ``deadline``, on the loop's clock, is
    over. One that is not taken keeps its permits. Raises what ends the consumer."""
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
    """On the client's loop: ``last`` is the last entry that is wanted from now on."""
    for handle in consumer.group.handles.values():
        handle.consumer.stop_at(last)
        handle.flush_soon()
