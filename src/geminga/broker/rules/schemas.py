"""Schemas of topics: numbered versions, kept forever, checked for compatibility (framing.md section 11).

A partition has the schemas of its partitioned topic. A version is stored as one delta under
``schema/<tenant>/<namespace>/<topic>``, so adding one never rewrites the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeGuard

from google.protobuf.message import DecodeError

from geminga.broker.cooperative import Job
from geminga.broker.records import RecordReader, put_bytes
from geminga.broker.refusal import Refused
from geminga.broker.rules.compatibility import (
    TRANSITIVE,
    check_compatible,
    check_definition,
    comparisons,
    meaning,
    text_digest,
)
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.errors import InvalidTopicName, StoreDamaged, StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done, EntryStore
from geminga.wire.proto import pulsar_wire_pb2 as pb

SCHEMA_BYTES_MAX = 512 * 1024
VERSIONS_MAX = 10_000
VERSIONS_BYTES_MAX = 16 * 1024 * 1024
"""Limit of all versions of a topic's schema together: they are read whenever a producer sends a schema."""
PARSED_BYTES_MAX = 8 * 1024 * 1024
"""Cache of parsed definitions, of the topics used last (one at least)."""
_VERSION_BYTES = 500
"""Memory of a version besides its definition."""
MEANINGS_MAX = 40_000
"""Versions whose hashes are cached, of the topics used last."""
VERDICTS_MAX = 100
"""New schemas whose compatibility with all of a topic's versions is cached."""
_MEANINGS_AT_ONCE = 50
GONE: Final = pb.Schema()
"""Stands for a deleted version. Its number is not reused: messages refer to it."""
_UNREGISTERED = frozenset((pb.Schema.AutoConsume,))


def version_bytes(version: int) -> bytes:
    """Return a version in wire format: 8 bytes, big-endian, from 0."""
    return version.to_bytes(8, "big")


def _is_there(known: pb.Schema | None) -> TypeGuard[pb.Schema]:
    return known is not None and known is not GONE


class _ParsedVersions:
    """Versions of a topic, the oldest first (see `SchemaRegistry.versions`), and sums and an index of them.

    Versions are only appended, so that a job may read them over several turns.
    """

    __slots__ = ("_by_text", "intact", "intact_bytes", "versions")

    def __init__(self, versions: Iterable[pb.Schema | None]) -> None:
        self.versions: list[pb.Schema | None] = []
        self.intact: list[pb.Schema] = []
        self.intact_bytes = 0
        self._by_text: dict[bytes, int] = {}
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
        """Return the oldest version with the same text, -1 if no version has it."""
        return self._by_text.get(text_digest(schema), -1)


_NO_VERSIONS: Final = _ParsedVersions(())


class _SemanticVersions:
    """Hashes of the first ``covered`` versions of a schema, with the oldest version of each."""

    __slots__ = ("counted", "covered", "versions")

    def __init__(self) -> None:
        self.covered = 0
        self.counted = 0
        """Versions that the registry has counted: some or all of the ``covered`` ones."""
        self.versions: dict[bytes, int] = {}

    def cover(self, versions: Sequence[pb.Schema | None], count: int) -> None:
        """Add the next ``count`` versions at most."""
        stop = min(self.covered + count, len(versions))
        for version in range(self.covered, stop):
            known = versions[version]
            if _is_there(known):
                self.versions.setdefault(meaning(known), version)
        self.covered = stop


class _CompatibilityVerdict(NamedTuple):
    """Reason why a schema is incompatible with the first ``covered`` intact versions; empty if compatible.

    Valid until versions are deleted.
    """

    covered: int
    problem: str
    deletions: int


