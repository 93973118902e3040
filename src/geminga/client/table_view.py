"""A table view: the newest value of every key of a topic, held in memory and kept up to date."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from geminga.client import forks
from geminga.client.context import ClientContext
from geminga.client.reader import AsyncReader, create_reader
from geminga.client.runtime import LoopThread
from geminga.client.tasks import OnceTask
from geminga.consumer.settings import ReaderSettings
from geminga.errors import AlreadyClosed, OperationNotSupported, PulsarException
from geminga.ids import MessageId, TopicName
from geminga.schema import Schema
from geminga.values import T_co

if TYPE_CHECKING:
    from geminga.client.message import Message

logger = logging.getLogger("geminga")

Listener = Callable[[str, Any], None]
AsyncListener = Callable[[str, Any], object]
"""A plain function, or one that returns what is awaited."""

PARTITIONS_SECONDS = 60.0
"""So often a view of a partitioned topic looks for partitions that were added, as consumers do."""
CHANGES_MAX = 1000
"""Changes that wait for listeners; when there are as many, the view reads no further until some are told."""


class _Listening:
    """One listener. It is told what the view held when it came, and from then on every change, in order and
    one after the other: changes wait until what was there is told."""

    def __init__(self, callback: AsyncListener, caught_up: asyncio.Future[None]) -> None:
        self.callback: Any = callback
        self.caught_up = caught_up


@dataclass(frozen=True, slots=True)
class _Change:
    """A key's new value, None where it was removed, and who listened at that moment."""

    key: str
    kept: bytes | _Kept | None
    listeners: tuple[_Listening, ...]


