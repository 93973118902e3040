import pytest

from geminga.consumer.unacked_entries import NegativeAcks


def test_due_after_the_delay_and_not_before():
    acks = NegativeAcks()
    acks.add([(1, 2)], 60.0, now=10.0)
    deadline = acks.next_deadline()
    assert deadline < float("inf")
    assert 70.0 <= deadline <= 70.1
    assert acks.take_due(69.99) == []
    assert acks.take_due(deadline) == [(1, 2)]
    assert acks.next_deadline() == float("inf")
    assert len(acks) == 0


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


def test_cancel_and_clear():
    acks = NegativeAcks()
    acks.add([(1, 1)], 1.0, now=0.0)
    acks.add([(1, 2)], 1.0, now=0.0)
    acks.cancel((1, 1))
    assert acks.take_due(2.0) == [(1, 2)]
    acks.add([(1, 3)], 1.0, now=0.0)
    acks.clear()
    assert acks.next_deadline() == float("inf")


@pytest.mark.parametrize("now", [0.0, 1234.5678])
def test_no_delay_is_due_at_once(now):
    acks = NegativeAcks()
    acks.add([(1, 1)], 0.0, now)
    assert acks.take_due(now) == [(1, 1)]


def test_entries_are_returned_in_the_order_of_their_deadlines():
    acks = NegativeAcks()
    acks.add([(1, 9)], 3.0, now=0.0)
    acks.add([(1, 1)], 5.0, now=0.0)
    acks.add([(1, 5)], 1.0, now=0.0)
    assert acks.take_due(10.0) == [(1, 5), (1, 9), (1, 1)]
