"""One queue for the pending entries of all topics."""

from __future__ import annotations

from typing import Any

from geminga.broker.topics.producer import Producer
from geminga.errors import StoreStopped


def test_reports_reach_the_topic_and_producer_of_their_entry(harness):
    peer = harness.peer()
    for number in range(3):
        peer.producer(f"t{number}", producer_id=number)
    harness.auto_poll = False
    for sequence_id in range(4):
        for number in (2, 0, 1):
            peer.send(sequence_id, producer_id=number)
    harness.poll()
    assert [(r.producer_id, r.sequence_id) for r in peer.receipts()] == [
        (number, sequence_id) for sequence_id in range(4) for number in (2, 0, 1)
    ]


def test_a_refused_entry_is_not_pending(harness, monkeypatch):
    peer = harness.peer()
    for number in (1, 2):
        peer.producer(f"t{number}", producer_id=number)
    harness.auto_poll = False
    peer.send(0, producer_id=1)
    with monkeypatch.context() as context:

        def stopped(*args: Any) -> int:
            raise StoreStopped("no space left")

        context.setattr(harness.store, "append", stopped)
        peer.send(0, producer_id=2)
    peer.pop()
    peer.send(1, producer_id=2)
    harness.poll()
    assert [(r.producer_id, r.sequence_id) for r in peer.receipts()] == [(1, 0), (2, 1)]


def test_a_topic_that_fails_does_not_shift_the_others(harness, monkeypatch):
    peer = harness.peer()
    for number in (1, 2):
        peer.producer(f"t{number}", producer_id=number)
    receipt = Producer.receipt

    def failing(self: Producer, *args: int) -> None:
        if self.producer_id == 1:
            raise RuntimeError("broken")
        receipt(self, *args)

    monkeypatch.setattr(Producer, "receipt", failing)
    harness.auto_poll = False
    for number in (1, 2, 1, 2):
        peer.send(number, producer_id=number)
    harness.poll()
    assert [r.producer_id for r in peer.receipts()] == [2, 2]