class AsyncTableView(Generic[T_co]):
    """The newest value of every key, for asyncio programs; it iterates like a dict.

    Made by `geminga.asyncio.Client.create_table_view`. One reader a partition feeds one dict, and partitions
    that are added later join. Where a key is in several partitions, for there were fewer once, what was
    published last counts. A message without a key is left out; an empty or null value removes its key.
    ``values`` is changed on the loop's thread, by single operations of a dict, and may be read on any other.
    Listeners are called on the loop, and awaited where they are coroutine functions; for the sync shell
    (``threaded``) on a thread.
    """

    def __init__(
        self,
        context: ClientContext,
        topic: str,
        subscription: str | None,
        schema: Schema,
        *,
        threaded: bool = False,
    ) -> None:
        self.topic = topic
        self._threaded = threaded
        self.subscription = subscription
        self.schema = schema
        self.values: dict[str, bytes | _Kept] = {}
        self._context = context
        self._readers: dict[str, AsyncReader[Any]] = {}
        self._places: dict[str, tuple[str, int]] | None = None
        """While partitions are read side by side: which one a key's newest message is in, and when that was
        published. A key that was removed has such a place, too."""
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = OnceTask(context.loop)
        self._listeners: tuple[_Listening, ...] = ()
        self._changes: asyncio.Queue[_Change] = asyncio.Queue(CHANGES_MAX)

    async def open(self) -> None:
        """Read all that the topic holds now, then go on in the background."""
        try:
            topics = await self._context.partition_topics(self.topic)
            readers = [await self._read(topic) for topic in topics]
            self._places = {} if len(readers) > 1 else None
            await asyncio.gather(*(self._catch_up(reader) for reader in readers))
            self._places = None
        except BaseException:
            await self.close()
            raise
        self._tasks = [self._context.task(self._follow(reader)) for reader in readers]
        self._tasks.append(self._context.task(self._tell_changes()))
        if topics != [str(TopicName.parse(self.topic))]:
            self._tasks.append(self._context.task(self._watch()))

    async def _read(self, topic: str) -> AsyncReader[Any]:
        settings = ReaderSettings(is_read_compacted=True, subscription_name=self.subscription)
        reader = await create_reader(self._context, topic, MessageId.earliest, settings)
        self._readers[topic] = reader
        return reader

    async def _watch(self) -> None:
        """Follow partitions that are added."""
        while True:
            await asyncio.sleep(PARTITIONS_SECONDS)
            try:
                for topic in await self._context.partition_topics(self.topic):
                    if topic not in self._readers:
                        self._tasks.append(self._context.task(self._follow(await self._read(topic))))
            except PulsarException as error:
                logger.warning("looking for new partitions of %s failed: %s", self.topic, error)
            except Exception:  # the next time may go better, and nobody else would look
                logger.exception("looking for new partitions of %s failed", self.topic)

    async def close(self) -> None:
        """Stop following the topic; the values stay readable. Cancelling a call does not take it back."""
        await self._ending.wait(self._close)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(each.close() for each in self._readers.values()), return_exceptions=True)
        self._context.unregister(self)

    def abort(self) -> None:
        """End at once, without a word to the broker."""
        self._context.unregister(self)
        for task in self._tasks:
            task.cancel()
        for reader in self._readers.values():
            reader.abort()

    async def listen(self, callback: AsyncListener) -> tuple[_Listening, dict[str, bytes | _Kept]]:
        """Have ``callback`` told of changes from now on, as soon as `caught_up` is called; returns what the
        view holds at this moment."""
        listening = _Listening(callback, self._context.loop.create_future())
        self._listeners += (listening,)
        return listening, dict(self.values)

    def caught_up(self, listening: _Listening, heard: bool) -> None:
        """The listener has been told what the view held; not ``heard``: it raised, and is told no more."""
        if not heard:
            self._listeners = tuple(other for other in self._listeners if other is not listening)
            listening.caught_up.cancel()
        elif not listening.caught_up.done():
            listening.caught_up.set_result(None)

    async def _catch_up(self, reader: AsyncReader[Any]) -> None:
        while await reader.has_message_available():
            self._apply(await self._next(reader))

    async def _next(self, reader: AsyncReader[Any]) -> Message[Any]:
        message = await reader.read_next()
        if self.schema.reads_versions and not self._threaded:
            await self._context.schemas.prepare(message)  # decoding on the loop must not have to ask
        return message

    async def _follow(self, reader: AsyncReader[Any]) -> None:
        try:
            while True:
                change = self._apply(await self._next(reader))
                if change is not None and change.listeners:
                    await self._changes.put(change)
        except AlreadyClosed:
            return
        except PulsarException as error:
            logger.error("the table view of %s follows %s no further: %s", self.topic, reader.topic(), error)

    def _apply(self, message: Message[Any]) -> _Change | None:
        if not message.has_partition_key():
            return None
        key, data = message.partition_key(), message.data()
        if self._places is not None and not self._is_newest(key, message):
            return None
        kept: bytes | _Kept | None = None
        if message.has_null_value() or not data:
            self.values.pop(key, None)
        else:
            self.values[key] = kept = _Kept(message) if self.schema.reads_versions else data
        return _Change(key, kept, self._listeners)

    def _is_newest(self, key: str, message: Message[Any]) -> bool:
        """Within a partition the later message is the newer one, whatever its producer's clock said."""
        assert self._places is not None
        here = message.topic_name(), message.publish_timestamp()
        place = self._places.get(key, here)
        if place[0] != here[0] and place[1] > here[1]:
            return False
        self._places[key] = here
        return True

    async def _tell_changes(self) -> None:
        while True:
            change = await self._changes.get()
            for listening in change.listeners:
                await asyncio.wait([listening.caught_up])
                if listening.caught_up.cancelled():
                    continue
                if self._threaded:
                    # Off the loop: listeners are the application's code and may take their time.
                    await self._context.loop.run_in_executor(None, self._tell, listening.callback, change)
                else:
                    await self._tell_here(listening.callback, change)

    def decode(self, kept: bytes | _Kept) -> Any:
        """The value of what is kept for a key. For the sync shell not on the loop's thread: it may ask for a
        schema version."""
        if isinstance(kept, _Kept):
            return self.schema.decode_message(kept)
        return self.schema.decode(kept)

    def _tell(self, callback: Listener, change: _Change) -> None:
        forks.thread_is_ours()
        try:
            callback(change.key, self._value_of(change))
            forks.returned()
        except BaseException as error:  # SystemExit too: it would end the telling and nothing else
            forks.returned(error)
            logger.exception("a table view listener of %s failed", self.topic)

    async def _tell_here(self, callback: AsyncListener, change: _Change) -> None:
        try:
            await _called(callback, change.key, self._value_of(change))
        except Exception:
            logger.exception("a table view listener of %s failed", self.topic)

    def _value_of(self, change: _Change) -> Any:
        return self._removed_value() if change.kept is None else self.decode(change.kept)

    def _removed_value(self) -> Any:
        """What a listener gets for a key that was removed: the schema's value of no bytes, as in
        ``pulsar-client`` (``b""``, an empty text), and None where it has none."""
        try:
            return self.schema.decode(b"")
        except Exception:
            return None

    # --- what asyncio programs call ----------------------------------------------------------------

    def get(self, key: str) -> T_co | None:
        """The value of a key, None when there is none."""
        kept = self.values.get(key)
        return None if kept is None else self.decode(kept)

    async def for_each(self, callback: Callable[[str, T_co], object]) -> None:
        """Call ``callback(key, value)`` for all that the view holds now, one after the other."""
        for key, kept in dict(self.values).items():
            await _called(callback, key, self.decode(kept))

    async def for_each_and_listen(self, callback: Callable[[str, T_co], object]) -> None:
        """`for_each`, and then ``callback`` again for every later change; see `TableView`."""
        listening, snapshot = await self.listen(callback)
        heard = False
        try:
            for key, kept in snapshot.items():
                await _called(callback, key, self.decode(kept))
            heard = True
        finally:
            self.caught_up(listening, heard)

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, key: object) -> bool:
        return key in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.values))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __str__(self) -> str:
        subscription = "" if self.subscription is None else f", subscription={self.subscription}"
        return f"TableView(topic={self.topic}{subscription})"

    __repr__ = __str__


