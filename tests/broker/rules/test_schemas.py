"""Schemas: versions, registration by producers and consumers, and what is kept."""

import json
from typing import Any

import pytest
from doubles import calls_of

from geminga.broker.rules import compatibility
from geminga.broker.rules import schemas as schemas_module
from geminga.broker.rules.schemas import SCHEMA_BYTES_MAX, schema_key, version_bytes
from geminga.errors import StoreDamaged
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, SUBSCRIBE, TOPIC

V0, V1 = version_bytes(0), version_bytes(1)
BYTES = pb.Schema.Type.Value("None")


def record(*fields: Any, kind: int = pb.Schema.Json, name: str = "") -> pb.Schema:
    optional = {"type": ["null", "string"], "default": None}
    listed = [{"name": f, **optional} if isinstance(f, str) else f for f in fields]
    data = json.dumps({"type": "record", "name": "R", "fields": listed}).encode()
    return pb.Schema(name=name, schema_data=data, type=kind)


STRING = pb.Schema(name="String", schema_data=b"", type=pb.Schema.String)
REQUIRED = {"name": "must", "type": "string"}


def produce(harness: Any, schema: pb.Schema | None, producer_id: int = 1) -> Any:
    fields = {} if schema is None else {"schema": {f.name: v for f, v in schema.ListFields()}}
    return harness.peer().request("producer", topic=TOPIC, producer_id=producer_id, **fields).command


def test_a_producers_schema_is_registered_once(harness):
    assert produce(harness, None).producer_success.schema_version == b""
    assert produce(harness, record("a")).producer_success.schema_version == V0
    assert produce(harness, record("a")).producer_success.schema_version == V0
    assert produce(harness, record("a", "b")).producer_success.schema_version == V1
    harness.restart()
    assert produce(harness, record("a")).producer_success.schema_version == V0
    found = harness.broker.schemas.versions(NAME)
    assert [schema.name for schema in found] == ["public/default/t"] * 2


def test_versions_beyond_their_limit_are_refused(harness, monkeypatch):
    monkeypatch.setattr(schemas_module, "VERSIONS_MAX", 1)
    produce(harness, record("a"))
    refused = produce(harness, record("a", "b")).error
    assert (refused.error, "1 schema versions" in refused.message) == (pb.IncompatibleSchema, True)


def test_partitions_share_their_schemas(harness):
    schemas = harness.broker.schemas
    schemas.put(NAME.partition_name(0), record("a"), auto_update=True)
    assert schemas.latest(NAME.partition_name(5)) == schemas.latest(NAME)


@pytest.mark.parametrize("schema", [STRING, record("a", REQUIRED)])
def test_incompatible_schemas_are_refused(harness, schema):
    produce(harness, record("a"))
    assert produce(harness, schema).error.error == pb.IncompatibleSchema
    assert len(harness.broker.schemas.versions(NAME)) == 1


def test_bytes_are_registered_if_a_client_sends_their_type(harness):
    """As Go's BytesSchema does: recorded from Apache Pulsar 4.0.4."""
    nothing = pb.Schema(name="Bytes", schema_data=b"", type=BYTES)
    assert produce(harness, None).producer_success.schema_version == b""
    assert produce(harness, nothing).producer_success.schema_version == V0
    assert produce(harness, nothing).producer_success.schema_version == V0
    nothing.schema_data = b"something"
    assert produce(harness, nothing).producer_success.schema_version == V1
    refused = produce(harness, STRING).error
    assert (refused.error, "exists schema type NONE" in refused.message) == (pb.IncompatibleSchema, True)
    assert produce(harness, None).producer_success.schema_version == b""
    assert [schema.type for schema in harness.broker.schemas.versions(NAME)] == [BYTES, BYTES]


def test_bytes_cannot_replace_another_schema(harness):
    nothing = pb.Schema(name="Bytes", schema_data=b"", type=BYTES)
    assert produce(harness, STRING).producer_success.schema_version == V0
    assert produce(harness, nothing).error.error == pb.IncompatibleSchema
    schema = {f.name: v for f, v in nothing.ListFields()}
    answer = harness.peer().request("subscribe", **SUBSCRIBE, schema=schema)
    assert answer.command.error.error == pb.IncompatibleSchema


