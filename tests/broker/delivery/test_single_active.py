"""Exclusive and Failover: the active consumer, and redelivery."""

import random
from typing import Any

import pytest

from geminga.broker.delivery import single_active
from geminga.broker.delivery.dispatcher import ENTRIES_PER_READ_MAX
from geminga.wire.hashing import murmur3_32
from tests.broker.conftest import NAME, TOPIC, Command


def test_unacknowledged_messages_are_redelivered_after_a_reconnect(harness, producer):
    consumer = harness.consumer(TOPIC)
    producer.publish(4)
    consumer.ack((0, 0), (0, 2))
    consumer.disconnect()
    consumer = harness.consumer(TOPIC)
    assert [(m.entry_id, m.redelivery_count) for m in consumer.messages()] == [(1, 0), (3, 0)]


def test_redelivery_rewinds_an_exclusive_consumer_and_counts_nothing(harness, producer):
    consumer = harness.consumer(TOPIC, consumer_epoch=0)
    producer.publish(3)
    consumer.ack((0, 1))
    assert [m.consumer_epoch for m in consumer.messages()] == [0, 0, 0]
    consumer.command("redeliverUnacknowledgedMessages", consumer_id=1, consumer_epoch=4)
    found = consumer.messages()
    assert [(m.entry_id, m.redelivery_count, m.consumer_epoch) for m in found] == [(0, 0, 4), (2, 0, 4)]


def test_consumers_without_an_epoch_and_shared_ones_get_none(harness, producer):
    plain = harness.consumer(TOPIC, "a")
    shared = harness.consumer(TOPIC, "b", kind="Shared", consumer_epoch=3)
    producer.publish(1)
    assert [m.consumer_epoch for m in plain.messages() + shared.messages()] == [-1, -1]


def active_changes(peer: Any) -> list[bool]:
    return [f.command.active_consumer_change.is_active for f in peer.take(Command.ACTIVE_CONSUMER_CHANGE)]


def test_failover_on_a_partition_chooses_by_priority_then_name(harness):
    topic = f"{TOPIC}-partition-0"
    producer = harness.producer(topic)
    peers = {}
    for name, priority in (("b", 0), ("a", 0), ("0", 1)):
        fields = {"consumer_name": name, "priority_level": priority}
        peers[name] = harness.consumer(topic, kind="Failover", **fields)
    assert active_changes(peers["b"]) == [True, False]
    assert active_changes(peers["a"]) == []
    assert active_changes(peers["0"]) == [False]
    producer.publish(2)
    assert not any(peer.entry_ids() for peer in peers.values())
    harness.advance(1.0)
    assert active_changes(peers["a"]) == [True]
    assert peers["a"].entry_ids() == [0, 1]
    peers["a"].ack((0, 0))
    peers["a"].disconnect()
    assert peers["b"].entry_ids() == []
    harness.advance(1.0)
    assert peers["b"].entry_ids() == [1]
    assert active_changes(peers["b"])[-1] is True


@pytest.mark.parametrize(("partition", "active"), [(0, "a"), (1, "b"), (2, "c"), (3, "a")])
def test_partitions_are_spread_over_failover_consumers(harness, partition, active):
    topic = f"{TOPIC}-partition-{partition}"
    peers = {name: harness.consumer(topic, kind="Failover", consumer_name=name) for name in "cab"}
    harness.advance(2)
    harness.producer(topic).publish(1)
    assert [name for name, peer in peers.items() if peer.entry_ids()] == [active]


def active_name(harness: Any) -> str:
    return harness.actions.stats(NAME)["subscriptions"]["s"]["activeConsumerName"]


def ring_choice(names: list[str], priorities: dict[str, int], topic: str) -> str:
    """Section 4 of algorithms.md, read literally."""
    best = min(priorities[name] for name in names)
    ring = {
        murmur3_32(f"{name}{n}".encode()): name
        for name in sorted(names) if priorities[name] == best for n in range(100)
    }  # fmt: skip
    place = murmur3_32(topic.encode())
    return ring[min((point for point in ring if point >= place), default=min(ring))]


