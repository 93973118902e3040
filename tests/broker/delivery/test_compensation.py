"""Active compensation: forgotten acknowledgements, on both sides of the switch."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.broker.delivery.compensation import PROPERTY, DeliveryMarks
from geminga.broker.rules.policies import RuleViolation
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import NAME, TOPIC, Command

TYPES = ("Shared", "Key_Shared", "Exclusive", "Failover")


def on(make_harness: Callable[..., Any], seconds: float = 10, **settings: Any) -> Any:
    return make_harness(redeliver_unacked_after_seconds=seconds, **settings)


def consumer_of(harness: Any, count: int, kind: str = "Shared", **fields: Any) -> Any:
    """A consumer that was there before ``count`` messages were published."""
    peer = harness.consumer(TOPIC, kind=kind, **fields)
    harness.producer(TOPIC).publish(count)
    return peer


def came(peer: Any, after: float = 0) -> list[tuple[int, int]]:
    if after:
        peer.harness.advance(after)
    return [(message.entry_id, message.redelivery_count) for message in peer.messages()]


def stats(harness: Any, subscription: str = "s") -> dict[str, Any]:
    return harness.actions.stats(NAME)["subscriptions"][subscription]


@pytest.mark.parametrize("kind", TYPES)
def test_messages_not_acknowledged_in_time_are_redelivered(make_harness, kind):
    harness = on(make_harness)
    peer = consumer_of(harness, 5, kind)
    assert came(peer) == [(entry, 0) for entry in range(5)]
    peer.ack((0, 0), (0, 2), (0, 3))
    assert came(peer, after=9) == []
    assert came(peer, after=4) == [(1, 1), (4, 1)]
    peer.ack((0, 1))
    assert came(peer, after=13) == [(4, 2)]
    peer.ack((0, 4))
    assert came(peer, after=60) == []
    found = stats(harness)
    assert (found["messagesPushedAgain"], found["redeliverUnackedAfterSeconds"]) == (3, 10)
    assert found["lastPushedAgainTimestamp"] > 0
    assert found["unackedMessages"] == found["messagesInBacklog"] == 0


@pytest.mark.parametrize("kind", TYPES)
def test_compensation_is_off_by_default(harness, kind):
    peer = consumer_of(harness, 3, kind)
    came(peer)
    assert came(peer, after=100_000) == []
    assert stats(harness)["redeliverUnackedAfterSeconds"] == 0


@pytest.mark.parametrize("compensated", [False, True])
@pytest.mark.parametrize("action", ["producer_exception", "producer_request_hold"])
def test_forgotten_acknowledgements_stop_the_producers_or_not(make_harness, make_entry, compensated, action):
    # As reported from production: one lost acknowledgement holds the mark, everything behind it counts
    # as backlog although it is acknowledged, and the quota stops the producers.
    quota = {"backlog_quota_bytes": 20_000, "backlog_quota_action": action}
    harness = on(make_harness, 10 if compensated else 0, **quota)
    producer, peer = harness.producer(TOPIC), harness.consumer(TOPIC, kind="Shared")
    published = 0
    for _ in range(300):
        for _ in range(5):
            if not producer.session.producers.get(1):
                break
            producer.send(published, make_entry(b"x" * 100, publish_time=harness.now_ms))
            published += 1
        for message in peer.messages():
            peer.command("flow", consumer_id=1, messagePermits=1)
            if message.entry_id % 50 == 0 and not message.redelivery_count:
                continue  # forgotten
            peer.ack((message.ledger_id, message.entry_id))
        harness.advance(1)
    if compensated:
        assert published == 1500
        assert stats(harness)["messagesInBacklog"] < 20
        assert stats(harness)["messagesPushedAgain"] >= 29
    else:
        assert published < 500
        assert producer.take(Command.CLOSE_PRODUCER)
        assert stats(harness)["messagesInBacklog"] < 20, "nearly all of it is acknowledged"
        producer.frames.clear()
        assert producer.request("producer", topic=TOPIC, producer_id=1).type == Command.ERROR


def test_messages_that_one_consumer_holds_go_to_another(make_harness):
    harness = on(make_harness)
    sleepy = consumer_of(harness, 3, permits=3)
    other = harness.consumer(TOPIC, kind="Shared", permits=100)
    assert came(other, after=13) == [(0, 1), (1, 1), (2, 1)]
    assert stats(harness)["unackedMessages"] == 3
    # A late acknowledgement by the first still counts.
    sleepy.ack((0, 0))
    assert stats(harness)["messagesInBacklog"] == 2


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_nothing_is_pushed_without_permits(make_harness, kind):
    harness = on(make_harness)
    peer = consumer_of(harness, 3, kind, permits=2)
    assert len(came(peer)) == 2
    assert came(peer, after=60) == []
    assert stats(harness)["messagesPushedAgain"] == 0
    peer.command("flow", consumer_id=1, messagePermits=2)
    assert came(peer) == [(2, 0)]
    assert came(peer, after=4) == [(0, 1)]


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_the_redelivery_rate_is_bounded(make_harness, kind):
    harness = on(make_harness, 4, redeliver_unacked_per_second_max=3)
    peer = consumer_of(harness, 20, kind)
    came(peer)
    assert len(came(peer, after=4.5)) == 3
    assert [entry for entry, _ in came(peer, after=1)] == [3, 4, 5]


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_messages_older_than_the_age_limit_are_not_redelivered(make_harness, make_entry, kind):
    harness = on(make_harness, 10, redeliver_unacked_age_seconds_max=60)
    harness.producer(TOPIC).send_all(make_entry(publish_time=harness.now_ms - age) for age in (100_000, 0))
    peer = harness.consumer(TOPIC, kind=kind)
    came(peer)
    assert came(peer, after=13) == [(1, 1)]
    assert {entry for entry, _ in came(peer, after=100)} == {1}
    assert stats(harness)["entriesTooOldToPushAgain"] == 2
    assert came(peer, after=1000) == []


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_only_open_messages_of_a_batch_are_redelivered(make_harness, make_entry, kind):
    harness = on(make_harness)
    peer = harness.consumer(TOPIC, kind=kind)
    harness.producer(TOPIC).send(0, make_entry(num_messages_in_batch=5), messages=5)
    came(peer)
    peer.ack((0, 0), ack_set=[0b01010])
    harness.advance(13)
    (message,) = peer.messages()
    assert (message.redelivery_count, list(message.ack_set)) == (1, [0b01010])
    assert stats(harness)["messagesPushedAgain"] == 2


def test_policies_and_subscription_properties_switch_compensation(harness):
    peer = consumer_of(harness, 1)
    came(peer)
    namespaces = harness.broker.namespaces
    rule = {"afterSeconds": "20", "messagesPerSecondMax": 5}
    namespaces.set_policy("public", "default", "redeliver_unacked_policies", rule, lambda error: None)
    assert came(peer, after=30) == [(0, 1)]
    namespaces.set_topic_policy(NAME, "redeliver_unacked_policies", {"afterSeconds": 0}, lambda error: None)
    assert came(peer, after=100) == []
    harness.actions.cursors.set_properties(NAME, "s", {PROPERTY: "4"}, lambda error: None)
    assert came(peer, after=6) == [(0, 2)]
    harness.actions.cursors.set_properties(NAME, "s", {PROPERTY: "soon"}, lambda error: None)
    assert stats(harness)["redeliverUnackedAfterSeconds"] == 0
    with pytest.raises(RuleViolation, match="afterSeconds"):
        namespaces.set_policy("public", "default", "redeliver_unacked_policies", {"afterSeconds": -1}, None)


def test_a_new_subscription_may_request_compensation(harness):
    peer = consumer_of(harness, 1, subscription_properties=[pb.KeyValue(key=PROPERTY, value="5")])
    came(peer)
    assert came(peer, after=8) == [(0, 1)]
    peer.disconnect()
    harness.restart()
    peer = harness.consumer(TOPIC, kind="Shared")
    assert came(peer) == [(0, 0)]
    assert came(peer, after=8) == [(0, 1)]


def test_redeliveries_are_logged_at_intervals(make_harness, caplog):
    caplog.set_level(logging.INFO, "geminga.broker")
    harness = on(make_harness, 4)
    consumer_of(harness, 2)
    harness.advance(58)
    lines = [line for line in caplog.messages if "redelivered" in line]
    assert len(lines) == 1
    assert "redelivered 2 messages that were not acknowledged within 4 s" in lines[0]
    harness.advance(30)
    assert len([line for line in caplog.messages if "redelivered" in line]) == 2


def test_nothing_runs_for_subscriptions_without_consumers(make_harness):
    harness = on(make_harness)
    peer = harness.consumer(TOPIC, kind="Shared")
    compensation = harness.subscription().compensation
    assert compensation._timer is not None
    peer.disconnect()
    assert compensation._timer is None


def test_a_rewound_exclusive_consumer_gets_no_message_twice(make_harness):
    harness = on(make_harness)
    peer = consumer_of(harness, 3, "Exclusive")
    came(peer)
    harness.advance(9)
    peer.command("redeliverUnacknowledgedMessages", consumer_id=1)
    assert came(peer) == [(0, 0), (1, 0), (2, 0)]
    assert came(peer, after=9) == []
    assert came(peer, after=5) == [(0, 1), (1, 1), (2, 1)]


@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.integers(1, 50)), min_size=1, max_size=300), st.floats(1, 60)
)
def test_recorded_send_times_are_never_too_early(steps, seconds):
    marks = DeliveryMarks(seconds)
    now, offset, sent = 0.0, 0, []
    for pause, count in steps:
        now += pause
        offset += count
        marks.note(now, offset)
        sent.append((now, offset))
        moment = now - seconds
        told = marks.sent_before(moment)
        true = max((upto for at, upto in sent if at <= moment), default=0)
        early = max((upto for at, upto in sent if at <= moment - seconds / 16), default=0)
        assert early <= told <= true
