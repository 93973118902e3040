"""Schemas of topics: numbered versions, kept for ever, checked for compatibility (framing.md section 11).

A partition has the schemas of its partitioned topic. A version is kept as one delta under
``schema/<tenant>/<namespace>/<topic>``, so adding one never rewrites the others.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from geminga.broker.records import RecordReader, put_bytes
from geminga.broker.refusal import Refused
from geminga.broker.rules.compatibility import check_compatible, check_definition, same_schema
from geminga.broker.rules.namespaces import Namespaces
from geminga.broker.rules.policies import Policies
from geminga.errors import StoreDamaged
from geminga.ids import TopicName
from geminga.ledger.api import Done, EntryStore
from geminga.wire.proto import pulsar_wire_pb2 as pb

SCHEMA_BYTES_MAX = 512 * 1024
VERSIONS_MAX = 10_000
VERSIONS_BYTES_MAX = 16 * 1024 * 1024
"""All versions of a topic's schema together: they are read whenever a producer comes with one."""
_UNREGISTERED = frozenset((pb.Schema.AutoConsume,))


def version_bytes(version: int) -> bytes:
    """A version as it travels: 8 bytes, big-endian, from 0."""
    return version.to_bytes(8, "big")


class Schemas:
    """The broker's schema registry."""

    def __init__(self, store: EntryStore, namespaces: Namespaces) -> None:
        self._store = store
        self._namespaces = namespaces

    # --- questions ---
    def versions(self, name: TopicName) -> list[pb.Schema]:
        """All versions, the oldest first; the index is the version."""
        key = schema_key(name)
        value = self._store.get(key)
        if value is None:
            return []
        found: list[pb.Schema] = []
        for part in (value.base, *value.deltas):
            reader = RecordReader(part, f"schemas of {name.base}")
            while reader:
                schema = pb.Schema()
                try:
                    schema.ParseFromString(reader.blob())
                except DecodeError as error:
                    raise StoreDamaged(
                        f"schemas of {name.base}: version {len(found)} is no schema"
                    ) from error
                found.append(schema)
        return found

    def latest(self, name: TopicName) -> tuple[int, pb.Schema] | None:
        """The newest version with its number, None when there is none."""
        found = self.versions(name)
        return (len(found) - 1, found[-1]) if found else None

    def get(self, name: TopicName, version: int) -> pb.Schema | None:
        """One version, None when there is no such one."""
        found = self.versions(name)
        return found[version] if 0 <= version < len(found) else None

    def find(self, name: TopicName, schema: pb.Schema) -> int:
        """The version that says the same as a schema, -1 when none does."""
        for version, known in enumerate(self.versions(name)):
            if same_schema(schema, known):
                return version
        return -1

    # --- changes ---
    def add_for_producer(self, name: TopicName, policies: Policies, schema: pb.Schema) -> bytes:
        """The version of a producer's schema, registered if it is new and allowed; raises `Refused`."""
        if schema.type in _UNREGISTERED or schema.type == getattr(pb.Schema, "None"):
            return b""
        return version_bytes(self.put(name, schema, auto_update=policies.schema_auto_update))

    def add_for_consumer(self, name: TopicName, policies: Policies, schema: pb.Schema) -> None:
        """Check a consumer's schema against what is written; the first one of a topic is registered."""
        if schema.type == getattr(pb.Schema, "None"):
            return
        versions = self.versions(name)
        if not versions:
            self.put(name, schema, auto_update=policies.schema_auto_update)
            return
        if any(same_schema(schema, known) for known in versions):
            return
        strategy = policies.schema_compatibility_strategy
        check_compatible(schema, versions, strategy, for_consumer=True)

    def put(self, name: TopicName, schema: pb.Schema, *, auto_update: bool, done: Done | None = None) -> int:
        """Register a schema; returns its version, an old one when it is known. Raises `Refused`."""
        if len(schema.schema_data) > SCHEMA_BYTES_MAX:
            raise Refused(pb.IncompatibleSchema, f"The schema is larger than {SCHEMA_BYTES_MAX} bytes")
        versions = self.versions(name)
        version = self.find(name, schema)
        if version >= 0:
            if done is not None:
                done(None)
            return version
        if versions and not auto_update:
            raise Refused(pb.IncompatibleSchema, "Don't allow auto update schema.")
        kept_bytes = sum(len(each.schema_data) for each in versions)
        if len(versions) >= VERSIONS_MAX or kept_bytes + len(schema.schema_data) > VERSIONS_BYTES_MAX:
            raise Refused(
                pb.IncompatibleSchema,
                f"The topic has {len(versions)} schema versions of {kept_bytes} bytes already",
            )
        check_definition(schema)
        policies = self._namespaces.topic_policies(name)
        check_compatible(schema, versions, policies.schema_compatibility_strategy)
        kept = pb.Schema()
        kept.CopyFrom(schema)
        kept.name = f"{name.tenant}/{name.namespace}/{name.base.local}"
        out = bytearray()
        put_bytes(out, kept.SerializeToString())
        self._store.merge(schema_key(name), bytes(out), done)
        return len(versions)

    def delete(self, name: TopicName, done: Done | None = None) -> None:
        """Forget all versions."""
        self._store.delete(schema_key(name), done)


def schema_key(name: TopicName) -> str:
    base = name.base
    return f"schema/{base.tenant}/{base.namespace}/{base.local}"