def test_joins_and_leaves_activate_the_consumer_of_the_documented_ring(harness):
    random_source = random.Random(3)
    peers: dict[str, Any] = {}
    priorities = {f"c{number}": number % 2 for number in range(12)}
    for _ in range(80):
        name = f"c{random_source.randrange(12)}"
        if name in peers:
            peers.pop(name).disconnect()
        else:
            fields = {"consumer_name": name, "priority_level": priorities[name]}
            peers[name] = harness.consumer(TOPIC, kind="Failover", **fields)
        if peers:
            assert active_name(harness) == ring_choice(list(peers), priorities, TOPIC)


def test_consumers_at_one_point_of_the_ring_are_ordered_by_name(harness, monkeypatch):
    monkeypatch.setattr(single_active, "_ring_distance", lambda name, topic: 7)
    for name in ("b", "c", "a"):
        harness.peer().subscribe(TOPIC, kind="Failover", consumer_name=name)
    assert active_name(harness) == "c"


def test_an_old_client_gets_no_active_consumer_change(harness):
    peer = harness.peer(version=11)
    peer.subscribe(TOPIC, kind="Failover")
    assert not peer.frames


@pytest.mark.parametrize("entries_max", [5, 64, 1000])
def test_unbatched_messages_sent_together_arrive_as_if_sent_singly(make_harness, make_entry, entries_max):
    harness = make_harness(ledger_entries_max=entries_max)
    producer = harness.producer(TOPIC)
    # Chunks, batches, large entries and such that are acknowledged in between.
    sent: list[tuple[bytes, int]] = []
    for number in range(300):
        entry, messages, chunk = make_entry(b"%d" % number * (number % 7)), 1, False
        if number % 41 == 5:
            entry, messages = make_entry(b"batch", num_messages_in_batch=3), 3
        elif number % 53 == 7:
            entry, chunk = make_entry(b"part", chunk_id=0, num_chunks_from_msg=2), True
        elif number % 90 == 60:
            entry = make_entry(bytes(6000))
        producer.send(number, entry, messages=messages, is_chunk=chunk)
        sent.append((entry, messages))
    places = [(each.ledger_id, each.entry_id) for each in producer.receipts()]
    first = harness.consumer(TOPIC, permits=0)
    gone = {40, 41, 45, 120, 299}
    first.ack(*(places[at] for at in gone))
    expected = [at for at in range(300) if at not in gone]
    got: list[int] = []
    permits = 0
    for more in (1, 3, 4, 9, 50, 100, 7, 150):
        permits += more
        first.command("flow", consumer_id=1, messagePermits=more)
        for each in first.messages():
            at = places.index((each.ledger_id, each.entry_id))
            assert bytes(each.entry) == sent[at][0]
            assert (each.redelivery_count, list(each.ack_set), each.partition) == (0, [], -1)
            permits -= sent[at][1]
            got.append(at)
        consumer = next(iter(first.session.consumers.values()))
        assert consumer.permits == permits
        assert permits <= 0 or len(got) == len(expected)
    assert got == expected[: len(got)]
    assert len(got) > 280
    assert consumer.messages_out == sum(sent[at][1] for at in got)
    assert consumer.bytes_out == sum(len(sent[at][0]) for at in got)


def test_a_peer_that_does_not_read_gets_only_the_begun_entries(harness, producer):
    producer.publish(1000)
    consumer = harness.peer()
    write = consumer.write

    def written(data: bytes) -> None:
        write(data)
        if len(consumer.frames) > 150:
            consumer.writable = False

    consumer.write = written
    consumer.subscribe(TOPIC, permits=1000)
    assert 150 < len(consumer.frames) <= 150 + ENTRIES_PER_READ_MAX
    begun = len(consumer.frames)
    consumer.frames.clear()
    consumer.writable = True
    consumer.session.writable_again(harness.now)
    assert consumer.entry_ids()[0] == begun
