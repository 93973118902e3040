"""The same record classes in pulsar-client and here: definitions, payloads and schema versions agree, both
ways through our broker."""

import importlib
from typing import Any

import pytest
from pulsar import schema as theirs
from record_classes import records, value_of

import geminga
from geminga import schema as ours

pytest.importorskip("fastavro")


OURS, THEIRS = records(ours), records(theirs)
NAMES = sorted(OURS)


def plain(record: Any) -> Any:
    """A record of either library as dicts."""
    if isinstance(record, (ours.Record, theirs.Record)):
        return {name: plain(getattr(record, name)) for name in record._fields}
    if isinstance(record, list):
        return [plain(item) for item in record]
    if isinstance(record, dict):
        return {key: plain(item) for key, item in record.items()}
    return record


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
@pytest.mark.parametrize("name", NAMES)
def test_record_definitions_and_payloads_are_the_same(kind, name):
    mine, other = getattr(ours, kind)(OURS[name]), getattr(theirs, kind)(THEIRS[name])
    info = mine.schema_info()
    assert info.data.decode() == other.schema_info().schema()
    assert info.name == other.schema_info().name()
    assert info.type == int(other.schema_info().schema_type())
    payload = other.encode(value_of(THEIRS, name))
    assert mine.encode(value_of(OURS, name)) == payload
    assert plain(mine.decode(payload)) == plain(value_of(OURS, name))


@pytest.fixture
def here(broker):
    with geminga.Client(broker.service_url, operation_timeout_seconds=10) as mine:
        yield mine


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
@pytest.mark.parametrize("name", NAMES)
def test_each_library_reads_the_records_of_the_other(client, here, admin, topic, kind, name):
    mine, other = getattr(ours, kind)(OURS[name]), getattr(theirs, kind)(THEIRS[name])
    at_theirs = client.subscribe(topic, "theirs", schema=other)
    at_ours = here.subscribe(topic, "ours", schema=mine)
    client.create_producer(topic, schema=other).send(value_of(THEIRS, name))
    here.create_producer(topic, schema=mine).send(value_of(OURS, name))
    for consumer in (at_theirs, at_ours):
        for _ in range(2):
            message = consumer.receive(30_000)
            assert plain(message.value()) == plain(value_of(OURS, name))
            assert bytes(message.schema_version(), "latin-1") == bytes(8)
            consumer.acknowledge(message)
    # One version: both libraries described the very same schema.
    versions = admin("GET", f"schemas/public/default/{topic.rsplit('/', 1)[1]}/schemas")
    assert len(versions["getSchemaResponses"]) == 1


def evolved(module: Any) -> tuple[Any, Any]:
    class First(module.Record):
        x = module.Integer(required=True)

    class Second(module.Record):
        y = module.String(default="none", required_default=True)
        x = module.Integer(required=True)

    First.__name__ = Second.__name__ = "Reading"
    return First, Second


@pytest.mark.parametrize("batching", [False, True])
def test_both_libraries_read_old_and_new_versions(client, here, topic, batching):
    (our_old, our_new), (their_old, their_new) = evolved(ours), evolved(theirs)
    at_theirs = client.subscribe(topic, "theirs", schema=theirs.AvroSchema(their_old))
    here.create_producer(topic, schema=ours.AvroSchema(our_old), batching_enabled=batching).send(our_old(x=1))
    at_ours = here.subscribe(
        topic, "ours", schema=ours.AvroSchema(our_new), initial_position=geminga.InitialPosition.Earliest
    )
    client.create_producer(topic, schema=theirs.AvroSchema(their_new), batching_enabled=batching).send(
        their_new(x=2, y="two")
    )
    mixed = here.create_producer(topic, schema=ours.AvroSchema(our_new), batching_enabled=batching)
    older = mixed.with_schema(ours.AvroSchema(our_old))
    for x in range(3, 9):
        if x % 2:
            mixed.send_async(our_new(x=x, y=str(x)), None)
        else:
            older.send_async(our_old(x=x), None)
    mixed.flush()
    found = [at_ours.receive(30_000) for _ in range(8)]
    expected = ["none", "two", "3", "none", "5", "none", "7", "none"]
    assert [(m.value().x, m.value().y) for m in found] == list(zip(range(1, 9), expected, strict=True))
    assert [m.int_schema_version() for m in found] == [0, 1, 1, 0, 1, 0, 1, 0]
    assert [at_theirs.receive(30_000).value().x for _ in range(8)] == list(range(1, 9))


def test_protobuf_messages_are_read_by_both_libraries(client, here, topic):
    timestamp_class = importlib.import_module("google.protobuf.timestamp_pb2").Timestamp
    mine, other = ours.ProtobufNativeSchema(timestamp_class), theirs.ProtobufNativeSchema(timestamp_class)
    at_theirs = client.subscribe(topic, "theirs", schema=other)
    at_ours = here.subscribe(topic, "ours", schema=mine)
    unknown = here.subscribe(topic, "auto", schema=ours.AutoConsumeSchema())
    client.create_producer(topic, schema=other).send(timestamp_class(seconds=1))
    here.create_producer(topic, schema=mine).send(timestamp_class(seconds=2))
    for consumer in (at_theirs, at_ours, unknown):
        assert [consumer.receive(30_000).value().seconds for _ in range(2)] == [1, 2]
