"""SUBSCRIBE and the other commands of consumers."""

import gc
import time
from typing import Any

import pytest
from doubles import calls_of, raising

from geminga.broker.commands.consuming import LAST_REQUESTS_MAX
from geminga.broker.delivery import cursor as cursor_module
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.entries import position_lookup
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.errors import StoreBusy, StoreError
from geminga.ledger.settings import StoreSettings
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, SUBSCRIBE, TOPIC, Command, Peer
from tests.support.disk_stores import open_store
from tests.support.faulty_filesystem import SimulatedDisk

U64 = (1 << 64) - 1
LATEST = (1 << 63) - 1
EXCLUSIVE, SHARED = range(2)
ROLLBACK = {**SUBSCRIBE, "request_id": 1, "start_message_rollback_duration_sec": 60}


@pytest.fixture
def producer(harness):
    return harness.producer(TOPIC)


@pytest.fixture
def busy_reads(monkeypatch):
    """Reads of entries fail as on a busy disk until the list is cleared."""
    busy, read_one = [True], ManagedLedger.read_one

    def slowly(ledger: ManagedLedger, offset: int) -> bytes | None:
        if busy:
            raise StoreBusy("the disk of the store does not answer within 0.02 s: try again")
        return read_one(ledger, offset)

    monkeypatch.setattr(ManagedLedger, "read_one", slowly)
    return busy


def refused(peer: Any, **fields: Any) -> int:
    frame = peer.request("subscribe", **(SUBSCRIBE | fields))
    assert frame.type == Command.ERROR, frame.command
    return frame.command.error.error


def received(harness: Any, producer: Peer, count: int, **fields: Any) -> Peer:
    """Return a consumer that has received ``count`` messages, and acknowledged none."""
    peer = harness.consumer(TOPIC, **fields)
    producer.publish(count)
    assert peer.entry_ids() == [*range(count)]
    return peer


# --- SUBSCRIBE ---
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"subscription": ""}, pb.ProducerBusy),
        ({"subscription": "x" * 5000}, pb.NotAllowedError),
        ({"consumer_name": "x" * 9000}, pb.NotAllowedError),
        ({"topic": "t" * 2000}, pb.InvalidTopicName),
        ({"subscription_properties": [pb.KeyValue(key="k", value="v" * 20_000)]}, pb.MetadataError),
        ({"read_compacted": True, "subType": SHARED}, pb.NotAllowedError),
        ({"topic": "persistent://public/absent/t"}, pb.TopicNotFound),
        ({"force_topic_creation": False, "topic": "persistent://public/default/no"}, pb.TopicNotFound),
        ({"topic": "persistent://public"}, pb.InvalidTopicName),
        ({"durable": False, "subscription": "taken"}, pb.NotAllowedError),
        ({"subscription": "taken"}, pb.ConsumerBusy),
        ({"subscription": "taken", "subType": SHARED}, pb.ConsumerBusy),
    ],
)
def test_subscribes_that_are_refused(harness, fields, code):
    harness.consumer(TOPIC, "taken")
    peer = harness.peer()
    assert refused(peer, **fields) == code
    peer.subscribe(TOPIC, "fine")


def test_a_live_consumer_id_gets_success(harness):
    harness.consumer(TOPIC).subscribe(TOPIC, "other")
    assert list(harness.actions.subscriptions(NAME)) == ["s"]


def test_an_equal_id_during_creation_gets_a_retry_error(harness):
    peer = harness.peer()
    harness.auto_poll = False
    peer.command("subscribe", request_id=1, **SUBSCRIBE)
    assert not peer.frames
    peer.command("subscribe", request_id=2, **SUBSCRIBE)
    assert peer.pop().command.error.error == pb.ServiceNotReady
    harness.poll()
    assert peer.pop().command.success.request_id == 1


def test_a_connection_lost_while_subscribing_leaves_no_consumer(harness):
    peer = harness.peer()
    harness.auto_poll = False
    peer.command("subscribe", request_id=1, **SUBSCRIBE)
    peer.disconnect()
    harness.poll()
    harness.auto_poll = True
    harness.peer().subscribe(TOPIC)


