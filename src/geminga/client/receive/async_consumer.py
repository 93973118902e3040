"""Consumers for asyncio programs, which also do the work of those for threads.

An `AsyncConsumer` holds one `ConsumerHandle` for each topic or partition. They share a receive queue, from
which messages are taken one by one, the waiting receivers (`ReceiveWaiters`), and an inbox for
acknowledgements (`Acknowledging`). Receiving and acknowledging a message costs an atomic operation each, and
no task, lock or thread switch.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from sys import maxsize
from typing import TYPE_CHECKING, Any, Generic

from geminga._util.values import T_co
from geminga.client.handles.consumer_handle import ConsumerHandle, HandleOwner
from geminga.client.handles.context import ClientContext
from geminga.client.io.delegation import AsyncClosing
from geminga.client.io.tasks import OnceTask
from geminga.client.observe.statistics_log import HandleCounts
from geminga.client.receive.acknowledging import Acknowledgeable, Acknowledging, Several
from geminga.client.receive.multi_consumer import HandleGroup
from geminga.client.receive.receive_waiters import ReceiveWaiters
from geminga.client.receive.topic_set import TopicSet
from geminga.client.transactions import AsyncTransaction, transaction_of
from geminga.config import MILLISECONDS_MAX, check_int, check_type
from geminga.consumer.dead_letters import plan_dead_letter, plan_retry
from geminga.consumer.events import DeadLettered
from geminga.consumer.inbox import (
    AcknowledgedId,
    AcknowledgedIn,
    AcknowledgedThrough,
    NegativelyAcknowledged,
    ReturnedToQueue,
    TakenByApplication,
)
from geminga.consumer.message import Message, carries_permits, place_of
from geminga.consumer.queue import ReceiveQueue, Taken
from geminga.consumer.settings import ConsumerBatchReceivePolicy, ConsumerSettings
from geminga.consumer.statistics import ConsumerStatistics, of_all, of_one
from geminga.errors import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    NotAMessage,
    OperationNotSupported,
    Timeout,
)
from geminga.ids import MessageId

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("geminga")

DRAIN_LOOKS_SECONDS = 0.02
"""Interval at which a drain checks whether all messages are settled."""

DEFAULT_BATCH_RECEIVE = ConsumerBatchReceivePolicy(-1, 10 * 1024 * 1024, 100)


class AsyncConsumer(AsyncClosing, Generic[T_co]):
    """Consumer for asyncio programs; ``async for message in consumer`` receives without end.

    Made by `geminga.asyncio.Client.subscribe`. Method names are those of ``pulsar.asyncio.Consumer``.
    """

    def __init__(
        self,
        context: ClientContext,
        topics: TopicSet,
        subscription: str,
        name: str,
        settings: ConsumerSettings,
    ) -> None:
        self.context = context
        self.settings = settings
        self.queue = ReceiveQueue()
        self.receive_waiters = ReceiveWaiters(self.queue, context.loop)
        self.tracks_taken = settings.ack_timeout_seconds > 0
        self.reads_versions = bool(getattr(settings.schema, "reads_versions", False))
        self.closed = False
        self.draining = False
        self.failure: Exception | None = None
        self._loop_ended: AlreadyClosed | None = None
        owner = HandleOwner(
            subscription=subscription, consumer_name=name, queue=self.queue,
            on_dead_letters=self._on_dead_letters, on_failure=self._on_failure, on_active=self._on_active,
            before_messages=self._drain,
        )  # fmt: skip
        self.group = HandleGroup(context, topics, settings, owner)
        self.acknowledging = Acknowledging(context, self.group, settings)
        self.inbox = self.acknowledging.inbox
        self._topics = topics
        self._subscription = subscription
        self._name = name
        self._forwarding: set[asyncio.Task[None]] = set()
        self._ending = OnceTask(context.loop)
        self._events: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Pending calls of the event listener; the first is running."""

    @cached_property
    def forwarder(self) -> Any:
        """Its `DeadLetterPublisher`. Most consumers need none, and no producers' modules."""
        from geminga.client.publish.dead_letter_publisher import DeadLetterPublisher

        return DeadLetterPublisher(self.context, self._name, self.settings.decryptor)

    def _drain(self) -> None:
        self.acknowledging.drain()

    async def open(self, timeout: float | None = None) -> None:
        """Subscribe to all topics. Raises the first error; the other topics are closed again."""
        await self.group.open(timeout)

    # --- names -----------------------------------------------------------------------------------

    def topic(self) -> str:
        """Return the topic, the topics separated by commas, or the subscribed pattern."""
        return self._topics.text

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._subscription

    def consumer_name(self) -> str:
        """Return the name by which the broker knows this consumer."""
        return self._name

    def is_connected(self) -> bool:
        """Return True while every topic and partition is connected."""
        return self.group.connected

    def has_reached_end_of_topic(self) -> bool:
        """Return True when every topic is terminated and was read to its end."""
        handles = self.group.handles.values()
        return bool(handles) and all(handle.consumer.reached_end for handle in handles)

    def counts(self) -> HandleCounts:
        """Return the counts for `StatisticsLog`."""
        cores = [handle.consumer for handle in self.group.handles.values()]
        return HandleCounts(
            f"consumer {self._subscription!r} of {self.topic()!r} {self._name!r}",
            {
                "received_messages": sum(core.flow.received_messages for core in cores),
                "received_bytes": sum(core.flow.received_bytes for core in cores),
                "acknowledgements": self.acknowledging.said,
            },
            {"waiting_messages": len(self.queue)},
        )

    async def stats(self) -> ConsumerStatistics:
        """Return the number of queued messages, and the broker's statistics of this consumer: permits,
        unacknowledged messages, the subscription's backlog and ack holes, rates. The broker's answers are
        cached for ``broker_consumer_stats_cache_time_ms``. Raises `AlreadyClosed`, `Timeout`, and the errors
        that the broker reports."""
        self.check_receiving()
        waiting = self.queue.held_by_origin()
        age = self.settings.broker_consumer_stats_cache_time_ms / 1000
        handles = list(self.group.handles.values())
        answers = await asyncio.gather(*(handle.broker_statistics(age) for handle in handles))
        return of_all(
            self.topic(),
            [
                of_one(handle.topic, waiting.get(handle.consumer.origin, (0, 0))[0], *answer)
                for handle, answer in zip(handles, answers, strict=True)
            ],
        )

    # --- receiving -------------------------------------------------------------------------------

    async def receive(self, timeout_millis: int | None = None) -> Message[T_co]:
        """Return the next message; wait for one, at most ``timeout_millis``. Raises `Timeout`,
        `AlreadyClosed`, or the error that ended the subscription."""
        if timeout_millis is not None:
            check_int("timeout_millis", timeout_millis, -MILLISECONDS_MAX, MILLISECONDS_MAX)
        message = self.take()
        if message is None:
            message = await self._await_message(timeout_millis)
        if self.reads_versions:
            await self._prepare(message)
        if self.tracks_taken:
            self.inbox.add(TakenByApplication(message))
        return message

    async def _await_message(self, timeout_millis: int | None) -> Message[T_co]:
        deadline = None if timeout_millis is None else self.context.now() + timeout_millis / 1000
        while True:
            waited = await self.wait(deadline)
            message = self.take()
            if message is not None:
                return message
            if not waited:
                raise Timeout(f"no message within {timeout_millis} ms")

    async def wait(self, deadline: float | None) -> bool:
        """Wait until the queue may hold a message; return False when ``deadline``, on the loop's clock, has
        passed. Raises the error that ended the consumer."""
        self.check_coming()
        if self.group.starved:
            self.group.feed()
        return await self.receive_waiters.wait(None if deadline is None else deadline - self.context.now())

    def take(self) -> Message[T_co] | None:
        """Return the next message and account for its permits, on the loop's thread."""
        while True:
            message = self.queue.take()
            if message is None:
                if not self.queue.entries:
                    return None
                self.open_entry()
                continue
            if carries_permits(message):
                self.group.took(message)
            return message

    def open_entry(self) -> None:
        """Split the first undivided entry of the queue, if any, into its messages, on the loop's thread."""
        if self.queue.entries:
            entry = self.queue.entries.popleft()
            indexes = self.group.explode(entry)
            if indexes:
                self.queue.put_in_front(entry, indexes)

    async def _prepare(self, message: Message[Any]) -> None:
        """Fetch the schema version of a message: decoding must not wait."""
        try:
            await self.context.schemas.prepare(message)
        except asyncio.CancelledError:
            self.queue.put_back([message])
            raise

    def check_receiving(self) -> None:
        """Raise if the consumer receives no more messages."""
        if self.closed:
            raise self._loop_ended or AlreadyClosed("the consumer is closed")
        if self.failure is not None:
            raise self.failure

    def check_coming(self) -> None:
        """Raise if the queue is empty and no more messages will arrive."""
        self.check_receiving()
        if self.draining and not self.queue:
            raise AlreadyClosed("the consumer is draining, and all that it had was received")

    async def batch_receive(self) -> list[Message[T_co]]:
        """Receive several messages, until the consumer's `ConsumerBatchReceivePolicy` is satisfied."""
        policy = self.settings.batch_receive_policy or DEFAULT_BATCH_RECEIVE
        batch = ReceivedBatch(policy)
        deadline = None if policy.timeout_ms <= 0 else self.context.now() + policy.timeout_ms / 1000
        try:
            while not batch.full:
                left = None if deadline is None else max(0, round((deadline - self.context.now()) * 1000))
                try:
                    message = await self.receive(left)
                    if not batch.add(message):
                        self.put_back([message])
                    else:
                        self.note_taken(batch.fill(self.queue))
                except Timeout:
                    break
                except AlreadyClosed:
                    if not batch.messages or self.closed:
                        raise
                    break  # the batch holds the last messages of a drain
            messages = batch.messages
            for message in messages if self.reads_versions else ():
                await self.context.schemas.prepare(message)
            return messages
        except BaseException:
            self.put_back(batch.messages)
            raise

    def note_taken(self, taken: Sequence[Taken]) -> None:
        """Account for the permits and time-outs of messages that were taken together."""
        for entry, indexes in taken:
            if entry.releases:
                self.group.took_of(entry, indexes)
            for index in indexes if self.tracks_taken else ():
                self.inbox.add(TakenByApplication(Message(entry, index)))

    def put_back(self, messages: Sequence[Message[Any]]) -> None:
        """Return received messages to the queue, on the loop's thread."""
        self.queue.put_back(messages)
        if self.tracks_taken and not self.closed:
            for message in messages:
                self.inbox.add(ReturnedToQueue(message))

    def __aiter__(self) -> AsyncIterator[Message[T_co]]:
        return self

    async def __anext__(self) -> Message[T_co]:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    # --- acknowledging ---------------------------------------------------------------------------

    async def acknowledge(
        self, message: Acknowledgeable | Several, *, txn: AsyncTransaction | None = None
    ) -> None:
        """Acknowledge a message, or each of a list: it is not delivered to this subscription again.

        Returns when the acknowledgement is queued; with ``ack_receipt_enabled``, when the broker has stored
        it. With ``txn`` it takes effect when that transaction is committed, which also reports its failure.
        Raises `AlreadyClosed`, and `OperationNotSupported` for an argument that is neither a message nor an
        id.
        """
        if txn is not None:
            self.acknowledge_in(txn, message)
            return
        if message.__class__ is Message:
            self.inbox.add(message)
        else:
            self.acknowledge_others(message)
        if self.settings.ack_receipt_enabled:
            await self.acknowledging.receipt()

    def acknowledge_others(self, given: object) -> None:
        """Acknowledge an id, or a list, of which nothing is acknowledged if one is refused. May run on any
        thread."""
        if not isinstance(given, (list, tuple)):
            self.check_acknowledgeable(given)
            self.inbox.add(AcknowledgedId(given))
            return
        for index, each in enumerate(given):
            self.check_acknowledgeable(each, f"message[{index}]")
        for each in given:
            self.inbox.add(each if isinstance(each, Message) else AcknowledgedId(each))

    async def acknowledge_cumulative(
        self, message: Acknowledgeable, *, txn: AsyncTransaction | None = None
    ) -> None:
        """Acknowledge this message and all before it (of its topic or partition), with ``txn`` as part of
        that transaction. Raises `CumulativeAcknowledgementNotAllowedError` for Shared and KeyShared
        subscriptions."""
        if txn is not None:
            self.acknowledge_in(txn, message, through=True)
            return
        self.check_cumulative(message)
        self.inbox.add(AcknowledgedThrough(message))
        if self.settings.ack_receipt_enabled:
            await self.acknowledging.receipt()

    def acknowledge_in(self, txn: Any, given: Any, *, through: bool = False) -> None:
        """Acknowledge a message or an id, or several, in a transaction. May run on any thread."""
        transaction = transaction_of(txn, self.context)
        if through:
            self.check_cumulative(given)
        several = given if isinstance(given, (list, tuple)) else [given]
        for index, each in enumerate(several):
            self.check_acknowledgeable(each, "message" if several is not given else f"message[{index}]")
        transaction.drains[self.acknowledging.drain] = None
        for each in several:
            self.inbox.add_urgent(AcknowledgedIn(each, transaction, through=through))

    def check_acknowledgeable(self, message: object, name: str = "message") -> None:
        """Raise `OperationNotSupported` for an argument that is neither a message nor an id, or for an id
        that does not identify one of several topics. May run on any thread."""
        if isinstance(message, MessageId):
            if not self.closed:
                self.group.handle_of(message)
        elif not isinstance(message, Message):
            raise NotAMessage(f"{name} must be a Message or a MessageId, not {type(message).__name__}")

    def check_cumulative(self, message: Acknowledgeable) -> None:
        """Raise the errors of `acknowledge_cumulative`."""
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        self.check_acknowledgeable(message)
        if self.settings.individual_only:
            kind = self.settings.consumer_type.name
            raise CumulativeAcknowledgementNotAllowedError(
                f"a {kind} subscription is acknowledged message by message: use acknowledge()"
            )

    # --- redelivery ------------------------------------------------------------------------------

    async def negative_acknowledge(self, message: Acknowledgeable) -> None:
        """Have the message, which could not be processed, redelivered after the configured delay."""
        self.refuse(message)

    def refuse(self, message: Acknowledgeable) -> None:
        """Acknowledge a message negatively; on any thread."""
        if message.__class__ is not Message:
            self.check_acknowledgeable(message)
        with contextlib.suppress(AlreadyClosed):  # the broker redelivers what a closed consumer had
            self.inbox.add_urgent(NegativelyAcknowledged(message))

    def redeliver_unacknowledged_messages(self) -> asyncio.Future[None]:
        """Have all unacknowledged messages redelivered, including those in the receive queue.

        A plain call, as in ``pulsar.asyncio``: complete when it returns. The returned future may be awaited.
        """
        self.redeliver_all()
        done = self.context.loop.create_future()
        done.set_result(None)
        return done

    def redeliver_all(self) -> None:
        """Have all unacknowledged messages redelivered; on the loop's thread."""
        if self.closed:
            return
        self._drain()
        for handle in self.group.handles.values():
            handle.consumer.redeliver_unacknowledged()
            handle.flush()

    async def reconsume_later(
        self, message: Message[Any], delay_millis: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish the message to the retry topic, which delivers it again after ``delay_millis``, and
        acknowledge it. After ``max_redeliver_count`` rounds it is sent to the dead letter topic.

        Needs ``retry_enabled``. Raises the errors of publishing; the message is then not acknowledged.
        """
        check_type("message", message, Message)
        check_int("delay_millis", delay_millis, 0)
        if not self.settings.retry_enabled:
            raise InvalidConfiguration("reconsume_later needs a consumer with retry_enabled=True")
        policy = self.settings.dead_letter_policy
        plan = plan_retry(
            message, self._topics.topics[0], self._subscription, policy, delay_millis, properties
        )
        await self.forwarder.publish(plan, message, policy)
        await self.acknowledge(message)

    def _on_dead_letters(self, handle: ConsumerHandle, event: DeadLettered) -> None:
        task = self.context.task(self._send_to_dead_letter_topic(handle, event))
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _send_to_dead_letter_topic(self, handle: ConsumerHandle, event: DeadLettered) -> None:
        """Publish dead messages and acknowledge them; if that fails they are redelivered later."""
        policy = self.settings.dead_letter_policy
        published = True
        try:
            topic = self._topics.topics[0] if self.settings.retry_enabled else handle.topic
            for message in event.messages:
                plan = plan_dead_letter(message, topic, self._subscription, policy)
                await self.forwarder.publish(plan, message, policy)
        except Exception as error:  # any error (a message may be no protobuf): release the permits
            published = False
            logger.warning(
                "a message of %s could not be sent to its dead letter topic: %s", handle.topic, error
            )
        handle.consumer.dead_letters_settled(event, published, self.context.now())
        handle.flush()

    # --- positions -------------------------------------------------------------------------------

    async def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription to a message, or to a publish time in milliseconds since 1970.

        The next message received is the one after the given one (the given one itself, with
        ``start_message_id_inclusive``), or the first published at or after the time. With several topics or
        partitions a time, ``MessageId.earliest`` and ``MessageId.latest`` move all of them; another id moves
        only the topic or partition it belongs to.
        """
        self.check_receiving()
        if not isinstance(messageid, MessageId):
            check_int("messageid", messageid, 0, (1 << 63) - 1)
        self._drain()
        await self.group.seek(messageid)

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; its entry id is -1 if the topic is empty. Raises
        `OperationNotSupported` for several topics or partitions: see `get_last_message_ids`."""
        self.check_receiving()
        handles = list(self.group.handles.values())
        if len(handles) != 1:
            raise OperationNotSupported(
                f"{self.topic()} has {len(handles)} partitions: use get_last_message_ids()"
            )
        return (await handles[0].last_message_id())[0]

    async def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of every topic and partition."""
        self.check_receiving()
        answers = await asyncio.gather(*(h.last_message_id() for h in self.group.handles.values()))
        return [last for last, _ in answers]

    # --- columns ---------------------------------------------------------------------------------

    async def receive_table(
        self, max_rows: int = 100_000, timeout_millis: int | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Receive messages as an Arrow table; see `geminga.client.receive.columnar_consumer`."""
        from geminga.client.receive.columnar_consumer import collect_entries, decode_table

        entries = await collect_entries(self, max_rows, timeout_millis)
        return decode_table(self, entries, columns)

    async def acknowledge_table(self, table: pa.Table) -> None:
        """Acknowledge every message of a table from `receive_table`, or of part of one."""
        from geminga.client.receive.columnar_consumer import acknowledge_rows

        acknowledge_rows(self, table)
        if self.settings.ack_receipt_enabled:
            await self.acknowledging.receipt()

    # --- the end ---------------------------------------------------------------------------------

    async def unsubscribe(self, force: bool = False) -> None:
        """Remove the subscription from its topics and close the consumer. Raises `BrokerMetadataError` while
        other consumers are attached to it."""
        check_type("force", force, bool)
        self.check_receiving()
        self._drain()
        await self.group.unsubscribe(force)
        await self.close()

    async def drain(self, timeout_millis: int = 30_000) -> int:
        """Close gracefully: stop fetching messages, give the application at most ``timeout_millis`` to
        receive and acknowledge (or refuse) the delivered ones, and close.

        A receive on the empty queue then raises `AlreadyClosed`, so that loops over the consumer end. Returns
        the number of messages that were delivered and not settled: the broker redelivers those. Messages of
        non-persistent topics only have to be received. A cancelled call leaves the consumer open, but without
        new messages, until `close`.
        """
        check_int("timeout_millis", timeout_millis, 0, MILLISECONDS_MAX)
        if self.closed:
            return 0
        self.draining = True
        await self.group.begin_drain()
        self.receive_waiters.wake_all()
        deadline = self.context.now() + timeout_millis / 1000
        while not self.closed and (left := deadline - self.context.now()) > 0:
            self._drain()
            if not self.queue and not any(c.unsettled.in_hand for c in self.group.cores()):
                break
            await asyncio.sleep(min(left, DRAIN_LOOKS_SECONDS))
        if not self.closed:
            self._drain()
        rest = sum(c.unsettled.messages_in_hand(c.acks.parts.batches.get) for c in self.group.cores())
        await self.close()
        return rest

    async def close(self) -> None:
        """Send the queued acknowledgements and close. A second call waits for the first to finish; a
        cancelled call completes in the background."""
        if not self.closed or self._ending.under_way:
            await self._ending.wait(self._close)

    async def _close(self) -> None:
        self._end()
        try:
            await self.group.close()
        finally:
            if not self.context.loop.is_closed():
                if "forwarder" in vars(self):
                    await self.forwarder.close()
                self.context.unregister(self)

    def abort(self) -> None:
        """Close at once and wake the waiting receivers, without notifying the broker: for a client that shuts
        down."""
        if not self.closed:
            self._end()
            self.context.unregister(self)
            self.group.abort()

    def loop_ended(self, reason: AlreadyClosed) -> None:
        """Raise ``reason`` in later calls: the consumer was closed with its event loop."""
        self._loop_ended = reason
        self.inbox.ended = lambda: reason

    def _end(self) -> None:
        self.acknowledging.end()
        self.closed = True
        for task in list(self._forwarding):
            task.cancel()
        self.receive_waiters.wake_all()

    def _on_active(self, partition: int, is_active: bool) -> None:
        listener = self.settings.event_listener
        if listener is None:
            return

        async def notify() -> None:
            try:
                outcome = (listener.became_active if is_active else listener.became_inactive)(self, partition)
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception:
                logger.exception("an event listener raised")

        self._events.append(notify)
        if len(self._events) == 1:
            task = self.context.task(self._notify_events())
            self._forwarding.add(task)
            task.add_done_callback(self._forwarding.discard)

    async def _notify_events(self) -> None:
        """Call the event listener for one event after the other, in order."""
        while self._events:
            await self._events[0]()
            del self._events[0]

    def _on_failure(self, handle: ConsumerHandle, error: Exception) -> None:
        # The other partitions still deliver, but receive() must raise so that the loss is noticed.
        logger.error("the consumer of %s has failed: %s", handle.topic, error)
        self.failure = error
        self.receive_waiters.wake_all()

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self._name} of {self._subscription} on {self.topic()}>"


class ReceivedBatch:
    """Messages collected until a `ConsumerBatchReceivePolicy` is satisfied."""

    def __init__(self, policy: ConsumerBatchReceivePolicy) -> None:
        self.full = False
        self._taken: list[Taken] = []
        self._count_left = policy.max_num_message if policy.max_num_message > 0 else maxsize
        self._bytes_left = policy.max_num_bytes if policy.max_num_bytes > 0 else maxsize

    @property
    def messages(self) -> list[Message[Any]]:
        return [Message(entry, index) for entry, indexes in self._taken for index in indexes]

    def add(self, message: Message[Any]) -> bool:
        """Add a message; return False for one that would exceed the limit of bytes: the batch is full."""
        size = message.size_bytes()
        if self._taken and size > self._bytes_left:
            self.full = True
            return False
        entry, index = place_of(message)
        self._taken.append((entry, [index]))
        self._added(1, size)
        return True

    def fill(self, queue: ReceiveQueue) -> list[Taken]:
        """Add queued messages, as long as all of an entry or run surely fit; return the added ones."""
        before = len(self._taken)
        while not self.full and (count := queue.take_lot(self._taken, self._count_left, self._bytes_left)):
            entry, indexes = self._taken[-1]
            self._added(count, sum(map(entry.size_bytes, indexes)))
        return self._taken[before:]

    def _added(self, count: int, size: int) -> None:
        self._count_left -= count
        self._bytes_left -= size
        self.full = self._count_left <= 0 or self._bytes_left <= 0
