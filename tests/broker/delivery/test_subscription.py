"""Subscriptions: moving the cursor under connected consumers."""

from typing import Any

import pytest

from geminga.broker.delivery.cursor_writer import cursor_key, cursor_prefix
from geminga.broker.delivery.subscription import type_name
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC, Command


def prepared(harness: Any, kind: str = "Exclusive", count: int = 5, permits: int = 1000) -> tuple[Any, Any]:
    consumer = harness.consumer(TOPIC, kind=kind, permits=permits)
    harness.producer(TOPIC).publish(count)
    return consumer, harness.subscription()


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
def test_skipped_messages_are_not_delivered_to_a_connected_consumer(harness, kind):
    consumer, subscription = prepared(harness, kind, permits=2)
    assert len(consumer.messages()) == 2
    assert subscription.skip_to(4) == 4
    assert subscription.skip_to(4) == 0
    consumer.command("flow", consumer_id=1, messagePermits=10)
    assert [m.entry_id for m in consumer.messages()] == [4]
    assert subscription.backlog == 1


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_a_reset_clears_the_pending_messages(harness, kind):
    consumer, subscription = prepared(harness, kind)
    consumer.ack((0, 0), (0, 3))
    done: list[Any] = []
    subscription.reset(0, done.append)
    harness.poll()
    assert done == [None]
    consumer.frames.clear()
    consumer.subscribe(TOPIC, kind=kind)
    found = consumer.messages()
    assert [(m.entry_id, m.redelivery_count) for m in found] == [(n, 0) for n in range(5)]


def test_a_subscription_being_deleted_refuses_consumers(harness):
    _, subscription = prepared(harness)
    subscription.fenced = True
    frame = harness.peer().request("subscribe", topic=TOPIC, subscription="s", consumer_id=1, subType=0)
    assert frame.command.error.error == pb.ServiceNotReady


def test_notices_follow_the_answer_to_subscribe(harness):
    peer = harness.peer()
    harness.auto_poll = False
    peer.command("subscribe", topic=TOPIC, subscription="s", consumer_id=1, subType=2, request_id=1)
    harness.poll()
    assert [frame.type for frame in peer.frames] == [Command.SUCCESS, Command.ACTIVE_CONSUMER_CHANGE]


def test_keys_distinguish_topics_and_subscriptions():
    assert cursor_key("a", "b").startswith(cursor_prefix("a"))
    assert not cursor_key("ab", "c").startswith(cursor_prefix("a"))
    assert type_name(3) == "Key_Shared"