@pytest.mark.parametrize(("earliest", "expected"), [(True, [0, 1, 2]), (False, [2])])
def test_only_a_new_subscription_starts_at_the_initial_position(harness, producer, earliest, expected):
    producer.publish(2)
    peer = harness.consumer(TOPIC, earliest=earliest)
    producer.publish(1, 2)
    assert peer.entry_ids() == expected
    peer.disconnect()
    producer.publish(1, 3)
    assert harness.consumer(TOPIC, earliest=False).entry_ids() == [*expected, 3]


@pytest.mark.parametrize("durable", [True, False])
def test_a_rollback_waits_for_entries_slow_to_read(harness, producer, make_entry, busy_reads, durable):
    """Offloaded ones are. What was begun at the first try stood at the end, and the next try took that."""
    for sequence_id, age in enumerate((100, 50, 10)):
        producer.send(sequence_id, make_entry(publish_time=harness.now_ms - age * 1000))
    peer = harness.peer()
    peer.command("subscribe", **ROLLBACK, durable=durable)
    harness.advance(0.2)
    assert (peer.frames, peer.is_closed) == ([], False)
    assert not harness.actions.subscriptions(NAME)
    busy_reads.clear()
    harness.advance(1)
    assert peer.pop().command.success.request_id == 1
    peer.command("flow", consumer_id=1, messagePermits=10)
    assert peer.entry_ids() == [1, 2]


@pytest.mark.parametrize("error", [StoreBusy("slow"), StoreError("away")])
def test_a_rollback_over_entries_that_cannot_be_read_is_refused(harness, producer, monkeypatch, error):
    """The connection, with all else that goes over it, is not ended for that."""
    producer.publish(3)
    monkeypatch.setattr(ManagedLedger, "read_one", raising(error))
    peer = harness.peer()
    peer.command("subscribe", **ROLLBACK)
    harness.advance(30)
    assert peer.pop().command.error.request_id == 1
    assert not peer.is_closed
    assert not harness.actions.subscriptions(NAME)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ((U64, U64), [0, 1, 2, 3]), ((LATEST, LATEST), [3]), ((0, 1), [1, 2, 3]), ((0, U64), [0, 1, 2, 3]),
        ((0, 99), [3]), ((55, 0), [3]),
    ],
)  # fmt: skip
def test_readers_start_at_an_entry(harness, producer, start, expected):
    producer.publish(3)
    position = {"ledgerId": start[0], "entryId": start[1]}
    peer = harness.consumer(TOPIC, "reader-1", durable=False, start_message_id=position)
    producer.publish(1, 3)
    assert peer.entry_ids() == expected


def test_a_closed_reader_leaves_no_subscription(harness, producer):
    harness.consumer(TOPIC, "reader-1", durable=False).disconnect()
    assert not harness.actions.subscriptions(NAME)


def test_subscription_types_are_limited_by_policy(harness):
    harness.broker.namespaces.set_policy("public", "default", "subscription_types_enabled", ["Shared"])
    peer = harness.peer()
    assert refused(peer) == pb.NotAllowedError
    peer.subscribe(TOPIC, kind="Shared")


def test_without_auto_creation_only_readers_may_subscribe(make_harness):
    harness = make_harness(auto_create_subscriptions=False)
    peer = harness.peer()
    assert refused(peer) == pb.SubscriptionNotFound
    peer.subscribe(TOPIC, "reader", durable=False)


# --- FLOW ---
@pytest.mark.parametrize(("permits", "closed"), [(0, True), (1, False), (0x80000000, True)])
def test_a_flow_command_must_add_permits(harness, permits, closed):
    peer = harness.consumer(TOPIC)
    peer.command("flow", consumer_id=1, messagePermits=permits)
    assert peer.is_closed == closed


def test_the_permits_of_a_consumer_are_limited(harness):
    peer = harness.consumer(TOPIC)
    for _ in range(3):
        peer.command("flow", consumer_id=1, messagePermits=0x7FFFFFFF)
    assert peer.session.consumers[1].permits == 0x7FFFFFFF


