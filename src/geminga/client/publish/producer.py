"""Producers: `AsyncProducer` for asyncio, `Producer` for threads, with ``pulsar-client``'s methods.

Both submit messages to the same `Publisher`. Plain bytes without further arguments take the fast path,
`SubmitQueue.offer`; all other messages are prepared first.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, Self

from geminga._util.values import T, T_contra
from geminga.client.handles.context import MAYBE_PARTITIONED, ClientContext
from geminga.client.io.delegation import Closing, called, waited
from geminga.client.io.runtime import LoopThread
from geminga.client.io.tasks import OnceTask, resolve, seen
from geminga.client.observe.statistics_log import HandleCounts
from geminga.client.publish.completions import ReceiptWaiter, fail_completion
from geminga.client.publish.many import ManySent, ManyWaiter
from geminga.client.publish.many_rows import ManyRows, callbacks_of
from geminga.client.publish.message_building import NO_EXTRAS, MessageBuilder
from geminga.client.publish.publisher import Publisher
from geminga.client.transactions import AsyncTransaction, Transaction
from geminga.config import check_type
from geminga.errors import AlreadyClosed, CryptoError, OperationNotSupported, PulsarException, Result
from geminga.ids import MessageId, TopicName
from geminga.producer.message import note_refusal
from geminga.producer.settings import BATCHING_DELAY_SECONDS, ProducerSettings
from geminga.producer.statistics import ProducerStatistics
from geminga.schema import Schema
from geminga.wire.encryption import RENEWAL_SECONDS, PayloadEncryptor

if TYPE_CHECKING:
    import concurrent.futures

    import pyarrow as pa

    from geminga.client.publish.columnar_producer import ColumnarProducer, ReadyBatch, TableResult

logger = logging.getLogger("geminga.producer")

SendCallback = Callable[[Result, MessageId], object]
"""Callback that receives the outcome of one message; called once, on the client's I/O thread."""

ManyCallback = Callable[[ManySent], object]
"""Callback of a `send_many`; called once, on the client's I/O thread, after the last message's outcome."""


LOGGED_TOTALS = (
    "sent_messages", "sent_batches", "sent_bytes", "acknowledged_messages", "failed_messages", "reconnects",
)  # fmt: skip
LOGGED_VALUES = ("pending_messages", "latency_mean_seconds", "latency_p99_seconds")
"""Statistics in the log: totals, of which the differences are logged, and present values."""


async def create_producer(
    context: ClientContext, topic: str, settings: ProducerSettings
) -> AsyncProducer[Any]:
    """Open a producer on ``topic``, partitioned or not. Raises the errors that the broker reports
    (`ProducerBusy`, `ProducerFenced`, `TopicNotFound`, ...), `Timeout`, or `ConnectError`; partitions that
    were started are closed again then."""
    name = str(TopicName.parse(topic))
    if settings.encryptor is not None:
        # Before anything is sent to the broker: without a data key no message could be encrypted.
        await renew_data_key(context, settings.encryptor)
    if context.opens_unasked(name):
        with contextlib.suppress(*MAYBE_PARTITIONED):
            return await _open_producer(context, name, 0, settings)
    return await _open_producer(context, name, await context.partitions(name, opening=True), settings)


async def _open_producer(
    context: ClientContext, name: str, partitions: int, settings: ProducerSettings
) -> AsyncProducer[Any]:
    publisher = Publisher(context, name, partitions, settings)
    producer = AsyncProducer(context, publisher)
    first = publisher.state.partitions
    if settings.lazy_start_partitioned_producers and partitions:
        # Start one partition at once: a refusal is raised here, not with the first message.
        first = [publisher.state.choose(None, context.now())]
    try:
        await publisher.start(list(first))
    except BaseException:
        # Close the partitions that are attached already, even if this task is cancelled once more.
        await asyncio.shield(publisher.close())
        raise
    producer.watch_partitions()
    if settings.encryptor is not None:
        producer.renew_data_keys(settings.encryptor)
    return producer


async def renew_data_key(context: ClientContext, encryptor: PayloadEncryptor) -> None:
    """Make the next data key, in an executor thread: key readers may wait for a key server. Raises
    `CryptoError`; with ``plain_on_failure`` it is logged, and messages are sent unencrypted while there is no
    data key."""
    try:
        await context.loop.run_in_executor(None, encryptor.renew)
    except CryptoError as error:
        if not encryptor.plain_on_failure:
            raise
        logger.warning("sending continues without a new data key (crypto_failure_action=SEND): %s", error)


