from geminga.consumer.unacked_entries import NegativeAcks


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
