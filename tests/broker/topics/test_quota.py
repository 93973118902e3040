"""Backlog quotas: three actions, two limits, the errors for clients, and their end."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.ids import MessageId
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, TOPIC, Command
from tests.support.disk_stores import succeeded

ROUND = 16


class Topic:
    """A topic, a producer on it, and requests to both."""

    def __init__(self, harness: Any, make_entry: Callable[..., bytes]) -> None:
        self.harness = harness
        self.make_entry = make_entry
        self.peer = harness.peer()
        self.peer.producer(TOPIC)

    def publish(self, count: int, messages: int = 1) -> None:
        for number in range(count):
            entry = self.make_entry(
                b"x" * 100,
                publish_time=self.harness.now_ms,
                num_messages_in_batch=messages if messages > 1 else None,
            )
            self.peer.send(number, entry, messages=messages)
        assert len(self.peer.receipts()) == count

    def subscribe(self, name: str = "s") -> None:
        self.harness.actions.cursors.create(NAME, name, MessageId.earliest, succeeded)

    def pass_time(self, seconds: float) -> None:
        """The producer's client answers PINGs meanwhile."""
        while seconds > 0:
            self.harness.advance(min(seconds, 15))
            self.peer.command("ping")
            self.peer.take(Command.PONG)
            seconds -= 15

    def open_producer(self) -> Any:
        """The answer to a PRODUCER."""
        return self.peer.request("producer", topic=TOPIC, producer_id=1).command

    def backlog(self, name: str = "s") -> int:
        return int(self.harness.actions.stats(NAME)["subscriptions"][name]["msgBacklog"])

    @property
    def exceeded(self) -> str:
        return str(self.harness.actions.stats(NAME)["backlogQuotaExceeded"])


@pytest.fixture
def make(make_harness, make_entry):
    return lambda **settings: Topic(make_harness(ledger_entries_max=2, **settings), make_entry)


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("producer_request_hold", pb.ProducerBlockedQuotaExceededError),
        ("producer_exception", pb.ProducerBlockedQuotaExceededException),
    ],
)
def test_a_full_backlog_stops_producers_until_it_shrinks(make, action, code):
    topic = make(backlog_quota_bytes=500, backlog_quota_action=action)
    topic.subscribe()
    topic.publish(10)
    topic.pass_time(ROUND)
    assert topic.peer.take(Command.CLOSE_PRODUCER)
    assert topic.open_producer().error.error == code
    topic.harness.actions.cursors.skip_all(NAME, "s", succeeded)
    # The very next try succeeds, without waiting for a round of housekeeping.
    assert topic.open_producer().producer_success.producer_ready
    assert not topic.exceeded


def test_a_topic_stays_in_memory_while_stopped_producers_try_again(make):
    topic = make(backlog_quota_bytes=500)
    topic.subscribe()
    topic.publish(10)
    topic.pass_time(ROUND)
    for _ in range(4):
        topic.open_producer()
        topic.pass_time(50)
        assert topic.harness.broker.topics.in_memory(NAME).quota_exceeded
    topic.pass_time(120)
    assert topic.harness.broker.topics.in_memory(NAME) is None


def test_the_error_names_subscription_size_and_oldest_message(make):
    topic = make(backlog_quota_bytes=500)
    topic.subscribe("fast")
    topic.publish(4, messages=10)
    peer = topic.harness.consumer(TOPIC, "slow", kind="Shared")
    topic.publish(6, messages=10)
    ids = [(message.ledger_id, message.entry_id) for message in peer.messages()]
    peer.ack(*[each for each in ids if each != ids[1]])
    topic.harness.actions.cursors.skip_all(NAME, "fast", succeeded)
    topic.pass_time(ROUND)
    topic.peer.frames.clear()
    reason = topic.open_producer().error.message
    ledger, entry = ids[1]
    size = topic.harness.actions.stats(NAME)["subscriptions"]["slow"]["backlogSize"]
    assert reason == (
        f"Cannot create producer on topic {TOPIC}: backlog quota exceeded (producer_request_hold): "
        f"subscription 'slow' keeps {size:,} bytes of backlog, 500 are allowed; its oldest unacknowledged "
        f"message is {ledger}:{entry}, published 16 s ago; it is a hole, later messages acknowledged: 80"
    )
    assert topic.exceeded in reason
    peer.ack(ids[1])
    assert topic.open_producer().producer_success.producer_ready