def test_policies_may_forbid_updates_and_schemaless_producers(harness):
    produce(harness, record("a"))
    set_policy = harness.broker.namespaces.set_policy
    set_policy("public", "default", "is_allow_auto_update_schema", False)
    assert produce(harness, record("a", "b")).error.error == pb.IncompatibleSchema
    assert produce(harness, record("a")).producer_success.schema_version == V0
    set_policy("public", "default", "schema_validation_enforced", True)
    assert produce(harness, None).error.error == pb.IncompatibleSchema


def test_an_enormous_schema_is_refused_before_it_is_parsed(harness, monkeypatch):
    produce(harness, record("a"))
    monkeypatch.setattr(compatibility, "parse", None)
    big = pb.Schema(name="", schema_data=b"x" * (SCHEMA_BYTES_MAX + 1), type=pb.Schema.Avro)
    assert produce(harness, big).error.error == pb.IncompatibleSchema
    assert subscribe(harness, big, "s") == pb.BaseCommand.ERROR


def subscribe(harness: Any, schema: pb.Schema, subscription: str) -> int:
    fields = {"subscription": subscription, "schema": {f.name: v for f, v in schema.ListFields()}}
    return int(harness.peer().request("subscribe", **(SUBSCRIBE | fields)).type)


def test_consumers_schemas_are_checked_and_registered(harness):
    ok, error = pb.BaseCommand.SUCCESS, pb.BaseCommand.ERROR
    automatic = pb.Schema(name="AutoConsume", schema_data=b"", type=pb.Schema.AutoConsume)
    assert subscribe(harness, automatic, "auto") == ok
    assert harness.broker.schemas.latest(NAME) is None
    assert subscribe(harness, record("a"), "first") == ok
    assert len(harness.broker.schemas.versions(NAME)) == 1
    assert subscribe(harness, record("a", "more"), "reads more") == ok
    assert subscribe(harness, record("a", REQUIRED), "needs more") == error
    assert subscribe(harness, STRING, "other") == error
    assert len(harness.broker.schemas.versions(NAME)) == 1


def test_schemas_are_returned_by_version(harness):
    peer = harness.peer()

    def ask(**fields: Any) -> Any:
        return peer.request("getSchema", topic=TOPIC, **fields).command.getSchemaResponse

    assert ask().error_code == pb.TopicNotFound
    produce(harness, record("a"))
    produce(harness, record("a", "b"))
    assert ask().schema_version == V1
    found = ask(schema_version=V0)
    assert (found.schema_version, found.schema.schema_data) == (V0, record("a").schema_data)
    assert found.schema.name == "public/default/t"
    assert ask(schema_version=version_bytes(2)).error_code == pb.TopicNotFound
    assert ask(schema_version=b"").error_code == pb.IncompatibleSchema
    bad = peer.request("getSchema", topic="bad://x").command.getSchemaResponse
    assert bad.error_code == pb.InvalidTopicName


def test_get_or_create_returns_or_registers_a_version(harness):
    peer = harness.peer()

    def ask(schema: pb.Schema, topic: str = TOPIC) -> Any:
        fields = {f.name: v for f, v in schema.ListFields()}
        fields.setdefault("schema_data", b"")
        frame = peer.request("getOrCreateSchema", topic=topic, schema=fields)
        return frame.command.getOrCreateSchemaResponse

    nothing = pb.Schema(name="Bytes", schema_data=b"", type=BYTES)
    assert ask(nothing).error_code == pb.TopicNotFound
    peer.producer(TOPIC)
    answer = ask(nothing)
    assert (answer.HasField("error_code"), answer.schema_version) == (False, b"")
    assert ask(record("a")).schema_version == V0
    assert ask(record("a", "b")).schema_version == V1
    assert ask(record("a")).schema_version == V0
    assert ask(nothing).schema_version == b""
    assert ask(STRING).error_code == pb.IncompatibleSchema


def test_a_new_version_is_answered_when_it_is_durable(harness):
    peer = harness.producer(TOPIC)
    harness.auto_poll = False
    fields = {f.name: v for f, v in STRING.ListFields()}
    peer.command("getOrCreateSchema", topic=TOPIC, schema={"schema_data": b"", **fields}, request_id=1)
    assert not peer.frames
    harness.poll()
    assert peer.pop().command.getOrCreateSchemaResponse.schema_version == V0


