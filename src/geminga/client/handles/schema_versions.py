"""Cache of the topics' schemas: each version is fetched once.

Reading Avro needs the schema that a message was written with. Threads may wait for the broker's answer while
they decode; a coroutine may not, so an asyncio consumer fetches an unknown version before it returns the
message (`SchemaVersions.prepare`).
"""

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from geminga._util.values import T
from geminga.client.io.runtime import LoopThread
from geminga.client.io.tasks import run_task, seen
from geminga.connection import commands
from geminga.errors import AlreadyClosed, PulsarException
from geminga.ids import TopicName
from geminga.schema.schema import Schema, SchemaInfo, from_wire, to_wire
from geminga.wire.proto import pulsar_wire_pb2 as pb

logger = logging.getLogger("geminga")

VERSIONS_KEPT = 10_000
"""Limit on cached schema versions over all topics; the oldest are dropped first."""

Key = tuple[str, str]
"""Topic as messages name it, and version as `Message.schema_version` returns it."""


class SchemaRequests(Protocol):
    """Requests about schemas, as `ClientContext` sends them."""

    loop: asyncio.AbstractEventLoop

    def schema(self, topic: str, version: bytes | None = None) -> Awaitable[pb.Schema | None]: ...

    def schema_answer(self, topic: str) -> Awaitable[pb.CommandGetSchemaResponse | None]: ...

    def request_on_topic(
        self, topic: str, make_command: Callable[[int], pb.BaseCommand]
    ) -> Awaitable[pb.BaseCommand]: ...


class SchemaVersions:
    """Schema cache of a `ClientContext`: methods that wait run on its loop, `known` on any thread."""

    def __init__(self, context: SchemaRequests) -> None:
        self._context = context
        self.schema_generation = 0
        """Incremented when cached versions become invalid."""
        self._known: dict[Key, SchemaInfo] = {}
        self._failed: dict[Key, PulsarException] = {}
        self._asking: dict[Key, asyncio.Task[SchemaInfo | None]] = {}

    def forget(self) -> None:
        """Clear the cache after a move to another cluster, which numbers versions differently."""
        self._known.clear()
        self._failed.clear()
        self._asking.clear()
        self.schema_generation += 1

    def known(self, topic: str, version: str) -> SchemaInfo | None:
        """Return a version if it is cached."""
        return self._known.get((topic, version))

    def schema_of_message(self, topic: str, version: str) -> SchemaInfo | None:
        """Return the schema that `prepare` fetched for a message, for schemas that decode; None if the topic
        has no such version. Raises the error of fetching it."""
        failure = self._failed.get((topic, version))
        if failure is not None:
            raise failure
        return self._known.get((topic, version))

    async def get(self, topic: str, version: str) -> SchemaInfo | None:
        """Return a version; None if the topic has no such version. Concurrent callers share the request."""
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
        generation = self.schema_generation
        schema = await self._context.schema(topic, version.encode("latin-1"))
        if schema is None:
            return None
        info = from_wire(schema)
        if generation == self.schema_generation:
            _keep(self._known, key, info)
        return info

    async def newest(self, topic: str) -> SchemaInfo | None:
        """Return the topic's newest schema; None if it has none, or does not exist yet."""
        schema = await self._context.schema(topic)
        return None if schema is None else from_wire(schema)

    async def newest_with_version(self, topic: str) -> tuple[SchemaInfo, bytes] | None:
        """Return the topic's newest schema with its version, as messages name it."""
        answer = await self._context.schema_answer(topic)
        return None if answer is None else (from_wire(answer.schema), bytes(answer.schema_version))

    async def prepare(self, message: Any) -> PulsarException | None:
        """Fetch the schema version of a message, so that decoding need not wait.

        Returns the broker's error, which decoding will raise.
        """
        version = message.schema_version()
        key = (message.topic_name(), version)
        if not version or key in self._known:
            return None
        self._failed.pop(key, None)
        try:
            await self.get(*key)
        except PulsarException as error:
            logger.warning("asking for a schema version of %s failed: %s", key[0], error)
            _keep(self._failed, key, error)
            return error
        return None

    async def for_topic(self, topic: str, schema: Schema[T]) -> Schema[T]:
        """Return the schema that a producer on ``topic`` uses for ``schema``."""
        return schema.for_topic(await self.newest(topic)) if schema.needs_topic else schema

    async def register(self, topic: str, info: SchemaInfo) -> bytes:
        """Return the version of a schema on ``topic`` (a partition, or an unpartitioned topic), registered if
        it is new. Raises `IncompatibleSchema` if the topic refuses it, `TopicNotFound`, and other errors of
        the request."""
        name = str(TopicName.parse(topic))
        schema = to_wire(info)
        answer = await self._context.request_on_topic(
            name, lambda request_id: commands.get_or_create_schema(name, request_id, schema)
        )
        return bytes(answer.getOrCreateSchemaResponse.schema_version)


class ThreadSchemaVersions:
    """Schema cache for decoding on any thread but the loop's: an unknown version is fetched.

    Schemas outlive clients, so this holds no strong reference to one.
    """

    def __init__(self, runtime: LoopThread, versions: SchemaVersions) -> None:
        self._runtime = weakref.ref(runtime)
        self._versions = versions

    @property
    def schema_generation(self) -> int:
        """Generation of the cache; see `SchemaVersions.schema_generation`."""
        return self._versions.schema_generation

    def schema_of_message(self, topic: str, version: str) -> SchemaInfo | None:
        """Return a message's schema, None if the topic has no such version. Raises the error of fetching
        it."""
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
