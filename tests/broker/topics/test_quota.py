"""Backlog quotas: three actions, two limits, the errors for clients, and their end."""

import pytest

from geminga.diagnosis.commands import size
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.topics.conftest import NAME, TOPIC, Command, Topic

ROUND = 16


def open_producer(topic: Topic) -> pb.BaseCommand:
    """The answer to a PRODUCER."""
    return topic.peer.request("producer", topic=TOPIC, producer_id=1).command


def exceeded(topic: Topic) -> str:
    return str(topic.actions.stats(NAME)["backlogQuotaExceeded"])


@pytest.fixture
def fill(filled):
    def full(**settings: object) -> Topic:
        """A topic whose backlog is twice as large as allowed, before the broker checks it."""
        topic: Topic = filled(10, backlog_quota_bytes=500, **settings)
        return topic

    return full


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("producer_request_hold", pb.ProducerBlockedQuotaExceededError),
        ("producer_exception", pb.ProducerBlockedQuotaExceededException),
    ],
)
def test_a_full_backlog_stops_producers_until_it_shrinks(fill, action, code):
    topic = fill(backlog_quota_action=action)
    topic.keep_connected(ROUND)
    assert topic.peer.take(Command.CLOSE_PRODUCER)
    assert open_producer(topic).error.error == code
    topic.skip_all()
    # The very next try succeeds, without waiting for a round of housekeeping.
    assert open_producer(topic).producer_success.producer_ready
    assert not exceeded(topic)


def test_a_topic_stays_in_memory_while_stopped_producers_try_again(fill):
    topic = fill()
    topic.keep_connected(ROUND)
    for _ in range(4):
        open_producer(topic)
        topic.keep_connected(50)
        assert topic.topics.in_memory(NAME).quota_exceeded
    topic.keep_connected(120)
    assert topic.topics.in_memory(NAME) is None


def test_the_error_names_subscription_size_and_oldest_message(make):
    topic = make(backlog_quota_bytes=500)
    topic.subscribe("fast")
    topic.publish(4, messages=10)
    peer = topic.harness.consumer(TOPIC, "slow", kind="Shared")
    topic.publish(6, messages=10)
    ids = peer.ids()
    peer.ack(*[each for each in ids if each != ids[1]])
    topic.skip_all("fast")
    topic.keep_connected(ROUND)
    topic.peer.frames.clear()
    reason = open_producer(topic).error.message
    ledger, entry = ids[1]
    kept = topic.harness.actions.stats(NAME)["subscriptions"]["slow"]["backlogSize"]
    assert reason == (
        f"Cannot create producer on topic {TOPIC}: backlog quota exceeded (producer_request_hold): "
        f"subscription 'slow' keeps {size(kept)} of backlog, 500 B are allowed; its oldest unacknowledged "
        f"message is {ledger}:{entry}, published 16s ago; it is a hole, later messages acknowledged: 80"
    )
    assert exceeded(topic) in reason
    peer.ack(ids[1])
    assert open_producer(topic).producer_success.producer_ready


def test_a_quota_holds_from_the_first_producer_after_a_restart(fill):
    topic = fill()
    topic.harness.crash()
    topic.peer = topic.harness.peer()
    assert open_producer(topic).error.error == pb.ProducerBlockedQuotaExceededError


def test_eviction_deletes_the_oldest_messages(fill):
    topic = fill(backlog_quota_action="consumer_backlog_eviction")
    topic.subscribe("fast")
    topic.skip_all("fast")
    topic.keep_connected(ROUND)
    assert 0 < topic.backlog() < 5
    assert topic.backlog("fast") == 0
    assert not topic.peer.take(Command.CLOSE_PRODUCER)


def test_a_backlog_quota_by_age_applies(filled):
    topic = filled(1, backlog_quota_seconds=30)
    topic.keep_connected(15)
    assert not topic.peer.take(Command.CLOSE_PRODUCER)
    topic.keep_connected(30)
    assert topic.peer.take(Command.CLOSE_PRODUCER)
    assert "has a backlog of 45 s, 30 s are allowed" in open_producer(topic).error.message


def test_each_limit_has_its_own_action(make):
    # The age limit deletes old messages; the size limit refuses producers and deletes none.
    topic = make()
    quotas = {
        "destination_storage": {"limitSize": 500, "policy": "producer_exception"},
        "message_age": {"limitTime": 60, "policy": "consumer_backlog_eviction"},
    }
    topic.set_policy("backlog_quota_map", quotas)
    topic.subscribe()
    topic.publish(3)
    topic.keep_connected(45)
    topic.publish(7)
    topic.keep_connected(30)
    assert topic.backlog() == 7
    topic.peer.frames.clear()
    assert open_producer(topic).error.error == pb.ProducerBlockedQuotaExceededException


def test_a_removed_quota_blocks_no_producer(fill):
    topic = fill()
    topic.keep_connected(ROUND)
    topic.peer.frames.clear()
    no_limit = {"destination_storage": {"limitSize": -1}}
    topic.set_policy("backlog_quota_map", no_limit)
    assert open_producer(topic).producer_success.producer_ready


def test_readers_have_no_backlog_to_limit(make):
    topic = make(backlog_quota_bytes=500)
    topic.harness.consumer(TOPIC, "r", durable=False)
    topic.publish(10)
    topic.keep_connected(ROUND)
    assert not topic.peer.take(Command.CLOSE_PRODUCER)


def test_producers_are_stopped_after_the_receipts_of_sent_messages(make, make_entry):
    """Else their clients would send again what was stored."""
    topic = make()
    harness = topic.harness
    topic.subscribe()
    topic.publish(5)
    harness.auto_poll = False
    topic.peer.send(5, make_entry(b"x" * 100))
    quotas = {"destination_storage": {"limitSize": 300, "policy": "producer_request_hold"}}
    topic.set_policy("backlog_quota_map", quotas)
    topic.topics.find(NAME).check_quota()
    topic.peer.send(6, make_entry(b"x" * 100))
    assert not topic.peer.take(Command.CLOSE_PRODUCER)
    harness.auto_poll = True
    harness.poll()
    kinds = [frame.type for frame in topic.peer.frames]
    assert kinds[-2:] == [Command.SEND_RECEIPT, Command.CLOSE_PRODUCER]
    assert topic.backlog() == 6, "what came behind is left to the client"
