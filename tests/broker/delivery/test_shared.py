"""Shared: turns, priorities, redelivery and blocking."""

from types import SimpleNamespace
from typing import Any

import pytest

from geminga.broker.delivery import shared
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC


def test_shared_consumers_receive_in_turn(harness, producer):
    peers = [harness.consumer(TOPIC, kind="Shared") for _ in range(3)]
    producer.publish(9)
    assert [len(peer.entry_ids()) for peer in peers] == [3, 3, 3]


def test_a_backlog_is_handed_out_in_turns_of_twenty(harness, producer):
    producer.publish(80)
    peer = harness.peer()
    for consumer_id in (1, 2):
        peer.subscribe(TOPIC, kind="Shared", consumer_id=consumer_id, permits=0)
    peer.writable = False
    for consumer_id in (1, 2):
        peer.command("flow", consumer_id=consumer_id, messagePermits=1000)
        peer.session.writable_again(harness.now)
    peer.writable = True
    peer.session.writable_again(harness.now)
    assert peer.entry_ids(1) == [*range(20), *range(40, 60)]
    assert peer.entry_ids(2) == [*range(20, 40), *range(60, 80)]


def test_the_highest_priority_receives_while_it_has_permits(harness, producer):
    spare = harness.consumer(TOPIC, kind="Shared", priority_level=1)
    good = harness.consumer(TOPIC, kind="Shared", permits=2)
    producer.publish(4)
    assert (good.entry_ids(), spare.entry_ids()) == ([0, 1], [2, 3])