@pytest.mark.parametrize("body", ["flow", "ack", "redeliverUnacknowledgedMessages"])
def test_commands_of_unknown_consumers_are_ignored(harness, body):
    peer = harness.peer()
    fields = {"flow": {"messagePermits": 1}, "ack": {"ack_type": 0, "request_id": 1}}.get(body, {})
    peer.command(body, consumer_id=9, **fields)
    assert not peer.frames
    assert not peer.is_closed


# --- ACK ---
@pytest.mark.parametrize(
    ("acks", "mark", "holes"),
    [
        ([(0, 0)], 1, []), ([(0, 2)], 0, [(2, 3)]), ([(0, 2), (0, 1), (0, 0)], 3, []),
        ([(0, 0), (0, 0)], 1, []), ([(0, 99)], 0, []), ([(7, 0)], 0, []), ([(U64, U64)], 0, []),
    ],
)  # fmt: skip
def test_individual_acknowledgements_move_the_mark_and_leave_holes(harness, producer, acks, mark, holes):
    peer = received(harness, producer, 4)
    peer.ack(*acks, request_id=8)
    answer = peer.pop().command.ackResponse
    assert (answer.consumer_id, answer.request_id, answer.HasField("error")) == (1, 8, False)
    cursor = harness.subscription().cursor
    assert (cursor.mark, list(cursor.holes.ranges())) == (mark, holes)


@pytest.mark.parametrize(
    ("kind", "ack", "mark"),
    [
        ("Exclusive", (0, 1), 2), ("Failover", (0, 1), 2), ("Shared", (0, 1), 0), ("Key_Shared", (0, 1), 0),
        ("Exclusive", (0, U64), 0), ("Exclusive", (0, 77), 0), ("Exclusive", (6, 0), 0),
    ],
)  # fmt: skip
def test_cumulative_acknowledgements_move_the_mark(harness, producer, kind, ack, mark):
    peer = harness.consumer(TOPIC, kind=kind)
    producer.publish(4)
    peer.ack(ack, cumulative=True)
    assert harness.subscription().cursor.mark == mark


def test_ack_sets_are_ignored_when_they_are_switched_off(make_harness, make_entry):
    harness = make_harness(batch_index_ack=False)
    producer = harness.producer(TOPIC)
    peer = harness.consumer(TOPIC)
    for sequence_id in range(2):
        producer.send(sequence_id, make_entry(num_messages_in_batch=5), messages=5)
    cursor = harness.subscription().cursor
    for mark, cumulative in enumerate((False, True)):
        peer.ack((0, 1), ack_set=[0b11100], cumulative=cumulative)
        assert (cursor.mark, cursor.batches) == (mark, {})


def test_an_ack_set_is_cut_to_the_size_of_its_batch(harness, producer, make_entry):
    peer = harness.consumer(TOPIC)
    producer.publish(1)
    producer.send(1, make_entry(num_messages_in_batch=5), messages=5)
    cursor = harness.subscription().cursor
    kept = len(cursor.take_snapshot())
    begin = time.thread_time()
    for words in ([-1] * 20_000, [-1] * 200_000, [-2, *[-1] * 200_000]):
        for entry_id in (0, 1):
            if words[0] == -1 or entry_id:
                peer.ack((0, entry_id), ack_set=words)
    assert time.thread_time() - begin < 2  # most of it is protobuf's
    assert (cursor.mark, cursor.batches) == (0, {1: 0b11110})
    assert len(cursor.take_snapshot()) < kept + 20
    # An ack set without a single bit acknowledges all messages of the batch.
    peer.ack((0, 0), ack_set=[0] * 20_000)
    assert cursor.mark == 1


def test_a_seek_keeps_no_more_of_its_ack_set_than_the_batch_holds(harness, producer, make_entry):
    peer = harness.peer()
    producer.publish(1)
    producer.send(1, make_entry(num_messages_in_batch=5), messages=5)
    for entry_id, kept in ((0, {}), (1, {1: 0b11100})):
        peer.subscribe(TOPIC)
        cursor = harness.subscription().cursor
        target = {"ledgerId": 0, "entryId": entry_id, "ack_set": [-4 if entry_id else -1, *[-1] * 50_000]}
        assert peer.request("seek", consumer_id=1, message_id=target)
        assert (cursor.mark, cursor.batches) == (entry_id, kept)
        assert len(cursor.take_snapshot()) < 100
        peer.frames.clear()