async def _called(callback: AsyncListener, key: str, value: Any) -> None:
    outcome = callback(key, value)
    if inspect.isawaitable(outcome):
        await outcome


class _Kept:
    """What decoding a message needs, for schemas that look at more than the payload."""

    __slots__ = ("_base64", "_data", "_key", "_topic", "_version")

    def __init__(self, message: Message[Any]) -> None:
        self._data = message.data()
        self._topic = message.topic_name()
        self._version = message.schema_version()
        self._key = message.partition_key()
        self._base64 = message.partition_key_is_base64()

    def data(self) -> bytes:
        return self._data

    def topic_name(self) -> str:
        return self._topic

    def schema_version(self) -> str:
        return self._version

    def has_null_value(self) -> bool:
        return False

    def has_partition_key(self) -> bool:
        return True

    def partition_key(self) -> str:
        return self._key

    def partition_key_is_base64(self) -> bool:
        return self._base64


async def open_table_view(
    context: ClientContext, topic: str, subscription: str | None, schema: Schema, *, threaded: bool = False
) -> AsyncTableView[Any]:
    """Raises `OperationNotSupported` for a topic that is not persistent: it keeps nothing to view."""
    if not TopicName.parse(topic).persistent:
        raise OperationNotSupported(f"a table view needs a persistent topic, not {topic!r}")
    view = AsyncTableView(context, topic, subscription, schema, threaded=threaded)
    await view.open()
    return view


class TableView(Generic[T_co]):
    """The newest value of every key; methods are ``pulsar-client``'s, and it iterates like a dict."""

    def __init__(self, runtime: LoopThread, view: AsyncTableView[Any]) -> None:
        self._runtime = runtime
        self._view = view

    def get(self, key: str) -> T_co | None:
        """The value of a key, None when there is none."""
        kept = self._view.values.get(key)
        return None if kept is None else self._view.decode(kept)

    def for_each(self, callback: Callable[[str, T_co], object]) -> None:
        """Call ``callback(key, value)`` for all that the view holds now."""
        self._tell(callback, dict(self._view.values))

    def for_each_and_listen(self, callback: Callable[[str, T_co], object]) -> None:
        """`for_each`, and then ``callback`` again for every later change, on another thread.

        The callback hears each key's values in their order and never twice at a time. A key that is removed
        has the schema's value of no bytes: ``b""``, an empty text, or None. What the callback raises here is
        raised, and it is not called again; what it raises later is logged.
        """
        listening, snapshot = self._runtime.call(self._view.listen(callback))
        heard = False
        try:
            self._tell(callback, snapshot)
            heard = True
        finally:
            self._runtime.post(self._view.caught_up, listening, heard)

    def _tell(self, callback: Callable[[str, T_co], object], snapshot: dict[str, bytes | _Kept]) -> None:
        for key, kept in snapshot.items():
            callback(key, self._view.decode(kept))

    def close(self) -> None:
        """Stop following the topic; the values stay readable."""
        if not self._runtime.closed:
            self._runtime.call(self._view.close())

    def __len__(self) -> int:
        return len(self._view.values)

    def __contains__(self, key: object) -> bool:
        return key in self._view.values

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._view.values))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return str(self._view)

    __repr__ = __str__
