"""Limited producers are slowed and lose nothing; limited consumers get everything, in order, at the rate."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.ids import TopicName
from geminga.wire.frames import encode_send
from tests.broker.conftest import TOPIC, Command


def publish_rate(messages: int = -1, size: int = -1) -> dict[str, Any]:
    return {"standalone": {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size}}


def dispatch_rate(messages: int = -1, size: int = -1, period: int = 1) -> dict[str, Any]:
    return {
        "standalone": {
            "dispatchThrottlingRateInMsg": messages, "dispatchThrottlingRateInByte": size,
            "ratePeriodInSecond": period,
        }
    }  # fmt: skip


def frames(make_entry: Callable[..., bytes], count: int, first: int = 0) -> bytes:
    """Return ``count`` SEND frames, as a client sends them without waiting for receipts."""
    numbers = range(first, first + count)
    entries = [make_entry(b"m%d" % number, sequence_id=number) for number in numbers]
    pairs = zip(numbers, entries, strict=True)
    return b"".join(encode_send(1, number, 1, None, len(entry)) + entry for number, entry in pairs)


def set_topic(harness: Any, field: str, value: Any, name: str = TOPIC) -> None:
    harness.broker.namespaces.set_topic_policy(TopicName.parse(name), field, value)


@pytest.mark.parametrize("kind", ["persistent", "non-persistent"])
@pytest.mark.parametrize("level", ["topic", "namespace", "broker"])
def test_a_limited_producer_is_slowed_and_nothing_fails(make_harness, make_entry, level, kind):
    harness = make_harness(**({"publish_rate_messages_max": 10} if level == "broker" else {}))
    name = TOPIC.replace("persistent", kind)
    if level == "topic":
        set_topic(harness, "publishMaxMessageRate", publish_rate(10), name)
    elif level == "namespace":
        harness.broker.namespaces.set_policy("public", "default", "publishMaxMessageRate", publish_rate(10))
    peer = harness.producer(name)
    peer.send_bytes(frames(make_entry, 600))
    taken = len(peer.receipts())
    assert taken <= 300, "the first heap only: from then on one by one"
    assert not peer.reading
    for _ in range(3):
        before = taken
        harness.advance(10)
        taken += len(peer.receipts())
        assert not peer.is_closed
        assert taken - before <= 101
    harness.advance(60)
    taken += len(peer.receipts())
    assert taken == 600
    harness.advance(1)
    assert peer.reading


def test_the_publish_rate_is_smooth(harness, make_entry):
    set_topic(harness, "publishMaxMessageRate", publish_rate(100))
    peer = harness.producer(TOPIC)
    peer.send_bytes(frames(make_entry, 2))
    harness.advance(5)
    peer.send_bytes(frames(make_entry, 20, 2))
    harness.advance(5)
    peer.receipts()
    peer.send_bytes(frames(make_entry, 100, 22))
    each = [len(peer.receipts())]
    for _ in range(10):
        harness.advance(0.1)
        each.append(len(peer.receipts()))
    assert max(each) <= 14, each
    assert sum(each) == 100


def test_the_publish_rate_in_bytes_applies_too(harness, make_entry):
    set_topic(harness, "publishMaxMessageRate", publish_rate(size=1000))
    peer = harness.producer(TOPIC)
    peer.send(0, make_entry(bytes(10_000)))
    assert not peer.reading
    assert len(peer.receipts()) == 1
    harness.advance(9)
    assert not peer.reading
    harness.advance(2)
    assert peer.reading


def test_other_peers_are_not_slowed_and_a_slowed_one_stays_connected(harness, make_entry):
    set_topic(harness, "publishMaxMessageRate", publish_rate(1))
    slow = harness.producer(TOPIC)
    other = harness.producer("persistent://public/default/free")
    slow.send_bytes(frames(make_entry, 200))
    other.publish(500)
    assert len(other.receipts()) == 500
    harness.advance(100)
    assert not slow.is_closed
    assert len(slow.take(Command.PONG)) >= 8
    # The limit is lifted: within a second publishing resumes.
    set_topic(harness, "publishMaxMessageRate", None)
    harness.advance(1.1)
    assert slow.reading
    assert len(slow.receipts()) == 200


def test_a_slowed_peer_may_disconnect(harness, make_entry):
    set_topic(harness, "publishMaxMessageRate", publish_rate(1))
    peer = harness.producer(TOPIC)
    peer.send_bytes(frames(make_entry, 600))
    peer.disconnect()
    harness.advance(30)
    assert harness.peer().producer(TOPIC).producer_name


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
@pytest.mark.parametrize("level", ["topicDispatchRate", "subscriptionDispatchRate", "broker"])
def test_a_limited_consumer_gets_everything_in_order(make_harness, kind, level):
    harness = make_harness(**({"dispatch_rate_messages_max": 50} if level == "broker" else {}))
    if level != "broker":
        set_topic(harness, level, dispatch_rate(50))
    harness.producer(TOPIC).publish(200)
    consumer = harness.consumer(TOPIC, kind=kind)
    harness.advance(1.5)  # a failover consumer takes over after a while
    got = consumer.entry_ids()
    for _ in range(20):
        harness.advance(0.5)
        new = consumer.entry_ids()
        assert len(new) <= 40
        got += new
    assert got == list(range(200))
    assert next(iter(harness.subscription().consumers)).permits == 800


def test_dispatch_limits_in_bytes_apply_until_lifted(harness):
    set_topic(harness, "topicDispatchRate", dispatch_rate(size=10))
    harness.producer(TOPIC).publish(200)
    consumer = harness.consumer(TOPIC)
    harness.advance(1)
    assert len(consumer.entry_ids()) <= 100
    set_topic(harness, "topicDispatchRate", None)
    harness.advance(1.1)
    harness.poll()
    consumer.messages()
    assert harness.subscription().dispatcher.read_offset == 200
