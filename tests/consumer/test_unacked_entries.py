"""Entries in hand, from their arrival until they are settled."""

from collections.abc import Callable
from typing import Any

import pytest

from geminga.consumer import unacked_entries
from geminga.consumer.settings import ConsumerType
from geminga.consumer.unacked_entries import AckTimeout, NegativeAcks

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
    assert len(consumer.reconnect()) == 1, "no permits after a reconnect either"


def test_memory_is_bounded_without_acknowledgements(subscribed, make, monkeypatch):
    monkeypatch.setattr(unacked_entries, "IN_HAND_MAX", 3)
    consumer = subscribed()
    for number in range(5):
        consumer.receive(make.single(b"x"), number)
    assert in_hand(consumer) == 3
    consumer.core.acknowledge_messages(consumer.take(), consumer.now)
    assert in_hand(consumer) == 0


def test_a_burst_leaves_together():
    acks = NegativeAcks()
    for number in range(100):
        acks.add([(1, number)], 1.0, now=5.0 + number * 0.0005)
    first = acks.next_deadline()
    assert first is not None
    assert len(acks.take_due(first + 0.11)) == 100


def test_of_several_negative_acks_the_earliest_deadline_counts():
    acks = NegativeAcks()
    acks.add([(1, 1)], 10.0, now=0.0)
    acks.add([(1, 1)], 1.0, now=0.0)
    acks.add([(1, 1)], 30.0, now=0.0)
    assert acks.take_due(1.2) == [(1, 1)]
    assert acks.take_due(100.0) == []


def test_entries_are_returned_in_the_order_of_their_deadlines():
    acks = NegativeAcks()
    acks.add([(1, 9)], 3.0, now=0.0)
    acks.add([(1, 1)], 5.0, now=0.0)
    acks.add([(1, 5)], 1.0, now=0.0)
    assert acks.take_due(10.0) == [(1, 5), (1, 9), (1, 1)]


def test_expires_between_one_timeout_and_one_tick_more():
    timeout = AckTimeout(10.0, 1.0)
    timeout.taken((1, 1), 0.25)
    deadline = timeout.next_deadline()
    assert deadline < float("inf")
    assert 10.25 <= deadline <= 11.25
    assert timeout.take_expired(10.0) == []
    assert timeout.take_expired(deadline) == [(1, 1)]
    assert len(timeout) == 0


def test_taking_another_message_of_the_entry_restarts_its_timeout():
    timeout = AckTimeout(10.0, 1.0)
    timeout.taken((1, 1), 0.0)
    timeout.taken((1, 2), 1.0)
    timeout.taken((1, 1), 5.0)
    assert timeout.take_expired(12.0) == [(1, 2)]
    assert timeout.take_expired(15.0) == [(1, 1)]


def test_settling_through_a_position_costs_only_the_settled_entries():
    class Counted(dict[Any, Any]):
        looked = 0

        def __iter__(self) -> Any:
            for key in super().__iter__():
                Counted.looked += 1
                yield key

    timeout = AckTimeout(10.0, 1.0)
    timeout._deadlines = Counted()
    count = 3_000
    for number in range(count):
        timeout.taken((1, number), 0.0)
    for number in range(count):
        timeout.settled_through((1, number))
    assert len(timeout) == 0
    assert Counted.looked <= 3 * count


def test_settling_through_a_position_includes_entries_taken_out_of_order():
    timeout = AckTimeout(10.0, 1.0)
    for number in (5, 3, 4, 9):
        timeout.taken((1, number), 0.0)
    timeout.settled_through((1, 4))
    assert timeout.take_expired(11.0) == [(1, 5), (1, 9)]
    timeout.clear()  # another position
    timeout.taken((1, 3), 20.0)
    assert timeout.take_expired(31.0) == [(1, 3)]


def test_a_timeout_of_zero_tracks_no_entry():
    tracker = AckTimeout(0.0, 1.0)
    tracker.taken((0, 0), 0.0)
    assert tracker.next_deadline() == float("inf")