def _view(producer: Any, schema: Schema, version: bytes) -> Any:
    """Return a copy of ``producer`` whose messages have another schema, and share no batch with others."""
    view = copy.copy(producer)
    view._messages = producer._messages.with_schema(schema.encode_message, version)
    view._offer = view._offer_waited = view._offer_simple = never
    return view


def never(*message: Any) -> bool:
    """Decline a message; replaces `SubmitQueue.offer` and `Publisher.offer_simple` where each needs more."""
    return False


class AsyncProducer(Generic[T_contra]):
    """Producer for asyncio code. Use it on the event loop of its client context."""

    _origin: AsyncProducer[Any] | None = None
    """Producer of which this is a view, see `with_schema`."""

    def __init__(self, context: ClientContext, publisher: Publisher) -> None:
        self._context = context
        self.publisher = publisher
        self._settings = publisher.settings
        state = publisher.state
        self._state = state
        self._messages = MessageBuilder(self, publisher)
        # The fast path takes only bytes that need no preparation.
        plain = self._messages.takes_plain
        self._offer: Callable[[bytes, Any], bool] = publisher.submit_queue.offer if plain else never
        self._offer_simple = publisher.offer_simple if plain else never
        self._at_once = self._settings.batching_max_publish_delay_seconds <= BATCHING_DELAY_SECONDS
        """Whether a waiting sender closes its batch."""
        self._offer_waited = publisher.submit_queue.offer_urgent if plain else never
        if not self._at_once:
            self._offer_waited = self._offer
        self._columnar: ColumnarProducer | None = None
        self._ending = OnceTask(context.loop)
        self._watching: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._blocking = publisher.settings.block_if_queue_full

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._state.producer_name!r} on {self._state.topic}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.end()

    def topic(self) -> str:
        """Return the full name of the topic, without a partition suffix."""
        return self._state.topic

    def producer_name(self) -> str:
        """Return the producer name, given or chosen by the broker; empty while it is not known."""
        return self._state.producer_name

    def last_sequence_id(self) -> int:
        """Return the highest sequence id with a receipt; at first the broker's last for this name, or -1."""
        return self._state.last_sequence_id

    def is_connected(self) -> bool:
        """Return whether every started partition has a connection now."""
        return self.publisher.connected

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot of all counts; ``partitions`` holds those of each partition."""
        return self.publisher.statistics()

    async def send(
        self,
        content: T_contra | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | bytes | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: AsyncTransaction | None = None,
    ) -> MessageId:
        """Publish one message and return its id when the broker has stored it.

        The batch that the message joins is closed at the end of this iteration of the event loop: tasks that
        send at the same time share a batch, and none waits for the batching delay, unless a delay longer than
        the default was configured. Times are milliseconds since 1970. ``content`` None is a null value. With
        ``txn`` the message is delivered if that transaction is committed.
        Raises `InvalidMessage`, `MessageTooBig`, `ProducerQueueIsFull`, `MemoryBufferIsFull`, `Timeout`,
        `AlreadyClosed`, `ProducerFenced`, `TopicTerminated`, and other errors that the broker reports.
        """
        future: asyncio.Future[MessageId] = self._context.loop.create_future()
        extras = (
            properties, partition_key, ordering_key, sequence_id, replication_clusters, disable_replication,
            event_timestamp, deliver_at, deliver_after,
        )  # fmt: skip
        is_plain = type(content) is bytes and extras == NO_EXTRAS and txn is None
        if is_plain and self._offer_waited(content, future):  # type: ignore[arg-type]
            return await future
        payload, token, message = self._messages.within(txn).prepare(content, future, extras)
        try:
            if self._blocking:
                await self.publisher.publish_waiting(payload, token, message, urgent=self._at_once)
            else:
                self.publisher.publish(payload, token, message, urgent=self._at_once, waits=False)
        except PulsarException as error:
            note_refusal(message, error)
            if token is future:
                raise
            fail_completion(token, error)  # notifies the interceptors, then the future
        return await future

    def send_async(
        self,
        content: T_contra | None,
        callback: SendCallback | None = None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | bytes | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: AsyncTransaction | None = None,
    ) -> None:
        """Publish one message without waiting; ``callback(result, message_id)`` is called once.

        A refusal (queue full, too big, closed) is passed to the callback, or raised without one. Invalid
        arguments are always raised. Never blocks, not even with ``block_if_queue_full``.
        """
        extras = (
            properties, partition_key, ordering_key, sequence_id, replication_clusters, disable_replication,
            event_timestamp, deliver_at, deliver_after,
        )  # fmt: skip
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable or None, not {type(callback).__name__}")
        if type(content) is bytes and extras[2:] == NO_EXTRAS[2:]:
            if txn is not None:
                if self._messages.offer_within(txn, content, callback, partition_key, properties):
                    return
            elif properties is None and partition_key is None:
                if self._offer(content, callback):
                    return
            elif self._offer_simple(content, callback, partition_key, properties):
                return
        payload, token, message = self._messages.within(txn).prepare(content, callback, extras)
        try:
            self.publisher.publish(payload, token, message, urgent=False, waits=False)
        except PulsarException as error:
            note_refusal(message, error)
            fail_completion(token, error)
            if callback is None:
                raise

    async def send_many(
        self,
        values: Sequence[T_contra | None],
        callback: ManyCallback | Sequence[SendCallback | None] | None = None,
        *,
        keys: Sequence[str | None] | None = None,
        properties: dict[str, str] | Sequence[dict[str, str] | None] | None = None,
        txn: AsyncTransaction | None = None,
    ) -> ManySent | None:
        """Publish many messages in one call: several times the rate of `send_async`, with the same
        guarantees.

        ``values`` are the ``content`` of each message; ``keys`` a partition key (or None) for each;
        ``properties`` a dict for all, or a dict (or None) for each. ``callback`` is one callable that is
        called once with `ManySent` when every message has its outcome, or a sequence with a callable
        ``(result, message_id)`` (or None) for each message. Without a callback the call waits for the
        receipts and returns `ManySent`. Callbacks run on the client's I/O thread.

        Messages are sent in the order of ``values``. Invalid arguments are raised before anything is sent.
        With ``block_if_queue_full`` the call waits for permits; without, a full queue refuses messages. After
        a refused message no further one is sent, except where only this message is at fault
        (`MessageTooBig`). `ManySent.failures` and `SendManyFailed.failures` list the failed ones.
        """
        done, each = callbacks_of(callback)
        future: asyncio.Future[ManySent] | None = None
        if callback is None:
            future = self._context.loop.create_future()
            done = partial(resolve, future, None)
        rows = ManyRows(self.publisher, self._messages.within(txn), values, keys, properties, each, done)
        try:
            rows.begin()
            while not rows.offer():
                try:
                    if self._blocking:
                        await self.publisher.publish_waiting(*rows.next(), urgent=False)
                    else:
                        self.publisher.publish(*rows.next(), urgent=False, waits=False)
                except PulsarException as error:
                    rows.refuse(error)
                else:
                    rows.done += 1
        except BaseException as error:
            rows.give_up(error)
            raise
        if future is None:
            return None
        if self._at_once:
            self.publisher.close_batches_soon()
        sent = await future
        sent.check()
        return sent

    async def flush(self) -> None:
        """Send open batches and wait until every message submitted before has its receipt. Raises
        `AlreadyClosed`."""
        if self.publisher.closed:
            raise AlreadyClosed("the producer is closed")
        await self.publisher.flush()

    async def close(self) -> None:
        """Send open batches, wait for the receipts while there is a connection, and close. A cancelled call
        completes in the background. Raises `AlreadyClosed` if the producer is closed, as in pulsar-client."""
        if self.publisher.closed and not self._ending.under_way:
            raise AlreadyClosed("the producer is closed")
        await self.end()

    async def end(self) -> None:
        """Close like `close`, but without an error when called again."""
        if not self.publisher.closed or self._ending.under_way:
            await self._ending.wait(self._end)

    async def _end(self) -> None:
        self._stop_tasks()
        if await self.publisher.close():
            self._messages.interceptors.close()
        self._context.unregister(self._origin or self)

    def abort(self) -> None:
        """Close at once: pending messages fail."""
        self._stop_tasks()
        self._context.unregister(self)
        self.publisher.abort()

    def loop_ended(self, reason: AlreadyClosed) -> None:
        """Raise ``reason`` in later calls: the producer was closed with its event loop."""
        for partition in self._state.partitions:
            partition.failure = partition.failure or reason

    def counts(self) -> HandleCounts:
        """Return the counts for `StatisticsLog`."""
        now = self._state.statistics()
        return HandleCounts(
            f"producer {now.topic!r} {self._state.producer_name!r}",
            {name: getattr(now, name) for name in LOGGED_TOTALS},
            {name: getattr(now, name) for name in LOGGED_VALUES},
        )

    def _stop_tasks(self) -> None:
        for task in filter(None, (self._watching, self._renewing)):
            task.cancel()
        self._watching = self._renewing = None

    # --- schemas ----------------------------------------------------------------------------------

    async def with_schema(self, schema: Schema[T]) -> AsyncProducer[T]:
        """Return a view of this producer that publishes values of another schema; closing either closes both.

        The schema is registered on the topic; messages sent through the view carry its version, and never
        share a batch with other versions. Order, sequence ids and limits are the producer's. Raises
        `IncompatibleSchema` if the topic refuses the schema.
        """
        view: AsyncProducer[T] = _view(self, *await self._register(schema))
        view._origin, view._in_turn = self._origin or self, self._in_turn
        return view

    async def _register(self, schema: Schema) -> tuple[Schema, bytes]:
        if self.publisher.closed:
            raise AlreadyClosed("the producer is closed")
        check_type("schema", schema, Schema)
        partitions = self._state.partitions
        # Lazily started partitions may not have a topic on the broker yet.
        topic = next((p.topic for p in partitions if p.connected), partitions[0].topic)
        schema = await self._context.schemas.for_topic(topic, schema)
        info = schema.told_to_topic()
        return schema, b"" if info is None else await self._context.schemas.register(topic, info)

    # --- columns ----------------------------------------------------------------------------------

    @cached_property
    def _in_turn(self) -> asyncio.Lock:
        """Held while a table is submitted, even by a cancelled call: tables are sent in the order of the
        calls."""
        return asyncio.Lock()

    @property
    def columnar(self) -> ColumnarProducer:
        """Columnar API: sends tables and ready-made batches without waiting."""
        if self._columnar is None:
            from geminga.client.publish.columnar_producer import ColumnarProducer

            self._columnar = ColumnarProducer(self.publisher)
        return self._columnar

    async def send_table(
        self, table: pa.Table | pa.RecordBatch, *, txn: AsyncTransaction | None = None
    ) -> TableResult:
        """Publish every row of an Arrow table; see `ColumnarProducer.submit_table`.

        Encoding and compression run on a thread of the loop's default executor. Tables are sent one after the
        other in the order of the calls; waiting for their receipts overlaps. A table is sent even if its call
        is cancelled meanwhile.
        """
        return await self._submit_in_turn(partial(self.columnar.submit_table, table, txn))

    async def publish_encoded(self, batches: Sequence[ReadyBatch]) -> TableResult:
        """Publish ready-made batches; see `ColumnarProducer.submit_encoded`."""
        return await self._submit_in_turn(partial(self.columnar.submit_encoded, batches))

    async def _submit_in_turn(
        self, submit: Callable[[], concurrent.futures.Future[TableResult]]
    ) -> TableResult:
        await self._in_turn.acquire()
        try:
            if self.publisher.closed:
                raise AlreadyClosed("the producer is closed")
            submitted = self._context.loop.run_in_executor(None, submit)
        except BaseException:
            self._in_turn.release()
            raise
        submitted.add_done_callback(self._submitted)  # also if the caller is cancelled before
        return await asyncio.wrap_future(await asyncio.shield(submitted))

    def _submitted(self, submitted: asyncio.Future[Any]) -> None:
        self._in_turn.release()
        seen(submitted)

    # --- encryption -------------------------------------------------------------------------------

    def renew_data_keys(self, encryptor: PayloadEncryptor) -> None:
        """Make a new data key every `RENEWAL_SECONDS`; on failure the previous one stays in use."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(RENEWAL_SECONDS)
                try:
                    await renew_data_key(self._context, encryptor)
                except CryptoError as error:
                    logger.warning("%s keeps its data key: %s", self._state.topic, error)

        self._renewing = self._context.task(renew())

    # --- partitions -------------------------------------------------------------------------------

    def watch_partitions(self) -> None:
        """Look for added partitions every ``partitions_refresh_seconds``."""
        if self._state.partitioned and self._settings.partitions_refresh_seconds > 0:
            self._watching = self._context.task(self._watch_partitions())

    async def _watch_partitions(self) -> None:
        while True:
            await asyncio.sleep(self._settings.partitions_refresh_seconds)
            try:
                await self.refresh_partitions()
            except PulsarException as error:
                logger.warning("reading the partitions of %s: %s", self._state.topic, error)

    async def refresh_partitions(self) -> int:
        """Fetch the partition count, start producers for added partitions, and return the count."""
        count = await self._context.partitions(self._state.topic)
        if self._state.partitioned and count > len(self._state.partitions):
            fresh = self.publisher.grow(count)
            if not self._settings.lazy_start_partitioned_producers:
                await self.publisher.start(fresh)
            self._messages.interceptors.on_partitions_change(self._state.topic, count)
        return count


