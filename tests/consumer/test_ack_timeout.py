"""The acknowledgement time-out: who is late, and what settles an entry."""

from typing import Any

from geminga.consumer.unacked_entries import AckTimeout


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
