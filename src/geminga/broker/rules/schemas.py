"""Schemas of topics: numbered versions, kept forever, checked for compatibility (framing.md section 11).

A partition has the schemas of its partitioned topic. A version is stored as one delta under
``schema/<tenant>/<namespace>/<topic>``, so adding one never rewrites the others.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, TypeGuard

from google.protobuf.message import DecodeError

from geminga.broker.entries.records import RecordReader, put_bytes
from geminga.broker.rules.compatibility import check_compatible, check_definition, meaning, text_digest
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.broker.runtime.refusal import Refused
from geminga.errors import StoreDamaged, StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done, EntryStore
from geminga.wire.proto import pulsar_wire_pb2 as pb

SCHEMA_BYTES_MAX = 512 * 1024
VERSIONS_MAX = 2_000
VERSIONS_BYTES_MAX = 4 * 1024 * 1024
"""Limit of all versions of a topic's schema together: a new schema is compared with all of them at once."""
PARSED_BYTES_MAX = 8 * 1024 * 1024
"""Cache of parsed definitions, of the topics used last (one at least)."""
_VERSION_BYTES = 500
"""Memory of a version besides its definition."""
GONE: Final = pb.Schema()
"""Stands for a deleted version. Its number is not reused: messages refer to it."""
_UNREGISTERED = frozenset((pb.Schema.AutoConsume,))


def version_bytes(version: int) -> bytes:
    """Return a version in wire format: 8 bytes, big-endian, from 0."""
    return version.to_bytes(8, "big")


def _is_there(known: pb.Schema | None) -> TypeGuard[pb.Schema]:
    return known is not None and known is not GONE


def check_size(schema: pb.Schema) -> None:
    """Refuse a definition that takes long to parse."""
    if len(schema.schema_data) > SCHEMA_BYTES_MAX:
        raise Refused(pb.IncompatibleSchema, f"The schema is larger than {SCHEMA_BYTES_MAX} bytes")


class _ParsedVersions:
    """Versions of a topic, the oldest first (see `SchemaRegistry.versions`), and sums and indexes of them."""

    __slots__ = ("_by_meaning", "_by_text", "_compared", "intact", "intact_bytes", "versions")

    def __init__(self, versions: Iterable[pb.Schema | None]) -> None:
        self.versions: list[pb.Schema | None] = []
        self.intact: list[pb.Schema] = []
        self.intact_bytes = 0
        self._by_text: dict[bytes, int] = {}
        self._by_meaning: dict[bytes, int] = {}
        self._compared = 0
        """Number of versions in ``_by_meaning``, which are parsed for it at the first use."""
        for each in versions:
            self.append(each)

    def append(self, schema: pb.Schema | None) -> None:
        if _is_there(schema):
            self._by_text.setdefault(text_digest(schema), len(self.versions))
            self.intact.append(schema)
            self.intact_bytes += len(schema.schema_data)
        self.versions.append(schema)

    @property
    def memory_bytes(self) -> int:
        return self.intact_bytes + _VERSION_BYTES * len(self.versions)

    def find(self, schema: pb.Schema) -> int:
        """Return the oldest version that is equivalent to a schema, -1 if no version is."""
        version = self._by_text.get(text_digest(schema), -1)
        if version >= 0 or not self.intact:
            return version
        for number in range(self._compared, len(self.versions)):
            known = self.versions[number]
            if _is_there(known):
                self._by_meaning.setdefault(meaning(known), number)
        self._compared = len(self.versions)
        return self._by_meaning.get(meaning(schema), -1)


_NO_VERSIONS: Final = _ParsedVersions(())