class Producer(Closing, Generic[T_contra]):
    """Producer for threads; any number of threads may use it at once."""

    def __init__(self, runtime: LoopThread, producer: AsyncProducer[Any]) -> None:
        self._runtime = runtime
        self._producer = producer
        publisher = self.publisher = producer.publisher
        self._offer = producer._offer
        self._offer_waited = publisher.submit_queue.offer_urgent if producer._messages.takes_plain else never
        self._offer_simple = producer._offer_simple
        self._messages = producer._messages
        self._messages.belongs_to(self)
        self._blocking = publisher.settings.block_if_queue_full

    def __repr__(self) -> str:
        return repr(self._producer).replace("AsyncProducer", "Producer")

    topic = called("_producer", AsyncProducer.topic)
    producer_name = called("_producer", AsyncProducer.producer_name)
    last_sequence_id = called("_producer", AsyncProducer.last_sequence_id)
    is_connected = called("_producer", AsyncProducer.is_connected)
    flush = waited("_producer", AsyncProducer.flush)

    def statistics(self) -> ProducerStatistics:
        """Return a snapshot of all counts; ``partitions`` holds those of each partition."""
        if self.publisher.closed or self._runtime.closed or self.publisher.on_loop_thread():
            return self._producer.statistics()

        async def take() -> ProducerStatistics:
            return self._producer.statistics()

        return self._runtime.call(take())

    def send(
        self,
        content: T_contra | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | bytes | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Publish one message and return its id when the broker has stored it, without the batching delay.

        Arguments and errors are those of `AsyncProducer.send`. Raises `OperationNotSupported` when called
        from a callback: the call would wait for its own thread.
        """
        publisher = self.publisher
        if publisher.on_loop_thread():
            raise OperationNotSupported(
                "send() inside a callback would wait for the thread that it runs on; use send_async()"
            )
        waiter = ReceiptWaiter()
        extras = (
            properties, partition_key, ordering_key, sequence_id, replication_clusters, disable_replication,
            event_timestamp, deliver_at, deliver_after,
        )  # fmt: skip
        is_plain = type(content) is bytes and extras == NO_EXTRAS and txn is None
        if not is_plain or not self._offer_waited(content, waiter):  # type: ignore[arg-type]
            payload, token, message = self._messages.within(txn).prepare(content, waiter, extras)
            try:
                publisher.publish(payload, token, message, urgent=True, waits=self._blocking)
            except PulsarException as error:
                note_refusal(message, error)
                if token is not waiter:  # the end of the loop may have failed the waiter already
                    fail_completion(token, error)  # notifies the interceptors too
                raise
        waiter.wait()
        if waiter.error is not None:
            raise waiter.error
        assert waiter.message_id is not None
        return waiter.message_id

    def send_async(
        self,
        content: T_contra | None,
        callback: SendCallback | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | bytes | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Publish one message without waiting for its receipt.

        ``callback(result, message_id)`` is called once, on the client's I/O thread (for a refusal: at once,
        on the calling thread). It may be None; a refusal is raised then. With ``block_if_queue_full`` the
        call waits for permits; inside a callback it never waits and refuses instead. Raises `InvalidMessage`
        and `TypeError` for invalid arguments.
        """
        if (
            type(content) is bytes
            and ordering_key is None
            and sequence_id is None
            and replication_clusters is None
            and disable_replication is False
            and event_timestamp is None
            and deliver_at is None
            and deliver_after is None
            and (callback is None or callable(callback))
        ):
            if txn is not None:
                if self._messages.offer_within(txn, content, callback, partition_key, properties):
                    return
            elif properties is None and partition_key is None:
                if self._offer(content, callback):
                    return
            elif self._offer_simple(content, callback, partition_key, properties):
                return
        extras = (
            properties, partition_key, ordering_key, sequence_id, replication_clusters, disable_replication,
            event_timestamp, deliver_at, deliver_after,
        )  # fmt: skip
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable or None, not {type(callback).__name__}")
        payload, token, message = self._messages.within(txn).prepare(content, callback, extras)
        try:
            self.publisher.publish(payload, token, message, urgent=False, waits=self._blocking)
        except PulsarException as error:
            note_refusal(message, error)
            fail_completion(token, error)
            if callback is None:
                raise

    def send_many(
        self,
        values: Sequence[T_contra | None],
        callback: ManyCallback | Sequence[SendCallback | None] | None = None,
        *,
        keys: Sequence[str | None] | None = None,
        properties: dict[str, str] | Sequence[dict[str, str] | None] | None = None,
        txn: Transaction | None = None,
    ) -> ManySent | None:
        """Publish many messages in one call: several times the rate of `send_async`, with the same
        guarantees. Arguments, result and errors are those of `AsyncProducer.send_many`.

        Callbacks run on the client's I/O thread; a call inside a callback never waits for permits.
        """
        publisher = self.publisher
        done, each = callbacks_of(callback)
        waiter: ManyWaiter | None = None
        if callback is None:
            if publisher.on_loop_thread():
                raise OperationNotSupported(
                    "send_many() inside a callback would wait for the thread that it runs on; give it one"
                )
            waiter = ManyWaiter()
            done = waiter.done
        rows = ManyRows(publisher, self._messages.within(txn), values, keys, properties, each, done)
        try:
            rows.begin()
            while not rows.offer():
                try:
                    publisher.publish(*rows.next(), urgent=False, waits=self._blocking)
                except PulsarException as error:
                    rows.refuse(error)
                else:
                    rows.done += 1
        except BaseException as error:
            rows.give_up(error)
            raise
        if waiter is None:
            return None
        if self._producer._at_once:
            publisher.close_batches_soon()
        waiter.wait()
        assert waiter.sent is not None
        waiter.sent.check()
        return waiter.sent

    def close(self) -> None:
        """Send open batches, wait for the receipts while there is a connection, and close."""
        if self.publisher.closed:
            return
        self._runtime.call(self._producer.end())

    def with_schema(self, schema: Schema[T]) -> Producer[T]:
        """Return a view of this producer for another schema; see `AsyncProducer.with_schema`."""
        view: Producer[T] = _view(self, *self._runtime.call(self._producer._register(schema)))
        return view

    def send_table(self, table: pa.Table | pa.RecordBatch, *, txn: Transaction | None = None) -> TableResult:
        """Publish every row of an Arrow table and return when all have their receipts. See
        `ColumnarProducer.submit_table`."""
        return self.submit_table(table, txn=txn).result()

    def submit_table(
        self, table: pa.Table | pa.RecordBatch, *, txn: Transaction | None = None
    ) -> concurrent.futures.Future[TableResult]:
        """Publish the rows of a table without waiting for the receipts; return a future of the result."""
        self._runtime.check()
        return self._producer.columnar.submit_table(table, txn)

    def publish_encoded(self, batches: Iterable[ReadyBatch]) -> TableResult:
        """Publish ready-made batches and wait for all receipts; see `ColumnarProducer.submit_encoded`."""
        return self.submit_encoded(batches).result()

    def submit_encoded(self, batches: Iterable[ReadyBatch]) -> concurrent.futures.Future[TableResult]:
        """Publish ready-made batches without waiting for the receipts; return a future of the result."""
        self._runtime.check()
        return self._producer.columnar.submit_encoded(batches)
