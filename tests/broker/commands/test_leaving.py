"""Peers that disconnect with very many handles, and clients that need their names and subscriptions."""

from typing import Any

import pytest

from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import SUBSCRIBE, TOPIC, encoded

Command = pb.BaseCommand


def busy_peer(harness: Any) -> Any:
    """Return a peer with more producers than a turn has time to close; later ones are closed last."""
    peer = harness.peer()
    for number in range(100, 200):
        peer.producer(f"{TOPIC}-{number}", producer_id=number)
    return peer


def hang_up(harness: Any, peer: Any) -> None:
    """Disconnect ``peer``; turns are short from then on."""
    harness.advance_clock_on_read(0.001)
    peer.disconnect()
    assert peer.session in harness.gone


def consumer_that_hung_up(harness: Any, kind: str = "Exclusive") -> tuple[Any, Any]:
    """Return one whose subscription is not free yet, and another peer."""
    gone, other = busy_peer(harness), harness.peer()
    gone.producer(TOPIC)
    gone.subscribe(TOPIC, kind=kind)
    hang_up(harness, gone)
    return gone, other


def answer_behind(harness: Any, peer: Any) -> Any:
    """Return a peer's first answer, and check that it follows the end of the disconnected peer."""
    assert not peer.frames
    harness.run_slices()
    harness.poll()
    assert not harness.gone
    return peer.pop()


def subscribe(peer: Any, kind: str, topic: str = TOPIC, **fields: Any) -> None:
    fields |= {"consumer_id": 1, "subType": pb.CommandSubscribe.SubType.Value(kind)}
    peer.command("subscribe", topic=topic, subscription="s", request_id=7, **fields)


# --- producers ---
@pytest.mark.parametrize("mode", ["Shared", "Exclusive"])
def test_an_exclusive_producer_waits_for_the_end_of_a_disconnected_one(harness, mode):
    """ProducerFenced would end the client's producer, although the old producer's client has gone."""
    gone, other = busy_peer(harness), harness.peer()
    gone.producer(TOPIC, producer_access_mode=pb.ProducerAccessMode.Value(mode))
    hang_up(harness, gone)
    wanted = pb.Exclusive if mode == "Shared" else pb.Shared
    other.command("producer", topic=TOPIC, producer_id=1, request_id=7, producer_access_mode=wanted)
    assert answer_behind(harness, other).type == Command.PRODUCER_SUCCESS
    other.send(0)
    assert [each.entry_id for each in other.receipts()] == [0]


def test_a_connected_producer_keeps_its_place_after_another_disconnects(harness):
    gone, living, other = busy_peer(harness), harness.peer(), harness.peer()
    for peer in (gone, living):
        peer.producer(TOPIC)
    hang_up(harness, gone)
    other.command("producer", topic=TOPIC, producer_id=1, request_id=7, producer_access_mode=pb.Exclusive)
    assert answer_behind(harness, other).command.error.error == pb.ProducerFenced


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


# --- consumers ---
@pytest.mark.parametrize("kind", ["Shared", "Failover", "Key_Shared", "Exclusive"])
def test_a_subscriber_of_another_type_waits_for_the_end_of_a_disconnected_one(harness, kind):
    _, other = consumer_that_hung_up(harness, "Shared" if kind == "Exclusive" else "Exclusive")
    subscribe(other, kind)
    assert answer_behind(harness, other).type == Command.SUCCESS


STICKY = {"keySharedMode": pb.STICKY, "hashRanges": [pb.IntRange(start=0, end=65535)]}
EQUAL = {
    "hash ranges": ("Key_Shared", TOPIC, {"keySharedMeta": STICKY}),
    "non-persistent": ("Exclusive", "non-persistent://public/default/t", {}),
}


@pytest.mark.parametrize("what", EQUAL)
def test_an_equal_subscriber_waits_for_the_end_of_a_disconnected_one(harness, what):
    kind, topic, fields = EQUAL[what]
    gone, other = busy_peer(harness), harness.peer()
    subscribe(gone, kind, topic, **fields)
    hang_up(harness, gone)
    subscribe(other, kind, topic, **fields)
    assert answer_behind(harness, other).type == Command.SUCCESS


@pytest.mark.parametrize("kind", ["consumers_per_topic", "consumers_per_subscription", "producers_per_topic"])
def test_a_disconnected_client_does_not_count_towards_limits(harness, kind):
    harness.broker.namespaces.set_policy("public", "default", f"max_{kind}", 1)
    _, other = consumer_that_hung_up(harness, "Shared")
    if kind == "producers_per_topic":
        other.command("producer", topic=TOPIC, producer_id=1, request_id=7)
        assert answer_behind(harness, other).type == Command.PRODUCER_SUCCESS
    else:
        subscribe(other, "Shared")
        assert answer_behind(harness, other).type == Command.SUCCESS


@pytest.mark.parametrize("body", ["producer", "subscribe"])
def test_what_is_being_created_is_removed_when_its_client_disconnects(harness, body):
    gone, other = harness.peer(), harness.peer()
    harness.auto_poll = False
    exclusive = {"topic": TOPIC, "producer_id": 1, "producer_access_mode": pb.Exclusive}
    for peer in (gone, other):
        peer.command(body, request_id=7, **(exclusive if body == "producer" else SUBSCRIBE))
        if peer is gone:
            peer.disconnect()
    harness.poll()
    assert other.pop().type == {"producer": Command.PRODUCER_SUCCESS, "subscribe": Command.SUCCESS}[body]


def test_the_last_connected_consumer_may_unsubscribe(harness):
    gone, other = busy_peer(harness), harness.peer()
    for peer in (gone, other):
        peer.subscribe(TOPIC, kind="Shared")
    hang_up(harness, gone)
    other.command("unsubscribe", consumer_id=1, request_id=8)
    assert answer_behind(harness, other).type == Command.SUCCESS
    assert not harness.topic().subscriptions
    assert not any(harness.broker.scheduler.failures.values())


def test_the_end_of_the_broker_answers_clients_waiting_for_a_subscription(harness):
    gone, other = consumer_that_hung_up(harness)
    subscribe(other, "Exclusive")
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
    told = sum(bool(peer.frames) for peer in peers)
    assert told < 100
    harness.run_slices()
    assert {peer.pop().command.error.error for peer in peers} == {pb.ConsumerBusy}