def test_a_quota_holds_from_the_first_producer_after_a_restart(make):
    topic = make(backlog_quota_bytes=500)
    topic.subscribe()
    topic.publish(10)
    topic.harness.crash()
    topic.peer = topic.harness.peer()
    assert topic.open_producer().error.error == pb.ProducerBlockedQuotaExceededError


def test_eviction_deletes_the_oldest_messages(make):
    topic = make(backlog_quota_bytes=500, backlog_quota_action="consumer_backlog_eviction")
    topic.subscribe("slow")
    topic.publish(10)
    topic.subscribe("fast")
    topic.harness.actions.cursors.skip_all(NAME, "fast", succeeded)
    topic.pass_time(ROUND)
    assert 0 < topic.backlog("slow") < 5
    assert topic.backlog("fast") == 0
    assert not topic.peer.take(Command.CLOSE_PRODUCER)


def test_a_backlog_quota_by_age_applies(make):
    topic = make(backlog_quota_seconds=30)
    topic.subscribe()
    topic.publish(1)
    topic.pass_time(15)
    assert not topic.peer.take(Command.CLOSE_PRODUCER)
    topic.pass_time(30)
    assert topic.peer.take(Command.CLOSE_PRODUCER)
    assert "has a backlog of 45 s, 30 s are allowed" in topic.open_producer().error.message


def test_each_limit_has_its_own_action(make):
    # What exceeds the size may not be given up because what is too old may.
    topic = make()
    quotas = {
        "destination_storage": {"limitSize": 500, "policy": "producer_exception"},
        "message_age": {"limitTime": 60, "policy": "consumer_backlog_eviction"},
    }
    topic.harness.broker.namespaces.set_policy("public", "default", "backlog_quota_map", quotas)
    topic.subscribe()
    topic.publish(3)
    topic.pass_time(45)
    topic.publish(7)
    topic.pass_time(30)
    assert topic.backlog() == 7
    topic.peer.frames.clear()
    assert topic.open_producer().error.error == pb.ProducerBlockedQuotaExceededException


def test_a_removed_quota_blocks_no_producer(make):
    topic = make(backlog_quota_bytes=500)
    topic.subscribe()
    topic.publish(10)
    topic.pass_time(ROUND)
    topic.peer.frames.clear()
    no_limit = {"destination_storage": {"limitSize": -1}}
    topic.harness.broker.namespaces.set_policy("public", "default", "backlog_quota_map", no_limit)
    assert topic.open_producer().producer_success.producer_ready


def test_readers_have_no_backlog_to_limit(make):
    topic = make(backlog_quota_bytes=500)
    topic.harness.consumer(TOPIC, "r", durable=False)
    topic.publish(10)
    topic.pass_time(ROUND)
    assert not topic.peer.take(Command.CLOSE_PRODUCER)


def test_producers_are_stopped_after_the_receipts_of_sent_messages(harness, make_entry):
    """Else their clients would send again what was stored."""
    topic = Topic(harness, make_entry)
    topic.subscribe()
    topic.publish(5)
    harness.auto_poll = False
    topic.peer.send(5, make_entry(b"x" * 100))
    quotas = {"destination_storage": {"limitSize": 300, "policy": "producer_request_hold"}}
    harness.broker.namespaces.set_policy("public", "default", "backlog_quota_map", quotas)
    harness.broker.topics.find(NAME).check_quota()
    topic.peer.send(6, make_entry(b"x" * 100))
    assert not topic.peer.take(Command.CLOSE_PRODUCER)
    harness.auto_poll = True
    harness.poll()
    kinds = [frame.type for frame in topic.peer.frames]
    assert kinds[-2:] == [Command.SEND_RECEIPT, Command.CLOSE_PRODUCER]
    assert topic.backlog() == 6, "what came behind is left to the client"
