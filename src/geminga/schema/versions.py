"""Schemas whose values can only be read with the writer's schema.

Avro payloads do not describe themselves. A message names the version of the topic's schema that its
producer used; the client requests that version from the broker once (``schema_of_message`` of the client in
`Schema.attach_client`), and values are resolved from it to the consumer's schema.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from geminga._util.values import V
from geminga.errors import IncompatibleSchema
from geminga.schema.schema import Schema, SchemaInfo, is_null

VERSIONS_MAX = 1000
"""Readers that one schema object caches, one per version; the oldest is evicted first."""

Reader = Callable[[Any], Any]
"""Function that returns the value of a message."""


class VersionedSchema(Schema[V]):
    """Base of schemas that read with the writer's schema; subclasses define `_reader`."""

    reads_versions: ClassVar[bool] = True
    nulls_are_none: ClassVar[bool] = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._readers: dict[tuple[str, str], Reader] = {}
        self._generation = 0

    def _reader(self, writer: SchemaInfo) -> Reader:
        """Return the reader of messages written with ``writer``. Raises `IncompatibleSchema`."""
        raise NotImplementedError

    def _read_own(self, msg: Any) -> Any:
        """Return the value of a message without a version, which was written with this schema."""
        return self.decode(msg.data())

    def attach_client(self, client: Any) -> None:
        if client is not self._client:
            self._readers.clear()  # another cluster may count its versions otherwise
        super().attach_client(client)

    def decode_message(self, msg: Any) -> Any:
        """Return the value of a message, read with its writer's schema; None for a tombstone.

        May ask the broker, once for each version. Raises `IncompatibleSchema` if that version is unknown or
        does not resolve to this schema, `CorruptPayload` if the payload does not fit it, and the broker's
        errors. A message is never read with a guessed schema.
        """
        if self.nulls_are_none and not msg.data() and is_null(msg):
            return None
        version = msg.schema_version()
        lookup = getattr(self._client, "schema_of_message", None)
        if not version or lookup is None:
            return self._read_own(msg)
        key = (msg.topic_name(), version)
        generation = getattr(self._client, "schema_generation", 0)
        if generation != self._generation:
            self._generation = generation
            self._readers.clear()
        reader = self._readers.get(key)
        if reader is None:
            writer = lookup(*key)
            if writer is None:
                number = int.from_bytes(version.encode("latin-1"), "big")
                raise IncompatibleSchema(
                    f"{key[0]} has no schema version {number}, which a message was written with"
                )
            reader = self._reader(writer)
            if len(self._readers) >= VERSIONS_MAX:
                del self._readers[next(iter(self._readers))]
            self._readers[key] = reader
        return reader(msg)
