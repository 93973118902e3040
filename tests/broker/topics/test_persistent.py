"""A topic's own doings that no command shows directly."""

import dataclasses
from typing import Any

import pytest
from doubles import raising

from geminga.broker.topics.record import decode_json, encode_json
from geminga.errors import StoreDamaged, StoreStopped
from geminga.ledger.api import LostWrites, StoredValue
from geminga.wire.frames import encode_send
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME


def test_idle_means_no_clients_and_no_pending_work(harness):
    peer = harness.producer(str(NAME))
    topic = harness.broker.topics.find(NAME)
    assert not topic.idle
    harness.auto_poll = False
    peer.send(0)
    peer.disconnect()
    assert not topic.idle
    harness.poll()
    assert topic.idle


def run_of(ids: list[int], entry: bytes) -> bytes:
    return b"".join(encode_send(1, number, 1, None, len(entry)) + entry for number in ids)


@pytest.mark.parametrize("entries_max", [1, 7, 50, 1000])
def test_runs_are_stored_like_single_messages(make_harness, make_entry, entries_max):
    harness = make_harness(ledger_entries_max=entries_max)
    peer = harness.producer(str(NAME))
    harness.peer().subscribe(str(NAME), permits=0)
    entry = make_entry()
    for _ in range(3):
        peer.send_bytes(run_of(list(range(100, 140)), entry))
        peer.send_bytes(run_of([9, 7, 7, 8], entry))
    receipts = peer.receipts()
    assert [each.sequence_id for each in receipts] == [*range(100, 140), 9, 7, 7, 8] * 3
    topic = harness.broker.topics.find(NAME)
    ids = [topic.ledger.position(offset) for offset in range(132)]
    assert [(each.ledger_id, each.entry_id) for each in receipts] == ids
    assert max(entry_id for _, entry_id in ids) < entries_max
    assert (topic.messages_in, topic.bytes_in) == (132, 132 * len(entry))
    assert topic.subscriptions["s"].backlog_tally() == (132, 132 * len(entry))
    producer = next(iter(peer.session.producers.values()))
    assert (producer.pending, producer.messages_in, peer.session.pending_bytes) == (0, 132, 0)
    assert harness.consumer(str(NAME), "other").ids() == ids


def test_a_run_with_a_damaged_message_is_handled_singly(harness, make_entry):
    peer = harness.producer(str(NAME))
    entry = make_entry()
    damaged = entry[:-1] + b"?"
    frames = [run_of([number], damaged if number == 2 else entry) for number in range(5)]
    peer.send_bytes(b"".join(frames))
    assert [each.sequence_id for each in peer.receipts()] == [0, 1, 3, 4]
    (error,) = peer.take(pb.BaseCommand.SEND_ERROR)
    assert (error.command.send_error.sequence_id, error.command.send_error.error) == (2, pb.ChecksumError)

    topic = harness.broker.topics.find(NAME)
    topic.policies_changed(dataclasses.replace(topic.policies, deduplication=True))
    harness.poll()
    for ids in ([10, 11, 12], [11, 13]):
        peer.send_bytes(run_of(ids, entry))
    found = {(each.sequence_id, each.entry_id >= 0) for each in peer.receipts()}
    assert found == {(10, True), (11, True), (12, True), (11, False), (13, True)}

    topic.terminate(lambda error: None)
    assert peer.take(pb.BaseCommand.CLOSE_PRODUCER)


def test_each_message_of_a_refused_run_gets_an_answer(harness, make_entry):
    peer = harness.producer(str(NAME))
    peer.send(0)
    peer.receipts()
    store, failure = harness.store, StoreStopped("the disk is gone")
    reports: list[Any] = []
    append_run = store.append_run
    store.append_run = lambda ledger_id, entries, done: (
        reports.append(done) or append_run(ledger_id, entries, lambda error: None)
    )
    peer.send_bytes(run_of([1, 2, 3], make_entry()))
    assert peer.session.pending_bytes == 3 * len(make_entry())
    reports[0](failure)
    store.append_run = raising(failure)
    peer.send_bytes(run_of([4, 5], make_entry()))
    errors = [frame.command.send_error for frame in peer.take(pb.BaseCommand.SEND_ERROR)]
    assert [(each.sequence_id, each.error) for each in errors] == [
        (number, pb.PersistenceError) for number in (1, 2, 3, 4, 5)
    ]
    assert not peer.receipts()
    assert peer.session.pending_bytes == 0
    assert harness.topic().ledger.confirmed == 1


def test_a_refused_entry_is_not_pending(harness, monkeypatch):
    peer = harness.peer()
    for number in (1, 2):
        peer.producer(f"t{number}", producer_id=number)
    harness.auto_poll = False
    peer.send(0, producer_id=1)
    with monkeypatch.context() as context:
        context.setattr(harness.store, "append", raising(StoreStopped("no space left")))
        peer.send(0, producer_id=2)
    peer.pop()
    peer.send(1, producer_id=2)
    harness.poll()
    assert [(r.producer_id, r.sequence_id) for r in peer.receipts()] == [(1, 0), (2, 1)]


def test_records_are_json_objects():
    assert decode_json(StoredValue(encode_json({"a": 1}), ()), "r") == {"a": 1}
    for damaged in (b"{", b"[]", b""):
        with pytest.raises(StoreDamaged, match="the record is no JSON object"):
            decode_json(StoredValue(damaged, ()), "the record")
    assert decode_json(StoredValue(b"", (), LostWrites(values=1)), "the record") == {}
    assert decode_json(StoredValue(encode_json({"a": 1}), (), LostWrites(values=1)), "r") == {"a": 1}
