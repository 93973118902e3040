"""Readers: a topic from a position of one's own, with no subscription that outlives them.

A reader is a consumer on a subscription that is not durable (algorithms.md section 8): it keeps its
place by itself, goes on there after a reconnect without losing or repeating a message, and leaves nothing
behind on the broker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any

from geminga.client.async_consumer import AsyncConsumer
from geminga.client.consumer import Consumer
from geminga.client.core import ClientCore
from geminga.client.listener import ListenerThreads, Listening
from geminga.client.runtime import LoopThread
from geminga.client.topic_set import TopicSet
from geminga.consumer.inbox import ReadThrough
from geminga.consumer.message import Message
from geminga.consumer.seek import is_after, is_end
from geminga.consumer.settings import ConsumerSettings, ReaderSettings
from geminga.errors import AlreadyClosed, InvalidConfiguration
from geminga.ids import MessageId

logger = logging.getLogger("geminga")


class AsyncReader:
    """A reader for asyncio programs; ``async for message in reader`` reads without end."""

    def __init__(self, consumer: AsyncConsumer, start: MessageId, inclusive: bool) -> None:
        self.consumer = consumer
        self.listener: Callable[[Any, Any], Any] | None = None
        """For the sync shell: takes the messages on a thread of its own."""
        self._start: MessageId | int = start
        self._inclusive = inclusive
        self._read: dict[str, Message] = {}

    def topic(self) -> str:
        return self.consumer.topic()

    def is_connected(self) -> bool:
        return not self.consumer.closed and self.consumer.is_connected()

    async def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for one, at most ``timeout_millis``. Raises `Timeout`, `AlreadyClosed`."""
        message = await self.consumer.receive(timeout_millis)
        self.note_read(message)
        return message

    def note_read(self, message: Message) -> None:
        """The reader's place moves; the broker hears of it with the next group of acknowledgements. On any
        thread."""
        self._read[message._entry.origin.topic] = message
        if not self.consumer.inbox.armed:
            self.consumer.inbox.add(ReadThrough(self._read))

    async def has_message_available(self) -> bool:
        """Whether `read_next` would return without waiting for a new publication."""
        if self.consumer.queue:
            return True
        for handle in list(self.consumer.group.handles.values()):
            last, marked = await handle.last_message_id()
            read = self._read.get(handle.topic)
            if read is not None and read._entry.origin is not handle.consumer.origin:
                read = None  # of another cluster, whose ids say nothing here
            if self._is_ahead(read, last, marked):
                return True
        return bool(self.consumer.queue)

    def _is_ahead(self, read: Message | None, last: MessageId, marked: MessageId | None) -> bool:
        if read is not None:
            return is_after(last, read.message_id(), inclusive=False)
        start = self._start
        if isinstance(start, int) or (is_end(start) and start.ledger_id > 0):
            # From a time, or from the end: only the broker knows where that is.
            if marked is None or last.entry_id < 0:
                return last.entry_id >= 0 and isinstance(start, int)
            return (last.ledger_id, last.entry_id) > (marked.ledger_id, marked.entry_id)
        return is_after(last, start, inclusive=self._inclusive)

    async def seek(self, messageid: MessageId | int) -> None:
        """Go on after a message (at it, with ``start_message_id_inclusive``), or at a publish time in
        milliseconds since 1970."""
        await self.consumer.seek(messageid)
        self._start = messageid
        self._read.clear()

    async def get_last_message_id(self) -> MessageId:
        """The id of the topic's last message; its entry id is -1 when the topic is empty."""
        return await self.consumer.get_last_message_id()

    async def close(self) -> None:
        """End the reader; its subscription disappears from the broker. A second call does nothing."""
        self.consumer.core.unregister(self)
        await self.consumer.close()

    def abandon(self) -> None:
        """See `AsyncConsumer.abandon`."""
        self.consumer.abandon()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.read_next()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncReader of {self.topic()}>"


