"""Consumers for threads, and `subscribe`, which creates consumers of both kinds.

A `Consumer` takes messages directly from the receive queue that the I/O thread fills, and adds
acknowledgements to the inbox that the I/O thread empties; see `geminga.client.receive.async_consumer`. It
never holds a lock: a signal handler may interrupt any call and make any other.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from geminga._util.values import T_co
from geminga.client.handles.context import ClientContext
from geminga.client.io import forks
from geminga.client.io.delegation import Closing, called, waited
from geminga.client.io.runtime import LoopThread
from geminga.client.receive.acknowledging import Acknowledgeable, Several
from geminga.client.receive.async_consumer import AsyncConsumer
from geminga.client.receive.listener import ListenerRunner, ListenerThreads, with_failure_listener
from geminga.client.receive.topic_set import TopicSet
from geminga.client.transactions import Transaction
from geminga.config import MILLISECONDS_MAX, check_int
from geminga.consumer.dead_letters import retry_topic
from geminga.consumer.inbox import AcknowledgedThrough, ReturnedToQueue, TakenByApplication
from geminga.consumer.message import Message, carries_permits
from geminga.consumer.settings import ConsumerSettings
from geminga.errors import (
    AlreadyClosed,
    ForkedProcessError,
    Interrupted,
    InvalidConfiguration,
    PulsarException,
    Timeout,
    UsageError,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_new_message = Message.__new__

_NOT_ASKED = float("nan")
"""Deadline of a call that has not waited yet."""

_NOTHING = -2
"""Index before a message is taken: messages have -1 or more, or a row."""

__all__ = ["AsyncConsumer", "Consumer", "subscribe"]


class Consumer(Closing, Generic[T_co]):
    """Consumer for threads; ``for message in consumer`` receives without end.

    Made by `geminga.Client.subscribe`. Methods are ``pulsar-client``'s; any thread may call them.
    """

    def __init__(
        self, runtime: LoopThread, consumer: AsyncConsumer[Any], threads: ListenerThreads | None = None
    ) -> None:
        self._runtime = runtime
        self._consumer = consumer
        self._queue = consumer.queue
        # Bound once: most messages need only these two.
        self._lots: Any = consumer.queue.lots
        self._add = consumer.inbox.add
        self._receipts = consumer.settings.ack_receipt_enabled
        self._tracks_taken = consumer.tracks_taken
        self._listener: ListenerRunner | None = None
        forks.inherited.add(self)
        listener = consumer.settings.message_listener
        if listener is not None and threads is not None:
            listener = with_failure_listener(listener, consumer.settings.failure_listener)
            self._listener = ListenerRunner(self, listener, self._take_now, self._tell)
            if consumer.settings.start_paused:
                self._listener.pause()
            self._listener.start(threads)

    # --- receiving -------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Message[T_co]:
        """Return the next message; wait for one, at most ``timeout_millis``. Raises `Timeout`,
        `AlreadyClosed`, the error that ended the subscription, or `Interrupted`, which is a
        ``KeyboardInterrupt``, if one ends the wait. A call that a signal handler ends has taken no message.
        """
        if self._listener is not None:
            raise InvalidConfiguration("the consumer has a message_listener: it takes the messages")
        if timeout_millis is not None and type(timeout_millis) is not int:
            check_int("timeout_millis", timeout_millis)
        deadline: float | None = _NOT_ASKED
        index: Any = _NOTHING
        try:
            while True:
                message = None  # a `try` right at the loop's beginning would be outside of the other one
                try:
                    # Take the message in the loop's head and return it from here: CPython runs signal
                    # handlers after calls, and at the start of functions and of a loop's next iteration,
                    # never between these steps.
                    lot = self._lots[0]
                    entry, indexes = lot
                    for index in indexes:  # noqa: B007
                        break
                    else:
                        self._queue.drop(lot)
                        continue
                    # `Message(entry, index)` would take 5 % longer, measured with batches.
                    message = _new_message(Message)
                    message._entry = entry
                    message._index = index
                    if self._tracks_taken or (entry.releases and entry.has_release(index)):
                        self._note_taken(message)
                    return message
                except IndexError:
                    if index != _NOTHING:
                        raise
                    if self._queue.drop_used_up():
                        continue
                deadline = self._await_message(timeout_millis, deadline)
        except BaseException:
            # The caller does not get the message, or was woken and does not take one: return it for the next
            # caller.
            self._give_back([] if index == _NOTHING else [Message(entry, index)])
            raise

    def _give_back(self, messages: Sequence[Message[Any]]) -> None:
        """Return messages to the queue that were taken but not delivered to the application."""
        self._queue.give_back(messages)
        if self._tracks_taken:
            for message in messages:
                with contextlib.suppress(PulsarException):
                    self._add(ReturnedToQueue(message))
        if self._queue.waiting and self._queue:
            with contextlib.suppress(PulsarException):  # a message wakes no caller after the end
                self._runtime.post(self._queue.wake)

    def _note_taken(self, message: Message[Any]) -> None:
        if carries_permits(message):
            self._runtime.post(self._consumer.group.took, message)
        if self._tracks_taken:
            self._add(TakenByApplication(message))

    def _await_message(self, timeout_millis: int | None, deadline: float | None) -> float | None:
        """Wait until there may be a message; return the deadline, which the first call computes."""
        if deadline is _NOT_ASKED:
            deadline = None
            if timeout_millis is not None:
                check_int("timeout_millis", timeout_millis, -MILLISECONDS_MAX, MILLISECONDS_MAX)
                deadline = time.monotonic() + timeout_millis / 1000
        try:
            waited = self.wait(deadline)
        except KeyboardInterrupt:
            raise Interrupted("the wait for a message was interrupted") from None
        self._open_first()
        if not waited and not self._queue.has_messages:
            raise Timeout(f"no message within {timeout_millis} ms")
        return deadline

    def _open_first(self) -> None:
        """Split the first undivided entry of the queue into its messages."""
        if self._queue.entries and not self._queue.has_messages:
            self._runtime.call(self._open_entry())

    def _next_now(self) -> Message[Any] | None:
        """Return the next message, None if the queue is empty."""
        self._open_first()
        return self._queue.take()

    async def _open_entry(self) -> None:
        self._consumer.open_entry()

    def wait(self, deadline: float | None) -> bool:
        """Sleep until the queue holds a message or an entry; return False when ``deadline``
        (``time.monotonic()``) has passed. Raises `AlreadyClosed`, or the error that ended the subscription.
        """
        if self._runtime.forked:
            raise _forked()
        if threading.current_thread() is self._runtime.thread:
            raise UsageError("a blocking receive on the client's own I/O thread; use another thread")
        left = None if deadline is None else deadline - time.monotonic()
        return self._consumer.receive_waiters.wait_here(left, self._check_receiving)

    def _check_receiving(self) -> None:
        self._consumer.check_coming()
        if self._consumer.group.starved:
            self._runtime.post(self._consumer.group.feed)

    def batch_receive(self) -> list[Message[T_co]]:
        """Receive several messages, until the consumer's `ConsumerBatchReceivePolicy` is satisfied."""
        if self._listener is not None:
            raise InvalidConfiguration("the consumer has a message_listener: it takes the messages")
        batch: Coroutine[Any, Any, list[Any]] = self._consumer.batch_receive()
        return self._runtime.call(batch, discard=self._consumer.put_back)

    def __iter__(self) -> Iterator[Message[T_co]]:
        return self

    def __next__(self) -> Message[T_co]:
        try:
            return self.receive()
        except AlreadyClosed:
            raise StopIteration from None

    # --- called by the listener's thread ----------------------------------------------------------

    def _take_now(self) -> Message[Any] | None:
        """Return the next message without waiting, for `ListenerRunner`."""
        message = self._next_now()
        if message is None:
            self._check_receiving()
        else:
            self._note_taken(message)
        return message

    def _tell(self, listening: ListenerRunner) -> None:
        """Have `ListenerRunner` woken when messages arrive."""
        self._consumer.receive_waiters.tell(listening)
        if self._consumer.closed or self._consumer.failure is not None:
            listening.wake()

    def pause_message_listener(self) -> None:
        """Stop calling the listener; messages stay in the queue."""
        self._require_listener().pause()

    def resume_message_listener(self) -> None:
        """Resume calling the listener."""
        self._require_listener().resume()

    def _require_listener(self) -> ListenerRunner:
        if self._listener is None:
            raise InvalidConfiguration("the consumer has no message_listener")
        return self._listener

    # --- acknowledging ---------------------------------------------------------------------------

    def acknowledge(self, message: Acknowledgeable | Several, *, txn: Transaction | None = None) -> None:
        """Acknowledge a message, or each of a list: it is not delivered to this subscription again.

        Returns when the acknowledgement is queued; with ``ack_receipt_enabled``, when the broker has stored
        it. With ``txn`` it takes effect when that transaction is committed, which also reports its failure.
        Raises `AlreadyClosed`, and `OperationNotSupported` for an argument that is neither a message nor an
        id.
        """
        if txn is not None:
            self._consumer.acknowledge_in(txn, message)
        elif message.__class__ is Message and not self._receipts:
            self._add(message)
        elif self._receipts:
            self._call(self._consumer.acknowledge(message))
        else:
            self._consumer.acknowledge_others(message)

    def acknowledge_cumulative(self, message: Acknowledgeable, *, txn: Transaction | None = None) -> None:
        """Acknowledge this message and all before it (of its topic or partition), with ``txn`` as part of
        that transaction. Raises `CumulativeAcknowledgementNotAllowedError` for Shared and KeyShared
        subscriptions."""
        if txn is not None:
            self._consumer.acknowledge_in(txn, message, through=True)
            return
        if self._receipts:
            self._call(self._consumer.acknowledge_cumulative(message))
            return
        self._consumer.check_cumulative(message)
        self._add(AcknowledgedThrough(message))

    def negative_acknowledge(self, message: Acknowledgeable) -> None:
        """Have the message, which could not be processed, redelivered after the configured delay."""
        self._consumer.refuse(message)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages redelivered, including those in the receive queue."""

        async def redeliver() -> None:
            self._consumer.redeliver_all()

        if not self._consumer.closed:
            self._call(redeliver())

    # --- the rest --------------------------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runtime.call(coroutine)

    topic = called("_consumer", AsyncConsumer.topic)
    subscription_name = called("_consumer", AsyncConsumer.subscription_name)
    consumer_name = called("_consumer", AsyncConsumer.consumer_name)
    has_reached_end_of_topic = called("_consumer", AsyncConsumer.has_reached_end_of_topic)
    seek = waited("_consumer", AsyncConsumer.seek)
    get_last_message_id = waited("_consumer", AsyncConsumer.get_last_message_id)
    get_last_message_ids = waited("_consumer", AsyncConsumer.get_last_message_ids)
    reconsume_later = waited("_consumer", AsyncConsumer.reconsume_later)
    acknowledge_table = waited("_consumer", AsyncConsumer.acknowledge_table)
    stats = waited("_consumer", AsyncConsumer.stats)

    def is_connected(self) -> bool:
        """Return True while every topic and partition is connected."""
        return not self._consumer.closed and self._consumer.is_connected()

    def receive_table(
        self, max_rows: int = 100_000, timeout_millis: int | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Receive messages as an Arrow table, decoded on the calling thread. See
        `geminga.client.receive.columnar_consumer`."""
        from geminga.client.receive.columnar_consumer import collect_entries, decode_table, put_back_entries

        entries = self._runtime.call(
            collect_entries(self._consumer, max_rows, timeout_millis),
            discard=partial(put_back_entries, self._consumer),
        )
        return decode_table(self._consumer, entries, columns, post=self._runtime.post)

    def unsubscribe(self, force: bool = False) -> None:
        """Remove the subscription from its topics and close the consumer."""
        self._call(self._consumer.unsubscribe(force))
        self._stop_listener()

    def drain(self, timeout_millis: int = 30_000) -> int:
        """Close gracefully: stop fetching messages, give other threads or the listener at most
        ``timeout_millis`` to receive and acknowledge (or refuse) the delivered ones, and close.

        A receive on the empty queue then raises `AlreadyClosed`, so that loops over the consumer end. Returns
        the number of messages that were delivered and not settled: the broker redelivers those. Messages of
        non-persistent topics only have to be received. An interrupted call leaves the consumer open, but
        without new messages, until `close`.
        """
        if self._consumer.closed or self._runtime.closed or self._runtime.forked:
            return 0
        rest = self._call(self._consumer.drain(timeout_millis))
        self._stop_listener()
        return rest

    def close(self) -> None:
        """Send the queued acknowledgements and close. A second call does nothing."""
        if not self._consumer.closed and not self._runtime.closed and not self._runtime.forked:
            self._call(self._consumer.close())
        self._stop_listener()

    def _stop_listener(self) -> None:
        if self._listener is not None:
            self._listener.stop()

    def _after_fork(self) -> None:
        """Refuse calls in a child process, whose copy of the queue belongs to the parent. The hot path pays
        nothing for it."""
        self._lots = _Forked()
        self._consumer.inbox.ended = _forked

    def __repr__(self) -> str:
        return f"<Consumer {self.consumer_name()} of {self.subscription_name()} on {self.topic()}>"


def give_back(consumer: Consumer[Any], message: Message[Any]) -> None:
    """Return a message that was received, but not delivered to the application, to the queue."""
    consumer._give_back([message])


class _Forked:
    """Replacement for the queue of a consumer in a child process."""

    def __getitem__(self, index: int) -> NoReturn:
        raise _forked()


def _forked() -> ForkedProcessError:
    return ForkedProcessError("this consumer was created before fork(); create one in the child process")


async def subscribe(
    context: ClientContext,
    topic: str | Sequence[str] | re.Pattern[str],
    subscription: str,
    settings: ConsumerSettings,
) -> AsyncConsumer[Any]:
    """Open a consumer on a topic, a list of topics, or the topics that match a compiled pattern."""
    topics = TopicSet(context, topic, settings.regex_subscription_mode)
    if settings.retry_enabled:
        if len(topics.topics) != 1:
            raise InvalidConfiguration("retry_enabled needs a single topic to subscribe to")
        topics.topics.append(retry_topic(topics.topics[0], subscription, settings.dead_letter_policy))
    name = settings.consumer_name or f"{context.random.getrandbits(40):010x}"
    consumer = AsyncConsumer(context, topics, subscription, name, settings)
    await consumer.open()
    return consumer
