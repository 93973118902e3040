"""A table view: the newest value of every key of a topic, held in memory and kept up to date."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple

from geminga._util.values import T_co
from geminga.client.handles.context import ClientContext
from geminga.client.io.delegation import AsyncClosing, Closing
from geminga.client.io.runtime import LoopThread
from geminga.client.io.tasks import OnceTask
from geminga.client.receive.reader import AsyncReader, create_reader
from geminga.consumer.message import Message
from geminga.consumer.settings import ReaderSettings
from geminga.errors import AlreadyClosed, IncompatibleSchema, OperationNotSupported, PulsarException
from geminga.ids import MessageId, TopicName
from geminga.schema import Schema

logger = logging.getLogger("geminga")

AsyncListener = Callable[[str, Any], object]
"""Plain function, or one that returns an awaitable."""

CHANGES_MAX = 1000
"""Limit of changes queued for listeners; at the limit the view stops reading until listeners have run."""


class _Listening(NamedTuple):
    """One listener: receives the view's content at its registration, and then every change, in order and one
    at a time; changes wait until the content is delivered."""

    callback: Any
    caught_up: asyncio.Future[None]


class _Change(NamedTuple):
    """New value of a key, None if it was removed, and the listeners registered at that moment."""

    key: str
    kept: bytes | _Kept | None
    listeners: tuple[_Listening, ...]


class AsyncTableView(AsyncClosing, Generic[T_co]):
    """The newest value of every key, for asyncio programs; iterates like a dict.

    Made by `geminga.asyncio.Client.create_table_view`. A reader of all partitions feeds one dict. If several
    partitions hold a key, because the topic once had fewer, the value published last counts. A message
    without a key is skipped; an empty or null value removes its key. ``values`` is changed on the loop's
    thread, by single dict operations, and may be read on any other thread. Listeners are called on the loop,
    and awaited if they are coroutine functions; for the synchronous API (``threaded``) they run on another
    thread. A partition that fails is read again at the next search for partitions; the others are followed
    meanwhile. The view waits at a message whose schema version cannot be fetched.
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
        self._reader: AsyncReader[Any] | None = None
        self._newest: dict[str, tuple[str, int]] | None = None
        """Partition and publish time of each key's newest message, removed keys included, while several
        partitions are first read in parallel."""
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = OnceTask(context.loop)
        self._listeners: tuple[_Listening, ...] = ()
        self._changes: asyncio.Queue[_Change] = asyncio.Queue(CHANGES_MAX)

    async def open(self) -> None:
        """Read all that the topic holds now, then continue in the background."""
        settings = ReaderSettings(is_read_compacted=True, subscription_name=self.subscription)
        try:
            reader = await create_reader(self._context, self.topic, MessageId.earliest, settings)
            self._reader = reader
            self._newest = {} if len(reader.consumer.group.handles) > 1 else None
            while await reader.has_message_available():
                for message in await reader.read_several():
                    if self.schema.reads_versions:
                        await self._prepare(message)
                    self._apply(message)
            self._newest = None
        except BaseException:
            await self.close()
            raise
        self._tasks = [self._context.task(self._follow(reader)), self._context.task(self._notify_changes())]

    async def close(self) -> None:
        """Stop following the topic; the values stay readable. A cancelled call still completes."""
        await self._ending.wait(self._close)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._reader is not None:
            with contextlib.suppress(Exception):
                await self._reader.close()
        self._context.unregister(self)

    def abort(self) -> None:
        """Close at once, without notifying the broker."""
        self._context.unregister(self)
        for task in self._tasks:
            task.cancel()
        if self._reader is not None:
            self._reader.abort()

    def loop_ended(self, reason: AlreadyClosed) -> None:
        """Do nothing: `get` returns the values that were read."""

    async def listen(self, callback: AsyncListener) -> tuple[_Listening, dict[str, bytes | _Kept]]:
        """Register ``callback`` for changes from now on, delivered after `caught_up`; return the view's
        content at this moment."""
        listening = _Listening(callback, self._context.loop.create_future())
        self._listeners += (listening,)
        return listening, dict(self.values)

    def caught_up(self, listening: _Listening, succeeded: bool) -> None:
        """Start a listener's changes after the view's content was delivered; drop the listener unless
        ``succeeded``."""
        if not succeeded:
            self._listeners = tuple(other for other in self._listeners if other is not listening)
            listening.caught_up.cancel()
        elif not listening.caught_up.done():
            listening.caught_up.set_result(None)

    async def _prepare(self, message: Message[Any], *, retries: bool = False) -> None:
        """Fetch the schema version of a message: decoding must not wait. Raises the error of the request, or
        repeats the request. A broken version, which no schema can have, is left to `decode`, which raises."""
        backoff = None
        while (error := await self._context.schemas.prepare(message)) is not None:
            if isinstance(error, IncompatibleSchema):
                return
            if not retries or isinstance(error, AlreadyClosed):
                raise error
            backoff = backoff or self._context.backoff()
            await asyncio.sleep(backoff.next())

    async def _follow(self, reader: AsyncReader[Any]) -> None:
        while True:
            try:
                for message in await reader.read_several():
                    if self.schema.reads_versions:
                        await self._prepare(message, retries=True)
                    change = self._apply(message)
                    if change is not None:
                        await self._changes.put(change)
            except AlreadyClosed:
                return
            except PulsarException as error:
                if not reader.consumer.group.can_grow:
                    logger.error("the table view of %s is no longer updated: %s", self.topic, error)
                    return
                reader.consumer.failure = None  # the others are read; the failed one is subscribed to again

    def _apply(self, message: Message[Any]) -> _Change | None:
        """Note a message; return the change if there are listeners for it."""
        key = message.partition_key()
        if not key and not message.has_partition_key():
            return None
        if self._newest is not None:
            # Within a partition the later message is the newer one, regardless of publish times.
            here = message.topic_name(), message.publish_timestamp()
            known = self._newest.get(key, here)
            if known[0] != here[0] and known[1] > here[1]:
                return None
            self._newest[key] = here
        kept: bytes | _Kept | None = None
        data = message.data()
        if not data:  # a null value has none either
            self.values.pop(key, None)
        else:
            self.values[key] = kept = _Kept(message) if self.schema.reads_versions else data
        return _Change(key, kept, self._listeners) if self._listeners else None

    async def _notify_changes(self) -> None:
        while True:
            change = await self._changes.get()
            for listening in change.listeners:
                await asyncio.wait([listening.caught_up])
                if listening.caught_up.cancelled():
                    continue
                if self._threaded:
                    # Off the loop: listeners are the application's code and may be slow.
                    await self._context.loop.run_in_executor(None, self._notify, listening.callback, change)
                else:
                    await self._notify_here(listening.callback, change)

    def decode(self, kept: bytes | _Kept) -> Any:
        """Decode the value kept for a key."""
        if isinstance(kept, _Kept):
            return self.schema.decode_message(kept)
        return self.schema.decode(kept)

    def _notify(self, callback: AsyncListener, change: _Change) -> None:
        try:
            callback(change.key, self._value_of(change))
        except BaseException:  # SystemExit too: it would only stop further notifications
            logger.exception("a table view listener of %s failed", self.topic)

    async def _notify_here(self, callback: AsyncListener, change: _Change) -> None:
        try:
            await _called(callback, change.key, self._value_of(change))
        except Exception:
            logger.exception("a table view listener of %s failed", self.topic)

    def _value_of(self, change: _Change) -> Any:
        """Return the value for listeners. For a removed key it is the schema's value of no bytes, as in
        ``pulsar-client`` (``b""``, an empty text), or None if the schema cannot decode that."""
        if change.kept is not None:
            return self.decode(change.kept)
        with contextlib.suppress(Exception):
            return self.schema.decode(b"")
        return None

    # --- public asyncio API --------------------------------------------------------------------------

    def get(self, key: str) -> T_co | None:
        """Return the value of a key, None if the view has no such key."""
        kept = self.values.get(key)
        return None if kept is None else self.decode(kept)

    async def for_each(self, callback: Callable[[str, T_co], object]) -> None:
        """Call ``callback(key, value)`` for each key that the view holds now, one after the other."""
        for key, kept in dict(self.values).items():
            await _called(callback, key, self.decode(kept))

    async def for_each_and_listen(self, callback: Callable[[str, T_co], object]) -> None:
        """Call ``callback`` for each key, and then for every later change; see `TableView`."""
        listening, snapshot = await self.listen(callback)
        delivered = False
        try:
            for key, kept in snapshot.items():
                await _called(callback, key, self.decode(kept))
            delivered = True
        finally:
            self.caught_up(listening, delivered)

    def __len__(self) -> int:
        return len(self.values)

    def __contains__(self, key: object) -> bool:
        return key in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.values))

    def __str__(self) -> str:
        subscription = "" if self.subscription is None else f", subscription={self.subscription}"
        return f"TableView(topic={self.topic}{subscription})"

    __repr__ = __str__


