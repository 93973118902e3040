import threading

import pytest

from geminga.errors import InvalidConfiguration, MemoryBufferIsFull, MessageTooBig, ProducerQueueIsFull
from geminga.producer.pending_limits import ByteBudget, PendingLimits, Permits, partition_share


def test_giving_back_more_than_was_taken_raises():
    with pytest.raises(RuntimeError, match="only 0 are taken"):
        PendingLimits(Permits(1), Permits(0), ByteBudget()).give(1, 1)
    budget = ByteBudget(10)
    with pytest.raises(RuntimeError, match="only 0 are taken"):
        budget.give(1)


def test_a_negative_limit_is_refused():
    with pytest.raises(InvalidConfiguration, match="memory_limit"):
        ByteBudget(-1)


@pytest.mark.parametrize(
    ("limits", "error", "numbers"),
    [
        ((3, 9, 99), ProducerQueueIsFull, "3 messages are pending of max_pending_messages=3"),
        ((9, 3, 99), ProducerQueueIsFull, "max_pending_messages_across_partitions=3"),
        ((9, 9, 99), MemoryBufferIsFull, "90 bytes are pending of the client's memory_limit=99 and 10 more"),
    ],
)
def test_refusals_carry_the_numbers(limits, error, numbers):
    own, shared, memory = limits
    pending = PendingLimits(Permits(own), Permits(shared), ByteBudget(memory))
    pending.take(3, 90)
    refusal = pending.refusal(1, 10, "topic")
    assert isinstance(refusal, error)
    assert numbers in str(refusal)


def test_what_can_never_fit_is_too_big_and_not_worth_waiting_for():
    limits = PendingLimits(Permits(3), Permits(9), ByteBudget(99))
    limits.check_possible(3, 99, "topic")
    with pytest.raises(MessageTooBig, match="4 chunks"):
        limits.check_possible(4, 1, "topic")
    with pytest.raises(MessageTooBig, match="memory_limit=99"):
        limits.check_possible(1, 100, "topic")


def test_returned_bytes_wake_each_listener_once():
    budget = ByteBudget(10, threading.Lock())
    budget.take(10)
    woken = []
    budget.notify_once(lambda: woken.append(1))
    budget.notify_once(lambda: woken.append(2))
    budget.give(4)
    budget.give(6)
    assert woken == [1, 2]


@pytest.mark.parametrize(
    ("max_pending", "max_across", "partitions", "share"),
    [
        (1000, 50_000, 1, 1000),
        (1000, 50_000, 100, 500),
        (1000, 10, 100, 1),
        (0, 50_000, 10, 5000),
        (1000, 0, 10, 1000),
        (0, 0, 10, 0),
    ],
)
def test_each_partition_has_its_fair_share(max_pending, max_across, partitions, share):
    assert partition_share(max_pending, max_across, partitions) == share
