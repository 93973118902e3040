"""Redrive: publish dead letters again, to the topics they came from or to another.

A durable subscription of the dead-letter topic, `SUBSCRIPTION`, holds what was redriven: each dead letter is
acknowledged there when its copy is stored, and the others stay for a later run. Copies have the payload, key,
schema and properties of the dead letter, and the property `REDRIVEN_FROM` with its message id.

An interrupted run may have published copies without acknowledging the dead letters. The time of its start is
in the subscription's properties: the next run reads the topics that it publishes to from that time on, and
acknowledges the dead letters whose copies it finds, instead of publishing them twice.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.client.admin.aio.admin import Admin
from geminga.client.aio import Client
from geminga.client.dead_letter_publisher import DeadLetterPublisher
from geminga.client.enums import ConsumerType, InitialPosition
from geminga.config import refuse
from geminga.consumer.dead_letters import (
    PROPERTY_DELAY_TIME,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECONSUME_TIMES,
    DeadLetter,
    dead_letter_topic,
)
from geminga.consumer.message import Message
from geminga.errors import PulsarException, Timeout, TopicNotFound
from geminga.ids import MessageId, TopicName

SUBSCRIPTION = "geminga-redrive"
"""Subscription of a dead-letter topic whose position is what was redriven."""
REDRIVEN_FROM = "REDRIVEN_FROM"
"""Property of a copy: topic and message id of the dead letter."""
REDRIVE_COUNT = "REDRIVE_COUNT"
"""Property of a copy: how often the message was redriven."""
STARTED = "geminga-redrive-started-ms"
"""Property of the subscription while a run is not complete: milliseconds since 1970 of its start."""
IN_FLIGHT_MAX = 200
SILENCE_MILLIS = 3000
"""A run ends when the dead-letter topic brings nothing for this time: the rest was redriven before."""
_CLOCKS_DIFFER_MS = 60_000


@dataclass(frozen=True, kw_only=True, slots=True)
class RedriveFilter:
    """Choice of dead letters: those that meet every condition given."""

    key: str | None = None
    """The message's key."""
    contains: bytes = b""
    """Bytes that occur in the payload."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties and their values."""
    since: dt.datetime | None = None
    """Publish time in the dead-letter topic, with a zone: this or later."""
    before: dt.datetime | None = None
    """Publish time in the dead-letter topic, with a zone: earlier than this."""

    count_max: int = 0
    """Most messages to send; 0: no limit."""

    def takes(self, message: Message[Any]) -> bool:
        """Return whether a dead letter meets the conditions."""
        published = message.publish_timestamp() / 1000
        return (
            (self.key is None or (message.has_partition_key() and message.partition_key() == self.key))
            and self.contains in message.data()
            and all(message.properties().get(name) == value for name, value in self.properties.items())
            and (self.since is None or published >= self.since.timestamp())
            and (self.before is None or published < self.before.timestamp())
        )


@dataclass(slots=True)
class RedriveResult:
    """Result of a run, or of a preview (which sends nothing: ``sent`` is what a run would send)."""

    sent: Counter[str] = field(default_factory=Counter)
    """Messages sent, by topic."""
    found: int = 0
    """Messages that an interrupted run had sent already."""
    left: int = 0
    """Dead letters that the filter left."""


