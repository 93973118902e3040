"""The handles of one consumer: for a topic, the partitions of several topics, or a pattern's matches.

New partitions and newly matching topics are looked for periodically and subscribed to from their beginning,
since all of their messages are newer than the consumer.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from geminga.client.handles.consumer_handle import ConsumerHandle, HandleOwner
from geminga.client.handles.context import MAYBE_PARTITIONED, ClientContext
from geminga.client.receive.topic_set import SubscribedPart, TopicSet
from geminga.client.receive.topic_watcher import TopicWatcher
from geminga.consumer.core import ConsumerCore
from geminga.consumer.message import ConsumerOrigin, Message, ReceivedEntry, origin_of, origins_of, place_of
from geminga.consumer.seek import is_end
from geminga.consumer.settings import ConsumerSettings, InitialPosition, RegexSubscriptionMode
from geminga.errors import NotConnected, OperationNotSupported, PulsarException, TopicNotFound
from geminga.ids import MessageId, TopicName

logger = logging.getLogger("geminga")

SEEKS_IN_FLIGHT = 256
"""Handles of a group that seek at the same time: with thousands, processor caches hold no longer what each
needs, and a seek costs half as much again."""


class HandleGroup:
    """Group that opens, finds and closes the handles. ``handles`` maps the full topic name to its handle."""

    def __init__(
        self, context: ClientContext, topics: TopicSet, settings: ConsumerSettings, owner: HandleOwner
    ) -> None:
        self.handles: dict[str, ConsumerHandle] = {}
        self.whole_entries = False
        """Whether handles queue undivided entries, for columnar readers."""
        self.untouched_entries = False
        """Whether entries are queued as stored: chunks are not assembled, and none is skipped."""
        self.seeks_first = False
        """Whether handles that are made get no permits before their first seek."""
        self._context = context
        self._topics = topics
        self._settings = settings
        self._owner = owner
        self._watcher: asyncio.Task[None] | None = None

    # --- opening and growing ---------------------------------------------------------------------

    async def open(self, timeout: float | None = None) -> None:
        """Subscribe to all existing parts. The first error closes the others and is raised."""
        unasked = self._topics.unasked()
        with contextlib.suppress(*MAYBE_PARTITIONED):
            if unasked:
                return await self._add(unasked, self._settings, timeout)
        await self._add(await self._topics.current(), self._settings, timeout)
        if self._topics.can_grow:
            self._watcher = self._context.task(self._watch())

    async def _add(
        self, parts: Sequence[SubscribedPart], settings: ConsumerSettings, timeout: float | None
    ) -> None:
        """Subscribe to all parts. The first error closes the others and is raised."""
        added, errors = await self._start(parts, settings, timeout)
        if errors:
            for handle in added:
                self.handles.pop(handle.topic, None)
            await asyncio.gather(*(handle.close() for handle in added))
            raise errors[0]

    async def _grow(self, parts: Sequence[SubscribedPart], settings: ConsumerSettings) -> None:
        """Subscribe to as many parts as possible: a refused one is retried at the next search for parts."""
        added, errors = await self._start(parts, settings, None)
        if added:
            topics = ", ".join(handle.topic for handle in added)
            logger.info("new topics for %s: %s", self._owner.subscription, topics)
        if errors:
            logger.warning(
                "%d new topics of %s cannot be subscribed to for now; the first: %s",
                len(errors), self._topics.text, errors[0],
            )  # fmt: skip

    async def _start(
        self, parts: Sequence[SubscribedPart], settings: ConsumerSettings, timeout: float | None
    ) -> tuple[list[ConsumerHandle], list[Exception]]:
        """Subscribe to each: those that stand, and why others do not. One that has vanished is neither."""
        if self._topics.pattern is not None:
            # A topic deleted since the listing must not be created again by this consumer.
            settings = dataclasses.replace(settings, force_topic_creation=False)
        share = self._share(len(self.handles) + len(parts))
        made = [self._make(part, settings, share) for part in parts]
        added: list[ConsumerHandle] = []
        errors: list[Exception] = []

        async def start(handle: ConsumerHandle) -> None:
            try:
                await handle.driver.start(timeout)
            except Exception as error:
                await handle.close()
                if self._topics.pattern is None or not isinstance(error, TopicNotFound):
                    errors.append(error)
                    logger.debug("subscribing to %s failed: %s", handle.topic, error)
                return
            # At once: its messages arrive while others are still being subscribed to, and are acknowledged.
            self.handles[handle.topic] = handle
            added.append(handle)

        starting = start(made[0]) if len(made) == 1 else asyncio.gather(*map(start, made))
        try:
            await starting
        except asyncio.CancelledError:
            # Close the handles that are attached already, even if this task is cancelled once more.
            for handle in made:
                self.handles.pop(handle.topic, None)
            await asyncio.shield(asyncio.gather(*(handle.close() for handle in made)))
            raise
        self._changed()
        return added, errors

    def _make(self, part: SubscribedPart, settings: ConsumerSettings, queue_size: int) -> ConsumerHandle:
        handle = ConsumerHandle(
            self._context, settings, self._owner, self.failed,
            topic=part.topic, partition=part.partition, queue_size=queue_size,
        )  # fmt: skip
        handle.consumer.awaits_seek = self.seeks_first
        handle.consumer.opener.whole = self.whole_entries
        handle.consumer.opener.untouched = self.untouched_entries
        return handle

    def receive_whole_entries(self) -> None:
        """Queue undivided entries from now on."""
        if not self.whole_entries:
            self.whole_entries = True
            for handle in self.handles.values():
                handle.consumer.opener.whole = True

    def _share(self, parts: int) -> int:
        """Return each part's share of the receive queue (algorithms.md section 9)."""
        size = self._settings.receiver_queue_size
        if parts <= 1 or size == 0:
            return size
        total = self._settings.max_total_receiver_queue_size_across_partitions
        return max(1, min(size, total // parts))

    def _changed(self) -> None:
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
                watcher = TopicWatcher(self._context, pattern, changed.set)
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
                except Exception:  # the next try may succeed, and nothing else looks for topics
                    logger.exception("looking for new topics of %s failed", self._topics.text)
        finally:
            if watcher is not None:
                watcher.close()

    async def refresh(self) -> None:
        """Subscribe to new parts; close the consumers of topics that no longer match."""
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
            if gone:
                self._owner.before_messages()  # process acknowledgements while the handles exist
            for handle in gone:
                del self.handles[handle.topic]
                logger.info("%s does not exist any more: its consumer is closed", handle.topic)
            await asyncio.gather(*(handle.close() for handle in gone))
            self._changed()
        if new:
            await self._grow(new, settings)

    def failed(self, handle: ConsumerHandle, error: Exception) -> None:
        """Note that reconnecting has failed for good."""
        self.handles.pop(handle.topic, None)
        self._changed()
        if self._topics.pattern is not None and isinstance(error, TopicNotFound):
            logger.info("%s was deleted: its consumer is closed", handle.topic)
            return
        self._owner.on_failure(handle, error)

    # --- finding ---------------------------------------------------------------------------------

    @property
    def _only(self) -> ConsumerHandle | None:
        """The handle of a consumer that reads one topic, and never another whose messages may remain."""
        if self._topics.can_grow or len(self._topics.topics) > 1:
            return None
        return next(iter(self.handles.values()), None)

    @property
    def is_alone(self) -> bool:
        """Whether there is one topic, and never was another whose messages may remain."""
        return self._only is not None

    @property
    def connected(self) -> bool:
        return bool(self.handles) and all(handle.connected for handle in self.handles.values())

    @property
    def can_grow(self) -> bool:
        """Whether this looks for parts from time to time, and so subscribes to a failed one again."""
        return self._topics.can_grow

    @property
    def starved(self) -> bool:
        """Whether a part without a queue has no permits at the broker. May be read on any thread."""
        if self._settings.receiver_queue_size:
            return False
        for handle in list(self.handles.values()):  # noqa: SIM110 - a generator costs more for one part
            if handle.consumer.starved:
                return True
        return False

    def feed(self) -> None:
        """Request messages from `starved` parts for a waiting receiver."""
        for handle in self.handles.values():
            if handle.consumer.starved:
                handle.consumer.want_one()
                handle.flush_soon()

    def by_handle(self, messages: list[Message[Any]]) -> Iterable[tuple[ConsumerHandle, list[Message[Any]]]]:
        """Return messages in runs of one origin each, with the handle that reads their topic, in order. Skip
        messages whose handle is closed, or of topics that this consumer does not read."""
        only = self._only
        if only is not None:
            if origins_of(messages) == {only.consumer.origin}:
                return ((only, messages),)
            messages = _of_topic(only.topic, messages)
        runs: dict[ConsumerOrigin, list[Message[Any]]] = {}
        for message in messages:
            runs.setdefault(origin_of(message), []).append(message)
        handles = self.handles
        return [(handles[origin.topic], run) for origin, run in runs.items() if origin.topic in handles]

    def took(self, message: Message[Any]) -> None:
        """Return a taken message's permits to its consumer."""
        entry, index = place_of(message)
        self.took_of(entry, (index,))

    def took_of(self, entry: Any, indexes: Iterable[Any]) -> None:
        """Return the permits of an entry's taken messages to its consumer."""
        handle = self.handles.get(entry.origin.topic)
        if handle is not None:
            handle.consumer.took(entry, indexes)
            handle.flush_soon()

    def took_entries(self, entries: Sequence[ReceivedEntry]) -> None:
        """Return the permits of whole entries that were taken."""
        for entry in entries:
            releases, entry.releases = entry.releases, None
            handle = self.handles.get(entry.origin.topic)
            if handle is not None and releases:
                handle.released(releases.values())

    def explode(self, entry: ReceivedEntry) -> Sequence[int]:
        """Split an undivided entry and return the indexes of its messages; none if the entry is unreadable or
        its topic is closed."""
        handle = self.handles.get(entry.origin.topic)
        if handle is None:
            return ()
        indexes = handle.consumer.explode(entry)
        handle.flush_soon()
        return indexes

    def handle_of(self, message_id: MessageId) -> ConsumerHandle:
        """Return the handle that an id belongs to, by its topic, or by its partition if that suffices; on any
        thread. Raises `OperationNotSupported` if it is ambiguous."""
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
                raise OperationNotSupported(f"this consumer does not read {name}, the topic of {message_id}")
        if handle is None:
            raise OperationNotSupported(
                f"{message_id} does not identify one of the {len(self.handles)} topics or partitions: "
                "use the message, or its message_id()"
            )
        return handle

    async def seek(self, target: MessageId | int) -> None:
        """Move the subscription: all handles, or the one that a message id belongs to. Raises the first
        error; then handles whose turn has not come stay where they are."""
        if not self.handles:
            raise NotConnected(f"{self._topics.text} has no topic at the moment")
        if isinstance(target, MessageId) and not is_end(target):
            return await self.handle_of(target).seek(target)
        waiting = list(self.handles)

        async def seek_in_turn() -> None:
            try:
                while waiting:
                    if handle := self.handles.get(waiting.pop()):
                        await handle.seek(target)
            except BaseException:
                waiting.clear()
                raise

        await asyncio.gather(*(seek_in_turn() for _ in waiting[:SEEKS_IN_FLIGHT]))

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
        """Stop fetching messages and looking for new topics."""
        await self._stop_watching()
        for core in self.cores():
            core.begin_drain()

    def cores(self) -> list[ConsumerCore]:
        """Return the cores of all current handles."""
        return [handle.consumer for handle in self.handles.values()]

    def abort(self) -> None:
        """Close at once, without notifying the broker."""
        if self._watcher is not None:
            self._watcher.cancel()
        for handle in list(self.handles.values()):
            handle.abort()

    async def close(self) -> None:
        await self._stop_watching()
        await asyncio.gather(*(handle.close() for handle in self.handles.values()))

    async def _stop_watching(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])


def _of_topic(topic: str, messages: list[Message[Any]]) -> list[Message[Any]]:
    """Return the messages of the topic. An id of another topic could acknowledge an unprocessed message
    here."""
    here = [message for message in messages if message.topic_name() == topic]
    if len(here) < len(messages):
        others = {message.topic_name() for message in messages} - {topic}
        logger.warning(
            "acknowledgements of %d messages of %s are dropped: the consumer reads only %s",
            len(messages) - len(here), ", ".join(sorted(others)), topic,
        )  # fmt: skip
    return here