def test_a_batch_announced_as_one_message_stays_open_after_one_acknowledgement(harness, producer, make_entry):
    peer = harness.consumer(TOPIC)
    producer.send(0, make_entry(num_messages_in_batch=5), messages=1)
    peer.ack((0, 0), ack_set=[0b11110])
    cursor = harness.subscription().cursor
    assert (cursor.mark, cursor.batches) == (0, {0: 0b11110})


def test_too_many_partly_acknowledged_batches_are_refused(harness, producer, make_entry, monkeypatch):
    monkeypatch.setattr(cursor_module, "PARTIAL_BATCHES_BYTES_MAX", 400)
    peer = harness.consumer(TOPIC, kind="Shared")
    for sequence_id in range(3):
        producer.send(sequence_id, make_entry(num_messages_in_batch=5), messages=5)
    peer.frames.clear()
    peer.ack(*[(0, number) for number in range(3)], ack_set=[0b11110], request_id=7)
    answer = peer.pop().command.ackResponse
    assert answer.error == pb.NotAllowedError
    assert "partly acknowledged batches" in answer.message
    subscription = harness.subscription()
    assert set(subscription.cursor.batches) == {0, 1}
    assert subscription.backlog_tally()[0] == 13


@pytest.mark.parametrize("count", [0, 2])
def test_a_cumulative_acknowledgement_of_no_or_several_ids_closes_the_connection(harness, count):
    peer = harness.consumer(TOPIC)
    peer.ack(*[(0, 0)] * count, cumulative=True)
    assert peer.is_closed


def test_an_acknowledgement_is_answered_once_it_is_durable(harness, producer):
    peer = received(harness, producer, 1)
    harness.auto_poll = False
    peer.ack((0, 0), request_id=4)
    assert not peer.frames
    harness.poll()
    assert peer.pop().command.ackResponse.request_id == 4


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("ack_set", [[], [0b10]])
def test_acknowledgements_of_pending_entries_are_ignored(harness, producer, make_entry, cumulative, ack_set):
    peer = harness.consumer(TOPIC)
    harness.auto_poll = False
    producer.send(0, make_entry(num_messages_in_batch=2), messages=2)
    for entry_id in (0, 7):
        peer.ack((0, entry_id), cumulative=cumulative, ack_set=ack_set)
    harness.poll()
    assert [(message.entry_id, list(message.ack_set)) for message in peer.messages()] == [(0, [])]


def test_an_acknowledgement_that_cannot_be_stored_is_answered_with_the_error(harness, producer):
    peer = received(harness, producer, 1)
    harness.store.close()
    peer.ack((0, 0), request_id=4)
    answer = peer.pop().command.ackResponse
    assert (answer.request_id, answer.error) == (4, pb.PersistenceError)


# --- UNSUBSCRIBE, SEEK, GET_LAST_MESSAGE_ID ---
def test_unsubscribing_removes_the_cursor(harness, producer):
    peer = received(harness, producer, 1)
    peer.ack((0, 0))
    assert peer.request("unsubscribe", consumer_id=1).type == Command.SUCCESS
    harness.restart()
    assert not harness.actions.subscriptions(NAME)
    assert not list(harness.store.keys.scan("cursor/"))


def test_unsubscribing_with_others_attached_needs_force(harness):
    peer = harness.consumer(TOPIC, kind="Shared")
    other = harness.consumer(TOPIC, kind="Shared")
    assert peer.request("unsubscribe", consumer_id=1).command.error.error == pb.MetadataError
    assert peer.request("unsubscribe", consumer_id=1, force=True).type == Command.SUCCESS
    assert other.pop().command.close_consumer.request_id == U64


