"""GET_SCHEMA and GET_OR_CREATE_SCHEMA when the store fails (the rest is in test_schemas)."""

from geminga.broker.rules.schemas import schema_key
from geminga.errors import StoreStopped
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC

SCHEMA = {"name": "s", "schema_data": b"", "type": pb.Schema.String}


def test_a_damaged_schema_is_answered_with_an_error(harness):
    peer = harness.producer(TOPIC)
    harness.store.keys.put(schema_key(TopicName.parse(TOPIC)), b"\x05ab")
    assert peer.request("getSchema", topic=TOPIC).command.getSchemaResponse.error_code == pb.PersistenceError
    frame = peer.request("getOrCreateSchema", topic=TOPIC, schema=SCHEMA)
    assert frame.command.getOrCreateSchemaResponse.error_code == pb.PersistenceError
    assert not peer.is_closed


def test_a_stopped_store_is_answered_with_an_error(harness, monkeypatch):
    peer = harness.producer(TOPIC)
    merge = harness.store.keys.merge
    failed = StoreStopped("full")
    monkeypatch.setattr(
        harness.store.keys, "merge", lambda key, delta, done: merge(key, delta, lambda _: done(failed))
    )
    frame = peer.request("getOrCreateSchema", topic=TOPIC, schema=SCHEMA)
    assert frame.command.getOrCreateSchemaResponse.error_code == pb.PersistenceError