class Redrive:
    """One redrive of a subscription's dead letters; on the event loop of its client."""

    def __init__(
        self,
        client: Client,
        admin: Admin,
        topic: str,
        subscription: str,
        *,
        dead_letters: str | None = None,
        to: str | None = None,
        only: RedriveFilter | None = None,
    ) -> None:
        """Name the topics; nothing is done yet.

        dead_letters:
            The dead-letter topic; default ``<topic>-<subscription>-DLQ``.
        to:
            The topic to publish to; default: the one that each dead letter names as its origin.
        only:
            The dead letters to send; default: all.

        Raises `InvalidTopicName`.
        """
        self._client = client
        self._admin = admin
        self._topic = str(TopicName.parse(topic).base)
        self.dead_letters = str(TopicName.parse(dead_letters or dead_letter_topic(topic, subscription, None)))
        self._to = None if to is None else str(TopicName.parse(to))
        self._only = only or RedriveFilter()
        self._sent_before: dict[str, set[str]] = {}

    async def preview(self) -> RedriveResult:
        """Return what `run` would do, and change nothing. Raises `TopicNotFound`."""
        await self._check_exists()
        result = RedriveResult()
        if SUBSCRIPTION in await self._admin.subscriptions.list(self.dead_letters):
            async with await self._subscribe() as consumer:
                async for message in _until_now(consumer):
                    self._note(result, message)
        else:
            async with await self._client.create_reader(self.dead_letters, MessageId.earliest) as reader:
                while await reader.has_message_available():
                    self._note(result, await reader.read_next())
        return result

    def _note(self, result: RedriveResult, message: Message[Any]) -> None:
        if self._only.takes(message) and not self._is_full(result):
            result.sent[self._target(message)] += 1
        else:
            result.left += 1

    async def run(
        self, *, rate: float = 0, progress: Callable[[int], object] = lambda sent: None
    ) -> RedriveResult:
        """Send dead letters back, ``rate`` messages a second (0: no limit); ``progress`` gets the number of
        messages sent so far.

        Raises `InvalidConfiguration`, `TopicNotFound`, `ConsumerBusy` while another run is active, and the
        errors of publishing: what was sent until then is acknowledged, and another run continues.
        """
        if rate < 0:
            refuse("rate", rate, "messages a second, or 0 for no limit")
        await self._check_exists()
        result = RedriveResult()
        publisher = DeadLetterPublisher(self._client.context, "redrive")
        async with await self._subscribe() as consumer:
            interrupted_ms = await self._begin()
            waiting: list[tuple[Message[Any], asyncio.Task[None]]] = []
            try:
                started = time.monotonic()
                async for message in _until_now(consumer):
                    if not self._only.takes(message) or self._is_full(result):
                        result.left += 1
                        continue
                    target = self._target(message)
                    if await self._was_sent(target, message, interrupted_ms):
                        await consumer.acknowledge(message)
                        result.found += 1
                        continue
                    result.sent[target] += 1
                    sending = asyncio.create_task(
                        publisher.publish(self._copy(target, message), message, None)
                    )
                    waiting.append((message, sending))
                    if len(waiting) >= IN_FLIGHT_MAX or rate:
                        await _settle(consumer, waiting)
                        progress(result.sent.total())
                    if rate:
                        ahead = result.sent.total() / rate - (time.monotonic() - started)
                        await asyncio.sleep(max(0.0, ahead))
                await _settle(consumer, waiting)
            finally:
                for _, sending in waiting:
                    sending.cancel()
                await publisher.close()
            await self._end()
        progress(result.sent.total())
        return result

    def _is_full(self, result: RedriveResult) -> bool:
        return 0 < self._only.count_max <= result.sent.total()

    async def _check_exists(self) -> None:
        """Raise `TopicNotFound` for a missing dead-letter topic, instead of creating it."""
        try:
            await self._admin.topics.stats(self.dead_letters)
        except PulsarException as error:
            if getattr(error, "status", None) != 404:
                raise
            raise TopicNotFound(
                f"there is no dead-letter topic {self.dead_letters}: no message was dead-lettered, or the "
                "consumers' dead_letter_topic names another"
            ) from None

    async def _subscribe(self) -> Any:
        return await self._client.subscribe(
            self.dead_letters,
            SUBSCRIPTION,
            consumer_type=ConsumerType.Exclusive,
            initial_position=InitialPosition.Earliest,
            batch_index_ack_enabled=True,
            ack_receipt_enabled=True,
        )

    def _target(self, message: Message[Any]) -> str:
        origin = message.properties().get(PROPERTY_REAL_TOPIC, self._topic)
        return self._to or str(TopicName.parse(origin).base)

    def _copy(self, target: str, message: Message[Any]) -> DeadLetter:
        properties = message.properties()
        # The attempts before are not counted again: one more would make it a dead letter at once.
        for name in (PROPERTY_RECONSUME_TIMES, PROPERTY_DELAY_TIME):
            properties.pop(name, None)
        count = properties.get(REDRIVE_COUNT, "0")
        properties[REDRIVE_COUNT] = str(int(count) + 1 if count.isdecimal() else 1)
        properties[REDRIVEN_FROM] = _source(message)
        return DeadLetter(target, properties, dead=False, delay_ms=0)

    # --- interruptions ---
    async def _begin(self) -> int | None:
        """Record the start; return that of an earlier run that was interrupted."""
        subscriptions = self._admin.subscriptions
        properties = dict(await subscriptions.properties(self.dead_letters, SUBSCRIPTION))
        if STARTED in properties:
            return int(properties[STARTED]) - _CLOCKS_DIFFER_MS
        properties[STARTED] = str(self._client.context.now_ms())
        await subscriptions.set_properties(self.dead_letters, SUBSCRIPTION, properties)
        return None

    async def _end(self) -> None:
        subscriptions = self._admin.subscriptions
        properties = dict(await subscriptions.properties(self.dead_letters, SUBSCRIPTION))
        properties.pop(STARTED, None)
        await subscriptions.set_properties(self.dead_letters, SUBSCRIPTION, properties)

    async def _was_sent(self, target: str, message: Message[Any], since_ms: int | None) -> bool:
        """Return whether an interrupted run that started at ``since_ms`` has sent this dead letter."""
        if since_ms is None:
            return False
        if target not in self._sent_before:
            found: set[str] = set()
            async with await self._client.create_reader(target, MessageId.earliest) as reader:
                await reader.seek(since_ms)
                while await reader.has_message_available():
                    found.add((await reader.read_next()).properties().get(REDRIVEN_FROM, ""))
            self._sent_before[target] = found
        return _source(message) in self._sent_before[target]


def _source(message: Message[Any]) -> str:
    message_id = message.message_id()
    parts = (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
    return f"{message.topic_name()}@{':'.join(map(str, parts))}"


async def _until_now(consumer: Any) -> AsyncIterator[Message[Any]]:
    """Yield the consumer's messages up to the last ones that its topic has now."""
    ends = {each.partition(): each for each in await consumer.get_last_message_ids()}
    open_ends = {partition for partition, end in ends.items() if end.entry_id() >= 0}
    while open_ends:
        try:
            message = await consumer.receive(SILENCE_MILLIS)
        except Timeout:
            return
        message_id = message.message_id()
        end = ends[message_id.partition()]
        place = (message_id.ledger_id(), message_id.entry_id())
        if place > (end.ledger_id(), end.entry_id()):
            open_ends.discard(message_id.partition())
            continue
        yield message
        if (*place, message_id.batch_index()) == (end.ledger_id(), end.entry_id(), end.batch_index()):
            open_ends.discard(message_id.partition())


async def _settle(consumer: Any, waiting: list[tuple[Message[Any], asyncio.Task[None]]]) -> None:
    """Wait for the receipts and acknowledge what was stored. Raises the first error, after all of it."""
    results = await asyncio.gather(*(sending for _, sending in waiting), return_exceptions=True)
    stored = [message for (message, _), result in zip(waiting, results, strict=True) if result is None]
    if stored:
        await consumer.acknowledge(stored)
    waiting.clear()
    for result in results:
        if result is not None:
            raise result