@pytest.mark.parametrize("body", ["unsubscribe", "seek", "getLastMessageId"])
def test_requests_of_unknown_consumers_are_errors(harness, body):
    assert harness.peer().request(body, consumer_id=9).command.error.error == pb.MetadataError


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"message_id": {"ledgerId": 0, "entryId": 1}}, [1, 2]),
        ({"message_id": {"ledgerId": U64, "entryId": U64}}, [0, 1, 2]),
        ({"message_id": {"ledgerId": LATEST, "entryId": LATEST}}, []),
        ({"message_publish_time": 0}, [0, 1, 2]),
        ({"message_publish_time": 1_800_000_002_000}, [2]),
        ({"message_publish_time": 1_900_000_000_000}, []),
    ],
)
@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_a_seek_closes_the_consumer_and_then_succeeds(harness, producer, make_entry, target, expected, kind):
    peer = harness.consumer(TOPIC, kind=kind)
    for sequence_id in range(3):
        producer.send(sequence_id, make_entry(publish_time=1_800_000_000_000 + 1000 * sequence_id))
    peer.ack((0, 0), (0, 1))
    peer.entry_ids()
    harness.auto_poll = False
    peer.command("seek", consumer_id=1, request_id=50, **target)
    closed = peer.pop().command.close_consumer
    assert (closed.consumer_id, closed.request_id) == (1, U64)
    assert not peer.frames
    harness.poll()
    assert peer.pop().command.success.request_id == 50
    harness.auto_poll = True
    harness.restart()
    peer = harness.consumer(TOPIC, kind=kind)
    assert peer.entry_ids() == expected


def test_a_reader_that_seeks_continues_there_after_reconnecting(harness, producer):
    peer = harness.peer()
    start = {"ledgerId": LATEST, "entryId": LATEST}
    peer.subscribe(TOPIC, "reader-1", durable=False, start_message_id=start)
    producer.publish(3)
    assert peer.entry_ids() == [0, 1, 2]
    peer.command("seek", consumer_id=1, request_id=1, message_id={"ledgerId": 0, "entryId": 1})
    peer.frames.clear()
    peer.subscribe(TOPIC, "reader-1", durable=False, start_message_id=start)
    assert peer.entry_ids() == [1, 2]


def test_an_acknowledgement_after_a_seek_is_ignored(harness, producer):
    peer = harness.consumer(TOPIC)
    producer.publish(2)
    peer.command("seek", consumer_id=1, request_id=1, message_id={"ledgerId": 0, "entryId": 0})
    peer.ack((0, 0), (0, 1))
    peer.frames.clear()
    peer.subscribe(TOPIC)
    assert peer.entry_ids() == [0, 1]


def test_a_seek_of_a_consumer_that_is_closed_while_it_waits_moves_nothing(harness, producer, busy_reads):
    producer.publish(3)
    peer = harness.consumer(TOPIC, permits=0)
    peer.ack((0, 2), cumulative=True)
    peer.command("seek", consumer_id=1, request_id=1, message_publish_time=harness.now_ms - 1000)
    assert peer.frames == []
    peer.command("close_consumer", consumer_id=1, request_id=2)
    assert peer.pop().command.success.request_id == 2
    busy_reads.clear()
    harness.advance(1)
    assert peer.pop().command.error.request_id == 1
    assert harness.subscription().cursor.mark == 3


def test_a_seek_that_waited_leaves_no_reference_cycle(harness, producer, busy_reads):
    """The broker's garbage collector looks for cycles rarely."""
    producer.publish(3)
    of_other_tests = [each for each in gc.get_objects() if isinstance(each, Consumer)]
    peer = harness.consumer(TOPIC, permits=0)
    gc.disable()
    try:
        peer.command("seek", consumer_id=1, request_id=1, message_publish_time=0)
        harness.advance(0.2)
        busy_reads.clear()
        harness.advance(0.2)
        assert peer.take(Command.SUCCESS)
        consumers = [each for each in gc.get_objects() if isinstance(each, Consumer)]
        assert {id(each) for each in consumers} <= {id(each) for each in of_other_tests}
    finally:
        gc.enable()


def last_id(peer: Any) -> tuple[int, int, int, int]:
    found = peer.last_message_id()
    return found.ledgerId, found.entryId, found.partition, found.batch_index


