"""Exclusive, Failover and Shared: who gets what, when, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.delivery import dispatchers
from geminga.errors import StoreDamaged
from geminga.wire.hashing import murmur3_32
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"
Command = pb.BaseCommand


def publish(peer: Any, count: int, first: int = 0, **fields: Any) -> None:
    for sequence_id in range(first, first + count):
        peer.send(sequence_id, **fields)


@pytest.fixture
def producer(harness: Any) -> Any:
    peer = harness.peer()
    peer.producer(TOPIC)
    return peer


def entries(peer: Any, consumer_id: int | None = None) -> list[int]:
    return [message.entry_id for message in peer.messages(consumer_id)]


# --- permits ---
def test_nothing_is_sent_before_flow_and_never_more_than_permits(harness: Any, producer: Any) -> None:
    consumer = harness.peer()
    consumer.subscribe(TOPIC, permits=0)
    publish(producer, 5)
    assert entries(consumer) == []
    consumer.command("flow", consumer_id=1, messagePermits=2)
    assert entries(consumer) == [0, 1]
    consumer.command("flow", consumer_id=1, messagePermits=1)
    assert entries(consumer) == [2]
    consumer.command("flow", consumer_id=1, messagePermits=100)
    assert entries(consumer) == [3, 4]
    publish(producer, 1, 5)
    assert entries(consumer) == [5]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_a_batch_costs_its_messages_and_may_overshoot(
    harness: Any, producer: Any, make_entry: Callable[..., bytes], kind: str
) -> None:
    consumer = harness.peer()
    consumer.subscribe(TOPIC, kind=kind, permits=15)
    entry = make_entry(num_messages_in_batch=10)
    for sequence_id in range(3):
        producer.send(sequence_id, entry, messages=10)
    assert entries(consumer) == [0, 1]
    consumer.command("flow", consumer_id=1, messagePermits=5)
    assert entries(consumer) == []
    consumer.command("flow", consumer_id=1, messagePermits=1)
    assert entries(consumer) == [2]


def test_the_count_comes_from_the_entry_when_it_is_read_from_the_store(
    harness: Any, producer: Any, make_entry: Callable[..., bytes]
) -> None:
    for sequence_id in range(3):
        producer.send(sequence_id, make_entry(num_messages_in_batch=10), messages=10)
    consumer = harness.peer()
    consumer.subscribe(TOPIC, permits=11)
    assert entries(consumer) == [0, 1]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_a_slow_reader_is_waited_for(harness: Any, producer: Any, kind: str) -> None:
    consumer = harness.peer()
    consumer.subscribe(TOPIC, kind=kind)
    consumer.writable = False
    publish(producer, 3)
    assert entries(consumer) == []
    consumer.writable = True
    consumer.session.writable_again(harness.now)
    assert entries(consumer) == [0, 1, 2]


# --- Exclusive and Failover ---
def test_what_is_not_acknowledged_comes_again_after_a_reconnect(harness: Any, producer: Any) -> None:
    consumer = harness.peer()
    consumer.subscribe(TOPIC)
    publish(producer, 4)
    consumer.ack((0, 0), (0, 2))
    consumer.disconnect()
    consumer = harness.peer()
    consumer.subscribe(TOPIC)
    assert [(m.entry_id, m.redelivery_count) for m in consumer.messages()] == [(1, 0), (3, 0)]


def test_redelivery_rewinds_an_exclusive_consumer_and_counts_nothing(harness: Any, producer: Any) -> None:
    consumer = harness.peer()
    consumer.subscribe(TOPIC, consumer_epoch=0)
    publish(producer, 3)
    consumer.ack((0, 1))
    assert [m.consumer_epoch for m in consumer.messages()] == [0, 0, 0]
    consumer.command("redeliverUnacknowledgedMessages", consumer_id=1, consumer_epoch=4)
    found = consumer.messages()
    assert [(m.entry_id, m.redelivery_count, m.consumer_epoch) for m in found] == [(0, 0, 4), (2, 0, 4)]


def test_consumers_without_an_epoch_and_shared_ones_get_none(harness: Any, producer: Any) -> None:
    plain, shared = harness.peer(), harness.peer()
    plain.subscribe(TOPIC, "a")
    shared.subscribe(TOPIC, "b", kind="Shared", consumer_epoch=3)
    publish(producer, 1)
    assert [m.consumer_epoch for m in plain.messages() + shared.messages()] == [-1, -1]


def active_changes(peer: Any) -> list[bool]:
    return [f.command.active_consumer_change.is_active for f in peer.take(Command.ACTIVE_CONSUMER_CHANGE)]


def test_failover_on_a_partition_goes_by_priority_then_name(harness: Any) -> None:
    topic = f"{TOPIC}-partition-0"
    producer = harness.peer()
    producer.producer(topic)
    peers = {}
    for name, priority in (("b", 0), ("a", 0), ("0", 1)):
        peers[name] = harness.peer()
        peers[name].subscribe(topic, kind="Failover", consumer_name=name, priority_level=priority)
    assert active_changes(peers["b"]) == [True, False]
    assert active_changes(peers["a"]) == []
    assert active_changes(peers["0"]) == [False]
    publish(producer, 2)
    assert not any(entries(peer) for peer in peers.values())
    harness.advance(1.0)
    assert active_changes(peers["a"]) == [True]
    assert entries(peers["a"]) == [0, 1]
    peers["a"].ack((0, 0))
    peers["a"].disconnect()
    assert entries(peers["b"]) == []
    harness.advance(1.0)
    assert entries(peers["b"]) == [1]
    assert active_changes(peers["b"])[-1] is True


@pytest.mark.parametrize(("partition", "active"), [(0, "a"), (1, "b"), (2, "c"), (3, "a")])
def test_partitions_are_spread_over_failover_consumers(harness: Any, partition: int, active: str) -> None:
    topic = f"{TOPIC}-partition-{partition}"
    peers = {name: harness.peer() for name in "cab"}
    for name, peer in peers.items():
        peer.subscribe(topic, kind="Failover", consumer_name=name)
    harness.advance(2)
    producer = harness.peer()
    producer.producer(topic)
    publish(producer, 1)
    assert [name for name, peer in peers.items() if entries(peer)] == [active]


def test_failover_on_a_plain_topic_uses_the_documented_ring(harness: Any, producer: Any) -> None:
    names = ["one", "two", "three", "four"]
    ring = {murmur3_32(f"{name}{n}".encode()): name for name in sorted(names) for n in range(100)}
    place = murmur3_32(TOPIC.encode())
    expected = ring[min((point for point in ring if point >= place), default=min(ring))]
    peers = {name: harness.peer() for name in names}
    for name, peer in peers.items():
        peer.subscribe(TOPIC, kind="Failover", consumer_name=name)
    harness.advance(2)
    publish(producer, 1)
    assert [name for name, peer in peers.items() if entries(peer)] == [expected]


def test_a_peer_too_old_for_the_notice_gets_none(harness: Any) -> None:
    peer = harness.peer(version=11)
    peer.subscribe(TOPIC, kind="Failover")
    assert not peer.frames


# --- Shared ---
def test_shared_consumers_take_turns(harness: Any, producer: Any) -> None:
    peers = [harness.peer() for _ in range(3)]
    for peer in peers:
        peer.subscribe(TOPIC, kind="Shared")
    publish(producer, 9)
    assert [len(entries(peer)) for peer in peers] == [3, 3, 3]


def test_a_backlog_is_handed_out_in_turns_of_twenty(harness: Any, producer: Any) -> None:
    publish(producer, 80)
    peer = harness.peer()
    for consumer_id in (1, 2):
        peer.subscribe(TOPIC, kind="Shared", consumer_id=consumer_id, permits=0)
    for consumer_id in (1, 2):
        peer.session.consumers[consumer_id].add_permits(1000, 0)
    peer.session.writable_again(harness.now)
    assert entries(peer, 1) == [*range(20), *range(40, 60)]
    assert entries(peer, 2) == [*range(20, 40), *range(60, 80)]


def test_the_better_priority_is_served_while_it_has_permits(harness: Any, producer: Any) -> None:
    good, spare = harness.peer(), harness.peer()
    spare.subscribe(TOPIC, kind="Shared", priority_level=1)
    good.subscribe(TOPIC, kind="Shared", permits=2)
    publish(producer, 4)
    assert (entries(good), entries(spare)) == ([0, 1], [2, 3])


def test_negative_acknowledgements_come_again_first_with_their_count(harness: Any, producer: Any) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared", permits=3)
    publish(producer, 5)
    assert entries(peer) == [0, 1, 2]
    ids = [pb.MessageIdData(ledgerId=0, entryId=entry) for entry in (2, 0, 77)]
    peer.command("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=ids)
    peer.command("flow", consumer_id=1, messagePermits=10)
    found = peer.messages()
    assert [(m.entry_id, m.redelivery_count) for m in found] == [(0, 1), (2, 1), (3, 0), (4, 0)]
    peer.command("redeliverUnacknowledgedMessages", consumer_id=1)
    counts = {m.entry_id: m.redelivery_count for m in peer.messages()}
    assert counts == {0: 2, 1: 1, 2: 2, 3: 1, 4: 1}


def test_what_a_lost_consumer_held_goes_to_the_others_uncounted(harness: Any, producer: Any) -> None:
    lost, other = harness.peer(), harness.peer()
    lost.subscribe(TOPIC, kind="Shared")
    other.subscribe(TOPIC, kind="Shared")
    publish(producer, 4)
    held, seen = entries(lost), entries(other)
    lost.disconnect()
    found = other.messages()
    assert sorted([*seen, *(m.entry_id for m in found)]) == [0, 1, 2, 3]
    assert [m.entry_id for m in found] == held
    assert {m.redelivery_count for m in found} == {0}


def test_an_acknowledgement_may_come_from_another_consumer(harness: Any, producer: Any) -> None:
    one, two = harness.peer(), harness.peer()
    one.subscribe(TOPIC, kind="Shared")
    two.subscribe(TOPIC, kind="Shared")
    publish(producer, 2)
    two.ack((0, 0), (0, 1))
    subscription = one.session.consumers[1].subscription
    assert subscription.dispatcher.unacked_messages == 0
    assert subscription.backlog == 0


def test_unacknowledged_messages_block_a_consumer_until_half_is_acknowledged(
    make_harness: Callable[..., Any],
) -> None:
    harness = make_harness(unacked_messages_per_consumer_max=4)
    producer, peer = harness.peer(), harness.peer()
    producer.producer(TOPIC)
    peer.subscribe(TOPIC, kind="Shared")
    publish(producer, 10)
    assert entries(peer) == [0, 1, 2, 3]
    peer.ack((0, 0))
    assert entries(peer) == []
    peer.ack((0, 1))
    assert entries(peer) == [4, 5]


def test_unacknowledged_messages_block_a_subscription(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(unacked_messages_per_subscription_max=4)
    producer, one, two = harness.peer(), harness.peer(), harness.peer()
    producer.producer(TOPIC)
    one.subscribe(TOPIC, kind="Shared")
    two.subscribe(TOPIC, kind="Shared")
    publish(producer, 10)
    first, second = entries(one), entries(two)
    assert len(first) + len(second) == 4
    one.ack(*((0, entry) for entry in first))
    assert len(entries(one)) + len(entries(two)) == 2
    one.disconnect()
    assert entries(two)


def test_partly_acknowledged_batches_carry_what_is_open(
    harness: Any, producer: Any, make_entry: Callable[..., bytes]
) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared", permits=5)
    producer.send(0, make_entry(num_messages_in_batch=5), messages=5)
    entries(peer)
    part = pb.MessageIdData(ledgerId=0, entryId=0, ack_set=[21])
    peer.command("ack", consumer_id=1, ack_type=0, message_id=[part, part])
    consumer = peer.session.consumers[1]
    assert consumer.unacked_messages == 3
    peer.command("flow", consumer_id=1, messagePermits=3)
    again = pb.MessageIdData(ledgerId=0, entryId=0)
    peer.command("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=[again])
    [message] = peer.messages()
    assert (list(message.ack_set), message.redelivery_count) == ([21], 1)
    assert consumer.permits == 0
    # Recorded: clients count from a full batch again.
    rest = pb.MessageIdData(ledgerId=0, entryId=0, ack_set=[10])
    peer.command("ack", consumer_id=1, ack_type=0, message_id=[rest])
    assert consumer.subscription.backlog == 0
    assert consumer.unacked_messages == 0


def test_redelivery_counts_end_with_the_last_consumer(harness: Any, producer: Any) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    publish(producer, 1)
    peer.command("redeliverUnacknowledgedMessages", consumer_id=1)
    peer.disconnect()
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    assert [m.redelivery_count for m in peer.messages()] == [0]


def test_nothing_is_lost_or_doubled_when_consumers_come_and_go(harness: Any, producer: Any) -> None:
    acked: Counter[int] = Counter()
    published = 0
    for round_number in range(12):
        peers = [harness.peer() for _ in range(1 + round_number % 3)]
        for peer in peers:
            peer.subscribe(TOPIC, kind="Shared", permits=7)
        publish(producer, 10, published)
        published += 10
        for index, peer in enumerate(peers):
            found = entries(peer)
            keep = found[:: 2 if index % 2 else 1]
            peer.ack(*((0, entry) for entry in keep))
            acked.update(keep)
            peer.disconnect()
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared", permits=1000)
    acked.update(entries(peer))
    assert acked == Counter(range(published))


# --- delayed delivery ---
def test_delayed_messages_are_never_early_and_survive_a_restart(
    harness: Any, producer: Any, make_entry: Callable[..., bytes]
) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 5000))
    producer.send(1, make_entry(b"later", deliver_at_time=harness.now_ms + 9000))
    producer.send(2, make_entry(b"now"))
    assert peer.payloads() == [b"now"]
    harness.advance(4.999)
    assert peer.payloads() == []
    harness.advance(0.001)
    assert peer.payloads() == [b"late"]
    peer.ack((0, 0), (0, 2))
    harness.restart()
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    assert peer.payloads() == []
    harness.advance(4)
    assert peer.payloads() == [b"later"]


def test_the_wall_clock_decides_about_delays_not_the_timer(
    harness: Any, producer: Any, make_entry: Callable[..., bytes]
) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    due_ms = harness.now_ms + 1000
    producer.send(0, make_entry(b"late", deliver_at_time=due_ms))
    harness.broker.tick(harness.now + 2, due_ms - 1)
    assert peer.payloads() == []
    harness.broker.tick(harness.now + 2.1, due_ms)
    assert peer.payloads() == [b"late"]


def test_exclusive_consumers_do_not_wait_for_delays(
    harness: Any, producer: Any, make_entry: Callable[..., bytes]
) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC)
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 5000))
    assert peer.payloads() == [b"late"]


# --- taking turns with everybody else ---
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_a_long_backlog_is_sent_in_pieces(
    harness: Any, producer: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(dispatchers, "ENTRIES_PER_CALL_MAX", 50)
    monkeypatch.setattr(dispatchers, "ENTRIES_PER_READ_MAX", 20)
    publish(producer, 200)
    peer = harness.peer()
    peer.subscribe(TOPIC, kind=kind, permits=0)
    harness.auto_poll = False
    peer.command("flow", consumer_id=1, messagePermits=1000)
    pieces = [len(entries(peer))]
    while harness.broker.deadline <= harness.now:
        harness.broker.tick(harness.now, harness.now_ms)
        pieces.append(len(entries(peer)))
    assert sum(pieces) == 200
    assert 50 <= max(pieces) < 80


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_large_entries_count_by_their_bytes(
    harness: Any, producer: Any, make_entry: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(dispatchers, "BYTES_PER_CALL_MAX", 5000)
    monkeypatch.setattr(dispatchers, "BYTES_PER_READ_MAX", 2500)
    for sequence_id in range(40):
        producer.send(sequence_id, make_entry(b"x" * 1000))
    peer = harness.peer()
    peer.subscribe(TOPIC, kind=kind, permits=0)
    harness.auto_poll = False
    peer.command("flow", consumer_id=1, messagePermits=1000)
    assert 5 <= len(entries(peer)) <= 8
    harness.poll()
    peer.disconnect()
    assert harness.broker.deadline > harness.now


# --- a store that fails to read ---
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_unreadable_entries_are_not_served_and_tried_again(
    harness: Any, producer: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    publish(producer, 3)
    read = harness.store.read

    def damaged(*args: Any, **options: Any) -> Any:
        raise StoreDamaged("ledger 0, entry 0: wrong checksum")

    monkeypatch.setattr(harness.store, "read", damaged)
    peer = harness.peer()
    peer.subscribe(TOPIC, kind=kind)
    assert entries(peer) == []
    assert not peer.is_closed
    monkeypatch.setattr(harness.store, "read", read)
    publish(producer, 1, 3)
    harness.advance(10)
    assert entries(peer) == [0, 1, 2, 3]


def test_an_entry_without_readable_metadata_is_handed_on_as_it_is(harness: Any, producer: Any) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    producer.send(0, b"\x00\x00\x00\x02\xff\xff?")
    [message] = peer.messages()
    assert bytes(message.entry) == b"\x00\x00\x00\x02\xff\xff?"
