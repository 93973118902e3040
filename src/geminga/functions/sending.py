"""Sending of results and acknowledgement of their input messages: at-least-once processing.

An input message is acknowledged when all results of its call have their receipts; if a result or the call
fails, the message is negatively acknowledged and redelivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import random
from typing import Any, Protocol, TypeVar

from geminga import ManySent, Result
from geminga.asyncio import Client
from geminga.connection.backoff import Backoff
from geminga.errors import (
    AlreadyClosed,
    ProducerBlockedQuotaExceededException,
    ProducerFenced,
    PulsarException,
    TopicNotFound,
    TopicTerminated,
)
from geminga.functions.calling import CallOutcome
from geminga.functions.context import InstanceContext, Publish
from geminga.functions.result_producers import (
    REFUSED,
    close_batches_soon,
    failure_of,
    open_producer,
    producer_arguments,
)

T = TypeVar("T")

logger = logging.getLogger("geminga.functions")

PENDING_BYTES_MAX = 128 * 1024 * 1024
"""Limit of the memory for messages in flight and their results, estimated from earlier sizes."""
RETRY_SECONDS_MAX = 60.0
"""Longest delay before a failed call or a request for a topic is retried."""
PRODUCERS_MAX = 1000
"""Maximum open producers for topics that results choose."""
_WEIGHT = 0.25
"""Weight of the newest sizes in the moving average."""


_NOT_ENCRYPTED = "Encryption is required"
"""Text of a permanent error that brokers send with a retriable code: results are not encrypted."""


def is_passing(error: BaseException) -> bool:
    """Return whether an error means that a topic or broker is temporarily unavailable: it is no failure of
    the message."""
    if isinstance(error, ProducerBlockedQuotaExceededException):
        return True
    return isinstance(error, PulsarException) and error.retriable and _NOT_ENCRYPTED not in str(error)


def has_ended(error: BaseException) -> bool:
    """Return whether the error has ended the producer. Reopening shows whether the topic was deleted."""
    return isinstance(error, (TopicTerminated, ProducerFenced, TopicNotFound, AlreadyClosed, *REFUSED))


class ResultSender(Protocol):
    """Receiver of outcomes. ``in_place``: a failed call must be repeated before later results are sent."""

    in_place: bool

    async def emit(self, outcomes: Sequence[CallOutcome]) -> None: ...

    async def close(self) -> None: ...


class PendingResults:
    """Messages in flight: counts them, and acknowledges or rejects each at its end."""

    def __init__(self, shared: InstanceContext, consumer: Any) -> None:
        self.shared = shared
        self.consumer = consumer
        self.in_flight = 0
        self._acknowledges = shared.settings.guarantee in ("ATLEAST_ONCE", "EFFECTIVELY_ONCE")
        self._refuses = shared.settings.guarantee != "ATMOST_ONCE"
        self._less = asyncio.Event()
        self._arrived = (0, 0)
        self._message_bytes = self._result_bytes = 0.0
        self.on_last: Callable[[], None] = lambda: None
        """Called when no further message is taken."""
        self.fatal: Exception | None = None
        self._ended = asyncio.Event()
        shared.failed, shared.patiently = self.end, self.patiently

    def done(self, message: Any) -> None:
        self.in_flight -= 1
        self.shared.metrics.processed += 1
        if self._acknowledges and not self.consumer.closed:
            self.consumer.inbox.add(message)
        self._less.set()

    def redelivered(self, count: int) -> None:
        """Note messages that an aborted transaction acknowledged, which are redelivered."""
        self.in_flight -= count
        self._less.set()

    def again(self, message: Any) -> None:
        self.in_flight -= 1
        if self._refuses and not self.consumer.closed:
            self.consumer.refuse(message)
        self._less.set()

    def unsent(self, message: Any, error: Exception) -> None:
        """A result could not be published."""
        metrics = self.shared.metrics
        metrics.system_exceptions += 1
        if metrics.system_exceptions & (metrics.system_exceptions - 1) == 0:
            logger.warning(
                "a result could not be published (%d so far): %s: %s",
                metrics.system_exceptions, type(error).__name__, error,
            )  # fmt: skip
        self.again(message)

    @property
    def most(self) -> int:
        """Maximum messages in flight: ``max_pending``, fewer if they are large."""
        flows = [handle.consumer.flow for handle in self.consumer.group.handles.values()]
        arrived = sum(flow.received_messages for flow in flows), sum(flow.received_bytes for flow in flows)
        messages, size = arrived[0] - self._arrived[0], arrived[1] - self._arrived[1]
        if messages > 0 and size >= 0:  # else one of several topics would starve
            self._message_bytes = _average(self._message_bytes, size / messages)
        self._arrived = arrived
        each = self._message_bytes + self._result_bytes
        most = self.shared.settings.max_pending
        return most if most * each <= PENDING_BYTES_MAX else max(1, int(PENDING_BYTES_MAX / each))

    def note_results(self, count: int, size: int) -> None:
        """Update the average size of results: ``count`` messages had results of ``size`` bytes."""
        self._result_bytes = _average(self._result_bytes, size / count)

    async def below(self, most: int | None = None) -> None:
        """Wait until fewer than ``most`` messages are in flight, or an error has ended the function."""
        while self.in_flight >= (self.most if most is None else most) and self.fatal is None:
            self._less.clear()
            await self._less.wait()

    def end(self, error: Exception) -> None:
        self.fatal = self.fatal or error
        self._ended.set()
        self._less.set()

    async def pause(self, seconds: float) -> None:
        """Sleep. Raises the error that ends the function meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        if self.fatal is not None:
            raise self.fatal

    async def patiently(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``ask``, retried while a topic or broker is unavailable, without counting as
        failure of a message. Raises permanent errors, and the error that ends the function meanwhile."""
        delays = Backoff(random, maximum_seconds=RETRY_SECONDS_MAX)
        while True:
            try:
                return await ask()
            except PulsarException as error:
                if not is_passing(error):
                    raise
                self.shared.metrics.system_exceptions += 1
                logger.warning("waiting for %s after %s: %s", what, type(error).__name__, error)
            await self.pause(delays.next())


def _average(known: float, newest: float) -> float:
    return known + (newest - known) * _WEIGHT if known else newest


class _PendingMessage:
    """A message with several results in flight."""

    __slots__ = ("error", "failed", "left", "outcome", "stored")

    def __init__(self, outcome: CallOutcome, left: int, stored: Stored, failed: Failed) -> None:
        self.outcome = outcome
        self.left = left
        self.stored = stored
        self.failed = failed
        self.error: tuple[Exception, str] | None = None

    def one(self, error: Exception | None, topic: str) -> None:
        self.left -= 1
        if error is not None and (self.error is None or not is_passing(error)):
            self.error = error, topic
        if self.left:
            return
        if self.error is None:
            self.stored(self.outcome)
        else:
            self.failed(self.outcome, *self.error)


Stored = Callable[[CallOutcome], object]
"""Called with an outcome whose results have their receipts."""
Failed = Callable[[CallOutcome, Exception, str], None]
"""Called with an outcome, the error of a result that was not stored, and its topic."""


class AtLeastOnce:
    """Sends results, by `send_many` if each call has one plain result.

    Results that cannot be sent now are *held* and sent before later ones; invalid results are refused.
    """

    in_place = False

    def __init__(self, settling: PendingResults, client: Client, output_schema: Any) -> None:
        self._settling = settling
        self._client = client
        self._settings = settling.shared.settings
        self._schema = output_schema
        self._producers: dict[tuple[str, Any], Any] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._began = False
        """True while started sends have not queued their messages yet."""
        self._turn = asyncio.Lock()
        self._held: list[CallOutcome] = []
        self._delays = Backoff(random, maximum_seconds=RETRY_SECONDS_MAX)
        self._is_closed = False
        self._txn: Any = None
        """Transaction of the results."""
        self._stored: Stored = lambda outcome: settling.done(outcome.message)
        self._not_stored: Failed = self._failed

    async def emit(self, outcomes: Sequence[CallOutcome]) -> None:
        async with self._turn:
            await self._emit_held()
            await self._emit(outcomes)

    async def _emit(self, outcomes: Sequence[CallOutcome]) -> None:
        run: list[CallOutcome] = []
        for outcome in outcomes:
            if outcome.plain and not outcome.changes:
                run.append(outcome)
                continue
            if run:
                await self._send_run(run)
                run = []
            await self._send_one(outcome)
        if run:
            await self._send_run(run)

    # --- held results ---------------------------------------------------------------------------------

    def _failed(self, outcome: CallOutcome, error: Exception, topic: str) -> None:
        settling = self._settling
        state = settling.shared.state
        if self._is_closed:
            return  # unsettled: the message is redelivered
        if state is not None and topic == state.producer.topic():
            settling.end(error)  # the producers in memory are no longer current
        elif self._may_pass(error, topic):
            if not self._held:
                logger.warning("results wait for the broker: %s: %s", type(error).__name__, error)
                settling.shared.metrics.system_exceptions += 1
                self._keep(asyncio.ensure_future(self._emit_again()))
            self._held.append(outcome)
        else:
            settling.unsent(outcome.message, error)

    def _may_pass(self, error: Exception, topic: str) -> bool:
        return is_passing(error) or (topic == self._settings.output and has_ended(error))

    async def _emit_again(self) -> None:
        try:
            async with self._turn:
                await self._emit_held()
        except Exception as error:
            self._settling.end(error)

    async def _emit_held(self) -> None:
        while self._held:
            await self._settling.pause(self._delays.next())
            held, self._held = self._held, []
            await self._emit(held)

    def _keep(self, task: asyncio.Future[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- sending --------------------------------------------------------------------------------------

    async def _send_run(self, run: list[CallOutcome]) -> None:
        assert self._settings.output is not None
        output = self._settings.output
        producer = await self._producer(output, None)
        if self._began:
            self._began = False
            await asyncio.sleep(0)
        keys = [outcome.key for outcome in run]
        settling, metrics = self._settling, self._settling.shared.metrics
        stored, failed = self._stored, self._not_stored

        def settled(sent: ManySent) -> None:
            metrics.published += len(sent) - len(sent.failures)
            if sent.failures:
                for index, outcome in enumerate(run):
                    error = sent.failures.get(index)
                    if error is None:
                        stored(outcome)
                    else:
                        failed(outcome, error, output)
            else:
                self._delays.reset()
                for outcome in run:
                    stored(outcome)

        any_key = any(key is not None for key in keys)
        try:
            await producer.send_many(
                [outcome.payload for outcome in run], settled, keys=keys if any_key else None, txn=self._txn
            )
        except Exception:  # a schema may raise anything
            # One of them is invalid, and none was sent: send each separately.
            for outcome in run:
                await self._send_one(outcome)
            return
        if not settling.consumer.queue:
            # No more results are queued that could join the batch.
            close_batches_soon(producer)

    async def _send_one(self, outcome: CallOutcome) -> None:
        settling, output = self._settling, self._settings.output
        if outcome.error is not None:
            settling.again(outcome.message)
            return
        publishes = outcome.as_publishes(output or "")
        count = len(publishes) + len(outcome.changes)
        if not count:
            self._stored(outcome)
            return
        work = _PendingMessage(outcome, count, self._stored, self._not_stored)
        state = settling.shared.state
        for key, payload in outcome.changes:
            assert state is not None
            sending = state.producer.send(payload, partition_key=key, txn=self._txn)
            self._start(work, sending, state.producer.topic(), None)
        for publish in publishes:
            try:
                producer = await self._producer(publish.topic, publish.compression)
            except PulsarException as error:
                if publish.topic == output or settling.fatal is not None:
                    raise
                work.one(error, publish.topic)
                continue
            sending = producer.send(publish.payload, **publish.options, txn=self._txn)
            self._start(work, sending, publish.topic, publish)

    def _start(self, work: _PendingMessage, sending: Any, topic: str, publish: Publish | None) -> None:
        task = asyncio.ensure_future(sending)
        self._keep(task)
        self._began = True

        def settled(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                return  # unsettled: the message is redelivered
            error = done.exception()
            if error is None:
                self._settling.shared.metrics.published += 1
                self._delays.reset()
            tell(publish, error, None if error else done.result())
            failure = error if error is None or isinstance(error, Exception) else RuntimeError(str(error))
            work.one(failure, topic)

        task.add_done_callback(settled)

    async def _producer(self, topic: str, compression: Any) -> Any:
        key = (topic, compression)
        found = self._producers.get(key)
        if found is not None and failure_of(found) is not None:
            del self._producers[key]
            found.abort()
            found = None
        if found is None:
            if len(self._producers) >= PRODUCERS_MAX:
                await self._close_oldest()
            found = self._producers[key] = await self._opened(topic, compression)
        elif len(self._producers) > 1:
            self._producers[key] = self._producers.pop(key)  # keep the most recently used last
        return found

    async def _opened(self, topic: str, compression: Any) -> Any:
        settings = self._settings
        schema = self._schema if topic == settings.output else None
        return await self._settling.patiently(
            topic,
            lambda: open_producer(
                self._client, topic, schema=schema, **producer_arguments(settings, compression)
            ),
        )

    async def _close_oldest(self) -> None:
        """Close the least recently used producer, after its messages in flight, so that a later producer of
        its topic keeps the order."""
        producer = self._producers.pop(next(iter(self._producers)))
        await asyncio.sleep(0)  # let started sends queue their messages
        try:
            await producer.flush()
        except PulsarException as error:  # its messages failed and are redelivered
            logger.info("flushing a producer of %s before closing it failed: %s", producer.topic(), error)
        await producer.end()

    async def close(self) -> None:
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        for producer in self._producers.values():
            producer.abort()


def tell(publish: Publish | None, error: BaseException | None, message_id: Any) -> None:
    """Call the callback of `Context.publish` with a `Result` and the message id, as ``send_async`` does."""
    if publish is None or publish.callback is None:
        return
    try:
        result = Result.Ok if error is None else getattr(error, "result", Result.UnknownError)
        publish.callback(result, message_id)
    except Exception:
        logger.exception("a callback of context.publish raised")
