"""Mirroring of schemas: all versions of a topic in order, and their version numbers in the target."""

import logging

from geminga.entries import ClientContext, Schema, register_schema
from geminga.errors import IncompatibleSchema
from geminga.ids import TopicName
from geminga.mirror.pairing import MirrorRefused

logger = logging.getLogger("geminga.mirror")

_VERSION_BYTES = 8
VERSIONS_MAX = 100_000


class SchemaMirror:
    """Schemas of a topic, shared by its partitions. ``versions``: the target's version for each of the
    source's; None if the source has no such schema."""

    def __init__(self, source: ClientContext, target: ClientContext, topic: str) -> None:
        self.versions: dict[bytes, bytes | None] = {}
        self.newest: Schema | None = None
        self._source = source
        self._target = target
        self._topic = topic
        """A topic that exists on both sides: a partition, if the topic is partitioned."""

    async def copy(self) -> None:
        """Register the versions that the target lacks. Raises `MirrorRefused` if the target refuses one."""
        newest = await self._source.schema_answer(self._topic)
        if newest is None:
            return
        self.newest = newest.schema
        last = bytes(newest.schema_version)
        if len(last) == _VERSION_BYTES and int.from_bytes(last, "big") < VERSIONS_MAX:
            for number in range(int.from_bytes(last, "big")):
                await self.learn(number.to_bytes(_VERSION_BYTES, "big"))
        await self.learn(last)

    def forget(self) -> None:
        """Forget all versions: the topic was recreated on one side."""
        self.versions.clear()
        self.newest = None

    async def learn(self, version: bytes) -> None:
        """Look up a version; each is queried once."""
        if version in self.versions:
            return
        schema = await self._source.schema(self._topic, version)
        if schema is None:
            logger.warning(
                "%s has no schema of version %s any more: its messages are copied without one",
                TopicName.parse(self._topic).base, version.hex(),
            )  # fmt: skip
            self.versions[version] = None
            return
        try:
            self.versions[version] = await register_schema(self._target, self._topic, schema)
        except IncompatibleSchema as error:
            raise MirrorRefused(
                f"{TopicName.parse(self._topic).base}: the target refuses the schema of version "
                f"{version.hex()}: {error}. Set the schema compatibility strategy there to "
                "ALWAYS_COMPATIBLE while you move"
            ) from error
