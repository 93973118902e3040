"""A table view: the newest value of every key of a topic, held in memory and kept up to date."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from geminga.client.core import ClientCore
from geminga.client.runtime import LoopThread
from geminga.consumer.settings import ReaderSettings
from geminga.errors import OperationNotSupported
from geminga.ids import MessageId, TopicName
from geminga.schema import Schema

if TYPE_CHECKING:
    from geminga.client.message import Message
    from geminga.client.reader import AsyncReader

logger = logging.getLogger("geminga")

Listener = Callable[[str, Any], None]


class AsyncTableView:
    """The part that lives on the event loop: one reader a partition feeds one dict.

    A message without a key is left out; an empty or null value removes its key.
    """

    def __init__(self, core: ClientCore, topic: str, subscription: str | None, schema: Schema) -> None:
        self.topic = topic
        self.subscription = subscription
        self.schema = schema
        self.values: dict[str, bytes | _Kept] = {}
        self.lock = threading.Lock()  # readers of `values` are on other threads
        self._core = core
        self._readers: list[AsyncReader] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: list[Listener] = []

    async def open(self) -> None:
        """Read all that the topic holds now, then go on in the background."""
        from geminga.client.reader import create_reader

        settings = ReaderSettings(is_read_compacted=True, subscription_name=self.subscription)
        try:
            for partition in await self._core.partition_topics(self.topic):
                reader = await create_reader(self._core, partition, MessageId.earliest, settings)
                self._readers.append(reader)
            await asyncio.gather(*(self._catch_up(reader) for reader in self._readers))
        except BaseException:
            await self.close()
            raise
        self._tasks = [self._core.loop.create_task(self._follow(reader)) for reader in self._readers]

    async def close(self) -> None:
        self._core.unregister(self)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(reader.close() for reader in self._readers), return_exceptions=True)

    async def listen(self, callback: Listener) -> dict[str, bytes | _Kept]:
        """Call ``callback`` for changes from now on; returns what the view holds at this moment."""
        self._listeners.append(callback)
        return dict(self.values)

    async def _catch_up(self, reader: AsyncReader) -> None:
        while await reader.has_message_available():
            self._apply(await reader.read_next())

    async def _follow(self, reader: AsyncReader) -> None:
        while True:
            message = await reader.read_next()
            if not self._apply(message):
                continue
            for listener in list(self._listeners):
                # Off the loop: listeners are the application's code and may take their time.
                await self._core.loop.run_in_executor(None, self._tell, listener, message)

    def _apply(self, message: Message) -> bool:
        if not message.has_partition_key():
            return False
        key, data = message.partition_key(), message.data()
        with self.lock:
            if message.has_null_value() or not data:
                self.values.pop(key, None)
                return False
            self.values[key] = _Kept(message) if self.schema.reads_versions else data
        return True

    def decode(self, kept: bytes | _Kept) -> Any:
        """The value of what is kept for a key. Not on the loop's thread: it may ask for a schema version."""
        if isinstance(kept, _Kept):
            return self.schema.decode_message(kept)
        return self.schema.decode(kept)

    def _tell(self, listener: Listener, message: Message) -> None:
        try:
            listener(message.partition_key(), self.schema.decode_message(message))
        except Exception:
            logger.exception("a table view listener of %s failed", self.topic)


class _Kept:
    """What decoding a message needs, for schemas that look at more than the payload."""

    __slots__ = ("_base64", "_data", "_key", "_topic", "_version")

    def __init__(self, message: Message) -> None:
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
    core: ClientCore, topic: str, subscription: str | None, schema: Schema
) -> AsyncTableView:
    """Raises `OperationNotSupported` for a topic that is not persistent: it keeps nothing to view."""
    if not TopicName.parse(topic).persistent:
        raise OperationNotSupported(f"a table view needs a persistent topic, not {topic!r}")
    view = AsyncTableView(core, topic, subscription, schema)
    await view.open()
    return view


class TableView:
    """The newest value of every key; methods are ``pulsar-client``'s, and it iterates like a dict."""

    def __init__(self, runtime: LoopThread, view: AsyncTableView) -> None:
        self._runtime = runtime
        self._view = view

    def get(self, key: str) -> Any | None:
        """The value of a key, None when there is none."""
        with self._view.lock:
            data = self._view.values.get(key)
        return None if data is None else self._view.decode(data)

    def for_each(self, callback: Listener) -> None:
        """Call ``callback(key, value)`` for all that the view holds now."""
        with self._view.lock:
            snapshot = dict(self._view.values)
        for key, data in snapshot.items():
            callback(key, self._view.decode(data))

    def for_each_and_listen(self, callback: Listener) -> None:
        """`for_each`, and then ``callback`` again for every later change, on another thread."""
        for key, data in self._runtime.call(self._view.listen(callback)).items():
            callback(key, self._view.decode(data))

    def close(self) -> None:
        """Stop following the topic; the values stay readable."""
        if not self._runtime.closed:
            self._runtime.call(self._view.close())

    def __len__(self) -> int:
        return len(self._view.values)

    def __contains__(self, key: object) -> bool:
        return key in self._view.values

    def __iter__(self) -> Iterator[str]:
        with self._view.lock:
            return iter(list(self._view.values))

    def __enter__(self) -> TableView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        subscription = "" if self._view.subscription is None else f", subscription={self._view.subscription}"
        return f"TableView(topic={self._view.topic}{subscription})"

    __repr__ = __str__
