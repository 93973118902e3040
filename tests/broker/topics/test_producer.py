"""A producer's books."""

from __future__ import annotations

import pytest

from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"
Command = pb.BaseCommand


@pytest.fixture
def peer(harness):
    peer = harness.peer()
    peer.producer(TOPIC, metadata=[pb.KeyValue(key="a", value="b")])
    return peer


def test_closing_waits_for_pending_entries(peer):
    producer = peer.session.producers[1]
    drained: list[int] = []
    producer.taken(3, 100, chunk=False)
    producer.taken(1, 50, chunk=True)
    producer.on_drained = lambda: drained.append(1)
    assert (producer.pending, producer.messages_in, producer.bytes_in) == (2, 4, 150)
    assert producer.chunked
    producer.settled(100)
    assert not drained
    producer.settled(50)
    assert drained == [1]
    assert peer.session.pending_bytes == 0


def test_receipts_and_errors_are_sent(peer):
    producer = peer.session.producers[1]
    producer.receipt(5, 0, -1, -1)
    producer.receipt(6, 8, 3, 4)
    producer.error(9, pb.PersistenceError, "disk")
    first, second = peer.receipts()
    assert (first.sequence_id, first.ledger_id, first.entry_id, first.highest_sequence_id) == (5, -1, -1, 0)
    assert (second.ledger_id, second.entry_id, second.highest_sequence_id) == (3, 4, 8)
    assert peer.pop().command.send_error.message == "disk"


def test_the_producer_shows_its_identity(peer):
    producer = peer.session.producers[1]
    assert producer.metadata == {"a": "b"}
    assert producer.access_mode_name == "Shared"
    assert "10.0.0.1" in repr(producer)
