"""The whole core: restarts, crashes, the store underneath, and what one call into it does."""

import random

import pytest

from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.conftest import TOPIC, encoded_ack
from tests.broker.sliced import Sliced


def test_ids_only_grow_over_restarts(harness):
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        peer = harness.producer(TOPIC)
        peer.publish(3)
        seen += [(r.ledger_id, r.entry_id) for r in peer.receipts()]
        harness.restart()
    assert seen == sorted(set(seen))
    assert len({ledger for ledger, _ in seen}) == 3


def test_a_failed_load_is_retried(harness, monkeypatch):
    peer = harness.producer(TOPIC)
    peer.publish(1)
    harness.restart()
    key = f"ledgers/{TOPIC}"
    kept = harness.store.keys.get(key)
    harness.store.keys.put(key, b"\xff")
    peer = harness.peer()
    frame = peer.request("producer", topic=TOPIC, producer_id=1)
    assert frame.command.error.error == pb.PersistenceError
    assert "ledger list" in frame.command.error.message
    harness.store.keys.put(key, b"".join((kept.base, *kept.deltas)))
    assert peer.producer(TOPIC).producer_ready


def test_acknowledgements_of_one_call_are_one_write(harness):
    peer = harness.producer(TOPIC)
    consumer = harness.consumer(TOPIC)
    peer.publish(100)
    consumer.send_bytes(b"".join(encoded_ack(0, entry) for entry in range(100)))
    value = harness.store.keys.get(f"cursor/{TOPIC}\x00s")
    assert len(value.deltas) == 1
    assert len(value.deltas[0]) < 10


def test_closing_ends_every_session_and_writes_pending_changes(harness):
    peer = harness.producer(TOPIC)
    consumer = harness.consumer(TOPIC)
    peer.publish(1)
    subscription = harness.subscription()
    subscription.cursor.acknowledge(0)
    harness.broker.scheduler.mark_cursor(subscription)
    harness.broker.close()
    assert peer.is_closed
    assert consumer.is_closed
    harness.crash()
    assert harness.subscription().backlog == 0


@pytest.mark.parametrize("when", ["poll", "later"])
def test_an_exception_between_two_reports_loses_none(when, monkeypatch):
    monkeypatch.setattr("geminga.ledger.memory._REPORTED_AT_ONCE", 1)
    sliced = Sliced(random.Random(0), 1.0)
    told: list[object] = []
    for number in range(20):
        sliced.store.keys.put(f"k{number}", b"", told.append)
    if when == "later":
        sliced.take_in()

    def fails() -> None:
        monkeypatch.undo()
        raise ValueError("a fault of ours")

    monkeypatch.setattr(sliced.broker.disk, "look", fails)
    if when == "poll":
        with pytest.raises(ValueError, match="a fault of ours"):
            sliced.take_in()
    assert len(told) < 20
    for _ in range(100):
        sliced.turn()  # without polling: the store does not wake the broker for the rest
    assert told == [None] * 20
    assert sliced.broker.scheduler.failures["store"] == (when == "later")