def test_deleting_the_topic_deletes_its_schemas(harness):
    produce(harness, record("a"))
    done: list[Any] = []
    harness.actions.delete(NAME, True, done.append)
    harness.poll()
    assert done == [None]
    assert harness.store.keys.get(schema_key(NAME)) is None


def letters(number: int) -> str:
    """Different fields for each number."""
    return "".join(chr(97 + bit) for bit in range(8) if number + 1 >> bit & 1)


def test_a_known_schema_is_not_read_or_parsed_again(harness, monkeypatch):
    produce(harness, record("a"))
    produce(harness, record("a", "b"))
    monkeypatch.setattr("geminga.broker.rules.schemas.meaning", None)
    read = calls_of(monkeypatch, harness.store.keys, "get")
    for schema, version in ((record("a"), V0), (record("a", "b"), V1), (record("a"), V0)):
        assert produce(harness, schema).producer_success.schema_version == version
    assert read.count((schema_key(NAME),)) <= 1


@pytest.fixture
def read(monkeypatch):
    """The definitions that were parsed."""
    return calls_of(monkeypatch, schemas_module, "meaning")


def test_versions_are_parsed_once_for_schemas_of_another_text(harness, read):
    schemas = harness.broker.schemas
    for number in range(120):
        schemas.put(NAME, record(*letters(number)), auto_update=True)
    harness.restart()
    schemas = harness.broker.schemas
    read.clear()
    spaced = record(*letters(7))
    assert schemas.find(NAME, spaced) == 7
    assert read == [], "a version has the same text"
    spaced.schema_data = spaced.schema_data.replace(b":", b" : ")
    assert produce(harness, spaced).producer_success.schema_version == version_bytes(7)
    assert len(read) == 121
    assert schemas.find(NAME, record("new")) == -1
    assert len(read) == 122
    schemas.delete(NAME)
    schemas.put(NAME, record("z"), auto_update=True)
    assert (schemas.find(NAME, record("z")), schemas.find(NAME, spaced)) == (0, -1)


def test_the_memory_for_schemas_is_bounded(harness, monkeypatch):
    monkeypatch.setattr("geminga.broker.rules.schemas.PARSED_BYTES_MAX", 2_000)
    schemas = harness.broker.schemas
    names = [TopicName.parse(f"t{number}") for number in range(10)]
    for _ in range(2):
        for name in names:
            schemas.put(name, record(name.local, REQUIRED), auto_update=True)
    assert all(len(schemas.versions(name)) == 1 for name in names)
    assert 0 < sum(map(schemas.in_memory, names)) < 5
    schemas.delete(names[-1])
    assert schemas.versions(names[-1]) == []


def test_damaged_schemas_are_named(harness, make_harness):
    harness.store.keys.put(schema_key(NAME), b"\x05abcde")
    with pytest.raises(StoreDamaged, match="version 0 is no schema"):
        harness.broker.schemas.versions(NAME)


def test_numbers_of_deleted_versions_are_not_reused(harness):
    """Messages refer to version numbers: a reused number would decode old messages with a new schema."""
    schemas, done = harness.broker.schemas, list[Any]()
    assert (schemas.retire(NAME, done.append), schemas.versions(NAME)) == (0, [])
    for letter in "ab":
        schemas.put(NAME, record(letter), auto_update=True)
    assert schemas.retire(NAME, done.append) == 2
    for _ in range(2):
        assert (schemas.latest(NAME), schemas.intact(NAME)) == (None, [])
        assert [schemas.get(NAME, number) for number in range(4)] == [None] * 4
        assert schemas.find(NAME, record("a")) == -1
        assert schemas.find(NAME, pb.Schema()) == -1
        harness.restart()
        schemas = harness.broker.schemas
    size = len(harness.store.keys.get(schema_key(NAME)).base)
    assert schemas.retire(NAME, done.append) == 2, "nothing is left to delete"
    assert schemas.put(NAME, record("a", REQUIRED), auto_update=True) == 3
    assert schemas.put(NAME, record("c", "a", REQUIRED), auto_update=True) == 4
    assert [number for number, _ in schemas.numbered(NAME)] == [3, 4]
    assert schemas.retire(NAME, done.append) == 5
    assert len(harness.store.keys.get(schema_key(NAME)).base) == 2 * size, "definitions are not kept"
    schemas.delete(NAME)
    assert schemas.put(NAME, record("z"), auto_update=True) == 0
    harness.poll()
    assert done == [None] * 4