class SchemaRegistry:
    """Schema registry of the broker."""

    def __init__(self, store: EntryStore, namespaces: NamespaceRegistry) -> None:
        self._store = store
        self._namespaces = namespaces
        self._parsed: OrderedDict[str, _ParsedVersions] = OrderedDict()
        self._parsed_bytes = 0
        self._meanings: OrderedDict[str, _SemanticVersions] = OrderedDict()
        self._meanings_count = 0
        self._verdicts: OrderedDict[tuple[str, bytes, str, bool], _CompatibilityVerdict] = OrderedDict()
        self._deletions = 0
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
        """Return the version that is equivalent to a schema, -1 if no version is."""
        parsed = self._of(name)
        versions = parsed.versions
        # Mostly the same text is stored: nothing is parsed then.
        version = parsed.find(schema)
        if version >= 0 or not versions:
            return version
        key = schema_key(name)
        meanings = self._meanings.get(key)
        if meanings is None or meanings.covered > len(versions):
            meanings = _SemanticVersions()
        meanings.cover(versions, len(versions))
        self._keep_meanings(key, meanings)
        return meanings.versions.get(meaning(schema), -1)

    def _keep_meanings(self, key: str, meanings: _SemanticVersions) -> None:
        if self._meanings.get(key) is not meanings:
            self._forget_meanings(key)
        self._meanings[key] = meanings
        self._meanings.move_to_end(key)
        self._meanings_count += meanings.covered - meanings.counted
        meanings.counted = meanings.covered
        while len(self._meanings) > 1 and self._meanings_count > MEANINGS_MAX:
            self._forget_meanings(next(iter(self._meanings)))

    def _forget_meanings(self, key: str) -> None:
        forgotten = self._meanings.pop(key, None)
        if forgotten is not None:
            self._meanings_count -= forgotten.counted

    def reading(
        self, topic: str, schema: pb.Schema, is_enough: Callable[[], bool], *, for_consumer: bool = False
    ) -> Job | None:
        """Return a job after which `find` and adding the schema of a producer, or of a consumer, is quick.

        A topic's versions are parsed in slices, and so is the schema's compatibility with all of them, if
        required. None if there is little to do. ``is_enough`` returns whether to yield to others.
        """
        try:
            name = TopicName.parse(topic)
            parsed = self._of(name)
        except (InvalidTopicName, StoreError):
            return None  # the caller that uses them receives the error
        versions = parsed.versions
        if len(versions) <= _MEANINGS_AT_ONCE or parsed.find(schema) >= 0:
            return None
        known = self._meanings.get(schema_key(name))
        covered = 0 if known is None else known.covered
        is_read = len(versions) - covered <= _MEANINGS_AT_ONCE
        if is_read and (self.find(name, schema) >= 0 or not self._has_to_fit_all(name)):
            return None
        return self._get_ready(name, schema, is_enough, for_consumer=for_consumer)

    def _has_to_fit_all(self, name: TopicName) -> bool:
        return self._namespaces.topic_policies(name).schema_compatibility_strategy.endswith(TRANSITIVE)

    def _get_ready(
        self, name: TopicName, schema: pb.Schema, is_enough: Callable[[], bool], *, for_consumer: bool
    ) -> Job:
        deletions = self._deletions
        yield from self._read_meanings(name, is_enough)
        if self._deletions == deletions and self._has_to_fit_all(name) and self.find(name, schema) < 0:
            yield from self._compare(name, schema, is_enough, for_consumer=for_consumer)

    def _compare(
        self, name: TopicName, schema: pb.Schema, is_enough: Callable[[], bool], *, for_consumer: bool
    ) -> Job:
        """Determine and cache whether a schema is compatible with all versions."""
        versions, deletions = self.intact(name), self._deletions
        strategy = self._namespaces.topic_policies(name).schema_compatibility_strategy
        problem = ""
        try:
            for _ in comparisons(schema, versions, strategy, for_consumer=for_consumer):
                if is_enough():
                    yield None
        except Refused as refused:
            problem = refused.reason
        key = schema_key(name), meaning(schema), strategy, for_consumer
        self._verdicts[key] = _CompatibilityVerdict(len(versions), problem, deletions)
        while len(self._verdicts) > VERDICTS_MAX:
            self._verdicts.popitem(last=False)

    def _check(
        self, name: TopicName, schema: pb.Schema, versions: Sequence[pb.Schema], *, for_consumer: bool = False
    ) -> None:
        """Raise `Refused` if a schema is incompatible with the versions; cached results are used."""
        strategy = self._namespaces.topic_policies(name).schema_compatibility_strategy
        if len(versions) > _MEANINGS_AT_ONCE and strategy.endswith(TRANSITIVE):
            known = self._verdicts.get((schema_key(name), meaning(schema), strategy, for_consumer))
            if known is not None and known.deletions == self._deletions:
                if known.problem:
                    raise Refused(pb.IncompatibleSchema, known.problem)
                versions = versions[known.covered :]
        check_compatible(schema, versions, strategy, for_consumer=for_consumer)

    def _read_meanings(self, name: TopicName, is_enough: Callable[[], bool]) -> Job:
        key, versions, deletions = schema_key(name), self.versions(name), self._deletions
        meanings = _SemanticVersions()
        while meanings.covered < len(versions):
            meanings.cover(versions, _MEANINGS_AT_ONCE)
            if is_enough():
                yield None
                if self._deletions != deletions:
                    return  # versions may have been deleted
        self._keep_meanings(key, meanings)

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
            self._check(name, schema, intact, for_consumer=True)

    def put(self, name: TopicName, schema: pb.Schema, *, auto_update: bool, done: Done | None = None) -> int:
        """Register a schema; return its version, an old one if it is known. Raises `Refused`."""
        if len(schema.schema_data) > SCHEMA_BYTES_MAX:
            raise Refused(pb.IncompatibleSchema, f"The schema is larger than {SCHEMA_BYTES_MAX} bytes")
        parsed = self._of(name)
        count, kept_bytes = len(parsed.versions), parsed.intact_bytes
        version = self.find(name, schema)
        if version >= 0:
            if done is not None:
                self.when_durable(name, done)
            return version
        if parsed.intact and not auto_update:
            raise Refused(pb.IncompatibleSchema, "Don't allow auto update schema.")
        if count >= VERSIONS_MAX or kept_bytes + len(schema.schema_data) > VERSIONS_BYTES_MAX:
            raise Refused(
                pb.IncompatibleSchema,
                f"The topic has {count} schema versions of {kept_bytes} bytes already",
            )
        check_definition(schema)
        self._check(name, schema, parsed.intact)
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
            self._forget_meanings(key)
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
        self._dropped(name)
        return len(versions)

    def delete(self, name: TopicName, done: Done | None = None) -> None:
        """Delete all versions, and their numbers: for a topic that is deleted with its messages."""
        self._store.keys.delete(schema_key(name), done)
        self._dropped(name)

    def _dropped(self, name: TopicName) -> None:
        self._forget(schema_key(name))
        self._forget_meanings(schema_key(name))
        self._deletions += 1


def schema_key(name: TopicName) -> str:
    base = name.base
    return f"schema/{base.tenant}/{base.namespace}/{base.local}"
