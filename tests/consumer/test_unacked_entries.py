"""Entries in hand, from their arrival until they are settled."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.consumer import unacked_entries
from geminga.consumer.settings import ConsumerType

Make = Callable[..., Any]


def in_hand(consumer: Any) -> int:
    return int(consumer.core.unsettled.messages_in_hand(consumer.core.acks.parts.batches.get))


def test_messages_are_in_hand_until_they_are_acknowledged_or_refused(subscribed, make):
    consumer = subscribed(consumer_type=ConsumerType.Shared)
    consumer.receive(make.batch([b"a", b"b", b"c"]), 0)
    for number in range(1, 4):
        consumer.receive(make.single(b"x"), number)
    assert in_hand(consumer) == 6
    first, second, third, *singles = consumer.take()
    consumer.core.acknowledge_messages([first, singles[0]], consumer.now)
    assert in_hand(consumer) == 4
    consumer.core.negative_acknowledge([singles[1]], consumer.now)
    consumer.core.acknowledge_id(singles[2].message_id(), consumer.now)
    assert in_hand(consumer) == 2
    consumer.core.acknowledge_messages([second, third], consumer.now)
    assert in_hand(consumer) == 0


@pytest.mark.parametrize("end", ["through", "disconnected", "redelivered", "late"])
def test_each_kind_of_end_leaves_nothing_in_hand(subscribed, make, end):
    consumer = subscribed(unacked_messages_timeout_ms=10_000)
    for number in range(4):
        consumer.receive(make.single(b"x"), number)
    messages = consumer.take()
    if end == "through":
        consumer.core.acknowledge_through([messages[2]], consumer.now)
        assert in_hand(consumer) == 1
        consumer.core.acknowledge_through([messages[3]], consumer.now)
    elif end == "disconnected":
        consumer.core.disconnected(consumer.now)
    elif end == "redelivered":
        consumer.core.redeliver_unacknowledged()
    else:
        consumer.core.taken(messages, consumer.now)
        consumer.advance(30.0)
    assert in_hand(consumer) == 0


def test_a_drain_asks_for_nothing_and_drops_what_comes(subscribed, make):
    consumer = subscribed(receiver_queue_size=2)
    consumer.receive(make.single(b"0"), 0)
    consumer.core.begin_drain()
    consumer.receive(make.single(b"1"), 1)
    assert [message.data() for message in consumer.take()] == [b"0"]
    assert make.sent(consumer.core) == [], "no permits, and no acknowledgement"
    assert in_hand(consumer) == 1
    consumer.core.disconnected(consumer.now)
    assert len(consumer.attach()) == 1, "no permits after a reconnect either"


def test_memory_is_bounded_without_acknowledgements(subscribed, make, monkeypatch):
    monkeypatch.setattr(unacked_entries, "IN_HAND_MAX", 3)
    consumer = subscribed()
    for number in range(5):
        consumer.receive(make.single(b"x"), number)
    assert in_hand(consumer) == 3
    consumer.core.acknowledge_messages(consumer.take(), consumer.now)
    assert in_hand(consumer) == 0
