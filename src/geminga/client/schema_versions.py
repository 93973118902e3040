"""The topics' schemas as the client knows them: each version is asked for once.

Reading Avro needs the schema that a message was written with. Threads may wait for the broker's answer
while they decode; a coroutine may not, so an asyncio consumer asks for an unknown version before it hands
the message out (`SchemaVersions.prepare`).
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import TYPE_CHECKING, Any

from geminga.client.tasks import run_task, seen
from geminga.connection import commands
from geminga.errors import AlreadyClosed, PulsarException
from geminga.ids import TopicName
from geminga.schema.schema import Schema, SchemaInfo, from_wire, to_wire
from geminga.values import T

if TYPE_CHECKING:
    from geminga.client.context import ClientContext
    from geminga.client.runtime import LoopThread

logger = logging.getLogger("geminga")

VERSIONS_KEPT = 10_000
"""Schema versions that a client remembers over all topics; the oldest go first."""

Key = tuple[str, str]
"""The topic as messages name it, and the version as `Message.schema_version` gives it."""


class SchemaVersions:
    """Belongs to a `ClientContext`: methods that wait run on its loop, `known` on any thread."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.generation = 0
        """Grows when versions that were known before mean something else."""
        self._known: dict[Key, SchemaInfo] = {}
        self._failed: dict[Key, PulsarException] = {}
        self._asking: dict[Key, asyncio.Task[SchemaInfo | None]] = {}

    def forget(self) -> None:
        """The client went to another cluster, which counts versions otherwise."""
        self._known.clear()
        self._failed.clear()
        self._asking.clear()
        self.generation += 1

    @property
    def schema_generation(self) -> int:
        """For schemas that decode: `generation`."""
        return self.generation

    def known(self, topic: str, version: str) -> SchemaInfo | None:
        """A version that was asked for before."""
        return self._known.get((topic, version))

    def schema_of_message(self, topic: str, version: str) -> SchemaInfo | None:
        """For schemas that decode: what `prepare` found for a message. None when the topic has no such
        version.

        Raises what asking the broker failed with.
        """
        failure = self._failed.get((topic, version))
        if failure is not None:
            raise failure
        return self._known.get((topic, version))

    async def get(self, topic: str, version: str) -> SchemaInfo | None:
        """A version; None when the topic has no such one. Whoever asks meanwhile shares the answer."""
        key = (topic, version)
        info = self._known.get(key)
        if info is not None:
            return info
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = run_task(self._context.loop, self._ask(key))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
            task.add_done_callback(seen)
        return await asyncio.shield(task)

    async def _ask(self, key: Key) -> SchemaInfo | None:
        topic, version = key
        generation = self.generation
        schema = await self._context.schema(topic, version.encode("latin-1"))
        if schema is None:
            return None
        info = from_wire(schema)
        if generation == self.generation:
            _keep(self._known, key, info)
        return info

    async def newest(self, topic: str) -> SchemaInfo | None:
        """The topic's newest schema; None when it has none, or when there is no such topic yet."""
        schema = await self._context.schema(topic)
        return None if schema is None else from_wire(schema)

    async def newest_with_version(self, topic: str) -> tuple[SchemaInfo, bytes] | None:
        """The same with its version, as messages name it."""
        answer = await self._context.schema_answer(topic)
        return None if answer is None else (from_wire(answer.schema), bytes(answer.schema_version))

    async def prepare(self, message: Any) -> None:
        """Make sure that the version of a message is known, so that decoding it need not wait.

        Does not raise for what the broker answers: decoding will.
        """
        version = message.schema_version()
        if not version:
            return
        key = (message.topic_name(), version)
        if key in self._known:
            return
        self._failed.pop(key, None)
        try:
            await self.get(*key)
        except PulsarException as error:
            logger.warning("asking for a schema version of %s failed: %s", key[0], error)
            _keep(self._failed, key, error)

    async def for_topic(self, topic: str, schema: Schema[T]) -> Schema[T]:
        """The schema that a producer on ``topic`` uses for ``schema``."""
        return schema.for_topic(await self.newest(topic)) if schema.needs_topic else schema

    async def register(self, topic: str, info: SchemaInfo) -> bytes:
        """The version of a schema on ``topic`` (a partition, or a topic without), registered if it is new.

        Raises `IncompatibleSchema` when the topic refuses it, `TopicNotFound`, and what asking fails with.
        """
        name = str(TopicName.parse(topic))
        schema = to_wire(info)
        answer = await self._context.request_on_topic(
            name, lambda request_id: commands.get_or_create_schema(name, request_id, schema)
        )
        return bytes(answer.getOrCreateSchemaResponse.schema_version)


class ThreadSchemaVersions:
    """The same for schemas that decode on any thread but the loop's: an unknown version is asked for.

    Schemas outlive clients, so this does not keep one alive.
    """

    def __init__(self, runtime: LoopThread, versions: SchemaVersions) -> None:
        self._runtime = weakref.ref(runtime)
        self._versions = versions

    @property
    def schema_generation(self) -> int:
        """See `SchemaVersions.generation`."""
        return self._versions.generation

    def schema_of_message(self, topic: str, version: str) -> SchemaInfo | None:
        """None when the topic has no such version. Raises what asking the broker fails with."""
        known = self._versions.known(topic, version)
        if known is not None:
            return known
        runtime = self._runtime()
        if runtime is None:
            raise AlreadyClosed("the client that the schema was used with is closed")
        return runtime.call(self._versions.get(topic, version))


def _keep(cache: dict[Key, Any], key: Key, value: Any) -> None:
    cache[key] = value
    if len(cache) > VERSIONS_KEPT:
        del cache[next(iter(cache))]