def test_the_last_message_id_includes_the_batch_index(harness, producer, make_entry):
    peer = harness.consumer(TOPIC, permits=0)
    assert last_id(peer) == (U64, U64, -1, -1)
    producer.publish(2)
    assert last_id(peer) == (0, 1, -1, -1)
    for entry_id, count in ((2, 3), (3, 1)):
        producer.send(entry_id, make_entry(num_messages_in_batch=count), messages=count)
        assert last_id(peer) == (0, entry_id, -1, count - 1)


@pytest.mark.parametrize(("acked", "expected"), [([], (0, U64)), ([0, 1], (0, 1))])
def test_the_mark_delete_position_is_before_the_first_open_message(harness, producer, acked, expected):
    peer = harness.consumer(TOPIC, permits=0)
    producer.publish(3)
    peer.ack(*((0, entry) for entry in acked))
    body = peer.request("getLastMessageId", consumer_id=1).command.getLastMessageIdResponse
    mark = body.consumer_mark_delete_position
    assert (mark.ledgerId, mark.entryId) == expected
    assert not mark.HasField("partition"), "as Apache Pulsar sends it"
    assert not mark.HasField("batch_index")


# --- the rest ---
def test_consumer_stats_count_permits_and_unacknowledged_messages(harness, producer):
    peer = received(harness, producer, 2, kind="Shared", permits=5, consumer_name="me")
    body = peer.request("consumerStats", consumer_id=1).command.consumerStatsResponse
    found = (body.consumerName, body.availablePermits, body.unackedMessages, body.msgBacklog, body.type)
    assert found == ("me", 3, 2, 2, "Shared")
    assert body.gemingaAckHoles == 0
    peer.ack((0, 1))
    harness.advance(1.0)
    assert peer.request("consumerStats", consumer_id=1).command.consumerStatsResponse.gemingaAckHoles == 1
    unknown = peer.request("consumerStats", consumer_id=2).command.consumerStatsResponse
    assert unknown.error_code == pb.ConsumerNotFound


def test_closing_a_consumer_twice_succeeds(harness):
    peer = harness.consumer(TOPIC)
    for _ in range(2):
        assert peer.request("close_consumer", consumer_id=1).type == Command.SUCCESS
    harness.peer().subscribe(TOPIC)


@pytest.mark.parametrize(("client", "told"), [("Pulsar-Java-v4.0.4", True), ("Pulsar-CPP-v4.2.0", False)])
def test_consumers_are_notified_at_the_end_of_a_terminated_topic(harness, producer, client, told):
    peer = harness.peer(client=client)
    peer.subscribe(TOPIC)
    producer.publish(1)
    peer.entry_ids()
    harness.actions.topic(NAME).terminate(lambda error: None)
    assert not peer.take(Command.REACHED_END_OF_TOPIC)
    peer.ack((0, 0))
    assert bool(peer.take(Command.REACHED_END_OF_TOPIC)) == told
    late = harness.peer(client=client)
    late.subscribe(TOPIC, "late", earliest=False)
    assert bool(late.take(Command.REACHED_END_OF_TOPIC)) == told


def test_acknowledgements_during_a_write_are_stored_together(make_harness, monkeypatch):
    store = open_store(SimulatedDisk(), StoreSettings())
    harness = make_harness(store)
    peer = harness.producer(TOPIC)
    harness.poll()
    peer.subscribe(TOPIC, kind="Shared")
    peer.publish(20)
    harness.poll()
    ids = peer.ids()
    assert len(ids) == 20
    peer.frames.clear()
    merged = calls_of(monkeypatch, store.keys, "merge")
    harness.auto_poll = False
    peer.ack(ids[1], request_id=7)
    assert len(merged) == 1
    for place in ids[3:15:2]:
        peer.ack(place)
    peer.ack(ids[0], request_id=8)
    peer.ack(ids[17], cumulative=False)
    assert len(merged) == 1
    assert not peer.frames
    harness.poll()
    assert len(merged) == 2
    harness.poll()
    answered = [frame.command.ackResponse.request_id for frame in peer.take(pb.BaseCommand.ACK_RESPONSE)]
    assert answered == [7, 8]
    harness.broker.scheduler.flush_cursors()
    harness.poll()
    harness.crash()
    subscription = harness.subscription()
    assert subscription.cursor.mark == 2
    assert list(subscription.cursor.holes.ranges()) == [(at, at + 1) for at in (3, 5, 7, 9, 11, 13, 17)]
    assert subscription.backlog_tally()[0] == 11
    store.close()