def test_refused_messages_are_redelivered_first_with_their_count(harness, producer):
    peer = harness.consumer(TOPIC, kind="Shared", permits=3)
    producer.publish(5)
    assert peer.entry_ids() == [0, 1, 2]
    ids = [pb.MessageIdData(ledgerId=0, entryId=entry) for entry in (2, 0, 77)]
    peer.command("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=ids)
    peer.command("flow", consumer_id=1, messagePermits=10)
    found = peer.messages()
    assert [(m.entry_id, m.redelivery_count) for m in found] == [(0, 1), (2, 1), (3, 0), (4, 0)]
    peer.command("redeliverUnacknowledgedMessages", consumer_id=1)
    assert {m.entry_id: m.redelivery_count for m in peer.messages()} == {0: 2, 1: 1, 2: 2, 3: 1, 4: 1}


def test_messages_of_a_lost_consumer_go_to_others_without_a_count(harness, producer):
    lost = harness.consumer(TOPIC, kind="Shared")
    other = harness.consumer(TOPIC, kind="Shared")
    producer.publish(4)
    held, seen = lost.entry_ids(), other.entry_ids()
    lost.disconnect()
    found = other.messages()
    assert sorted([*seen, *(m.entry_id for m in found)]) == [0, 1, 2, 3]
    assert [m.entry_id for m in found] == held
    assert {m.redelivery_count for m in found} == {0}


def test_unacknowledged_messages_block_a_consumer_until_half_is_acknowledged(make_harness):
    harness = make_harness(unacked_messages_per_consumer_max=4)
    producer = harness.producer(TOPIC)
    peer = harness.consumer(TOPIC, kind="Shared")
    producer.publish(10)
    assert peer.entry_ids() == [0, 1, 2, 3]
    peer.ack((0, 0))
    assert peer.entry_ids() == []
    peer.ack((0, 1))
    assert peer.entry_ids() == [4, 5]


def test_unacknowledged_messages_block_a_subscription(make_harness):
    harness = make_harness(unacked_messages_per_subscription_max=4)
    one, two = (harness.consumer(TOPIC, kind="Shared") for _ in range(2))
    harness.producer(TOPIC).publish(10)
    first, second = one.entry_ids(), two.entry_ids()
    assert len(first) + len(second) == 4
    one.ack(*((0, entry) for entry in first))
    assert len(one.entry_ids()) + len(two.entry_ids()) == 2
    one.disconnect()
    assert two.entry_ids()


def test_redelivered_batches_name_their_open_messages(harness, producer, make_entry):
    peer = harness.consumer(TOPIC, kind="Shared", permits=5)
    producer.send(0, make_entry(num_messages_in_batch=5), messages=5)
    peer.entry_ids()
    peer.ack((0, 0), (0, 0), ack_set=[21])
    consumer = peer.session.consumers[1]
    assert consumer.unacked_messages == 3
    peer.command("flow", consumer_id=1, messagePermits=3)
    again = pb.MessageIdData(ledgerId=0, entryId=0)
    peer.command("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=[again])
    [message] = peer.messages()
    assert (list(message.ack_set), message.redelivery_count) == ([21], 1)
    assert consumer.permits == 0
    # Recorded: clients count from a full batch again.
    peer.ack((0, 0), ack_set=[10])
    assert consumer.subscription.backlog == 0
    assert consumer.unacked_messages == 0


def test_redelivery_counts_end_with_the_last_consumer(harness, producer):
    peer = harness.consumer(TOPIC, kind="Shared")
    producer.publish(1)
    peer.command("redeliverUnacknowledgedMessages", consumer_id=1)
    peer.disconnect()
    peer = harness.consumer(TOPIC, kind="Shared")
    assert [m.redelivery_count for m in peer.messages()] == [0]


# --- chunks of a message ---
@pytest.fixture
def send_chunks(producer, make_entry):
    """Send a message of some chunks, or its first ones."""

    def send(uuid: str, count: int, sent: int | None = None) -> None:
        for number in range(count if sent is None else sent):
            entry = make_entry(b"part", uuid=uuid, chunk_id=number, num_chunks_from_msg=count)
            producer.send(0, entry, is_chunk=True)

    return send


def test_chunks_wait_for_the_consumer_of_the_first_and_other_messages_do_not(harness, producer, send_chunks):
    slow = harness.consumer(TOPIC, kind="Shared", permits=1)
    other = harness.consumer(TOPIC, kind="Shared")
    send_chunks("u", 4)
    producer.publish(2)
    assert (slow.entry_ids(), other.entry_ids()) == ([0], [4, 5])
    slow.command("flow", consumer_id=1, messagePermits=2)
    assert slow.entry_ids() == [1, 2]
    slow.disconnect()
    assert other.entry_ids() == [0, 1, 2, 3]


def test_waiting_chunks_follow_the_first_one_that_is_redelivered_to_another_consumer(harness, send_chunks):
    stopped = harness.consumer(TOPIC, kind="Shared", permits=1)
    send_chunks("u", 3)
    assert stopped.entry_ids() == [0]
    other = harness.consumer(TOPIC, kind="Shared")
    stopped.command("redeliverUnacknowledgedMessages", consumer_id=1)
    assert other.entry_ids() == [0, 1, 2]


def test_beyond_the_limit_an_old_chunked_message_may_reach_two_consumers(harness, send_chunks, monkeypatch):
    monkeypatch.setattr(shared, "ASSEMBLING_MAX", 1)
    one, other = (harness.consumer(TOPIC, kind="Shared") for _ in range(2))
    for uuid in "uv":
        send_chunks(uuid, 2, 1)
    send_chunks("u", 2)
    assert sorted(one.entry_ids() + other.entry_ids()) == [0, 1, 2, 3]


def test_chunks_that_a_producer_sends_again_go_to_the_consumer_of_the_first_ones(harness, send_chunks):
    slow = harness.consumer(TOPIC, kind="Shared", permits=1)
    other = harness.consumer(TOPIC, kind="Shared")
    send_chunks("u", 3, 2)
    send_chunks("u", 3)
    slow.command("flow", consumer_id=1, messagePermits=10)
    assert (slow.entry_ids(), other.entry_ids()) == ([0, 1, 2, 3, 4], [])


def test_a_permit_for_one_of_many_waiting_chunks_reads_few_entries(harness, send_chunks, monkeypatch):
    slow = harness.consumer(TOPIC, kind="Shared", permits=1)
    other = harness.consumer(TOPIC, kind="Shared")
    send_chunks("u", 100)
    dispatcher = slow.session.consumers[1].subscription.dispatcher
    read: list[int] = []
    real = dispatcher._read

    def spy(offset: int, count: int) -> Any:
        found = real(offset, count)
        read.append(len(found[1]))
        return found

    monkeypatch.setattr(dispatcher, "_read", spy)
    for number in range(1, 100):
        slow.command("flow", consumer_id=1, messagePermits=1)
        assert slow.entry_ids() == [*range(bool(number == 1)), number]
    assert sum(read) < 500
    assert other.entry_ids() == []


def test_one_call_holds_no_more_chunks_than_it_could_send(harness, send_chunks, monkeypatch):
    monkeypatch.setattr("geminga.broker.delivery.dispatcher.ENTRIES_PER_CALL_MAX", 50)
    send_chunks("u", 200)
    other = harness.peer()
    harness.consumer(TOPIC, kind="Shared", permits=1)
    harness.auto_poll = False
    other.subscribe(TOPIC, kind="Shared")
    dispatcher = harness.subscription().dispatcher
    assert dispatcher.read_offset <= 1 + 50 + 20
    harness.poll()
    assert dispatcher.read_offset == 200


def test_no_chunk_overtakes_one_that_waits_for_its_consumer(harness, send_chunks, monkeypatch):
    monkeypatch.setattr("geminga.broker.delivery.dispatcher.ENTRIES_PER_CALL_MAX", 2)
    lost, *others = (harness.peer() for _ in range(3))
    lost.subscribe(TOPIC, kind="Shared", permits=1)
    send_chunks("u", 4)
    for each in others:
        each.subscribe(TOPIC, kind="Shared", permits=1)
    harness.auto_poll = False
    lost.disconnect()
    for _ in range(2):
        harness.broker.tick(harness.now, harness.now_ms)
    found = [each.entry_ids() for each in others]
    holder = others[found.index([0])]
    assert sorted(found) == [[], [0]]
    holder.command("flow", consumer_id=1, messagePermits=1)
    harness.auto_poll = True
    holder.command("flow", consumer_id=1, messagePermits=10)
    assert holder.entry_ids() == [1, 2, 3]


@pytest.fixture(params=["Shared", "Key_Shared"])
def slow_return(request, make_harness, monkeypatch):
    """A harness whose consumer left with ten entries, of which two have been taken from it; another stays."""
    monkeypatch.setattr("geminga.broker.delivery.shared.RETURNED_AT_ONCE_MAX", 2)
    harness = make_harness(redeliver_unacked_after_seconds=10)
    holder = harness.consumer(TOPIC, kind=request.param, permits=10)
    harness.producer(TOPIC).publish(10)
    other = harness.consumer(TOPIC, kind=request.param, permits=0)
    dispatcher = harness.subscription().dispatcher
    other.ack((0, 9))
    assert dispatcher.holder_of(8) is holder.session.consumers[1]
    harness.auto_poll = False
    holder.disconnect()
    return SimpleNamespace(harness=harness, other=other, kind=request.param, dispatcher=dispatcher)


def drain(slow: Any) -> list[int]:
    slow.harness.auto_poll = True
    slow.other.command("flow", consumer_id=1, messagePermits=100)
    slow.harness.advance(0.1)
    return slow.other.entry_ids()


def test_compensation_passes_over_entries_whose_consumer_has_just_left(slow_return):
    dispatcher = slow_return.dispatcher
    assert dispatcher.replay_size < 9
    slow_return.harness.broker.scheduler.enter(slow_return.harness.now + 20)
    slow_return.other.command("flow", consumer_id=1, messagePermits=1)
    pushed = dispatcher.push_again(slow_return.harness.now + 10, 100, lambda offset: False)
    assert pushed.messages == 0
    assert drain(slow_return) == list(range(9))
    assert dispatcher.unacked_messages == 9


def test_entries_acknowledged_while_their_consumers_are_given_back_do_not_return(slow_return):
    slow_return.other.ack((0, 0), (0, 3), (0, 8))
    assert drain(slow_return) == [1, 2, 4, 5, 6, 7]
    slow_return.other.ack(*((0, entry) for entry in (1, 2, 4, 5, 6, 7)))
    subscription = slow_return.dispatcher.subscription
    assert (slow_return.dispatcher.unacked_messages, subscription.backlog) == (0, 0)


@pytest.mark.parametrize("event", ["seek", "skip", "unload"])
def test_entries_that_are_being_given_back_follow_the_cursor(slow_return, event):
    subscription = slow_return.dispatcher.subscription
    if event == "skip":
        subscription.skip_to(5)
        assert drain(slow_return) == [5, 6, 7, 8]
        return
    if event == "seek":
        subscription.reset(4, lambda error: None)
    else:
        subscription.disconnect_all()
    slow_return.harness.auto_poll = True
    slow_return.other.subscribe(TOPIC, kind=slow_return.kind, consumer_id=2, permits=100)
    assert slow_return.other.entry_ids(2) == (list(range(4, 10)) if event == "seek" else list(range(9)))
