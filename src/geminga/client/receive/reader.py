"""Readers: read a topic from any start position, without a durable subscription.

A reader is a consumer on a non-durable subscription (algorithms.md section 8): it tracks its position itself,
resumes there after a reconnect without losing or repeating a message, and leaves nothing on the broker.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic

from geminga._util.values import T_co
from geminga.client.handles.consumer_handle import ConsumerHandle
from geminga.client.handles.context import ClientContext
from geminga.client.io.delegation import AsyncClosing, Closing, called, waited
from geminga.client.io.runtime import LoopThread
from geminga.client.observe.statistics_log import HandleCounts
from geminga.client.receive.async_consumer import AsyncConsumer
from geminga.client.receive.consumer import Consumer, give_back
from geminga.client.receive.listener import ListenerRunner, ListenerThreads, with_failure_listener
from geminga.client.receive.topic_set import TopicSet
from geminga.config import refuse
from geminga.consumer.inbox import ReadThrough
from geminga.consumer.message import Message, ReceivedEntry, origin_of
from geminga.consumer.seek import is_after, is_end
from geminga.consumer.settings import ReaderSettings
from geminga.errors import AlreadyClosed, InvalidConfiguration, Timeout
from geminga.extras import need
from geminga.ids import MessageId
from geminga.wire.metadata import parse_entry

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("geminga")

SEVERAL_MAX = 1000
"""Queued messages that `AsyncReader.read_several` returns."""
LOOK_AGAIN_MILLIS = 1000
"""Time in milliseconds that `AsyncReader.tables` waits for entries before it checks again whether there are
any."""


class AsyncReader(AsyncClosing, Generic[T_co]):
    """Reader for asyncio programs; ``async for message in reader`` reads without end."""

    def __init__(self, consumer: AsyncConsumer[T_co], start: MessageId | int, inclusive: bool) -> None:
        self.consumer = consumer
        self.listener: Callable[[Any, Any], Any] | None = None
        """Message listener of a `Reader`, called on a separate thread."""
        self._start: MessageId | int = start
        self._inclusive = inclusive
        self._read: dict[str, Message[Any]] = {}
        self._not_before_ms = start if isinstance(start, int) else None

    def topic(self) -> str:
        """Return the topic, the topics separated by commas, or the pattern."""
        return self.consumer.topic()

    def counts(self) -> HandleCounts:
        """Return the counts for `StatisticsLog`."""
        return self.consumer.counts()

    def is_connected(self) -> bool:
        """Return True while every topic and partition is connected."""
        return not self.consumer.closed and self.consumer.is_connected()

    async def read_next(self, timeout_millis: int | None = None) -> Message[T_co]:
        """Return the next message; wait for one, at most ``timeout_millis``. Raises `Timeout`,
        `AlreadyClosed`."""
        while True:
            message = await self.consumer.receive(timeout_millis)
            if self.note_read(message):
                return message

    async def read_several(self) -> list[Message[T_co]]:
        """Return the next message, and those that are queued behind it, at most `SEVERAL_MAX`."""
        messages = [await self.read_next()]
        taken = self.consumer.queue.take_many(SEVERAL_MAX)
        self.consumer.note_taken(taken)
        queued: list[Any] = [Message(entry, index) for entry, indexes in taken for index in indexes]
        if self._not_before_ms is not None:
            return messages + [message for message in queued if self.note_read(message)]
        for entry, indexes in taken:
            self.note_read(Message(entry, indexes[-1]))
        return messages + queued

    async def tables(
        self, max_rows: int = 100_000, columns: Sequence[str] | None = None, *, follow: bool = False
    ) -> AsyncIterator[pa.Table]:
        """Read the topic from the reader's position as Arrow tables of about ``max_rows`` rows; columns as
        for `AsyncConsumer.receive_table`. Ends when `has_message_available` is false; with ``follow``,
        continues with new messages."""
        from geminga.client.receive.columnar_consumer import decode_table

        while follow or await self.has_message_available():
            entries = await self.next_entries(max_rows)
            if entries:
                yield decode_table(self.consumer, entries, columns)

    async def next_entries(self, max_rows: int) -> list[ReceivedEntry]:
        """Return entries of about ``max_rows`` messages, noted as read, for `tables`; none on a time-out."""
        from geminga.client.receive.columnar_consumer import collect_entries

        try:
            entries = await collect_entries(self.consumer, max_rows, LOOK_AGAIN_MILLIS)
        except Timeout:
            return []
        wanted = []
        for entry in entries:
            topic = entry.origin.topic
            if topic in self._read or not self._too_early(entry):
                self._read[topic] = Message(entry, entry.count - 1 if entry.batched else -1)
                wanted.append(entry)
        return wanted

    def _too_early(self, entry: ReceivedEntry) -> bool:
        """Return whether an entry was published before the reader's start time; see `note_read`."""
        since = self._not_before_ms
        if since is None or entry.raw is None:
            return False
        return bool(parse_entry(entry.raw, verify=False).metadata.publish_time < since)

    def note_read(self, message: Message[Any]) -> bool:
        """Advance the reader's position; the broker receives it with the next group of acknowledgements. May
        run on any thread.

        Returns False for a message from before the reader's start time: after a lost connection the broker
        may start earlier if nothing was read yet.
        """
        topic = message.topic_name()
        since = self._not_before_ms
        wanted = since is None or topic in self._read or message.publish_timestamp() >= since
        if wanted:
            self._read[topic] = message
            if not self.consumer.inbox.armed:
                self.consumer.inbox.add(ReadThrough(self._read))
        return wanted

    async def has_message_available(self) -> bool:
        """Return whether `read_next` would return without waiting for a new publication.

        Entries that cannot be read (damaged, undecryptable, incomplete chunks) do not count: while the broker
        has newer entries, this waits until they are received, at most ``operation_timeout_seconds``. Raises
        `AlreadyClosed`, or the error that ended the reader.
        """
        if self.consumer.queue:
            return True
        for handle in list(self.consumer.group.handles.values()):
            last, marked = await handle.last_message_id()
            read = self._read.get(handle.topic)
            if read is not None and origin_of(read) is not handle.consumer.origin:
                read = None  # from another cluster, whose ids cannot be compared
            if self._is_ahead(read, last, marked) and await self._arrives(handle, last):
                return True
        if self.consumer.queue:
            return True
        self.consumer.check_receiving()  # without a failed topic or partition the answer would be wrong
        return False

    async def _arrives(self, handle: ConsumerHandle, last: MessageId) -> bool:
        """Return whether a message up to ``last`` arrives; True also if the broker sends nothing in time."""
        consumer, context = self.consumer, self.consumer.context
        deadline = context.now() + context.settings.operation_timeout_seconds
        while not consumer.queue and handle.consumer.flow.arrived_last < (last.ledger_id, last.entry_id):
            consumer.check_receiving()
            if not await handle.next_turn(deadline - context.now()):
                return True
        return bool(consumer.queue)

    def _is_ahead(self, read: Message[Any] | None, last: MessageId, marked: MessageId | None) -> bool:
        if read is not None:
            return is_after(last, read.message_id(), inclusive=False)
        start = self._start
        if isinstance(start, int) or (is_end(start) and start.ledger_id > 0):
            # From a time, or from the end: only the broker knows that position.
            if marked is None or last.entry_id < 0:
                return last.entry_id >= 0 and isinstance(start, int)
            return (last.ledger_id, last.entry_id) > (marked.ledger_id, marked.entry_id)
        return is_after(last, start, inclusive=self._inclusive)

    async def seek(self, messageid: MessageId | int) -> None:
        """Continue after a message (at it, with ``start_message_id_inclusive``), or at a publish time in
        milliseconds since 1970."""
        await self.consumer.seek(messageid)
        self._start = messageid
        self._not_before_ms = messageid if isinstance(messageid, int) else None
        self._read.clear()
        if self._inclusive and messageid == MessageId.latest:
            await _settle_latest(self, True)

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; its entry id is -1 if the topic is empty."""
        return await self.consumer.get_last_message_id()

    async def close(self) -> None:
        """Close the reader; the broker drops its subscription. A second call waits for the first to finish,
        and a cancelled call completes in the background."""
        await self.consumer.close()
        self.consumer.context.unregister(self)

    def abort(self) -> None:
        """Close at once; see `AsyncConsumer.abort`."""
        self.consumer.abort()

    def loop_ended(self, reason: AlreadyClosed) -> None:
        """Raise ``reason`` in later calls: the reader was closed with its event loop."""
        self.consumer.loop_ended(reason)

    def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        return self

    async def __anext__(self) -> Message[T_co]:
        try:
            return await self.read_next()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    def __repr__(self) -> str:
        return f"<AsyncReader of {self.topic()}>"


class Reader(Closing, Generic[T_co]):
    """Reader for threads; ``for message in reader`` reads without end.

    Made by `geminga.Client.create_reader`. Methods are ``pulsar-client``'s.
    """

    def __init__(
        self, runtime: LoopThread, reader: AsyncReader[Any], threads: ListenerThreads | None = None
    ) -> None:
        self._runtime = runtime
        self._reader = reader
        self._consumer: Consumer[T_co] = Consumer(runtime, reader.consumer)
        self._listener: ListenerRunner | None = None
        if reader.listener is not None and threads is not None:
            self._listener = ListenerRunner(self, reader.listener, self._take_now, self._tell)
            self._listener.start(threads)

    topic = called("_reader", AsyncReader.topic)
    is_connected = called("_reader", AsyncReader.is_connected)
    seek = waited("_reader", AsyncReader.seek)
    get_last_message_id = waited("_reader", AsyncReader.get_last_message_id)

    def read_next(self, timeout_millis: int | None = None) -> Message[T_co]:
        """Return the next message; wait for one, at most ``timeout_millis``. Raises `Timeout`,
        `AlreadyClosed`."""
        if self._listener is not None:
            raise InvalidConfiguration("the reader has a reader_listener: it takes the messages")
        while True:
            message = self._consumer.receive(timeout_millis)
            try:
                if self._reader.note_read(message):
                    return message
            except BaseException:  # a signal handler raised: return the message for the next call
                give_back(self._consumer, message)
                raise

    def tables(
        self, max_rows: int = 100_000, columns: Sequence[str] | None = None, *, follow: bool = False
    ) -> Iterator[pa.Table]:
        """Read the topic from the reader's position as Arrow tables of about ``max_rows`` rows; columns as
        for `Consumer.receive_table`. Ends when `has_message_available` is false; with ``follow``, continues
        with new messages. Tables are decoded on the calling thread."""
        from geminga.client.receive.columnar_consumer import decode_table

        while follow or self.has_message_available():
            entries = self._runtime.call(
                self._reader.next_entries(max_rows), discard=self._reader.consumer.queue.put_back_entries
            )
            if entries:
                yield decode_table(self._reader.consumer, entries, columns, post=self._runtime.post)

    def record_batches(
        self, max_rows: int = 100_000, columns: Sequence[str] | None = None, *, follow: bool = False
    ) -> pa.RecordBatchReader:
        """Return `tables` as a ``pyarrow.RecordBatchReader``, which DuckDB, Polars, pandas and other readers
        of Arrow streams accept. It is read as it is consumed, never whole in memory, and ends as `tables`
        does; keep the reader open while it is read."""
        from geminga.client.receive.columnar_consumer import decode_table

        need("reading Arrow batches", "pyarrow", "numpy")
        import pyarrow

        consumer = self._reader.consumer
        schema = decode_table(consumer, [], columns, post=self._runtime.post).schema
        batches = (
            batch
            for table in self.tables(max_rows, columns, follow=follow)
            for batch in table.cast(schema).to_batches()
        )
        return pyarrow.RecordBatchReader.from_batches(schema, batches)

    def _take_now(self) -> Message[Any] | None:
        """Return the next message without waiting, for `ListenerRunner`."""
        while True:
            message = self._consumer._take_now()
            if message is None or self._reader.note_read(message):
                return message

    def _tell(self, listening: ListenerRunner) -> None:
        """Have `ListenerRunner` woken when messages arrive."""
        self._consumer._tell(listening)

    def has_message_available(self) -> bool:
        """Return whether `read_next` would return without waiting for a new publication.

        Entries that cannot be read (damaged, undecryptable, incomplete chunks) do not count: while the broker
        has newer entries, this waits until they are received, at most ``operation_timeout_seconds``.
        """
        self._runtime.check()
        # A queued message needs neither the I/O thread nor the broker.
        return bool(self._reader.consumer.queue) or self._runtime.call(self._reader.has_message_available())

    def close(self) -> None:
        """Close the reader; the broker drops its subscription. A second call does nothing."""
        if not self._runtime.closed and not self._runtime.forked:
            self._runtime.call(self._reader.close())
        if self._listener is not None:
            self._listener.stop()

    def __iter__(self) -> Iterator[Message[T_co]]:
        return self

    def __next__(self) -> Message[T_co]:
        try:
            return self.read_next()
        except AlreadyClosed:
            raise StopIteration from None

    def __repr__(self) -> str:
        return f"<Reader of {self.topic()}>"


def reader_subscription(settings: ReaderSettings, random_hex: str) -> str:
    """Return the name of the reader's subscription, formed as the official clients do."""
    if settings.subscription_name:
        return settings.subscription_name
    prefix = f"{settings.subscription_role_prefix}-" if settings.subscription_role_prefix else ""
    return f"{prefix}reader-{random_hex}"


