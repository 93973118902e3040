"""What all dispatchers keep to: permits, slow readers, turns, and a store that fails to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from geminga.broker.delivery import dispatcher, single_active
from geminga.errors import StoreDamaged
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC = "persistent://public/default/t"
Command = pb.BaseCommand


# --- permits ---
def test_nothing_is_sent_before_flow_and_never_more_than_permits(harness: Any, producer: Any) -> None:
    consumer = harness.peer()
    consumer.subscribe(TOPIC, permits=0)
    producer.publish(5)
    assert consumer.entry_ids() == []
    consumer.command("flow", consumer_id=1, messagePermits=2)
    assert consumer.entry_ids() == [0, 1]
    consumer.command("flow", consumer_id=1, messagePermits=1)
    assert consumer.entry_ids() == [2]
    consumer.command("flow", consumer_id=1, messagePermits=100)
    assert consumer.entry_ids() == [3, 4]
    producer.publish(1, 5)
    assert consumer.entry_ids() == [5]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_a_batch_costs_its_messages_and_may_overshoot(
    harness: Any, producer: Any, make_entry: Callable[..., bytes], kind: str
) -> None:
    consumer = harness.peer()
    consumer.subscribe(TOPIC, kind=kind, permits=15)
    entry = make_entry(num_messages_in_batch=10)
    for sequence_id in range(3):
        producer.send(sequence_id, entry, messages=10)
    assert consumer.entry_ids() == [0, 1]
    consumer.command("flow", consumer_id=1, messagePermits=5)
    assert consumer.entry_ids() == []
    consumer.command("flow", consumer_id=1, messagePermits=1)
    assert consumer.entry_ids() == [2]


def test_the_count_comes_from_the_entry_when_it_is_read_from_the_store(
    harness: Any, producer: Any, make_entry: Callable[..., bytes]
) -> None:
    for sequence_id in range(3):
        producer.send(sequence_id, make_entry(num_messages_in_batch=10), messages=10)
    consumer = harness.peer()
    consumer.subscribe(TOPIC, permits=11)
    assert consumer.entry_ids() == [0, 1]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_a_slow_reader_is_waited_for(harness: Any, producer: Any, kind: str) -> None:
    consumer = harness.peer()
    consumer.subscribe(TOPIC, kind=kind)
    consumer.writable = False
    producer.publish(3)
    assert consumer.entry_ids() == []
    consumer.writable = True
    consumer.session.writable_again(harness.now)
    assert consumer.entry_ids() == [0, 1, 2]


# --- taking turns with everybody else ---
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_a_long_backlog_is_sent_in_pieces(
    harness: Any, producer: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(dispatcher, "ENTRIES_PER_CALL_MAX", 50)
    for module in (dispatcher, single_active):
        monkeypatch.setattr(module, "ENTRIES_PER_READ_MAX", 20)
    producer.publish(200)
    peer = harness.peer()
    peer.subscribe(TOPIC, kind=kind, permits=0)
    harness.auto_poll = False
    peer.command("flow", consumer_id=1, messagePermits=1000)
    pieces = [len(peer.entry_ids())]
    while harness.broker.deadline <= harness.now:
        harness.broker.tick(harness.now, harness.now_ms)
        pieces.append(len(peer.entry_ids()))
    assert sum(pieces) == 200
    assert 50 <= max(pieces) < 80


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_large_entries_count_by_their_bytes(
    harness: Any, producer: Any, make_entry: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(dispatcher, "BYTES_PER_CALL_MAX", 5000)
    monkeypatch.setattr(dispatcher, "BYTES_PER_READ_MAX", 2500)
    for sequence_id in range(40):
        producer.send(sequence_id, make_entry(b"x" * 1000))
    peer = harness.peer()
    peer.subscribe(TOPIC, kind=kind, permits=0)
    harness.auto_poll = False
    peer.command("flow", consumer_id=1, messagePermits=1000)
    assert 5 <= len(peer.entry_ids()) <= 8
    harness.poll()
    peer.disconnect()
    assert harness.broker.deadline > harness.now


# --- a store that fails to read ---
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_unreadable_entries_are_not_served_and_tried_again(
    harness: Any, producer: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    producer.publish(3)
    read = harness.store.read

    def damaged(*args: Any, **options: Any) -> Any:
        raise StoreDamaged("ledger 0, entry 0: wrong checksum")

    monkeypatch.setattr(harness.store, "read", damaged)
    peer = harness.peer()
    peer.subscribe(TOPIC, kind=kind)
    assert peer.entry_ids() == []
    assert not peer.is_closed
    monkeypatch.setattr(harness.store, "read", read)
    producer.publish(1, 3)
    harness.advance(10)
    assert peer.entry_ids() == [0, 1, 2, 3]


def test_an_entry_without_readable_metadata_is_handed_on_as_it_is(harness: Any, producer: Any) -> None:
    peer = harness.peer()
    peer.subscribe(TOPIC, kind="Shared")
    producer.send(0, b"\x00\x00\x00\x02\xff\xff?")
    [message] = peer.messages()
    assert bytes(message.entry) == b"\x00\x00\x00\x02\xff\xff?"
