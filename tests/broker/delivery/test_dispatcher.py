"""Rules of all dispatchers: permits, slow readers, turns, and a store that fails to read."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from doubles import raising
from entries import single_entry

from geminga.broker.delivery import dispatcher, key_shared, shared, single_active
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.errors import StoreDamaged
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC


def test_nothing_is_sent_before_flow_and_never_more_than_permits(harness, producer):
    consumer = harness.consumer(TOPIC, permits=0)
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
def test_a_batch_takes_a_permit_per_message_and_may_exceed_them(harness, producer, make_entry, kind):
    consumer = harness.consumer(TOPIC, kind=kind, permits=15)
    entry = make_entry(num_messages_in_batch=10)
    for sequence_id in range(3):
        producer.send(sequence_id, entry, messages=10)
    assert consumer.entry_ids() == [0, 1]
    consumer.command("flow", consumer_id=1, messagePermits=5)
    assert consumer.entry_ids() == []
    consumer.command("flow", consumer_id=1, messagePermits=1)
    assert consumer.entry_ids() == [2]


def test_the_message_count_is_read_from_stored_entries(harness, producer, make_entry):
    for sequence_id in range(3):
        producer.send(sequence_id, make_entry(num_messages_in_batch=10), messages=10)
    consumer = harness.consumer(TOPIC, permits=11)
    assert consumer.entry_ids() == [0, 1]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_dispatching_waits_for_a_slow_reader(harness, producer, kind):
    consumer = harness.consumer(TOPIC, kind=kind)
    consumer.writable = False
    producer.publish(3)
    assert consumer.entry_ids() == []
    consumer.writable = True
    consumer.session.writable_again(harness.now)
    assert consumer.entry_ids() == [0, 1, 2]


def test_requested_entries_follow_the_batch_size(harness):
    peer = harness.consumer(TOPIC, kind="Shared", permits=1000)
    consumer = peer.session.consumers[1]
    assert consumer.entries_wanted == 1000
    for _ in range(30):
        consumer.send(0, 0, b"x", 100, 0, ())
        consumer.permits = 1000
    assert 10 <= consumer.entries_wanted <= 11
    consumer.permits = -5
    assert consumer.entries_wanted == 1


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_a_long_backlog_is_sent_in_pieces(harness, producer, monkeypatch, kind):
    monkeypatch.setattr(dispatcher, "ENTRIES_PER_CALL_MAX", 50)
    for module in (dispatcher, single_active):
        monkeypatch.setattr(module, "ENTRIES_PER_READ_MAX", 20)
    producer.publish(200)
    peer = harness.consumer(TOPIC, kind=kind, permits=0)
    harness.auto_poll = False
    peer.command("flow", consumer_id=1, messagePermits=1000)
    pieces = [len(peer.entry_ids())]
    while harness.broker.deadline <= harness.now:
        harness.broker.tick(harness.now, harness.now_ms)
        pieces.append(len(peer.entry_ids()))
    assert sum(pieces) == 200
    assert 50 <= max(pieces) < 80


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_large_entries_count_by_their_bytes(harness, producer, make_entry, monkeypatch, kind):
    monkeypatch.setattr(dispatcher, "BYTES_PER_CALL_MAX", 5000)
    monkeypatch.setattr(dispatcher, "BYTES_PER_READ_MAX", 2500)
    producer.send_all(make_entry(b"x" * 1000) for sequence_id in range(40))
    peer = harness.consumer(TOPIC, kind=kind, permits=0)
    harness.auto_poll = False
    peer.command("flow", consumer_id=1, messagePermits=1000)
    assert 5 <= len(peer.entry_ids()) <= 8
    harness.poll()
    peer.disconnect()
    assert harness.broker.deadline > harness.now


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
def test_unreadable_entries_are_not_delivered_and_retried(harness, producer, monkeypatch, kind):
    producer.publish(3)
    read = harness.store.read
    monkeypatch.setattr(harness.store, "read", raising(StoreDamaged("ledger 0, entry 0: wrong checksum")))
    peer = harness.consumer(TOPIC, kind=kind)
    assert peer.entry_ids() == []
    assert not peer.is_closed
    monkeypatch.setattr(harness.store, "read", read)
    producer.publish(1, 3)
    harness.advance(10)
    assert peer.entry_ids() == [0, 1, 2, 3]


def test_an_entry_with_unreadable_metadata_is_delivered_unchanged(harness, producer):
    peer = harness.consumer(TOPIC, kind="Shared")
    producer.send(0, b"\x00\x00\x00\x02\xff\xff?")
    [message] = peer.messages()
    assert bytes(message.entry) == b"\x00\x00\x00\x02\xff\xff?"


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "Key_Shared"])
@pytest.mark.parametrize("seed", range(8))
def test_a_failing_dispatch_loses_no_message(make_harness, monkeypatch, kind, seed):
    """Reading, looking into an entry and sending fail now and then, by a bug: nothing is lost or halted."""
    harness = make_harness(failover_delay_seconds=0.0)
    chance, fails = random.Random(seed), True

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if fails and chance.random() < 0.05:
                raise RuntimeError("injected")
            return function(*args, **kwargs)

        return call

    for owner, name in (
        (ManagedLedger, "fetch"), (ManagedLedger, "in_memory"), (Consumer, "send"), (key_shared, "head_of"),
        (shared, "head_of"), (single_active, "message_count"), (shared.SharedDispatcher, "_released"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    producer = harness.producer(TOPIC)
    consumers: list[Any] = []
    open_ids = set(range(60))
    published = 0
    for _ in range(30):
        for sequence_id in range(published, min(60, published + 3)):
            fields = {"partition_key": f"k{sequence_id % 7}"}
            if chance.random() < 0.2 and kind in ("Shared", "Key_Shared"):
                fields["deliver_at_time"] = harness.now_ms + 500
            producer.send(sequence_id, single_entry(b"m", sequence_id=sequence_id, **fields))
        published = min(60, published + 3)
        for consumer in consumers:
            if consumer.is_closed:
                consumer.disconnect()  # its connection was ended by a failure
        consumers = [each for each in consumers if not each.is_closed]
        if not consumers or (len(consumers) < 3 and kind != "Exclusive"):
            consumers.append(subscribed(harness, kind))
        for consumer in consumers:
            for message in consumer.messages():
                action = chance.random()
                place = (message.ledger_id, message.entry_id)
                if action < 0.6:
                    consumer.ack(place)
                    open_ids.discard(message.entry_id)
                elif action < (0.9 if kind in ("Shared", "Key_Shared") else 0.61):
                    ids = [pb.MessageIdData(ledgerId=place[0], entryId=place[1])]
                    consumer.command("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=ids)
            if chance.random() < 0.05:
                consumer.disconnect()
        harness.advance(0.3)
    fails = False
    for consumer in consumers:
        consumer.disconnect()
    last = subscribed(harness, kind)
    for _ in range(5):
        for message in last.messages():
            last.ack((message.ledger_id, message.entry_id))
            open_ids.discard(message.entry_id)
        harness.advance(6.0)
    assert open_ids == set()


def subscribed(harness: Any, kind: str) -> Any:
    peer = harness.peer()
    while peer.is_closed or not peer.session.consumers.count:
        peer.disconnect()
        peer = harness.peer()
        with contextlib.suppress(StopIteration):  # the subscribing itself may fail, and end the connection
            peer.subscribe(TOPIC, kind=kind)
    return peer


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_pending_redeliveries_resume_after_a_failure(harness, producer, monkeypatch, kind):
    consumer = harness.consumer(TOPIC, kind=kind)
    producer.publish(5)
    assert consumer.entry_ids() == [0, 1, 2, 3, 4]
    other = harness.consumer(TOPIC, kind=kind)
    send, failures = Consumer.send, iter([False, True])

    def failing(self: Consumer, *args: Any) -> None:
        if next(failures, False):
            raise RuntimeError("injected")
        send(self, *args)

    monkeypatch.setattr(Consumer, "send", failing)
    consumer.disconnect()
    assert len(other.messages()) == 1
    harness.advance(dispatcher.READ_RETRY_SECONDS + 0.1)
    assert len(other.messages()) == 4