@pytest.fixture
def disk(monkeypatch):
    """Simulated disk: reading the newest entry finishes when the test calls ``answers``."""

    class Disk:
        def __init__(self) -> None:
            self.busy = self.has_answered = False
            self.waiting: list[Any] = []
            self.asked = 0

        def answers(self, error: StoreError | None = None) -> None:
            waiting, self.waiting = self.waiting, []
            for done in waiting:
                done(error)

        def fetch(self, offset: int, stop: int, *, done: Any, **limits: int) -> None:
            self.asked += 1
            if self.busy:
                raise StoreBusy("too many reads wait")

            def read(error: StoreError | None) -> None:
                self.has_answered = error is None
                done(error)

            self.waiting.append(read)

    disk = Disk()
    at_hand = lambda self, *_: [(b"", 1)] if disk.has_answered else []  # noqa: E731
    monkeypatch.setattr(ManagedLedger, "in_memory", at_hand)
    monkeypatch.setattr(ManagedLedger, "fetch", lambda self, *args, **limits: disk.fetch(*args, **limits))
    monkeypatch.setattr(position_lookup, "last_batch_index", lambda ledger: -1)
    return disk


def ask_for_the_last(peer: Any, request_id: int) -> None:
    peer.command("getLastMessageId", consumer_id=1, request_id=request_id)


def test_the_last_message_id_waits_for_a_busy_disk(harness, producer, disk):
    """Were it refused, official clients would take the topic for read to its end."""
    producer.publish(3)
    peer = harness.consumer(TOPIC, permits=0)
    disk.busy = True
    ask_for_the_last(peer, 5)
    harness.advance(5)
    assert peer.frames == []
    disk.busy = False
    harness.advance(2)
    disk.answers()
    answer = peer.pop().command.getLastMessageIdResponse
    assert (answer.request_id, answer.last_message_id.entryId) == (5, 2)
    disk.has_answered, disk.busy = False, True
    ask_for_the_last(peer, 6)
    harness.advance(19)
    assert peer.frames == []
    harness.advance(2)
    assert peer.pop().command.error.error == pb.ServiceNotReady
    disk.busy = False
    ask_for_the_last(peer, 7)
    disk.answers(StoreError("cannot be read now"))
    assert peer.pop().command.error.error == pb.PersistenceError
    ask_for_the_last(peer, 8)
    peer.command("close_consumer", consumer_id=1, request_id=9)
    disk.answers()
    assert [frame.type for frame in peer.frames] == [pb.BaseCommand.SUCCESS]
    assert not peer.session.last_message_requests


def test_repeated_last_message_id_requests_read_the_disk_once(harness, producer, disk):
    """Each was tried again 20 times a second: 20,000 from one peer kept the broker from everything else."""
    producer.publish(3)
    peer = harness.consumer(TOPIC, permits=0)
    for request_id in range(3 * LAST_REQUESTS_MAX):
        ask_for_the_last(peer, request_id)
    refused = [frame.command.error for frame in peer.take(pb.BaseCommand.ERROR)]
    assert [error.request_id for error in refused] == [*range(LAST_REQUESTS_MAX, 3 * LAST_REQUESTS_MAX)]
    assert {error.error for error in refused} == {pb.TooManyRequests}
    harness.advance(15)
    assert disk.asked == 1
    disk.answers()
    answers = [frame.command.getLastMessageIdResponse.request_id for frame in peer.frames]
    assert answers == [*range(LAST_REQUESTS_MAX)]
    assert not peer.session.last_message_requests
    disk.has_answered = False
    ask_for_the_last(peer, 1)
    peer.disconnect()
    disk.answers()
