"""Peers that disconnect with unfinished work, and clients that need their names and subscriptions."""

from typing import Any

import pytest

from geminga.broker.commands.probing import PROBE_SECONDS
from geminga.broker.commands.session import SessionState
from geminga.broker.memory_backpressure import HELD_BY_PENDING
from geminga.wire.frames import encode_command, encode_send
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.commands.test_session import acks, all_turns, backlog_of, delivered, encoded
from tests.broker.conftest import TOPIC, Command

PINGS = encode_command(Command(type=Command.PING, ping=pb.CommandPing())) * 50
"""More than a turn has time for, with a slow clock."""
ENTRY = b"\x00\x00\x00\x02\x0a\x00" + b"x" * 100


def sends(count: int, producer_id: int = 1) -> bytes:
    numbers = range(count)
    return b"".join(encode_send(producer_id, number, 2, None, len(ENTRY)) + ENTRY for number in numbers)


def hang_up(harness: Any, peer: Any, data: bytes) -> None:
    """It has sent that; until its session is released nothing of it is worked on."""
    harness.advance_clock_on_read(0.001)
    peer.session.hold(HELD_BY_PENDING)
    peer.send_bytes(PINGS + data)
    peer.disconnect()
    assert peer.session.state is SessionState.CONNECTED
    assert peer.session in harness.gone


def consumer_that_hung_up(harness: Any, kind: str = "Exclusive") -> tuple[Any, Any]:
    """One with 300 acknowledgements to be worked on, and another peer."""
    other = harness.peer()
    gone, ids = delivered(harness, 300, kind=kind)
    hang_up(harness, gone, acks(ids))
    return gone, other


def slices(harness: Any) -> None:
    for _ in range(20):
        harness.broker.turn(harness.now, harness.now_ms)
    harness.poll()


def answer_behind(harness: Any, peer: Any, gone: Any) -> Any:
    """Return a peer's first answer, and check that it follows the work of the disconnected peer."""
    slices(harness)
    assert not peer.frames
    gone.session.release(HELD_BY_PENDING)
    harness.run_slices()
    harness.poll()
    assert not harness.gone
    return peer.pop()


def subscribe(peer: Any, kind: str, topic: str = TOPIC, **fields: Any) -> None:
    number = pb.CommandSubscribe.SubType.Value(kind)
    peer.command(
        "subscribe", topic=topic, subscription="s", consumer_id=1, request_id=7, subType=number, **fields
    )


# --- producers ---
@pytest.mark.parametrize("mode", ["Shared", "Exclusive"])
def test_an_exclusive_producer_waits_for_the_work_of_a_disconnected_one(harness, mode):
    """ProducerFenced would end the client's producer, although the old producer is disconnected."""
    gone, other = harness.peer(), harness.peer()
    gone.producer(TOPIC, producer_access_mode=pb.ProducerAccessMode.Value(mode))
    hang_up(harness, gone, sends(300))
    wanted = pb.Exclusive if mode == "Shared" else pb.Shared
    other.command("producer", topic=TOPIC, producer_id=1, request_id=7, producer_access_mode=wanted)
    assert answer_behind(harness, other, gone).type == Command.PRODUCER_SUCCESS
    topic = harness.broker.topics.in_memory_now()[0]
    assert topic.ledger.confirmed == 300
    other.send(0)
    assert [each.entry_id for each in other.receipts()] == [300]


def test_unending_work_of_a_disconnected_producer_keeps_its_place_only_for_a_while(harness):
    gone, other = harness.peer(), harness.peer()
    gone.producer(TOPIC, producer_access_mode=pb.Exclusive)
    hang_up(harness, gone, sends(300))
    other.command("producer", topic=TOPIC, producer_id=1, request_id=7)
    slices(harness)
    harness.advance_clock_on_read(0.0)
    harness.advance(PROBE_SECONDS - 0.1)
    assert not other.frames
    harness.advance(0.2)
    assert other.pop().type == Command.PRODUCER_SUCCESS
    assert not harness.broker.sessions - {other.session}