async def create_reader(
    context: ClientContext,
    topic: str | Sequence[str] | re.Pattern[str],
    start: MessageId | int,
    settings: ReaderSettings,
) -> AsyncReader[Any]:
    """Open a reader of a topic with all its partitions, of several topics, or of all that match a pattern.

    ``start``: an id, or a publish time in milliseconds since 1970.
    """
    if not topic:
        refuse("topic", topic, "at least one topic name")
    topics = TopicSet(context, topic)
    start_message_id = MessageId.earliest if isinstance(start, int) else start
    if not isinstance(topic, str) and not is_end(start_message_id):
        refuse("start_message_id", start, "earliest or latest for several topics (or start_time)")
    consumer_settings = settings.of_consumer(start_message_id)
    subscription = reader_subscription(settings, f"{context.random.getrandbits(40):010x}")
    name = settings.reader_name or f"{context.random.getrandbits(40):010x}"
    consumer = AsyncConsumer(context, topics, subscription, name, consumer_settings)
    # Apache Pulsar may skip the entries of a read that a seek interrupts: the reader would wait for ever.
    consumer.group.seeks_first = isinstance(start, int)
    await consumer.open()
    consumer.group.seeks_first = False
    reader = AsyncReader(consumer, start, settings.start_message_id_inclusive)
    if settings.reader_listener is not None:
        reader.listener = with_failure_listener(settings.reader_listener, settings.failure_listener)
    try:
        if isinstance(start, int):
            await consumer.group.seek(start)
        elif len(consumer.group.handles) > 1 and not is_end(start_message_id):
            logger.warning(
                "the reader of %s starts at %s in every partition, by ledger and entry, as in pulsar-client; "
                "a reader of the one partition that the id comes from starts exactly there",
                topic,
                start_message_id,
            )
        elif is_end(start_message_id) and start_message_id.ledger_id > 0:
            await _settle_latest(reader, settings.start_message_id_inclusive)
    except BaseException:
        await reader.close()
        raise
    return reader


async def _settle_latest(reader: AsyncReader[Any], inclusive: bool) -> None:
    """Replace "latest" by a position: the last message itself with ``inclusive``, else the cursor, so that a
    connection lost before the first message skips nothing."""
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
