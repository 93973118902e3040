"""Redrive: publish dead letters again, to the topics they came from or to another.

A durable subscription of the dead-letter topic, `SUBSCRIPTION`, holds what was redriven: each dead letter is
acknowledged there when its copy is stored, and the others stay for a later run. Copies have the payload, key,
schema and properties of the dead letter, and the property `REDRIVEN_FROM` with its message id.

An interrupted run may have published copies without acknowledging the dead letters. Its start time and its
``to`` are in the subscription's properties. The next run, also with another filter and ``to``, reads the
topics that the interrupted one published to, from that time on. It acknowledges the dead letters whose
copies it finds, instead of publishing them twice. A run that leaves messages of batches counts as
interrupted: Apache Pulsar forgets, by default, which messages of a batch were acknowledged. So does a run to
which messages were delivered twice, after a reconnect. If the subscription was deleted meanwhile, the run
stops, and the next one looks for all copies that the topics have.
"""

import asyncio
import contextlib
import datetime as dt
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.client.admin.aio.admin import Admin
from geminga.client.api.aio import Client
from geminga.client.options.enums import ConsumerCryptoFailureAction, ConsumerType, InitialPosition
from geminga.client.publish.dead_letter_publisher import DeadLetterPublisher
from geminga.config import refuse
from geminga.consumer.dead_letters import (
    PROPERTY_DELAY_TIME,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECONSUME_TIMES,
    DeadLetter,
    dead_letter_topic,
)
from geminga.consumer.message import Message
from geminga.errors import AdminNotFound, InvalidTopicName, SubscriptionNotFound, Timeout, TopicNotFound
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
STARTED_TO = "geminga-redrive-to"
"""Property of the subscription while a run is not complete: JSON list of the ``to`` of the runs since then,
null for the topics that the dead letters came from."""
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
    """Maximum messages to send; 0: no limit."""

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
    """Dead letters that do not match the filter; they stay."""
    encrypted: int = 0
    """Encrypted dead letters: they stay, since a redrive has no keys."""