def test_a_connected_producer_keeps_its_place_after_another_disconnects(harness):
    gone, living, other = harness.peer(), harness.peer(), harness.peer()
    for peer in (gone, living):
        peer.producer(TOPIC)
    hang_up(harness, gone, sends(300))
    other.command("producer", topic=TOPIC, producer_id=1, request_id=7, producer_access_mode=pb.Exclusive)
    assert answer_behind(harness, other, gone).command.error.error == pb.ProducerFenced


def test_acknowledgements_are_kept_when_the_clients_producer_is_taken_over(harness):
    """Unreceipted messages of the old producer are resent by its successor, and stored only once."""
    other = harness.peer()
    gone, ids = delivered(harness, 300)
    producer = gone.session.producers[1]
    hang_up(harness, gone, sends(100) + acks(ids))
    fields = {
        "topic": TOPIC,
        "producer_name": producer.name,
        "epoch": 1,
        "user_provided_producer_name": False,
    }
    other.command("producer", producer_id=1, request_id=7, **fields)
    slices(harness)
    assert other.pop().type == Command.PRODUCER_SUCCESS
    other.send(0)
    gone.session.release(HELD_BY_PENDING)
    all_turns(harness, gone)
    assert backlog_of(harness) == 1


def test_a_producer_waiting_for_receipts_is_removed_when_its_client_disconnects(harness):
    gone, other = harness.peer(), harness.peer()
    harness.auto_poll = False
    fields = {"topic": TOPIC, "producer_name": "p", "user_provided_producer_name": True, "producer_id": 1}
    gone.command("producer", request_id=7, **fields)
    gone.send(0)
    gone.command("close_producer", producer_id=1, request_id=8)
    gone.disconnect()
    other.command("producer", request_id=7, **fields)
    assert other.pop().type == Command.PRODUCER_SUCCESS
    harness.poll()
    topic = harness.broker.topics.in_memory_now()[0]
    assert [each.peer for each in topic.access.producers.values()] == [other.session]
    assert topic.ledger.confirmed == 1


def test_an_exclusive_producer_in_creation_is_removed_when_its_client_disconnects(harness):
    gone, other = harness.peer(), harness.peer()
    harness.auto_poll = False
    fields = {"topic": TOPIC, "producer_id": 1, "request_id": 7, "producer_access_mode": pb.Exclusive}
    gone.command("producer", **fields)
    gone.disconnect()
    other.command("producer", **fields)
    harness.poll()
    assert other.pop().type == Command.PRODUCER_SUCCESS


# --- consumers ---
@pytest.mark.parametrize("kind", ["Shared", "Failover", "Key_Shared", "Exclusive"])
def test_a_subscriber_of_another_type_waits_for_the_work_of_a_disconnected_one(harness, kind):
    gone, other = consumer_that_hung_up(harness, "Shared" if kind == "Exclusive" else "Exclusive")
    subscribe(other, kind)
    assert answer_behind(harness, other, gone).type == Command.SUCCESS
    assert backlog_of(harness) == 0


def test_a_subscriber_waits_for_the_hash_ranges_of_a_disconnected_one(harness):
    sticky = {"keySharedMode": pb.STICKY, "hashRanges": [pb.IntRange(start=0, end=65535)]}
    gone, other = harness.peer(), harness.peer()
    subscribe(gone, "Key_Shared", keySharedMeta=sticky)
    hang_up(harness, gone, PINGS)
    subscribe(other, "Key_Shared", keySharedMeta=sticky)
    assert answer_behind(harness, other, gone).type == Command.SUCCESS


def test_a_subscriber_of_a_non_persistent_topic_waits_for_a_disconnected_one(harness):
    gone, other = harness.peer(), harness.peer()
    subscribe(gone, "Exclusive", "non-persistent://public/default/t")
    hang_up(harness, gone, PINGS)
    subscribe(other, "Exclusive", "non-persistent://public/default/t")
    assert answer_behind(harness, other, gone).type == Command.SUCCESS


