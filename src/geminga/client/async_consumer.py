"""Consumers for asyncio programs, and the heart of those for threads.

An `AsyncConsumer` holds one `ConsumerHandle` for each topic or partition. They share a receive queue,
from which messages are taken one by one, and an inbox for acknowledgements, which is emptied once a
grouping time or when it is full. Both are plain deques: receiving and acknowledging a message costs two
atomic operations, and no task, lock or thread hand-over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from geminga.client.consumer_handle import ConsumerHandle
from geminga.client.core import ClientCore
from geminga.client.forwarding import Forwarder
from geminga.client.multi_consumer import HandleGroup
from geminga.client.topic_set import TopicSet
from geminga.config import MILLISECONDS_MAX, check_int, check_type
from geminga.consumer.core import DeadLettered
from geminga.consumer.dead_letters import plan_dead_letter, plan_retry
from geminga.consumer.message import Message, ReceivedEntry
from geminga.consumer.queue import ReceiveQueue
from geminga.consumer.settings import ConsumerBatchReceivePolicy, ConsumerSettings
from geminga.errors import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    OperationNotSupported,
    PulsarException,
    Timeout,
)
from geminga.ids import MessageId

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

logger = logging.getLogger("geminga")

Acknowledgeable = Message | MessageId

DEFAULT_BATCH_RECEIVE = ConsumerBatchReceivePolicy(-1, 10 * 1024 * 1024, 100)


def check_message(message: object) -> None:
    """Raises `OperationNotSupported` for what cannot be acknowledged."""
    if not isinstance(message, (Message, MessageId)):
        raise OperationNotSupported(
            f"a Message or a MessageId can be acknowledged, not {type(message).__name__}"
        )


class AsyncConsumer:
    """A consumer for asyncio programs; ``async for message in consumer`` receives without end.

    Made by `geminga.asyncio.Client.subscribe`. Method names are those of ``pulsar.asyncio.Consumer``.
    """

    def __init__(
        self, core: ClientCore, topics: TopicSet, subscription: str, name: str, settings: ConsumerSettings
    ) -> None:
        self.core = core
        self.settings = settings
        self.queue = ReceiveQueue()
        self.queue.wake = self.wake_receivers
        self.acks: deque[Any] = deque()
        """Messages to acknowledge, and ``(function, *arguments)`` in their order."""
        self.taken: deque[Message] = deque()
        """Messages handed out, while the acknowledgement time-out is on."""
        self.acks_armed = False
        self.tracks_taken = settings.ack_timeout_seconds > 0
        self.reads_versions = bool(getattr(settings.schema, "reads_versions", False))
        self.closed = False
        self.failure: Exception | None = None
        self.on_end: Callable[[], None] | None = None
        """Told once when nothing more will come: closed, or failed for good."""
        self.group = HandleGroup(
            core, topics, settings, subscription=subscription, consumer_name=name, queue=self.queue,
            on_dead_letters=self._on_dead_letters, on_failure=self._on_failure,
            before_messages=self.drain_acks,
        )  # fmt: skip
        self._topics = topics
        self._subscription = subscription
        self._name = name
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._drain_timer: asyncio.TimerHandle | None = None
        self._grouping_seconds = settings.ack_grouping_time_ms / 1000
        self._forwarder = Forwarder(core, name, settings.decryptor)
        self._forwarding: set[asyncio.Task[None]] = set()

    async def open(self, timeout: float | None = None) -> None:
        """Subscribe to all topics. Raises what the first of them reports; the others are closed again."""
        await self.group.open(timeout)

    # --- names -----------------------------------------------------------------------------------

    def topic(self) -> str:
        """The topic, the topics separated by commas, or the pattern that was subscribed to."""
        return self._topics.text

    def subscription_name(self) -> str:
        return self._subscription

    def consumer_name(self) -> str:
        return self._name

    def is_connected(self) -> bool:
        """True while every topic and partition is connected."""
        return self.group.connected

    def has_reached_end_of_topic(self) -> bool:
        """True when every topic is terminated and was read to its end."""
        handles = self.group.handles.values()
        return bool(handles) and all(handle.consumer.reached_end for handle in handles)

    # --- receiving -------------------------------------------------------------------------------

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for one, at most ``timeout_millis``.

        Raises `Timeout`, `AlreadyClosed`, or why the subscription was lost for good.
        """
        while True:
            try:
                message = self.queue.items.popleft()
            except IndexError:
                await self.wait(timeout_millis)
                continue
            if message._release is not None and not self.took(message):
                continue
            if self.reads_versions:
                await self._prepare(message)
            if self.tracks_taken:
                self.note_taken(message)
            return message  # type: ignore[no-any-return]

    async def _prepare(self, message: Message) -> None:
        """Have the schema version of a message at hand: decoding must not wait."""
        try:
            await self.core.schemas.prepare(message)
        except asyncio.CancelledError:
            self.queue.items.appendleft(message)
            raise

    async def wait(self, timeout_millis: int | None) -> None:
        """Until the queue may hold something. Raises `Timeout` and what ends the consumer."""
        self.check_receiving()
        waiter = self.core.loop.create_future()
        self._waiters.append(waiter)
        self.queue.waiting_tasks += 1
        if self.settings.receiver_queue_size == 0:
            self.group.want_one()
        try:
            if timeout_millis is None:
                await waiter
            else:
                check_int("timeout_millis", timeout_millis, 0, MILLISECONDS_MAX)
                await asyncio.wait_for(waiter, timeout_millis / 1000)
        except TimeoutError as error:
            if isinstance(error, PulsarException):
                raise
            raise Timeout(f"no message within {timeout_millis} ms") from None
        finally:
            self.queue.waiting_tasks -= 1
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.cancelled() and self.queue.items:
                self.wake_receivers(1)  # the message that woke this one is for another

    def wake_receivers(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def check_receiving(self) -> None:
        """Raises when nothing will come any more, or when a listener takes the messages."""
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        if self.failure is not None:
            raise self.failure

    def took(self, item: Message | ReceivedEntry) -> bool:
        """On the loop's thread: account for an item that carries permits, or that is a whole entry.

        False when the item is no message and others (or none) are in the queue in its place.
        """
        if isinstance(item, Message):
            release = item._release
            if release is not None:
                item._release = None
                release.owner.shell.released(release)  # type: ignore[attr-defined]
            return True
        consumer = item.origin.consumer
        messages = consumer.explode(item)
        self.queue.put_back(messages)
        consumer.shell.flush_soon()
        return False

    def note_taken(self, message: Message) -> None:
        """The acknowledgement time-out of a message starts."""
        self.taken.append(message)
        self.arm_acks()

    async def batch_receive(self) -> list[Message]:
        """Several messages, as many as the consumer's `ConsumerBatchReceivePolicy` says."""
        policy = self.settings.batch_receive_policy or DEFAULT_BATCH_RECEIVE
        batch = ReceivedBatch(policy)
        deadline = None if policy.timeout_ms <= 0 else self.core.now() + policy.timeout_ms / 1000
        while not batch.full:
            left = None if deadline is None else max(0, round((deadline - self.core.now()) * 1000))
            try:
                batch.add(await self.receive(left))
            except Timeout:
                break
        return batch.messages

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    # --- acknowledging ---------------------------------------------------------------------------

    async def acknowledge(self, message: Acknowledgeable) -> None:
        """The message is done: it is not delivered to this subscription again.

        Returns when the acknowledgement is noted; with ``ack_receipt_enabled``, when the broker has stored
        it. Raises `AlreadyClosed`, `OperationNotSupported` for anything but a message or its id.
        """
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        if message.__class__ is Message:
            self.acks.append(message)
        else:
            check_message(message)
            self.acks.append((self.acknowledge_id, message))
        if self.settings.ack_receipt_enabled:
            await self._receipt()
        elif not self.acks_armed:
            self.arm_acks()
        elif len(self.acks) >= self.settings.ack_grouping_max:
            self.drain_acks()

    async def acknowledge_cumulative(self, message: Acknowledgeable) -> None:
        """This message and all before it (of its topic or partition) are done.

        Raises `CumulativeAcknowledgementNotAllowedError` for Shared and KeyShared subscriptions.
        """
        self.check_cumulative(message)
        self.acks.append((self.acknowledge_through, message))
        if self.settings.ack_receipt_enabled:
            await self._receipt()
        else:
            self.arm_acks()

    def check_cumulative(self, message: Acknowledgeable) -> None:
        """Raises what `acknowledge_cumulative` raises."""
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        check_message(message)
        if self.settings.individual_only:
            kind = self.settings.consumer_type.name
            raise CumulativeAcknowledgementNotAllowedError(
                f"a {kind} subscription is acknowledged message by message: use acknowledge()"
            )

    async def _receipt(self) -> None:
        """Wait until what was acknowledged so far is stored by the broker."""
        done = self.core.loop.create_future()
        self.acks.append((self.await_receipts, done))
        if len(self.acks) <= 2:
            # Whoever acknowledges in this loop turn shares the command.
            self.core.loop.call_soon(self.drain_acks)
        limit = self.core.settings.operation_timeout_seconds
        finished, _ = await asyncio.wait([done], timeout=limit)
        if not finished:
            raise Timeout(f"the broker did not receipt the acknowledgement within {limit:g} s")
        done.result()

    def await_receipts(self, done: asyncio.Future[None]) -> None:
        """Resolve ``done`` when all handles' acknowledgements so far are answered."""
        handles = list(self.group.handles.values())
        waiting = []
        for handle in handles:
            if handle.consumer.acks.pending_count or handle.consumer.acks.unanswered_count:
                token = self.core.loop.create_future()
                handle.consumer.await_receipt(token, self.core.now())
                waiting.append(token)
        if not waiting:
            if not done.done():
                done.set_result(None)
            return
        gathered = asyncio.gather(*waiting)

        def finish(result: asyncio.Future[Any]) -> None:
            error = None if result.cancelled() else result.exception()
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        gathered.add_done_callback(finish)

    def arm_acks(self) -> None:
        """On the loop's thread: empty the inbox when the grouping time is over."""
        self.acks_armed = True
        if self._drain_timer is None:
            delay = self._grouping_seconds
            if self.tracks_taken:
                delay = max(delay, 0.05)
            self._drain_timer = self.core.loop.call_later(delay, self.drain_acks)

    def drain_acks(self) -> None:
        """On the loop's thread: hand the inbox to the cores, and send."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        self.acks_armed = False
        now = self.core.now()
        if self.tracks_taken and self.taken:
            taken = [self.taken.popleft() for _ in range(len(self.taken))]
            for handle, messages in self.group.by_handle(taken):
                handle.consumer.taken(messages, now)
        take = self.acks.popleft
        batch = [take() for _ in range(len(self.acks))]
        if set(map(type, batch)) <= {Message}:
            if batch:
                self._acknowledge_run(batch, now)
        else:
            self._process_mixed(batch, now)
        for handle in self.group.handles.values():
            if handle.consumer.acks.pending_count:
                handle.consumer.flush_acks()
            handle.flush()

    def _process_mixed(self, batch: list[Any], now: float) -> None:
        run: list[Message] = []
        for item in batch:
            if item.__class__ is Message:
                run.append(item)
                continue
            if run:
                self._acknowledge_run(run, now)
                run = []
            item[0](*item[1:])
        if run:
            self._acknowledge_run(run, now)

    def _acknowledge_run(self, messages: list[Message], now: float) -> None:
        for handle, run in self.group.by_handle(messages):
            handle.consumer.acknowledge_messages(run, now)

    def acknowledge_id(self, message_id: MessageId) -> None:
        """On the loop's thread."""
        try:
            self.group.handle_of(message_id).consumer.acknowledge_id(message_id, self.core.now())
        except PulsarException as error:
            logger.warning("an acknowledgement is dropped: %s", error)

    def acknowledge_through(self, message: Acknowledgeable) -> None:
        """On the loop's thread."""
        now = self.core.now()
        try:
            if isinstance(message, Message):
                handle = self.group.handle_of_message(message)
                handle.consumer.acknowledge_through(message, now)
            else:
                self.group.handle_of(message).consumer.acknowledge_id_through(message, now)
        except PulsarException as error:
            logger.warning("a cumulative acknowledgement is dropped: %s", error)

    # --- redelivery ------------------------------------------------------------------------------

    async def negative_acknowledge(self, message: Acknowledgeable) -> None:
        """The message could not be processed: have it redelivered after the configured delay."""
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        check_message(message)
        self.negative(message)

    def negative(self, message: Acknowledgeable) -> None:
        """On the loop's thread."""
        self.drain_acks()
        now = self.core.now()
        try:
            if isinstance(message, Message):
                handle = self.group.handle_of_message(message)
                handle.consumer.negative_acknowledge(message, now)
            else:
                handle = self.group.handle_of(message)
                handle.consumer.negative_acknowledge_id(message, now)
        except PulsarException as error:
            logger.warning("a negative acknowledgement is dropped: %s", error)
            return
        handle.flush()

    def redeliver_unacknowledged_messages(self) -> asyncio.Future[None]:
        """Have all unacknowledged messages delivered again, those that wait in the queue included.

        A plain call, as in ``pulsar.asyncio``: it is done when it returns. What it returns may be awaited.
        """
        self.redeliver_all()
        done = self.core.loop.create_future()
        done.set_result(None)
        return done

    def redeliver_all(self) -> None:
        """On the loop's thread."""
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        self.drain_acks()
        for handle in self.group.handles.values():
            handle.consumer.redeliver_unacknowledged()
            handle.flush()

    async def reconsume_later(
        self,
        message: Message,
        delay_millis: int,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publish the message to the retry topic, to be delivered again after ``delay_millis``, and
        acknowledge it. After ``max_redeliver_count`` rounds it goes to the dead letter topic.

        Needs ``retry_enabled``. Raises what the publishing raises; the message is then not acknowledged.
        """
        check_type("message", message, Message)
        check_int("delay_millis", delay_millis, 0)
        if not self.settings.retry_enabled:
            raise InvalidConfiguration("reconsume_later needs a consumer with retry_enabled=True")
        policy = self.settings.dead_letter_policy
        plan = plan_retry(
            message, self._topics.topics[0], self._subscription, policy, delay_millis, properties
        )
        await self._forwarder.publish(plan, message, policy)
        await self.acknowledge(message)

    def _on_dead_letters(self, handle: ConsumerHandle, event: DeadLettered) -> None:
        task = self.core.loop.create_task(self._bury(handle, event))
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _bury(self, handle: ConsumerHandle, event: DeadLettered) -> None:
        """Publish dead messages and acknowledge them; if that fails they are redelivered later."""
        policy = self.settings.dead_letter_policy
        published = True
        try:
            topic = self._topics.topics[0] if self.settings.retry_enabled else handle.topic
            for message in event.messages:
                plan = plan_dead_letter(message, topic, self._subscription, policy)
                await self._forwarder.publish(plan, message, policy)
        except PulsarException as error:
            published = False
            logger.warning(
                "a message of %s could not be sent to its dead letter topic: %s", handle.topic, error
            )
        handle.consumer.dead_letters_settled(event, published, self.core.now())
        handle.flush()

    # --- positions -------------------------------------------------------------------------------

    async def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription to a message, or to a publish time in milliseconds since 1970.

        The next message received is the one after the given one (it itself, with
        ``start_message_id_inclusive``), or the first published at or after the time. With several topics
        or partitions a time, ``MessageId.earliest`` and ``MessageId.latest`` move all of them, an id moves
        its own.
        """
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        if not isinstance(messageid, MessageId):
            check_int("messageid", messageid, 0, (1 << 63) - 1)
        self.drain_acks()
        await asyncio.gather(*(handle.seek(messageid) for handle in self.group.targets_of(messageid)))

    async def get_last_message_id(self) -> MessageId:
        """The id of the topic's last message; its entry id is -1 when the topic is empty.

        Raises `OperationNotSupported` for several topics or partitions: see `get_last_message_ids`.
        """
        handles = list(self.group.handles.values())
        if len(handles) != 1:
            raise OperationNotSupported(
                f"{self.topic()} has {len(handles)} partitions: use get_last_message_ids()"
            )
        return (await handles[0].last_message_id())[0]

    async def get_last_message_ids(self) -> list[MessageId]:
        """The id of the last message of every topic and partition."""
        answers = await asyncio.gather(*(h.last_message_id() for h in self.group.handles.values()))
        return [last for last, _ in answers]

    # --- columns ---------------------------------------------------------------------------------

    async def receive_table(
        self,
        max_rows: int = 100_000,
        timeout_millis: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Messages as an Arrow table; see `geminga.client.columnar_consumer`."""
        from geminga.client.columnar_consumer import collect_entries, decode_table

        entries = await collect_entries(self, max_rows, timeout_millis)
        return decode_table(self, entries, columns)

    async def acknowledge_table(self, table: pa.Table) -> None:
        """Acknowledge every message of a table from `receive_table`, or of part of one."""
        from geminga.client.columnar_consumer import acknowledge_rows

        acknowledge_rows(self, table)
        if self.settings.ack_receipt_enabled:
            await self._receipt()

    # --- the end ---------------------------------------------------------------------------------

    async def unsubscribe(self, force: bool = False) -> None:
        """Remove the subscription from its topics and close the consumer.

        Raises `BrokerMetadataError` while other consumers are attached to it.
        """
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        self.drain_acks()
        await self.group.unsubscribe(force)
        await self.close()

    async def close(self) -> None:
        """Send the acknowledgements that wait, and end. A second call does nothing."""
        if self.closed:
            return
        self.drain_acks()
        self.closed = True
        self.core.unregister(self)
        try:
            await self.group.close()
            for task in list(self._forwarding):
                task.cancel()
            await self._forwarder.close()
        finally:
            self._ended()

    def _on_failure(self, handle: ConsumerHandle, error: Exception) -> None:
        # The other partitions go on arriving, but nobody should believe that this is all there is.
        logger.error("the consumer of %s has failed: %s", handle.topic, error)
        self.failure = error
        self._ended()

    def _ended(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        self.wake_receivers(len(self._waiters))
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self._name} of {self._subscription} on {self.topic()}>"


class ReceivedBatch:
    """Messages collected until a `ConsumerBatchReceivePolicy` is satisfied."""

    def __init__(self, policy: ConsumerBatchReceivePolicy) -> None:
        self.messages: list[Message] = []
        self._policy = policy
        self._size_bytes = 0

    def add(self, message: Message) -> None:
        self.messages.append(message)
        if self._policy.max_num_bytes > 0:
            self._size_bytes += message.size_bytes()

    @property
    def full(self) -> bool:
        policy = self._policy
        if 0 < policy.max_num_message <= len(self.messages):
            return True
        return 0 < policy.max_num_bytes <= self._size_bytes