class SchemaRegistry:
    """Schema registry of the broker."""

    def __init__(self, store: EntryStore, namespaces: NamespaceRegistry) -> None:
        self._store = store
        self._namespaces = namespaces
        self._parsed: OrderedDict[str, _ParsedVersions] = OrderedDict()
        self._parsed_bytes = 0
        self._unstored: dict[str, list[list[Done]]] = {}
        """Topics with pending writes of versions: the callbacks waiting for each, in their order."""

    # --- questions ---
    def versions(self, name: TopicName) -> Sequence[pb.Schema | None]:
        """Return all versions, the oldest first; the index is the version. None is one lost to damage, `GONE`
        a deleted one.

        The list is shared: do not change it.
        """
        return self._of(name).versions

    def _of(self, name: TopicName) -> _ParsedVersions:
        key = schema_key(name)
        parsed = self._parsed.get(key)
        if parsed is not None:
            self._parsed.move_to_end(key)
            return parsed
        found = self._read(name, key)
        if not found:
            return _NO_VERSIONS
        parsed = _ParsedVersions(found)
        self._remember(key, parsed)
        return parsed

    def _remember(self, key: str, parsed: _ParsedVersions) -> None:
        self._parsed[key] = parsed
        self._parsed_bytes += parsed.memory_bytes
        while self._parsed_bytes > PARSED_BYTES_MAX and len(self._parsed) > 1:
            self._forget(next(iter(self._parsed)))

    def in_memory(self, name: TopicName) -> bool:
        """Return whether the topic's versions are in memory."""
        return schema_key(name) in self._parsed

    def _forget(self, key: str) -> None:
        self._parsed_bytes -= self._parsed.pop(key, _NO_VERSIONS).memory_bytes

    def _read(self, name: TopicName, key: str) -> list[pb.Schema | None]:
        value = self._store.keys.get(key)
        if value is None:
            return []
        found: list[pb.Schema | None] = []
        for number, part in enumerate((value.base, *value.deltas)):
            reader = RecordReader(part, f"schemas of {name.base}")
            if number and not part:
                found.append(None)
            while reader:
                blob = reader.blob()
                if not blob:
                    found.append(GONE)
                    continue
                schema = pb.Schema()
                try:
                    schema.ParseFromString(blob)
                except DecodeError as error:
                    raise StoreDamaged(
                        f"schemas of {name.base}: version {len(found)} is no schema"
                    ) from error
                found.append(schema)
        return found

    def intact(self, name: TopicName) -> list[pb.Schema]:
        """Return the readable versions, the oldest first."""
        return list(self._of(name).intact)

    def numbered(self, name: TopicName) -> list[tuple[int, pb.Schema]]:
        """Return the readable versions with their numbers, the oldest first."""
        return [(version, known) for version, known in enumerate(self.versions(name)) if _is_there(known)]

    def latest(self, name: TopicName) -> tuple[int, pb.Schema] | None:
        """Return the newest readable version with its number, None without one."""
        versions = self.versions(name)
        for version in range(len(versions) - 1, -1, -1):
            known = versions[version]
            if _is_there(known):
                return version, known
        return None

    def get(self, name: TopicName, version: int) -> pb.Schema | None:
        """Return one version, None if it does not exist. Raises `StoreDamaged` if it was lost to damage."""
        found = self.versions(name)
        if not 0 <= version < len(found) or found[version] is GONE:
            return None
        schema = found[version]
        if schema is None:
            raise StoreDamaged(
                f"schema version {version} of {name.base} was lost to damage in the store: "
                "have a producer register it again, messages of the lost version need its definition"
            )
        return schema

    def find(self, name: TopicName, schema: pb.Schema) -> int:
        """Return the version that is equivalent to a schema, -1 if no version is. Raises `Refused`."""
        check_size(schema)
        return self._of(name).find(schema)

    # --- changes ---
    def add_for_producer(self, name: TopicName, policies: Policies, schema: pb.Schema) -> bytes:
        """Return the version of a producer's schema, registered if it is new and allowed; raises `Refused`.

        Bytes is a schema like others if a client sends it: Go's does, others send none.
        """
        if schema.type in _UNREGISTERED:
            return b""
        return version_bytes(self.put(name, schema, auto_update=policies.schema_auto_update))

    def add_for_consumer(self, name: TopicName, policies: Policies, schema: pb.Schema) -> None:
        """Check a consumer's schema as a reader of the versions; the first one of a topic is registered."""
        intact = self._of(name).intact
        if not intact:
            self.put(name, schema, auto_update=policies.schema_auto_update)
        elif self.find(name, schema) < 0:
            check_compatible(schema, intact, self._strategy(name), for_consumer=True)

    def _strategy(self, name: TopicName) -> str:
        return self._namespaces.topic_policies(name).schema_compatibility_strategy

    def put(self, name: TopicName, schema: pb.Schema, *, auto_update: bool, done: Done | None = None) -> int:
        """Register a schema; return its version, an old one if it is known. Raises `Refused`."""
        check_size(schema)
        parsed = self._of(name)
        count, kept_bytes = len(parsed.versions), parsed.intact_bytes
        version = parsed.find(schema)
        if version >= 0:
            if done is not None:
                self.when_durable(name, done)
            return version
        if parsed.intact and not auto_update:
            raise Refused(pb.IncompatibleSchema, "Don't allow auto update schema.")
        if count >= VERSIONS_MAX or kept_bytes + len(schema.schema_data) > VERSIONS_BYTES_MAX:
            raise Refused(
                pb.IncompatibleSchema, f"The topic has {count} schema versions of {kept_bytes} bytes already"
            )
        check_definition(schema)
        check_compatible(schema, parsed.intact, self._strategy(name))
        kept = pb.Schema()
        kept.CopyFrom(schema)
        kept.name = f"{name.tenant}/{name.namespace}/{name.base.local}"
        out = bytearray()
        put_bytes(out, kept.SerializeToString())
        key = schema_key(name)
        waiting = [] if done is None else [done]
        self._unstored.setdefault(key, []).append(waiting)
        try:
            self._store.keys.merge(key, bytes(out), partial(self._stored, key))
        except StoreError:
            self._settled(key, waiting)
            raise
        self._forget(key)
        if not count:
            parsed = _ParsedVersions(())
        parsed.append(kept)
        self._remember(key, parsed)
        return count

    def when_durable(self, name: TopicName, then: Done) -> None:
        """Call ``then`` when the topic's versions are durable: at once if they are.

        After a crash the number of a version that was not stored is reused.
        """
        unstored = self._unstored.get(schema_key(name))
        if unstored is None:
            then(None)
        else:
            unstored[-1].append(then)

    def _stored(self, key: str, error: StoreError | None) -> None:
        """Handle the store's report on the oldest pending version."""
        waiting = self._unstored[key][0]
        self._settled(key, waiting)
        if error is not None:
            self._forget(key)
        for then in waiting:
            then(error)

    def _settled(self, key: str, waiting: list[Done]) -> None:
        left = [each for each in self._unstored.pop(key) if each is not waiting]
        if left:
            self._unstored[key] = left

    def retire(self, name: TopicName, done: Done) -> int:
        """Delete all versions, but not their numbers; return the number of the deletion, itself a version.

        The topic's messages refer to versions. If a number were reused, they would be decoded with another
        schema.
        """
        versions = self.versions(name)
        if not versions or all(each is GONE for each in versions):
            done(None)
            return max(0, len(versions) - 1)
        out = bytearray()
        for _ in range(len(versions) + 1):
            put_bytes(out, b"")
        self._store.keys.put(schema_key(name), bytes(out), done)
        self._forget(schema_key(name))
        return len(versions)

    def delete(self, name: TopicName, done: Done | None = None) -> None:
        """Delete all versions, and their numbers: for a topic that is deleted with its messages."""
        self._store.keys.delete(schema_key(name), done)
        self._forget(schema_key(name))


def schema_key(name: TopicName) -> str:
    base = name.base
    return f"schema/{base.tenant}/{base.namespace}/{base.local}"
