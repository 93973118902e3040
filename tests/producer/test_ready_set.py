"""Pending work of a producer: deadlines in order, among many partitions."""

import pytest

from geminga.errors import Timeout

NEVER = float("inf")


def test_take_due_returns_only_partitions_that_are_due(topic, connect):
    producer = topic(1000, batching_max_publish_delay_seconds=0.01)
    connect(*producer.partitions)
    for step, index in enumerate((700, 3, 999)):
        producer.add(b"x", None, None, step / 1000, partition=producer.partitions[index])
    assert producer.next_deadline() == pytest.approx(0.010)
    assert [p.index for p in producer.ready_set.take_due(0.0115)] == [700, 3]
    assert producer.next_deadline() == pytest.approx(0.012), "these have been taken"


def test_batches_that_closed_early_are_forgotten(topic, connect):
    producer = topic(2, batching_max_messages=2, send_timeout_seconds=0)
    connect(*producer.partitions)
    first, second = producer.partitions
    producer.add(b"x", None, None, 0.0, partition=first)
    producer.add(b"x", None, None, 0.005, partition=second)
    producer.add(b"x", None, None, 0.006, partition=first)
    assert first.batch is None
    assert producer.next_deadline() == pytest.approx(0.015)
    producer.add(b"x", None, None, 0.007, partition=second)
    assert producer.next_deadline() == NEVER
    assert set(producer.ready_set.busy) == {first, second}, "their operations wait for receipts"


def test_send_time_outs_come_in_their_order(topic):
    producer = topic(3, batching_enabled=False, send_timeout_seconds=1.0)
    for partition in producer.partitions:
        partition.start()
    for index, at in enumerate((0.0, 0.4, 0.2)):
        producer.add(b"x", None, None, at, partition=producer.partitions[index])
    assert producer.next_deadline() == pytest.approx(1.0)
    producer.tick(1.1)
    assert [p.counters.timeouts for p in producer.partitions] == [1, 0, 0]
    assert producer.next_deadline() == pytest.approx(1.2)
    producer.tick(1.5)
    assert [p.counters.timeouts for p in producer.partitions] == [1, 1, 1]
    assert {type(o.error) for o in producer.ready_set.take_settled()} == {Timeout}
    assert producer.next_deadline() == NEVER
    assert not producer.ready_set.busy


def test_a_partition_with_all_receipts_is_not_busy(topic, connect):
    producer = topic(3, batching_enabled=False)
    partition = producer.partitions[1]
    connect(partition)
    producer.add(b"x", None, None, 0.0, partition=partition)
    partition.take_output(0.0, 0)
    assert list(producer.ready_set.busy) == [partition]
    partition.receipt(0, 0, 1, 1, 0.5)
    assert not producer.ready_set.busy
    assert producer.next_deadline() == NEVER


def test_urgent_batches_are_due_at_once(topic, connect):
    producer = topic(2)
    connect(producer.partitions[0])
    producer.add(b"x", None, None, 0.0, partition=producer.partitions[0], urgent=True)
    assert producer.ready_set.take_due(0.0) == [producer.partitions[0]]
    assert producer.ready_set.take_due(0.0) == []
