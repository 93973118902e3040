"""Sending results and acknowledging what they came from: at least once.

A message is acknowledged when all that its call gave has its receipt; if any of it fails, or the call did,
it is negatively acknowledged and comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import random
from typing import TYPE_CHECKING, Any, Protocol

from geminga.connection.backoff import Backoff
from geminga.errors import PulsarException
from geminga.functions.calling import Outcome
from geminga.functions.running_context import Publish

if TYPE_CHECKING:
    from geminga.asyncio import Client
    from geminga.client.many import ManySent
    from geminga.functions.running_context import Shared

logger = logging.getLogger("geminga.functions")

PENDING_BYTES_MAX = 128 * 1024 * 1024
"""What messages without a receipt may take together with their results, as far as the sizes so far tell."""
RETRY_SECONDS_MAX = 60.0
"""So long a failed call waits for its next turn at the most, and so does who asks for an output again."""
PRODUCERS_MAX = 1000
"""Topics, chosen by results, that have a producer at one time."""
_WEIGHT = 0.25
"""Of the newest sizes in the average."""
METADATA_BYTES = 10_240
"""Left for what goes with a payload, as brokers count it."""


class Sender(Protocol):
    """Where outcomes go. ``in_place``: a failed call has to be repeated before the next goes on."""

    in_place: bool

    async def emit(self, outcomes: Sequence[Outcome]) -> None: ...

    async def close(self) -> None: ...


class Settling:
    """How many messages have no end yet, and how each ends."""

    def __init__(self, shared: Shared, consumer: Any) -> None:
        self.shared = shared
        self.consumer = consumer
        self.in_flight = 0
        self._acknowledges = shared.settings.guarantee in ("ATLEAST_ONCE", "EFFECTIVELY_ONCE")
        self._refuses = shared.settings.guarantee != "ATMOST_ONCE"
        self._less = asyncio.Event()
        self._arrived = (0, 0)
        self._message_bytes = self._result_bytes = 0.0
        self.fatal: Exception | None = None
        shared.failed = self.end

    def done(self, message: Any) -> None:
        self.in_flight -= 1
        self.shared.metrics.processed += 1
        if self._acknowledges and not self.consumer.closed:
            self.consumer.inbox.add(message)
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
        """How many messages may be in flight: as many as asked for, fewer where they are large."""
        flows = [handle.consumer.flow for handle in self.consumer.group.handles.values()]
        arrived = sum(flow.received_messages for flow in flows), sum(flow.received_bytes for flow in flows)
        messages, size = arrived[0] - self._arrived[0], arrived[1] - self._arrived[1]
        if messages > 0 and size >= 0:  # else a topic of several is no more read
            self._message_bytes = _average(self._message_bytes, size / messages)
        self._arrived = arrived
        each = self._message_bytes + self._result_bytes
        most = self.shared.settings.max_pending
        return most if most * each <= PENDING_BYTES_MAX else max(1, int(PENDING_BYTES_MAX / each))

    def note_results(self, count: int, size: int) -> None:
        """So many messages gave results of so many bytes."""
        self._result_bytes = _average(self._result_bytes, size / count)

    async def below(self, most: int | None = None) -> None:
        """Until less than ``most`` are in flight, or something ended it all."""
        while self.in_flight >= (self.most if most is None else most) and self.fatal is None:
            self._less.clear()
            await self._less.wait()

    def end(self, error: Exception) -> None:
        self.fatal = self.fatal or error
        self._less.set()


def _average(known: float, newest: float) -> float:
    return known + (newest - known) * _WEIGHT if known else newest


class _Work:
    """A message with several things under way."""

    __slots__ = ("error", "left", "message", "settling")

    def __init__(self, settling: Settling, message: Any, left: int) -> None:
        self.settling = settling
        self.message = message
        self.left = left
        self.error: Exception | None = None

    def one(self, error: Exception | None) -> None:
        self.left -= 1
        self.error = self.error or error
        if self.left:
            return
        if self.error is None:
            self.settling.done(self.message)
        else:
            self.settling.unsent(self.message, self.error)


class AtLeastOnce:
    """Results by `send_many` wherever a call gave one result without more."""

    in_place = False

    def __init__(self, settling: Settling, client: Client, output_schema: Any) -> None:
        self._settling = settling
        self._client = client
        self._settings = settling.shared.settings
        self._schema = output_schema
        self._producers: dict[tuple[str, Any], Any] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._began = False
        """Whether sends were begun that have not handed over their messages yet."""

    async def emit(self, outcomes: Sequence[Outcome]) -> None:
        run: list[Outcome] = []
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

    async def _send_run(self, run: list[Outcome]) -> None:
        assert self._settings.output is not None
        producer = await self._producer(self._settings.output, None)
        if self._began:
            self._began = False
            await asyncio.sleep(0)
        messages = [outcome.message for outcome in run]
        keys = [outcome.key for outcome in run]
        settling, metrics = self._settling, self._settling.shared.metrics

        def settled(sent: ManySent) -> None:
            metrics.published += len(sent) - len(sent.failures)
            if sent.failures:
                for index, message in enumerate(messages):
                    error = sent.failures.get(index)
                    if error is None:
                        settling.done(message)
                    else:
                        settling.unsent(message, error)
            else:
                for message in messages:
                    settling.done(message)

        any_key = any(key is not None for key in keys)
        try:
            await producer.send_many(
                [outcome.payload for outcome in run], settled, keys=keys if any_key else None
            )
        except Exception:  # a schema may raise anything
            # Something among them cannot be sent, and nothing was: each by itself.
            for outcome in run:
                await self._send_one(outcome)
            return
        if not settling.consumer.queue:
            # Nothing more is there to share the batch with.
            producer._publisher.close_batches_soon()

    async def _send_one(self, outcome: Outcome) -> None:
        settling = self._settling
        if outcome.error is not None:
            settling.again(outcome.message)
            return
        publishes = outcome.as_publishes(self._settings.output or "")
        count = len(publishes) + len(outcome.changes)
        if not count:
            settling.done(outcome.message)
            return
        work = _Work(settling, outcome.message, count)
        state = settling.shared.state
        for key, payload in outcome.changes:
            assert state is not None
            self._start(work, state.producer.send(payload, partition_key=key), None)
        for publish in publishes:
            try:
                producer = await self._producer(publish.topic, publish.compression)
            except PulsarException as error:
                work.one(error)
                continue
            self._start(work, producer.send(publish.payload, **publish.options), publish)

    def _start(self, work: _Work, sending: Any, publish: Publish | None) -> None:
        task = asyncio.ensure_future(sending)
        self._tasks.add(task)
        self._began = True

        def settled(done: asyncio.Future[Any]) -> None:
            self._tasks.discard(done)
            if done.cancelled():
                return  # unsettled: the message comes again
            error = done.exception()
            if error is None:
                self._settling.shared.metrics.published += 1
            tell(publish, error, None if error else done.result())
            work.one(error if error is None or isinstance(error, Exception) else RuntimeError(str(error)))

        task.add_done_callback(settled)

    async def _producer(self, topic: str, compression: Any) -> Any:
        key = (topic, compression)
        found = self._producers.get(key)
        if found is not None and is_lost(found):
            del self._producers[key]
            found.abandon()
            found = None
        if found is None:
            if len(self._producers) >= PRODUCERS_MAX:
                await self._close_oldest()
            found = self._producers[key] = await self._opened(topic, compression)
        elif len(self._producers) > 1:
            self._producers[key] = self._producers.pop(key)  # the newest is behind all others
        return found

    async def _opened(self, topic: str, compression: Any) -> Any:
        """A producer. That of the output is waited for as long as its broker is away: nothing is to be done
        without it, and no letter is dead for that."""
        settings = self._settings
        is_output = topic == settings.output
        delays = Backoff(random, maximum_seconds=RETRY_SECONDS_MAX)
        while True:
            try:
                return await self._client.create_producer(
                    topic,
                    schema=self._schema if is_output else None,
                    **producer_arguments(settings, compression),
                )
            except PulsarException as error:
                if not (is_output and error.retriable) or self._settling.fatal is not None:
                    raise
                logger.warning("waiting for the output: %s: %s", type(error).__name__, error)
                await asyncio.sleep(delays.next())

    async def _close_oldest(self) -> None:
        """The one that was not used for longest. What it has on its way goes before what another one of its
        topic will send."""
        producer = self._producers.pop(next(iter(self._producers)))
        await asyncio.sleep(0)  # sends that were begun in this turn hand over their messages
        try:
            await producer.flush()
        except PulsarException as error:  # its messages know, and come again
            logger.info("closing a producer of %s: %s", producer.topic(), error)
        await producer.end()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for producer in self._producers.values():
            producer.abandon()


def is_lost(producer: Any) -> bool:
    """Whether the broker has ended a producer for good, such as one of a terminated topic: another one is
    opened, or what the broker then says ends the function."""
    return any(partition.failure is not None for partition in producer._state.partitions)


def producer_arguments(settings: Any, compression: Any = None) -> dict[str, Any]:
    """What producers of results are opened with. Sends have no time limit: a message whose result waits for
    the broker is better off waiting than coming again."""
    from geminga.client.enums import CompressionType

    name = {"ZLIB": "ZLib"}.get(settings.compression, settings.compression)
    return {
        "send_timeout_millis": 0,
        "batching_enabled": True,
        "batching_max_publish_delay_ms": settings.batching_max_publish_delay_ms,
        "max_pending_messages": max(1000, settings.max_pending),
        "block_if_queue_full": True,
        "compression_type": compression if compression is not None else getattr(CompressionType, name),
        "properties": {
            "application": "pulsar-function", "id": settings.full_name,
            "instance_id": str(settings.instance_id),
        },
    }  # fmt: skip


def tell(publish: Publish | None, error: BaseException | None, message_id: Any) -> None:
    """The callback of `Context.publish` is called with a `Result` and the id, as that of ``send_async``."""
    if publish is None or publish.callback is None:
        return
    from geminga.client.enums import Result

    try:
        result = Result.Ok if error is None else getattr(error, "result", Result.UnknownError)
        publish.callback(result, message_id)
    except Exception:
        logger.exception("a callback of context.publish raised")
