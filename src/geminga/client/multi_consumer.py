"""The handles of one consumer: a topic, the partitions of several topics, or what a pattern matches.

The parts are looked for again from time to time: new partitions and newly matching topics are
subscribed to from their beginning, since all of their messages are newer than the consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from geminga.client.consumer_handle import ConsumerHandle
from geminga.client.hub import ClientHub
from geminga.client.topic_set import Part, TopicSet
from geminga.client.topic_watcher import TopicWatcher
from geminga.consumer.core import ConsumerCore
from geminga.consumer.events import DeadLettered
from geminga.consumer.message import Message, ReceivedEntry
from geminga.consumer.queue import ReceiveQueue
from geminga.consumer.seek import is_end
from geminga.consumer.settings import ConsumerSettings, InitialPosition, RegexSubscriptionMode
from geminga.errors import NotConnected, OperationNotSupported, PulsarException, TopicNotFound
from geminga.ids import MessageId, TopicName

logger = logging.getLogger("geminga")


class HandleGroup:
    """Opens, finds and closes the handles. ``handles`` maps the full topic name to its handle."""

    def __init__(
        self,
        hub: ClientHub,
        topics: TopicSet,
        settings: ConsumerSettings,
        *,
        subscription: str,
        consumer_name: str,
        queue: ReceiveQueue,
        on_dead_letters: Callable[[ConsumerHandle, DeadLettered], None],
        on_failure: Callable[[ConsumerHandle, Exception], None],
        on_active: Callable[[int, bool], None],
        before_messages: Callable[[], None],
    ) -> None:
        self.handles: dict[str, ConsumerHandle] = {}
        self.whole_entries = False
        """Handles queue entries as they are, for readers of columns."""
        self.untouched_entries = False
        """Not even chunks are put together, and nothing is left out."""
        self._hub = hub
        self._topics = topics
        self._settings = settings
        self._subscription = subscription
        self._consumer_name = consumer_name
        self._queue = queue
        self._on_dead_letters = on_dead_letters
        self._on_failure = on_failure
        self._on_active = on_active
        self._before_messages = before_messages
        self._watcher: asyncio.Task[None] | None = None
        self._only: ConsumerHandle | None = None
        """The one handle where there never was another: whatever is said is about its topic."""
        self._topics_ever: set[str] = set()

    # --- opening and growing ---------------------------------------------------------------------

    async def open(self, timeout: float | None = None) -> None:
        """Subscribe to all parts that exist now. All or none: the first error closes the others."""
        await self._add(await self._topics.current(), self._settings, timeout)
        if self._topics.can_grow:
            self._watcher = self._hub.task(self._watch())

    async def _add(
        self, parts: Sequence[Part], settings: ConsumerSettings, timeout: float | None = None
    ) -> None:
        if self._topics.pattern is not None:
            # A topic that vanished between the list and here must not come back because of us.
            settings = dataclasses.replace(settings, force_topic_creation=False)
        share = self._share(len(self.handles) + len(parts))
        added = {part.topic: self._make(part, settings, share) for part in parts}
        try:
            results = await asyncio.gather(
                *(handle.driver.start(timeout) for handle in added.values()), return_exceptions=True
            )
        except asyncio.CancelledError:
            # Those that are attached already must not stay so, even if we are cancelled once more.
            await asyncio.shield(asyncio.gather(*(handle.close() for handle in added.values())))
            raise
        errors = []
        for (topic, handle), result in zip(list(added.items()), results, strict=True):
            if isinstance(result, TopicNotFound) and self._topics.pattern is not None:
                await added.pop(topic).close()
            elif isinstance(result, BaseException):
                errors.append(result)
                logger.debug("subscribing to %s failed: %s", handle.topic, result)
        if errors:
            await asyncio.gather(*(handle.close() for handle in added.values()))
            raise errors[0]
        self.handles.update(added)
        self._changed()

    def _make(self, part: Part, settings: ConsumerSettings, queue_size: int) -> ConsumerHandle:
        handle = ConsumerHandle(
            self._hub, settings, topic=part.topic, partition=part.partition,
            subscription=self._subscription, consumer_name=self._consumer_name, queue=self._queue,
            queue_size=queue_size, on_dead_letters=self._on_dead_letters, on_failure=self._failed,
            on_active=self._on_active,
            before_messages=self._before_messages,
        )  # fmt: skip
        handle.consumer.opener.whole = self.whole_entries
        handle.consumer.opener.untouched = self.untouched_entries
        return handle

    def receive_whole_entries(self) -> None:
        """From now on entries are queued as they are."""
        if not self.whole_entries:
            self.whole_entries = True
            for handle in self.handles.values():
                handle.consumer.opener.whole = True

    def _share(self, parts: int) -> int:
        """Each part's share of the receive queue (algorithms.md section 9)."""
        size = self._settings.receiver_queue_size
        if parts <= 1 or size == 0:
            return size
        total = self._settings.max_total_receiver_queue_size_across_partitions
        return max(1, min(size, total // parts))

    def _changed(self) -> None:
        self._topics_ever |= self.handles.keys()
        alone = len(self.handles) == len(self._topics_ever) == 1
        self._only = next(iter(self.handles.values())) if alone else None
        share = self._share(len(self.handles))
        for handle in self.handles.values():
            if handle.consumer.flow.queue_size != share:
                handle.consumer.resize_queue(share)
                handle.flush_soon()

    async def _watch(self) -> None:
        """Look for new parts once a period, and for topics of a pattern when the broker reports some."""
        settings, pattern = self._settings, self._topics.pattern
        changed = asyncio.Event()
        watcher = None
        period = settings.auto_update_partitions_seconds
        if pattern is not None:
            period = settings.pattern_auto_discovery_period
            if settings.regex_subscription_mode is not RegexSubscriptionMode.NonPersistentOnly:
                watcher = TopicWatcher(self._hub, pattern, changed.set)
        try:
            while True:
                if watcher is not None:
                    await watcher.ensure()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(period):
                        await changed.wait()
                changed.clear()
                try:
                    await self.refresh()
                except PulsarException as error:
                    logger.warning("looking for new topics of %s failed: %s", self._topics.text, error)
        finally:
            if watcher is not None:
                watcher.close()

    async def refresh(self) -> None:
        """Subscribe to parts that are new; leave topics that no longer match."""
        parts = await self._topics.current()
        names = {part.topic for part in parts}
        new = [part for part in parts if part.topic not in self.handles]
        settings = self._settings
        if settings.durable:
            settings = dataclasses.replace(settings, initial_position=InitialPosition.Earliest)
        else:
            settings = dataclasses.replace(settings, start_message_id=MessageId.earliest)
        if self._topics.pattern is not None:
            gone = [handle for topic, handle in self.handles.items() if topic not in names]
            for handle in gone:
                del self.handles[handle.topic]
                logger.info("%s is gone: its consumer is closed", handle.topic)
            await asyncio.gather(*(handle.close() for handle in gone))
            self._changed()
        if new:
            logger.info("new topics for %s: %s", self._subscription, ", ".join(part.topic for part in new))
            await self._add(new, settings)

    def _failed(self, handle: ConsumerHandle, error: Exception) -> None:
        self.handles.pop(handle.topic, None)
        self._changed()
        if self._topics.pattern is not None and isinstance(error, TopicNotFound):
            logger.info("%s was deleted: its consumer is closed", handle.topic)
            return
        self._on_failure(handle, error)

    # --- finding ---------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """There is one topic, and never was another of which messages may be left."""
        return self._only is not None

    @property
    def connected(self) -> bool:
        return bool(self.handles) and all(handle.connected for handle in self.handles.values())

    def want_one(self) -> None:
        """Queue size 0: a receiver waits; every part is asked, as any of them may have the next message."""
        for handle in self.handles.values():
            handle.consumer.want_one()
            handle.flush_soon()

    @property
    def starved(self) -> bool:
        """A part has no permits at the broker. May be asked on any thread."""
        return any(handle.consumer.starved for handle in list(self.handles.values()))

    def feed(self) -> None:
        """A receiver waits and some part is `starved`."""
        if self._settings.receiver_queue_size == 0:
            self.want_one()
        elif not self._queue:
            for handle in self.handles.values():
                if handle.consumer.starved:
                    handle.consumer.recover_permits()
                    handle.flush_soon()

    def by_handle(self, messages: list[Message[Any]]) -> Iterable[tuple[ConsumerHandle, list[Message[Any]]]]:
        """Messages by the handle that they came from, in order; without those whose handle is gone, or that
        another consumer received from a topic that this one does not read."""
        only = self._only
        if only is not None:
            if {message._entry.origin for message in messages} != {only.consumer.origin}:
                messages = _of_topic(only.topic, messages)
            return ((only, messages),)
        runs: dict[str, list[Message[Any]]] = {}
        for message in messages:
            topic = message._entry.origin.topic
            run = runs.get(topic)
            if run is None:
                runs[topic] = [message]
            else:
                run.append(message)
        return [(self.handles[topic], run) for topic, run in runs.items() if topic in self.handles]

    def took(self, message: Message[Any]) -> None:
        """A message left the queue: the permits that it carries go back to its consumer."""
        self.took_of(message._entry, (message._index,))

    def took_of(self, entry: ReceivedEntry, indexes: Iterable[int]) -> None:
        """Messages of an entry left the queue."""
        handle = self.handles.get(entry.origin.topic)
        if handle is not None:
            handle.consumer.took(entry, indexes)
            handle.flush_soon()

    def took_entries(self, entries: Sequence[ReceivedEntry]) -> None:
        """Whole entries left the queue."""
        for entry in entries:
            releases, entry.releases = entry.releases, None
            handle = self.handles.get(entry.origin.topic)
            if handle is not None and releases:
                handle.released(releases.values())

    def explode(self, entry: ReceivedEntry) -> Sequence[int]:
        """Open an entry that was queued whole: the indexes of its messages; none when it cannot be read or
        its topic is gone."""
        handle = self.handles.get(entry.origin.topic)
        if handle is None:
            return ()
        indexes = handle.consumer.explode(entry)
        handle.flush_soon()
        return indexes

    def handle_of_message(self, message: Message[Any]) -> ConsumerHandle:
        """Raises `OperationNotSupported` for a message of another consumer's topic."""
        topic = message._entry.origin.topic
        handle = self.handles.get(topic)
        if handle is None:
            raise OperationNotSupported(f"this consumer does not read {topic}")
        return handle

    def handle_of(self, message_id: MessageId) -> ConsumerHandle:
        """On any thread: the part that an id belongs to, by its topic, or by its partition where that is
        enough.

        Raises `OperationNotSupported` when that cannot be told.
        """
        only = self._only
        if only is not None and message_id.topic in ("", only.topic):
            return only
        handle = self.handles.get(message_id.topic)
        if handle is None and not message_id.topic and message_id.partition >= 0:
            matching = [h for h in list(self.handles.values()) if h.partition == message_id.partition]
            handle = matching[0] if len(matching) == 1 else None
        if handle is None and message_id.topic:
            name = TopicName.parse(message_id.topic)
            handle = self.handles.get(str(name))
            if handle is None and message_id.partition >= 0:
                handle = self.handles.get(str(name.base.partition_name(message_id.partition)))
            if handle is None:
                raise OperationNotSupported(f"this consumer does not read {name}, of which {message_id} is")
        if handle is None:
            raise OperationNotSupported(
                f"{message_id} does not tell to which of the {len(self.handles)} topics or partitions it "
                "belongs: use the message, or the id that it gives"
            )
        return handle

    def targets_of(self, target: MessageId | int) -> list[ConsumerHandle]:
        """The handles that a seek concerns."""
        if not self.handles:
            raise NotConnected(f"{self._topics.text} has no topic at the moment")
        if isinstance(target, MessageId) and not is_end(target):
            return [self.handle_of(target)]
        return list(self.handles.values())

    # --- the end ---------------------------------------------------------------------------------

    async def unsubscribe(self, force: bool) -> None:
        """Remove the subscription from every part. Raises the first error after all were tried."""
        await self._stop_watching()
        results = await asyncio.gather(
            *(handle.unsubscribe(force) for handle in self.handles.values()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def begin_drain(self) -> None:
        """Nothing more is to come, new topics neither."""
        await self._stop_watching()
        for core in self.cores():
            core.begin_drain()

    def cores(self) -> list[ConsumerCore]:
        """Of all handles that there are now."""
        return [handle.consumer for handle in self.handles.values()]

    def abandon(self) -> None:
        """End at once, without a word to the broker."""
        if self._watcher is not None:
            self._watcher.cancel()
        for handle in list(self.handles.values()):
            handle.abandon()

    async def close(self) -> None:
        await self._stop_watching()
        await asyncio.gather(*(handle.close() for handle in self.handles.values()))

    async def _stop_watching(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])


def _of_topic(topic: str, messages: list[Message[Any]]) -> list[Message[Any]]:
    """Those of the topic. Ids mean something in their own topic alone: of another one they may name what was
    never processed."""
    here = [message for message in messages if message._entry.origin.topic == topic]
    if len(here) < len(messages):
        others = {message._entry.origin.topic for message in messages} - {topic}
        logger.warning(
            "acknowledgements of %d messages of %s are dropped: the consumer reads %s alone",
            len(messages) - len(here), ", ".join(sorted(others)), topic,
        )  # fmt: skip
    return here
