"""PRODUCER, SEND, CLOSE_PRODUCER."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from doubles import raising

from geminga.broker.commands.producing import METADATA_BYTES_MAX
from geminga.broker.rules.schemas import version_bytes
from geminga.broker.topics.persistent import PersistentTopic
from geminga.errors import StoreBusy, StoreError, StoreStopped
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, TOPIC, Command

SCHEMA = {"name": "s", "type": pb.Schema.String, "schema_data": b""}


def refused(peer: Any, **fields: Any) -> int:
    frame = peer.request("producer", **{"topic": TOPIC, "producer_id": 1, **fields})
    assert frame.type == Command.ERROR
    return frame.command.error.error


@pytest.fixture
def peer(harness):
    return harness.producer(TOPIC)


def test_generated_names_are_never_reused(harness):
    peer = harness.peer()
    names = [peer.producer(TOPIC, producer_id=n).producer_name for n in range(3)]
    assert names == [f"standalone-{harness.now_ms}-{number}" for number in range(3)]
    harness.advance(1)
    harness.restart()
    assert harness.peer().producer(TOPIC).producer_name not in names


def test_a_live_producer_id_gets_its_own_producer_again(harness):
    peer = harness.peer()
    name = peer.producer(TOPIC).producer_name
    assert peer.producer("persistent://public/default/other").producer_name == name
    assert not harness.actions.exists(TopicName.parse("other"))


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("persistent://public/default", pb.InvalidTopicName),
        ("bad://public/default/t", pb.InvalidTopicName),
        ("persistent://public/default/../x", pb.InvalidTopicName),
        ("persistent://public/missing/t", pb.TopicNotFound),
        ("persistent://public/default/parts", pb.NotAllowedError),
        ("persistent://public/default/parts-partition-2", pb.TopicNotFound),
    ],
)
def test_producers_of_unusable_topics_are_refused(harness, topic, code):
    harness.actions.create_partitioned(TopicName.parse("parts"), 2, lambda error: None)
    peer = harness.peer()
    assert refused(peer, topic=topic) == code
    assert peer.producer("persistent://public/default/parts-partition-1").producer_ready


def test_without_auto_creation_a_producer_needs_an_existing_topic(make_harness):
    harness = make_harness(auto_create_topics=False)
    peer = harness.peer()
    assert refused(peer) == pb.TopicNotFound
    harness.actions.create(NAME, lambda error: None)
    assert peer.producer(TOPIC).producer_ready


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producer_name": "x" * 9000}, pb.NotAllowedError),
        ({"initial_subscription_name": "x" * 5000}, pb.NotAllowedError),
        ({"metadata": [pb.KeyValue(key="k", value="v" * METADATA_BYTES_MAX)]}, pb.MetadataError),
    ],
)
def test_names_and_metadata_that_are_too_long_to_store_are_refused(harness, fields, code):
    peer = harness.peer()
    assert refused(peer, **fields) == code
    assert peer.producer(TOPIC).producer_ready


def test_the_initial_subscription_sees_the_first_message(harness):
    harness.producer(TOPIC, initial_subscription_name="init").send(0)
    consumer = harness.consumer(TOPIC, "init", earliest=False)
    assert len(consumer.messages()) == 1


def test_the_initial_subscription_needs_auto_creation(make_harness):
    harness = make_harness(auto_create_subscriptions=False)
    assert refused(harness.peer(), initial_subscription_name="init") == pb.NotAllowedError


# --- SEND ---
def test_receipts_come_in_order_and_echo_what_was_sent(harness, peer):
    harness.auto_poll = False
    for sequence_id, messages, highest in ((3, 1, None), (7, 3, 9), (100, 1, None)):
        peer.send(sequence_id, messages=messages, highest=highest)
    assert not peer.frames
    harness.poll()
    found = [(r.sequence_id, r.highest_sequence_id, r.ledger_id, r.entry_id) for r in peer.receipts()]
    assert found == [(3, 0, 0, 0), (7, 9, 0, 1), (100, 0, 0, 2)]


def test_nothing_is_receipted_or_delivered_before_it_is_durable(harness, peer):
    consumer = harness.consumer(TOPIC)
    harness.auto_poll = False
    peer.send(0)
    consumer.command("flow", consumer_id=1, messagePermits=1)
    assert not peer.frames
    assert not consumer.frames
    harness.poll()
    assert len(peer.receipts()) == len(consumer.messages()) == 1


def test_entries_are_stored_and_delivered_unchanged(harness, make_entry, peer):
    consumer = harness.consumer(TOPIC)
    with_magic = make_entry(b"payload", partition_key="k")
    without_magic = with_magic[6:]
    big = make_entry(b"x" * 200_000)
    peer.send_all((with_magic, without_magic, big))
    assert [bytes(m.entry) for m in consumer.messages()] == [with_magic, without_magic, big]
    late = harness.consumer(TOPIC, "late")
    assert [bytes(m.entry) for m in late.messages()] == [with_magic, without_magic, big]


@pytest.mark.parametrize("size", [*range(2, 6), None])  # the magic, and what there is of the checksum; all
def test_a_wrong_or_short_checksum_fails_only_that_send(make_entry, size, peer):
    entry = bytearray(make_entry(b"payload"))
    entry[-1] ^= 1
    peer.send(5, bytes(entry[:size]))
    error = peer.pop().command.send_error
    assert (error.producer_id, error.sequence_id, error.error) == (1, 5, pb.ChecksumError)
    peer.send(6)
    assert len(peer.receipts()) == 1


@pytest.mark.parametrize("fault", ["checksum", "store", "store, in a transaction"])
def test_with_deduplication_no_entry_behind_one_that_is_to_be_repeated_is_stored(
    harness, make_entry, peer, monkeypatch, fault
):
    """It would make the repeated one a duplicate."""
    topic = harness.broker.topics.find(NAME)
    topic.policies_changed(dataclasses.replace(topic.policies, deduplication=True))
    entry, transaction = make_entry(b"payload"), None
    if fault == "checksum":
        entry = entry[:-1] + b"?"
    elif fault == "store":
        monkeypatch.setattr(harness.store, "append", raising(StoreError("cannot be read")))
    else:
        transaction = peer.begin_transaction()
        monkeypatch.setattr(harness.store.keys, "merge", raising(StoreError("cannot be read")))
    peer.send(5, entry, transaction=transaction)
    monkeypatch.undo()
    peer.send(6)
    assert peer.receipts() == []
    assert len(peer.take(Command.SEND_ERROR)) == len(peer.take(Command.CLOSE_PRODUCER)) == 1


@pytest.mark.parametrize("changes", [{"max_message_size": 5000}, {"delayed_delivery_seconds_max": 60.0}])
def test_with_deduplication_producers_reconnect_when_a_limit_of_entries_is_lowered(harness, peer, changes):
    """A client sends nothing behind an entry that may be refused, until it knows the limit."""
    topic, before = harness.topic(), harness.topic().policies
    changed = [dataclasses.replace(before, deduplication=True)]
    changed += [dataclasses.replace(changed[0], **changes), changed[0]]
    harness.auto_poll = False
    topic.policies_changed(changed[0])
    peer.send(0)
    topic.policies_changed(changed[1])
    peer.send(1)
    harness.poll()
    assert [each.sequence_id for each in peer.receipts()] == [0]
    assert peer.pop().type == Command.CLOSE_PRODUCER
    harness.auto_poll = True
    peer.producer(TOPIC)
    topic.policies_changed(changed[2])
    peer.send(1)
    assert [frame.type for frame in peer.frames] == [Command.SEND_RECEIPT]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"highest": 4}, pb.MetadataError),
        ({"transaction": (1, 0)}, pb.NotAllowedError),
        ({"transaction": (0, 1)}, pb.NotAllowedError),
    ],
)
def test_sends_with_bad_numbers_are_refused(fields, code, peer):
    peer.send(5, **fields)
    assert peer.pop().command.send_error.error == code
    assert not peer.is_closed


def test_a_send_of_no_messages_closes_the_connection(peer):
    peer.send(0, messages=0)
    assert peer.is_closed


def test_a_send_after_the_broker_closed_the_producer_is_dropped_for_a_while(harness, peer):
    harness.actions.unload(NAME)
    closed = peer.pop().command.close_producer
    assert (closed.producer_id, closed.request_id) == (1, (1 << 64) - 1)
    harness.advance(29)
    peer.send(0)
    assert not peer.is_closed
    assert peer.take(Command.SEND_RECEIPT) == []
    harness.advance(2)
    peer.send(1)
    assert peer.is_closed


def test_each_send_to_a_stopped_store_is_answered_with_an_error(harness, peer):
    peer.send(0)
    peer.receipts()
    harness.store.close()
    peer.send(1)
    assert peer.pop().command.send_error.error == pb.PersistenceError


def test_entries_that_violate_policies_are_refused(harness, make_entry):
    peer, namespaces = harness.producer(TOPIC, encrypted=True), harness.broker.namespaces
    namespaces.set_topic_policy(NAME, "max_message_size", 200)
    peer.send(0, make_entry(payload=b"x" * 300))
    assert peer.pop().command.send_error.error == pb.NotAllowedError
    namespaces.set_policy("public", "default", "encryption_required", True)
    peer.send(0, make_entry())
    assert peer.pop().command.send_error.error == pb.MetadataError


# --- CLOSE_PRODUCER ---
def test_closing_waits_for_the_receipts(harness, peer):
    harness.auto_poll = False
    peer.send(0)
    peer.send(1)
    peer.command("close_producer", producer_id=1, request_id=5)
    assert not peer.frames
    harness.poll()
    assert [frame.type for frame in peer.frames] == [*[Command.SEND_RECEIPT] * 2, Command.SUCCESS]


def test_closing_succeeds_though_the_topic_is_terminated_before_the_receipts(harness, peer):
    harness.auto_poll = False
    peer.send(0)
    peer.command("close_producer", producer_id=1, request_id=5)
    harness.topic().terminate(lambda error: None)
    harness.poll()
    assert [frame.type for frame in peer.frames] == [Command.SEND_RECEIPT, Command.SUCCESS]
    assert not peer.session.producers.closing


def test_closing_an_unknown_producer_succeeds(harness):
    assert harness.peer().request("close_producer", producer_id=9).type == Command.SUCCESS


def test_a_terminated_topic_takes_no_more(harness, peer):
    harness.consumer(TOPIC)
    peer.send(0)
    peer.receipts()
    harness.actions.topic(NAME).terminate(lambda error: None)
    harness.poll()
    assert peer.pop().type == Command.CLOSE_PRODUCER
    assert refused(peer) == pb.TopicTerminatedError
    harness.restart()
    assert refused(harness.peer()) == pb.TopicTerminatedError


def test_a_producer_receives_only_durable_schema_versions(harness):
    peers = [harness.peer(), harness.peer()]
    harness.auto_poll = False
    for peer in peers:
        peer.command("producer", topic=TOPIC, producer_id=1, request_id=1, schema=SCHEMA)
    assert [peer.frames for peer in peers] == [[], []]
    harness.poll()
    found = [peer.pop().command.producer_success for peer in peers]
    assert len({each.producer_name for each in found}) == 2
    assert {each.schema_version for each in found} == {version_bytes(0)}
    late = harness.peer()
    late.command("producer", topic=TOPIC, producer_id=1, request_id=1, schema=SCHEMA)
    assert late.pop().type == Command.PRODUCER_SUCCESS, "nothing is to be waited for"


def test_a_producer_whose_schema_cannot_be_stored_is_refused(harness, monkeypatch):
    error, whole = StoreStopped("the disk is gone"), harness.store.keys.merge

    def fails(key: str, value: bytes, done: Any = None) -> None:
        whole(key, value, done if done is None else lambda _: done(error))

    harness.broker.topics.make(NAME)
    harness.poll()
    peer = harness.peer()
    with monkeypatch.context() as patched:
        patched.setattr(harness.store.keys, "merge", fails)
        assert refused(peer, schema=SCHEMA) == pb.PersistenceError
    assert not harness.broker.topics.find(NAME).access.producers
    peer.producer(TOPIC, schema=SCHEMA)


@pytest.mark.parametrize("method", ["used", "check_quota"])
def test_a_producer_waits_for_a_busy_disk(harness, monkeypatch, method):
    """The connection, with all else that goes over it, is not closed for that."""
    busy, whole = [True], getattr(PersistentTopic, method)

    def slowly(topic: PersistentTopic) -> Any:
        if busy[0]:
            raise StoreBusy("the disk of the store does not answer: try again")
        return whole(topic)

    monkeypatch.setattr(PersistentTopic, method, slowly)
    peer = harness.peer()
    peer.command("producer", topic=TOPIC, producer_id=1, request_id=1)
    harness.advance(5)
    assert (peer.frames, peer.is_closed) == ([], False)
    busy[0] = False
    harness.advance(1)
    assert peer.pop().type == Command.PRODUCER_SUCCESS
    busy[0] = True
    peer.command("producer", topic=TOPIC, producer_id=2, request_id=2)
    harness.advance(30)
    assert peer.pop().command.error.error == pb.ServiceNotReady
    assert len(harness.broker.topics.find(NAME).access.producers) == 1
    assert not peer.is_closed


def test_messages_in_flight_when_a_topic_is_terminated_get_receipts(harness, peer):
    """Closing the producers first would report stored messages as refused and return too old a last id."""
    ended = list[Any]()
    peer.send(0)
    peer.receipts()
    harness.auto_poll = False
    peer.publish(3, 1)
    harness.actions.topic(NAME).terminate(
        lambda error: ended.append((error, harness.actions.last_message_id(NAME).entry_id))
    )
    peer.send(4)
    assert (peer.frames, ended) == ([], [])
    harness.poll()
    assert [each.entry_id for each in peer.receipts()] == [1, 2, 3]
    assert [frame.type for frame in peer.frames] == [Command.CLOSE_PRODUCER]
    assert ended == [(None, 3)]


def test_a_topic_whose_termination_cannot_be_stored_continues(harness, peer, monkeypatch):
    ended, error = list[Any](), StoreStopped("the disk is gone")
    with monkeypatch.context() as patched:
        patched.setattr(harness.store.keys, "put", lambda key, value, done: done(error))
        harness.actions.topic(NAME).terminate(ended.append)
    assert [str(error) for error in ended] == ["the disk is gone"]
    assert peer.pop().type == Command.CLOSE_PRODUCER
    peer.producer(TOPIC)
    peer.send(0)
    assert len(peer.receipts()) == 1


def test_producers_of_a_topic_are_limited_by_policy(harness):
    harness.broker.namespaces.set_policy("public", "default", "max_producers_per_topic", 1)
    peer = harness.producer(TOPIC)
    assert refused(peer, producer_id=2) == pb.ProducerBusy


def test_requests_waiting_for_a_disk_are_limited(harness, monkeypatch):
    monkeypatch.setattr("geminga.broker.commands.producing.ATTEMPTS_MAX", 3)
    waiting: list[Callable[[None], None]] = []

    def bring(wanted: object, done: Callable[[None], None]) -> bool:
        waiting.append(done)
        return False

    monkeypatch.setattr(harness.store, "bring", bring)
    peer, other = harness.peer(), harness.peer()
    for number in range(2):
        peer.command("producer", topic=TOPIC, producer_id=number, request_id=number)
    peer.command("subscribe", topic=TOPIC, subscription="s", consumer_id=1, request_id=2, subType=1)
    assert refused(peer, producer_id=7) == pb.ServiceNotReady
    other.command("producer", topic=TOPIC, producer_id=1, request_id=1)
    peer.command("ping")
    assert peer.pop().type == Command.PONG
    assert len(waiting) == 1, "the topic is asked for once"
    waiting[0](None)
    harness.poll()
    kinds = sorted(frame.type for frame in peer.frames)
    assert kinds == sorted([Command.PRODUCER_SUCCESS] * 2 + [Command.SUCCESS])
    assert [frame.type for frame in other.frames] == [Command.PRODUCER_SUCCESS]
