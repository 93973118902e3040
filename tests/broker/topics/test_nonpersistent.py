"""Non-persistent topics: who is there and can take it gets it, the rest is dropped."""

from typing import Any

import pytest

from geminga.broker.admin.errors import AdminRefusal
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import SUBSCRIBE, Command

TOPIC = "non-persistent://public/default/t"
NAME = TopicName.parse(TOPIC)


@pytest.fixture
def producer(harness):
    return harness.producer(TOPIC)


def count(peer: Any) -> int:
    return len(peer.messages())


def test_messages_pass_through_and_are_receipted(harness, producer):
    early = harness.consumer(TOPIC)
    producer.send(7)
    [receipt] = producer.receipts()
    assert (receipt.sequence_id, receipt.ledger_id, receipt.entry_id) == (7, 0, 0)
    [message] = early.messages()
    assert (message.ledger_id, message.entry_id, message.partition) == (0, 0, -1)
    late = harness.consumer(TOPIC, "late")
    assert count(late) == 0
    early.ack((0, 0), request_id=3)
    assert early.pop().command.ackResponse.request_id == 3


def test_without_permits_or_buffer_space_a_message_is_dropped(harness, producer):
    peer = harness.consumer(TOPIC, permits=1)
    producer.publish(3)
    assert count(peer) == 1
    peer.command("flow", consumer_id=1, messagePermits=10)
    assert count(peer) == 0
    peer.writable = False
    producer.send(3)
    assert count(peer) == 0
    assert harness.broker.topics.find(NAME).subscriptions["s"].dropped == 3


def test_each_subscription_type_distributes_messages(harness, producer, make_entry):
    for kind in ("Shared", "Failover", "Key_Shared"):
        peers = [harness.peer() for _ in range(2)]
        for number, peer in enumerate(peers):
            peer.subscribe(TOPIC, kind, kind=kind, consumer_name=f"c{number}")
        producer.send_all(make_entry(partition_key=f"k{sequence_id}") for sequence_id in range(20))
        counts = [count(peer) for peer in peers]
        assert sum(counts) == 20
        assert (0 in counts) == (kind == "Failover")
        active = peers[1].take(Command.ACTIVE_CONSUMER_CHANGE)
        assert bool(active) == (kind == "Failover")
        for peer in peers:
            peer.disconnect()
    assert harness.broker.topics.find(NAME).subscriptions == {}


def test_the_next_failover_consumer_takes_over(harness, producer):
    first = harness.consumer(TOPIC, kind="Failover", consumer_name="a")
    second = harness.consumer(TOPIC, kind="Failover", consumer_name="b")
    first.disconnect()
    producer.send(0)
    assert count(second) == 1


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_a_second_consumer_beside_an_exclusive_one_is_refused(harness, kind):
    harness.peer().subscribe(TOPIC)
    fields = {"topic": TOPIC, "subType": pb.CommandSubscribe.SubType.Value(kind)}
    frame = harness.peer().request("subscribe", **(SUBSCRIBE | fields))
    assert frame.command.error.error == pb.ConsumerBusy


@pytest.mark.parametrize(("body", "more"), [("seek", {"message_publish_time": 0}), ("getLastMessageId", {})])
def test_calls_that_need_storage_are_refused(harness, body, more):
    peer = harness.consumer(TOPIC)
    assert peer.request(body, consumer_id=1, **more).command.error.error == pb.MetadataError
    with pytest.raises(AdminRefusal) as refused:
        harness.actions.topic(NAME).truncate(lambda error: None)
    assert refused.value.status == 405


def test_unsubscribing_removes_the_subscription(harness):
    peer = harness.consumer(TOPIC)
    assert peer.request("unsubscribe", consumer_id=1).type == Command.SUCCESS


def test_the_topic_is_removed_after_the_last_client(harness, producer):
    producer.disconnect()
    assert list(harness.actions.topics.walk("public/default", persistent=False)) == [TOPIC]
    harness.advance(200)
    assert list(harness.actions.topics.walk("public/default", persistent=False)) == []


def test_deleting_and_unloading_disconnect_clients(harness, producer):
    peer = harness.consumer(TOPIC)
    harness.actions.unload(NAME)
    assert producer.pop().type == Command.CLOSE_PRODUCER
    assert peer.pop().type == Command.CLOSE_CONSUMER
    harness.peer().producer(TOPIC)
    harness.actions.delete(NAME, True, lambda error: None)
    assert not harness.actions.exists(NAME)


def test_stats_count_messages_and_drops(harness, producer):
    harness.consumer(TOPIC)
    producer.send(0)
    stats = harness.actions.stats(NAME)
    assert (stats["msgInCounter"], stats["storageSize"]) == (1, 0)
    assert stats["subscriptions"]["s"]["msgOutCounter"] == 1
