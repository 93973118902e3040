"""A consumer's books: permits, pending entries, blocking."""

import pytest

TOPIC = "persistent://public/default/t"


@pytest.fixture
def consumer(harness):
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared", permits=0)
    return peer.session.consumers[1]


def test_settling_reduces_the_unacknowledged_messages(consumer):
    consumer.track((5,), 10)
    consumer.track((6,), 1)
    assert consumer.unacked_messages == 11
    assert consumer.settle(99) == 0
    assert consumer.settle(5, 4) == 6
    assert consumer.settle(5, 7) == 0, "what was acknowledged stays acknowledged"
    assert consumer.settle(5) == 4
    assert consumer.settle(5) == 0
    assert (consumer.pending, consumer.unacked_messages) == ({6: 1}, 1)
    assert consumer.forget_pending() == {6: 1}
    assert consumer.unacked_messages == 0


def test_a_consumer_is_blocked_until_half_is_acknowledged(consumer):
    consumer.unacked_messages_max = 4
    for offset in range(4):
        consumer.track((offset,), 1)
    assert consumer.blocked
    consumer.settle(0)
    assert consumer.blocked
    consumer.settle(1)
    assert not consumer.blocked


def test_a_consumer_is_ready_with_permits_and_a_writable_connection(consumer):
    assert not consumer.ready
    consumer.add_permits(1, 0)
    assert consumer.ready
    consumer.output.writable = False
    assert not consumer.ready
    consumer.output.writable = True
    consumer.blocked = True
    assert not consumer.ready


def test_requested_entries_follow_the_batch_size(consumer):
    consumer.add_permits(1000, 0)
    assert consumer.entries_wanted == 1000
    for _ in range(30):
        consumer.send(0, 0, b"x", 100, 0, ())
        consumer.permits = 1000
    assert 10 <= consumer.entries_wanted <= 11
    consumer.permits = -5
    assert consumer.entries_wanted == 1


def test_repr_names_the_peer(consumer):
    assert "10.0.0.1" in repr(consumer)
    assert consumer.type_name == "Shared"