async def _called(callback: AsyncListener, key: str, value: Any) -> None:
    outcome = callback(key, value)
    if inspect.isawaitable(outcome):
        await outcome


class _Kept:
    """Parts of a message that schemas need for decoding when they use more than the payload."""

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
    """Open a table view. Raises `OperationNotSupported` for a non-persistent topic: it stores no messages."""
    if not TopicName.parse(topic).persistent:
        raise OperationNotSupported(f"a table view needs a persistent topic, not {topic!r}")
    view = AsyncTableView(context, topic, subscription, schema, threaded=threaded)
    await view.open()
    return view


class TableView(Closing, Generic[T_co]):
    """The newest value of every key; methods are ``pulsar-client``'s, and it iterates like a dict."""

    def __init__(self, runtime: LoopThread, view: AsyncTableView[Any]) -> None:
        self._runtime = runtime
        self._view = view

    def get(self, key: str) -> T_co | None:
        """Return the value of a key, None if the view has no such key."""
        kept = self._view.values.get(key)
        return None if kept is None else self._view.decode(kept)

    def for_each(self, callback: Callable[[str, T_co], object]) -> None:
        """Call ``callback(key, value)`` for each key that the view holds now."""
        self._notify(callback, dict(self._view.values))

    def for_each_and_listen(self, callback: Callable[[str, T_co], object]) -> None:
        """Call ``callback`` for each key, and then, on another thread, for every later change.

        The callback receives each key's values in order, and never runs twice at a time. A removed key has
        the schema's value of no bytes: ``b""``, an empty text, or None. An error that the callback raises
        during this call is raised, and ends its registration; later errors are logged.
        """
        listening, snapshot = self._runtime.call(self._view.listen(callback))
        delivered = False
        try:
            self._notify(callback, snapshot)
            delivered = True
        finally:
            self._runtime.post(self._view.caught_up, listening, delivered)

    def _notify(self, callback: Callable[[str, T_co], object], snapshot: dict[str, bytes | _Kept]) -> None:
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

    def __str__(self) -> str:
        return str(self._view)

    __repr__ = __str__