@dataclass(frozen=True, slots=True)
class _Interruption:
    """Earlier runs that were interrupted: the earliest publish time of a copy, and their ``to``."""

    since_ms: int
    to: list[str | None]


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
        self._recorded: dict[str, str] = {}
        self._is_complete = True

    async def preview(self) -> RedriveResult:
        """Return what `run` would send, and change nothing. Dead letters that an interrupted run has sent
        count, too. Raises `TopicNotFound`."""
        await self._check_exists()
        result = RedriveResult()
        if SUBSCRIPTION in await self._admin.subscriptions.list(self.dead_letters):
            async with await self._subscribe() as consumer:
                async for message in _until_now(consumer):
                    self._note(result, message)
        else:
            async with await self._client.create_reader(
                self.dead_letters,
                MessageId.earliest,
                crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
            ) as reader:
                while await reader.has_message_available():
                    self._note(result, await reader.read_next())
        return result

    def _note(self, result: RedriveResult, message: Message[Any]) -> None:
        if not self._stays(result, message):
            result.sent[self._target(message, self._to)] += 1

    def _stays(self, result: RedriveResult, message: Message[Any]) -> bool:
        """Return whether a dead letter is not sent, and count it if so."""
        if message.encryption_context() is not None:
            result.encrypted += 1
            return True
        if self._only.takes(message) and not self._is_full(result):
            return False
        result.left += 1
        return True

    async def run(
        self, *, rate: float = 0, progress: Callable[[int], object] = lambda sent: None
    ) -> RedriveResult:
        """Send dead letters back, ``rate`` messages a second (0: no limit); ``progress`` gets the number of
        messages sent so far.

        Raises `InvalidConfiguration`, `TopicNotFound`, `ConsumerBusy` while another run is active,
        `SubscriptionNotFound` if `SUBSCRIPTION` is deleted meanwhile, and the errors of publishing: what was
        sent until then is acknowledged, and another run continues.
        """
        if rate < 0:
            refuse("rate", rate, "messages a second, or 0 for no limit")
        await self._check_exists()
        result = RedriveResult()
        self._sent_before.clear()
        publisher = DeadLetterPublisher(self._client.context, "redrive")
        async with await self._subscribe() as consumer:
            interrupted = await self._begin()
            self._is_complete = True
            waiting: list[tuple[Message[Any], asyncio.Task[None]]] = []
            try:
                started = time.monotonic()
                async for message in _until_now(consumer, lambda: self._check_recorded(result)):
                    if interrupted and await self._was_sent(message, interrupted):
                        await consumer.acknowledge(message)
                        result.found += 1
                        continue
                    if self._stays(result, message):
                        self._is_complete &= message.message_id().batch_index() < 0
                        continue
                    target = self._target(message, self._to)
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
            is_complete = self._is_complete
            await self._check_recorded(result)
            if is_complete:
                await self._end()
        progress(result.sent.total())
        return result

    def _is_full(self, result: RedriveResult) -> bool:
        return 0 < self._only.count_max <= result.sent.total()

    async def _check_exists(self) -> None:
        """Raise `TopicNotFound` for a missing dead-letter topic, instead of creating it."""
        if not await self._exists(self.dead_letters):
            raise TopicNotFound(
                f"there is no dead-letter topic {self.dead_letters}: no message was dead-lettered, or the "
                "consumers' dead_letter_topic names another"
            )

    async def _exists(self, topic: str) -> bool:
        try:
            await self._admin.topics.stats(topic)
        except AdminNotFound:
            return False
        return True

    async def _subscribe(self) -> Any:
        return await self._client.subscribe(
            self.dead_letters,
            SUBSCRIPTION,
            consumer_type=ConsumerType.Exclusive,
            initial_position=InitialPosition.Earliest,
            batch_index_ack_enabled=True,
            ack_receipt_enabled=True,
            # Otherwise encrypted dead letters would not be seen at all.
            crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
        )

    def _target(self, message: Message[Any], to: str | None) -> str:
        if to is not None:
            return to
        try:
            return str(TopicName.parse(message.properties().get(PROPERTY_REAL_TOPIC, self._topic)).base)
        except InvalidTopicName as error:
            raise InvalidTopicName(
                f"dead letter {_source(message)}, property {PROPERTY_REAL_TOPIC}: {error}; send it to a "
                "topic that you name (to)"
            ) from None

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
    async def _begin(self) -> _Interruption | None:
        """Record the start and ``to``; return those of earlier runs that were interrupted."""
        subscriptions = self._admin.subscriptions
        properties = dict(await subscriptions.properties(self.dead_letters, SUBSCRIPTION))
        found = None
        if STARTED in properties:
            before = json.loads(properties.get(STARTED_TO, "[null]"))
            found = _Interruption(max(0, int(properties[STARTED]) - _CLOCKS_DIFFER_MS), before)
        else:
            properties[STARTED] = str(self._client.context.now_ms())
        before = [] if found is None else found.to
        properties[STARTED_TO] = json.dumps([*before, *({self._to} - {*before})])
        await subscriptions.set_properties(self.dead_letters, SUBSCRIPTION, properties)
        self._recorded = properties
        return found

    async def _check_recorded(self, result: RedriveResult) -> None:
        """Raise `SubscriptionNotFound` if the subscription is not the one that this run began with. Called
        when messages begin to be delivered again: the run counts as interrupted from then on."""
        self._is_complete = False
        subscriptions = self._admin.subscriptions
        properties = await subscriptions.properties(self.dead_letters, SUBSCRIPTION)
        if STARTED in properties:
            return
        all_copies = {**self._recorded, STARTED: "0"}
        await subscriptions.set_properties(self.dead_letters, SUBSCRIPTION, all_copies)
        raise SubscriptionNotFound(
            f"the subscription {SUBSCRIPTION} of {self.dead_letters} was deleted during the redrive, and "
            f"with it the record of what was sent: stopped after {result.sent.total():,} messages; the next "
            "redrive looks for the copies in their topics and sends none of them again"
        )

    async def _end(self) -> None:
        subscriptions = self._admin.subscriptions
        properties = dict(await subscriptions.properties(self.dead_letters, SUBSCRIPTION))
        properties.pop(STARTED, None)
        properties.pop(STARTED_TO, None)
        await subscriptions.set_properties(self.dead_letters, SUBSCRIPTION, properties)

    async def _was_sent(self, message: Message[Any], interrupted: _Interruption) -> bool:
        """Return whether an interrupted run has sent this dead letter."""
        source = _source(message)
        for to in interrupted.to:
            with contextlib.suppress(InvalidTopicName):  # to such an origin nothing was sent
                if source in await self._copies(self._target(message, to), interrupted.since_ms):
                    return True
        return False

    async def _copies(self, target: str, since_ms: int) -> set[str]:
        """Return the sources of the copies in a topic."""
        found = self._sent_before.get(target)
        if found is None:
            found = self._sent_before[target] = set()
            if not await self._exists(target):
                return found
            async with await self._client.create_reader(
                target, start_time=since_ms, crypto_failure_action=ConsumerCryptoFailureAction.CONSUME
            ) as reader:
                while await reader.has_message_available():
                    found.add((await reader.read_next()).properties().get(REDRIVEN_FROM, ""))
        return found


def _source(message: Message[Any]) -> str:
    message_id = message.message_id()
    parts = (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
    return f"{message.topic_name()}@{':'.join(map(str, parts))}"


async def _nothing() -> None:
    pass


async def _until_now(
    consumer: Any, again: Callable[[], Awaitable[None]] = _nothing
) -> AsyncIterator[Message[Any]]:
    """Yield the consumer's messages up to the last ones that its topic has now, each once. ``again`` is
    called when messages begin to be delivered again, after a reconnect."""
    start = (-1, -1, -1)
    newest: dict[int, tuple[int, int, int]] = {}
    before: dict[int, tuple[int, int, int]] = {}
    ends = {each.partition(): each for each in await consumer.get_last_message_ids()}
    open_ends = {partition for partition, end in ends.items() if end.entry_id() >= 0}
    while open_ends:
        try:
            message = await consumer.receive(SILENCE_MILLIS)
        except Timeout:
            if consumer.is_connected():
                return
            continue  # the broker restarts
        message_id = message.message_id()
        end = ends[message_id.partition()]
        place = (message_id.ledger_id(), message_id.entry_id())
        if place > (end.ledger_id(), end.entry_id()):
            open_ends.discard(message_id.partition())
            continue
        position, partition = (*place, message_id.batch_index()), message_id.partition()
        if position <= before.get(partition, start):
            await again()
        before[partition] = position
        if position <= newest.get(partition, start):
            continue
        newest[partition] = position
        yield message
        if position == (end.ledger_id(), end.entry_id(), end.batch_index()):
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
