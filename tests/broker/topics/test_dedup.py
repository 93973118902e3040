"""Deduplication: one copy of each (producer, sequence id), after any events in between."""

from typing import Any

import pytest
from doubles import calls_of, raising

from geminga.broker.topics import dedup
from geminga.broker.topics.dedup import Deduplication, dedup_key
from geminga.errors import StoreDamaged, StoreStopped
from geminga.ledger.api import StoredValue
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, TOPIC


@pytest.fixture
def harness(make_harness):
    return make_harness(deduplication=True)


@pytest.fixture
def make(make_entry):
    def entry(sequence_id: int, producer: str = "me", **fields: Any) -> bytes:
        return make_entry(b"%d" % sequence_id, sequence_id=sequence_id, producer_name=producer, **fields)

    return entry


def connect(harness: Any, name: str = "me") -> tuple[Any, int]:
    peer = harness.peer()
    answer = peer.producer(TOPIC, producer_name=name, user_provided_producer_name=True)
    return peer, answer.last_sequence_id


@pytest.fixture
def publish(make):
    def connected(harness: Any, count: int) -> Any:
        """A producer that has sent the messages 0, 1, ... ``count`` - 1."""
        peer, _ = connect(harness)
        peer.send_all(make(sequence_id) for sequence_id in range(count))
        return peer

    return connected


@pytest.fixture
def pending(harness, publish):
    """A producer whose message 0 is accepted and not stored yet."""
    harness.auto_poll = False
    return publish(harness, 1)


def ids(peer: Any) -> list[tuple[int, int, int]]:
    return [(r.sequence_id, r.ledger_id, r.entry_id) for r in peer.receipts()]


def stored(harness: Any) -> list[bytes]:
    peer = harness.consumer(TOPIC, "check", durable=False, start_message_id={"ledgerId": 0, "entryId": 0})
    found = peer.payloads()
    peer.disconnect()
    return found


def test_duplicates_are_receipted_as_such(harness, make):
    peer, last = connect(harness)
    assert last == -1
    for sequence_id in (10, 10, 9, 11):
        peer.send(sequence_id, make(sequence_id))
    assert ids(peer) == [(10, 0, 0), (10, -1, -1), (9, -1, -1), (11, 0, 1)]
    assert stored(harness) == [b"10", b"11"]


def test_a_batch_counts_with_its_highest_sequence_id(harness, make):
    peer, _ = connect(harness)
    batch = make(0, num_messages_in_batch=3, highest_sequence_id=2)
    peer.send(0, batch, messages=3, highest=2)
    peer.send(0, batch, messages=3, highest=2)
    peer.send(2, make(2))
    peer.send(3, make(3))
    assert ids(peer) == [(0, 0, 0), (0, -1, -1), (2, -1, -1), (3, 0, 1)]


def test_a_producer_learns_what_an_ended_connection_published(harness, make):
    """Else its next batch would begin with a stored message, and would be dropped as a whole."""
    peer, _ = connect(harness)
    again = harness.peer()
    harness.auto_poll = False
    peer.send(7, make(7))
    peer.disconnect()
    again.command("producer", topic=TOPIC, producer_id=1, request_id=9, producer_name="me")
    harness.poll()
    assert again.pop().command.producer_success.last_sequence_id == 7


def test_the_receipts_of_duplicates_keep_their_order(harness, make, publish):
    peer = publish(harness, 1)
    peer.receipts()
    harness.auto_poll = False
    for sequence_id in (1, 0, 0, 2):
        peer.send(sequence_id, make(sequence_id))
    harness.poll()
    assert ids(peer) == [(1, 0, 1), (0, -1, -1), (0, -1, -1), (2, 0, 2)]


@pytest.mark.parametrize("end", ["restart", "crash"])
@pytest.mark.parametrize("count", [3, 25])
def test_known_sequence_ids_survive_restarts(harness, make, publish, monkeypatch, end, count):
    monkeypatch.setattr(dedup, "SNAPSHOT_ENTRIES", 10)
    publish(harness, count)
    getattr(harness, end)()
    peer, last = connect(harness)
    assert last == count - 1
    peer.send(count - 1, make(count - 1))
    peer.send(count, make(count))
    assert [found[1:] == (-1, -1) for found in ids(peer)] == [True, False]
    assert len(stored(harness)) == count + 1


def test_only_the_last_chunk_counts(harness, make):
    peer, _ = connect(harness)
    chunks = [make(5, uuid="u", chunk_id=n, num_chunks_from_msg=3, total_chunk_msg_size=3) for n in range(3)]
    for chunk in chunks[:2]:
        peer.send(5, chunk, is_chunk=True)
    assert [found[1:] for found in ids(peer)] == [(0, 0), (0, 1)]
    peer.disconnect()
    harness.crash()
    peer, last = connect(harness)
    assert last == -1
    for chunk in chunks:
        peer.send(5, chunk, is_chunk=True)
    assert (-1, -1) not in [found[1:] for found in ids(peer)]
    peer.send(5, chunks[2], is_chunk=True)
    assert ids(peer) == [(5, -1, -1)]


def set_policy(harness: Any, value: bool | None) -> None:
    harness.broker.namespaces.set_policy("public", "default", "deduplicationEnabled", value)