@pytest.mark.parametrize(
    "limit", ["consumers_per_topic", "consumers_per_subscription", "producers_per_topic"]
)
def test_a_disconnected_client_does_not_count_towards_limits(harness, limit):
    harness.broker.namespaces.set_policy("public", "default", f"max_{limit}", 1)
    gone, other = consumer_that_hung_up(harness, "Shared")
    if limit == "producers_per_topic":
        other.command("producer", topic=TOPIC, producer_id=1, request_id=7)
        assert answer_behind(harness, other, gone).type == Command.PRODUCER_SUCCESS
    else:
        subscribe(other, "Shared")
        assert answer_behind(harness, other, gone).type == Command.SUCCESS


def test_a_consumer_in_creation_is_removed_when_its_client_disconnects(harness):
    gone, other = harness.peer(), harness.peer()
    harness.auto_poll = False
    subscribe(gone, "Exclusive")
    gone.disconnect()
    subscribe(other, "Exclusive")
    harness.poll()
    assert other.pop().type == Command.SUCCESS


def test_the_last_connected_consumer_may_unsubscribe(harness):
    other = harness.peer()
    gone, ids = delivered(harness, 300, kind="Shared")
    harness.advance_clock_on_read(0.0)
    subscribe(other, "Shared")
    other.frames.clear()
    hang_up(harness, gone, acks(ids))
    other.command("unsubscribe", consumer_id=1, request_id=8)
    slices(harness)
    assert other.pop().type == Command.SUCCESS
    gone.session.release(HELD_BY_PENDING)
    harness.run_slices()
    harness.poll()
    assert not harness.broker.topics.in_memory_now()[0].subscriptions
    assert not any(harness.broker.scheduler.failures.values())


# --- what becomes of its work meanwhile ---
@pytest.mark.parametrize("what", ["sought", "deleted", "made anew", "unloaded", "topic deleted"])
def test_late_acknowledgements_are_dropped_after_changes(harness, what):
    gone, other = consumer_that_hung_up(harness)
    harness.advance_clock_on_read(0.0)
    name, actions = harness.broker.topics.in_memory_now()[0].name, harness.actions
    done: list[Any] = []
    if what == "sought":
        actions.cursors.reset(name, "s", done.append, timestamp_ms=1)
    elif what == "unloaded":
        actions.unload(name)
    elif what == "topic deleted":
        actions.delete(name, True, done.append)
    else:
        actions.cursors.delete(name, "s", done.append, force=True)
    harness.poll()
    if what == "made anew":
        other.subscribe(TOPIC, "s", kind="Exclusive")
        assert len(other.messages()) == 300
    gone.session.release(HELD_BY_PENDING)
    slices(harness)
    assert not harness.gone
    assert not any(harness.broker.scheduler.failures.values())
    if what not in ("deleted", "topic deleted"):
        assert backlog_of(harness) == 300


def test_the_end_of_the_broker_answers_clients_waiting_for_a_subscription(harness):
    gone, other = consumer_that_hung_up(harness)
    subscribe(other, "Exclusive")
    slices(harness)
    harness.broker.close()
    assert not harness.broker.sessions
    assert not harness.gone
    assert not any(harness.broker.scheduler.failures.values())
    assert gone.is_closed
    assert other.is_closed


def test_very_many_waiting_clients_are_answered_in_turns(harness):
    holder = harness.consumer(TOPIC)
    holder.answers_pings = False
    peers = [harness.peer() for _ in range(200)]
    for peer in peers:
        subscribe(peer, "Exclusive")
    assert not any(peer.frames for peer in peers)
    harness.advance_clock_on_read(0.001)
    holder.send_bytes(encoded("pong"))
    assert sum(bool(peer.frames) for peer in peers) < 100
    harness.run_slices()
    assert {peer.pop().command.error.error for peer in peers} == {pb.ConsumerBusy}