class Reader:
    """A reader for threads; ``for message in reader`` reads without end.

    Made by `geminga.Client.create_reader`. Methods are ``pulsar-client``'s.
    """

    def __init__(
        self, runtime: LoopThread, reader: AsyncReader, threads: ListenerThreads | None = None
    ) -> None:
        self._runtime = runtime
        self._reader = reader
        self._consumer = Consumer(runtime, reader.consumer)
        self._listener: Listening | None = None
        if reader.listener is not None and threads is not None:
            self._listener = Listening(self, reader.listener, self._take_now, self._tell)
            self._listener.start(threads)

    def topic(self) -> str:
        return self._reader.topic()

    def is_connected(self) -> bool:
        return self._reader.is_connected()

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for one, at most ``timeout_millis``. Raises `Timeout`, `AlreadyClosed`."""
        if self._listener is not None:
            raise InvalidConfiguration("the reader has a reader_listener: it takes the messages")
        message = self._consumer.receive(timeout_millis)
        self._reader.note_read(message)
        return message

    def _take_now(self) -> Message | None:
        """See `Listening`."""
        message = self._consumer._take_now()
        if message is not None:
            self._reader.note_read(message)
        return message

    def _tell(self, listening: Listening) -> None:
        """See `Listening`."""
        self._consumer._tell(listening)

    def has_message_available(self) -> bool:
        """Whether `read_next` would return without waiting for a new publication."""
        self._runtime.check()
        # What waits here already needs neither the I/O thread nor the broker.
        return bool(self._reader.consumer.queue) or self._runtime.call(self._reader.has_message_available())

    def seek(self, messageid: MessageId | int) -> None:
        """See `AsyncReader.seek`."""
        self._runtime.call(self._reader.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        """The id of the topic's last message; its entry id is -1 when the topic is empty."""
        return self._runtime.call(self._reader.get_last_message_id())

    def close(self) -> None:
        """End the reader; its subscription disappears from the broker. A second call does nothing."""
        if not self._runtime.closed and not self._runtime.forked:
            self._runtime.call(self._reader.close())
        if self._listener is not None:
            self._listener.stop()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.read_next()
        except AlreadyClosed:
            raise StopIteration from None

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Reader of {self.topic()}>"


def reader_subscription(settings: ReaderSettings, random_hex: str) -> str:
    """The name of the reader's subscription, as the official clients make it."""
    if settings.subscription_name:
        return settings.subscription_name
    prefix = f"{settings.subscription_role_prefix}-" if settings.subscription_role_prefix else ""
    return f"{prefix}reader-{random_hex}"


async def create_reader(
    core: ClientCore, topic: str, start_message_id: MessageId, settings: ReaderSettings
) -> AsyncReader:
    """A reader of a topic or of all partitions of one."""
    topics = TopicSet(core, topic)
    consumer_settings = ConsumerSettings(
        schema=settings.schema,
        receiver_queue_size=settings.receiver_queue_size,
        durable=False,
        start_message_id=start_message_id,
        start_message_id_inclusive=settings.start_message_id_inclusive,
        is_read_compacted=settings.is_read_compacted,
        decryptor=settings.decryptor,
        crypto_failure_action=settings.crypto_failure_action,
    )
    subscription = reader_subscription(settings, f"{core.random.getrandbits(40):010x}")
    name = settings.reader_name or f"{core.random.getrandbits(40):010x}"
    consumer = AsyncConsumer(core, topics, subscription, name, consumer_settings)
    await consumer.open()
    reader = AsyncReader(consumer, start_message_id, settings.start_message_id_inclusive)
    reader.listener = settings.reader_listener
    try:
        if len(consumer.group.handles) > 1 and not is_end(start_message_id):
            logger.warning(
                "the reader of %s starts at %s in every partition, by ledger and entry, as in pulsar-client; "
                "a reader of the one partition that the id comes from starts exactly there",
                topic,
                start_message_id,
            )
        if is_end(start_message_id) and start_message_id.ledger_id > 0:
            await _settle_latest(reader, settings.start_message_id_inclusive)
    except BaseException:
        await reader.close()
        raise
    return reader


async def _settle_latest(reader: AsyncReader, inclusive: bool) -> None:
    """Make a place of "latest": the last message itself where it is wanted, else what follows the cursor,
    so that a connection lost before the first message skips nothing."""
    for handle in reader.consumer.group.handles.values():
        last, marked = await handle.last_message_id()
        if not inclusive:
            if last.entry_id < 0:
                handle.consumer.pin_start(MessageId.earliest)
            elif marked is not None and marked.ledger_id >= 0:
                handle.consumer.pin_start(marked)
        elif last.entry_id >= 0:
            await handle.seek(last)
            reader._start = last