@pytest.mark.parametrize("under_way", [False, True])
def test_truncating_forgets_no_sequence_id(harness, make, publish, under_way):
    harness.auto_poll = not under_way
    peer = publish(harness, 3)
    outcomes: list[Any] = []
    harness.actions.topic(NAME).truncate(outcomes.append)
    harness.poll()
    harness.poll()
    harness.auto_poll = True
    assert outcomes == [None]
    assert ids(peer) == [(0, 0, 0), (1, 0, 1), (2, 0, 2)]
    harness.crash()
    peer, last = connect(harness)
    assert last == 2
    peer.send(2, make(2))
    assert ids(peer) == [(2, -1, -1)]
    assert stored(harness) == []


def test_messages_published_during_a_truncation_are_kept(harness, make, pending):
    harness.actions.topic(NAME).truncate(lambda error: None)
    pending.send(1, make(1))
    harness.poll()
    harness.auto_poll = True
    assert stored(harness) == [b"1"]


@pytest.mark.usefixtures("pending")
def test_a_topic_that_is_deleted_while_it_is_truncated_leaves_nothing(harness):
    harness.actions.topic(NAME).truncate(lambda error: None)
    harness.actions.delete(NAME, True, lambda error: None)
    harness.poll()
    assert [key for key, _ in harness.store.keys.scan("") if TOPIC in key] == []


@pytest.mark.parametrize("can_be_stored", [True, False])
def test_trimming_forgets_no_sequence_id(make_harness, publish, monkeypatch, can_be_stored):
    """Entries without a snapshot are not trimmed."""
    harness = make_harness(deduplication=True, ledger_entries_max=2, retention_minutes=0)
    publish(harness, 6)
    put = harness.store.keys.put

    def full(key: str, *args: Any, **options: Any) -> None:
        if key == dedup_key(TOPIC):
            raise StoreStopped("no space left")
        put(key, *args, **options)

    if not can_be_stored:
        monkeypatch.setattr(harness.store.keys, "put", full)
    harness.advance(20)
    assert (len(stored(harness)) == 2) is can_be_stored
    harness.crash()
    assert connect(harness)[1] == 5


def test_repeats_of_pending_messages_are_refused_and_of_refused_ones_stored(
    harness, make, pending, monkeypatch
):
    pending.send(0, make(0))
    with monkeypatch.context() as patched:
        patched.setattr(harness.store, "append", raising(StoreStopped("no space left")))
        pending.send(1, make(1))
    errors = [frame.command.send_error for frame in pending.take(pb.BaseCommand.SEND_ERROR)]
    assert [error.sequence_id for error in errors] == [0, 1]
    assert {error.error for error in errors} == {pb.PersistenceError}
    harness.auto_poll = True
    harness.poll()
    assert ids(pending) == [(0, 0, 0)]
    assert pending.pop().type == pb.BaseCommand.CLOSE_PRODUCER
    pending.producer(TOPIC, producer_name="me", user_provided_producer_name=True)
    pending.send(1, make(1))
    assert ids(pending) == [(1, 0, 1)]


@pytest.mark.parametrize("deleted", [False, True])
def test_snapshots_before_deduplication_was_off_are_ignored(harness, make, publish, deleted):
    publish(harness, 5).disconnect()
    harness.actions.unload(NAME)
    set_policy(harness, False)
    if deleted:
        harness.actions.delete(NAME, True, lambda error: None)
        harness.poll()
    publish(harness, 2).disconnect()
    harness.actions.unload(NAME)
    set_policy(harness, True)
    peer, last = connect(harness)
    assert last == -1
    peer.receipts()
    peer.send(2, make(2))
    assert ids(peer)[0][1] >= 0


def test_an_unchanged_snapshot_is_not_written(make_harness, publish, monkeypatch):
    harness = make_harness(deduplication=True, ledger_entries_max=2)
    publish(harness, 6).disconnect()
    harness.actions.unload(NAME)
    written = calls_of(monkeypatch, harness.store.keys, "put")
    harness.broker.topics.find(NAME)
    harness.advance(100)
    assert harness.broker.topics.loaded() == []
    assert dedup_key(TOPIC) not in [key for key, *_ in written]


def test_deduplication_can_be_switched_on_and_off(make_harness, make):
    harness = make_harness()
    peer, _ = connect(harness)
    for _ in range(2):
        peer.send(0, make(0))
    assert len(stored(harness)) == 2
    set_policy(harness, True)
    for _ in range(2):
        peer.send(1, make(1))
    assert len(stored(harness)) == 3
    set_policy(harness, False)
    peer.send(1, make(1))
    assert len(stored(harness)) == 4
    assert harness.store.keys.get(dedup_key(TOPIC)) is None


def test_deleting_the_topic_removes_all_sequence_ids(harness, make, publish):
    publish(harness, 1)
    harness.actions.delete(NAME, True, lambda error: None)
    harness.poll()
    peer, last = connect(harness)
    assert last == -1
    peer.send(0, make(0))
    assert ids(peer)[0][1] >= 0


def test_the_names_used_longest_ago_are_forgotten(make_harness, make):
    harness = make_harness(deduplication=True, deduplication_producers_max=3)
    for name in ("a", "b", "c", "d"):
        peer, _ = connect(harness, name)
        peer.send(7, make(7, name))
    known = harness.broker.topics.find(NAME).dedup
    known.save()
    assert [known.last_sequence_id(name) for name in ("a", "b", "c", "d")] == [-1, 7, 7, 7]


def test_a_damaged_snapshot_is_named(harness):
    topic = harness.broker.topics.make(NAME)
    harness.store.keys.put(dedup_key(TOPIC), b"\x07")
    with pytest.raises(StoreDamaged, match="deduplication snapshot of"):
        Deduplication.load(harness.store, TOPIC, topic.ledger, 10)
    assert harness.store.keys.get(dedup_key(TOPIC)) == StoredValue(b"\x07", ())
